r"""RUCMH: Robust Unsupervised Cross-Modal Hashing (Cheng, Jing & Ng, ACM TOIS 2020). A re-implementation.

Neither the authors' code nor the full text of the paper was available. Known is that hash functions of each modality
are fitted with a robust ℓ2,1 loss, jointly with a subspace that preserves the features and in which each modality is
reconstructed from the other, with any share of pairs. The equations below are reconstructed from that and are not the
authors'; results may differ from theirs.

==================  ==========================  ===========================================================
symbol              here (rows are items)       is
==================  ==========================  ===========================================================
:math:`X_v`         ``view.phi`` (n_v, d)       centred features, scaled: the top r variances sum to r
:math:`V_v`         ``view.V`` (n_v, r)         subspace; VᵀV = nI, Vᵀ1 = 0, which prevents collapse
:math:`B_v`         ``view.B`` (n_v, r)         codes, ±1
:math:`D_v`         ``D`` (r, d)                dictionary, X ≈ V D
:math:`W_v`         ``view.W`` (d, r)           hash functions
:math:`\Omega_v`    ``view.omega`` (n_v,)       weights of the ℓ2,1 loss, 1 / (2‖b − xW‖)
:math:`C_{vo}`      ``C`` (n_v, anchors)        reconstruction of v from anchors of another modality o
:math:`a, b, g, h`  ``features``, ``quantization``, ``reconstruction``, ``pairing``
==================  ==========================  ===========================================================

A least-squares C would transfer no information, because V_o is orthogonal and any V_v is reconstructed almost perfectly
from all of V_o, or from more anchors than bits. C is therefore sparse, the mean of the nearest anchors. Nearest anchors
across modalities require aligned subspaces. Known pairs align them, at the start (V is free up to a rotation; the one
that brings pairs together is taken) and later by h‖V_v − V_o‖².

**Without pairs nothing aligns them.** Unlabelled, unpaired features do not determine which directions of two modalities
correspond; every rotation of one subspace fits equally well. Directions are then matched by the order of their
variances and the sign of their skewness. Expect chance level between modalities on real data; retrieval within a
modality works. (On Wiki, unpaired, image-to-text mAP is .12 to .13 where random codes have .11, but queries with
shuffled labels score the same.)

The weights a, b and g are round values without a source; h was chosen on the queries of Wiki.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from modalhash.core.blocks import FeatureBlocks, row_slices
from modalhash.core.codes import pack_signs
from modalhash.core.features import AnchorKernel, FeatureMap, Linear, anchors_by_modality
from modalhash.core.linalg import (
    RidgeFactor,
    balanced_procrustes,
    orthogonal_procrustes,
    principal_directions,
    sign,
    squared,
)
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, root_seed, row_keys, stream
from modalhash.core.typing import Array, PerModality
from modalhash.core.validation import Count, NonNegative, Positive, per_modality
from modalhash.methods.base import CrossModalHasher, Training
from modalhash.methods.cmfh import CACHE, cross

PCA_SAMPLE = 5000
"""Most items from which the principal directions are computed."""


@dataclass(eq=False, repr=False)
class RUCMH(CrossModalHasher):
    r"""Unsupervised codes with or without pairs: a re-implementation of Cheng et al. (2020).

    Reconstructed (see the module); not the authors' equations.

    .. math::
        \sum_v \lVert B_v - X_vW_v\rVert_{2,1} + a\lVert X_v - V_vD_v\rVert^2 + b\lVert B_v - V_v\rVert^2
        + g\sum_{o\neq v}\lVert V_v - C_{vo}A_o\rVert^2 + h\sum_{o<v}\lVert V_v^p - V_o^p\rVert^2

    subject to B = ±1, VᵀV = nI, Vᵀ1 = 0; A are anchor rows of V, p the rows in a pair. The terms of A are held fixed
    while V is updated, so the objective may increase in a step.

    Without pairs expect retrieval between modalities at chance (see the module). On Wiki (16 bits, learned database;
    chance is .11) mAP is .13 and .11 without pairs, .15 and .14 with 100 of 2,173, .16 and .20 with 500, and .19 and
    .39 with all.

    Parameters
    ----------
    features, quantization, reconstruction, pairing : a, b, g, h
    ridge : of W
    kernel : "rbf", or None for the features themselves (rows of length 1); or a dict by modality
    n_references : most anchors in V from which other modalities are reconstructed
    n_neighbors : nearest references whose mean is the reconstruction
    max_iter : iterations
    n_bits, n_anchors, random_state : as for :class:`~modalhash.methods.base.CrossModalHasher`
    """

    supervised: ClassVar[bool] = False

    n_bits: int = 64
    _: KW_ONLY
    features: NonNegative = 0.01
    quantization: Positive = 1.0
    reconstruction: NonNegative = 1.0
    pairing: NonNegative = 10.0
    ridge: Positive = 1.0
    kernel: PerModality[Literal["rbf", None]] = "rbf"
    n_anchors: PerModality[int] = 500
    n_references: Count = 300
    n_neighbors: Count = 5
    max_iter: Count = 30
    random_state: RandomState = None

    def _fit(self, data: Training, report: Reporter) -> dict[str, Any]:
        seed = root_seed(self.random_state)
        maps = self._feature_maps(data, seed)
        views = {name: self._view(name, data, maps[name], seed) for name in data.X}
        align(list(views.values()))
        trace = []
        for step in range(1, self.max_iter + 1):
            value = 0.0
            for view in views.values():
                others = [other for other in views.values() if other is not view]
                update_W(view, self.ridge)  # IRLS
                value += update_V(view, others, self)
                value += update_B(view, self.quantization)
            trace.append(value)
            report("codes", step, self.max_iter, value)
        return {
            "codes_": {name: pack_signs(view.B) for name, view in views.items()},
            "maps_": maps,
            "functions_": {name: np.ascontiguousarray(view.W * view.scale) for name, view in views.items()},
            "objective_": trace,
        }

    def _feature_maps(self, data: Training, seed: int) -> dict[str, FeatureMap]:
        kernels = per_modality(self.kernel, data.X, "kernel")
        anchors = anchors_by_modality(self.n_anchors, data.X)
        return {
            name: Linear(rows="centred unit", dtype="float64")
            if kernel is None
            else AnchorKernel(anchors[name], dtype="float64", random_state=seed)
            for name, kernel in kernels.items()
        }

    def _view(self, name: str, data: Training, feature_map: FeatureMap, seed: int) -> RUCMHView:
        """Return the initial state: whitened principal components, and anchors drawn by content."""
        X, column = data.X[name], list(data.X).index(name)
        phi = feature_map.fit_blocks(X, memory_limit=CACHE // len(data.X))
        keys = row_keys(X, seed)
        order, rng = np.argsort(keys, kind="stable"), stream(seed, keys)
        W = principal_directions(phi.take(order[:PCA_SAMPLE]), data.n_bits)
        scores = np.zeros((phi.n, data.n_bits))
        scores[:, : W.shape[1]] = phi.project(W)
        scale = np.sqrt(data.n_bits * phi.n / squared(scores))
        anchors = order[: self.n_references]
        pairs = np.empty(0, dtype=int) if data.pairs is None else data.pairs[:, column]
        square = scale**2 * sum(squared(block) for _, block in phi)
        return RUCMHView(phi, balanced_procrustes(scores, rng), rng, anchors, float(scale), float(square), pairs)


@dataclass
class RUCMHView:
    """State of one modality."""

    phi: FeatureBlocks
    V: Array
    rng: np.random.Generator
    anchors: Array  # rows of V that others are reconstructed from
    scale: float  # of the features
    square: float  # ‖X‖²
    pairs: Array  # rows in a pair; entry k of every modality is pair k
    B: Array = field(init=False)
    W: Array = field(init=False)
    omega: Array = field(init=False)

    def __post_init__(self) -> None:
        self.B = sign(self.V)
        self.omega = np.full(len(self.V), 0.5 / np.sqrt(self.V.shape[1]))

    def blocks(self) -> Iterator[tuple[slice, Array]]:
        for rows, block in self.phi:
            yield rows, block * self.scale


def align(views: list[RUCMHView]) -> None:
    """Rotate V of every modality to bring pairs together; without pairs, make its skewness ≥ 0."""
    first = views[0]
    for view in views:
        if len(view.pairs) == 0:
            view.V *= np.where(np.sum(view.V**3, axis=0) < 0, -1.0, 1.0)
        elif view is not first:
            view.V = view.V @ orthogonal_procrustes(view.V[view.pairs].T @ first.V[first.pairs])
        view.B = sign(view.V)


def update_W(view: RUCMHView, ridge: float) -> None:
    """Set W = (XᵀΩX + ridge I)⁻¹ XᵀΩB, then Ω = 1 / (2‖b − xW‖)."""
    d, r = view.phi.width, view.B.shape[1]
    gram, right = np.zeros((d, d)), np.zeros((d, r))
    for rows, X in view.blocks():
        weighted = X * view.omega[rows, None]
        gram += weighted.T @ X
        right += weighted.T @ view.B[rows]
    view.W = RidgeFactor(gram, ridge).solve(right)
    residuals = np.linalg.norm(view.B - view.phi.project(view.W * view.scale), axis=1)
    view.omega = 1 / (2 * residuals + 1e-8)


def update_V(view: RUCMHView, others: list[RUCMHView], w: RUCMH) -> float:
    """Set the balanced V nearest to the pull of all terms; return the terms of the objective in V but not B.

    By VᵀV = nI every term is linear in V, except that of the pairs if not all items are paired.
    """
    n = len(view.V)
    D = cross(view.phi, view.V).T * (view.scale / n)
    rebuilt = view.phi.project(np.ascontiguousarray(D.T) * view.scale)  # XDᵀ
    means = [nearest_mean(view.V, other.V[other.anchors], w.n_neighbors) for other in others]
    Z = w.features * rebuilt + w.quantization * view.B
    for other, mean in zip(others, means, strict=True):
        Z += w.reconstruction * mean
        Z[view.pairs] += w.pairing * other.V[other.pairs]
    view.V = balanced_procrustes(Z, view.rng)
    value = w.features * (view.square - 2 * float(np.vdot(rebuilt, view.V)) + n * squared(D))
    for other, mean in zip(others, means, strict=True):
        value += w.reconstruction * squared(view.V - mean)
        apart = view.V[view.pairs] - other.V[other.pairs]
        value += 0.5 * w.pairing * squared(apart)  # the other half comes with the other modality
    return value


def nearest_mean(V: Array, anchors: Array, neighbors: int) -> Array:
    """Return C A, the mean of the nearest anchors of every row."""
    k = min(neighbors, len(anchors))
    half = 0.5 * np.einsum("ij,ij->i", anchors, anchors)
    out = np.empty_like(V)
    for rows in row_slices(len(V), max(1, 2**22 // len(anchors))):
        nearest = np.argpartition(half - V[rows] @ anchors.T, k - 1, axis=1)[:, :k]
        out[rows] = anchors[nearest].mean(axis=1)
    return out


def update_B(view: RUCMHView, quantization: float) -> float:
    """Set B = sgn(bV + ΩXW); return the terms of the objective in B."""
    projected = view.phi.project(view.W * view.scale)
    view.B = sign(quantization * view.V + view.omega[:, None] * projected)
    loss = float(np.linalg.norm(view.B - projected, axis=1).sum())
    return loss + quantization * squared(view.B - view.V)
