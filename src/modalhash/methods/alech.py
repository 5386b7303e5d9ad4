r"""ALECH: Adaptive Label correlation based asymmEtric Cross-modal Hashing (Li et al., IEEE TKDE 2023).

A balanced, uncorrelated latent representation V of the pairs predicts their labels, smoothed by jointly learned label
correlations, and its products with the codes B reproduce the similarity by labels. The hash functions are then fitted
to both codes and similarity.

========================  =========================  ====================================================
paper (transposed)        here (rows are items)      is
========================  =========================  ====================================================
:math:`B`                 ``B`` (n, r)               codes of the pairs, ±1
:math:`V`                 ``V`` (n, r)               latent representation, VᵀV = nI, Vᵀ1 = 0
:math:`L`                 ``L`` (n, c)               labels, 0/1
:math:`\tilde L`          ``G`` (n, c)               labels with rows of length 1
:math:`S`                 never formed               2GGᵀ − 11ᵀ
:math:`P`                 ``P`` (c, c)               correlations of labels
:math:`W`                 ``W`` (r, c)               from V to the smoothed labels LP
:math:`\phi(X), \phi(Y)`  ``phi[name]`` (n, m)       kernel features, centred
:math:`F_x, F_y`          ``functions_[name]``       features → codes, (m, r)
:math:`\alpha, \beta, \lambda, \eta`  ``similarity``, ``quantization``, ``code_weight``, ``regularization``
========================  =========================  ====================================================

Departures from the authors' code: the V-step, as in :mod:`modalhash.methods.batch`; sgn(0) = −1 in every sweep (theirs
only at the start); anchors depend on the seed (theirs are drawn before it is set). A comment in their code puts λ on
the similarity, its formula on the codes; the formula is used here. As in their code, the codes returned are those
before the last V-step, and the hash functions use a pseudo-inverse instead of a ridge, which brings the hashed codes of
training items closest to their learned codes.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np

from modalhash.core.features import pair_features
from modalhash.core.linalg import (
    RidgeFactor,
    balanced_procrustes,
    principal_directions,
    sign,
    similarity_times,
    squared,
    squared_similarity,
    unit_rows,
)
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, root_seed
from modalhash.core.typing import Array, Matrix, PerModality
from modalhash.core.validation import Count, NonNegative
from modalhash.methods.base import PairCodes, PairedHasher

ANCHORS = (500, 1000)
"""Numbers of anchors in the authors' code, for the first modality (image) and the second (text)."""
START_ROWS = 2000
"""Pairs from which the principal directions for the start of V are computed."""


