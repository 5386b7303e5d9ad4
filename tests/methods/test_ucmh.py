"""UCMH: the objective from small products is the dense one and never rises, with any number of modalities."""

from __future__ import annotations

import numpy as np
import pytest

from contract import block_data, make
from modalhash.core.features import Linear
from modalhash.core.linalg import unit_rows
from modalhash.methods import ucmh
from modalhash.methods.registry import METHODS

METHOD = METHODS["ucmh"]
WEIGHTS = ucmh.UCMHWeights(coupling=3.0, graph=7.0, ridge=0.1)


def make_views(rng, sizes=(60, 45, 30), bits=5, classes=4):
    X = [rng.normal(size=(n, 6 + i)) for i, n in enumerate(sizes)]
    Y = {str(i): rng.random((n, classes)) < 0.4 for i, n in enumerate(sizes)}
    for labels in Y.values():
        labels[:, 0] |= ~labels.any(axis=1)
    Lt = ucmh.graph_labels(Y)
    views = {
        name: ucmh.UCMHView(
            Linear().fit_blocks(x, block_rows=17), Lt[name], rng.normal(size=(len(x), bits)), 0.5 + i, WEIGHTS
        )
        for i, (name, x) in enumerate(zip(Y, X, strict=True))
    }
    return views, [x - x.mean(axis=0) for x in X], list(Y.values())


def dense_objective(views, X, Y):
    """The objective as the class prints it, with the Laplacian as a matrix."""
    S = np.vstack([unit_rows(labels) for labels in Y])
    S = S @ S.T
    degree = S.sum(axis=1)
    laplacian = np.eye(len(S)) - S / np.sqrt(np.outer(degree, degree))
    assert np.linalg.eigvalsh(laplacian).min() > -1e-9
    V = np.vstack([view.V for view in views.values()])
    total = WEIGHTS.graph * np.trace(V.T @ laplacian @ V)
    for view, x in zip(views.values(), X, strict=True):
        total += view.alpha * np.sum((x - view.V @ view.U) ** 2)
        total += view.alpha * WEIGHTS.coupling * np.sum((view.V - x @ view.W) ** 2)
        total += WEIGHTS.ridge * sum(np.sum(M**2) for M in (view.U, view.V, view.W))
    return total


@pytest.mark.parametrize("sizes", [(60,), (60, 45), (60, 45, 30)])
@pytest.mark.parametrize("sparse_below", [0, 1])
def test_no_step_raises_the_objective(rng, sizes, sparse_below, monkeypatch):
    monkeypatch.setattr(ucmh, "SPARSE_BELOW", sparse_below)
    views, X, Y = make_views(rng, sizes)
    for view in views.values():
        view.update_UW()
    value = dense_objective(views, X, Y)
    for _ in range(15):
        T = ucmh.semantic_sum(views)
        for view in views.values():
            view.update_V(T)
        after_V = dense_objective(views, X, Y)
        assert after_V <= value * (1 + 1e-10)
        assert ucmh.objective(views) == pytest.approx(after_V, rel=1e-9)
        for view in views.values():
            view.update_UW()
        value = dense_objective(views, X, Y)
        assert value <= after_V * (1 + 1e-10)


def test_u_and_w_are_the_best_for_v(rng):
    views, X, Y = make_views(rng)
    for view in views.values():
        view.update_UW()
    best = dense_objective(views, X, Y)
    for view in views.values():
        for name in ("U", "W"):
            kept = getattr(view, name)
            setattr(view, name, kept + 1e-3 * rng.normal(size=kept.shape))
            assert dense_objective(views, X, Y) > best
            setattr(view, name, kept)


@pytest.mark.parametrize(
    "parameters", [{}, {"init": "pca"}, {"kernel": None}, {"memory_limit": 1, "kernel": {"image": "rbf", "text": None}}]
)
def test_the_trace_falls_in_a_fit(parameters):
    data = block_data(METHOD)
    model = make(METHOD, max_iter=20, tol=0, **parameters).fit(data.X, data.Y)
    assert model.n_iter_ == len(model.objective_) == 20
    assert np.all(np.diff(model.objective_) <= 1e-9 * model.objective_[0])


@pytest.mark.parametrize("n_bits", [8, 40])
def test_pca_start_takes_more_bits_than_features(n_bits):
    data = block_data(METHOD)
    model = make(METHOD, n_bits, init="pca", kernel=None).fit(data.X, data.Y)
    assert model.functions_["text"].shape == (18, n_bits)


def test_one_modality_and_three_are_taken():
    data = block_data(METHOD)
    X, Y = data.X | {"sound": data.X["text"][:100, ::-1]}, data.Y | {"sound": data.Y["text"][:100]}
    alone = make(METHOD).fit({"text": X["text"]}, {"text": Y["text"]})
    assert alone.codes_["text"].shape == (240, 2)
    three = make(METHOD).fit(X, Y)
    queries = np.unpackbits(three.transform({"sound": X["sound"][:50]})["sound"], axis=1)
    distance = (queries[:, None] != np.unpackbits(three.codes_["image"], axis=1)).sum(axis=2)
    same = (Y["sound"][:50] @ Y["image"].T) > 0
    assert distance[same].mean() < 2 < 6 < distance[~same].mean()
