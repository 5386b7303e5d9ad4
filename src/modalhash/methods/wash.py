r"""WASH: Weakly-supervised enhAnced Semantic-aware Hashing (Zhang et al., IEEE TKDE 2023).

For partly wrong labels. The labels of the pairs are decomposed into a low-rank part, which the features of both
modalities predict, and sparse noise. A balanced, uncorrelated latent representation V reconstructs the features and the
factors of the low-rank part, and its products with the codes B reproduce the similarity by denoised labels.

========================  =========================  =====================================================
paper (transposed)        here (rows are items)      is
========================  =========================  =====================================================
:math:`B`                 ``B`` (n, r)               codes of the pairs, ±1 :math:`V`                 ``V`` (n, r)
latent representation, VᵀV = nI, Vᵀ1 = 0 :math:`Y`                 ``Y`` (n, c)               labels as given, 0/1
:math:`S, G`              ``S`` (c, c), ``G`` (n, c) factors of the low-rank part of the labels: Y ≈ GS + E :math:`E`
``E`` (n, c)               noise of the labels :math:`Y_n`               ``Yn`` (n, c)              rows of Y − E, of
length 1; D = YnYnᵀ is never formed :math:`X_0, W_0`          ``G``, ``W[0]`` (r, c)     reconstruction G ≈ VW
:math:`X_i, W_i`          ``phi``, ``W[i]`` (r, m)   kernel features, centred, and their reconstruction φ ≈ VW
:math:`P_i`               ``P`` (m, c)               from features to the low-rank part: φP ≈ GS :math:`F_1, \rho`
``F`` (n, c), ``rho``      multiplier and penalty of the constraint Y = GS + E --
``functions_[name]``       features → codes, (m, r) :math:`\beta, \gamma, \mu, \phi, \lambda`  ``noise``,
``reconstruction``, ``prediction``, ``quantization``, ``regularization`` :math:`\eta_0, \eta_i`    ``label_weight``,
``feature_weight``
========================  =========================  =====================================================

Departures from the authors' code: the V-step, as in :mod:`modalhash.methods.batch`; sgn(0) = −1; a zero row of Y − E is
similar to no pair (theirs divides by 0); principal directions come from at most 10,000 pairs (theirs needs that many),
and missing ones start random; G starts as Y, theirs as Y in its c principal directions, a rotation that does not change
the codes. As in their code, Yn is one sweep behind E, and the codes returned are those before the last V-step.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np

from modalhash.core.features import pair_features
from modalhash.core.linalg import (
    RidgeFactor,
    balanced_procrustes,
    principal_directions,
    ridge_regression,
    sign,
    squared,
    unit_rows,
)
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, root_seed
from modalhash.core.typing import Array, Matrix, PerModality
from modalhash.core.validation import Count, NonNegative, Positive, per_modality
from modalhash.methods.base import PairCodes, PairedHasher
from modalhash.methods.batch import reconstruction_pull

START_ROWS = 10_000
"""Most pairs from which the principal directions for the start of V are computed."""
FACTOR_RIDGE = 1e-8
"""Ridge of S and G, as in the authors' code, which keeps their steps solvable."""
PENALTY, PENALTY_GROWTH, MAX_PENALTY = 1.0, 1.3, 1e4
"""ρ in the first sweep, its growth factor per sweep, and its limit."""


