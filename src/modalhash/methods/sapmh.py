r"""SAPMH and UAPMH: Adaptive Partial Multi-view Hashing (Zheng et al., IEEE TMM 2021).

Every item has one latent row, from which the features of its views are reconstructed and of which its code is a linear
function. A pair is one item with several views; an item without a pair has one view. H has the rows of the pairs first,
then those of the other items, modality by modality. Pairs align the modalities. In SAPMH codes also reproduce the
similarity by labels, which aligns the modalities even without pairs; UAPMH uses no labels and needs pairs.

==================  =================================  ==================================================
paper               here (rows are items)              is
==================  =================================  ==================================================
:math:`\Phi_m`      ``view.phi`` (n_m, a)              RBF similarities to anchors, not centred
:math:`H`           ``H`` (N, k)                       latent rows: pairs, then items without a pair
:math:`H^{(m)}`     ``H[view.rows]``                   latent rows of the items of modality m
:math:`U_m`         ``view.U`` (k, a)                  Φ ≈ H U
:math:`\mu_m`       ``view.mu``                        1 / (2‖Φ − HU‖), which makes norms unsquared
:math:`W`           ``W`` (k, r)                       codes ≈ H W
:math:`B`           ``B`` (N, r)                       codes, ±1
:math:`S`           :class:`Similarity`                2LLᵀ − o11ᵀ, 0/1 labels; never formed
:math:`\theta`      ``quantization``                   ‖B − HW‖²
:math:`\rho`        ``semantic``                       ‖rS − B(HW)ᵀ‖²
:math:`\lambda`     ``ridge``                          ‖U‖²; in SAPMH ‖H‖², in UAPMH ‖W‖², too
==================  =================================  ==================================================

The paper hashes an item from all its views together. For retrieval across modalities an item has one view, and
b = sgn(hW) with h from its Φ alone.

Departures. ``SAPMH(variant="authors")`` is the released code with its errors, its weights and its random start. On Wiki
its codes never leave that start, because labels and features contribute 1e-9 to 7e-8 to the B-step, against multipliers
of .01 to 2; mAP is at chance, as in the table of the AMSH paper. Comments mark where it departs from the zero-gradient
updates. The default ``"balanced"`` uses the updates derived from the objective, none of which increases it, and brings
all terms to one scale:

- λ also weights ‖H‖². Without it H grows, U shrinks and λ has no effect. Together they act as a nuclear norm, which
  drops latent dimensions that explain less than 2λ of the residual, at any scale of the features.
- θ and ρ are in shares of the feature term: θ‖B‖² and ρ‖rS‖² are ``quantization`` and ``semantic`` times Σ‖Φ − mean‖.
- θ must be far below ρ; otherwise B stays at its random start, where ‖B − HW‖ is already small.
- o is the mean of 2LLᵀ instead of 1. With ten classes nine of ten entries of S would be −1, and most bits constant.
- B is solved bit by bit, exactly, instead of by multipliers with penalties unrelated to ρ.
- h of a single view is drawn towards the training items' h (``encoder_ridge``), because one view does not determine k
  dimensions.

The balanced weights were chosen on the queries of Wiki and on a quarter of those of IAPR TC-12, so results on these
data are optimistic.

In both variants μ of an encoded item is that of training (the authors' code recomputes it on the batch, for the second
view from the first's features), anchors are drawn per modality, and the encoder starts from b = 0 instead of random b.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from modalhash.core.blocks import FeatureBlocks
from modalhash.core.codes import pack_signs
from modalhash.core.features import FeatureMap, kernel_maps
from modalhash.core.linalg import RidgeFactor, sign, squared
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, root_seed
from modalhash.core.typing import Array, Matrix, PerModality
from modalhash.core.validation import Count, NonNegative, Positive
from modalhash.methods.base import CrossModalHasher, Training
from modalhash.methods.cmfh import CACHE, cross

PROXIMAL = 1e-6
"""Weight of ‖H − H_old‖² and ‖W − W_old‖², as a share of the mean eigenvalue, for latent dimensions that the data do
not determine. A proximal step never increases the objective."""
SMALLEST = 1e-12
"""Share of ‖Φ‖² below which a squared residual is rounding error."""
ENCODER_ITER = 9


@dataclass
class PartialView:
    """State of one modality."""

    phi: FeatureBlocks  # Φ (n, a)
    rows: Array  # the row of H of each item
    square: float  # ‖Φ‖²
    spread: float  # ‖Φ − mean‖
    ridge: float = 0.0  # λ
    mu: float = 0.5  # μ
    U: Array = field(default_factory=lambda: np.empty(0))  # (k, a)
    residual: float = 0.0  # ‖Φ − HU‖

    @property
    def n(self) -> int:
        return self.phi.n


@dataclass
class PartialLayout:
    """Assignment of rows of H to views."""

    views: dict[str, PartialView]
    blocks: list[tuple[slice, list[PartialView]]]  # rows of H with the same views
    size: int  # N
    n_pairs: int
    proximal: float = PROXIMAL


@dataclass
class PartialState:
    """Variables that the iterations update, except U and μ of the views."""

    H: Array  # (N, k)
    B: Array  # (N, r)
    W: Array  # (k, r)


def lay_out(data: Training, maps: dict[str, FeatureMap]) -> PartialLayout:
    """Fit the feature maps and assign a row of H to every item."""
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
    """Return the labels of the rows of H (N, c); raise if items of a pair differ in labels."""
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
    """Return H = (Σ_m μ_m Φ_m U_mᵀ + right) (Σ_m μ_m U_m U_mᵀ + gram + ridge I)⁻¹, summed over an item's views."""
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
    """Set U = (μ HᵀH + λI)⁻¹ μ HᵀΦ and the residual ‖Φ − HU‖."""
    faced = H[view.rows]
    gram, HtPhi = faced.T @ faced, cross(view.phi, faced).T
    view.U = RidgeFactor(view.mu * gram, view.ridge).solve(view.mu * HtPhi)
    left = view.square - 2 * float(np.vdot(HtPhi, view.U)) + float(np.vdot(gram, view.U @ view.U.T))
    view.residual = float(np.sqrt(max(left, SMALLEST * view.square)))


