r"""CMFH: Collective Matrix Factorization Hashing (Ding, Guo & Zhou, CVPR 2014).

Both modalities of a pair are factorised with one shared latent row, whose signs are the code. Linear projections,
learned jointly, map new items of either modality to the latent space. Labels are not used.

=====================  ==============================  =================================================
paper (columns)        here (rows are items)           is
=====================  ==============================  =================================================
:math:`X_t`            ``X[t]`` (n, d)                 features, centred with the training mean
:math:`V`              ``V`` (n, r)                    latent rows; their signs are the codes
:math:`U_t`            ``U[:, t]`` (r, d)              factors, X ≈ V U
:math:`P_t`            ``P[t]`` (d, r)                 projections, V ≈ X P
:math:`\lambda`        ``balance``                     weight of the first modality; the second has 1 − λ
:math:`\mu`            ``coupling``                    weight of ‖V − X P‖²
:math:`\gamma`         ``ridge``
--                     ``C`` (d1 + d2, r)              V = [X1 X2] C after the first sweep
--                     ``G``, ``XtV``, ``VtV``         [X1 X2]ᵀ[X1 X2], [X1 X2]ᵀV, VᵀV
=====================  ==============================  =================================================

After its first update V is a linear function of the features, V = [X1 X2] C. The sweeps therefore run on C and the Gram
matrix alone, with the same iterates at a cost that does not grow with n. With fewer items than features, they run in
the space that the items span.

Variants. ``"v1"`` is the authors' release of 2013. ``"v2"`` is that of 2015 as released: weights λ also on the
coupling, a ridge γ/μ on P, and P too small by μ² because of an operator precedence error in MATLAB. The error weakens
the effect of the random start; both variants perform similarly on real data.

Departures. The ridges of v1 are γ as in the code (the minimiser of the printed objective has γ/λ and γ/μ), so it
minimises the objective with λ_tγ‖U_t‖² and μγ‖P_t‖² instead of γ‖U_t‖² and γ‖P_t‖². The code thresholds at the mean of
V, which is 0 because the features are centred. Codes of a v2 database are learned here as in v1; the 2015 demo hashes
the database, which is ``transform``. ``init="gaussian"`` is not official.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar, Literal, Self, TypeAlias

import numpy as np
from scipy import sparse

from modalhash.core.blocks import FeatureBlocks, row_slices
from modalhash.core.features import Linear
from modalhash.core.linalg import RidgeFactor, squared
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, root_seed
from modalhash.core.typing import Array, Matrix
from modalhash.core.validation import Count, NonNegative, Positive, Share
from modalhash.methods.base import PairCodes, PairedHasher

SPARSE_BELOW = 0.1
"""Fraction of nonzero values above which CSR features are faster as dense blocks."""
CACHE = 2**30
"""Bytes of dense features held in memory during a fit, per modality."""
BLOCK_VALUES = 2**22


class SparseRows:
    """Sparse features minus a row (their mean, or 0), with the interface of :class:`FeatureBlocks`."""

    def __init__(self, X: Matrix, mean: Array, block_rows: int | None = None) -> None:
        self.n, self.width = X.shape
        self._X, self._mean = X, mean
        self._block_rows = block_rows or max(1, BLOCK_VALUES // self.width)

    def __iter__(self) -> Iterator[tuple[slice, Array]]:
        for rows in row_slices(self.n, self._block_rows):
            yield rows, self._X[rows].toarray() - self._mean

    def gram(self) -> Array:
        """Return (X − 1mᵀ)ᵀ(X − 1mᵀ)."""
        G: Array = (self._X.T @ self._X).toarray()
        half = np.outer(self._mean, self._X.sum(axis=0) - 0.5 * self.n * self._mean)
        return G - half - half.T

    def project(self, W: Array) -> Array:
        """Return (X − 1mᵀ) W."""
        return np.asarray(self._X @ W - self._mean @ W)

    def cross(self, V: Array) -> Array:
        """Return (X − 1mᵀ)ᵀ V."""
        return np.asarray(self._X.T @ V - np.outer(self._mean, V.sum(axis=0)))

    def take(self, rows: Array) -> Array:
        return np.asarray(self._X[rows].toarray() - self._mean)


Rows: TypeAlias = FeatureBlocks | SparseRows


def fit_rows(feature_map: Linear, X: Matrix, *, block_rows: int | None = None) -> Rows:
    """Fit the map and return the mapped rows in float64."""
    if not sparse.issparse(X) or X.nnz > SPARSE_BELOW * X.shape[0] * X.shape[1]:
        return feature_map.fit_blocks(X, memory_limit=CACHE, block_rows=block_rows)
    feature_map.fit_blocks(X, memory_limit=1, block_rows=block_rows)
    X = X.astype(np.float64)
    if feature_map.rows == "unit":
        norms = np.sqrt(X.multiply(X).sum(axis=1))
        X = sparse.csr_array(sparse.diags_array(1 / np.where(norms > 0, norms, 1)) @ X)
    return SparseRows(X, feature_map.mean_, block_rows)


@dataclass(frozen=True)
class OwnSpace:
    """Rows Z of X = ZQᵀ, with Q (d, k) orthonormal and k the rank, if there are fewer items than features.

    Both factorisations use only XᵀV and XP, so U = U_zQᵀ and P = QP_z are the same with all their norms, and Gram
    matrices are no larger than the number of items. Otherwise, Z is X.
    """

    rows: Rows
    basis: Array | None = None  # Q

    @classmethod
    def of(cls, X: Rows, *, block_rows: int | None = None) -> Self:
        if X.n >= X.width:
            return cls(X)
        dense = np.vstack([block for _, block in X])
        squares, E = np.linalg.eigh(dense @ dense.T)
        kept = squares > len(squares) * np.finfo(np.float64).eps * squares[-1]
        if not kept.any():  # all rows are equal
            return cls(X)
        lengths, E = np.sqrt(squares[kept]), E[:, kept]
        basis = dense.T @ E
        basis /= lengths
        blocks = FeatureBlocks(
            E * lengths,
            lambda rows, part: rows[part],
            width=len(lengths),
            dtype=np.dtype(np.float64),
            memory_limit=CACHE,
            block_rows=block_rows,
        )
        return cls(blocks, basis)

    def enter(self, P: Array) -> Array:
        """Return P_z = QᵀP."""
        return P if self.basis is None else self.basis.T @ P

    def leave(self, P: Array) -> Array:
        """Return P = QP_z."""
        return P if self.basis is None else self.basis @ P


def cross(X: Rows, V: Array) -> Array:
    """Return XᵀV (d, r)."""
    if isinstance(X, SparseRows):
        return X.cross(V)
    total = np.zeros((X.width, V.shape[1]))
    for rows, block in X:
        total += block.T @ V[rows]
    return total


def factor_residual(G: Array, XtV: Array, VtV: Array, U: Array) -> float:
    """Return ‖X − V U‖² for U (r, d), from G = XᵀX, XᵀV and VᵀV."""
    return max(0.0, float(np.trace(G) - 2 * np.vdot(XtV, U.T) + np.vdot(VtV, U @ U.T)))


def projection_residual(G: Array, XtV: Array, VtV: Array, P: Array) -> float:
    """Return ‖V − X P‖² for P (d, r), from G = XᵀX, XᵀV and VᵀV."""
    return max(0.0, float(np.trace(VtV) - 2 * np.vdot(XtV, P) + np.vdot(P, G @ P)))


SWEEPS = {"v1": 1000, "v2": 25}
"""Default of ``max_iter``: the release of v1 has no limit (30 sweeps on Wiki, 256 on IAPR TC-12), v2 does 25."""


@dataclass(frozen=True)
class CMFHWeights:
    """Weights of the objective, one value per stacked feature where modalities differ."""

    factor: Array  # λ or 1 − λ (d1 + d2,)
    coupling: Array  # μ, in v2 times the same (d1 + d2,)
    coupling_sum: float  # over the two modalities
    ridge: float  # γ
    projection_ridge: float
    projection_scale: float


@dataclass(eq=False, repr=False)
class CMFH(PairedHasher):
    r"""Codes from a joint factorisation of paired modalities, unsupervised, after Ding et al. (2014).

    .. math::
        \sum_t \lambda_t\lVert X_t - VU_t\rVert^2 + \mu\lVert V - X_tP_t\rVert^2
        + \gamma(\lVert U_t\rVert^2 + \lVert P_t\rVert^2) + \gamma\lVert V\rVert^2,
        \qquad \lambda_1 = \lambda,\ \lambda_2 = 1 - \lambda

    Parameters
    ----------
    variant : "v1" (2013) or "v2" (2015), the authors' two releases
    balance : λ, from 0 to 1, share of the first modality
    coupling : μ > 0, how closely V follows the projections
    ridge : γ > 0
    init : "uniform" (the authors: U(0, 1) for V and P) or "gaussian" (not official: V normal, P = 0)
    max_iter : most sweeps; None is 1000 for v1, and 25 for v2 as released
    tol : v1 stops when ``objective_`` falls by less than this; 0 never stops early. v2 has no such rule
    n_bits, random_state : as for :class:`~modalhash.methods.base.CrossModalHasher`

    Attributes
    ----------
    objective_ : the objective in unsquared norms, which the authors watch, one value per sweep
    projections_ : P, by modality
    """

    supervised: ClassVar[bool] = False

    n_bits: int = 64
    _: KW_ONLY
    variant: Literal["v1", "v2"] = "v1"
    balance: Share = 0.5
    coupling: Positive = 100.0
    ridge: Positive = 0.01
    init: Literal["uniform", "gaussian"] = "uniform"
    max_iter: Count | None = None
    tol: NonNegative = 0.01
    random_state: RandomState = None

    projections_: dict[str, Array] = field(init=False)

    def _fit_pairs(self, X: dict[str, Matrix], L: Array, n_bits: int, report: Reporter) -> PairCodes:
        sweeps = SWEEPS[self.variant] if self.max_iter is None else self.max_iter
        tol = self.tol if self.variant == "v1" else 0.0
        V, P = self._start(X, n_bits)
        maps = {name: Linear(dtype="float64") for name in X}
        rows = max(1, BLOCK_VALUES // len(P))
        given = [fit_rows(maps[name], values, block_rows=rows) for name, values in X.items()]
        spaces = [OwnSpace.of(values, block_rows=rows) for values in given]
        first, X1, X2 = given[0].width, *(space.rows for space in spaces)
        P = np.vstack([spaces[0].enter(P[:first]), spaces[1].enter(P[first:])])
        w = self._weights([X1.width, X2.width])
        G, XtV, VtV = gram(X1, X2), np.vstack([cross(X1, V), cross(X2, V)]), V.T @ V
        parts = [slice(0, X1.width), slice(X1.width, len(P))]
        ridges = [RidgeFactor(G[t, t], w.projection_ridge) for t in parts]  # constant: factored once

        trace: list[float] = []
        for sweep in range(1, sweeps + 1):
            U = update_U(XtV, VtV, w)  # step 1
            C = update_C(U, P, w)  # step 2: V = [X1 X2] C
            XtV = G @ C
            VtV = C.T @ XtV
            P = w.projection_scale * np.vstack([f.solve(XtV[t]) for f, t in zip(ridges, parts, strict=True)])  # step 3
            trace.append(watched(norms(G, XtV, VtV, U, P, parts), parts, w))
            report("sweeps", sweep, sweeps, trace[-1])
            if tol and sweep > 1 and trace[-2] - trace[-1] < tol:
                break
        V = X1.project(C[parts[0]]) + X2.project(C[parts[1]])
        return V, {  # sgn(V − v̄) in the paper; v̄ = 0 as the features are centred
            "maps_": maps,
            "projections_": {name: space.leave(P[t]) for name, space, t in zip(X, spaces, parts, strict=True)},
            "objective_": trace,
        }

    def _project(self, name: str, X: Matrix) -> Array:
        projected: Array = self.maps_[name].map(X) @ self.projections_[name]
        return projected

    def _weights(self, widths: list[int]) -> CMFHWeights:
        coupling, ridge = self.coupling, self.ridge
        factor = np.repeat([self.balance, 1 - self.balance], widths)
        if self.variant == "v1":
            return CMFHWeights(factor, np.full(len(factor), coupling), 2 * coupling, ridge, ridge, 1.0)
        # v2 divides (μ XᵀX + γI)⁻¹ XᵀV by μ where it should multiply
        return CMFHWeights(factor, coupling * factor, coupling, ridge, ridge / coupling, coupling**-2)

    def _start(self, X: dict[str, Matrix], n_bits: int) -> tuple[Array, Array]:
        rng = np.random.default_rng([root_seed(self.random_state), 0])
        n, width = next(iter(X.values())).shape[0], sum(values.shape[1] for values in X.values())
        if self.init == "gaussian":
            return rng.standard_normal((n, n_bits)), np.zeros((width, n_bits))
        return rng.random((n, n_bits)), rng.random((width, n_bits))


def gram(X1: Rows, X2: Rows) -> Array:
    """Return [X1 X2]ᵀ[X1 X2]; both must have the same blocks."""
    between = np.zeros((X1.width, X2.width))
    for (_, first), (_, second) in zip(X1, X2, strict=True):
        between += first.T @ second
    return np.block([[X1.gram(), between], [between.T, X2.gram()]])


def update_U(XtV: Array, VtV: Array, w: CMFHWeights) -> Array:
    """Return U_t = (VᵀV + γI)⁻¹ VᵀX_t of both modalities, stacked."""
    return RidgeFactor(VtV, w.ridge).solve(XtV.T)


def update_C(U: Array, P: Array, w: CMFHWeights) -> Array:
    """Return C of V = Σ X_t(λ_tU_tᵀ + μP_t) (Σ λ_tU_tU_tᵀ + (2μ + γ)I)⁻¹."""
    weighted = w.factor * U
    right = weighted + w.coupling * P.T
    return RidgeFactor(weighted @ U.T, w.coupling_sum + w.ridge).solve(right).T


def norms(G: Array, XtV: Array, VtV: Array, U: Array, P: Array, parts: list[slice]) -> dict[str, list[float]]:
    """Return ‖X − VU‖², ‖V − XP‖², ‖U‖² and ‖P‖² by modality, and ‖V‖²."""
    return {
        "factor": [factor_residual(G[t, t], XtV[t], VtV, U[:, t]) for t in parts],
        "coupling": [projection_residual(G[t, t], XtV[t], VtV, P[t]) for t in parts],
        "U": [squared(U[:, t]) for t in parts],
        "P": [squared(P[t]) for t in parts],
        "V": [float(np.trace(VtV))],
    }


def watched(squares: dict[str, list[float]], parts: list[slice], w: CMFHWeights) -> float:
    """Return the objective with unsquared norms, the authors' stopping criterion."""
    root = {name: np.sqrt(values) for name, values in squares.items()}
    first = [t.start for t in parts]
    sizes = root["U"].sum() + root["P"].sum() + root["V"].sum()
    return float(w.factor[first] @ root["factor"] + w.coupling[first] @ root["coupling"] + w.ridge * sizes)
