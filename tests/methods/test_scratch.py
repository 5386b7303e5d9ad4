"""SCRATCH: the objective falls in every sweep, the sweeps are the authors', variants work."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from contract import block_data
from modalhash.core.codes import unpack_signs
from modalhash.core.linalg import orthogonal_procrustes, sign
from modalhash.methods.registry import info
from modalhash.methods.scratch import SCRATCH, Regression, SCRATCHWeights, latent, objective, rotation
from strategies import labels

PAIRED = info("scratch")


def inv(M):
    return np.linalg.inv(M)


def columns_sweep(X, Y, L, V, R, lx, ly, a, mu, g):
    """One sweep as the authors have it: columns are items, inverses are inverses."""
    r = len(V)
    B = np.where(R @ V >= 0, 1.0, -1.0)
    Ux = lx * X @ V.T @ inv(lx * V @ V.T + g * np.eye(r))
    Uy = ly * Y @ V.T @ inv(ly * V @ V.T + g * np.eye(r))
    G = a * L @ V.T @ inv(a * V @ V.T + g * np.eye(r))
    Wx = mu * V @ X.T @ inv(mu * X @ X.T + g * np.eye(len(X)))
    Wy = mu * V @ Y.T @ inv(mu * Y @ Y.T + g * np.eye(len(Y)))
    left = lx * Ux.T @ Ux + ly * Uy.T @ Uy + a * G.T @ G + R.T @ R + (2 * mu + g) * np.eye(r)
    V = inv(left) @ (lx * Ux.T @ X + ly * Uy.T @ Y + mu * (Wx @ X + Wy @ Y) + a * G.T @ L + R.T @ B)
    S1, _, S2t = np.linalg.svd(B @ V.T)
    return B, Wx, Wy, V, S1 @ S2t


def test_three_sweeps_are_the_authors():
    data = block_data(PAIRED)
    model = SCRATCH(8, n_anchors=12, reconstruction={"image": 0.3, "text": 0.7}, max_iter=3, random_state=5)
    model.fit(data.X, data.Y, **data.fit)
    stream = np.random.default_rng([5, 1])
    V, R = stream.standard_normal((240, 8)).T, np.linalg.svd(stream.standard_normal((8, 8)))[0]
    X, Y = (model.maps_[name].map(data.X[name]).T for name in ("image", "text"))
    for _ in range(3):
        B, Wx, Wy, V, R = columns_sweep(X, Y, data.Y["text"].T.astype(float), V, R, 0.3, 0.7, 500, 1000, 5)
    np.testing.assert_array_equal(unpack_signs(model.codes_["image"], 8), B.T)
    np.testing.assert_allclose(model.functions_["image"], (R @ Wx).T, atol=1e-6)
    np.testing.assert_allclose(model.functions_["text"], (R @ Wy).T, atol=1e-6)


@given(
    L=labels(30, 4),
    seed=st.integers(0, 2**32 - 1),
    features=st.sampled_from([0.0, 0.5, 1.0]),
    alpha=st.sampled_from([0.0, 1.0, 500.0]),
    mu=st.sampled_from([1e-3, 1.0, 1000.0]),
    gamma=st.sampled_from([1e-2, 5.0]),
    one_step=st.booleans(),
)
@settings(max_examples=50)
@pytest.mark.slow
def test_no_step_raises_the_objective(L, seed, features, alpha, mu, gamma, one_step):
    rng = np.random.default_rng(seed)
    L, r = L.astype(float), 5
    phi = {"image": rng.standard_normal((30, 7)), "text": rng.standard_normal((30, 4))}
    weights = SCRATCHWeights({"image": features, "text": 1 - features}, alpha, mu, gamma)
    V, B = rng.standard_normal((30, r)), sign(rng.standard_normal((30, r)))
    R, G = orthogonal_procrustes(rng.standard_normal((r, r))), rng.standard_normal((r, 4))
    U = {name: rng.standard_normal((r, X.shape[1])) for name, X in phi.items()}
    W = {name: rng.standard_normal((X.shape[1], r)) for name, X in phi.items()} if one_step else {}

    def value():
        return objective(phi, L, U, G, W, V, B - V @ R.T, weights)

    trace = [value()]
    for _ in range(4):
        B = sign(V @ R.T)
        trace.append(value())
        U = {name: Regression(V, weights.features[name], gamma).fit(X) for name, X in phi.items()}
        trace.append(value())
        G = Regression(V, alpha, gamma).fit(L)
        trace.append(value())
        W = {name: Regression(phi[name], mu, gamma).fit(V) for name in W}
        trace.append(value())
        V = latent(phi, L, U, G, W, B, R, weights)
        trace.append(value())
        R = rotation(B, V, R)
        trace.append(value())
    assert np.all(np.diff(trace) <= 1e-9 * (1 + np.array(trace[:-1])))


def test_rounding_does_not_choose_the_rotation():
    rng = np.random.default_rng(0)
    B = np.repeat(sign(rng.standard_normal((40, 3))), 3, axis=1)  # nine bits, three distinct
    V, R = rng.standard_normal((40, 9)), orthogonal_procrustes(rng.standard_normal((9, 9)))
    best = rotation(B, V, R)
    np.testing.assert_allclose(best.T @ best, np.eye(9), atol=1e-12)
    assert np.trace(best.T @ B.T @ V) == pytest.approx(np.linalg.svd(B.T @ V)[1].sum(), rel=1e-7)
    for seed in range(3):
        noise = 1e-14 * np.random.default_rng(seed).standard_normal(V.shape)
        np.testing.assert_allclose(rotation(B, V + noise, R), best, atol=1e-4)


@pytest.mark.parametrize("variant", ["one-step", "two-step"])
def test_both_variants_fall_in_every_sweep_and_separate_the_classes(variant):
    data = block_data(PAIRED)
    seen = []
    model = SCRATCH(16, variant=variant, n_anchors=60, random_state=0)
    model.fit(data.X, data.Y, **data.fit, callback=lambda p: seen.append(p.objective))
    assert model.objective_.shape == (model.n_iter_,) == (20,)
    np.testing.assert_array_equal(model.objective_, seen)
    assert np.all(np.diff(model.objective_) <= 1e-9 * model.objective_[0])
    codes = unpack_signs(model.codes_["image"], 16)
    classes = data.Y["image"].argmax(axis=1)
    centres = np.stack([codes[classes == k].mean(axis=0) for k in range(6)])
    for name, hashed in model.transform(data.Xq).items():
        guess = (unpack_signs(hashed, 16) @ centres.T).argmax(axis=1)
        assert np.mean(guess == data.Yq[name].argmax(axis=1)) > 0.95


def test_two_step_functions_are_a_ridge_regression_on_the_codes():
    data = block_data(PAIRED)
    model = SCRATCH(16, variant="two-step", n_anchors=20, regression=50.0, random_state=0)
    model.fit(data.X, data.Y, **data.fit)
    X = model.maps_["text"].map(data.X["text"])
    B = unpack_signs(model.codes_["text"], 16)
    expected = inv(X.T @ X + 5 / 50 * np.eye(20)) @ X.T @ B
    np.testing.assert_allclose(model.functions_["text"], expected, atol=1e-8)
