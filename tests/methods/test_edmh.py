"""EDMH: no step raises the dense objective, the sums are those of the dense matrices, what ω is for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from scipy import sparse

from contract import block_data, make
from modalhash.core.linalg import balanced_procrustes, ridge_regression, sign, unit_rows
from modalhash.evaluation import mean_average_precision
from modalhash.methods import edmh
from modalhash.methods.registry import info
from strategies import problems, weights

METHOD = info("edmh")


def similarity(Lu, Lv):
    return 2 * unit_rows(Lu) @ unit_rows(Lv).T - 1


def dense_objective(L, Phi, B, Z, P, omega, alpha, lam, beta):
    """As printed, with every S as a matrix."""
    r = B[0].shape[1]
    value = sum(
        (1 if u != v else omega) * np.sum((r * similarity(L[u], L[v]) - B[u] @ Z[v].T) ** 2)
        for u in range(len(L))
        for v in range(len(L))
    )
    for phi, b, z, p in zip(Phi, B, Z, P, strict=True):
        value += lam * np.sum((phi @ p - b) ** 2) + alpha * np.sum((b - z) ** 2) + beta * np.sum(p**2)
    return value


@pytest.mark.slow
@given(problem=problems(), omega=weights, alpha=weights)
@settings(max_examples=40, deadline=None)
def test_no_step_raises_the_objective_and_the_sums_are_exact(problem, omega, alpha):
    L, V = problem
    lam, beta, rng = 10.0, 1.0, np.random.default_rng(0)
    Lt = [sparse.csr_array(unit_rows(labels)) for labels in L]
    Phi = [np.column_stack([rng.standard_normal((len(labels), 4)), np.ones(len(labels))]) for labels in L]
    r = V[0].shape[1]
    Z = [balanced_procrustes(v, rng) for v in V]
    B = [sign(z) for z in Z]
    P = [np.zeros((5, r)) for _ in L]
    values = []

    def note():
        values.append(dense_objective(L, Phi, B, Z, P, omega, alpha, lam, beta))

    note()
    for _ in range(4):
        for v, phi in enumerate(Phi):
            P[v] = ridge_regression(phi, B[v], beta / lam)
            note()
        for v in range(len(L)):  # one after the other: none depends on what the others became
            Z[v] = edmh.update_Z(edmh.similarity_pulls(Lt, B, omega)[v], B[v], alpha, rng)
            note()
        pulls = edmh.similarity_pulls(Lt, Z, omega)
        for v, phi in enumerate(Phi):
            B[v] = edmh.update_B(pulls[v], Z[v], phi @ P[v], alpha, lam)
            note()
        fast = edmh.similarity_size(Lt, r, omega) + edmh.code_objective(pulls, B, Z, alpha)
        fast += sum(lam * np.sum((phi @ p - b) ** 2) + beta * np.sum(p**2) for phi, p, b in zip(Phi, P, B, strict=True))
        assert fast == pytest.approx(values[-1], rel=1e-6)
    # a weight of 1e-6 beside 30 r n leaves the constraints of Z true to about 1e-8
    assert np.all(np.diff(values) <= 1e-7 * (1 + np.abs(values[0])))


def test_pulls_are_those_of_the_dense_similarity(rng):
    L = [rng.random((n, 6)) < 0.4 for n in (20, 13, 9)]
    Lt = [sparse.csr_array(unit_rows(labels)) for labels in L]
    Z = [balanced_procrustes(rng.standard_normal((len(labels), 5)), rng) for labels in L]
    for v, pull in enumerate(edmh.similarity_pulls(Lt, Z, 0.3)):
        dense = sum((1 if u != v else 0.3) * 5 * similarity(L[v], L[u]) @ Z[u] for u in range(3))
        np.testing.assert_allclose(pull, dense, atol=1e-9)


def retrieval(model, data):
    queries = model.transform(data.Xq)
    return [
        mean_average_precision(queries[q], data.Yq[q], model.codes_[d], data.Y[d], n_bits=model.n_bits)
        for q, d in (("image", "text"), ("text", "image"))
    ]


def test_without_similarity_within_a_modality_two_of_them_are_not_aligned():
    data = block_data(METHOD)
    assert np.mean(retrieval(make(METHOD, intra=0).fit(data.X, data.Y), data)) < 0.75
    assert min(retrieval(make(METHOD).fit(data.X, data.Y), data)) > 0.95


def test_one_modality_is_enough_but_not_without_any_similarity():
    data = block_data(METHOD)
    X, Y = {"image": data.X["image"]}, {"image": data.Y["image"]}
    codes = make(METHOD).fit(X, Y).transform({"image": data.Xq["image"]})["image"]
    assert mean_average_precision(codes, data.Yq["image"], codes, data.Yq["image"], n_bits=16) > 0.95
    with pytest.raises(ValueError, match="one modality and intra=0"):
        make(METHOD, intra=0).fit(X, Y)


def test_a_small_memory_limit_changes_nothing():
    data = block_data(METHOD)
    one, other = (make(METHOD, memory_limit=limit).fit(data.X, data.Y) for limit in (None, 1))
    for name in data.X:
        np.testing.assert_array_equal(one.codes_[name], other.codes_[name])