def update_mu(view: PartialView) -> None:
    """Set μ = 1 / (2‖Φ − HU‖), which turns squared into unsquared Frobenius norms."""
    view.mu = 1 / (2 * view.residual)


def encoder(view: PartialView, W: Array, theta: float, prior: Array, proximal: float) -> tuple[Array, Array]:
    """Return P (a, r) and Q (r, r) of the single-view encoder b = sgn(φP + bQ).

    With one view, h = (μ φUᵀ + θ bWᵀ) M⁻¹ for M = μ UUᵀ + θ WWᵀ + prior, and b = sgn(hW).
    """
    gram = view.mu * (view.U @ view.U.T) + theta * (W @ W.T) + prior
    MW = RidgeFactor(gram, proximal * float(np.trace(gram)) / len(gram)).solve(W)  # M⁻¹W
    return np.ascontiguousarray(view.mu * (view.U.T @ MW)), np.ascontiguousarray(theta * (W.T @ MW))


def latent_prior(view: PartialView, H: Array, weight: float) -> Array:
    """Return weight times μσ² (HᵀH/n)⁻¹, which draws an item's h towards that of the training items.

    σ² is the mean squared residual of Φ; weight 1 gives the posterior mean if residuals are white.
    """
    faced = H[view.rows]
    gram = faced.T @ faced / view.n
    variance = view.residual**2 / (view.n * view.phi.width)
    factor = RidgeFactor(gram, 1e-8 * float(np.trace(gram)) / len(gram))
    return weight * view.mu * variance * factor.solve(np.eye(len(gram)))


