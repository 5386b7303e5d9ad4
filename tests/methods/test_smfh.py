"""SMFH: the scalable Sylvester solve is the dense one; Tang's objective falls; Liu's updates as in the sheet."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import linalg, sparse

from modalhash.core.features import Linear
from modalhash.core.linalg import unit_rows
from modalhash.methods import smfh
from modalhash.methods.cmfh import SparseRows, cross, fit_rows
from modalhash.methods.smfh import SMFH, Graph, neighbours


def pairs(rng, n=150, c=5):
    L = rng.random((n, c)) < 0.2
    L[np.arange(n), rng.integers(c, size=n)] = True
    X = [np.abs(L @ rng.normal(size=(c, d)) + 0.5 * rng.normal(size=(n, d))) for d in (12, 8)]
    return X, L


def dense_laplacian(X, L, k):
    """As in the authors' code, n × n."""
    L = L.astype(float)
    laplacian = np.diag((L @ L.T).sum(axis=1)) - L @ L.T
    for values in X:
        distances = ((values[:, None] - values) ** 2).sum(axis=2)
        np.fill_diagonal(distances, np.inf)
        W = np.zeros_like(distances)
        np.put_along_axis(W, np.argsort(distances, axis=1)[:, :k], 1, axis=1)
        W = np.maximum(W, W.T)
        laplacian += np.diag(W.sum(axis=1)) - W
    return laplacian


