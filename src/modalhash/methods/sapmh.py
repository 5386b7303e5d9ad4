r"""SAPMH and UAPMH: Adaptive Partial Multi-view Hashing (Zheng et al., IEEE TMM 2021).

Every item has one latent row, from which the features of the views it has are rebuilt and of which its code is
a linear function; so items with both views tie the modalities together and items with one view learn along.
SAPMH adds that codes shall reproduce the similarity by labels, which ties the modalities even without any
pair; UAPMH has no labels and needs pairs for that.

==================  =================================  ==================================================
paper               here (rows are items)              is
==================  =================================  ==================================================
:math:`\Phi_m`      ``view.phi`` (n_m, a)              RBF similarities to anchors, not centred
:math:`H`           ``H`` (N, k)                       latent rows: pairs, then what is in no pair
:math:`H^{(m)}`     ``H[view.rows]``                   those that face modality m
:math:`U_m`         ``view.U`` (k, a)                  Φ ≈ H U
:math:`\mu_m`       ``view.mu``                        1 / (2‖Φ − HU‖): norms are not squared, no weight to tune
:math:`W`           ``W`` (k, r)                       codes ≈ H W
:math:`B`           ``B`` (N, r)                       codes, ±1
:math:`S`           :class:`._sapmh_codes.Similarity`  2LLᵀ − o11ᵀ, raw 0/1 labels; low-rank, never N × N
:math:`\theta`      ``quantization``                   ‖B − HW‖²
:math:`\rho`        ``semantic``                       ‖rS − B(HW)ᵀ‖²
:math:`\lambda`     ``ridge``                          ‖U‖²; in SAPMH ‖H‖², in UAPMH ‖W‖², too
==================  =================================  ==================================================

The paper hashes an item from all its views together; across modalities an item has one view, and is encoded
by dropping the others: b = sgn(hW) with h from its own Φ alone.

Departures. ``SAPMH(variant="authors")`` is the released code with its slips (:mod:`._sapmh_authors`), its weights
and its random start. With them the codes never leave that start on Wiki: chance, as in the table of the AMSH
paper. The default ``"balanced"`` takes the updates that the objective asks for, and brings all terms to one scale:

- λ weighs ‖H‖², too: without it H grows, U shrinks and λ comes to nothing. Together they drop latent dimensions that
  explain less than 2λ of what is left (a nuclear norm), whatever the scale of the features.
- θ and ρ are in shares of the feature term: θ‖B‖² and ρ‖rS‖² are ``quantization`` and ``semantic`` times Σ‖Φ − mean‖.
- θ has to stay far below ρ, or it holds B at its random start, where ‖B − HW‖ is small already.
- o is the mean of 2LLᵀ instead of 1. With ten classes nine of ten entries of S would be −1, and most bits constant.
- B is solved bit by bit, exactly, instead of by multipliers with penalties unrelated to ρ.
- h of a single view is drawn towards the training items' h (``encoder_ridge``): k dimensions from one view are
  more than it can tell.

The balanced weights were chosen on the queries of Wiki and on a quarter of those of IAPR TC-12, so what they give there
is flattered by that choice; other data are the fairer test.

In both, μ of an encoded item is that of training (the code refreshes it on the batch, and for the second view from
the first's features), anchors are drawn per modality, and the encoder starts from b = 0 instead of random b.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np

from modalhash.core.blocks import FeatureBlocks
from modalhash.core.codes import pack_signs
from modalhash.core.features import FeatureMap
from modalhash.core.kernel_choice import kernel_maps
from modalhash.core.linalg import RidgeFactor, sign, squared
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, root_seed
from modalhash.core.typing import Array, Matrix, PerModality
from modalhash.core.validation import choice, integer, number, optional
from modalhash.methods._factors import CACHE, cross
from modalhash.methods.base import CrossModalHasher, Training

# -- What SAPMH and UAPMH share: one latent row per item, seen through the views that the item has.
#
# A pair is one item with a row of H for all its views; what is in no pair is an item with one view. So H has
# n_c + n_1 + n_2 rows (any number of modalities), the pairs first, and each modality knows which of them are its.

PROXIMAL = 1e-6
"""Weight of ‖H − H_old‖² and ‖W − W_old‖², as a share of the mean eigenvalue: more latent dimensions than the
data can fill stay where they are. A proximal step still never raises the objective."""
SMALLEST = 1e-12
"""A residual below this share of ‖Φ‖² is rounding noise."""
ENCODER_ITER = 9


@dataclass
class PartialView:
    """State of one modality."""

    phi: FeatureBlocks  # Φ (n, a)
    rows: Array  # the row of H that faces each item
    square: float  # ‖Φ‖²
    spread: float  # ‖Φ − mean‖
    ridge: float = 0.0  # λ
    mu: float = 0.5  # μ
    U: Array = field(default_factory=lambda: np.empty(0))  # (k, a)
    residual: float = 0.0  # ‖Φ − HU‖

    @property
    def n(self) -> int:
        """Items of the modality."""
        return self.phi.n


@dataclass
class PartialLayout:
    """Which rows of H face which views."""

    views: dict[str, PartialView]
    blocks: list[tuple[slice, list[PartialView]]]  # rows of H with the same views
    size: int  # N
    n_pairs: int
    proximal: float = PROXIMAL


@dataclass
class PartialState:
    """What the iterations change, beside U and μ of the views."""

    H: Array  # (N, k)
    B: Array  # (N, r)
    W: Array  # (k, r)


def lay_out(data: Training, maps: dict[str, FeatureMap]) -> PartialLayout:
    """Fit the feature maps and give every item its row of H."""
    n_pairs = 0 if data.pairs is None else len(data.pairs)
    views: dict[str, PartialView] = {}
    alone: list[tuple[slice, list[PartialView]]] = []
    start = n_pairs
    for column, (name, X) in enumerate(data.X.items()):
        phi = maps[name].fit_blocks(X, memory_limit=CACHE // len(data.X))
        rows = np.full(phi.n, -1)
        if data.pairs is not None:
            rows[data.pairs[:, column]] = np.arange(n_pairs)
        single = np.flatnonzero(rows < 0)
        rows[single] = start + np.arange(len(single))
        square = sum(squared(block) for _, block in phi)
        mean = phi.mean()
        views[name] = PartialView(
            phi, rows, square, float(np.sqrt(max(square - phi.n * (mean @ mean), SMALLEST * square)))
        )
        if len(single):
            alone.append((slice(start, start + len(single)), [views[name]]))
        start += len(single)
    paired = [(slice(0, n_pairs), list(views.values()))] if n_pairs else []
    return PartialLayout(views, paired + alone, start, n_pairs)


def shared_labels(data: Training, layout: PartialLayout, method: str) -> Array:
    """Labels of the rows of H (N, c); the items of a pair must carry the same."""
    assert data.Y is not None  # base checked
    L = np.zeros((layout.size, next(iter(data.Y.values())).shape[1]))
    seen = np.zeros(layout.size, dtype=bool)
    for name, view in layout.views.items():
        differ = seen[view.rows] & (L[view.rows] != data.Y[name]).any(axis=1)
        if differ.any():
            raise ValueError(
                f"{differ.sum()} pairs have other labels in {name!r} than in the modalities before it; "
                f"{method} takes one label row per pair. Are the pairs right?"
            )
        L[view.rows] = data.Y[name]
        seen[view.rows] = True
    return L


def update_H(layout: PartialLayout, H: Array, codes_right: Array, codes_gram: Array, ridge: float = 0.0) -> Array:
    """H = (Σ_m μ_m Φ_m U_mᵀ + right) (Σ_m μ_m U_m U_mᵀ + gram + ridge I)⁻¹, over the views that an item has."""
    right = codes_right.copy()
    for view in layout.views.values():
        right[view.rows] += view.mu * view.phi.project(np.ascontiguousarray(view.U.T))
    H = H.copy()
    for rows, views in layout.blocks:
        gram = codes_gram + ridge * np.eye(H.shape[1]) + sum(view.mu * (view.U @ view.U.T) for view in views)
        step = layout.proximal * float(np.trace(gram)) / len(gram)
        H[rows] = RidgeFactor(gram, step).solve((right[rows] + step * H[rows]).T).T
    return H


def update_U(view: PartialView, H: Array) -> None:
    """U = (μ HᵀH + λI)⁻¹ μ HᵀΦ, and ‖Φ − HU‖ without that matrix."""
    faced = H[view.rows]
    gram, HtPhi = faced.T @ faced, cross(view.phi, faced).T
    view.U = RidgeFactor(view.mu * gram, view.ridge).solve(view.mu * HtPhi)
    left = view.square - 2 * float(np.vdot(HtPhi, view.U)) + float(np.vdot(gram, view.U @ view.U.T))
    view.residual = float(np.sqrt(max(left, SMALLEST * view.square)))


def update_mu(view: PartialView) -> None:
    """μ = 1 / (2‖Φ − HU‖): from squared to plain Frobenius norms."""
    view.mu = 1 / (2 * view.residual)


def encoder(view: PartialView, W: Array, theta: float, prior: Array, proximal: float) -> tuple[Array, Array]:
    """P (a, r) and Q (r, r) of the single-view encoder: b = sgn(φP + bQ).

    With one view, h = (μ φUᵀ + θ bWᵀ) M⁻¹ for M = μ UUᵀ + θ WWᵀ + prior, and b = sgn(hW).
    """
    gram = view.mu * (view.U @ view.U.T) + theta * (W @ W.T) + prior
    MW = RidgeFactor(gram, proximal * float(np.trace(gram)) / len(gram)).solve(W)  # M⁻¹W
    return np.ascontiguousarray(view.mu * (view.U.T @ MW)), np.ascontiguousarray(theta * (W.T @ MW))


def latent_prior(view: PartialView, H: Array, weight: float) -> Array:
    """Weight times μσ² (HᵀH/n)⁻¹: an item's h is drawn towards what the training items' were.

    σ² is the mean squared residual of Φ; weight 1 would be the posterior mean if residuals were white.
    """
    faced = H[view.rows]
    gram = faced.T @ faced / view.n
    variance = view.residual**2 / (view.n * view.phi.width)
    factor = RidgeFactor(gram, 1e-8 * float(np.trace(gram)) / len(gram))
    return weight * view.mu * variance * factor.solve(np.eye(len(gram)))


def encode(phi: Array, P: Array, Q: Array) -> Array:
    """The fixed point of y = φP + sgn(y)Q, from b = 0: random in the authors' code."""
    features: Array = phi @ P
    y = features
    for _ in range(ENCODER_ITER):
        y = features + np.where(y > 0, 1.0, -1.0) @ Q
    return y


