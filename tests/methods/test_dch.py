"""DCH: the cheap DCC is the textbook's, no step raises the objective, variants and feature modes work."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from contract import block_data
from modalhash.core.codes import pack_signs, unpack_signs
from modalhash.core.features import AnchorKernel, Linear
from modalhash.core.linalg import RidgeFactor, ridge_regression, sign
from modalhash.methods.dch import DCH, discrete_codes, objective, relaxed_codes
from modalhash.methods.registry import info
from strategies import labels

PAIRED = info("dch")


def textbook_dcc(Q, W, max_passes=10):
    """b_k = sgn(q_k − B₋ₖ W₋ₖ w_kᵀ) with row and column k taken out, as printed; B after every pass."""
    n, r = Q.shape
    B = np.zeros((n, r))
    passes = []
    for _ in range(max_passes):
        before = B.copy()
        for k in range(r):
            rest = [j for j in range(r) if j != k]
            for i in range(n):
                value = Q[i, k] - B[i, rest] @ W[rest] @ W[k]
                B[i, k] = 1.0 if value > 0 else -1.0
        passes.append(B.copy())
        if np.linalg.norm(B - before) < 1e-6 * np.linalg.norm(before):
            break
    return passes


@given(r=st.integers(1, 7), c=st.integers(1, 5), seed=st.integers(0, 2**32 - 1), passes=st.sampled_from([1, 2, 10]))
@settings(max_examples=30)
def test_cheap_dcc_is_the_textbook_loop(r, c, seed, passes):
    rng = np.random.default_rng(seed)
    W, Q = rng.standard_normal((r, c)), rng.standard_normal((12, r))
    np.testing.assert_array_equal(discrete_codes(Q, W, passes), textbook_dcc(Q, W, passes)[-1])


@given(L=labels(25, 4), seed=st.integers(0, 2**32 - 1), weight=st.sampled_from([0.0, 1e-5, 0.1, 10.0]))
@settings(max_examples=30)
def test_no_step_raises_the_objective_once_every_bit_is_set(L, seed, weight):
    rng = np.random.default_rng(seed)
    Y, r, lg, lf = L.astype(float), 6, 1.0, 0.01
    phi = {"image": rng.standard_normal((25, 5)), "text": rng.standard_normal((25, 3))}
    nu = {"image": weight, "text": 2 * weight}
    factors = {name: RidgeFactor(values.T @ values, lf) for name, values in phi.items()}
    B = sign(rng.standard_normal((25, r)))
    W = ridge_regression(B, Y, lg)
    P = {name: factors[name].solve(values.T @ B) for name, values in phi.items()}

    def value(B, W, P):
        fitted = {name: values @ P[name] for name, values in phi.items()}
        return objective(Y, B, W, P, fitted, nu, label_ridge=lg, ridge=lf)

    Q = Y @ W.T + sum(nu[name] * values @ P[name] for name, values in phi.items())
    passes = textbook_dcc(Q, W)
    trace = [value(B, W, P) for B in passes]
    B = passes[-1]
    W = ridge_regression(B, Y, lg)
    trace.append(value(B, W, P))
    P = {name: factors[name].solve(values.T @ B) for name, values in phi.items()}
    trace.append(value(B, W, P))
    assert np.all(np.diff(trace) <= 1e-9 * (1 + trace[0]))


def test_relaxed_codes_are_the_dense_formula(rng):
    Y, W = rng.random((30, 4)) < 0.4, rng.standard_normal((6, 4))
    dense = np.linalg.inv(W @ W.T + 0.01 * np.eye(6)) @ W @ Y.T
    np.testing.assert_array_equal(relaxed_codes(Y.astype(float), W, 0.01), np.where(dense.T > 0, 1, -1))


@pytest.mark.parametrize("b_step", ["dcc", "relaxed"])
@pytest.mark.parametrize("kernel", [None, "paper", {"image": None, "text": "paper"}])
def test_every_variant_separates_the_classes(b_step, kernel):
    data = block_data(PAIRED)
    model = DCH(16, b_step=b_step, kernel=kernel, n_anchors=60, random_state=0).fit(data.X, data.Y, **data.fit)
    classes = data.Y["image"].argmax(axis=1)
    codes = unpack_signs(model.codes_["image"], 16)
    centres = np.stack([codes[classes == k].mean(axis=0) for k in range(6)])
    for name in data.X:
        hashed = unpack_signs(model.transform(data.Xq)[name], 16)
        assert np.mean((hashed @ centres.T).argmax(axis=1) == data.Yq[name].argmax(axis=1)) > 0.95
    assert model.objective_.shape == (model.n_iter_,) == (5,)
    kinds = {None: Linear, "paper": AnchorKernel}
    for name, feature_map in model.maps_.items():
        assert type(feature_map) is kinds[kernel[name] if isinstance(kernel, dict) else kernel]


def test_the_rbf_map_is_exp_of_half_the_squared_distance():
    data = block_data(PAIRED)
    model = DCH(8, kernel="paper", n_anchors=20, random_state=0).fit(data.X, data.Y, **data.fit)
    X = data.X["text"] - data.X["text"].mean(axis=0)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    A = model.maps_["text"].anchors_
    d = ((X[:, None] - A) ** 2).sum(axis=2)
    phi = np.column_stack([np.exp(-d / (2 * 0.4**2)), np.ones(len(X))])
    np.testing.assert_allclose(model.maps_["text"].map(data.X["text"]), phi, atol=1e-9)


def test_without_feature_weight_equal_labels_have_equal_codes():
    data = block_data(PAIRED, noise=1.0)
    classes = data.Y["image"].argmax(axis=1)
    plain = DCH(16, feature_weight=0, random_state=0).fit(data.X, data.Y, **data.fit)
    assert len(np.unique(np.column_stack([classes, plain.codes_["image"]]), axis=0)) == 6
    strong = DCH(16, feature_weight=10.0, random_state=0).fit(data.X, data.Y, **data.fit)
    assert len(np.unique(strong.codes_["image"], axis=0)) > 6


def test_functions_are_fitted_to_the_final_codes():
    data = block_data(PAIRED)
    model = DCH(16, random_state=0).fit(data.X, data.Y, **data.fit)
    B = unpack_signs(model.codes_["text"], 16).astype(float)
    X = data.X["text"] - data.X["text"].mean(axis=0)
    np.testing.assert_allclose(model.functions_["text"], ridge_regression(X, B, 0.01), atol=1e-8)
    np.testing.assert_allclose(model.classifier_, ridge_regression(B, data.Y["text"].astype(float), 1.0), atol=1e-8)
    np.testing.assert_array_equal(pack_signs(B), model.codes_["image"])
