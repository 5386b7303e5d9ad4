r"""AMSH, step 1: latent representations V and codes B from labels.

Eq. (10) of the paper over *rows with weights*: a row is an item (weight 1, the paper's algorithm) or a label pattern, a
distinct label row with the weight of all items that have it (:class:`Start` makes the rows). Step 1 depends on nothing
but the labels of an item, so both give the same algorithm. Each row is scaled by the root s of its weight, which turns
weighted sums over rows into plain ones.

A frequent pattern gets several rows, each for an equal share of its items and with its own start, because uncorrelated
bits need enough rows. One row per pattern cost .03 to .10 of mAP at 16 to 128 bits on the twin of NUS-WIDE; with 32
rows per bit, mAP was that of one row per item (16, 64 and 128 bits).

Modalities share only V. The authors' code updates P of all modalities, then V of all, then B and E; finishing one
modality before the next is equivalent and keeps its arrays in the processor's cache.

=====================  =======================  ==========================================================
paper                  here                     is
=====================  =======================  ==========================================================
:math:`L`              ``L`` (rows, c)          labels, boolean
--                     ``s`` (rows,)            roots of the number of items of each row; n = sᵀs
:math:`1, \tilde L`    ``Ls`` (rows, 1 + c)     s, and s∘ labels with rows of length 1; CSR where sparse
:math:`V`              ``Vs`` (rows, r)         s∘ latent representation, VsᵀVs = nI, sᵀVs = 0
:math:`B`              ``Bs`` (rows, r)         s∘ codes, ±s
:math:`P`              ``P`` (r, c)             label regression: L ≈ V P
:math:`L + R\odot E`   ``Ts`` (rows, c)         s∘ labels with margins; neither R nor E exists as a matrix
:math:`\tilde L V^T`   ``C`` (1 + c, r)         LsᵀVs, all that other modalities use of V; row 0 is 0
:math:`\tilde L B^T`   ``D`` (1 + c, r)         LsᵀBs; row 0 is the sum of the codes
=====================  =======================  ==========================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits

from modalhash.core.blocks import FeatureRows
from modalhash.core.linalg import (
    DRIFT,
    balanced_procrustes,
    principal_directions,
    procrustes_factors,
    sign,
    squared,
    unit_rows,
)
from modalhash.core.parallel import parallel_threads
from modalhash.core.randomness import row_keys, stream
from modalhash.core.typing import Array, Matrix

SPARSE_BELOW = 0.15
"""Fraction of ones in the labels below which sparse products are faster, at 24 classes or more."""
ONE_THREAD_BELOW = 2**23
"""Number of values of V below which several BLAS threads are slower than one, up to ten times on a busy machine."""
BLOCK = 1024
"""Rows per block of an update, whose intermediate results fit into the processor's cache."""
PCA_SAMPLE = 1000
"""Items from which the authors' code computes the principal directions of the initial V."""
ROWS_PER_BIT = 32


@dataclass(frozen=True)
class Weights:
    """The trade-offs of Eq. (10)."""

    quantization: float  # η
    intra: float  # λ
    inter: float  # β, over unordered pairs of modalities
    label_margins: bool = True


class View:
    """The state of step 1 for one modality.

    Parameters
    ----------
    L : labels of each row
    V : initial latent representation of each row
    w : number of items of each row, 1 by default
    row : row of each item, one row per item by default
    order : item ids in the order of content
    """

    def __init__(
        self,
        L: Array,
        V: Array,
        rng: np.random.Generator,
        w: Array | None = None,
        row: Array | None = None,
        order: Array | None = None,
    ) -> None:
        rows, c = L.shape
        self.L, self.rng, self.w = L, rng, w
        self.row = np.arange(rows) if row is None else row
        self.order = np.arange(len(self.row)) if order is None else order
        self.s = np.ones(rows) if w is None else np.sqrt(w)
        self.n = float(rows if w is None else w.sum())
        s = self.s[:, None]
        labels = np.hstack([s, unit_rows(L) * s])
        self.sparse = bool(L.mean() < SPARSE_BELOW)
        self.TL = np.empty((rows, c if self.sparse else 2 * c + 1))  # [Ts, Ls], one matrix where Ls is dense
        self.Ts = self.TL[:, :c]
        self.Ts[:] = L * s  # E = 0
        self.TL[:, c:] = labels[:, : self.TL.shape[1] - c]
        self.Ls = sparse.csr_array(labels) if self.sparse else self.TL[:, c:]
        cuts = [slice(start, start + BLOCK) for start in range(0, rows, BLOCK)]
        self.blocks = [(cut, self.Ls[cut]) for cut in cuts]
        self.S2 = np.asarray(self.Ls.T @ labels)  # the only trace of S in the objective; row 0: sᵀLs
        self.lowest, self.highest = np.where(L, s, -np.inf), np.where(L, np.inf, 0.0)  # of Ts
        self.Vs, self.Bs = V * s, sign(V) * s
        self.work = np.empty_like(self.Vs)  # reused, because allocating it is slower than filling it
        self.feasible = False  # V is balanced and uncorrelated after its first update
        self.P = np.zeros((V.shape[1], c))
        self.TV, self.misfit = self.Ts.T @ self.Vs, 0.0  # of the newest V and T: TsᵀVs and ‖Ts − Vs P‖²
        self.C, self.D = self.semantic_sum(self.Vs), self.semantic_sum(self.Bs)

    # as in the paper, without the scale of the rows
    V = property(lambda self: self.Vs / self.s[:, None])
    B = property(lambda self: sign(self.Bs))
    T = property(lambda self: self.Ts / self.s[:, None])

    def item_codes(self) -> Array:
        """Return B with a row for each item, in int8."""
        return np.asarray(self.B.astype(np.int8)[self.row])

    def semantic_sum(self, X: Array) -> Array:
        """Return LsᵀX, the low-rank form of S X."""
        return np.asarray(self.Ls.T @ X)