class PartialHasher(CrossModalHasher):
    """Base of both forms; a subclass fills in the steps."""

    latent: int
    n_anchors: PerModality[int]
    kernel: PerModality[str | None]
    bandwidth: float | str
    random_state: RandomState

    objective_: Array
    n_iter_: int
    projections_: dict[str, Array]
    feedback_: dict[str, Array]

    def _project(self, name: str, X: Matrix) -> Array:
        return encode(self.maps_[name].map(X), self.projections_[name], self.feedback_[name])

    def _start(self, data: Training) -> tuple[dict[str, FeatureMap], PartialLayout, PartialState, np.random.Generator]:
        """Feature maps; H normal, B random signs, μ = 0.5, as in the authors' code; W is still to be made."""
        k, seed = self.latent, root_seed(self.random_state)
        options: dict[str, Any] = {"seed": seed, "centred": False, "dtype": "float64"}
        options["paper"] = {"bandwidth": self.bandwidth}
        labels = data.Y if self.supervised else None
        maps = kernel_maps(data.X, labels, kernel=self.kernel, n_anchors=self.n_anchors, **options)
        layout = lay_out(data, maps)
        rng = np.random.default_rng([seed, 0])
        H, B = rng.standard_normal((layout.size, k)), sign(rng.standard_normal((layout.size, data.n_bits)))
        return maps, layout, PartialState(H, B, np.zeros((k, data.n_bits))), rng

    def _iterate(
        self, step: Callable[[], float], report: Reporter, *, max_iter: int, tol: float, relative: bool
    ) -> Array:
        """Steps until the watched value falls by less than tol, after the third at the earliest."""
        trace: list[float] = []
        for t in range(1, max_iter + 1):
            trace.append(step())
            report("codes", t, max_iter, trace[-1])
            scale = abs(trace[-1]) if relative else 1.0
            if tol and t > 3 and trace[-2] - trace[-1] < tol * scale:
                break
        return np.array(trace)

    def _learned(
        self,
        maps: dict[str, FeatureMap],
        layout: PartialLayout,
        state: PartialState,
        theta: float,
        trace: Array,
        ridge: float = 0.0,
    ) -> dict[str, Any]:
        P, Q = {}, {}
        for name, view in layout.views.items():
            prior = latent_prior(view, state.H, ridge)
            P[name], Q[name] = encoder(view, state.W, theta, prior, layout.proximal)
        return {
            "codes_": {name: pack_signs(state.B[view.rows]) for name, view in layout.views.items()},
            "maps_": maps,
            "projections_": P,
            "feedback_": Q,
            "objective_": trace,
            "n_iter_": len(trace),
        }


