"""GSPH: the Gram form is the dense form, step 1 never rises, all logistic regressions reach their optimum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from scipy.optimize import minimize
from scipy.special import expit

from contract import block_data, make
from modalhash.core.codes import pack_signs
from modalhash.core.features import AnchorKernel
from modalhash.core.linalg import unit_rows
from modalhash.methods import gsph as step1
from modalhash.methods.amsh.codes import label_patterns
from modalhash.methods.registry import METHODS
from modalhash.methods.seph import logistic_regressions
from strategies import problems

METHOD = METHODS["gsph"]


def start(L, q, seed=0):
    """A row for every item."""
    return [
        step1.GSPHView.start(labels, np.ones(len(labels)), q, np.random.default_rng([seed, i]))
        for i, labels in enumerate(L)
    ]


def dense_objective(L, A):
    Lt = [unit_rows(labels) for labels in L]
    q = A[0].shape[1]
    pairs = [(i, j) for i in range(len(L)) for j in range(i)]
    return np.sqrt(sum(np.sum((q * Lt[i] @ Lt[j].T - A[i] @ A[j].T) ** 2) for i, j in pairs))


def dense_sweep(A, B, S):
    """The authors' residual form: S is a matrix, the residual is refreshed after each column."""
    q = A.shape[1]
    for column in range(q):
        residual = q * S - A @ B.T + np.outer(A[:, column], B[:, column])
        A[:, column] = np.clip(residual @ B[:, column] / max(B[:, column] @ B[:, column], 1e-300), -1, 1)


@given(problem=problems())
@settings(max_examples=40)
def test_no_sweep_raises_the_objective(problem):
    L, V = problem
    if len(L) < 2:
        return
    views = start(L, V[0].shape[1])
    value = dense_objective(L, [view.A for view in views])
    trace = step1.learn_codes(views, max_iter=6, tol=0)
    assert np.all(np.diff([value, *trace]) <= 1e-6 * (1 + value))
    A = [view.A for view in views]
    assert all(np.abs(a).max() <= 1 for a in A)
    assert trace[-1] ** 2 == pytest.approx(dense_objective(L, A) ** 2, abs=1e-9 * (1 + value) ** 2)


@pytest.mark.parametrize("share", [0.05, 0.4])  # labels as CSR and as an array
@pytest.mark.parametrize("q", [5, 19])
def test_the_gram_form_is_the_residual_form(rng, share, q, monkeypatch):
    monkeypatch.setattr(step1, "ROWS", 30)
    L = [rng.random((n, 12)) < share for n in (70, 50)]
    views = start(L, q)
    A, B = (view.A.copy() for view in views)
    S = unit_rows(L[0]) @ unit_rows(L[1]).T
    step1.learn_codes(views, max_iter=3, tol=0)
    for _ in range(3):
        dense_sweep(A, B, S)
        dense_sweep(B, A, S.T)
    np.testing.assert_allclose(views[0].A, A, atol=1e-8)
    np.testing.assert_allclose(views[1].A, B, atol=1e-8)


def test_label_patterns_are_items_that_start_alike(rng):
    items, patterns, members = [], [], []
    for i, n in enumerate((300, 200)):
        L = rng.random((n, 4)) < 0.4
        rows, member, counts = label_patterns(L)
        patterns.append(step1.GSPHView.start(rows, counts, 8, np.random.default_rng(i)))
        items.append(step1.GSPHView.start(L, np.ones(n), 8, rng))
        items[-1].A = patterns[-1].A[member]
        members.append(member)
    np.testing.assert_allclose(
        step1.learn_codes(patterns, max_iter=20, tol=0), step1.learn_codes(items, max_iter=20, tol=0), rtol=1e-9
    )
    for pattern, item, member in zip(patterns, items, members, strict=True):
        np.testing.assert_allclose(pattern.A[member], item.A, atol=1e-6)


def regression_problem(rng, n=300, bits=4, dtype="float64", **blocks):
    X = rng.normal(size=(n, 6))
    B = np.where(X @ rng.normal(size=(6, bits)) + 0.5 * rng.normal(size=(n, bits)) > 0, 1.0, -1.0)
    kernel = AnchorKernel(25, bandwidth="pairs", centred=False, dtype=dtype, random_state=0)
    return kernel.fit_blocks(X, **blocks), kernel.map(kernel.anchors_), B.astype(dtype), kernel.map(X)


def loss(w, K, K0, y, C):
    """The objective of one bit and its gradient, as the paper has them."""
    value = np.logaddexp(0, -y * (K @ w)).sum() + C * w @ K0 @ w
    return value, -K.T @ (y * expit(-y * (K @ w))) + 2 * C * K0 @ w


