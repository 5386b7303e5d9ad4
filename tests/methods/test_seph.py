"""SePH: step 1's pass over blocks is the dense t-SNE of the items, its gradient is right, pairs vote."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from contract import block_data, make
from modalhash.core.codes import pack_signs
from modalhash.core.linalg import unit_rows
from modalhash.methods import seph
from modalhash.methods.amsh.codes import label_patterns
from modalhash.methods.registry import METHODS

METHOD = METHODS["seph"]


def dense(L, Y):
    """KL(P‖Q) and its gradient, item by item, with P and Q as matrices."""
    n = len(L)
    P = unit_rows(L) @ unit_rows(L).T
    np.fill_diagonal(P, 0)
    P = P / P.sum()
    num = 1 / (1 + ((Y[:, None] - Y[None]) ** 2).sum(axis=2) / 4)
    np.fill_diagonal(num, 0)
    Q = num / num.sum()
    away, where = ~np.eye(n, dtype=bool), P > 0
    value = (P[where] * np.log(P[where] / Q[where])).sum()
    M = np.where(away, (P - Q) * num, 0)
    return value, M.sum(axis=1)[:, None] * Y - M @ Y


@pytest.fixture
def labels(rng):
    L = rng.random((40, 4)) < 0.5
    L[~L.any(axis=1), 0] = True
    return L


@pytest.mark.parametrize("memory_limit", [None, 1])
def test_blocks_over_label_patterns_are_the_dense_matrices_over_items(labels, rng, memory_limit, monkeypatch):
    patterns, items, counts = label_patterns(labels)
    assert len(patterns) < len(labels)
    monkeypatch.setattr(seph, "BLOCK_BYTES", 3 * 8 * len(patterns))  # three rows at a time
    Y = rng.normal(size=(len(patterns), 6))
    similarity = seph.LabelSimilarity(patterns, counts, "float64", memory_limit)
    value, gradient = similarity.divergence(Y)
    expected, expected_gradient = dense(labels, Y[items])
    assert similarity.entropy() + value == pytest.approx(expected)
    np.testing.assert_allclose(gradient[items], expected_gradient, atol=1e-12)


def test_the_gradient_is_that_of_the_divergence(labels, rng):
    """dense() has it by a formula; this is the definition. Of one item: the objective moves by what its Y moves."""
    Y = rng.normal(size=(40, 3))
    similarity = seph.LabelSimilarity(labels, np.ones(40), "float64", None)
    _, gradient = similarity.divergence(Y)
    for i, b in ((0, 0), (7, 2), (39, 1)):
        step = np.zeros_like(Y)
        step[i, b] = 1e-5
        slope = (similarity.divergence(Y + step)[0] - similarity.divergence(Y - step)[0]) / 2e-5
        assert slope == pytest.approx(gradient[i, b], rel=1e-5, abs=1e-9)


def test_patterns_descend_as_their_items_would_from_the_same_start(labels, rng):
    patterns, items, counts = label_patterns(labels)
    start = 1e-4 * rng.normal(size=(len(patterns), 5))
    alpha = 0.01 / (5 * 40)
    few = seph.learn_codes(seph.LabelSimilarity(patterns, counts, "float64", None), start, alpha=alpha, max_iter=40)
    all_items = seph.LabelSimilarity(labels, np.ones(40), "float64", None)
    many = seph.learn_codes(all_items, start[items], alpha=alpha, max_iter=40)
    np.testing.assert_allclose(few[1], many[1], rtol=1e-8)
    np.testing.assert_allclose(few[0][items], many[0], atol=1e-5)


def test_the_objective_falls_and_the_lowest_is_kept(labels):
    similarity = seph.LabelSimilarity(labels, np.ones(40), "float64", None)
    start = seph.START * np.random.default_rng(1).normal(size=(40, 8))
    alpha = 0.01 / (8 * 40)
    best, trace = seph.learn_codes(similarity, start, alpha=alpha, max_iter=100)
    assert len(trace) == 101
    assert min(trace) < 0.6 * trace[0]
    value = similarity.entropy() + similarity.divergence(best)[0] + alpha * ((np.abs(best) - 1) ** 2).sum()
    assert value == pytest.approx(min(trace))
    np.testing.assert_allclose(best.mean(axis=0), 0, atol=1e-12)


def test_a_pair_gets_the_bit_whose_odds_multiply_to_more_than_one():
    data = block_data(METHOD)
    model = make(METHOD).fit(data.X, data.Y, pairs="aligned")
    p, q = (expit(values.astype(float)) for values in model.decision_function(data.X).values())
    unified = pack_signs(p * q - (1 - p) * (1 - q))
    np.testing.assert_array_equal(model.codes_["image"], unified)
    np.testing.assert_array_equal(model.transform_pairs(data.X), unified)


def test_step_1_codes_are_kept_where_they_are_asked_for_and_there_are_some():
    data = block_data(METHOD, noise=1.0)
    kept = make(METHOD, unify=False).fit(data.X, data.Y, pairs="aligned")
    classes = data.Y["text"].argmax(axis=1)
    assert all(len(np.unique(kept.codes_["text"][classes == c], axis=0)) == 1 for c in range(6))
    part = make(METHOD, unify=False, train_items=100, n_anchors=5).fit(data.X, data.Y, pairs="aligned")
    votes = (part.codes_["text"] == part.transform_pairs(data.X)).all(axis=1)
    assert 140 <= votes.sum() < 240  # all pairs that were left out, and some of the others


def test_the_pairs_learned_from_are_drawn_whatever_their_order(rng):
    data = block_data(METHOD)
    order = rng.permutation(240)
    first, second = (
        make(METHOD, train_items=90).fit(*parts, pairs="aligned")
        for parts in (
            (data.X, data.Y),
            ({n: v[order] for n, v in data.X.items()}, {n: v[order] for n, v in data.Y.items()}),
        )
    )
    assert np.unpackbits(first.codes_["image"][order] ^ second.codes_["image"]).mean() < 0.01
    with pytest.raises(ValueError, match=r"train_items is 16; expected .* 17"):
        make(METHOD, train_items=16).fit(data.X, data.Y, pairs="aligned")


def test_anchors_are_centres_or_items():
    data = block_data(METHOD)
    for anchors, items in (("kmeans", False), ("random", True)):
        model = make(METHOD, anchors=anchors, precision="float64").fit(data.X, data.Y, pairs="aligned")
        found = model.maps_["text"].anchors_
        assert found.shape == (60, 18)
        assert all((np.abs(data.X["text"] - anchor).sum(axis=1) < 1e-12).any() for anchor in found) == items


def test_labels_that_no_two_pairs_share_are_refused():
    data = block_data(METHOD)
    Y = np.eye(240, dtype=int)
    with pytest.raises(ValueError, match="no two pairs share a label"):
        make(METHOD).fit(data.X, {"image": Y, "text": Y}, pairs="aligned")
