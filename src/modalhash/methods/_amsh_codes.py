r"""AMSH, step 1: latent representations V and codes B from labels.

Eq. (10) of the paper over *rows with weights*: a row is an item (weight 1, the paper's algorithm) or a
label pattern, i.e. a distinct label row that counts for all items that carry it. Step 1 sees nothing of
an item but its labels, so both give the same algorithm; patterns only share what is equal from the start.

:class:`Start` holds all that does not depend on the code length and serves any number of lengths. Items that share
their labels share a row, but not all of them: a frequent pattern gets several rows, each for an equal share of its
items and with a start of its own. One row per pattern leaves too few to carry uncorrelated bits where a few patterns
hold most items: on the twin of NUS-WIDE it cost .03 to .10 of mAP at 16 to 128 bits. With 32 rows per bit nothing was
lost against a row per item (16, 64 and 128 bits).

=============  =====================  ==========================================================
paper          here                   is
=============  =====================  ==========================================================
:math:`L`      ``L`` (rows, c)        labels, boolean
:math:`\tilde L`  ``Lt`` (rows, c)    labels with rows of length 1, CSR where sparse
--             ``w`` (rows,)          items behind each row; n = Σ w
:math:`V`      ``V`` (rows, r)        latent representation, VᵀWV = nI, wᵀV = 0
:math:`B`      ``B`` (rows, r)        codes, ±1
:math:`P`      ``P`` (r, c)           label regression: L ≈ V P
:math:`L + R\odot E`  ``T`` (rows, c) labels with margins; neither R nor E exists as a matrix
:math:`\tilde L V^T`  ``C`` (c, r)    Ltᵀ W V: all that another modality needs to know of V
=============  =====================  ==========================================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import sparse

from modalhash._typing import Array, Matrix
from modalhash.blocks import Parts
from modalhash.linalg import balanced_procrustes, principal_directions, sign, unit_rows
from modalhash.randomness import row_keys, stream

SPARSE_BELOW = 0.15
PCA_SAMPLE = 1000
"""Items from which the authors' code takes the principal directions for the initial V."""
ROWS_PER_BIT = 32


@dataclass(frozen=True)
class Weights:
    """The trade-offs of Eq. (10)."""

    quantization: float  # η
    intra: float  # λ
    inter: float  # β, over unordered pairs of modalities
    label_margins: bool = True


@dataclass
class View:
    """Step 1's state of one modality."""

    L: Array
    V: Array
    rng: np.random.Generator
    w: Array | None = None
    Lt: Array | sparse.csr_array = field(init=False)
    WLt: Array | sparse.csr_array = field(init=False)
    B: Array = field(init=False)
    P: Array = field(init=False)
    T: Array = field(init=False)
    H: Array = field(init=False)  # V P of the newest V
    C: Array = field(init=False)
    D: Array = field(init=False)  # Ltᵀ W B (c, r)
    feasible: bool = field(init=False, default=False)  # V is balanced and uncorrelated: from its first update on
    S2: Array = field(init=False)  # Ltᵀ W Lt (c, c): the only trace of S in the objective

    def __post_init__(self) -> None:
        Lt = unit_rows(self.L)
        self.Lt = sparse.csr_array(Lt) if self.L.mean() < SPARSE_BELOW else Lt
        self.WLt = self.weigh(self.Lt)
        self.S2 = np.asarray(self.WLt.T @ Lt)
        self.T = self.L.astype(np.float64)  # E = 0
        self.B = sign(self.V)
        self.C = self.semantic_sum(self.V)
        self.D = self.semantic_sum(self.B)
        self.P = np.zeros((self.V.shape[1], self.L.shape[1]))

    @property
    def n(self) -> float:
        """Items behind the rows."""
        return float(self.L.shape[0] if self.w is None else self.w.sum())

    def weigh(self, X: Any) -> Any:
        """W X."""
        if self.w is None:
            return X
        return sparse.diags_array(self.w) @ X if sparse.issparse(X) else X * self.w[:, None]

    def squared(self, X: Array) -> float:
        """Σ w ‖x‖² over the rows x."""
        rows = np.einsum("ij,ij->i", X, X)
        return float(rows.sum() if self.w is None else self.w @ rows)

    def semantic_sum(self, X: Array) -> Array:
        """Ltᵀ W X: S X in the low-rank form, never S itself."""
        return np.asarray(self.WLt.T @ X)


