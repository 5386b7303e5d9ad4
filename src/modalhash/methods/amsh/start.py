"""AMSH, step 1: the rows of V, and what V starts from.

:class:`Start` holds what does not depend on the code length. Items that share their labels can share a row, but not
all of them: a frequent pattern gets several rows, each for an equal share of its items and with its own start. One
row per pattern leaves too few rows to carry uncorrelated bits where a few patterns hold most items: on the twin of
NUS-WIDE it cost .03 to .10 of mAP at 16 to 128 bits. With 32 rows per bit nothing was lost against one row per item
(16, 64 and 128 bits).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from modalhash._typing import Array, Matrix
from modalhash.blocks import FeatureRows
from modalhash.linalg import balanced_procrustes, principal_directions
from modalhash.methods.amsh.codes import View
from modalhash.randomness import row_keys, stream

PCA_SAMPLE = 1000
"""Items from which the authors' code takes the principal directions for the initial V."""
ROWS_PER_BIT = 32


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
    def of(cls, X: Matrix, labels: Array, phi: FeatureRows | None, n_bits: int, seed: int) -> Start:
        """``n_bits`` is the length of the longest codes; ``phi`` is given if V starts from the features."""
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

    def worth_sharing(self, n_bits: int) -> bool:
        """Whether rows shared by items are far fewer than items; with few patterns only where items are very many."""
        rows, items = int(self.copies(n_bits).sum()), len(self.labels)
        return 16 * rows <= items or (2 * rows < items and len(self.patterns) >= 4 * n_bits)

    def view(self, n_bits: int, *, shared: bool) -> View:
        """Return the state of step 1 before the first iteration; items have a row each, or share rows."""
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
