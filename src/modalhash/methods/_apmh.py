r"""What SAPMH and UAPMH share: one latent row per item, seen through the views that the item has.

A pair is one item with a row of H for all its views; what is in no pair is an item with one view. So H has
n_c + n_1 + n_2 rows (any number of modalities), the pairs first, and each modality knows which of them are its.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from modalhash._typing import Array, Matrix, PerModality
from modalhash.base import CrossModalHasher, Training
from modalhash.blocks import FeatureBlocks
from modalhash.codes import pack_signs
from modalhash.features import FeatureMap
from modalhash.kernel_choice import kernel_maps
from modalhash.linalg import RidgeFactor, sign, squared
from modalhash.methods._factors import CACHE, cross
from modalhash.progress import Reporter
from modalhash.randomness import RandomState, root_seed
from modalhash.validation import check_int

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
        k, seed = check_int(self.latent, "latent", at_least=1), root_seed(self.random_state)
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
