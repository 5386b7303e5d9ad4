"""CMFH: the sweeps on the Gram matrix are the paper's on the items; they descend; the two releases."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from modalhash.core.codes import pack_signs
from modalhash.methods import cmfh
from modalhash.methods.cmfh import CMFH


def pairs(rng, n=120):
    topics = rng.normal(size=(n, 4))
    X = {
        name: topics @ rng.normal(size=(4, d)) + 0.3 * rng.normal(size=(n, d))
        for name, d in (("image", 11), ("text", 7))
    }
    X["text"] *= rng.random(X["text"].shape) < 0.05  # sparse enough to stay so as CSR
    return X


def textbook(X1, X2, V, P1, P2, sweeps, *, variant, lam, mu, gamma):
    """The sheet's updates in its own layout: columns are items. Yields all unknowns after every sweep."""
    eye = np.eye(len(V))
    inv = np.linalg.inv
    for _ in range(sweeps):
        U1, U2 = (X @ V.T @ inv(V @ V.T + gamma * eye) for X in (X1, X2))
        if variant == "v1":
            A = lam * U1.T @ U1 + (1 - lam) * U2.T @ U2 + (2 * mu + gamma) * eye
            V = inv(A) @ (lam * U1.T @ X1 + (1 - lam) * U2.T @ X2 + mu * (P1 @ X1 + P2 @ X2))
            P1, P2 = (V @ X.T @ inv(X @ X.T + gamma * np.eye(len(X))) for X in (X1, X2))
        else:
            A = lam * (U1.T @ U1 + (mu + gamma) * eye) + (1 - lam) * (U2.T @ U2 + (mu + gamma) * eye)
            V = inv(A) @ (lam * (U1.T + mu * P1) @ X1 + (1 - lam) * (U2.T + mu * P2) @ X2)
            P1, P2 = (V @ X.T @ inv(mu * X @ X.T + gamma * np.eye(len(X))) / mu for X in (X1, X2))
        yield U1, U2, V, P1, P2


@pytest.mark.parametrize("variant", ["v1", "v2"])
@pytest.mark.parametrize("kind", ["dense", "csr"])
@pytest.mark.parametrize("n", [120, 9], ids=["many items", "fewer items than features"])
def test_gram_sweeps_are_the_textbooks(rng, variant, kind, n):
    X = pairs(rng, n)
    parameters = {"balance": 0.3, "coupling": 5.0, "ridge": 0.1}
    model = CMFH(6, variant=variant, max_iter=7, tol=0, random_state=3, **parameters)
    V, P = model._start(X, 6)
    given = {name: sparse.csr_array(values) for name, values in X.items()} if kind == "csr" else X
    model.fit(given, pairs="aligned")
    X1, X2 = ((values - values.mean(axis=0)).T for values in X.values())
    *_, (U1, U2, V, P1, P2) = textbook(X1, X2, V.T, P[:11].T, P[11:].T, 7, variant=variant, lam=0.3, mu=5.0, gamma=0.1)
    np.testing.assert_allclose(model.projections_["image"], P1.T, rtol=1e-6, atol=1e-9 * abs(P1).max())
    np.testing.assert_allclose(model.projections_["text"], P2.T, rtol=1e-6, atol=1e-9 * abs(P2).max())
    np.testing.assert_allclose(V.mean(axis=1), 0, atol=1e-12)  # hence no threshold at the mean
    np.testing.assert_array_equal(model.codes_["text"], pack_signs(V.T))
    norm = np.linalg.norm
    m1, m2 = (5.0, 5.0) if variant == "v1" else (1.5, 3.5)
    watched = 0.3 * norm(X1 - U1 @ V) + 0.7 * norm(X2 - U2 @ V) + m1 * norm(V - P1 @ X1) + m2 * norm(V - P2 @ X2)
    watched += 0.1 * (norm(U1) + norm(U2) + norm(V) + norm(P1) + norm(P2))
    assert model.objective_[-1] == pytest.approx(watched, rel=1e-9)
    assert model.n_iter_ == len(model.objective_) == 7


def test_v1_descends_the_objective_that_its_ridges_belong_to(rng):
    X1, X2 = ((values - values.mean(axis=0)).T for values in pairs(rng).values())
    lam, mu, gamma = 0.3, 5.0, 0.1
    start = rng.random((6, 120)), rng.random((6, 11)), rng.random((6, 7))
    values = []
    for U1, U2, V, P1, P2 in textbook(X1, X2, *start, 40, variant="v1", lam=lam, mu=mu, gamma=gamma):
        XtV, U, P = np.vstack([X1, X2]) @ V.T, np.vstack([U1, U2]).T, np.hstack([P1, P2]).T
        G = np.vstack([X1, X2]) @ np.vstack([X1, X2]).T
        s = cmfh.norms(G, XtV, V @ V.T, U, P, [slice(0, 11), slice(11, 18)])
        values.append(
            lam * (s["factor"][0] + gamma * s["U"][0])
            + (1 - lam) * (s["factor"][1] + gamma * s["U"][1])
            + mu * (sum(s["coupling"]) + gamma * sum(s["P"]))
            + gamma * s["V"][0]
        )
    assert np.all(np.diff(values) <= 1e-9 * values[0])
    assert values[-1] < values[0]


def test_stop_rules(rng):
    X = pairs(rng)
    early = CMFH(6, random_state=0, tol=1.0).fit(X, pairs="aligned")
    falls = -np.diff(early.objective_)
    assert falls[-1] < 1.0 <= falls[:-1].min()
    assert CMFH(6, random_state=0, tol=0, max_iter=60).fit(X, pairs="aligned").n_iter_ == 60
    assert CMFH(6, random_state=0, variant="v2").fit(X, pairs="aligned").n_iter_ == 25
    assert CMFH(6, random_state=0, init="gaussian").fit(X, pairs="aligned").n_iter_ < 1000
