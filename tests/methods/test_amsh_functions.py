"""Step 2 against the paper's equations: a squared hinge that never rises, any block size, any memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modalhash.features import AnchorKernel, Linear
from modalhash.linalg import RidgeFactor
from modalhash.methods._amsh_functions import learn_functions
from reference import amsh as reference


def problem(seed, n=300, d=12, r=6, k=40):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    B = np.where(X @ rng.normal(size=(d, r)) + rng.normal(size=(n, r)) > 0, 1.0, -1.0)
    return X, B, AnchorKernel(k, random_state=seed)


def fast(X, B, kernel, *, ridge=0.01, block_rows=None, memory_limit=None, **options):
    phi = kernel.fit_blocks(X, block_rows=block_rows, memory_limit=memory_limit)
    options = {"max_iter": 15, "tol": 0.0} | options
    return learn_functions(phi, [B], RidgeFactor(phi.gram(), ridge).inverse(), ridge=ridge, **options)[0]


def test_plain_iterations_are_the_papers():
    X, B, kernel = problem(0)
    F, trace = fast(X, B, kernel, accelerated=False)
    phi = reference.kernel_features(X.T, kernel.anchors_.T)
    np.testing.assert_allclose(phi.T, kernel.transform(X), atol=1e-10)
    slow: list[float] = []
    slow_F = reference.step_2(B.T, phi, watch=slow.append)
    np.testing.assert_allclose(trace, slow, rtol=1e-6)
    np.testing.assert_allclose(F.T, slow_F, rtol=1e-5, atol=1e-6)


@given(seed=st.integers(0, 10**6), n=st.integers(5, 80), r=st.integers(1, 5), k=st.integers(1, 60))
@settings(max_examples=40)
@pytest.mark.filterwarnings("ignore:.*anchors asked for")
def test_plain_iterations_never_raise_the_hinge(seed, n, r, k):
    X, B, kernel = problem(seed, n=n, d=3, r=r, k=k)
    _, trace = fast(X, B, kernel, accelerated=False)
    assert np.all(np.diff(trace) <= 1e-9 * (1 + np.abs(trace[0])))


def test_eight_accelerated_iterations_reach_what_fifteen_plain_ones_do():
    for seed in range(5):
        X, B, kernel = problem(seed, n=600)
        plain = fast(X, B, kernel, accelerated=False)[1][-1]
        nearly = fast(X, B, kernel, accelerated=False, max_iter=400)[1][-1]
        assert fast(X, B, kernel, max_iter=8)[1][-1] <= plain * (1 + 1e-4)
        assert fast(X, B, kernel, max_iter=15)[1][-1] <= plain
        many = fast(X, B, kernel, max_iter=60)[1][-1]
        assert nearly * (1 - 1e-3) < many <= nearly


@pytest.mark.parametrize("block_rows", [1, 7, 299, 300, 1000])
@pytest.mark.parametrize("memory_limit", [1, 40_000, None])
def test_blocks_and_memory_change_nothing(block_rows, memory_limit):
    X, B, kernel = problem(1)
    expected = fast(X, B, problem(1)[2])[0]
    F, _ = fast(X, B, kernel, block_rows=block_rows, memory_limit=memory_limit)
    np.testing.assert_allclose(F, expected, rtol=1e-7, atol=1e-9)


def test_float32_reaches_the_same_objective():
    X, B, kernel = problem(2, n=2000, k=200)
    single = AnchorKernel(200, dtype="float32", random_state=2)
    assert fast(X, B, single)[1][-1] == pytest.approx(fast(X, B, kernel)[1][-1], rel=1e-4)


def test_without_margins_it_is_ridge_regression():
    X, B, _ = problem(3)
    centring = Linear()
    F, trace = fast(X, B, centring, margins=False)
    phi = X - X.mean(axis=0)
    np.testing.assert_allclose(F, np.linalg.solve(phi.T @ phi + 0.01 * np.eye(12), phi.T @ B), rtol=1e-8)
    assert trace[-1] == pytest.approx(((B - phi @ F) ** 2).sum() + 0.01 * (F**2).sum())


def test_tolerance_stops_early():
    X, B, kernel = problem(4)
    assert len(fast(X, B, kernel, tol=1e-2)[1]) < 15


def test_the_memory_limit_is_kept():
    X, B, _ = problem(5, n=20_000, k=100)
    peaks = {}
    for limit in (2_000_000, None):
        kernel = AnchorKernel(100, random_state=0)
        tracemalloc.start()
        fast(X, B, kernel, memory_limit=limit, max_iter=2)
        peaks[limit] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peaks[None] > 16_000_000  # all features: 20,000 × 100 × 8 bytes
    assert peaks[2_000_000] < 8_000_000