# -- SAPMH's codes: the updates derived by zero gradient, none of which raises the objective.
#
# S = 2LLᵀ − o11ᵀ over all items never exists as a matrix: SM = 2L(LᵀM) − o1(1ᵀM).

CYCLES = 3
"""Rounds over the bits in each B-step."""


@dataclass(frozen=True)
class SAPMHWeights:
    """The trade-offs of the objective."""

    theta: float  # ‖B − HW‖²
    rho: float  # ‖rS − B(HW)ᵀ‖²
    ridge: float = 0.0  # ‖H‖²; that of ‖U‖² is with the views


class Similarity:
    """S = 2LLᵀ − offset · 11ᵀ."""

    def __init__(self, L: Array, offset: float | None = None) -> None:
        n, counts = len(L), L.sum(axis=0)
        self.L = L
        mean = 2 * float(counts @ counts) / n**2
        self.offset = mean if offset is None else offset  # None: S sums to 0
        gram = L.T @ L
        self.square = 4 * squared(gram) + n**2 * (self.offset**2 - 2 * self.offset * mean)  # ‖S‖²

    def times(self, M: Array) -> Array:
        """S M."""
        product: Array = 2 * (self.L @ (self.L.T @ M)) - self.offset * M.sum(axis=0)
        return product

    def within(self, rows: slice, M: Array) -> Array:
        """(S restricted to a block of rows and columns) M."""
        product: Array = 2 * (self.L[rows] @ (self.L[rows].T @ M[rows])) - self.offset * M[rows].sum(axis=0)
        return product