@dataclass(eq=False, repr=False)
class WASH(PairedHasher):
    r"""Codes of pairs from partly wrong labels, after Zhang et al. (2023).

    Minimises

    .. math::
        \beta\lVert E\rVert_1 + \gamma\Big(\eta_0\lVert G - VW_0\rVert^2 + \sum_i\eta_i\lVert\phi_i - VW_i\rVert^2\Big)
        + \mu\sum_i\lVert \phi_iP_i - GS\rVert^2 + \varphi\lVert B - V\rVert^2 + \lVert VB^T - rD\rVert^2
        + \lambda\sum_i\left(\lVert W_i\rVert^2 + \lVert P_i\rVert^2\right)

    subject to Y = GS + E, B = ±1, VᵀV = nI, Vᵀ1 = 0, where D has the cosines between rows of Y − E. An
    augmented Lagrangian, whose penalty grows with every sweep, enforces the constraint on Y.

    Parameters
    ----------
    noise : β, price of a doubted label; the larger, the fewer are doubted
    reconstruction : γ, reconstruction of features and label factors from V
    prediction : μ, how closely the low-rank part of the labels follows what the features predict
    quantization : φ, how closely codes follow the latent representation
    regularization : λ > 0, of W and P
    label_weight : η0, of the label factors in the reconstruction
    feature_weight : η1 and η2, of the features in the reconstruction; or a dict by modality
    ridge : of the hash functions; or a dict by modality
    max_iter : sweeps
    n_bits, kernel, n_anchors, random_state : as for :class:`~modalhash.methods.base.CrossModalHasher`

    Attributes
    ----------
    noise_ : one entry per given label: ``"pair"`` (row of the pair), ``"class"`` (column of the label) and ``"doubt"``
        (E there), which ranks labels, the likeliest mistakes last, but is not a probability
    objective_ : the objective, one value per sweep. It need not fall, because D changes with E
    residual_ : ‖Y − GS − E‖ / ‖Y‖, the violation of the constraint, one value per sweep
    """

    n_bits: int = 64
    _: KW_ONLY
    noise: NonNegative = 5e-3
    reconstruction: NonNegative = 1e-2
    prediction: NonNegative = 0.1
    quantization: NonNegative = 1e-3
    regularization: Positive = 1e-4
    label_weight: NonNegative = 0.9
    feature_weight: PerModality[NonNegative] = 0.05
    ridge: PerModality[NonNegative] = 1e-3
    kernel: PerModality[str | None] = "rbf"
    n_anchors: PerModality[int] = 1000
    max_iter: Count = 8
    random_state: RandomState = None

    def _fit_pairs(self, X: dict[str, Matrix], L: Array, n_bits: int, report: Reporter) -> PairCodes:
        beta, mu, lam = self.noise, self.prediction, self.regularization
        omega = self.quantization  # φ in the paper; phi are the features
        etas = [self.label_weight, *per_modality(self.feature_weight, X, "feature_weight").values()]
        weights = [self.reconstruction * eta for eta in etas]  # γη of the label factors, then of every modality
        ridge = per_modality(self.ridge, X, "ridge")
        seed = root_seed(self.random_state)
        maps, phi = pair_features(X, L, self.kernel, self.n_anchors, seed)
        features = list(phi.values())
        grams = [K.T @ K for K in features]
        to_P = [RidgeFactor(mu * gram, lam) for gram in grams]
        report("features", 1, 1)

        rng = np.random.default_rng([seed, 0])
        Y = L.astype(np.float64)
        V = start(features, n_bits, rng)  # not feasible before the first V-step
        G, E, F, Yn, rho = Y, np.zeros_like(Y), np.zeros_like(Y), unit_rows(Y), PENALTY
        predicted = [K @ p for K, p in zip(features, update_P(Y, features, to_P, mu), strict=True)]
        trace: list[float] = []
        residual: list[float] = []
        for sweep in range(self.max_iter):
            B = sign(pull(V, Yn, omega))  # 1.
            W = update_W(V, [G, *features], weights, lam)  # 2.
            T = rho / 2 * (Y - E + F / rho) + mu * sum(predicted)
            S = update_S(T, G, rho / 2 + mu * len(features))  # 3.
            G = update_G(T, S, V @ W[0], rho / 2 + mu * len(features), weights[0])  # 4.
            Yn = unit_rows(Y - E)  # 5.
            GS = G @ S
            P = update_P(GS, features, to_P, mu)  # 6.
            predicted = [K @ p for K, p in zip(features, P, strict=True)]
            E = soft_threshold(Y - GS + F / rho, beta / rho)  # 7.
            drawn = reconstruction_pull([G, *features], W, weights)
            V = balanced_procrustes(drawn + pull(B, Yn, omega), rng)  # 8.
            unmet = Y - GS - E
            F = F + rho * unmet  # 9.
            rho = min(MAX_PENALTY, PENALTY_GROWTH * rho)
            fitted = mu * sum(squared(p - GS) for p in predicted) + lam * sum(map(squared, P))
            fitted += sum(eta * squared(K) for eta, K in zip(weights, [G, *features], strict=True))
            trace.append(beta * float(np.abs(E).sum()) + fitted + of_codes(V, B, W, Yn, drawn, omega, weights, lam))
            residual.append(np.sqrt(squared(unmet) / squared(Y)))
            report("codes", sweep + 1, self.max_iter, trace[-1])

        return B, {
            "functions_": {name: ridge_regression(K, B, ridge[name]) for name, K in phi.items()},
            "maps_": maps,
            "noise_": doubts(L, E),
            "objective_": trace,
            "residual_": np.array(residual),
        }


