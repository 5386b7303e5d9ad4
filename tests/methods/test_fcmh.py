"""FCMH: no step raises what the trace holds, sums are those of the dense matrices, groups fit for codes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from contract import block_data, make
from modalhash.core.linalg import CentredFeatures, orthogonal_procrustes, sign
from modalhash.methods import fcmh
from modalhash.methods.fcmh import robust_kmeans
from modalhash.methods.registry import info

METHOD = info("fcmh")
ALPHA, BETA, GAMMA = (0.3, 0.2), (2.0, 3.0), 0.1
PARTS = [slice(0, 20), slice(20, 36), slice(36, 60)]


@pytest.fixture
def labels(rng):
    return (rng.random((60, 7)) < 0.3).astype(float)


def cosines(L):
    products = L.T @ L
    sizes = np.sqrt(products.diagonal())
    return np.array([[products[i, j] / (sizes[i] * sizes[j] or 1) for j in range(7)] for i in range(7)])


def dense_objective(L, V, B, R, P):
    """As the paper prints it, with sums over items and classes, less the part in ‖v‖² of the class term."""
    r = B.shape[1]
    G = L / np.maximum(np.linalg.norm(L, axis=1), 1e-12)[:, None]
    S = 2 * G @ G.T - 1
    value = np.sum((B - V @ R) ** 2) + ALPHA[0] * np.sum((V @ B.T - r * S) ** 2) + GAMMA * np.sum(P**2)
    for rows in PARTS:
        value += ALPHA[1] * np.sum((V[rows] @ B[rows].T - r * S[rows, rows]) ** 2)
        A = BETA[0] * cosines(L) + BETA[1] * cosines(L[rows])
        for v, row in zip(V[rows], L[rows], strict=True):
            for k in range(7):
                gaps = ((row[k] * v[:, None] - P) ** 2).sum(axis=0) - row[k] * (v @ v)
                value += float(A[k] @ gaps)
    return value


def test_no_step_raises_the_objective_and_the_sums_are_exact(labels, rng):
    r = 9
    problem = fcmh.FCMHProblem(labels, PARTS, ALPHA, BETA, GAMMA)
    B, R = sign(rng.standard_normal((60, r))), orthogonal_procrustes(rng.standard_normal((r, r)))
    V = problem.update_V(B, R, rng.standard_normal((r, 7)), rng)
    for rows in PARTS:
        np.testing.assert_allclose(V[rows].T @ V[rows], len(V[rows]) * np.eye(r), atol=1e-9)
        np.testing.assert_allclose(V[rows].sum(axis=0), 0, atol=1e-9)
    values = []
    for _ in range(4):
        P = problem.update_P(V)
        values.append(dense_objective(labels, V, B, R, P))
        V = problem.update_V(B, R, P, rng)
        values.append(dense_objective(labels, V, B, R, P))
        B = sign(V @ R + problem.similarity_pull(V))
        values.append(dense_objective(labels, V, B, R, P))
        R = orthogonal_procrustes(V.T @ B, near=R)
        values.append(dense_objective(labels, V, B, R, P))
        assert problem.objective(V, B, R, P) == pytest.approx(values[-1])
    assert np.all(np.diff(values) <= 1e-7 * abs(values[0]))


def test_groups_have_more_pairs_than_bits_and_more_than_one_set_of_labels():
    groups = np.repeat([0, 1, 2, 3, 4], [30, 12, 3, 20, 25])
    mixed = np.arange(90) % 2
    merged = fcmh.merge_groups(groups, mixed, 8)
    np.testing.assert_array_equal(np.bincount(merged), [30, 15, 20, 25])  # 3 joined 12
    same = np.where(groups == 3, 0, mixed)
    np.testing.assert_array_equal(np.bincount(fcmh.merge_groups(groups, same, 8)), [30, 35, 25])  # and 20 the 15
    np.testing.assert_array_equal(np.bincount(fcmh.merge_groups(groups, mixed, 60)), [90])
    np.testing.assert_array_equal(np.bincount(fcmh.merge_groups(groups, np.zeros(90), 8)), [90])


def slow_robust_kmeans(views, n_groups, rng):
    """The sheet's rounds, item by item and group by group."""
    n = len(views[0])
    start = rng.permutation(n_groups)
    groups = np.array([start[i % n_groups] for i in range(n)])
    weights = np.full((n, len(views)), np.sqrt(0.5))
    before = np.inf
    for _ in range(100):
        centres = [
            [np.average(X[groups == g], axis=0, weights=weights[groups == g, v]) for g in range(n_groups)]
            for v, X in enumerate(views)
        ]
        for i in range(n):
            gaps = [
                sum(weights[i, v] * np.sum((X[i] - centres[v][g]) ** 2) for v, X in enumerate(views))
                for g in range(n_groups)
            ]
            groups[i] = np.argmin(gaps)
        residuals = np.array(
            [[np.linalg.norm(X[i] - centres[v][groups[i]]) for v, X in enumerate(views)] for i in range(n)]
        )
        shares = (residuals.sum(axis=0) / 2) ** 2
        shares /= shares.sum()
        objective = np.sum(np.sqrt(shares) * residuals.sum(axis=0))
        if before - objective <= 1e-3 * objective:
            return groups
        before = objective
        weights = np.sqrt(shares) / (2 * residuals)
    return groups


