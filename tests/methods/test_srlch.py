"""SRLCH: the objective never rises, the trace is the printed objective, the sweeps end at a fixed point."""

from __future__ import annotations

import numpy as np

from contract import block_data, make
from modalhash.core.codes import unpack_signs
from modalhash.methods import srlch
from modalhash.methods.registry import info

METHOD = info("srlch")


def slow_sweeps(model, data, n_iter):
    """The sheet's outline with explicit inverses; returns B, the P of the last sweep, and the objective."""
    phi = [model.maps_[name].transform(X) for name, X in data.X.items()]
    Y = data.Y["image"].astype(float)
    mu, alpha, lam = srlch.WEIGHTS, srlch.RIDGES, 0.1
    H = [np.linalg.inv(F.T @ F + a * np.eye(F.shape[1])) @ F.T for F, a in zip(phi, alpha, strict=True)]
    H_y = np.linalg.inv(Y.T @ Y + lam * np.eye(Y.shape[1])) @ Y.T
    B = np.where(np.random.default_rng([0, 0]).standard_normal((len(Y), model.n_bits)) > 0, 1.0, -1.0)
    trace = []
    for _ in range(n_iter):
        P, W = [h @ B for h in H], H_y @ B
        B = np.where(Y @ W + sum(m * F @ p for m, F, p in zip(mu, phi, P, strict=True)) > 0, 1.0, -1.0)
        value = np.sum((B - Y @ W) ** 2) + lam * np.sum(W**2)
        for m, F, p, a in zip(mu, phi, P, alpha, strict=True):
            value += m * (np.sum((B - F @ p) ** 2) + a * np.sum(p**2))
        trace.append(value)
    return B, P, trace


def test_it_is_the_outline():
    data = block_data(METHOD, noise=0.6)
    model = make(METHOD, max_iter=4).fit(data.X, data.Y, **data.fit)
    B, P, trace = slow_sweeps(model, data, model.n_iter_)
    np.testing.assert_array_equal(unpack_signs(model.codes_["text"], model.n_bits), B)
    for name, p in zip(data.X, P, strict=True):
        np.testing.assert_allclose(model.functions_[name], p, atol=1e-6)
    np.testing.assert_allclose(model.objective_, trace, rtol=1e-9)


def test_the_objective_falls_and_the_sweeps_end_at_a_fixed_point():
    data = block_data(METHOD, noise=0.6)
    model = make(METHOD, max_iter=100).fit(data.X, data.Y, **data.fit)
    assert model.n_iter_ == len(model.objective_) < 100
    assert np.all(np.diff(model.objective_) <= 1e-9 * model.objective_[0])
    longer = make(METHOD, max_iter=200).fit(data.X, data.Y, **data.fit)
    assert longer.n_iter_ == model.n_iter_


def test_features_are_rbf_of_centred_unit_rows_with_a_one_at_the_end():
    data = block_data(METHOD)
    model = make(METHOD, sigma=0.5).fit(data.X, data.Y, **data.fit)
    X = data.X["text"] - data.X["text"].mean(axis=0)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    squared = ((X[:, None] - model.maps_["text"].anchors_) ** 2).sum(axis=2)
    expected = np.column_stack([np.exp(-squared / (2 * 0.5**2)), np.ones(len(X))])
    np.testing.assert_allclose(model.maps_["text"].transform(data.X["text"]), expected, atol=1e-12)


def test_weights_by_position_or_by_name():
    X = {"sketch": None, "sound": None}
    assert srlch.by_position(None, X, "feature_weight", (0.1, 1e-5)) == {"sketch": 0.1, "sound": 1e-5}
    assert srlch.by_position(2, X, "feature_weight", (0.1, 1e-5)) == {"sketch": 2.0, "sound": 2.0}
    assert srlch.by_position({"sound": 1, "sketch": 0}, X, "p", (0.1, 1e-5)) == {"sketch": 0.0, "sound": 1.0}
