"""FDDH: no step raises the objective with enough bits, the trace is the printed one, labels move only outwards."""

from __future__ import annotations

import numpy as np
import pytest

from contract import block_data, make
from modalhash.core.linalg import orthogonal_procrustes, sign
from modalhash.methods import fddh
from modalhash.methods.registry import info

METHOD = info("fddh")


def dense_objective(B, T, C, K, R, mu, gamma):
    """As the paper prints it."""
    value = np.sum((B - T @ C) ** 2) + gamma * np.sum(T**2)
    return value + sum(mu[name] * np.sum((K[name] - T @ C @ R[name]) ** 2) for name in K)


@pytest.mark.parametrize("gamma", [0.5, 1e4])  # labels that move, and labels that hardly do
def test_no_step_raises_the_objective_and_the_sums_are_exact(rng, gamma):
    n, c, r = 60, 5, 9
    L = rng.random((n, c)) < 0.3
    K = {"image": rng.random((n, 20)), "text": rng.random((n, 14))}
    mu = {"image": 0.3, "text": 0.1}
    B, T = sign(rng.standard_normal((n, r))), L.astype(float)
    C = orthogonal_procrustes(rng.standard_normal((c, r)))
    R = {name: orthogonal_procrustes(rng.standard_normal((r, values.shape[1]))) for name, values in K.items()}
    constant = sum(mu[name] * np.sum(values**2) for name, values in K.items())
    values = [dense_objective(B, T, C, K, R, mu, gamma)]
    for _ in range(5):
        C = orthogonal_procrustes(T.T @ (B + fddh.rotate(K, R, mu)))
        values.append(dense_objective(B, T, C, K, R, mu, gamma))
        R = {name: orthogonal_procrustes((T @ C).T @ F, near=R[name]) for name, F in K.items()}
        values.append(dense_objective(B, T, C, K, R, mu, gamma))
        B = sign(T @ C)
        values.append(dense_objective(B, T, C, K, R, mu, gamma))
        rotated = fddh.rotate(K, R, mu)
        T = fddh.relaxed_labels((B + rotated) @ C.T / (1 + sum(mu.values()) + gamma), L)
        values.append(dense_objective(B, T, C, K, R, mu, gamma))
        assert constant + fddh.objective(B, T, C, R, rotated, mu, gamma) == pytest.approx(values[-1])
    assert np.all(np.diff(values) <= 1e-7 * values[0])
    assert np.all(T[L] >= 1)
    assert np.all(T[~L] <= 0)
    assert np.any(T[L] > 1) == (gamma < 1)


def test_the_trace_falls_and_codes_are_one_for_each_set_of_labels():
    data = block_data(METHOD, noise=0.6)
    model = make(METHOD, 16, tol=0).fit(data.X, data.Y, **data.fit)
    assert np.all(np.diff(model.objective_) <= 1e-7 * model.objective_[0])
    assert len(np.unique(model.codes_["text"], axis=0)) == 6


def test_sweeps_end_when_the_objective_hardly_falls_or_at_once_when_it_rises():
    data = block_data(METHOD, noise=0.6)
    model = make(METHOD, 16, tol=0.5).fit(data.X, data.Y, **data.fit)
    assert model.n_iter_ == 2
    few = make(METHOD, 3, tol=0, label_ridge=0.1, feature_weight=1.0, max_iter=50)  # fewer bits than classes
    few.fit(data.X, data.Y, **data.fit)
    *earlier, last = few.objective_
    assert last > earlier[-1]
    assert np.all(np.diff(earlier) <= 0)
    before = make(METHOD, 3, tol=0, label_ridge=0.1, feature_weight=1.0, max_iter=few.n_iter_ - 1)
    before.fit(data.X, data.Y, **data.fit)
    np.testing.assert_array_equal(few.codes_["text"], before.codes_["text"])


def test_features_are_rbf_with_the_mean_squared_distance_between_items():
    data = block_data(METHOD)
    model = make(METHOD).fit(data.X, data.Y, **data.fit)
    X = data.X["text"]
    among = ((X[:, None] - X) ** 2).sum(axis=2)
    to_anchors = ((X[:, None] - model.maps_["text"].anchors_) ** 2).sum(axis=2)
    np.testing.assert_allclose(model.maps_["text"].transform(X), np.exp(-to_anchors / among.mean()), atol=1e-12)
