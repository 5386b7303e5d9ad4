"""FSH: affinities are the release's double loop; steps descend; variants."""

from __future__ import annotations

import numpy as np
import pytest

from contract import block_data
from modalhash.evaluation import mean_average_precision
from modalhash.methods import fsh
from modalhash.methods.fsh import FSH
from modalhash.methods.registry import info


def features(rng, n=40, m=12):
    F = {"image": rng.normal(size=(n, 6)), "text": rng.normal(size=(n, 4))}
    return F, [values[:m] for values in F.values()]


def looped_affinity(own, own_anchors, other_anchors, k):
    """Item by item and anchor by anchor: sums of kernels between the two sets of neighbours."""
    A = np.zeros((len(own), len(own_anchors)))
    for i, x in enumerate(own):
        near_item = np.argsort([np.linalg.norm(x - a) for a in own_anchors], kind="stable")[:k]
        for j, anchor in enumerate(other_anchors):
            near_anchor = np.argsort([np.linalg.norm(anchor - a) for a in other_anchors], kind="stable")[:k]
            for a in near_item:
                for b in near_anchor:
                    A[i, j] += np.exp(-np.linalg.norm(own_anchors[a] - own_anchors[b]) / 2) / k**2
    return A


@pytest.mark.parametrize("k", [1, 3, 12])
def test_affinities_are_the_double_loop(rng, k):
    F, anchors = features(rng)
    A1, A2 = fsh.fused_affinities(F, anchors, k)
    np.testing.assert_allclose(A1, looped_affinity(F["image"], anchors[0], anchors[1], k), atol=1e-12)
    np.testing.assert_allclose(A2, looped_affinity(F["text"], anchors[1], anchors[0], k), atol=1e-12)


def test_nearest_marks_k_per_row(rng):
    distances = rng.random((30, 9))
    N = fsh.nearest(distances, 4).toarray()
    np.testing.assert_array_equal(N.sum(axis=1), 4)
    assert (np.where(N == 1, distances, 0).max(axis=1) <= np.where(N == 0, distances, 1).min(axis=1)).all()


@pytest.mark.parametrize("fit_weight", [0.1, 300.0])
def test_the_objective_falls_while_the_graph_stays(fit_weight):
    data = block_data(info("fsh"))
    model = FSH(8, fit_weight=fit_weight, fusion="equal", random_state=0).fit(data.X, pairs="aligned")
    assert (np.diff(model.objective_) <= 1e-6 * np.abs(model.objective_[:-1])).all()
    assert model.fusion_weight_ == 0.5


def test_sweeps_beyond_the_fixed_point_change_nothing(monkeypatch):
    data = block_data(info("fsh"))
    model = FSH(8, random_state=0).fit(data.X, pairs="aligned")
    assert model.n_iter_ < model.max_iter
    monkeypatch.setattr(fsh.np, "array_equal", lambda *_: False)
    full = FSH(8, random_state=0).fit(data.X, pairs="aligned")
    monkeypatch.undo()
    assert full.n_iter_ == model.max_iter
    np.testing.assert_array_equal(full.codes_["text"], model.codes_["text"])
    np.testing.assert_array_equal(full.functions_["text"], model.functions_["text"])


@pytest.mark.parametrize(
    "variant", [{}, {"anchors": "kmeans"}, {"init": "cca"}, {"fusion": "normalised"}, {"fusion": "equal"}], ids=str
)
def test_every_variant_finds_the_blocks(variant):
    data = block_data(info("fsh"))
    model = FSH(16, random_state=0, **variant).fit(data.X, pairs="aligned")
    queries = model.transform(data.Xq)["image"]
    score = mean_average_precision(queries, data.Yq["image"], model.codes_["text"], data.Y["text"], n_bits=16)
    assert score > 0.8
    assert 0 <= model.fusion_weight_ <= 1


def test_too_few_pairs_for_anchors_and_neighbours_are_reported():
    data = block_data(info("fsh"), n=40)
    with pytest.warns(UserWarning, match="n_anchors is 50, but there are 40 pairs"):
        FSH(8, random_state=0).fit(data.X, pairs="aligned")
    with pytest.warns(UserWarning, match="n_neighbors is 10, but there are 5 anchors"):
        FSH(8, n_anchors=5, random_state=0).fit(data.X, pairs="aligned")
