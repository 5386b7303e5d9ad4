r"""SRLCH: Subspace Relation Learning for Cross-modal Hashing (Liu et al., DASFAA 2018).

The codes of the pairs are regressed on their labels and, weakly, on the kernel features of both modalities. All three
regressions have the codes as targets, so that every step, including the discrete one, has a closed form and the
regressions on features are the hash functions.

============================  =========================  ==================================================
paper                         here                       is
============================  =========================  ==================================================
:math:`B`                     ``B`` (n, r)               codes of the pairs, ±1
:math:`Y`                     ``Y`` (n, c)               labels, 0/1
:math:`V, T`                  ``phi[name]`` (n, m + 1)   kernel features and a column of ones, by modality
:math:`W`                     ``W`` (c, r)               labels → codes
:math:`P_v, P_t`              ``P[name]`` (m + 1, r)     features → codes: the hash functions
:math:`\mu_v, \mu_t`          ``feature_weight``
:math:`\alpha_v, \beta_t`     ``feature_ridge``
:math:`\lambda`               ``label_ridge``
:math:`\sigma`                ``sigma``                  exp(−d² / 2σ²) between rows of length 1
============================  =========================  ==================================================

Departures from the authors' code: sgn(0) = −1 (theirs keeps 0), and the sweeps stop once no bit changes. As in their
code, the hash functions are those of the last sweep, fitted to the codes before its B-step.

The codes are a refined random projection of the labels: they vary with the seed, and no term balances the bits, which
become more unbalanced with every sweep. After many sweeps the bits of queries are nearly constant. On IAPR TC-12 at 32
bits an image query's mean bit is about ±.32 after 5 sweeps and ±.82 after 50, and learned text→image mAP is .42 after
5, .44 after 10 and .39 after 50. The authors' code degrades in the same way. The default is the 10 of their demo.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np

from modalhash.core.features import pair_features
from modalhash.core.linalg import RidgeFactor, sign, squared
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, root_seed
from modalhash.core.typing import Array, Matrix, PerModality
from modalhash.core.validation import Count, NonNegative, Positive, per_modality
from modalhash.methods.base import PairCodes, PairedHasher

WEIGHTS, RIDGES = (0.1, 1e-5), (0.01, 0.1)
"""μ and (α, β) of the authors' code for the first modality (image) and the second (text)."""


@dataclass(eq=False, repr=False)
class SRLCH(PairedHasher):
    r"""Codes of pairs regressed on labels and on features, after Liu et al. (2018).

    Minimises

    .. math::
        \lVert B - YW\rVert^2 + \lambda\lVert W\rVert^2
        + \sum_{m\in\{v,t\}} \mu_m\left(\lVert B - \phi_m P_m\rVert^2 + \alpha_m\lVert P_m\rVert^2\right)

    subject to B = ±1. The order of the modalities matters: by default the second has hardly any weight.

    Parameters
    ----------
    feature_weight : μ, or a dict by modality; None is 0.1 for the first modality and 1e-5 for the second
    feature_ridge : α, or a dict by modality; None is 0.01 for the first modality and 0.1 for the second
    label_ridge : λ
    kernel : "paper", :math:`\exp(-\lVert x - a\rVert^2/2\sigma^2)` between rows that are centred and of length 1;
        another name in :data:`modalhash.core.features.KERNELS` or "auto"; or a dict by modality
    sigma : width of the kernel "paper"
    n_anchors : most anchors of the kernel; or a dict by modality. The authors take 5000 on NUS-WIDE
    max_iter : most sweeps. The authors' demo has 10; by data set they recommend 5 (Wiki) to 50 (MIRFlickr)
    n_bits, random_state : as for :class:`~modalhash.methods.base.CrossModalHasher`
    """

    n_bits: int = 64
    _: KW_ONLY
    feature_weight: PerModality[NonNegative] | None = None
    feature_ridge: PerModality[NonNegative] | None = None
    label_ridge: NonNegative = 0.1
    kernel: PerModality[str | None] = "paper"
    sigma: Positive = 0.6
    n_anchors: PerModality[int] = 500
    max_iter: Count = 10
    random_state: RandomState = None

    def _fit_pairs(self, X: dict[str, Matrix], L: Array, n_bits: int, report: Reporter) -> PairCodes:
        mu = by_position(self.feature_weight, X, "feature_weight", WEIGHTS)
        alpha = by_position(self.feature_ridge, X, "feature_ridge", RIDGES)
        lam, seed = self.label_ridge, root_seed(self.random_state)
        paper = {"bandwidth": float(self.sigma) ** 2, "rows": "centred unit"}
        maps, phi = pair_features(X, L, self.kernel, self.n_anchors, seed, centred=False, bias=True, paper=paper)
        Y = L.astype(np.float64)
        to_P = {name: RidgeFactor(F.T @ F, alpha[name]) for name, F in phi.items()}  # H_v, H_t
        to_W = RidgeFactor(Y.T @ Y, lam)  # H_y
        report("features", 1, 1)

        B = sign(np.random.default_rng([seed, 0]).standard_normal((len(Y), n_bits)))
        trace: list[float] = []
        for sweep in range(self.max_iter):
            P = {name: to_P[name].solve(F.T @ B) for name, F in phi.items()}  # 1. P_v, P_t
            W = to_W.solve(Y.T @ B)  # 2. W
            fits = [(1.0, Y @ W), *((mu[name], F @ P[name]) for name, F in phi.items())]
            before, B = B, update_B(fits)  # 3. B
            penalty = lam * squared(W) + sum(mu[name] * alpha[name] * squared(P[name]) for name in phi)
            trace.append(sum(weight * squared(B - fit) for weight, fit in fits) + penalty)
            report("codes", sweep + 1, self.max_iter, trace[-1])
            if np.array_equal(B, before):
                break
        functions = {name: np.ascontiguousarray(values) for name, values in P.items()}
        return B, {"functions_": functions, "maps_": maps, "objective_": trace}


def update_B(fits: list[tuple[float, Array]]) -> Array:
    """Return the codes nearest to all weighted fits, sgn(YW + μ_v V P_v + μ_t T P_t)."""
    (weight, fit), *others = fits
    total = weight * fit
    for weight, fit in others:
        total += weight * fit
    return sign(total)


def by_position(
    value: PerModality[float] | None, X: dict[str, Matrix], parameter: str, default: tuple[float, float]
) -> dict[str, float]:
    """Return numbers by modality; None is the default of the first and second modality."""
    chosen = dict(zip(X, default, strict=True)) if value is None else value
    return per_modality(chosen, X, parameter)
