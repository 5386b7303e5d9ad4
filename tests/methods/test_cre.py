"""CRE: a re-implementation that says so; the low-rank form equals the dense one; the objective falls."""

from __future__ import annotations

import numpy as np
import pytest

from contract import block_data
from modalhash.evaluation import mean_average_precision
from modalhash.methods import cre
from modalhash.methods.cre import CRE
from modalhash.methods.registry import info

VARIANTS = [
    {},
    {"kernel": None},
    {"kernel": {"image": "rbf", "text": None}},
    {"affinity": {"image": "rbf", "text": "cosine"}},
    {"fit_weight": 10.0},
    {"fit_weight": 10.0, "kernel": None},
    {"weight": {"image": 0.2, "text": 0.8}, "quantization": 5.0},
]


def fit(data, n_bits=8, **parameters):
    return CRE(n_bits, n_anchors=60, random_state=0, **parameters).fit(data.X, pairs="aligned")


def test_low_rank_similarity_is_the_dense_one(rng):
    F, M = [rng.normal(size=(50, 7)), rng.normal(size=(50, 4))], rng.normal(size=(50, 3))
    np.testing.assert_allclose(cre.similarity(F, M), (F[0] @ F[0].T + F[1] @ F[1].T) @ M, atol=1e-10)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_the_objective_falls_and_the_blocks_are_found(variant):
    data = block_data(info("cre"))
    model = fit(data, **variant)
    assert (np.diff(model.objective_) <= 1e-9 * np.abs(model.objective_[:-1])).all()
    queries = model.transform(data.Xq)["text"]
    score = mean_average_precision(queries, data.Yq["text"], model.codes_["image"], data.Y["image"], n_bits=8)
    assert score > 0.8


def test_the_trace_is_the_objective_less_its_constant(rng, monkeypatch):
    """‖rS − BZᵀ‖² with S as a matrix."""
    data = block_data(info("cre"), n=60)
    seen = []

    def watched(C, rng):
        seen.append(original(C, rng))
        return seen[-1]

    original = cre.balanced_procrustes
    monkeypatch.setattr(cre, "balanced_procrustes", watched)
    model = fit(data, max_iter=1, kernel=None, fit_weight=3.0, quantization=2.0, ridge=0.1)
    B = np.where(np.unpackbits(model.codes_["text"], axis=1, count=8), 1.0, -1.0)
    Z = seen[-1]
    expected = 2.0 * np.linalg.norm(B - Z) ** 2
    for name, X in data.X.items():
        unit = X / np.linalg.norm(X, axis=1, keepdims=True)
        S = unit @ unit.T
        expected += 0.5 * (np.linalg.norm(8 * S - B @ Z.T) ** 2 - np.linalg.norm(8 * S) ** 2)
        P = model.functions_[name]
        expected += 3.0 * (np.linalg.norm(B - (X - X.mean(axis=0)) @ P) ** 2 + 0.1 * np.linalg.norm(P) ** 2)
    assert model.objective_[-1] == pytest.approx(expected, rel=1e-9)
