"""Where step 1 begins: rows that items share, and their first V."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modalhash.features import Linear
from modalhash.methods._amsh_start import Start


def items(seed, n, patterns):
    rng = np.random.default_rng(seed)
    pool = np.unique(rng.random((patterns, 8)) < 0.4, axis=0)
    shares = rng.random(len(pool)) ** 6  # a few patterns hold most items
    return rng.normal(size=(n, 3)), pool[rng.choice(len(pool), size=n, p=shares / shares.sum())]


@given(seed=st.integers(0, 1000), n=st.integers(20, 3000), patterns=st.integers(2, 60), n_bits=st.integers(1, 12))
@settings(max_examples=40)
def test_a_row_stands_for_items_with_its_labels(seed, n, patterns, n_bits):
    X, labels = items(seed, n, patterns)
    start = Start.of(X, labels, None, n_bits, seed=0)
    view, row = start.view(n_bits, shared=True)
    np.testing.assert_array_equal(view.L[row], labels)
    np.testing.assert_array_equal(np.bincount(row, minlength=len(view.L)), view.w)
    assert view.w.min() >= 1
    assert view.w.max() <= max(1, np.ceil(n / (32 * n_bits)))  # no row holds more than its share
    assert len(view.L) <= min(n, len(start.patterns) + 32 * n_bits)
    assert view.n == n
    assert np.abs(view.w @ view.V).max() < 1e-9 * n
    own, place = start.view(n_bits, shared=False)
    np.testing.assert_array_equal(own.L[place], labels)


def test_a_random_start_is_like_the_mean_of_items_with_random_starts():
    X, labels = items(0, 20_000, 30)
    start = Start.of(X, labels, None, 16, seed=0)
    view, _ = start.view(16, shared=True)
    scaled = view.V * np.sqrt(view.w)[:, None]
    assert scaled.var() == pytest.approx(1, rel=0.05)


def test_a_start_from_features_is_the_mean_over_the_items_of_a_row():
    X, labels = items(1, 900, 20)
    phi = Linear().fit_blocks(X)
    start = Start.of(X, labels, phi, 5, seed=0)
    view, row = start.view(2, shared=True)
    projected = start.projected
    assert projected.shape == (900, 3)  # no more directions than features
    for k in range(len(view.w)):
        np.testing.assert_allclose(view.V[k], projected[row == k, :2].mean(axis=0), atol=1e-12)
    wide, _ = start.view(5, shared=True)
    assert wide.V.shape == (len(wide.w), 5)  # the rest is noise
    assert np.all(wide.V[:, 3:].std(axis=0) > 0)
