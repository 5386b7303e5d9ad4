"""Step 2 against the paper's equations: a squared hinge that never rises, any block size, any memory."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.optimize import minimize

from modalhash.core.features import AnchorKernel, Linear
from modalhash.core.linalg import RidgeFactor
from modalhash.methods.amsh.functions import SAMPLE, _Point, _Sample, hinge_pass, learn_functions, sample_rows
from reference import amsh as reference


def problem(seed, n=300, d=12, r=6, k=40):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    B = np.where(X @ rng.normal(size=(d, r)) + rng.normal(size=(n, r)) > 0, 1.0, -1.0)
    return X, B, AnchorKernel(k, random_state=seed)


def fast(X, B, kernel, *, ridge=0.01, block_rows=None, memory_limit=None, **options):
    phi = kernel.fit_blocks(X, block_rows=block_rows, memory_limit=memory_limit)
    options = {"max_iter": 15, "tol": 0.0} | options
    return learned(phi, B, RidgeFactor(phi.gram(), ridge).inverse(), ridge=ridge, **options)


def learned(phi, B, inverse, **options):
    functions = learn_functions(phi, B, lambda: inverse, **options)
    return functions.F, functions.trace


def test_plain_iterations_are_the_papers():
    X, B, kernel = problem(0)
    F, trace = fast(X, B, kernel, accelerated=False)
    phi = reference.kernel_features(X.T, kernel.anchors_.T)
    np.testing.assert_allclose(phi.T, kernel.transform(X), atol=1e-10)
    slow: list[float] = []
    slow_F = reference.step_2(B.T, phi, watch=slow.append)
    np.testing.assert_allclose(trace, slow, rtol=1e-6)
    np.testing.assert_allclose(F.T, slow_F, rtol=1e-5, atol=1e-6)


def test_the_inverse_is_waited_for_after_the_first_pass(monkeypatch):
    X, B, kernel = problem(0)
    phi = kernel.fit_blocks(X)
    inverse = RidgeFactor(phi.gram(), 0.01).inverse()
    calls = []

    def wait():
        calls.append("wait")
        return inverse

    def watched(*args, **options):
        calls.append("pass")
        return hinge_pass(*args, **options)

    monkeypatch.setattr("modalhash.methods.amsh.functions.hinge_pass", watched)
    learn_functions(phi, B, wait, ridge=0.01, max_iter=4)
    assert calls[:3] == ["pass", "wait", "pass"]


@given(seed=st.integers(0, 10**6), n=st.integers(5, 80), r=st.integers(1, 5), k=st.integers(1, 60))
@settings(max_examples=40)
@pytest.mark.filterwarnings("ignore:.*anchors asked for")
def test_plain_iterations_never_raise_the_hinge(seed, n, r, k):
    X, B, kernel = problem(seed, n=n, d=3, r=r, k=k)
    _, trace = fast(X, B, kernel, accelerated=False)
    assert np.all(np.diff(trace) <= 1e-9 * (1 + np.abs(trace[0])))


@pytest.mark.slow
@given(seed=st.integers(0, 10**6), n=st.integers(5, 80), r=st.integers(1, 5), k=st.integers(1, 60))
@settings(max_examples=40)
@pytest.mark.filterwarnings("ignore:.*anchors asked for")
def test_accelerated_iterations_never_raise_the_hinge_of_any_bit(seed, n, r, k):
    X, B, kernel = problem(seed, n=n, d=3, r=r, k=k)
    phi = kernel.fit_blocks(X)
    inverse = RidgeFactor(phi.gram(), 0.01).inverse()
    for bit in B.T:
        _, trace = learned(phi, bit[:, None], inverse, ridge=0.01, max_iter=15, tol=0.0)
        assert np.all(np.diff(trace) <= 0)


def hinge(phi, b, f, ridge):
    R = np.maximum(0, 1 - b * (phi @ f))
    return R @ R + ridge * f @ f


def accelerated_bit(phi, b, ridge, n_steps):
    """The accelerated iteration written out for one bit, its sample being all items: F, and the hinge after each."""
    inverse = np.linalg.inv(phi.T @ phi + ridge * np.eye(phi.shape[1]))
    f, value, trace = np.zeros(phi.shape[1]), float(len(b)), []
    directions = np.zeros((phi.shape[1], 1))
    for step in range(n_steps):
        p = inverse @ (phi.T @ (b * np.maximum(0, 1 - b * (phi @ f))) - ridge * f)
        last = directions[:, -1]
        plane = np.stack([p, last], axis=1) if last.any() else p[:, None]
        c = np.eye(plane.shape[1])[0]
        went_back = step > 0 and not last.any()
        for _ in range(0 if went_back else 3):
            new = f + plane @ c
            R = np.maximum(0, 1 - b * (phi @ new))
            Z = phi @ plane
            slope = Z.T @ (b * R) - ridge * plane.T @ new
            c = c + np.linalg.solve(Z[R > 0].T @ Z[R > 0] + ridge * plane.T @ plane, slope)
        new = f + plane @ c
        if not hinge(phi, b, new, ridge) <= value:
            new = f
        directions = (new - f)[:, None]
        f, value = new, hinge(phi, b, new, ridge)
        trace.append(value)
    return f, trace


@pytest.mark.parametrize("seed", range(4))
def test_accelerated_iterations_are_those_of_each_bit_by_itself(seed):
    X, B, kernel = problem(seed, n=200, r=5)
    F, trace = fast(X, B, kernel, max_iter=6)
    one_by_one = [accelerated_bit(kernel.transform(X), b, 0.01, 6) for b in B.T]
    np.testing.assert_allclose(F, np.array([f for f, _ in one_by_one]).T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(trace, np.sum([values for _, values in one_by_one], axis=0), rtol=1e-7)


def sampled(n, *, r=3):
    """A sample, a point with its last one, a plain step from there, and the pieces to check them with."""
    X, B, kernel = problem(7, n=n, r=r)
    phi = kernel.fit_blocks(X)
    inverse = RidgeFactor(phi.gram(), 0.01).inverse()
    few, points = _Sample(phi, B.astype(np.int8), sample_rows(n), 0.01), []
    for steps in (1, 2):
        F, _ = learned(phi, B, inverse, ridge=0.01, max_iter=steps, tol=0.0, accelerated=False)
        gradient, values = hinge_pass(phi, B.astype(np.int8), F)
        Z = phi.take(sample_rows(n)) @ F
        points.append(_Point(F, gradient - 0.01 * F, values + 0.01 * (F**2).sum(axis=0), Z))
    return few, points[1], inverse @ points[1].gradient, points[0], phi.whole(), B


def test_an_iteration_goes_to_the_lowest_point_of_its_plane():
    few, at, p, last, phi, B = sampled(400)  # no more than the sample holds
    F, Z = few.lowest(at, p, last)
    np.testing.assert_allclose(Z, phi[sample_rows(400)] @ F, rtol=1e-6, atol=1e-8)
    for bit in range(B.shape[1]):
        directions = np.stack([p[:, bit], (at.F - last.F)[:, bit]], axis=1)

        def objective(c, bit=bit, directions=directions):
            return hinge(phi, B[:, bit], at.F[:, bit] + directions @ c, 0.01)

        best = minimize(objective, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-10}).fun
        assert hinge(phi, B[:, bit], F[:, bit], 0.01) == pytest.approx(best, rel=1e-4)


def test_a_sample_finds_nearly_the_point_that_all_items_find():
    few, at, p, last, phi, B = sampled(6 * SAMPLE)
    everything = _Sample(Linear(centred=False).fit_blocks(phi), B.astype(np.int8), np.arange(len(B)), 0.01)
    with_all = [replace(point, Z=phi @ point.F) for point in (at, last)]
    F, _ = few.lowest(at, p, last)
    exact, _ = everything.lowest(with_all[0], p, with_all[1])
    for bit in range(B.shape[1]):
        found, best, start = (hinge(phi, B[:, bit], f[:, bit], 0.01) for f in (F, exact, at.F))
        assert found - best < 0.02 * (start - best)


def test_a_bit_that_would_rise_goes_back_and_takes_the_plain_step():
    few, below, p, *_ = sampled(100, r=2)
    above = _Point(below.F + 1, below.gradient + 1, below.values + np.array([1, -1]), below.Z + 1)
    kept = above.unless_above(below)
    np.testing.assert_array_equal(kept.values, below.values - [0, 1])
    for of_kept, of_below in ((kept.F, below.F), (kept.gradient, below.gradient), (kept.Z, below.Z)):
        np.testing.assert_array_equal(of_kept, of_below + np.array([0, 1]))
    F, _ = few.lowest(kept, p, below)
    np.testing.assert_array_equal(F[:, 0], below.F[:, 0] + p[:, 0])


def test_a_step_that_explodes_on_the_sample_is_an_error():
    few, at, p, last, *_ = sampled(100)
    with pytest.raises(ValueError, match=r"hash functions diverge.*larger ridge"):
        few.lowest(at, -30 * p / np.abs(few.lowest(at, p, last)[1] - at.Z).max(), last)


def test_only_items_with_targets_count_in_the_sample():
    X, B, kernel = problem(3, n=300)
    B[::2] = 0  # as items without labels have
    phi = kernel.fit_blocks(X)
    inverse = RidgeFactor(phi.gram(), 0.01).inverse()
    options = {"ridge": 0.01, "max_iter": 6, "tol": 0.0}
    found, expected = (learned(phi, B, inverse, sample=rows, **options)[0] for rows in (np.arange(1, 300, 2), None))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


def test_four_accelerated_iterations_go_as_low_as_fifteen_plain_ones():
    for seed in range(5):
        X, B, kernel = problem(seed, n=600)
        plain = fast(X, B, kernel, accelerated=False)[1][-1]
        nearly = fast(X, B, kernel, accelerated=False, max_iter=400)[1][-1]
        assert fast(X, B, kernel, max_iter=4)[1][-1] <= plain
        many = fast(X, B, kernel, max_iter=60)[1][-1]
        assert nearly * (1 - 1e-3) < many <= nearly


def test_iterations_end_at_the_lowest_point_of_all_items_not_of_the_sample():
    X, B, kernel = problem(0, n=4 * SAMPLE)
    nearly = fast(X, B, kernel, accelerated=False, max_iter=400)[1][-1]
    assert fast(X, B, kernel, max_iter=20)[1][-1] <= nearly * (1 + 1e-6)


def test_rows_of_the_sample_are_evenly_spaced_and_each_comes_once():
    for n in (1, 5, SAMPLE, SAMPLE + 1, 10 * SAMPLE + 3):
        rows = sample_rows(n)
        assert len(rows) == min(n, SAMPLE)
        assert rows[0] == 0
        assert rows[-1] < n
        assert np.ptp(np.diff(rows, append=n)) <= 1


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