def balanced_step(layout: PartialLayout, state: PartialState, S: Similarity, w: SAPMHWeights) -> float:
    """One round of exact (or proximal) minimisers; returns the objective, which has not risen."""
    r = state.B.shape[1]
    right, gram = code_target(state.B, S, w)
    state.H = update_H(layout, state.H, right @ state.W.T, state.W @ gram @ state.W.T, w.ridge)  # step 1
    for view in layout.views.values():
        update_U(view, state.H)  # step 2
        update_mu(view)  # step 5
    state.W = update_W(state.H, right, gram, state.W)  # step 3
    Y = state.H @ state.W
    state.B = update_B(state.B, Y, S, w)  # step 4
    A = Y.T @ Y
    quantization = squared(state.B - Y)
    semantic = r**2 * S.square - 2 * r * float(np.vdot(S.times(state.B), Y)) + float(np.vdot(state.B.T @ state.B, A))
    features = sum(view.residual + view.ridge * squared(view.U) for view in layout.views.values())
    return features + w.theta * quantization + w.rho * semantic + w.ridge * squared(state.H)


def code_target(B: Array, S: Similarity, w: SAPMHWeights) -> tuple[Array, Array]:
    """θB + ρrSB and θI + ρBᵀB: the objective is quadratic in Y = HW with these."""
    r = B.shape[1]
    return w.theta * B + w.rho * r * S.times(B), w.theta * np.eye(r) + w.rho * (B.T @ B)


