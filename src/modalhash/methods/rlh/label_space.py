r"""RLH: labels as vectors of one space, and how relevant they are to each other.

Every distinct label set is a *pattern*; patterns of all modalities are pooled, so that work on them costs the same for
any number of items. Scaled to length 1 they are the vectors :math:`\tilde l` of the label space.

==================  ===========================  ==================================================================
symbol              here                         is
==================  ===========================  ==================================================================
:math:`\tilde l`    ``Lt`` (patterns, c)         label patterns with rows of length 1, CSR
:math:`V`           ``basis`` (c, k)             basis of the label space; None for the identity, k = c
:math:`R`           :class:`Relevance`           0 where patterns share no label, else up to 1
==================  ===========================  ==================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
from scipy import sparse

from modalhash.core.blocks import ordered_sum, row_slices
from modalhash.core.typing import Array

OVERSAMPLING, POWER_ITERATIONS = 16, 4
"""Of the subspace iteration that finds a basis for many labels."""
STRIP_VALUES = 2**22
"""Values of a dense strip of patterns worked on at once."""
WORDS_UP_TO = 1024
"""Labels up to which relevance is looked up in bits; with more, a product of sparse rows is faster."""


class LabelSpace:
    """The label patterns of all modalities, and the coordinates in which they are compared.

    Parameters
    ----------
    labels : by modality, CSR (n, c) of truth values in canonical format
    rank : columns c up to which labels are their own coordinates; beyond it, the leading ``rank`` right singular
        vectors of the patterns, weighted by their numbers of items, are the basis
    seed : of the start of the iteration that finds the basis
    """

    def __init__(self, labels: Mapping[str, sparse.csr_array], rank: int, seed: int) -> None:
        stacked = sparse.csr_array(sparse.vstack(list(labels.values()), format="csr"))
        self.patterns, members = label_patterns(stacked)
        ends = np.cumsum([values.shape[0] for values in labels.values()])[:-1]
        self.members: dict[str, Array] = dict(zip(labels, np.split(members, ends), strict=True))
        self.counts = np.bincount(members[members >= 0], minlength=self.patterns.shape[0])
        self.n_classes = int(self.patterns.shape[1])
        self.Lt = unit_label_rows(self.patterns)
        self.basis: Array | None = None
        if self.n_classes > rank:
            self.basis = leading_directions(self.Lt, self.counts, rank, np.random.default_rng(seed))

    @property
    def width(self) -> int:
        """Return k, the number of coordinates."""
        return self.n_classes if self.basis is None else int(self.basis.shape[1])

    def coordinates(self, rows: Array) -> Array:
        """Return the vectors of these patterns, dense."""
        Lt = self.Lt[rows]
        return np.asarray(Lt.toarray() if self.basis is None else Lt @ self.basis)

    def sample(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return up to ``count`` patterns to draw from, and the number of items of each."""
        if len(self.counts) <= count:
            return np.arange(len(self.counts)), self.counts
        drawn = rng.integers(self.counts.sum(), size=count)
        rows = np.sort(np.searchsorted(np.cumsum(self.counts), drawn, side="right"))
        return rows, np.ones_like(rows)

    @cached_property
    def scale(self) -> float:
        """Return 1 / the standard deviation of the coordinates of all items."""
        total, squares, n = 0.0, 0.0, float(self.counts.sum() * self.width)
        for rows in row_slices(len(self.counts), max(1, STRIP_VALUES // self.width)):
            S, w = self.coordinates(np.arange(rows.start, rows.stop)).astype(np.float64), self.counts[rows]
            total += float(w @ S.sum(axis=1))
            squares += float(w @ np.einsum("ij,ij->i", S, S))
        return inverse_deviation(squares / n - (total / n) ** 2)

    def in_classes(self, A: Array) -> Array:
        """Return the functions (c, r) of label rows of length 1 that equal the functions (k, r) of coordinates."""
        return A if self.basis is None else self.basis @ A


class Relevance:
    """Relevance of label patterns to each other, for batches, without a matrix of patterns by patterns.

    Parameters
    ----------
    patterns : CSR (patterns, c) of truth values
    graded : g, from 0 (patterns that share a label are relevant) to 1 (relevance is the share of labels in common)
    """

    def __init__(self, patterns: sparse.csr_array, graded: float = 0.0) -> None:
        self._graded = np.float32(graded)
        self._rows = None
        self._sizes = np.diff(patterns.indptr).astype(np.float32)
        if patterns.shape[1] <= WORDS_UP_TO:
            bits = np.packbits(patterns.toarray().astype(bool), axis=1)
            word = np.dtype(np.uint32 if bits.shape[1] <= 4 else np.uint64)
            words = np.zeros((len(bits), -(-bits.shape[1] // word.itemsize) * word.itemsize), dtype=np.uint8)
            words[:, : bits.shape[1]] = bits
            self._words = np.ascontiguousarray(words.view(word).T)  # (words, patterns)
        else:
            self._rows = patterns.astype(np.float32)

    def __call__(self, first: Array, second: Array) -> Array:
        """Return R of each of the first patterns and each of the second, float32."""
        common = self._common(first, second)
        ones = np.ones(len(second), dtype=np.float32)  # a row, because numpy's minimum with a scalar is not vectorised
        if self._graded == 0:
            return np.minimum(common, ones, out=common)
        R = self._sizes[second] - common
        R += self._sizes[first][:, None]
        np.divide(common, R, out=R)  # labels in common over labels of either
        R *= self._graded
        np.minimum(common, ones, out=common)  # 1 where a label is shared
        common *= 1 - self._graded
        R += common
        return R

    def targets(self, first: Array, second: Array) -> Array:
        """Return 2R − 1."""
        R = self(first, second)
        R *= np.float32(2)
        R -= np.float32(1)
        return R

    def _common(self, first: Array, second: Array) -> Array:
        """Return the number of labels in common, float32."""
        if self._rows is not None:
            return np.asarray((self._rows[first] @ self._rows[second].T).toarray())
        counts = (np.bitwise_count(word[first][:, None] & word[second]) for word in self._words)
        common = next(counts).astype(np.float32)
        for count in counts:
            common += count
        return common


def unit_label_rows(labels: sparse.csr_array) -> sparse.csr_array:
    """Return label rows scaled to length 1, float32; every row has a label."""
    sizes = np.diff(labels.indptr)
    data = np.repeat(1 / np.sqrt(sizes), sizes).astype(np.float32)
    return sparse.csr_array((data, labels.indices, labels.indptr), shape=labels.shape)


def label_patterns(labels: sparse.csr_array) -> tuple[sparse.csr_array, Array]:
    """Return the distinct label rows in an order of their own, and the pattern of each item; −1 without labels."""
    sizes, starts = np.diff(labels.indptr), labels.indptr[:-1]
    member, firsts, found = np.full(labels.shape[0], -1), [], 0
    for size in np.unique(sizes[sizes > 0]):
        rows = np.flatnonzero(sizes == size)
        columns = labels.indices[starts[rows][:, None] + np.arange(size)].astype(">u4")
        words = columns[:, 0] if size == 1 else columns.view(f"V{4 * size}")[:, 0]
        _, first, inverse = np.unique(words, return_index=True, return_inverse=True)
        member[rows] = found + inverse
        firsts.append(rows[first])
        found += len(first)
    return labels[np.concatenate(firsts)], member


def leading_directions(Lt: sparse.csr_array, counts: Array, rank: int, rng: np.random.Generator) -> Array:
    """Return the leading right singular vectors of the weighted patterns, by subspace iteration.

    No matrix of labels by labels and no dense one of patterns by labels is made, only (c, rank) ones and strips.
    """
    M = sparse.csr_array(sparse.diags_array(np.sqrt(counts).astype(np.float32)) @ Lt)
    rank = min(rank, M.shape[0])
    Q = rng.standard_normal((M.shape[1], min(rank + OVERSAMPLING, M.shape[1])), dtype=np.float32)
    slices = list(row_slices(M.shape[0], max(1, STRIP_VALUES // Q.shape[1])))
    for _ in range(POWER_ITERATIONS):
        Z = ordered_sum(M[rows].T @ (M[rows] @ Q) for rows in slices)
        Q = np.linalg.qr(Z)[0].astype(np.float32)
    values, E = np.linalg.eigh(ordered_sum((P := M[rows] @ Q).T @ P for rows in slices))
    values, E = values[::-1][:rank], E[:, ::-1][:, :rank]
    return np.asarray(Q @ E[:, values > 1e-6 * values[0]].astype(np.float32))


def inverse_deviation(variance: float) -> float:
    """Return 1 / √variance, and 1 where nothing varies."""
    return 1 / float(np.sqrt(variance)) if variance > 1e-12 else 1.0
