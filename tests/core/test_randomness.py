from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from modalhash.core.randomness import draw, root_seed, row_keys, stream


def test_keys_see_content_only(rng):
    X = rng.normal(size=(500, 6)) * (rng.random((500, 6)) < 0.5)
    keys = row_keys(X, 1)
    order = rng.permutation(500)
    np.testing.assert_array_equal(row_keys(X[order], 1), keys[order])
    np.testing.assert_array_equal(row_keys(sparse.csr_array(X), 1), keys)
    np.testing.assert_array_equal(row_keys(X.astype(np.float32), 1), keys)
    np.testing.assert_array_equal(row_keys(X * [1, 1, 1, 1, 1, 1] + -0.0, 1), keys)
    assert len(np.unique(keys[X.any(axis=1)])) == X.any(axis=1).sum()
    assert not np.array_equal(row_keys(X, 2), keys)
    a, b = stream(1, keys), stream(1, keys[order])
    assert a.random() == b.random()


def test_keys_are_spread_evenly():
    keys = row_keys(np.arange(20_000, dtype=float)[:, None], 0)
    counts = np.bincount((keys >> np.uint64(60)).astype(int), minlength=16)
    assert counts.min() > 1100
    assert counts.max() < 1400


def test_copies_are_drawn_by_their_number(rng):
    X = rng.normal(size=(4000, 3)).round(6)
    X[:1000] = 0  # a quarter of the items have no features at all
    drawn = draw(X, 400, 3)
    assert len(np.unique(drawn)) == 400
    assert 70 <= (drawn < 1000).sum() <= 130
    order = rng.permutation(4000)
    np.testing.assert_array_equal(X[order][draw(X[order], 400, 3)], X[drawn])
    distinct = X[1000:]
    expected = np.argsort(row_keys(distinct, 3), kind="stable")[:50]
    np.testing.assert_array_equal(draw(distinct, 50, 3), expected)


def test_seeds():
    assert root_seed(5) == 5
    assert root_seed(np.int64(5)) == 5
    assert root_seed(np.random.default_rng(1)) == root_seed(np.random.default_rng(1))
    assert root_seed(None) != root_seed(None)
    for wrong in (-1, True, 1.5, "0", np.random.RandomState(0)):
        with pytest.raises((TypeError, ValueError), match="random_state is"):
            root_seed(wrong)