def encode(phi: Array, P: Array, Q: Array) -> Array:
    """Iterate y = φP + sgn(y)Q from b = 0 and return y."""
    features: Array = phi @ P
    y = features
    for _ in range(ENCODER_ITER):
        y = features + np.where(y > 0, 1.0, -1.0) @ Q
    return y


class PartialHasher(CrossModalHasher):
    """Base of SAPMH and UAPMH."""

    latent: int
    n_anchors: PerModality[int]
    kernel: PerModality[str | None]
    bandwidth: float | str
    random_state: RandomState

    projections_: dict[str, Array]
    feedback_: dict[str, Array]

    def _project(self, name: str, X: Matrix) -> Array:
        return encode(self.maps_[name].map(X), self.projections_[name], self.feedback_[name])

    def _start(self, data: Training) -> tuple[dict[str, FeatureMap], PartialLayout, PartialState, np.random.Generator]:
        """Return feature maps, layout and state: H normal, B random, W zero, μ = 0.5, as in the authors' code."""
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
    ) -> list[float]:
        """Call ``step`` until its value falls by less than ``tol``, at least four times; return the trace."""
        trace: list[float] = []
        for t in range(1, max_iter + 1):
            trace.append(step())
            report("codes", t, max_iter, trace[-1])
            scale = abs(trace[-1]) if relative else 1.0
            if tol and t > 3 and trace[-2] - trace[-1] < tol * scale:
                break
        return trace

    def _learned(
        self,
        maps: dict[str, FeatureMap],
        layout: PartialLayout,
        state: PartialState,
        theta: float,
        trace: list[float],
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
        }


CYCLES = 3
"""Passes over the bits in each B-step."""


@dataclass(frozen=True)
class SAPMHWeights:
    """Weights of the objective."""

    theta: float  # ‖B − HW‖²
    rho: float  # ‖rS − B(HW)ᵀ‖²
    ridge: float = 0.0  # ‖H‖²; that of ‖U‖² is with the views


class Similarity:
    """S = 2LLᵀ − offset · 11ᵀ, never formed."""

    def __init__(self, L: Array, offset: float | None = None) -> None:
        n, counts = len(L), L.sum(axis=0)
        self.L = L
        mean = 2 * float(counts @ counts) / n**2
        self.offset = mean if offset is None else offset  # S sums to 0 with the mean
        gram = L.T @ L
        self.square = 4 * squared(gram) + n**2 * (self.offset**2 - 2 * self.offset * mean)  # ‖S‖²

    def times(self, M: Array) -> Array:
        """Return S M."""
        product: Array = 2 * (self.L @ (self.L.T @ M)) - self.offset * M.sum(axis=0)
        return product

    def within(self, rows: slice, M: Array) -> Array:
        """Return the product of a diagonal block of S with M."""
        product: Array = 2 * (self.L[rows] @ (self.L[rows].T @ M[rows])) - self.offset * M[rows].sum(axis=0)
        return product


def balanced_step(layout: PartialLayout, state: PartialState, S: Similarity, w: SAPMHWeights) -> float:
    """Update all variables by exact (or proximal) minimisers; return the objective, which has not increased."""
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
    """Return θB + ρrSB and θI + ρBᵀB, the coefficients of the objective as a quadratic in Y = HW."""
    r = B.shape[1]
    return w.theta * B + w.rho * r * S.times(B), w.theta * np.eye(r) + w.rho * (B.T @ B)


def update_W(H: Array, right: Array, gram: Array, W: Array | None = None) -> Array:
    """Return W = (HᵀH)⁻¹ Hᵀ right gram⁻¹, proximal to the previous W."""
    HtH = H.T @ H
    step = PROXIMAL * float(np.trace(HtH)) / len(HtH)
    goal = RidgeFactor(gram, 0.0).solve(right.T @ H).T
    return RidgeFactor(HtH, step).solve(goal if W is None else goal + step * W)