@pytest.mark.parametrize("penalty", [0.01, 1.0])
def test_all_bits_at_once_reach_the_optimum_of_each(rng, penalty):
    phi, K0, B, K = regression_problem(rng)
    W, trace = logistic_regressions(phi, K0, B, penalty=penalty, max_iter=5000, tol=1e-14)
    best = [
        minimize(loss, np.zeros(25), (K, K0, y, penalty), jac=True, method="L-BFGS-B",
                 options={"maxiter": 20000, "maxfun": 20000, "ftol": 1e-15, "gtol": 1e-9})
        for y in B.T
    ]  # fmt: skip
    ours = [loss(w, K, K0, y, penalty)[0] for w, y in zip(W.T, B.T, strict=True)]
    np.testing.assert_allclose(ours, [found.fun for found in best], rtol=1e-7)
    assert trace[-1] == pytest.approx(sum(ours), rel=1e-9)
    np.testing.assert_allclose(K @ W, K @ np.column_stack([found.x for found in best]), atol=0.02)


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_a_step_lowers_the_objective_from_where_it_started(rng, steps):
    phi, K0, B, K = regression_problem(rng)
    W, trace = logistic_regressions(phi, K0, B, penalty=0.01, max_iter=steps, tol=0)
    assert len(trace) == steps
    assert trace[0] == pytest.approx(B.size * np.log(2))  # starts at 0
    assert sum(loss(w, K, K0, y, 0.01)[0] for w, y in zip(W.T, B.T, strict=True)) < trace[-1]


def test_precision_and_blocks_do_not_change_the_functions():
    expected, *_ = logistic_regressions(
        *regression_problem(np.random.default_rng(0))[:3], penalty=0.01, max_iter=60, tol=0
    )
    for kind in ({"block_rows": 37}, {"block_rows": 37, "memory_limit": 1}, {"dtype": "float32"}):
        phi, K0, B, K = regression_problem(np.random.default_rng(0), **kind)
        W, _ = logistic_regressions(phi, K0, B, penalty=0.01, max_iter=60, tol=0)
        np.testing.assert_allclose(K @ W, K @ expected, atol=2e-2 if "dtype" in kind else 1e-6)


def test_a_pair_gets_the_code_of_its_averaged_probabilities():
    data = block_data(METHOD)
    pairs = np.column_stack([np.arange(0, 100), np.arange(50, 150)])
    unpaired = make(METHOD).fit(data.X, data.Y)
    paired = make(METHOD).fit(data.X, data.Y, pairs=pairs)
    apart = make(METHOD, unify=False).fit(data.X, data.Y, pairs=pairs)
    X = {name: data.X[name][rows] for name, rows in zip(data.X, pairs.T, strict=True)}
    p = [expit(values.astype(float)) for values in paired.decision_function(X).values()]
    unified = pack_signs(0.5 * (2 * p[0] - 1) + 0.5 * (2 * p[1] - 1))
    np.testing.assert_array_equal(paired.transform_pairs(X), unified)
    for name, rows in zip(data.X, pairs.T, strict=True):
        np.testing.assert_array_equal(paired.codes_[name][rows], unified)
        others = np.setdiff1d(np.arange(240), rows)
        np.testing.assert_array_equal(paired.codes_[name][others], unpaired.codes_[name][others])
        np.testing.assert_array_equal(apart.codes_[name], unpaired.codes_[name])
        np.testing.assert_array_equal(paired.functions_[name], unpaired.functions_[name])


def test_pairs_of_new_items_have_to_be_whole():
    data = block_data(METHOD)
    model = make(METHOD).fit(data.X, data.Y)
    with pytest.raises(ValueError, match=r"lacks \['text'\]"):
        model.transform_pairs({"image": data.Xq["image"]})
    with pytest.raises(ValueError, match=r"'image': 60, 'text': 50"):
        model.transform_pairs({"image": data.Xq["image"], "text": data.Xq["text"][:50]})


def test_two_modalities_are_needed_and_three_will_do():
    data = block_data(METHOD)
    with pytest.raises(ValueError, match=r"needs two; got \['text'\]"):
        make(METHOD).fit({"text": data.X["text"]}, {"text": data.Y["text"]})
    order = np.random.default_rng(1).permutation(240)[:200]
    X, Y = (
        part | {"sound": part["text"][order, ::-1] if part is data.X else part["text"][order]}
        for part in (data.X, data.Y)
    )
    model = make(METHOD).fit(X, Y)
    queries = np.unpackbits(model.transform({"sound": X["sound"][:50]})["sound"], axis=1)
    database = np.unpackbits(model.codes_["image"], axis=1)
    distance = (queries[:, None] != database).sum(axis=2)
    same = (Y["sound"][:50] @ Y["image"].T) > 0
    assert distance[same].max() < distance[~same].min()
