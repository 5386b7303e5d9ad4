"""WASH: each step minimises what it says, sums are those of the dense matrices, and wrong labels are found."""

from __future__ import annotations

import numpy as np
import pytest

from contract import block_data, make
from modalhash.core.linalg import RidgeFactor, balanced_procrustes, sign, unit_rows
from modalhash.methods import batch, wash
from modalhash.methods.registry import info

METHOD = info("wash")
N, BITS, CLASSES, BETA, MU, OMEGA, LAM = 60, 9, 7, 0.05, 0.3, 0.2, 0.1
WEIGHTS = [0.09, 0.02, 0.01]
"""γη of the label factors and of the two modalities."""


class Slow:
    """The augmented Lagrangian as the paper prints it, with D as an n × n matrix; V, B, … are attributes."""

    def __init__(self, rng):
        self.Y = (rng.random((N, CLASSES)) < 0.3).astype(float)
        self.Y[:, 0] = 1  # no item without a label
        self.X = [rng.standard_normal((N, 11)), rng.standard_normal((N, 5))]
        self.V = balanced_procrustes(rng.standard_normal((N, BITS)), rng)
        self.B = sign(rng.standard_normal((N, BITS)))
        self.G, self.S = rng.standard_normal((N, CLASSES)), rng.standard_normal((CLASSES, CLASSES))
        self.E, self.F = 0.1 * rng.standard_normal((N, CLASSES)), 0.1 * rng.standard_normal((N, CLASSES))
        self.W = [rng.standard_normal((BITS, X.shape[1])) for X in (self.G, *self.X)]
        self.P = [rng.standard_normal((X.shape[1], CLASSES)) for X in self.X]
        self.Yn, self.rho = unit_rows(self.Y - self.E), 1.0

    def objective(self):
        D, r = self.Yn @ self.Yn.T, self.B.shape[1]
        value = BETA * np.abs(self.E).sum() + OMEGA * np.sum((self.B - self.V) ** 2)
        value += np.sum((self.V @ self.B.T - r * D) ** 2)
        for eta, X, W in zip(WEIGHTS, [self.G, *self.X], self.W, strict=True):
            value += eta * np.sum((X - self.V @ W) ** 2) + LAM * np.sum(W**2)
        for X, P in zip(self.X, self.P, strict=True):
            value += MU * np.sum((X @ P - self.G @ self.S) ** 2) + LAM * np.sum(P**2)
        return value

    def augmented(self):
        ridge = wash.FACTOR_RIDGE * (np.sum(self.S**2) + np.sum(self.G**2))
        unmet = self.Y - self.G @ self.S - self.E + self.F / self.rho
        return self.objective() + ridge + self.rho / 2 * np.sum(unmet**2)

    def target(self):
        predicted = sum(X @ P for X, P in zip(self.X, self.P, strict=True))
        return self.rho / 2 * (self.Y - self.E + self.F / self.rho) + MU * predicted


def test_no_step_raises_the_augmented_objective(rng):
    s = Slow(rng)
    factors = [RidgeFactor(MU * X.T @ X, LAM) for X in s.X]
    for _ in range(6):
        s.Yn = unit_rows(s.Y - s.E)  # 5., between two sweeps: D is given, no variable of a step
        values = [s.augmented()]
        s.B = sign(wash.pull(s.V, s.Yn, OMEGA))
        values.append(s.augmented())
        s.W = wash.update_W(s.V, [s.G, *s.X], WEIGHTS, LAM)
        values.append(s.augmented())
        s.S = wash.update_S(s.target(), s.G, s.rho / 2 + 2 * MU)
        values.append(s.augmented())
        s.G = wash.update_G(s.target(), s.S, s.V @ s.W[0], s.rho / 2 + 2 * MU, WEIGHTS[0])
        values.append(s.augmented())
        s.P = wash.update_P(s.G @ s.S, s.X, factors, MU)
        values.append(s.augmented())
        s.E = wash.soft_threshold(s.Y - s.G @ s.S + s.F / s.rho, BETA / s.rho)
        values.append(s.augmented())
        s.V = balanced_procrustes(
            batch.reconstruction_pull([s.G, *s.X], s.W, WEIGHTS) + wash.pull(s.B, s.Yn, OMEGA), rng
        )
        values.append(s.augmented())
        assert np.all(np.diff(values) <= 1e-9 * values[0])
        np.testing.assert_allclose(s.V.T @ s.V, N * np.eye(BITS), atol=1e-6)
        np.testing.assert_allclose(s.V.sum(axis=0), 0, atol=1e-6)
        s.F, s.rho = s.F + s.rho * (s.Y - s.G @ s.S - s.E), 1.3 * s.rho


