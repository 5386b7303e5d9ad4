from __future__ import annotations

import numpy as np
import pytest

from modalhash.core import linalg
from reference.amsh import theorem


@pytest.mark.parametrize("condition", [1.0, 1e3, 1e6, 1e9])
def test_balanced_procrustes_is_the_theorem(rng, condition):
    Z = rng.normal(size=(200, 6)) * np.geomspace(1, 1 / condition, 6) @ np.linalg.qr(rng.normal(size=(6, 6)))[0]
    V = linalg.balanced_procrustes(Z, rng)
    slow = theorem(Z.T, rng).T
    np.testing.assert_allclose(V.T @ V / 200, np.eye(6), atol=1e-7)
    np.testing.assert_allclose(V.mean(axis=0), 0, atol=1e-7)
    assert np.vdot(Z, V) >= np.vdot(Z, slow) * (1 - 1e-9)


def test_weighted_rows_are_repeated_rows(rng):
    Z, counts = rng.normal(size=(50, 4)), rng.integers(1, 9, size=50)
    once = linalg.balanced_procrustes(Z, rng, counts.astype(float))
    repeated = linalg.balanced_procrustes(np.repeat(Z, counts, axis=0), rng)
    np.testing.assert_allclose(np.repeat(once, counts, axis=0), repeated, atol=1e-9)


def test_more_bits_than_rows_are_refused(rng):
    with pytest.raises(ValueError, match="4 rows cannot carry 4"):
        linalg.balanced_procrustes(np.ones((4, 4)), rng)


@pytest.mark.parametrize("shape", [(30, 80), (80, 30)])
def test_principal_directions_are_those_of_the_covariance(rng, shape):
    X = rng.normal(size=shape)
    W = linalg.principal_directions(X, 5)
    vectors = np.linalg.eigh(np.cov(X.T))[1]
    np.testing.assert_allclose(np.abs(np.einsum("ij,ij->j", W, vectors[:, ::-1][:, :5])), 1, atol=1e-8)
    assert np.all(W[np.abs(W).argmax(axis=0), np.arange(5)] > 0)
    assert linalg.principal_directions(np.outer(np.arange(30), np.ones(4)), 3).shape == (4, 1)


def test_ridge_is_factored_once_and_survives_dependent_features(rng):
    X, T = rng.normal(size=(50, 4)), rng.normal(size=(50, 2))
    F = linalg.ridge_regression(X, T, 0.5)
    np.testing.assert_allclose(F, np.linalg.solve(X.T @ X + 0.5 * np.eye(4), X.T @ T))
    doubled = np.hstack([X, X])
    assert np.isfinite(linalg.ridge_regression(doubled, T, 0.0)).all()
    with pytest.raises(ValueError, match="ridge is 0"):
        linalg.RidgeFactor(np.zeros((3, 3)), 0.0)


def test_small_steps(rng):
    np.testing.assert_array_equal(linalg.sign(np.array([-2.0, 0.0, 3.0])), [-1, -1, 1])
    np.testing.assert_allclose(linalg.unit_rows(np.array([[3, 4], [0, 0]])), [[0.6, 0.8], [0, 0]])
    R = linalg.orthogonal_procrustes(rng.normal(size=(5, 5)))
    np.testing.assert_allclose(R @ R.T, np.eye(5), atol=1e-12)


def test_where_the_best_rotation_is_not_unique_it_is_the_one_nearest_to_another(rng):
    near = linalg.orthogonal_procrustes(rng.standard_normal((6, 6)))
    M = rng.standard_normal((6, 2)) @ rng.standard_normal((2, 6))  # says nothing about four directions
    best = linalg.orthogonal_procrustes(M, near=near)
    assert np.trace(best.T @ M) == pytest.approx(np.trace(linalg.orthogonal_procrustes(M).T @ M))
    noise = 1e-14 * rng.standard_normal((6, 6))
    np.testing.assert_allclose(linalg.orthogonal_procrustes(M + noise, near=near), best, atol=1e-4)
    assert np.abs(linalg.orthogonal_procrustes(M + noise) - linalg.orthogonal_procrustes(M - noise)).max() > 0.01
