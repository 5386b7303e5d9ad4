"""SCM: directions are those of the generalised eigenproblem, a bit leaves what it should, the trace is the objective."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import linalg, sparse

from contract import block_data, make
from modalhash.core.codes import unpack_signs
from modalhash.core.linalg import CentredFeatures, ridged_cholesky, sign, unit_rows
from modalhash.core.progress import Reporter
from modalhash.methods import scm
from modalhash.methods.registry import info

METHOD = info("scm")


@pytest.fixture
def problem(rng):
    """Centred features of two modalities with different numbers of items, label rows, c XᵀSY and ridged covariances."""
    L = [(rng.random((n, 5)) < 0.4).astype(float) for n in (80, 70)]
    X = [
        labels @ rng.standard_normal((5, d)) + rng.standard_normal((len(labels), d))
        for labels, d in zip(L, (9, 7), strict=True)
    ]
    X = [values - values.mean(axis=0) for values in X]
    G = [unit_rows(labels) for labels in L]
    S = 2 * G[0] @ G[1].T - 1
    covariances = [values.T @ values for values in X]
    for C in covariances:
        C += 1e-6 * np.trace(C) / len(C) * np.eye(len(C))
    return X, G, S, 12 * X[0].T @ S @ X[1], covariances


def eigen_pair(C, Cxx, Cyy):
    """As the authors: C Cyy⁻¹ Cᵀ w = λ² Cxx w, and the other side from it."""
    values, vectors = linalg.eigh(C @ np.linalg.solve(Cyy, C.T), Cxx)
    wx = vectors[:, -1]
    return wx, np.linalg.solve(Cyy, C.T @ wx) / np.sqrt(values[-1]), values[-1]


def test_the_sequential_solver_is_the_outline(problem, rng, monkeypatch):
    X, _, _, C, covariances = problem
    features = [CentredFeatures(values, np.zeros(values.shape[1])) for values in X]
    factors = [np.linalg.cholesky(C) for C in covariances]
    for dense_below in (scm.DENSE_BELOW, 0):  # the whole SVD, and the search for its leading pair
        monkeypatch.setattr(scm, "DENSE_BELOW", dense_below)
        Wx, Wy = scm.sequential_directions(*features, C, *factors, 12, rng, Reporter(None))
        rest, before = C.copy(), np.inf
        for t in range(Wx.shape[1]):
            wx, wy, value = eigen_pair(rest, *covariances)
            assert value <= before
            before = value
            flip = np.sign(wx @ Wx[:, t])
            np.testing.assert_allclose(Wx[:, t], wx * flip, atol=1e-7)
            np.testing.assert_allclose(Wy[:, t], wy * flip, atol=1e-7)
            rest -= X[0].T @ np.outer(sign(X[0] @ wx), sign(X[1] @ wy)) @ X[1]
        assert Wx.shape[1] == 12 or eigen_pair(rest, *covariances)[2] > before


def test_orthogonal_directions_are_those_of_the_eigenproblem_and_no_more_than_there_are(problem):
    _, _, _, C, covariances = problem
    factors = [np.linalg.cholesky(C) for C in covariances]
    Wx, Wy = scm.orthogonal_directions(C, *factors, 12)
    assert Wx.shape[1] == Wy.shape[1] == 5  # the rank of centred label similarities of five classes
    wx, wy, _ = eigen_pair(C, *covariances)
    np.testing.assert_allclose(np.abs(Wx[:, 0]), np.abs(wx), atol=1e-9)
    np.testing.assert_allclose(np.abs(Wy[:, 0]), np.abs(wy), atol=1e-9)
    np.testing.assert_allclose(Wx.T @ covariances[0] @ Wx, np.eye(5), atol=1e-8)


def test_the_trace_is_the_objective_of_the_bits_so_far(problem, rng):
    _, G, S, _, _ = problem
    Bx, By = sign(rng.standard_normal((80, 6))), sign(rng.standard_normal((70, 6)))
    slow = [np.sum((Bx[:, :t] @ By[:, :t].T - 6 * S) ** 2) for t in range(1, 7)]
    np.testing.assert_allclose(scm.objective(Bx, By, *G), slow)


def test_sequential_bits_lower_the_objective_further_than_orthogonal_ones():
    data = block_data(METHOD, noise=0.6)
    traces = {
        solver: make(METHOD, 24, solver=solver).fit(data.X, data.Y).objective_
        for solver in ("sequential", "orthogonal")
    }
    assert np.all(np.diff(traces["sequential"]) < 0)
    assert traces["sequential"][-1] < 0.8 * traces["orthogonal"][-1]


def test_bits_that_labels_do_not_reach_are_canonical_with_pairs_and_constant_without():
    data = block_data(info("batch"))  # aligned
    with_pairs = make(METHOD, 16, solver="orthogonal").fit(data.X, data.Y, pairs="aligned")
    without = make(METHOD, 16, solver="orthogonal").fit(data.X, data.Y)
    assert with_pairs.n_directions_ == without.n_directions_ == 5
    assert [len(np.unique(bit)) for bit in unpack_signs(without.codes_["text"], 16).T] == [2] * 5 + [1] * 11
    X, Y = (values - values.mean(axis=0) for values in data.X.values())
    correlations = [
        np.corrcoef(X @ wx, Y @ wy)[0, 1]
        for wx, wy in zip(with_pairs.functions_["image"].T[5:], with_pairs.functions_["text"].T[5:], strict=True)
    ]
    assert np.all(np.diff(correlations) > 0)  # the strongest last
    assert correlations[-1] > 0.9


@pytest.mark.parametrize("width", [9, 90])  # by a whole SVD, and by the search for a pair
def test_labels_that_say_nothing_give_some_direction_and_no_error(width, rng):
    u, value, v = scm.leading_pair(np.zeros((width, width + 1)), rng)
    assert value == 0
    assert np.linalg.norm(u) == pytest.approx(1)
    assert np.linalg.norm(v) == pytest.approx(1)


def test_only_two_modalities():
    data = block_data(METHOD)
    with pytest.raises(ValueError, match=r"needs two; got \['image'\]"):
        make(METHOD).fit({"image": data.X["image"]}, {"image": data.Y["image"]})


@pytest.mark.parametrize(
    "kinds", [(np.asarray, sparse.csr_array), (sparse.csr_array, np.asarray), (sparse.csr_array,) * 2]
)
def test_products_with_centred_features_never_centre_a_sparse_matrix(kinds, rng):
    X, Y = (np.where(rng.random((30, d)) < 0.3, rng.random((30, d)), 0) for d in (8, 5))
    means = rng.random(8), rng.random(5)  # of other items than these
    Fx, Fy = (CentredFeatures(kind(F), mean) for kind, F, mean in zip(kinds, (X, Y), means, strict=True))
    X, Y = X - means[0], Y - means[1]
    np.testing.assert_allclose(Fx.cross(Fy), X.T @ Y)
    np.testing.assert_allclose(Fx.cross(Fx), X.T @ X)
    np.testing.assert_allclose(Fx.times(Y[:8]), X @ Y[:8])
    np.testing.assert_allclose(Fx.transposed_times(Y), X.T @ Y)
    np.testing.assert_allclose(Fx.transposed_times(Y[:, 0]), X.T @ Y[:, 0])


def test_the_ridge_is_a_share_of_the_mean_of_the_diagonal():
    L = ridged_cholesky(np.diag([1.0, 3.0]), 0.5)
    np.testing.assert_allclose(L @ L.T, np.diag([2.0, 4.0]))