def test_steps_are_minima(rng):
    """A small change of what a step returns, in any direction, raises the objective."""
    s = Slow(rng)
    s.S = wash.update_S(s.target(), s.G, s.rho / 2 + 2 * MU)
    check_minimum(s, "S", rng)
    s.G = wash.update_G(s.target(), s.S, s.V @ s.W[0], s.rho / 2 + 2 * MU, WEIGHTS[0])
    check_minimum(s, "G", rng)
    s.E = wash.soft_threshold(s.Y - s.G @ s.S + s.F / s.rho, BETA / s.rho)
    check_minimum(s, "E", rng)
    s.P = wash.update_P(s.G @ s.S, s.X, [RidgeFactor(MU * X.T @ X, LAM) for X in s.X], MU)
    check_minimum(s, "P", rng, number=0)
    s.W = wash.update_W(s.V, [s.G, *s.X], WEIGHTS, LAM)
    check_minimum(s, "W", rng, number=1)


def check_minimum(s, name, rng, number=None):
    best, least = getattr(s, name), s.augmented()
    for _ in range(20):
        change = 1e-3 * rng.standard_normal((best if number is None else best[number]).shape)
        moved = best + change if number is None else [b + change if k == number else b for k, b in enumerate(best)]
        setattr(s, name, moved)
        assert s.augmented() > least
    setattr(s, name, best)


def test_the_objective_is_that_of_the_dense_matrices(rng):
    s = Slow(rng)
    drawn = batch.reconstruction_pull([s.G, *s.X], s.W, WEIGHTS)
    fast = wash.of_codes(s.V, s.B, s.W, s.Yn, drawn, OMEGA, WEIGHTS, LAM)
    fast += sum(eta * np.sum(X**2) for eta, X in zip(WEIGHTS, [s.G, *s.X], strict=True))
    fast += sum(MU * np.sum((X @ P - s.G @ s.S) ** 2) + LAM * np.sum(P**2) for X, P in zip(s.X, s.P, strict=True))
    assert fast + BETA * np.abs(s.E).sum() == pytest.approx(s.objective())


def test_a_fit_is_the_printed_algorithm():
    """The same codes and noise as the steps written out with n × n matrices and the labels' principal directions."""
    data = block_data(METHOD, noise=0.6)
    model = make(METHOD, BITS).fit(data.X, data.Y, **data.fit)
    X = [model.maps_[name].map(values) for name, values in data.X.items()]
    B, E = printed(X, data.Y["image"].astype(float), BITS, np.random.default_rng([0, 0]))
    bits = np.unpackbits(model.codes_["image"], axis=1, count=BITS)
    np.testing.assert_array_equal(bits, B > 0)
    np.testing.assert_allclose(model.noise_["doubt"], E[data.Y["image"] > 0], atol=1e-6)
    for name, K in zip(data.X, X, strict=True):
        np.testing.assert_allclose(
            model.functions_[name], np.linalg.solve(K.T @ K + 1e-3 * np.eye(K.shape[1]), K.T @ B)
        )


