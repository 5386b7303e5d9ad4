"""FMH: no step raises the dense objective, any number of modalities, queries in several modalities at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from scipy import sparse

from contract import block_data, make
from modalhash.core.linalg import balanced_procrustes, ridge_regression, sign, unit_rows
from modalhash.evaluation import mean_average_precision
from modalhash.methods import fmh
from modalhash.methods.fmh import squared_products
from modalhash.methods.registry import info
from strategies import problems, weights

METHOD = info("fmh")


def dense_objective(Lt, Phi, ends, B, D, W, alpha, beta, gamma):
    """As printed, with S as a matrix."""
    S = 2 * (Lt @ Lt.T).toarray() - 1
    value = alpha * np.sum((B @ D.T - B.shape[1] * S) ** 2) + beta * np.sum((B - D) ** 2)
    for b, phi, w in zip(np.split(B, ends), Phi, W, strict=True):
        value += np.sum((b - phi @ w) ** 2) + gamma * np.sum(w**2)
    return value


@given(problem=problems(), alpha=weights, beta=weights)
@settings(max_examples=40, deadline=None)
def test_no_step_raises_the_objective(problem, alpha, beta):
    L, V = problem
    gamma, rng = 1e-3, np.random.default_rng(0)
    Lt = sparse.csr_array(unit_rows(np.vstack(L)))
    ends = np.cumsum([len(labels) for labels in L])[:-1]
    Phi = [np.column_stack([rng.standard_normal((len(labels), 4)), np.ones(len(labels))]) for labels in L]
    B, D = sign(np.vstack(V)), balanced_procrustes(np.vstack(V), rng)
    W = [np.zeros((5, B.shape[1])) for _ in L]
    values = [dense_objective(Lt, Phi, ends, B, D, W, alpha, beta, gamma)]
    for _ in range(4):
        W = [ridge_regression(phi, b, gamma) for phi, b in zip(Phi, np.split(B, ends), strict=True)]
        values.append(dense_objective(Lt, Phi, ends, B, D, W, alpha, beta, gamma))
        D = balanced_procrustes(fmh.pull(B, Lt, alpha, beta), rng)
        values.append(dense_objective(Lt, Phi, ends, B, D, W, alpha, beta, gamma))
        H = np.vstack([phi @ w for phi, w in zip(Phi, W, strict=True)])
        B = sign(H + fmh.pull(D, Lt, alpha, beta))
        values.append(dense_objective(Lt, Phi, ends, B, D, W, alpha, beta, gamma))
    # a weight of 1e-6 beside 30 r n leaves the constraints of D true to about 1e-8
    assert np.all(np.diff(values) <= 1e-7 * (1 + np.abs(values[0])))


def test_the_sums_are_those_of_the_dense_matrices(rng):
    Lt = sparse.csr_array(unit_rows(rng.random((30, 6)) < 0.4))
    other = sparse.csr_array(unit_rows(rng.random((11, 6)) < 0.4))
    assert squared_products(Lt, other) == pytest.approx(np.sum((2 * (Lt @ other.T).toarray() - 1) ** 2))
    S = 2 * (Lt @ Lt.T).toarray() - 1
    D = balanced_procrustes(rng.standard_normal((30, 5)), rng)
    np.testing.assert_allclose(fmh.pull(D, Lt, 0.2, 0.3), 0.2 * 5 * S @ D + 0.3 * D, atol=1e-9)


@pytest.mark.parametrize("n_bits", [4, 16, 40])  # below and far above the number of classes
def test_the_trace_falls_to_the_dense_objective(n_bits, monkeypatch):
    data = block_data(METHOD)
    companions = []

    def keep(Z, rng):
        companions.append(balanced_procrustes(Z, rng))
        return companions[-1]

    monkeypatch.setattr(fmh, "balanced_procrustes", keep)
    model = make(METHOD, n_bits, max_iter=6).fit(data.X, data.Y)
    assert model.n_iter_ == len(model.objective_) == len(companions) == 6
    assert np.all(np.diff(model.objective_) <= 1e-9 * model.objective_[0])
    for D in companions:  # over all modalities together
        np.testing.assert_allclose(D.T @ D / 480, np.eye(n_bits), atol=1e-6)
        np.testing.assert_allclose(D.sum(axis=0) / 480, 0, atol=1e-6)


def test_the_weight_of_the_similarity_grows_where_items_are_few():
    data = block_data(METHOD)
    assert make(METHOD)._alpha(data) == pytest.approx(1e-5 * 370_000 / 480)
    assert make(METHOD, similarity=0.25)._alpha(data) == 0.25


def three_modalities(seed=0):
    rng = np.random.default_rng(seed)
    X, Y, Xq, Yq = {}, {}, {}, {}
    query = np.arange(60) % 6
    for name, n, width in (("image", 200, 30), ("text", 140, 18), ("sound", 90, 24)):
        classes = rng.permutation(np.arange(n) % 6)
        X[name], Xq[name] = (
            np.repeat(np.eye(6)[c], width // 6, axis=1) + 0.6 * rng.normal(size=(len(c), width))
            for c in (classes, query)
        )
        Y[name], Yq[name] = np.eye(6, dtype=bool)[classes], np.eye(6, dtype=bool)[query]
    return X, Y, Xq, Yq


@pytest.mark.parametrize("method", ["fmh", "edmh"])
def test_three_modalities_of_unequal_size(method):
    X, Y, Xq, Yq = three_modalities()
    model = make(info(method)).fit(X, Y)
    queries = model.transform(Xq)
    for q in X:
        for d in X:
            assert mean_average_precision(queries[q], Yq[q], model.codes_[d], Y[d], n_bits=16) > 0.5  # chance: .17


def test_more_modalities_of_a_query_find_more():
    X, Y, Xq, Yq = three_modalities()
    model = make(METHOD).fit(X, Y)

    def found(codes):
        return mean_average_precision(codes, Yq["image"], model.codes_["sound"], Y["sound"], n_bits=16)

    alone = {name: found(codes) for name, codes in model.transform(Xq).items()}
    assert found(model.transform_together(Xq)) > max(alone.values())
    one = model.transform_together({"text": Xq["text"]})
    np.testing.assert_array_equal(one, model.transform({"text": Xq["text"]})["text"])
    with pytest.raises(ValueError, match=r"as many items.*'image': 60, 'text': 9"):
        model.transform_together({"image": Xq["image"], "text": Xq["text"][:9]})
