"""TECH: a re-implementation that says so; sums are those of the dense matrices; no step raises the objective."""

from __future__ import annotations

import numpy as np
import pytest

from contract import block_data, make
from modalhash.core.linalg import balanced_procrustes, orthogonal_procrustes, sign, unit_rows
from modalhash.methods import tech
from modalhash.methods.registry import METHODS

METHOD = METHODS["tech"]
WEIGHTS = {"alpha": 0.3, "beta": 0.7, "gamma": 0.2, "eta": 0.4}


@pytest.fixture
def problem(rng):
    """Codes, and feasible V, B, R, P, U for them."""
    L = (rng.random((50, 6)) < 0.3).astype(float)
    L[~L.any(axis=1), 0] = 1
    codes = tech.TECHCodes(L, [rng.normal(size=(50, 7)), rng.normal(size=(50, 4))], **WEIGHTS)
    V = balanced_procrustes(rng.standard_normal((50, 5)), rng)
    R = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    return codes, [V, sign(rng.normal(size=(50, 5))), R, rng.normal(size=(5, 6)), codes.update_U(V)]


def dense_objective(codes, V, B, R, P, U, alpha, beta, gamma, eta):
    """As the docstring prints it."""
    L, r = codes.L, B.shape[1]
    G = L / np.linalg.norm(L, axis=1, keepdims=True)
    C = np.array([[a @ b / np.sqrt((a @ a) * (b @ b)) for a in L.T] for b in L.T])
    value = np.sum((B - V @ R) ** 2) + alpha * np.sum((V @ B.T - r * (2 * G @ G.T - 1)) ** 2)
    for i, v in enumerate(V):
        for k in range(6):
            part = sum(C[k, j] * np.sum((L[i, k] * v - P[:, j]) ** 2) for j in range(6))
            value += beta * (part - C[k].sum() * np.sum((L[i, k] * v) ** 2))  # less what the V-step leaves out
    value += beta * gamma * np.sum(P**2)
    return value + eta * sum(np.sum((F - V @ u) ** 2) + np.sum(u**2) for F, u in zip(codes.targets, U, strict=True))


def test_the_sums_are_those_of_the_dense_matrices(problem):
    codes, (V, B, R, P, U) = problem
    expected = dense_objective(codes, V, B, R, P, U, **WEIGHTS)
    assert codes.objective(V, B, R, P, U) == pytest.approx(expected)


def test_every_step_is_its_exact_minimiser(problem, rng):
    codes, (V, B, R, P, U) = problem
    values = [codes.objective(V, B, R, P, U)]
    P = codes.update_P(V)
    values.append(codes.objective(V, B, R, P, U))
    assert codes.objective(V, B, R, P + 0.01 * rng.normal(size=P.shape), U) > values[-1]
    V = balanced_procrustes(codes.pull_of_V(B, R, P, U), rng)
    values.append(codes.objective(V, B, R, P, U))
    U = codes.update_U(V)
    values.append(codes.objective(V, B, R, P, U))
    B = sign(codes.pull_of_B(V, R))
    values.append(codes.objective(V, B, R, P, U))
    flipped = B.copy()
    flipped[3, 2] *= -1
    assert codes.objective(V, flipped, R, P, U) >= values[-1]
    R = orthogonal_procrustes(V.T @ B)
    values.append(codes.objective(V, B, R, P, U))
    assert np.all(np.diff(values) <= 1e-9 * abs(values[0]))


@pytest.mark.parametrize("parameters", [{}, {"correlation": 5.0, "feature_weight": 3.0}], ids=str)
def test_no_sweep_raises_the_objective(parameters):
    data = block_data(METHOD)
    trace = make(METHOD, 24, **parameters).fit(data.X, data.Y, pairs="aligned").objective_
    assert np.all(np.diff(trace) <= 1e-9 * abs(trace[0]))


def test_functions_solve_their_normal_equations(rng):
    F = rng.normal(size=(40, 6))
    F -= F.mean(axis=0)
    B, G = sign(rng.normal(size=(40, 5))), unit_rows(rng.random((40, 3)) < 0.5)
    S = 2 * G @ G.T - 1
    W = tech.hash_functions(F, B, G, lam=2.0, xi=0.3)
    left = (F.T @ F + 0.3 * np.eye(6)) @ W @ (B.T @ B + 2.0 * np.eye(5))
    np.testing.assert_allclose(left, F.T @ (5 * S @ B + 2.0 * B), atol=1e-9)
