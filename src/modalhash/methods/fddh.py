r"""FDDH: Fast Discriminative Discrete Hashing (Liu, Wang and Cheung, IEEE TNNLS 2021).

Every class is a direction of an orthogonal basis. A pair's code is the sign of the sum of its classes' directions, and
the same sums, rotated, reconstruct the kernel features of both modalities. Labels are relaxed: a present label may
exceed 1 and an absent one may be negative where that improves the reconstruction. The hash functions are ridge
regressions to the codes, fitted afterwards.

========================  ==========================  ====================================================
paper (transposed)        here (rows are items)       is
========================  ==========================  ====================================================
:math:`B`                 ``B`` (n, r)                codes of the pairs, ±1
:math:`L`                 ``T`` (n, c)                relaxed labels: ≥ 1 where L is 1, ≤ 0 elsewhere
:math:`C`                 ``C`` (c, r)                basis, CCᵀ = I (CᵀC = I where r < c)
:math:`X_1, X_2`          ``K[name]`` (n, m)          kernel features, not centred
:math:`R_1, R_2`          ``R[name]`` (r, m)          K ≈ T C R, RRᵀ = I
:math:`\mu, \theta, \gamma_1`  ``feature_weight`` (both), ``label_ridge``
========================  ==========================  ====================================================

Departures from the authors' code: the T-step divides by 1 + μ + θ + γ₁, which minimises the objective (theirs omits the
1, which is negligible next to γ₁ = 1e4); each modality draws its anchors by content (theirs: the same rows of both);
sgn(0) = −1. Where the best R is not unique, with more bits than classes, the one nearest to the previous R is taken.

With the authors' γ₁ = 1e4 the relaxed labels stay close to 0 and 1, there are about as many codes as label patterns,
and γ₁‖T‖² dominates the objective, so that two sweeps satisfy ``tol``; values of 0.1 to 10 let labels move. With fewer
bits than classes the T-step is not a minimiser, as in the authors' code, and the sweeps end when the objective
increases.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np

from modalhash.core.features import pair_features
from modalhash.core.linalg import orthogonal_procrustes, ridge_regression, sign, squared
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, root_seed
from modalhash.core.typing import Array, Matrix, PerModality
from modalhash.core.validation import Count, NonNegative, per_modality
from modalhash.methods.base import PairCodes, PairedHasher


@dataclass(eq=False, repr=False)
class FDDH(PairedHasher):
    r"""Codes of pairs from an orthogonal basis of classes and relaxed labels, after Liu et al. (2021).

    Minimises

    .. math::
        \lVert B - TC\rVert^2 + \mu\lVert K_1 - TCR_1\rVert^2 + \theta\lVert K_2 - TCR_2\rVert^2
        + \gamma_1\lVert T\rVert^2

    subject to B = ±1, CCᵀ = I, RRᵀ = I, and T ≥ 1 where a pair has the label, T ≤ 0 elsewhere.

    Parameters
    ----------
    n_bits : length of the codes, below the number of pairs; at least the number of classes for an exact solver
    feature_weight : μ and θ, reconstruction of the features; or a dict by modality. The authors take 1 for
        text on MIRFlickr
    label_ridge : γ₁, which keeps relaxed labels near 0 and 1. The authors take 1e4 on Wiki, 1e5 on MIRFlickr
    ridge : of the hash functions; or a dict by modality
    max_iter : most sweeps
    tol : stop when the objective falls by less than this share
    kernel, n_anchors, random_state : as for :class:`~modalhash.methods.base.CrossModalHasher`

    Attributes
    ----------
    objective_ : one value per sweep; if the last value is an increase, the codes are those of the sweep before
    """

    n_bits: int = 64
    _: KW_ONLY
    feature_weight: PerModality[NonNegative] = 1e-3
    label_ridge: NonNegative = 1e4
    kernel: PerModality[str | None] = "rbf-narrow"
    n_anchors: PerModality[int] = 800
    ridge: PerModality[NonNegative] = 1e-4
    max_iter: Count = 19
    tol: NonNegative = 1e-4
    random_state: RandomState = None

    def _fit_pairs(self, X: dict[str, Matrix], L: Array, n_bits: int, report: Reporter) -> PairCodes:
        mu, gamma = per_modality(self.feature_weight, X, "feature_weight"), self.label_ridge
        ridge = per_modality(self.ridge, X, "ridge")
        seed = root_seed(self.random_state)
        maps, K = pair_features(X, L, self.kernel, self.n_anchors, seed, centred=False)
        constant = sum(mu[name] * squared(values) for name, values in K.items())
        report("features", 1, 1)

        rng = np.random.default_rng([seed, 0])
        B, T = sign(rng.standard_normal((len(L), n_bits))), L.astype(np.float64)
        R = {name: rng.random((n_bits, values.shape[1])) for name, values in K.items()}
        rotated = rotate(K, R, mu)
        trace: list[float] = []
        for sweep in range(self.max_iter):
            C = orthogonal_procrustes(T.T @ (B + rotated))  # 1.
            code = T @ C
            R = {name: orthogonal_procrustes(code.T @ values, near=R[name]) for name, values in K.items()}  # 2.
            rotated = rotate(K, R, mu)
            before, B = B, sign(code)  # 3.
            T = relaxed_labels((B + rotated) @ C.T / (1 + sum(mu.values()) + gamma), L)  # 4.
            trace.append(constant + objective(B, T, C, R, rotated, mu, gamma))
            report("codes", sweep + 1, self.max_iter, trace[-1])
            if sweep and trace[-2] - trace[-1] < self.tol * trace[-1]:
                B = before if trace[-1] > trace[-2] else B
                break
        functions = {name: ridge_regression(values, B, ridge[name]) for name, values in K.items()}
        return B, {"functions_": functions, "maps_": maps, "objective_": trace}


def rotate(K: dict[str, Array], R: dict[str, Array], mu: dict[str, float]) -> Array:
    """Return Σ μ K Rᵀ, the features of both modalities in the space of the codes."""
    first, *others = (mu[name] * (values @ R[name].T) for name, values in K.items())
    for other in others:
        first += other
    return np.asarray(first)


def relaxed_labels(T: Array, L: Array) -> Array:
    """Return the relaxed labels nearest to T: at least 1 where L is true, at most 0 elsewhere."""
    return np.where(L, np.maximum(T, 1), np.minimum(T, 0))


def objective(
    B: Array, T: Array, C: Array, R: dict[str, Array], rotated: Array, mu: dict[str, float], gamma: float
) -> float:
    """Return the objective less the constant Σ μ‖K‖²; ``rotated`` is Σ μ K Rᵀ.

    ‖K − TCR‖² = ‖K‖² − 2⟨KRᵀ, TC⟩ + ⟨CᵀTᵀTC, RRᵀ⟩.
    """
    code = T @ C
    square = code.T @ code
    sizes = sum(mu[name] * float(np.vdot(square, rows @ rows.T)) for name, rows in R.items())
    return squared(B - code) - 2 * float(np.vdot(rotated, code)) + sizes + gamma * squared(T)
