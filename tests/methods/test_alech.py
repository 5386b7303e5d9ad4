"""ALECH: no step raises the objective, sums are those of the dense matrices, hash functions are the printed formula."""

from __future__ import annotations

import numpy as np
import pytest

from modalhash.core.linalg import RidgeFactor, balanced_procrustes, sign, unit_rows
from modalhash.methods import alech
from modalhash.methods.registry import info

METHOD = info("alech")
WEIGHTS = {"alpha": 0.01, "beta": 0.5, "eta": 0.1}


@pytest.fixture
def labels(rng):
    return (rng.random((60, 7)) < 0.3).astype(float)


def dense_objective(V, B, W, P, L, S, alpha, beta, eta):
    """As the paper prints it, with S as a matrix."""
    r = B.shape[1]
    value = np.sum((V @ W - L @ P) ** 2) + np.sum((L - L @ P) ** 2) + beta * np.sum((B - V) ** 2)
    return value + alpha * np.sum((V @ B.T - r * S) ** 2) + eta * (np.sum(W**2) + np.sum(P**2))


def test_no_step_raises_the_objective_and_the_sums_are_exact(labels, rng):
    L, G, r = labels, unit_rows(labels), 9
    S = 2 * G @ G.T - 1
    V = balanced_procrustes(rng.standard_normal((60, r)), rng)
    B = sign(rng.standard_normal((60, r)))
    W, P = rng.standard_normal((r, 7)), np.eye(7)
    eta = WEIGHTS["eta"]
    values = [dense_objective(V, B, W, P, L, S, **WEIGHTS)]
    for _ in range(5):
        B = sign(alech.pull(V, G, WEIGHTS["alpha"], WEIGHTS["beta"]))
        values.append(dense_objective(V, B, W, P, L, S, **WEIGHTS))
        P = RidgeFactor(2 * L.T @ L, eta).solve(L.T @ V @ W + L.T @ L)
        values.append(dense_objective(V, B, W, P, L, S, **WEIGHTS))
        W = RidgeFactor(V.T @ V, eta).solve(V.T @ L @ P)
        values.append(dense_objective(V, B, W, P, L, S, **WEIGHTS))
        V = balanced_procrustes(L @ P @ W.T + alech.pull(B, G, WEIGHTS["alpha"], WEIGHTS["beta"]), rng)
        values.append(dense_objective(V, B, W, P, L, S, **WEIGHTS))
        constant = WEIGHTS["alpha"] * r**2 * np.sum(S**2)
        assert constant + alech.objective(V, B, W, P, L.T @ V, L.T @ L, G, tuple(WEIGHTS.values())) == pytest.approx(
            values[-1]
        )
    assert np.all(np.diff(values) <= 1e-9 * values[0])


@pytest.mark.parametrize("ridge", [0.0, 1e-3])
def test_hash_functions_minimise_their_objective(labels, rng, ridge):
    """The gradient of ‖φFBᵀ − rS‖² + λ‖B − φF‖², and of the ridge in the metric that the formula implies, is 0."""
    G, lam = unit_rows(labels), 3.0
    S, phi, B = 2 * G @ G.T - 1, rng.standard_normal((60, 11)), sign(rng.standard_normal((60, 9)))
    F = alech.hash_functions(phi, B, G, lam, ridge)
    metric = B.T @ B + lam * np.eye(9)
    gradient = phi.T @ (phi @ F @ B.T - 9 * S) @ B + lam * phi.T @ (phi @ F - B)
    gradient += ridge * np.trace(phi.T @ phi) * F @ metric
    np.testing.assert_allclose(gradient, 0, atol=1e-8)


def test_it_starts_from_the_principal_components_of_the_second_modality(rng):
    F = rng.standard_normal((50, 6)) * [9, 7, 5, 3, 2, 1]
    V = alech.start(F, 8, rng)
    assert V.shape == (50, 8)
    U = np.linalg.svd(F - F.mean(axis=0), full_matrices=False)[2].T
    np.testing.assert_allclose(np.abs(V[:, :6]), np.abs(F @ U))