def step_1_threads(views: Iterable[View]) -> AbstractContextManager[Any]:
    """Return a context in which BLAS uses one thread, or all threads of this process if V is large."""
    large = sum(view.Vs.size for view in views) >= ONE_THREAD_BELOW
    return threadpool_limits(parallel_threads() if large else 1, user_api="blas")


def update_P(view: View) -> None:
    """Apply Eq. (12), VsᵀTs / n for VsᵀVs = nI; the initial V of PCA is not feasible yet."""
    if view.feasible:
        view.P = view.TV.T / view.n
    else:
        view.P = np.linalg.lstsq(view.Vs.T @ view.Vs, view.Vs.T @ view.Ts, rcond=1e-12)[0]


def update_V(view: View, views: Iterable[View], weights: Weights) -> None:
    """Apply Theorem III.1, the exact minimiser over V of one modality with the others fixed.

    The column s of Ls subtracts the mean of Z.
    """
    r = view.Vs.shape[1]
    semantic = weights.intra * r * view.D
    for other in views:
        if other is not view:
            semantic += weights.inter * r * other.C
    mean = (view.s @ view.Ts) @ view.P.T + view.S2[0, 1:] @ semantic[1:] + weights.quantization * view.D[0]
    mean /= view.n
    semantic[0] = -mean
    Y, gram = view.work, np.zeros((r, r))
    both = np.vstack([view.P.T, semantic])
    for rows, Ls in view.blocks:
        Z = np.matmul(view.TL[rows], both[: view.TL.shape[1]], out=Y[rows])
        if view.sparse:
            Z += Ls @ semantic
        add(Z, weights.quantization, view.Bs[rows])
        gram += Z.T @ Z
    K, R = procrustes_factors(Y, gram, view.s, mean, view.rng)
    view.C, view.feasible = np.zeros_like(view.C), True
    for rows, Ls in view.blocks:
        view.C += Ls.T @ np.matmul(K[rows], R, out=view.Vs[rows])
    if np.abs(drift := view.C[0] / view.n).max() > DRIFT:
        view.Vs -= view.s[:, None] * drift
        view.C = view.semantic_sum(view.Vs)


def update_B(view: View, weights: Weights) -> None:
    """Apply Eq. (18) with sgn(0) = −1 as in the paper; in the authors' code, sgn(0) = 0."""
    r = view.Vs.shape[1]
    semantic = weights.intra * r * view.C
    view.D = np.zeros_like(view.C)
    for rows, Ls in view.blocks:
        Z = np.asarray(Ls @ semantic)
        add(Z, weights.quantization, view.Vs[rows])
        Bs = np.subtract(Z > 0, 0.5, out=view.Bs[rows])
        Bs *= 2 * view.s[rows, None]
        view.D += Ls.T @ Bs


def update_E(view: View, weights: Weights) -> None:
    """Apply Eq. (21) to T = L + R∘E, a clip: max(1, PV) at label 1 and min(0, PV) at 0."""
    view.TV, view.misfit = np.zeros(view.P.T.shape), 0.0
    for rows, _ in view.blocks:
        H, Ts = view.Vs[rows] @ view.P, view.Ts[rows]
        if weights.label_margins:
            np.minimum(np.maximum(H, view.lowest[rows]), view.highest[rows], out=Ts)
        view.TV += Ts.T @ view.Vs[rows]
        view.misfit += squared(Ts - H)


def add(Z: Array, weight: float, X: Array) -> None:
    """Add weight · X to Z, without a temporary array if the weight is 1."""
    Z += X if weight == 1 else weight * X


def objective(views: Sequence[View], weights: Weights) -> float:
    """Return Eq. (10) over unordered pairs of modalities, for feasible V, from r × r and c × c sums.

    ‖B Vᵀ − rS‖² = n²r − 2r⟨D, C⟩ + r²‖LtᵀWLt‖² because VᵀWV = nI, and similarly between modalities and for ‖B − V‖².
    """
    total = 0.0
    for view in views:
        r = view.Vs.shape[1]
        total += view.misfit
        total += weights.quantization * 2 * (view.n * r - float(np.vdot(view.Bs, view.Vs)))
        cross = float(np.vdot(view.D, view.C))
        total += weights.intra * (view.n**2 * r - 2 * r * cross + r**2 * squared(view.S2[1:, 1:]))
    for i, first in enumerate(views):
        for second in views[i + 1 :]:
            cross = float(np.vdot(first.C, second.C))
            squares = float(np.vdot(first.S2[1:, 1:], second.S2[1:, 1:]))
            total += weights.inter * (first.n * second.n * r - 2 * r * cross + r**2 * squares)
    return total