def update_W(H: Array, right: Array, gram: Array, W: Array | None = None) -> Array:
    """W = (HᵀH)⁻¹ Hᵀ right gram⁻¹, proximal to the W before."""
    HtH = H.T @ H
    step = PROXIMAL * float(np.trace(HtH)) / len(HtH)
    goal = RidgeFactor(gram, 0.0).solve(right.T @ H).T
    return RidgeFactor(HtH, step).solve(goal if W is None else goal + step * W)


def update_B(B: Array, Y: Array, S: Similarity, w: SAPMHWeights) -> Array:
    """Minimises ρ tr(BABᵀ) − 2 tr Bᵀ(θY + ρrSY) with A = YᵀY, one bit after the other, each exactly.

    The authors split B from a copy of it with multipliers; bit by bit there is no penalty weight, which
    would have to be on the scale of ρA.
    """
    D, A = w.theta * Y + w.rho * B.shape[1] * S.times(Y), w.rho * (Y.T @ Y)
    B = B.copy()
    for _ in range(CYCLES):
        for bit in range(B.shape[1]):
            others = B @ A[:, bit] - B[:, bit] * A[bit, bit]
            B[:, bit] = sign(D[:, bit] - others)
    return B


# -- SAPMH as the authors' code has it, slips included: for comparison, not for use.
#
# Where it leaves the zero-gradient form is said at the line. On Wiki the codes never leave their random start:
# what labels and features say in the B-step is 1e-9 to 7e-8, against multipliers of .01 to 2.

B_PENALTY, Z_PENALTY = 0.01, 0.1
"""e of the multiplier method: one value in the step of B, another in those of Z and G."""

NO_RIDGE = 1e-12
"""The code inverts without any. A proximal share of 1e-6 alone lifts hashed codes on Wiki from .12 to .16 and more."""


@dataclass
class Multipliers:
    """The splitting of B: a copy Z, random at the start, and multipliers G = B − Z."""

    Z: Array
    G: Array


def authors_step(
    layout: PartialLayout, state: PartialState, S: Similarity, w: SAPMHWeights, split: Multipliers
) -> float:
    """One round; returns the value that the code watches."""
    r, B, views = state.B.shape[1], state.B, list(layout.views.values())
    right = w.theta * B
    for rows, _ in layout.blocks:
        right[rows] += w.rho * S.within(rows, B)  # no similarity between blocks, no factor r
    gram = w.theta * np.eye(r) + w.rho * (B.T @ B)
    state.H = update_H(layout, state.H, right @ state.W.T, state.W @ gram @ state.W.T)
    for view in views:
        authors_U(view, state.H, layout.n_pairs, views[0].mu)
    state.W = authors_W(state.H, B, S, w, views[-1].mu)
    Y = state.H @ state.W
    A = Y.T @ Y
    data = 2 * w.theta * Y + 2 * w.rho * r * S.times(Y)  # the only line with the factor r
    state.B = B = sign(data - w.rho * (split.Z @ A) + B_PENALTY * split.Z - split.G)
    split.Z = sign(-w.rho * (B @ A) + Z_PENALTY * B + split.G)
    split.G = split.G + Z_PENALTY * (B - split.Z)
    semantic = S.square - 2 * float(np.vdot(S.times(B), Y)) + float(np.vdot(B.T @ B, A))  # S without r
    watched = w.theta * squared(B - Y) + w.rho * semantic
    for view in views:
        watched += view.mu * view.residual**2 + view.ridge * squared(view.U)
        update_mu(view)
    return watched