@pytest.mark.parametrize("weight", [0.0, 1.0, 50.0])
@pytest.mark.parametrize("kind", ["dense", "csr"])
def test_the_solve_by_bits_is_the_dense_sylvester_solve(rng, weight, kind):
    X, L = pairs(rng)
    given = [sparse.csr_array(values) for values in X] if kind == "csr" else X
    graph, laplacian = Graph(given, L, 5), dense_laplacian(X, L, 5)
    A = rng.normal(size=(6, 6))
    A = A @ A.T * 100 + 0.5 * np.eye(6)
    C = rng.normal(size=(150, 6))
    C[:, 2] = 0
    S = graph.sylvester(A, C, weight, rng.random((150, 6)))
    np.testing.assert_allclose(S, linalg.solve_sylvester(weight * laplacian, A, C), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(graph.laplacian(C), laplacian @ C, atol=1e-9)


def test_an_unfinished_solve_says_so(rng):
    X, L = pairs(rng)
    with pytest.warns(UserWarning, match="after 1 steps the relative residual is"):
        Graph(X, L, 5).sylvester(0.01 * np.eye(2), rng.normal(size=(150, 2)), 1.0, np.zeros((150, 2)), max_iter=1)


def test_an_item_is_not_its_own_neighbour_even_among_equal_items(rng):
    X = np.repeat(rng.normal(size=(10, 3)), 4, axis=0)
    W = neighbours(X, 3).toarray()
    np.testing.assert_array_equal(W, np.kron(np.eye(10), 1 - np.eye(4)))
    with pytest.raises(ValueError, match="n_neighbors is 40, but there are only 40 pairs"):
        neighbours(X, 40)


def tang_state(rng, X, L):
    w = smfh.SMFHWeights((0.3, 0.7), coupling=5.0, graph=0.5, ridge=0.1)
    rows = [fit_rows(Linear(dtype="float64"), values) for values in X]
    P = [rng.random((values.shape[1], 6)) for values in X]
    return smfh.TangState(rows, Graph(X, L, 5), rng.random((len(L), 6)), P, w)


def test_fewer_items_than_features_are_factorised_in_the_space_they_span(rng):
    _, L = pairs(rng, n=40)
    X = {name: np.abs(rng.normal(size=(40, d)) @ rng.normal(size=(d, d))) for name, d in (("image", 60), ("text", 45))}
    model = SMFH(6, max_iter=9, tol=0, random_state=2).fit(X, dict.fromkeys(X, L), pairs="aligned")
    draw = np.random.default_rng([2, 0])
    rows = [fit_rows(Linear(dtype="float64"), values) for values in X.values()]
    start = draw.random((40, 6)), [draw.random((values.shape[1], 6)) for values in X.values()]
    state = smfh.TangState(rows, Graph(list(X.values()), L, 5), *start, smfh.SMFHWeights((0.5, 0.5), 100.0, 1.0, 0.01))
    trace = smfh.learn_tang(state, max_iter=9, tol=0, report=lambda *_: None)
    np.testing.assert_allclose(model.objective_, trace, rtol=1e-7)
    for name, P in zip(X, state.P, strict=True):
        np.testing.assert_allclose(model.projections_[name], P, rtol=1e-5, atol=1e-7 * abs(P).max())


def tang_objective(state, X, L):
    w, S, value = state.w, state.S, 0.0
    for values, U, P, alpha in zip(X, state.U, state.P, w.balance, strict=True):
        values = values - values.mean(axis=0)
        value += alpha * ((values - S @ U) ** 2).sum() + w.coupling * ((S - values @ P) ** 2).sum()
        value += w.ridge * ((U**2).sum() + (P**2).sum())
    return value + w.graph * np.trace(S.T @ dense_laplacian(X, L, 5) @ S) + w.ridge * (S**2).sum()


def test_no_step_of_tang_raises_the_objective(rng):
    X, L = pairs(rng)
    state = tang_state(rng, X, L)
    smfh.update_U_tang(state)
    value = tang_objective(state, X, L)
    for _ in range(6):
        for step in (smfh.update_S, smfh.update_P_tang, smfh.update_U_tang):
            step(state)
            after = tang_objective(state, X, L)
            assert after <= value * (1 + 1e-9)
            value = after
        assert smfh.objective(state) == pytest.approx(value, rel=1e-9)
    np.testing.assert_allclose(state.S.mean(axis=0), 0, atol=1e-9)


@pytest.mark.parametrize("rows", ["raw", "unit"])
def test_sparse_rows_are_the_dense_ones(rng, rows):
    X = rng.normal(size=(60, 40)) * (rng.random((60, 40)) < 0.06)
    X[7] = 0
    options = {"rows": rows, "centred": rows == "raw", "dtype": "float64"}
    dense, thin = (fit_rows(Linear(**options), values) for values in (X, sparse.csr_array(X)))
    assert isinstance(thin, SparseRows)
    assert not isinstance(dense, SparseRows)
    W, V, some = rng.normal(size=(40, 3)), rng.normal(size=(60, 3)), np.array([7, 3, 50])
    np.testing.assert_allclose(thin.project(W), dense.project(W), atol=1e-12)
    np.testing.assert_allclose(cross(thin, V), cross(dense, V), atol=1e-12)
    np.testing.assert_allclose(thin.gram(), dense.gram(), atol=1e-12)
    np.testing.assert_allclose(thin.take(some), dense.take(some), atol=1e-12)
    np.testing.assert_allclose(np.vstack([b for _, b in thin]), np.vstack([b for _, b in dense]), atol=1e-12)


def test_a_sweep_of_liu_is_the_sheets(rng):
    (X1, X2), L = pairs(rng)
    X1, X2, S = unit_rows(X1), unit_rows(X2), unit_rows(L)
    w = smfh.SMFHWeights((0.3, 0.7), coupling=4.0, graph=2.0, ridge=0.01, orthogonality=0.1, smoothness=0.2)
    V, U, P = rng.random((150, 6)), [rng.random((d, 6)) for d in (12, 8)], [rng.random((d, 6)) for d in (12, 8)]
    rows = [fit_rows(Linear(centred=False, dtype="float64"), values) for values in (X1, X2)]
    state = smfh.LiuState(rows, S, V, U, P, w)
    lengths = np.linalg.norm(V, axis=0)
    V, U1, U2 = V / lengths, U[0] * lengths, U[1]
    sample = np.sort(rng.choice(150, 60, replace=False))

    drawn = np.zeros(150)
    drawn[sample] = 1
    W = drawn[:, None] * (S @ S.T) * drawn  # the graph, as an n × n matrix
    D, rho = np.diag(W.sum(axis=1)), 60**-0.1
    top = 0.3 * X1 @ U1 + 0.7 * X2 @ U2 + 4 * (X1 @ P[0] + X2 @ P[1]) + 0.4 * V + 2 * rho * W @ V
    bottom = 0.3 * V @ U1.T @ U1 + 0.7 * V @ U2.T @ U2 + 8 * V + 0.4 * V @ V.T @ V + 2 * rho * D @ V
    V = V * top / bottom
    U1, U2 = (U * (X.T @ V) / (U @ V.T @ V) for X, U in ((X1, U1), (X2, U2)))
    lengths = np.linalg.norm(V, axis=0)
    V, U1 = V / lengths, U1 * lengths
    half = np.diag(1 / np.sqrt(np.diag(D)[sample]))
    smooth = half @ (D - W)[np.ix_(sample, sample)] @ half
    P1, P2 = (
        np.linalg.solve(X.T @ X + 0.2 * rho * X[sample].T @ smooth @ X[sample] + 0.01 * np.eye(X.shape[1]), X.T @ V)
        for X in (X1, X2)
    )
    graph = np.linalg.norm(V.T @ (D - W) @ V)
    norm = np.linalg.norm
    value = 0.3 * norm(X1 - V @ U1.T) + 0.7 * norm(X2 - V @ U2.T) + 4 * (norm(V - X1 @ P1) + norm(V - X2 @ P2))
    value += 2 * graph + 0.01 * (norm(P1) + norm(P2))

    smfh.update_V(state, sample)
    smfh.update_U_liu(state)
    smfh.normalise(state)
    smfh.update_P_liu(state, sample)
    for ours, sheets in zip((state.V, *state.U, *state.P), (V, U1, U2, P1, P2), strict=True):
        np.testing.assert_allclose(ours, sheets, rtol=1e-8, atol=1e-10)
    assert smfh.watched(state, sample) == pytest.approx((value, graph), rel=1e-7)


def test_liu_refuses_or_clips_features_below_zero(rng):
    X, L = pairs(rng)
    X, Y = dict(zip(("image", "text"), X, strict=True)), {"image": L, "text": L}
    bad = X | {"text": X["text"] - 0.3}
    model = SMFH(6, variant="liu", random_state=0)
    with pytest.raises(ValueError, match=r"'text': the lowest feature is -0\.299.*negative='clip'"):
        model.fit(bad, Y, pairs="aligned")
    clipping = SMFH(6, variant="liu", negative="clip", random_state=0).fit(bad, Y, pairs="aligned")
    by_hand = model.fit(X | {"text": np.maximum(bad["text"], 0)}, Y, pairs="aligned")
    np.testing.assert_array_equal(clipping.codes_["text"], by_hand.codes_["text"])
    thin = clipping.transform({"text": sparse.csr_array(bad["text"])})["text"]
    np.testing.assert_array_equal(thin, by_hand.transform({"text": np.maximum(bad["text"], 0)})["text"])


def test_both_modalities_count(rng):
    X, L = pairs(rng)
    with pytest.raises(ValueError, match=r"balance is 1\.0; expected a number between 0 and 1"):
        SMFH(6, balance=1.0).fit(dict(zip("ab", X, strict=True)), {"a": L, "b": L}, pairs="aligned")


def test_liu_stops_after_five_sweeps_where_the_graph_term_is_small(rng):
    X, L = pairs(rng)
    X, Y = dict(zip(("image", "text"), X, strict=True)), {"image": L, "text": L}
    assert SMFH(6, variant="liu", random_state=0).fit(X, Y, pairs="aligned").n_iter_ == 5
    full = SMFH(6, variant="liu", tol=0, max_iter=20, random_state=0).fit(X, Y, pairs="aligned")
    assert full.n_iter_ == len(full.objective_) == 20
    assert np.isfinite(full.objective_).all()