def update_B(B: Array, Y: Array, S: Similarity, w: SAPMHWeights) -> Array:
    """Minimise ρ tr(BABᵀ) − 2 tr Bᵀ(θY + ρrSY) with A = YᵀY, bit by bit, each exactly.

    The authors use multipliers with a penalty weight, which would have to be on the scale of ρA.
    """
    D, A = w.theta * Y + w.rho * B.shape[1] * S.times(Y), w.rho * (Y.T @ Y)
    B = B.copy()
    for _ in range(CYCLES):
        for bit in range(B.shape[1]):
            others = B @ A[:, bit] - B[:, bit] * A[bit, bit]
            B[:, bit] = sign(D[:, bit] - others)
    return B


B_PENALTY, Z_PENALTY = 0.01, 0.1
"""Penalty of the multiplier method in the step of B, and in those of Z and G."""

NO_RIDGE = 1e-12
"""Proximal share for the authors' variant. 1e-6 alone would raise mAP of hashed codes on Wiki from .12 to .16."""


@dataclass
class Multipliers:
    """Splitting of B: a copy Z, random at the start, and multipliers G = B − Z."""

    Z: Array
    G: Array


def authors_step(
    layout: PartialLayout, state: PartialState, S: Similarity, w: SAPMHWeights, split: Multipliers
) -> float:
    """Run one round of the authors' code; return the value that it watches."""
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
    """Do ``update_U`` with the first modality's μ for items without a pair."""
    faced = H[view.rows]
    weighted = faced * np.where(view.rows < n_pairs, view.mu, first_mu)[:, None]
    view.U = RidgeFactor(faced.T @ weighted, view.ridge).solve(cross(view.phi, weighted).T)
    gram, HtPhi = faced.T @ faced, cross(view.phi, faced).T
    left = view.square - 2 * float(np.vdot(HtPhi, view.U)) + float(np.vdot(gram, view.U @ view.U.T))
    view.residual = float(np.sqrt(max(left, SMALLEST * view.square)))


def authors_W(H: Array, B: Array, S: Similarity, w: SAPMHWeights, last_mu: float) -> Array:
    """Return W with the last modality's μ instead of ρ, which makes HW tiny, without the factor r and the ridge."""
    right = w.theta * B + w.rho * S.times(B)
    gram = w.theta * np.eye(B.shape[1]) + last_mu * (B.T @ B)
    return RidgeFactor(H.T @ H, 0.0).solve(RidgeFactor(gram, 0.0).solve(right.T @ H).T)


DEFAULTS = {  # quantization θ, semantic ρ, ridge λ, encoder_ridge, max_iter, tol
    "balanced": (1e-3, 0.1, 0.01, 30.0, 50, 1e-4),
    "authors": (1e-4, 1e-6, 100.0, 0.0, 100, 1e-2),
}
"""The authors' are those of their MIRFlickr experiment; for NUS-WIDE they used θ 1e-7, ρ 1e-5, λ 1e-3 and k 500."""