def authors_U(view: PartialView, H: Array, n_pairs: int, first_mu: float) -> None:
    """As ``update_U``, but items without a pair weigh as much as in the first modality."""
    faced = H[view.rows]
    weighted = faced * np.where(view.rows < n_pairs, view.mu, first_mu)[:, None]
    view.U = RidgeFactor(faced.T @ weighted, view.ridge).solve(cross(view.phi, weighted).T)
    gram, HtPhi = faced.T @ faced, cross(view.phi, faced).T
    left = view.square - 2 * float(np.vdot(HtPhi, view.U)) + float(np.vdot(gram, view.U @ view.U.T))
    view.residual = float(np.sqrt(max(left, SMALLEST * view.square)))


def authors_W(H: Array, B: Array, S: Similarity, w: SAPMHWeights, last_mu: float) -> Array:
    """W with μ of the last modality where ρ belongs, which makes HW tiny, and no factor r; HᵀH has no ridge."""
    right = w.theta * B + w.rho * S.times(B)
    gram = w.theta * np.eye(B.shape[1]) + last_mu * (B.T @ B)
    return RidgeFactor(H.T @ H, 0.0).solve(RidgeFactor(gram, 0.0).solve(right.T @ H).T)


DEFAULTS = {  # quantization θ, semantic ρ, ridge λ, encoder_ridge, max_iter, tol
    "balanced": (1e-3, 0.1, 0.01, 30.0, 50, 1e-4),
    "authors": (1e-4, 1e-6, 100.0, 0.0, 100, 1e-2),
}
"""The authors' are those of their MIRFlickr experiment; on NUS-WIDE they had θ 1e-7, ρ 1e-5, λ 1e-3 and k 500."""