def start(features: list[Array], n_bits: int, rng: np.random.Generator) -> Array:
    """Return the mean over modalities of features along principal directions, padded with random columns."""
    V = np.zeros((len(features[0]), n_bits))
    for K in features:
        rows = rng.permutation(len(K))[:START_ROWS]
        along = K @ principal_directions(K[rows], n_bits)
        V += np.hstack([along, rng.standard_normal((len(K), n_bits - along.shape[1]))]) / len(features)
    return V


def pull(X: Array, Yn: Array, omega: float) -> Array:
    """Return rDX + φX with D = YnYnᵀ, the pull of B on V and of V on B."""
    return X.shape[1] * (Yn @ (Yn.T @ X)) + omega * X


def update_W(V: Array, targets: list[Array], weights: list[float], lam: float) -> list[Array]:
    """Return W = γη (γη VᵀV + λI)⁻¹ VᵀX for every target X, label factors first."""
    VtV = V.T @ V
    return [RidgeFactor(eta * VtV, lam).solve(eta * (V.T @ X)) for X, eta in zip(targets, weights, strict=True)]


def update_S(T: Array, G: Array, weight: float) -> Array:
    """Return S = (w GᵀG + 1e-8 I)⁻¹ GᵀT, with T the weighted sum of the targets of GS, and w the sum of weights."""
    return RidgeFactor(weight * (G.T @ G), FACTOR_RIDGE).solve(G.T @ T)


def update_G(T: Array, S: Array, VW: Array, weight: float, eta: float) -> Array:
    """Return G = (TSᵀ + γη0 VW0) (w SSᵀ + (γη0 + 1e-8) I)⁻¹."""
    return RidgeFactor(weight * (S @ S.T), eta + FACTOR_RIDGE).solve((T @ S.T + eta * VW).T).T


def update_P(GS: Array, features: list[Array], factors: list[RidgeFactor], mu: float) -> list[Array]:
    """Return P = μ (μ φᵀφ + λI)⁻¹ φᵀGS for every modality."""
    return [factor.solve(mu * (K.T @ GS)) for K, factor in zip(features, factors, strict=True)]


def soft_threshold(X: Array, cut: float) -> Array:
    """Return the minimiser of cut‖E‖₁ + ½‖E − X‖²."""
    return np.asarray(np.sign(X) * np.maximum(np.abs(X) - cut, 0.0))


def of_codes(
    V: Array, B: Array, W: list[Array], Yn: Array, drawn: Array, omega: float, weights: list[float], lam: float
) -> float:
    """Return the terms in V, B and W, for feasible V, less Σ γη‖X‖²; ``drawn`` is Σ γη X Wᵀ.

    By VᵀV = nI, ‖VBᵀ − rD‖² = n²r − 2r⟨YnᵀV, YnᵀB⟩ + r²‖D‖² and ‖X − VW‖² = ‖X‖² − 2⟨XWᵀ, V⟩ + n‖W‖².
    """
    n, r = B.shape
    similarity = n * n * r - 2 * r * float(np.vdot(Yn.T @ V, Yn.T @ B)) + r * r * squared(Yn.T @ Yn)
    sizes = sum((n * eta + lam) * squared(w) for eta, w in zip(weights, W, strict=True))
    return similarity + omega * squared(B - V) - 2 * float(np.vdot(drawn, V)) + sizes


def doubts(L: Array, E: Array) -> dict[str, Array]:
    """Return the noise of every given label, in the order of rows."""
    pairs, classes = np.nonzero(L)
    return {"pair": pairs, "class": classes, "doubt": E[pairs, classes].astype(np.float32)}
