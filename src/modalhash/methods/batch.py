r"""BATCH: scalaBle Asymmetric discreTe Cross-modal Hashing (Wang et al., IEEE TKDE 2020).

A balanced, uncorrelated latent representation V of the pairs reconstructs the features of both modalities and the
labels, and its products with the codes B reproduce the similarity by labels. Because this product is asymmetric, B has
a closed form. The hash functions are ridge regressions to B.

========================  =========================  ====================================================
paper                     here                       is
========================  =========================  ====================================================
:math:`B`                 ``B`` (n, r)               codes of the pairs, ±1
:math:`V`                 ``V`` (n, r)               latent representation, VᵀV = nI, Vᵀ1 = 0
:math:`L`                 ``targets[-1]`` (n, c)     labels, 0/1
:math:`G`                 ``G`` (n, c)               labels with rows of length 1; S = GGᵀ is never formed
:math:`\phi(X), \phi(Y)`  ``targets[0, 1]`` (n, m)   kernel features, centred
:math:`U_x, U_y, U_l`     ``U`` (r, m or c)          reconstructions: target ≈ V U
:math:`W_t`               ``functions_[name]``       features → codes, (m, r)
:math:`\eta_1, \eta_2`    ``feature_weight``
:math:`\eta_0`            ``label_weight``
:math:`\omega`            ``quantization``
:math:`\xi`               ``ridge``
========================  =========================  ====================================================

Departures from the authors' code: in the V-step (:func:`modalhash.core.linalg.balanced_procrustes`) the rank test is
relative, an ill-conditioned Z is factorised by an accurate SVD instead of its Gram matrix, and missing directions are
drawn orthogonal to the others and to the mean. sgn(0) = −1 in every sweep, not only after the last one.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np

from modalhash.core.features import pair_features
from modalhash.core.linalg import RidgeFactor, balanced_procrustes, ridge_regression, sign, squared, unit_rows
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, root_seed
from modalhash.core.typing import Array, Matrix, PerModality
from modalhash.core.validation import Count, NonNegative, per_modality
from modalhash.methods.base import PairCodes, PairedHasher

ANCHORS = (500, 1000)
"""Numbers of anchors in the authors' code, for the first modality (image) and the second (text)."""
LATENT_RIDGE = 1e-3
"""Ridge of the U-step: it makes the first one solvable and is negligible next to VᵀV = nI in the others."""