def test_robust_groups_are_those_of_the_sheet(rng):
    views = [rng.standard_normal((80, d)) for d in (5, 3)]
    groups = robust_kmeans(views, 4, np.random.default_rng(1))
    np.testing.assert_array_equal(groups, slow_robust_kmeans(views, 4, np.random.default_rng(1)))
    assert len(np.unique(groups)) == 4


def test_groups_that_are_plain_are_found(rng):
    plain = rng.integers(3, size=90)
    views = [20 * np.eye(3, d)[plain] + rng.standard_normal((90, d)) for d in (5, 4)]
    groups = robust_kmeans(views, 3, np.random.default_rng(1))
    assert len(np.unique(np.stack([plain, groups]), axis=1).T) == 3


def test_equal_items_and_empty_groups_are_no_harm():
    views = [np.repeat(np.eye(2), 10, axis=0), np.repeat(np.eye(2, 3), 10, axis=0)]
    groups = robust_kmeans(views, 6, np.random.default_rng(0))
    assert groups.max() == len(np.unique(groups)) - 1
    assert all(len(np.unique(views[0][groups == g], axis=0)) == 1 for g in np.unique(groups))


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_many_pairs_are_grouped_by_principal_components(kind, rng, monkeypatch):
    X = np.where(rng.random((50, 9)) < 0.4, rng.random((50, 9)), 0)
    F = CentredFeatures(kind(X), np.zeros(9))
    np.testing.assert_allclose(fcmh.components(F, F.cross(F)), X)
    monkeypatch.setattr(fcmh, "REDUCED_FROM", 40)
    monkeypatch.setattr(fcmh, "N_COMPONENTS", 3)
    centred = X - X.mean(axis=0)
    expected = centred @ np.linalg.svd(centred)[2][:3].T
    np.testing.assert_allclose(np.abs(fcmh.components(F, F.cross(F))[:, ::-1]), np.abs(expected), atol=1e-9)


@pytest.mark.parametrize("centred", [False, True])
def test_hash_functions_are_ridge_regressions_on_features_centred_or_not(centred):
    data = block_data(METHOD)
    model = make(METHOD, centred=centred, ridge=0.3).fit(data.X, data.Y, **data.fit)
    X = data.X["text"] - centred * data.X["text"].mean(axis=0)
    bits = np.unpackbits(model.codes_["text"], axis=1, count=16) * 2.0 - 1
    expected = np.linalg.solve(X.T @ X + 0.3 * np.eye(18), X.T @ bits)
    np.testing.assert_allclose(model.functions_["text"], expected, atol=1e-9)
    np.testing.assert_allclose(model.decision_function(data.X)["text"], X @ expected, atol=1e-9)