@dataclass(eq=False, repr=False)
class SAPMH(PartialHasher):
    r"""Supervised codes for paired, partly paired and unpaired items, after Zheng et al. (2021).

    .. math::
        \sum_m \lVert\Phi_m - H^{(m)}U_m\rVert + \theta\lVert B - HW\rVert^2
        + \rho\lVert rS - B(HW)^T\rVert^2 + \lambda\left(\sum_m\lVert U_m\rVert^2 + \lVert H\rVert^2\right)

    with B = ±1; plain norms come from the adaptive weights μ. In the default variant no step raises it.

    Parameters
    ----------
    n_bits : length of the codes, below the number of items of every modality
    variant : "balanced" (default: the objective's own updates, all terms on one scale) or "authors" (the
        released code with its weights, slips and random start, which stays at chance on Wiki; see the
        module)
    quantization, semantic : θ, ρ; None is 1e-3 and 0.1, in shares of the feature term, for "balanced", and the
        authors' absolute 1e-4 and 1e-6 for "authors"
    ridge : λ; None is 0.01 for "balanced", 100 (and on U alone) for "authors" latent : k, latent dimensions; above
    n_bits, or HW is short of rank n_anchors : anchors of the kernel, capped at the number of items; or a dict by
    modality kernel : "paper", exp(−d²/2σ²); a name in :data:`modalhash.core.kernel_choice.KERNELS`; or "auto", chosen
    by how well it
        ranks held-out items; or a dict by modality
    bandwidth : σ² of the kernel "paper": "anchors" for the mean squared distance, or a number (the
        authors: 100² for their features)
    encoder_ridge : how strongly a single view's h is drawn towards that of the training items; None is 30 for
        "balanced" and 0 for "authors"
    max_iter, tol : at most 50 steps, until the objective falls by less than 1e-4 of itself; "authors": 100,
        until it falls by less than 0.01. ``tol=0`` never stops early
    random_state : int, Generator or None

    Attributes
    ----------
    codes_ : learned codes of the training items, by modality; both items of a pair have the same
    objective_ : trace of the objective ("authors": of the value that their code watches)
    n_iter_ : steps done
    maps_, projections_, feedback_ : kernel, P and Q of the encoder sgn(φP + bQ), by modality
    classes_, n_features_in_ : label columns; features by modality

    Examples
    --------
    >>> from modalhash.data import generate
    >>> data = generate(n_items=200, seed=0)
    >>> model = SAPMH(n_bits=16, n_anchors=100, random_state=0).fit(data.X, data.Y)
    >>> model.transform({"text": data.X["text"][:5]})["text"].shape
    (5, 2)

    References
    ----------
    C. Zheng, L. Zhu, Z. Cheng, J. Li, A.-A. Liu. Adaptive Partial Multi-View Hashing for Efficient Social Image
    Retrieval. IEEE Transactions on Multimedia, 2021.
    """

    _parameter_constraints: ClassVar = {
        "variant": choice(*DEFAULTS),
        "quantization": optional(number(positive=True)),
        "semantic": optional(number(positive=True)),
        "ridge": optional(number(positive=True)),
        "latent": integer(),
        "encoder_ridge": optional(number()),
        "max_iter": optional(integer()),
        "tol": optional(number()),
    }

    n_bits: int = 64
    _: KW_ONLY
    variant: str = "balanced"
    quantization: float | None = None
    semantic: float | None = None
    ridge: float | None = None
    latent: int = 128
    n_anchors: PerModality[int] = 500
    kernel: PerModality[str | None] = "paper"
    bandwidth: float | str = "anchors"
    encoder_ridge: float | None = None
    max_iter: int | None = None
    tol: float | None = None
    random_state: RandomState = None

    def _fit(self, data: Training, report: Reporter) -> dict[str, Any]:
        given = (self.quantization, self.semantic, self.ridge, self.encoder_ridge, self.max_iter, self.tol)
        theta, rho, ridge, encoder_ridge, max_iter, tol = (
            default if value is None else value for value, default in zip(given, DEFAULTS[self.variant], strict=True)
        )
        maps, layout, state, rng = self._start(data)
        L, views = shared_labels(data, layout, "SAPMH"), layout.views.values()
        for view in views:
            view.ridge = ridge
            update_U(view, state.H)
        if self.variant == "authors":
            S, w = Similarity(L, offset=1.0), SAPMHWeights(theta, rho)
            state.W = authors_W(state.H, state.B, S, w, 0.5)
            layout.proximal = NO_RIDGE
            Z = sign(rng.standard_normal(state.B.shape))
            split = Multipliers(Z, state.B - Z)
            step = partial(authors_step, layout, state, S, w, split)
        else:
            S = Similarity(L)
            scale = sum(view.spread for view in views)
            w = SAPMHWeights(theta * scale / state.B.size, rho * scale / (data.n_bits**2 * S.square), ridge)
            state.W = update_W(state.H, *code_target(state.B, S, w))
            for view in views:
                update_mu(view)
            step = partial(balanced_step, layout, state, S, w)  # steps 1-5
        trace = self._iterate(step, report, max_iter=int(max_iter), tol=tol, relative=self.variant == "balanced")
        return self._learned(maps, layout, state, w.theta, trace, encoder_ridge)