@dataclass(eq=False, repr=False)
class BATCH(PairedHasher):
    r"""Asymmetric codes of pairs from labels and features, after Wang et al. (2020).

    Minimises

    .. math::
        \lVert rS - VB^T\rVert^2 + \omega\lVert B - V\rVert^2 + \eta_1\lVert\phi(X) - VU_x\rVert^2
        + \eta_2\lVert\phi(Y) - VU_y\rVert^2 + \eta_0\lVert L - VU_l\rVert^2

    subject to B = ±1, VᵀV = nI, Vᵀ1 = 0, and a ridge of 1e-3 on every U.

    Parameters
    ----------
    feature_weight : η1 and η2, reconstruction of the features; or a dict by modality
    label_weight : η0, reconstruction of the labels
    quantization : ω, how closely codes follow the latent representation
    kernel : "rbf", another name in :data:`modalhash.core.features.KERNELS`, or "auto", chosen by how well it ranks
        held-out items; or a dict by modality
    n_anchors : anchors of the kernel, capped at the number of pairs; or a dict by modality. None is 500 for
        the first modality and 1000 for the second
    ridge : ξ of the hash functions; or a dict by modality
    max_iter : sweeps
    n_bits, random_state : as for :class:`~modalhash.methods.base.CrossModalHasher`

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> Y = np.eye(4, dtype=int)[rng.integers(4, size=200)]
    >>> X = {name: Y @ rng.normal(size=(4, d)) + rng.normal(size=(200, d)) for name, d in (("image", 9), ("text", 6))}
    >>> model = BATCH(16, n_anchors=100, random_state=0).fit(X, {"image": Y, "text": Y}, pairs="aligned")
    >>> model.transform({"text": X["text"][:5]})["text"].shape
    (5, 2)
    """

    n_bits: int = 64
    _: KW_ONLY
    feature_weight: PerModality[NonNegative] = 0.05
    label_weight: NonNegative = 0.9
    quantization: NonNegative = 0.01
    kernel: PerModality[str | None] = "rbf"
    n_anchors: PerModality[int] | None = None
    ridge: PerModality[NonNegative] = 0.01
    max_iter: Count = 6
    random_state: RandomState = None

    def _fit_pairs(self, X: dict[str, Matrix], L: Array, n_bits: int, report: Reporter) -> PairCodes:
        weights = [*per_modality(self.feature_weight, X, "feature_weight").values(), self.label_weight]
        omega, ridge = self.quantization, per_modality(self.ridge, X, "ridge")
        seed = root_seed(self.random_state)
        anchors = dict(zip(X, ANCHORS, strict=True)) if self.n_anchors is None else self.n_anchors
        maps, phi = pair_features(X, L, self.kernel, anchors, seed)
        targets, G = [*phi.values(), L.astype(np.float64)], unit_rows(L)
        constant = n_bits**2 * squared(G.T @ G) + sum(eta * squared(F) for eta, F in zip(weights, targets, strict=True))
        report("features", 1, 1)

        rng = np.random.default_rng([seed, 0])
        B = sign(rng.standard_normal((len(L), n_bits)))
        V = rng.standard_normal((len(L), n_bits))  # infeasible until the first V-step
        trace: list[float] = []
        for sweep in range(self.max_iter):
            U = update_U(V, targets)  # step 1
            drawn = reconstruction_pull(targets, U, weights)
            V = balanced_procrustes(pull(B, G, omega) + drawn, rng)  # step 2
            B = sign(pull(V, G, omega))  # step 3
            trace.append(constant + objective(V, B, U, G, drawn, omega, weights))
            report("codes", sweep + 1, self.max_iter, trace[-1])

        functions = {name: np.ascontiguousarray(ridge_regression(F, B, ridge[name])) for name, F in phi.items()}
        return B, {"functions_": functions, "maps_": maps, "objective_": trace}


def update_U(V: Array, targets: list[Array]) -> list[Array]:
    """Return U = (VᵀV + 1e-3 I)⁻¹ Vᵀ F for every target F."""
    factor = RidgeFactor(V.T @ V, LATENT_RIDGE)
    return [factor.solve(V.T @ F) for F in targets]


def reconstruction_pull(targets: list[Array], U: list[Array], weights: list[float]) -> Array:
    """Return Σ η F Uᵀ, the part of Z that comes from the reconstructions."""
    total = np.zeros((targets[0].shape[0], U[0].shape[0]))
    for F, u, eta in zip(targets, U, weights, strict=True):
        total += eta * (F @ u.T)
    return total


def pull(X: Array, G: Array, omega: float) -> Array:
    """Return rSX + ωX, with S = GGᵀ as two thin products for X = B in the V-step and X = V in the B-step."""
    return X.shape[1] * (G @ (G.T @ X)) + omega * X


def objective(V: Array, B: Array, U: list[Array], G: Array, drawn: Array, omega: float, weights: list[float]) -> float:
    """Return the objective for feasible V without the constants r²‖S‖² and Σ η‖F‖²; ``drawn`` is Σ η F Uᵀ.

    By VᵀV = nI, ‖rS − VBᵀ‖² = r²‖S‖² − 2r⟨GᵀV, GᵀB⟩ + n²r and ‖F − VU‖² = ‖F‖² − 2⟨FUᵀ, V⟩ + n‖U‖².
    """
    n, r = B.shape
    similarity = n * n * r - 2 * r * float(np.vdot(G.T @ V, G.T @ B))
    quantization = squared(B - V)
    sizes = sum(eta * squared(u) for eta, u in zip(weights, U, strict=True))
    return similarity + omega * quantization - 2 * float(np.vdot(drawn, V)) + (n + LATENT_RIDGE) * sizes
