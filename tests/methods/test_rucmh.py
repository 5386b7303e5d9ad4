"""RUCMH: a re-implementation that says so; each step against its plain form; what pairs change."""

from __future__ import annotations

import numpy as np
import pytest

from contract import block_data
from modalhash.evaluation import mean_average_precision
from modalhash.methods import rucmh as steps
from modalhash.methods.registry import info
from modalhash.methods.rucmh import RUCMH

PAIRED = block_data(info("batch"))
"""Row k of both modalities is one item."""
WORKS = 0.6
"""mAP; chance is 1/6. Three of the eight uncorrelated bits are noise: six classes have five directions."""


def pairs(n):
    return np.repeat(np.random.default_rng(0).permutation(240)[:n, None], 2, axis=1)


def fit(n_pairs, n_bits=8, **parameters):
    model = RUCMH(n_bits, n_anchors=60, random_state=0, **parameters)
    return model.fit(PAIRED.X, pairs=pairs(n_pairs) if n_pairs else None)


def score(model, query, database):
    queries = model.transform({query: PAIRED.Xq[query]})[query]
    return mean_average_precision(
        queries, PAIRED.Yq[query], model.codes_[database], PAIRED.Y[database], n_bits=model.n_bits
    )


def across(model):
    return min(score(model, "image", "text"), score(model, "text", "image"))


@pytest.mark.parametrize("kernel", ["rbf", None, {"image": "rbf", "text": None}])
def test_pairs_align_the_modalities(kernel):
    assert across(fit(240, kernel=kernel)) > WORKS
    assert across(fit(60, kernel=kernel)) > WORKS


def test_without_pairs_each_modality_works_within_itself_only():
    model = fit(None)
    assert score(model, "image", "image") > WORKS
    assert score(model, "text", "text") > WORKS
    assert across(model) < WORKS - 0.1


def test_the_objective_falls_where_all_are_paired_and_nothing_is_reconstructed():
    trace = fit(240, reconstruction=0.0).objective_
    assert (np.diff(trace) <= 1e-6 * trace[:-1]).all()
    assert fit(60).objective_[-1] < fit(60).objective_[0]


def test_nearest_mean_is_the_mean_of_the_nearest(rng):
    V, anchors = rng.normal(size=(20, 4)), rng.normal(size=(9, 4))
    distances = ((V[:, None] - anchors) ** 2).sum(axis=2)
    expected = np.stack([anchors[np.argsort(row)[:3]].mean(axis=0) for row in distances])
    np.testing.assert_allclose(steps.nearest_mean(V, anchors, 3), expected)
    np.testing.assert_allclose(steps.nearest_mean(V, anchors, 50), np.tile(anchors.mean(axis=0), (20, 1)))


def test_a_least_squares_reconstruction_would_say_nothing(rng):
    """Why C is sparse: any V is rebuilt from more anchors than bits, whatever they are."""
    V, anchors = rng.normal(size=(50, 4)), rng.normal(size=(30, 4))
    C = np.linalg.solve(anchors @ anchors.T + 1e-6 * np.eye(30), anchors @ V.T).T
    np.testing.assert_allclose(C @ anchors, V, atol=1e-4)


def test_bits_beyond_the_features_are_completed():
    model = fit(240, n_bits=40, kernel=None)
    assert model.codes_["text"].shape == (240, 5)


def test_three_modalities_and_one():
    X = PAIRED.X | {"sound": PAIRED.X["text"] * 2}
    three = np.repeat(np.arange(240)[:, None], 3, axis=1)
    model = RUCMH(8, n_anchors=60, random_state=0).fit(X, pairs=three)
    sound = model.transform({"sound": PAIRED.Xq["text"] * 2})["sound"]
    assert mean_average_precision(sound, PAIRED.Yq["text"], model.codes_["image"], PAIRED.Y["image"], n_bits=8) > WORKS
    assert RUCMH(8, n_anchors=60, random_state=0).fit({"image": PAIRED.X["image"]}).n_iter_ == 30
