"""Step 1 against the paper's equations: the objective never rises, the constraints hold, fast = slow; its start."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from modalhash.core.features import Linear
from modalhash.core.linalg import balanced_procrustes
from modalhash.methods.amsh import codes as step1
from modalhash.methods.amsh.codes import Start, label_patterns
from reference import amsh as reference
from strategies import problems, weights


def learn_codes(views, w, n_steps):
    """Lines 2-7 of Algorithm 1; return the objective after each iteration."""
    trace = []
    for _ in range(n_steps):
        for view in views:
            step1.update_P(view)
            step1.update_V(view, views, w)
            step1.update_B(view, w)
            step1.update_E(view, w)
        trace.append(step1.objective(views, w))
    return trace


def slow_objective(views, w):
    """Eq. (10) with R, E and S as matrices; E is recovered from the clipped targets T."""
    L = [v.L.T.astype(float) for v in views]
    R = [np.where(labels == 1, 1.0, -1.0) for labels in L]
    E = [r * (v.T.T - labels) for v, r, labels in zip(views, R, L, strict=True)]
    assert all((e >= -1e-12).all() for e in E)
    return reference.objective(
        L, R, E, [v.P.T for v in views], [v.B.T for v in views], [v.V.T for v in views],
        w.quantization, w.intra, w.inter,
    )  # fmt: skip


def feasible_views(L, V, seed=0):
    rng = np.random.default_rng(seed)
    return [
        step1.View(labels, balanced_procrustes(v, rng), np.random.default_rng(seed))
        for labels, v in zip(L, V, strict=True)
    ]


@given(problem=problems(), eta=weights, intra=weights, inter=weights)
@settings(max_examples=60)
def test_no_sub_step_raises_the_objective(problem, eta, intra, inter):
    L, V = problem
    w = step1.Weights(eta, intra, inter)
    views = feasible_views(L, V)
    steps = [lambda i=i: step1.update_P(views[i]) for i in range(len(views))]
    steps += [lambda i=i: step1.update_V(views[i], views, w) for i in range(len(views))]
    steps += [lambda i=i: step1.update_B(views[i], w) for i in range(len(views))]
    steps += [lambda i=i: step1.update_E(views[i], w) for i in range(len(views))]
    value = slow_objective(views, w)
    for _ in range(4):
        for step in steps:
            step()
            after = slow_objective(views, w)
            assert after <= value + 1e-9 * (1 + abs(value))
            value = after
    assert step1.objective(views, w) == pytest.approx(value, rel=1e-6, abs=1e-6)


@given(problem=problems(), eta=weights, intra=weights, inter=weights)
@settings(max_examples=60)
def test_v_is_balanced_and_uncorrelated_even_when_rank_deficient(problem, eta, intra, inter):
    L, V = problem
    views = [step1.View(labels, v, np.random.default_rng(0)) for labels, v in zip(L, V, strict=True)]
    learn_codes(views, step1.Weights(eta, intra, inter), 3)
    for view in views:
        n, r = view.V.shape
        np.testing.assert_allclose(view.V.T @ view.V / n, np.eye(r), atol=1e-6)
        np.testing.assert_allclose(view.V.sum(axis=0) / n, 0, atol=1e-6)
        assert set(np.unique(view.B)) <= {-1.0, 1.0}


@given(problem=problems())
@settings(max_examples=40)
def test_weighted_v_is_balanced_and_uncorrelated(problem):
    L, _ = problem
    for labels in L:
        rows, member, counts = label_patterns(labels)
        np.testing.assert_array_equal(rows[member], labels)
        np.testing.assert_array_equal(np.bincount(member), counts)
        r = len(rows) - 1
        if r == 0:
            continue
        Z = np.outer(np.arange(len(rows)), np.ones(r))  # rank 1: completion for all but one
        V = balanced_procrustes(Z, np.random.default_rng(0), counts.astype(float))
        n = counts.sum()
        np.testing.assert_allclose(V.T @ (counts[:, None] * V) / n, np.eye(r), atol=1e-6)
        np.testing.assert_allclose(counts @ V / n, 0, atol=1e-6)


def multi_label(rng, n, c):
    L = rng.random((n, c)) < 0.3
    L[np.arange(n), rng.integers(c, size=n)] = True
    return L


@pytest.mark.parametrize("margins", [True, False])
def test_fast_step_1_is_the_papers(rng, margins):
    L = [multi_label(rng, 300, 12), multi_label(rng, 220, 12), multi_label(rng, 150, 12)]
    V = [rng.standard_normal((len(labels), 8)) for labels in L]  # infeasible, as a PCA start is
    views = [step1.View(labels, v, rng) for labels, v in zip(L, V, strict=True)]
    w = step1.Weights(1.0, 1e-3, 1e-3, label_margins=margins)
    trace = learn_codes(views, w, 15)
    slow: list[float] = []
    B, slow_V = reference.step_1(
        [labels.T.astype(float) for labels in L], [v.T for v in V], margins=margins, watch=slow.append
    )
    np.testing.assert_allclose(trace, slow, rtol=1e-6)
    for view, codes, latent in zip(views, B, slow_V, strict=True):
        r = latent.shape[0]
        margin = np.abs(latent.T + 1e-3 * r * view.Ls @ view.C)  # what sgn is taken of
        np.testing.assert_array_equal(view.B[margin > 1e-8], codes.T[margin > 1e-8])
        assert (margin > 1e-8).mean() > 0.999


def test_patterns_are_samples_from_a_pattern_constant_start(rng):
    L = [multi_label(rng, 500, 6), multi_label(rng, 400, 6)]
    samples, patterns, members = [], [], []
    for labels in L:
        rows, member, counts = label_patterns(labels)
        V = rng.standard_normal((len(rows), 5))
        samples.append(step1.View(labels, V[member], rng))
        patterns.append(step1.View(rows, V, rng, counts.astype(float)))
        members.append(member)
    w = step1.Weights(1.0, 1e-3, 1e-3)
    by_sample = learn_codes(samples, w, 10)
    by_pattern = learn_codes(patterns, w, 10)
    np.testing.assert_allclose(by_pattern, by_sample, rtol=1e-9)
    for one, other, member in zip(samples, patterns, members, strict=True):
        np.testing.assert_allclose(other.V[member], one.V, atol=1e-6)
        np.testing.assert_array_equal(other.B[member], one.B)


@pytest.mark.parametrize("n_classes", [3, 64, 65, 200])
def test_label_patterns_of_any_width(rng, n_classes):
    L = multi_label(rng, 7, n_classes)[rng.integers(7, size=50)]
    rows, member, counts = label_patterns(L)
    assert len(rows) == len(np.unique(L, axis=0))
    np.testing.assert_array_equal(rows[member], L)
    assert counts.sum() == 50


def test_sparse_and_dense_labels_agree(rng, monkeypatch):
    L = multi_label(rng, 80, 30) & (rng.random((80, 30)) < 0.2)
    L[:, 0] = True
    results = []
    for threshold in (0.0, 1.0):
        monkeypatch.setattr(step1, "SPARSE_BELOW", threshold)
        view = step1.View(L, np.random.default_rng(1).standard_normal((80, 6)), np.random.default_rng(0))
        results.append(learn_codes([view], step1.Weights(1.0, 1e-2, 0.0), 5))
    np.testing.assert_allclose(results[0], results[1], rtol=1e-10)


def items(seed, n, patterns):
    rng = np.random.default_rng(seed)
    pool = np.unique(rng.random((patterns, 8)) < 0.4, axis=0)
    shares = rng.random(len(pool)) ** 6  # a few patterns hold most items
    return rng.normal(size=(n, 3)), pool[rng.choice(len(pool), size=n, p=shares / shares.sum())]


@given(seed=st.integers(0, 1000), n=st.integers(20, 3000), patterns=st.integers(2, 60), n_bits=st.integers(1, 12))
@settings(max_examples=40)
def test_a_row_stands_for_items_with_its_labels(seed, n, patterns, n_bits):
    X, labels = items(seed, n, patterns)
    start = Start.of(X, labels, None, n_bits, seed=0)
    view = start.view(n_bits, shared=True)
    row = view.row
    np.testing.assert_array_equal(view.L[row], labels)
    np.testing.assert_array_equal(np.bincount(row, minlength=len(view.L)), view.w)
    assert view.w.min() >= 1
    assert view.w.max() <= max(1, np.ceil(n / (32 * n_bits)))  # no row holds more than its share
    assert len(view.L) <= min(n, len(start.patterns) + 32 * n_bits)
    assert view.n == n
    assert np.abs(view.w @ view.V).max() < 1e-9 * n
    own = start.view(n_bits, shared=False)
    np.testing.assert_array_equal(own.L[own.row], labels)


def test_a_random_start_is_like_the_mean_of_items_with_random_starts():
    X, labels = items(0, 20_000, 30)
    start = Start.of(X, labels, None, 16, seed=0)
    view = start.view(16, shared=True)
    scaled = view.V * np.sqrt(view.w)[:, None]
    assert scaled.var() == pytest.approx(1, rel=0.05)


def test_a_start_from_features_is_the_mean_over_the_items_of_a_row():
    X, labels = items(1, 900, 20)
    phi = Linear().fit_blocks(X)
    start = Start.of(X, labels, phi, 5, seed=0)
    view = start.view(2, shared=True)
    projected = start.projected
    assert projected.shape == (900, 3)  # no more directions than features
    for k in range(len(view.w)):
        np.testing.assert_allclose(view.V[k], projected[view.row == k, :2].mean(axis=0), atol=1e-12)
    wide = start.view(5, shared=True)
    assert wide.V.shape == (len(wide.w), 5)  # the rest is noise
    assert np.all(wide.V[:, 3:].std(axis=0) > 0)