def learn_codes(
    views: list[View],
    weights: Weights,
    *,
    max_iter: int,
    tol: float,
    report: Callable[[int, float], None] = lambda step, objective: None,
) -> list[float]:
    """Algorithm 1, lines 2-7, in the order of the authors' code. Returns the objective's trace."""
    trace: list[float] = []
    for step in range(max_iter):
        for view in views:
            update_P(view)  # Eq. (12)
        for i in range(len(views)):
            update_V(views, i, weights)  # Theorem III.1; Gauss-Seidel: sees the newest V of the others
        for view in views:
            update_B(view, weights)  # Eq. (18)
            update_T(view, weights)  # Eq. (21)
        trace.append(objective(views, weights))
        report(step + 1, trace[-1])
        if tol > 0 and step and trace[-2] - trace[-1] <= tol * abs(trace[-2]):
            break
    return trace


def update_P(view: View) -> None:
    """Eq. (12): VᵀWT / n, for VᵀWV = nI; the first V (PCA) is not feasible yet."""
    WT = view.weigh(view.T)
    if view.feasible:
        view.P = (WT.T @ view.V).T / view.n
    else:
        view.P = np.linalg.lstsq(view.V.T @ view.weigh(view.V), view.V.T @ WT, rcond=1e-12)[0]


def update_V(views: list[View], i: int, weights: Weights) -> None:
    """Theorem III.1: the exact minimiser over V of modality i, the others fixed."""
    view = views[i]
    r = view.V.shape[1]
    semantic = weights.intra * r * view.D
    for j, other in enumerate(views):
        if j != i:
            semantic += weights.inter * r * other.C
    Z = view.T @ view.P.T
    Z += view.Lt @ semantic
    Z += weights.quantization * view.B
    view.V, view.feasible = balanced_procrustes(Z, view.rng, view.w), True
    view.C = view.semantic_sum(view.V)


def update_B(view: View, weights: Weights) -> None:
    """Eq. (18). sgn(0) = −1 as the paper has it; the authors' sign() lets 0 through."""
    r = view.V.shape[1]
    Z = view.Lt @ (weights.intra * r * view.C)
    Z += weights.quantization * view.V
    view.B = sign(Z)
    view.D = view.semantic_sum(view.B)


def update_T(view: View, weights: Weights) -> None:
    """Eq. (21) put into L + R∘E: the margins are a clip, max(1, PV) at label 1 and min(0, PV) at 0."""
    view.H = view.V @ view.P
    if weights.label_margins:
        view.T = np.where(view.L, np.maximum(view.H, 1.0), np.minimum(view.H, 0.0))


def objective(views: list[View], weights: Weights) -> float:
    """Eq. (10) over unordered pairs of modalities, for feasible V, from r × r and c × c sums.

    ‖B Vᵀ − rS‖² = n²r − 2r⟨D, C⟩ + r²‖LtᵀWLt‖² because VᵀWV = nI; likewise between modalities.
    """
    total = 0.0
    for view in views:
        r = view.V.shape[1]
        total += view.squared(view.T - view.H)
        total += weights.quantization * view.squared(view.B - view.V)
        cross = float(np.vdot(view.D, view.C))
        total += weights.intra * (view.n**2 * r - 2 * r * cross + r**2 * float(np.vdot(view.S2, view.S2)))
    for i, first in enumerate(views):
        for second in views[i + 1 :]:
            cross = float(np.vdot(first.C, second.C))
            squares = float(np.vdot(first.S2, second.S2))
            total += weights.inter * (first.n * second.n * r - 2 * r * cross + r**2 * squares)
    return total