@dataclass(eq=False, repr=False)
class SAPMH(PartialHasher):
    r"""Supervised codes for paired, partly paired and unpaired items, after Zheng et al. (2021).

    .. math::
        \sum_m \lVert\Phi_m - H^{(m)}U_m\rVert + \theta\lVert B - HW\rVert^2
        + \rho\lVert rS - B(HW)^T\rVert^2 + \lambda\left(\sum_m\lVert U_m\rVert^2 + \lVert H\rVert^2\right)

    with B = ±1; unsquared norms come from the adaptive weights μ. In the default variant no step increases it.

    Parameters
    ----------
    variant : "balanced" or "authors" (the released code with its errors, which stays at chance on Wiki); see the module
    quantization, semantic : θ, ρ; None is 1e-3 and 0.1, in shares of the feature term, for "balanced", and the
        authors' absolute 1e-4 and 1e-6 for "authors"
    ridge : λ; None is 0.01 for "balanced", 100 (and on U alone) for "authors"
    latent : k, latent dimensions; above n_bits, or HW does not have full rank
    kernel : "paper", exp(−d²/2σ²); another name in :data:`modalhash.core.features.KERNELS`, "auto"; or by modality
    bandwidth : σ² of the kernel "paper": "anchors" for the mean squared distance, or a number (the authors: 100²)
    encoder_ridge : weight that draws h of a single view to the training items' h; None is 30, or 0 for "authors"
    max_iter, tol : most steps, and the fall of the objective below which to stop; 0 never stops early. None is 50 and
        a share of 1e-4 for "balanced", 100 and 0.01 (absolute) for "authors"
    n_bits, n_anchors, random_state : as for :class:`~modalhash.methods.base.CrossModalHasher`

    Attributes
    ----------
    objective_ : the objective ("authors": the value that their code watches), one value per step
    projections_, feedback_ : P and Q of the encoder sgn(φP + bQ), by modality
    """

    n_bits: int = 64
    _: KW_ONLY
    variant: Literal["balanced", "authors"] = "balanced"
    quantization: Positive | None = None
    semantic: Positive | None = None
    ridge: Positive | None = None
    latent: Count = 128
    n_anchors: PerModality[int] = 500
    kernel: PerModality[str | None] = "paper"
    bandwidth: float | str = "anchors"
    encoder_ridge: NonNegative | None = None
    max_iter: Count | None = None
    tol: NonNegative | None = None
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
            if S.square <= SMALLEST * squared(L.T @ L):
                raise ValueError("SAPMH: all items have the same labels, so there is no similarity to learn from")
            w = SAPMHWeights(theta * scale / state.B.size, rho * scale / (data.n_bits**2 * S.square), ridge)
            state.W = update_W(state.H, *code_target(state.B, S, w))
            for view in views:
                update_mu(view)
            step = partial(balanced_step, layout, state, S, w)  # steps 1-5
        trace = self._iterate(step, report, max_iter=int(max_iter), tol=tol, relative=self.variant == "balanced")
        return self._learned(maps, layout, state, w.theta, trace, encoder_ridge)


@dataclass(eq=False, repr=False)
class UAPMH(PartialHasher):
    r"""Unsupervised codes for paired and partly paired items, after Zheng et al. (2021); see SAPMH.

    .. math::
        \sum_m \lVert\Phi_m - H^{(m)}U_m\rVert + \theta\lVert B - HW\rVert^2
        + \lambda\left(\sum_m\lVert U_m\rVert^2 + \lVert W\rVert^2\right)

    with B = ±1. Only pairs align the modalities; without them, the latent dimensions of each are in an arbitrary order.
    On Wiki image-to-text mAP is then .15 to .18 where random codes have .11, but queries with shuffled labels score the
    same; on two views of mfeat it is .12 to .24 over seeds, against .15 for shuffled labels.

    Parameters
    ----------
    quantization, ridge : θ, λ. The authors' values; θ is so small that codes follow H and hardly shape it
    latent : k, latent dimensions. More bits than dimensions add little
    kernel : "paper", exp(−d²/2σ²); or a name in :data:`modalhash.core.features.KERNELS`; or a dict by modality
    bandwidth : σ² of the kernel "paper": "anchors" for the mean squared distance, or a number (the authors: 100²)
    max_iter, tol : most steps, and the fall of the objective below which to stop; 0 never stops early
    n_bits, n_anchors, random_state : as for :class:`~modalhash.methods.base.CrossModalHasher`

    Attributes
    ----------
    projections_, feedback_ : P and Q of the encoder sgn(φP + bQ), by modality
    """

    supervised: ClassVar[bool] = False

    n_bits: int = 64
    _: KW_ONLY
    quantization: Positive = 1e-5
    ridge: Positive = 1e-3
    latent: Count = 8
    n_anchors: PerModality[int] = 500
    kernel: PerModality[str | None] = "paper"
    bandwidth: float | str = "anchors"
    max_iter: Count = 100
    tol: NonNegative = 1e-3
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
    """Return W = (θHᵀH + λI)⁻¹ θHᵀB."""
    return RidgeFactor(theta * (state.H.T @ state.H), ridge).solve(theta * (state.H.T @ state.B))