def printed(X, Y, r, rng, beta=5e-3, mu=0.1, phi=1e-3, lam=1e-4, eta=(9e-3, 5e-4, 5e-4)):
    """The algorithm of the authors' code in its order; D is formed, and G starts along the labels' directions."""
    c = Y.shape[1]
    V = wash.start(X, r, rng)
    G = Y @ np.linalg.eigh(np.cov(Y.T))[1]
    E, F, rho = np.zeros_like(Y), np.zeros_like(Y), 1.0
    ridge = [np.linalg.inv(mu * K.T @ K + lam * np.eye(K.shape[1])) for K in X]
    P = [mu * inverse @ K.T @ Y for K, inverse in zip(X, ridge, strict=True)]
    D = unit_rows(Y) @ unit_rows(Y).T
    for _ in range(8):
        B = sign(phi * V + r * D @ V)
        W = [e * np.linalg.solve(e * V.T @ V + lam * np.eye(r), V.T @ K) for e, K in zip(eta, [G, *X], strict=True)]
        T = rho / 2 * (Y - E + F / rho) + mu * sum(K @ p for K, p in zip(X, P, strict=True))
        S = np.linalg.solve((rho / 2 + 2 * mu) * G.T @ G + 1e-8 * np.eye(c), G.T @ T)
        A = (rho / 2 + 2 * mu) * S @ S.T + (eta[0] + 1e-8) * np.eye(c)
        G = np.linalg.solve(A, (T @ S.T + eta[0] * V @ W[0]).T).T
        D = unit_rows(Y - E) @ unit_rows(Y - E).T
        P = [mu * inverse @ K.T @ G @ S for K, inverse in zip(X, ridge, strict=True)]
        Etp = Y - G @ S + F / rho
        E = np.sign(Etp) * np.maximum(np.abs(Etp) - beta / rho, 0)
        Z = sum(e * K @ w.T for e, K, w in zip(eta, [G, *X], W, strict=True)) + r * D @ B + phi * B
        V = balanced_procrustes(Z, rng)
        F, rho = F + rho * (Y - G @ S - E), 1.3 * rho
    return B, E


@pytest.mark.parametrize("rate", [0.1, 0.4])
def test_wrong_labels_are_doubted_more_than_right_ones(rate, rng):
    data = block_data(METHOD, noise=0.5)
    truth = data.Y["image"].argmax(axis=1)
    wrong = rng.random(len(truth)) < rate
    given = np.where(wrong, (truth + rng.integers(1, 6, size=len(truth))) % 6, truth)
    labels = np.eye(6, dtype=int)[given]
    noise = make(METHOD).fit(data.X, dict.fromkeys(data.Y, labels), pairs="aligned").noise_
    np.testing.assert_array_equal(noise["pair"], np.arange(240))
    np.testing.assert_array_equal(noise["class"], given)
    doubt = noise["doubt"]
    won = np.mean(doubt[wrong][:, None] > doubt[~wrong])  # the area under the curve: 1/2 by chance
    assert won > 0.95
    most = np.argsort(-doubt)[: wrong.sum()]
    assert wrong[most].mean() > 0.8  # by chance: the rate


def test_a_pair_with_no_label_left_resembles_none():
    Y = np.eye(4)[np.arange(40) % 4]
    Yn = unit_rows(Y - np.where(np.arange(40)[:, None] == 3, Y, 0))
    X = np.random.default_rng(0).standard_normal((40, 5))
    pulled = wash.pull(X, Yn, 0.5)
    np.testing.assert_allclose(pulled[3], 0.5 * X[3])
    assert np.all(np.isfinite(pulled))


def test_it_starts_from_few_pairs_or_few_directions(rng, monkeypatch):
    X = [rng.standard_normal((50, 6)) * [9, 7, 5, 3, 2, 1], rng.standard_normal((50, 3))]
    V = wash.start(X, 8, rng)
    assert V.shape == (50, 8)
    directions = [np.linalg.svd(K - K.mean(axis=0), full_matrices=False)[2] for K in X]
    signs = [d * np.sign(d[np.arange(len(d)), np.abs(d).argmax(axis=1)])[:, None] for d in directions]
    np.testing.assert_allclose(V[:, :3], (X[0] @ signs[0][:3].T + X[1] @ signs[1].T) / 2)
    monkeypatch.setattr(wash, "START_ROWS", 20)
    assert not np.allclose(wash.start(X, 3, np.random.default_rng(0)), V[:, :3])


def test_traces_say_how_far_the_constraint_is_met():
    data = block_data(METHOD, noise=0.6)
    model = make(METHOD).fit(data.X, data.Y, **data.fit)
    assert model.n_iter_ == len(model.objective_) == len(model.residual_) == 8
    assert model.residual_[-1] < 0.1 * model.residual_[0]
