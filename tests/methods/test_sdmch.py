"""SDMCH: a re-implementation that says so; the graph is that of its definition, and no step raises the objective."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from contract import block_data, make
from modalhash.core.linalg import sign
from modalhash.methods import sdmch
from modalhash.methods.registry import METHODS

METHOD = METHODS["sdmch"]


def test_weights_reconstruct_an_item_from_its_neighbours(rng):
    """Inside the neighbours' span the item is met exactly; an outside item gets the least squares with sum 1."""
    X = np.vstack([np.zeros((1, 3)), np.eye(3), -np.eye(3)])
    neighbours = np.array([[1, 2, 3]] * 7)
    P = sdmch.reconstruction_weights(X, neighbours)
    np.testing.assert_allclose(P[0], 1 / 3)
    np.testing.assert_allclose(P.sum(axis=1), 1)
    assert np.allclose(P[1], [1, 0, 0], atol=0.01)
    away = rng.normal(size=(30, 12))
    near = np.argsort(((away[:, None] - away) ** 2).sum(axis=2), axis=1)[:, 1:5]
    P = sdmch.reconstruction_weights(away, near)
    for i in (0, 13):
        error = [
            np.sum((away[i] - w @ away[near[i]]) ** 2)
            for w in (P[i], *(P[i] + 0.1 * (d - d.mean()) for d in rng.normal(size=(20, 4))))
        ]
        assert error[0] <= min(error[1:]) * 1.001  # the ridge moves it by a thousandth
    np.testing.assert_allclose(sdmch.reconstruction_weights(sparse.csr_array(away), near), P)


def test_copies_of_an_item_share_its_weight_alike():
    X = np.ones((5, 2))
    np.testing.assert_allclose(sdmch.reconstruction_weights(X, np.array([[1, 2, 3, 4]] * 5)), 0.25)


def test_nearest_are_those_of_all_distances(rng):
    X = np.round(2 * rng.normal(size=(50, 3)), 1)
    X[7] = X[3]
    found = sdmch.nearest(X, 5)
    d = ((X[:, None] - X) ** 2).sum(axis=2)
    np.fill_diagonal(d, np.inf)
    np.testing.assert_allclose(np.sort(np.take_along_axis(d, found, axis=1)), np.sort(d, axis=1)[:, :5])
    assert 3 in found[7]
    integers = np.round(X)  # many ties
    np.testing.assert_array_equal(sdmch.nearest(sparse.csr_array(integers), 5), sdmch.nearest(integers, 5))


def test_the_laplacian_is_that_of_the_symmetric_graph(rng):
    X = rng.normal(size=(40, 5))
    Lap = sdmch.laplacian(X, 6)
    dense = Lap.toarray()
    np.testing.assert_allclose(dense, dense.T)
    np.testing.assert_allclose(dense.sum(axis=1), 0, atol=1e-12)
    order = np.argsort(((X[:, None] - X) ** 2).sum(axis=2), axis=1, kind="stable")[:, 1:7]
    S = np.zeros((40, 40))
    for i, (near, w) in enumerate(zip(order, sdmch.reconstruction_weights(X, order), strict=True)):
        S[i, near] = np.abs(w)
    np.testing.assert_allclose(dense, np.diag((S + S.T).sum(axis=1)) - (S + S.T), atol=1e-10)


def test_conjugate_gradients_solve_all_columns(rng):
    A = (sdmch.laplacian(rng.normal(size=(60, 4)), 5) + 0.1 * sparse.eye_array(60)).tocsr()
    right, start = rng.normal(size=(60, 7)), rng.normal(size=(60, 7))
    np.testing.assert_allclose(sdmch.smooth(A, right, start), np.linalg.solve(A.toarray(), right), atol=1e-6)


def test_no_bit_can_be_changed_for_the_better_after_its_sweeps(rng):
    B, Q, G = sign(rng.normal(size=(30, 6))), rng.normal(size=(30, 6)), rng.normal(size=(6, 4))
    H = G @ G.T

    def value(codes):
        return np.trace(codes @ H @ codes.T) - 2 * np.vdot(codes, Q)

    start = value(B)
    values = [start]
    for _ in range(10):
        B = sdmch.update_B(B, Q, H)
        values.append(value(B))
    assert np.all(np.diff(values) <= 1e-9 * abs(start))
    for i, bit in ((0, 0), (11, 3), (29, 5)):
        flipped = B.copy()
        flipped[i, bit] *= -1
        assert value(flipped) >= values[-1] - 1e-9


@pytest.mark.parametrize(
    "parameters",
    [{}, {"function_weight": 0.5}, {"init": "random", "quantization": 0.1}, {"manifold": {"image": 0, "text": 2.0}}],
    ids=str,
)
def test_no_round_raises_the_objective(parameters):
    data = block_data(METHOD, noise=0.5)
    model = make(METHOD, 12, **parameters).fit(data.X, data.Y, pairs="aligned")
    assert len(model.objective_) == model.n_iter_
    assert np.all(np.diff(model.objective_) <= 1e-6 * model.objective_[0])


def test_the_trace_is_the_objective(monkeypatch):
    """As the docstring prints it, at the end of one round, whose F, G and W are caught on their way."""
    data = block_data(METHOD, n=80)
    seen = {}

    def caught(name):
        original = getattr(sdmch, name)

        def call(*args):
            seen[name] = original(*args)
            return seen[name]

        monkeypatch.setattr(sdmch, name, call)

    caught("smooth")
    caught("ridge_regression")
    model = make(METHOD, 8, max_iter=1, function_weight=0.0, quantization=0.3, label_weight=2.0, label_ridge=5.0).fit(
        data.X, data.Y, pairs="aligned"
    )
    B = np.where(np.unpackbits(model.codes_["text"], axis=1, count=8), 1.0, -1.0)
    F, G, Y = seen["smooth"], seen["ridge_regression"], data.Y["text"]
    value = 0.3 * np.sum((B - F) ** 2) + 2.0 * (np.sum((Y - B @ G) ** 2) + 5.0 * np.sum(G**2))
    value += sum(0.5 * np.trace(F.T @ sdmch.laplacian(X, 10).toarray() @ F) for X in data.X.values())
    assert model.objective_[0] == pytest.approx(value)