@dataclass(eq=False, repr=False)
class ALECH(PairedHasher):
    r"""Asymmetric codes of pairs with learned label correlations, after Li et al. (2023).

    Minimises

    .. math::
        \lVert VW - LP\rVert^2 + \lVert L - LP\rVert^2 + \beta\lVert B - V\rVert^2 + \alpha\lVert VB^T - rS\rVert^2
        + \eta\left(\lVert W\rVert^2 + \lVert P\rVert^2\right)

    subject to B = ±1, VᵀV = nI, Vᵀ1 = 0; then, for the hash functions F of each modality,

    .. math::
        \lVert \phi FB^T - rS\rVert^2 + \lambda\lVert B - \phi F\rVert^2

    Parameters
    ----------
    similarity : α, weight of the similarity by labels
    quantization : β, how closely codes follow the latent representation
    code_weight : λ, weight of the codes, relative to the similarity, in the hash functions
    regularization : η, of label correlations and label predictions
    ridge : of the hash functions, as a share of the trace of φᵀφ. 0 is the authors' pseudo-inverse
    n_anchors : most anchors of the kernel; or a dict by modality. None is 500 for the first and 1000 for the second
    max_iter : sweeps
    n_bits, kernel, random_state : as for :class:`~modalhash.methods.base.CrossModalHasher`

    Attributes
    ----------
    label_correlations_ : P, (classes, classes)
    """

    n_bits: int = 64
    _: KW_ONLY
    similarity: NonNegative = 1e-4
    quantization: NonNegative = 1e-3
    code_weight: NonNegative = 1e4
    regularization: NonNegative = 1e-4
    ridge: NonNegative = 0.0
    kernel: PerModality[str | None] = "rbf"
    n_anchors: PerModality[int] | None = None
    max_iter: Count = 10
    random_state: RandomState = None

    def _fit_pairs(self, X: dict[str, Matrix], L: Array, n_bits: int, report: Reporter) -> PairCodes:
        alpha, beta, lam, eta = self.similarity, self.quantization, self.code_weight, self.regularization
        seed = root_seed(self.random_state)
        anchors = dict(zip(X, ANCHORS, strict=True)) if self.n_anchors is None else self.n_anchors
        maps, phi = pair_features(X, L, self.kernel, anchors, seed)
        L, G = L.astype(np.float64), unit_rows(L)
        LtL = L.T @ L
        to_P = RidgeFactor(2 * LtL, eta)
        constant = alpha * n_bits**2 * squared_similarity(G, G)
        report("features", 1, 1)

        rng = np.random.default_rng([seed, 0])
        V = start(list(phi.values())[-1], n_bits, rng)  # from the text; not feasible before the first V-step
        LtV = L.T @ V
        W = RidgeFactor(V.T @ V, lam).solve(LtV.T)  # with P = I
        trace: list[float] = []
        for sweep in range(self.max_iter):
            B = sign(pull(V, G, alpha, beta))  # 1.
            P = to_P.solve(LtV @ W + LtL)  # 2.
            W = RidgeFactor(V.T @ V, eta).solve(LtV.T @ P)  # 3.
            V = balanced_procrustes(L @ (P @ W.T) + pull(B, G, alpha, beta), rng)  # 4.
            LtV = L.T @ V
            trace.append(constant + objective(V, B, W, P, LtV, LtL, G, (alpha, beta, eta)))
            report("codes", sweep + 1, self.max_iter, trace[-1])

        functions = {name: hash_functions(F, B, G, lam, self.ridge) for name, F in phi.items()}
        return B, {"functions_": functions, "maps_": maps, "label_correlations_": P, "objective_": trace}


def start(F: Array, n_bits: int, rng: np.random.Generator) -> Array:
    """Return features along principal directions of a sample, padded with random columns."""
    rows = rng.permutation(len(F))[:START_ROWS]
    V = F @ principal_directions(F[rows], n_bits)
    return np.hstack([V, rng.standard_normal((len(F), n_bits - V.shape[1]))])


def pull(X: Array, G: Array, alpha: float, beta: float) -> Array:
    """Return αrSX + βX, the pull of B on V and of V on B."""
    return alpha * X.shape[1] * similarity_times(G, G, X) + beta * X


def objective(
    V: Array, B: Array, W: Array, P: Array, LtV: Array, LtL: Array, G: Array, weights: tuple[float, float, float]
) -> float:
    """Return the objective with weights α, β and η for feasible V, less the constant αr²‖S‖².

    By VᵀV = nI, ‖VW − LP‖² = n‖W‖² − 2⟨LᵀVW, P⟩ + ⟨LᵀLP, P⟩ and ‖VBᵀ − rS‖² = n²r − 2r⟨SB, V⟩ + r²‖S‖².
    """
    alpha, beta, eta = weights
    n, r = B.shape
    unexplained = np.eye(len(P)) - P
    prediction = n * squared(W) - 2 * float(np.vdot(LtV @ W, P)) + float(np.vdot(LtL @ P, P))
    smoothing = float(np.vdot(LtL @ unexplained, unexplained))
    similarity = n * n * r - 2 * r * float(np.vdot(similarity_times(G, G, B), V))
    return prediction + smoothing + beta * squared(B - V) + alpha * similarity + eta * (squared(W) + squared(P))


def hash_functions(F: Array, B: Array, G: Array, lam: float, ridge: float) -> Array:
    """Return F = (φᵀφ + ρI)⁺ φᵀ(rSB + λB) (BᵀB + λI)⁻¹."""
    targets = B.shape[1] * similarity_times(G, G, B) + lam * B
    targets = RidgeFactor(B.T @ B, lam).solve(targets.T).T
    gram = F.T @ F
    gram[np.diag_indices_from(gram)] += ridge * float(np.trace(gram))
    cut = len(gram) * np.finfo(float).eps  # as in MATLAB
    return np.asarray(np.linalg.pinv(gram, rcond=cut, hermitian=True) @ (F.T @ targets))