def label_patterns(L: Array) -> tuple[Array, Array, Array]:
    """Return the distinct label rows, the pattern of each item, and the number of items of each pattern."""
    packed = np.packbits(L, axis=1)  # np.unique(axis=0) on the rows themselves is slow
    words = np.zeros((L.shape[0], -(-packed.shape[1] // 8) * 8), dtype=np.uint8)
    words[:, : packed.shape[1]] = packed
    keys = words.view(np.uint64)
    rows = keys[:, 0] if keys.shape[1] == 1 else words.view(f"V{words.shape[1]}")[:, 0]
    _, first, inverse, counts = np.unique(rows, return_index=True, return_inverse=True, return_counts=True)
    return L[first], inverse, counts


@dataclass(frozen=True)
class Start:
    """Initial state of step 1 for one modality, for any code length."""

    labels: Array
    patterns: Array  # distinct label rows
    member: Array  # pattern of each item
    counts: Array  # number of items of each pattern
    keys: Array
    order: Array  # item ids in the order of content, so that shuffled items get the same codes
    projected: Array | None  # Φ W of the authors' PCA start; None for a random start
    seed: int

    @classmethod
    def of(cls, X: Matrix, labels: Array, phi: FeatureRows | None, n_bits: int, seed: int) -> Start:
        """Prepare codes of up to ``n_bits``; V starts from ``phi`` if given."""
        keys = row_keys(X, seed) ^ row_keys(labels, seed)
        order = np.argsort(keys, kind="stable")
        projected = None
        if phi is not None:
            sample = phi.take(order[-PCA_SAMPLE:]).astype(np.float64)
            projected = phi.project(principal_directions(sample, n_bits))
        return cls(labels, *label_patterns(labels), keys, order, projected, seed)

    def copies(self, n_bits: int) -> Array:
        """Return the number of rows of each pattern."""
        share = max(1.0, len(self.labels) / (ROWS_PER_BIT * n_bits))  # largest number of items per row
        return np.ceil(self.counts / share).astype(np.int64)

    def worth_sharing(self, n_bits: int) -> bool:
        """Return whether there are far fewer shared rows than items, and enough patterns or very many items."""
        rows, items = int(self.copies(n_bits).sum()), len(self.labels)
        return 16 * rows <= items or (2 * rows < items and len(self.patterns) >= 4 * n_bits)

    def view(self, n_bits: int, *, shared: bool) -> View:
        """Return the state before the first iteration, with one row per item or shared rows."""
        rng = stream(self.seed, self.keys)
        if not shared:
            row = np.empty_like(self.order)
            row[self.order] = np.arange(len(row))
            return View(self.labels[self.order], self._items(n_bits, rng), rng, row=row, order=self.order)
        copies = self.copies(n_bits)
        row = self._spread(copies)
        weights = np.bincount(row).astype(np.float64)
        V = self._means(n_bits, row, weights, rng)
        return View(np.repeat(self.patterns, copies, axis=0), V, rng, weights, row, self.order)

    def _spread(self, copies: Array) -> Array:
        """Return the row of every item; the items of a pattern take its rows in turn, in the order of content."""
        items = self.order[np.argsort(self.member[self.order], kind="stable")]  # pattern by pattern
        pattern = self.member[items]
        number = np.arange(len(items)) - np.repeat(np.cumsum(self.counts) - self.counts, self.counts)
        row = np.empty_like(items)
        row[items] = (np.cumsum(copies) - copies)[pattern] + number % copies[pattern]
        return row

    def _items(self, n_bits: int, rng: np.random.Generator) -> Array:
        if self.projected is None:  # the paper's start, made feasible
            return balanced_procrustes(rng.standard_normal((len(self.labels), n_bits)), rng)
        V = self.projected[self.order, :n_bits].astype(np.float64)
        missing = n_bits - V.shape[1]  # bits beyond the number of directions start as noise
        return np.hstack([V, V.std() * rng.standard_normal((len(V), missing))]) if missing else V

    def _means(self, n_bits: int, row: Array, weights: Array, rng: np.random.Generator) -> Array:
        """Return the mean V of the items of each row; a random start is drawn from the distribution of such means."""
        if self.projected is None:
            V = rng.standard_normal((len(weights), n_bits)) / np.sqrt(weights)[:, None]
            V -= weights @ V / weights.sum()
            return V
        mean = sparse.csr_array((1 / weights[row], (row, np.arange(len(row)))))
        V = np.asarray(mean @ self.projected[:, :n_bits])
        missing = n_bits - V.shape[1]
        noise = self.projected.std() * rng.standard_normal((len(V), missing)) / np.sqrt(weights)[:, None]
        return np.hstack([V, noise])