@dataclass(eq=False, repr=False)
class UAPMH(PartialHasher):
    r"""Unsupervised codes for paired and partly paired items, after Zheng et al. (2021).

    .. math::
        \sum_m \lVert\Phi_m - H^{(m)}U_m\rVert + \theta\lVert B - HW\rVert^2
        + \lambda\left(\sum_m\lVert U_m\rVert^2 + \lVert W\rVert^2\right)

    with B = ±1. Only pairs tie the modalities together: without any, each finds latent dimensions of its own, in an
    arbitrary order, and how they fall together is luck of the start, however well each is coded in itself. On Wiki
    image-to-text mAP is then .15 to .18 where random codes have .11, but the same rankings give as much to queries
    whose labels were shuffled; on two views of mfeat it is .12 to .24 over seeds, against .15 for shuffled labels.

    Parameters
    ----------
    n_bits : length of the codes, below the number of items of every modality
    quantization, ridge : θ, λ. The authors' values; θ is so small that codes follow H and hardly shape it
    latent : k, latent dimensions. More bits than dimensions add little
    n_anchors : anchors of the kernel, capped at the number of items; or a dict by modality
    kernel : "paper", exp(−d²/2σ²); or a name in :data:`modalhash.core.kernel_choice.KERNELS`; or a dict by modality
    bandwidth : σ² of the kernel "paper": "anchors" for the mean squared distance, or a number (the
        authors: 100² for their features)
    max_iter, tol : at most this many steps, until the objective falls by less than tol; 0 never stops early
    random_state : int, Generator or None

    Attributes
    ----------
    codes_ : learned codes of the training items, by modality; both items of a pair have the same
    objective_ : trace of the objective
    n_iter_ : steps done
    maps_, projections_, feedback_ : kernel, P and Q of the encoder sgn(φP + bQ), by modality
    n_features_in_ : features by modality

    Examples
    --------
    >>> from modalhash.data import generate
    >>> data = generate(n_items=200, seed=0)
    >>> model = UAPMH(n_bits=16, n_anchors=100, random_state=0).fit(data.X, pairs="aligned")
    >>> model.n_iter_ > 3
    True

    References
    ----------
    C. Zheng, L. Zhu, Z. Cheng, J. Li, A.-A. Liu. Adaptive Partial Multi-View Hashing for Efficient Social Image
    Retrieval. IEEE Transactions on Multimedia, 2021.
    """

    supervised: ClassVar[bool] = False
    _parameter_constraints: ClassVar = {
        "quantization": number(positive=True),
        "ridge": number(positive=True),
        "latent": integer(),
        "max_iter": integer(),
        "tol": number(),
    }

    n_bits: int = 64
    _: KW_ONLY
    quantization: float = 1e-5
    ridge: float = 1e-3
    latent: int = 8
    n_anchors: PerModality[int] = 500
    kernel: PerModality[str | None] = "paper"
    bandwidth: float | str = "anchors"
    max_iter: int = 100
    tol: float = 1e-3
    random_state: RandomState = None

    def _fit(self, data: Training, report: Reporter) -> dict[str, Any]:
        theta, ridge = self.quantization, self.ridge
        maps, layout, state, _ = self._start(data)
        views = layout.views.values()
        for view in views:
            view.ridge = ridge
            update_U(view, state.H)
        state.W = unsupervised_W(state, theta, ridge)

        def step() -> float:
            B, W = state.B, state.W
            state.H = update_H(layout, state.H, theta * (B @ W.T), theta * (W @ W.T))  # step 1
            for view in views:
                update_U(view, state.H)  # step 2
            state.W = unsupervised_W(state, theta, ridge)  # step 3
            Y = state.H @ state.W
            state.B = sign(Y)  # step 4
            for view in views:
                update_mu(view)  # step 5
            features = sum(view.residual + ridge * squared(view.U) for view in views)
            return features + theta * squared(state.B - Y) + ridge * squared(state.W)

        trace = self._iterate(step, report, max_iter=self.max_iter, tol=self.tol, relative=False)
        return self._learned(maps, layout, state, theta, trace)


def unsupervised_W(state: PartialState, theta: float, ridge: float) -> Array:
    """W = (θHᵀH + λI)⁻¹ θHᵀB."""
    return RidgeFactor(theta * (state.H.T @ state.H), ridge).solve(theta * (state.H.T @ state.B))