def label_patterns(L: Array) -> tuple[Array, Array, Array]:
    """Distinct label rows, which of them each item carries, and how many items carry each."""
    packed = np.packbits(L, axis=1)  # np.unique(axis=0) on the rows themselves is slow
    words = np.zeros((L.shape[0], -(-packed.shape[1] // 8) * 8), dtype=np.uint8)
    words[:, : packed.shape[1]] = packed
    keys = words.view(np.uint64)
    rows = keys[:, 0] if keys.shape[1] == 1 else words.view(f"V{words.shape[1]}")[:, 0]
    _, first, inverse, counts = np.unique(rows, return_index=True, return_inverse=True, return_counts=True)
    return L[first], inverse, counts


@dataclass(frozen=True)
class Start:
    """What step 1 begins with for one modality, at any code length."""

    labels: Array
    patterns: Array  # distinct label rows
    member: Array  # which of them each item carries
    counts: Array  # how many items carry each
    keys: Array
    order: Array  # of the items by content, so that shuffled items get the same codes
    projected: Array | None  # Φ W of the authors' PCA start, directions in their order; None: random start
    seed: int

    @classmethod
    def of(cls, X: Matrix, labels: Array, phi: Parts | None, n_bits: int, seed: int) -> Start:
        """``n_bits`` is the longest code wanted; ``phi`` only where the start is to be made from features."""
        keys = row_keys(X, seed) ^ row_keys(labels, seed)
        order = np.argsort(keys, kind="stable")
        projected = None
        if phi is not None:
            sample = phi.take(order[-PCA_SAMPLE:]).astype(np.float64)
            projected = phi.project(principal_directions(sample, n_bits))
        return cls(labels, *label_patterns(labels), keys, order, projected, seed)

    def copies(self, n_bits: int) -> Array:
        """Rows of each pattern."""
        share = max(1.0, len(self.labels) / (ROWS_PER_BIT * n_bits))  # items of one row, at most
        return np.ceil(self.counts / share).astype(np.int64)

    def n_rows(self, n_bits: int, solver: str) -> int:
        """Rows of V."""
        return int(self.copies(n_bits).sum()) if solver == "patterns" else len(self.labels)

    def worth_sharing(self, n_bits: int) -> bool:
        """Whether rows shared by items are far fewer than items; with few patterns only where items are very many."""
        rows, items = int(self.copies(n_bits).sum()), len(self.labels)
        return 16 * rows <= items or (2 * rows < items and len(self.patterns) >= 4 * n_bits)

    def view(self, n_bits: int, *, shared: bool) -> tuple[View, Array]:
        """Step 1's state before the first iteration, and the row of every item: one of its own, or a shared one."""
        rng = stream(self.seed, self.keys)
        if not shared:
            row = np.empty_like(self.order)
            row[self.order] = np.arange(len(row))
            return View(self.labels[self.order], self._items(n_bits, rng), rng), row
        copies = self.copies(n_bits)
        row = self._spread(copies)
        weights = np.bincount(row).astype(np.float64)
        return View(np.repeat(self.patterns, copies, axis=0), self._means(n_bits, row, weights, rng), rng, weights), row

    def _spread(self, copies: Array) -> Array:
        """The row of every item: a pattern's items take its rows in turn, in the order of their content."""
        items = self.order[np.argsort(self.member[self.order], kind="stable")]  # pattern by pattern
        pattern = self.member[items]
        number = np.arange(len(items)) - np.repeat(np.cumsum(self.counts) - self.counts, self.counts)
        row = np.empty_like(items)
        row[items] = (np.cumsum(copies) - copies)[pattern] + number % copies[pattern]
        return row

    def _items(self, n_bits: int, rng: np.random.Generator) -> Array:
        if self.projected is None:  # the paper; made feasible at once
            return balanced_procrustes(rng.standard_normal((len(self.labels), n_bits)), rng)
        V = self.projected[self.order, :n_bits].astype(np.float64)
        missing = n_bits - V.shape[1]  # more bits than directions: the rest starts as noise
        return np.hstack([V, V.std() * rng.standard_normal((len(V), missing))]) if missing else V

    def _means(self, n_bits: int, row: Array, weights: Array, rng: np.random.Generator) -> Array:
        """Mean V of the items of each row; a random start is drawn as such means are distributed."""
        if self.projected is None:
            V = rng.standard_normal((len(weights), n_bits)) / np.sqrt(weights)[:, None]
            V -= weights @ V / weights.sum()
            return V
        mean = sparse.csr_array((1 / weights[row], (row, np.arange(len(row)))))
        V = np.asarray(mean @ self.projected[:, :n_bits])
        missing = n_bits - V.shape[1]
        noise = self.projected.std() * rng.standard_normal((len(V), missing)) / np.sqrt(weights)[:, None]
        return np.hstack([V, noise])
