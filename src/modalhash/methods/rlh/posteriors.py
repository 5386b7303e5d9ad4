r"""RLH: labels as vectors of one space, and posteriors, the vectors that features predict.

Every distinct label set is a *pattern*. Patterns of all modalities are pooled, so that their processing cost does not
depend on the number of items. Scaled to length 1, they are the vectors :math:`\tilde l` of the label space.

The *posterior* :math:`\hat s = E[\tilde l\mid x]` of an item is a vector of the label space, predicted by a ridge
regression from features to labels, fitted without the fold of the item,

.. math:: W_{-f} = (G - G_f + \rho I)^{-1}(C - C_f), \qquad G = \sum_f G_f = \Phi^T\Phi,\quad C = \sum_f C_f = \Phi^T T

so that one pass over the features gives the sums of every fold. Their total is the Gram matrix that step 2 needs.

==================  ===========================  ======================================================================
symbol              here                         is
==================  ===========================  ======================================================================
:math:`\tilde l`    ``Lt`` (patterns, c)         label patterns with rows of length 1, CSR
:math:`V`           ``basis`` (c, k)             basis of the label space; None for the identity, k = c
:math:`T`           ``coordinates`` (n, k)       :math:`\tilde l` of each item, computed block by block
:math:`\phi(X)`     ``phi`` (n, d)               kernel features with a bias, in blocks
:math:`G_f, C_f`    ``gram[f]``, ``cross[f]``    φᵀφ (d, d) and φᵀT (d, k) of a fold
:math:`W_{-f}`      ``weights[f]`` (d, k)        posteriors of the items of fold f; the last one, W, of new items
:math:`\hat s`      ``S`` (m, k)                 out-of-fold posteriors of up to ``n_posteriors`` items
==================  ===========================  ======================================================================

Items are sorted by a hash of their content, which is as good as random and independent of the given order. A fold is a
run of rows, a sample is the first rows of every fold, and shuffled items have bitwise equal sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np
from scipy import sparse

from modalhash.core.blocks import (
    BLOCK_BYTES,
    MIN_BLOCK_BYTES,
    FeatureRows,
    RemoteItems,
    _deflated_square,
    ordered_sum,
    row_slices,
)
from modalhash.core.features import FeatureMap
from modalhash.core.linalg import RidgeFactor
from modalhash.core.parallel import parallel_map
from modalhash.core.randomness import row_keys
from modalhash.core.typing import Array, Matrix
from modalhash.methods.rlh.codes import Source

OVERSAMPLING, POWER_ITERATIONS = 16, 4
"""Parameters of the subspace iteration that finds a basis for many labels."""
STRIP_VALUES = 2**22
"""Values of a dense strip of patterns or features that is processed in one step."""
DENSE_ABOVE = 0.1
"""Fraction of ones in the labels above which a dense product with the features is faster."""
SMALL_FOLD = 1024
"""Largest number of labelled items of a fold whose features may be computed twice."""


class LabelSpace:
    """The label patterns of all modalities, and their coordinates.

    Parameters
    ----------
    labels : by modality, canonical boolean CSR (n, c)
    rank : largest c for which labels are their own coordinates; for more labels, the basis is the ``rank`` leading
        right singular vectors of the patterns, weighted by their numbers of items
    seed : seed of the iteration that finds the basis
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
        return self.n_classes if self.basis is None else int(self.basis.shape[1])

    def coordinates(self, rows: Array) -> Array:
        """Return the vectors of patterns, dense."""
        Lt = self.Lt[rows]
        return np.asarray(Lt.toarray() if self.basis is None else Lt @ self.basis)

    def sample(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return up to ``count`` patterns and their numbers of items; a sample of items if there are more."""
        if len(self.counts) <= count:
            return np.arange(len(self.counts)), self.counts
        drawn = rng.integers(self.counts.sum(), size=count)
        rows = np.sort(np.searchsorted(np.cumsum(self.counts), drawn, side="right"))
        return rows, np.ones_like(rows)

    @cached_property
    def scale(self) -> float:
        """Inverse of the standard deviation of the coordinates of all items."""
        total, squares, n = 0.0, 0.0, float(self.counts.sum() * self.width)
        for rows in row_slices(len(self.counts), max(1, STRIP_VALUES // self.width)):
            S, w = self.coordinates(np.arange(rows.start, rows.stop)).astype(np.float64), self.counts[rows]
            total += float(w @ S.sum(axis=1))
            squares += float(w @ np.einsum("ij,ij->i", S, S))
        return inverse_deviation(squares / n - (total / n) ** 2)

    def in_classes(self, A: Array) -> Array:
        """Return the functions (c, r) of label rows of length 1 that equal functions (k, r) of coordinates."""
        return A if self.basis is None else self.basis @ A


def unit_label_rows(labels: sparse.csr_array) -> sparse.csr_array:
    """Return label rows scaled to length 1, float32; every row has a label."""
    sizes = np.diff(labels.indptr)
    data = np.repeat(1 / np.sqrt(sizes), sizes).astype(np.float32)
    return sparse.csr_array((data, labels.indices, labels.indptr), shape=labels.shape)


def label_patterns(labels: sparse.csr_array) -> tuple[sparse.csr_array, Array]:
    """Return the distinct label rows, sorted, and the pattern of each item, −1 without labels."""
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

    Only matrices (c, rank) and strips are dense, not labels by labels or patterns by labels.
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
    """Return 1 / √variance, or 1 if the variance vanishes."""
    return 1 / float(np.sqrt(variance)) if variance > 1e-12 else 1.0


class Ordered:
    """The rows of a dense array in another order, gathered on access."""

    def __init__(self, X: Array, order: Array) -> None:
        self._X, self._order = X, order
        self.shape, self.dtype = (len(order), X.shape[1]), X.dtype

    def __getitem__(self, rows: slice | Array) -> Array:
        return np.asarray(self._X[self._order[rows]])

    def mean(self, axis: int, dtype: Any) -> Array:
        slices = row_slices(self.shape[0], max(1, STRIP_VALUES // self.shape[1]))
        return np.asarray(ordered_sum(self[rows].sum(axis=axis, dtype=dtype) for rows in slices) / self.shape[0])


@dataclass(frozen=True)
class Folds:
    """The items of one modality in the order of content: labelled ones in folds of ``size`` rows, then the others.

    A fold is a whole number of blocks, for any block size that the memory limit allows.
    """

    order: Array  # row ids of the data, in the order of content
    key: int  # of the modality, the same for the same labelled items
    n: int  # labelled items
    size: int
    unit: int  # a divisor of the size; its divisors are the possible numbers of blocks of a fold

    @classmethod
    def of(cls, X: Matrix, labels: sparse.csr_array, n_folds: int, seed: int) -> Folds:
        """Sort the items, by features first, so that copies of an item are in one fold."""
        keys, label_keys = row_keys(X, seed), row_keys(labels, seed)
        empty = np.diff(labels.indptr) == 0
        order = np.lexsort((label_keys, keys, empty))
        n = int(len(empty) - empty.sum())
        size, unit = -(-n // n_folds), 1
        while 128 * max(12, 2 * unit) <= size:
            unit = max(12, 2 * unit)
        key = int(np.add.reduce((keys ^ label_keys)[~empty], dtype=np.uint64))
        return cls(order, key, n, -(-size // unit) * unit, unit)

    def __len__(self) -> int:
        return -(-self.n // self.size)

    @property
    def are_runs(self) -> bool:
        """Whether blocks of features follow the folds; not if few items have labels and folds are small."""
        return 2 * self.n >= len(self.order) or self.size > SMALL_FOLD

    def features(self, X: Matrix, feature_map: FeatureMap, memory: int | None) -> FeatureRows:
        """Fit the feature map and return the features of all items in the order of the folds."""
        if isinstance(X, RemoteItems):
            rows: Any = X.ordered(self.order)
        else:
            rows = X[self.order] if sparse.issparse(X) else Ordered(X, self.order)
        if not self.are_runs:
            return feature_map.fit_parts(rows, memory_limit=memory)
        block = self.block_rows(feature_map.width_for(X) * np.dtype(feature_map.dtype).itemsize, memory)
        return feature_map.fit_parts(rows, memory_limit=memory, block_rows=block, run_rows=self.size)

    def block_rows(self, row_bytes: int, memory: int | None) -> int:
        """Return the rows per block, a divisor of the fold's size close to the default of FeatureBlocks."""
        target = BLOCK_BYTES if memory is None else min(BLOCK_BYTES, memory // 16)
        wanted = max(1, max(target, MIN_BLOCK_BYTES) // row_bytes)
        cuts = (cut for cut in range(1, self.unit + 1) if self.unit % cut == 0 and self.size // cut <= wanted)
        return self.size // next(cuts, self.unit)

    def fold_of_rows(self) -> Array:
        """Return the fold of every row; items without labels have the number after the last fold."""
        rows = np.arange(len(self.order))
        return np.where(rows < self.n, rows // self.size, len(self))

    def sample(self, count: int) -> Iterator[slice]:
        """Yield the first rows of every fold, in proportion to its size, about ``count`` in total."""
        for rows in row_slices(self.n, self.size):
            yield slice(rows.start, rows.start + -(-count * (rows.stop - rows.start) // self.n))


@dataclass(frozen=True)
class LabelRegression:
    """The features of one modality, and the regression from them to its labels."""

    folds: Folds
    feature_map: FeatureMap
    phi: FeatureRows  # rows in the order of the folds
    member: Array  # pattern of every row of phi; −1 without labels
    gram: Array  # G
    W: Array  # from all labelled items
    source: Source  # out-of-fold posteriors, times scale
    scale: float  # inverse of their standard deviation

    def inverse(self, ridge: float) -> Array:
        return RidgeFactor(self.gram, ridge).inverse()

    def code_functions(self, A: Array, b: Array) -> Array:
        """Return the functions of the features whose signs are the codes of the posteriors, W A with bias b."""
        F = self.W.astype(np.float64) @ (A.astype(np.float64) * self.scale)
        F[-1] += b  # the last feature is 1
        return F


def regress_labels(
    phi: FeatureRows,
    feature_map: FeatureMap,
    folds: Folds,
    member: Array,
    space: LabelSpace,
    *,
    ridge: float,
    n_posteriors: int,
    all_items: bool,
) -> LabelRegression:
    """Learn the posteriors of one modality.

    Parameters
    ----------
    phi, feature_map : features in the order of the folds, and their map
    member : pattern of every row of ``phi``; −1 without labels
    n_posteriors : approximate number of out-of-fold posteriors
    all_items : whether G includes items without labels
    """
    gram, cross = fold_sums(phi, member, space, folds)
    G, weights = solve_folds(gram, cross, ridge)
    weights = weights.astype(phi.dtype)
    if all_items and len(member) > folds.n:
        G += gram_without_labels(phi, member)
    S, patterns = out_of_fold(phi, member, folds, weights, n_posteriors)
    scale = inverse_deviation(float(S.var(dtype=np.float64)))
    source = Source.of(S * np.float32(scale), patterns)
    return LabelRegression(folds, feature_map, phi, member, G, weights[-1], source, scale)


def solve_folds(gram: list[Array], cross: list[Array], ridge: float) -> tuple[Array, Array]:
    """Return G, and W without each fold, followed by W of all folds."""
    G, C = ordered_sum(iter(gram)), ordered_sum(iter(cross))
    parts: list[tuple[Any, Any]] = [*zip(gram, cross, strict=True), (0.0, 0.0)]
    weights = parallel_map(_solved, *zip(*((G, C, *part, ridge) for part in parts), strict=True))
    return G, np.stack(list(weights))


def out_of_fold(phi: FeatureRows, member: Array, folds: Folds, weights: Array, count: int) -> tuple[Array, Array]:
    """Return the out-of-fold posteriors of about ``count`` labelled items, or all, and their patterns."""
    n = folds.n
    if n <= count and 2 * n >= len(member):
        fold = np.minimum(folds.fold_of_rows(), len(weights) - 1)
        return phi.map(_posteriors_of_block, per_item=(fold,), shared=(weights,))[:n], member[:n]
    slices = list(folds.sample(min(n, count)))
    parts = parallel_map(_posteriors_of_rows, repeat(phi), slices, weights[: len(folds)])
    return np.concatenate(list(parts)), np.concatenate([member[rows] for rows in slices])


def fold_sums(phi: FeatureRows, member: Array, space: LabelSpace, folds: Folds) -> tuple[list[Array], list[Array]]:
    """Return φᵀφ and φᵀT of every fold, in float64, from one pass over the blocks; see :meth:`FeatureRows.gram`."""
    Q = phi._leading()
    slices = list(row_slices(folds.n, folds.size))
    results: Iterable[tuple[Any, ...]]
    if folds.are_runs:  # runs after the last fold have no labels
        results = phi.run_totals(_sums_of_block, per_item=(member,), shared=(space, Q))[: len(slices)]
    else:
        parts = parallel_map(_sums_of_rows, repeat(phi), slices, repeat(member), repeat(space), repeat(Q))
        results = (ordered_sum(iter([part])) for part in parts)
    gram, cross = [], []
    for total, mixed, square, products in results:
        gram.append(_whole_gram(total, mixed, square, Q))
        cross.append(products)
    return gram, cross


def gram_without_labels(phi: FeatureRows, member: Array) -> Array:
    Q = phi._leading()
    total, mixed, square = phi.total(_squares_without_labels, per_item=(member,), shared=(Q,))
    return _whole_gram(total, mixed, square, Q)


def _whole_gram(total: Array, mixed: Array, square: Array, Q: Array) -> Array:
    """Return φᵀφ from the parts of :func:`modalhash.core.blocks._deflated_square`."""
    wide = Q.astype(np.float64)
    side = mixed + wide @ (square / 2)
    total += np.hstack([side, wide]) @ np.hstack([wide, side]).T  # side Qᵀ and its transpose
    return total


def _squares_without_labels(block: Array, member: Array, Q: Array) -> tuple[Any, ...]:
    unlabelled = member < 0
    return _deflated_square(block[unlabelled], Q) if unlabelled.any() else (0.0, 0.0, 0.0)


def _sums_of_block(block: Array, member: Array, space: LabelSpace, Q: Array) -> tuple[Any, ...]:
    labelled = member >= 0
    if not labelled.all():
        if not labelled.any():
            return 0.0, 0.0, 0.0, 0.0
        block, member = block[labelled], member[labelled]
    if space.basis is None and space.Lt.nnz < DENSE_ABOVE * space.Lt.shape[0] * space.Lt.shape[1]:
        products = (space.Lt[member].astype(block.dtype).T @ block).T
    else:
        products = block.T @ space.coordinates(member).astype(block.dtype, copy=False)
    return *_deflated_square(block, Q), products


def _sums_of_rows(phi: FeatureRows, rows: slice, member: Array, space: LabelSpace, Q: Array) -> tuple[Any, ...]:
    return _sums_of_block(phi.take(np.arange(rows.start, rows.stop)), member[rows], space, Q)


def _solved(G: Array, C: Array, fold_G: Any, fold_C: Any, ridge: float) -> Array:
    """Return (G − G_f + ρI)⁻¹ (C − C_f)."""
    return RidgeFactor(G - fold_G, ridge).solve(C - fold_C)


def _posteriors_of_block(block: Array, fold: Array, W: Array) -> Array:
    first, last = int(fold[0]), int(fold[-1])
    if first == last:
        return block @ W[first]
    return np.concatenate([block[fold == f] @ W[f] for f in range(first, last + 1)])


def _posteriors_of_rows(phi: FeatureRows, rows: slice, W: Array) -> Array:
    parts = row_slices(rows.stop - rows.start, max(1, STRIP_VALUES // phi.width))
    found = [phi.take(np.arange(rows.start + part.start, rows.start + part.stop)) @ W for part in parts]
    return np.concatenate([np.zeros((0, W.shape[1]), dtype=W.dtype), *found])
