"""Row blocks, which bound the memory of work over many items.

:class:`FeatureRows` is the interface that methods use: features of many items, of which they need sums and rows. A work
function takes a block, the rows of other arrays that belong to it and what all blocks share. Work functions are pure
and picklable, so they can run in threads, processes or on other machines.

:class:`FeatureBlocks` holds the features in this process. Blocks are cached up to the memory limit and recomputed in
every pass beyond it, with the same result. Each block is processed by one thread, so element-wise work also uses all
cores. The result does not depend on the number of threads, because sums have a fixed order: blocks are added in groups
of :data:`GROUP_BLOCKS`, then the groups one after the other. A group is the unit of work of another machine.

:class:`RemoteRows` are items stored elsewhere, from which only sums and a few rows are transferred.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, repeat
from typing import Any

import numpy as np

from modalhash.core.parallel import parallel_map, parallel_threads
from modalhash.core.typing import Array, Matrix

BLOCK_BYTES = 8 * 2**20
MIN_BLOCK_BYTES = 2**20
"""Minimum regardless of the limit, because passes row by row would be too slow."""
GROUP_BLOCKS = 4
"""Blocks that are summed before they are added to the total; few enough to distribute a fit over many workers."""
PRODUCT_ROWS = 256
"""Rows of a product per task; with 1,500 rows, two threads stay busy to the end."""
DEFLATED = 4
"""Directions that :meth:`FeatureRows.gram` separates in float32."""


def row_slices(n: int, size: int) -> Iterator[slice]:
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


def rows_per_block(n: int, row_bytes: int, memory_limit: int | None) -> int:
    """Return the rows of a block of 8 MiB or a sixteenth of the limit, at least 1 MiB; blocks have equal sizes."""
    target = BLOCK_BYTES if memory_limit is None else min(BLOCK_BYTES, memory_limit // 16)
    rows = max(1, max(target, MIN_BLOCK_BYTES) // row_bytes)
    return -(-n // -(-n // rows))


def block_groups(n: int, block_rows: int, run_rows: int | None = None) -> list[list[list[slice]]]:
    """Return the blocks of ``n`` rows: a list of runs, each a list of groups, each a list of slices.

    A run has ``run_rows`` rows, all by default; no group or block crosses its end.
    """
    return [
        [
            [slice(run.start + rows.start, run.start + rows.stop) for rows in blocks[i : i + GROUP_BLOCKS]]
            for i in range(0, len(blocks), GROUP_BLOCKS)
        ]
        for run in row_slices(n, run_rows or n)
        for blocks in [list(row_slices(run.stop - run.start, block_rows))]
    ]


def product(A: Array, B: Array) -> Array:
    """Return A B, with the rows of A distributed over threads."""
    parts = [A[rows] for rows in row_slices(len(A), PRODUCT_ROWS)]
    return np.concatenate(list(parallel_map(np.matmul, parts, repeat(B))))


class FeatureRows(ABC):
    """Features of ``n`` items, in blocks of rows.

    A *work function* is called as ``work(block, *per_item, *shared)``, where the arrays ``per_item`` (one row per item)
    are cut to the rows of the block. It must be a module-level function, or a ``functools.partial`` of one, so that it
    pickles, and must not modify its arguments.
    """

    n: int
    width: int
    dtype: np.dtype[Any]

    @property
    def held(self) -> bool:
        """Whether all features are in memory, so that a pass recomputes none."""
        return False

    @abstractmethod
    def total(self, work: Callable[..., Any], *, per_item: Sequence[Array] = (), shared: Sequence[Any] = ()) -> Any:
        """Return the sum of the work's results over all blocks, in float64 and in a fixed order.

        If the work returns a tuple of arrays or numbers, return a tuple of sums.
        """

    @abstractmethod
    def run_totals(
        self, work: Callable[..., Any], *, per_item: Sequence[Array] = (), shared: Sequence[Any] = ()
    ) -> list[Any]:
        """Return the sum for each run of rows that the blocks were made for; a single run by default."""

    @abstractmethod
    def map(self, work: Callable[..., Array], *, per_item: Sequence[Array] = (), shared: Sequence[Any] = ()) -> Array:
        """Return the rows that the work returns for every block, as one array with a row per item."""

    @abstractmethod
    def head(self, size: int) -> Array:
        """Return up to ``size`` of the first rows, at most the first block."""

    @abstractmethod
    def take(self, rows: Array) -> Array:
        """Return the features of a few rows, in the order given."""

    @abstractmethod
    def subtract(self, row: Array) -> None:
        """Subtract a row from the features held so far; the map must do so for all others."""

    def whole(self) -> Array:
        return self.map(_itself)

    def mean(self) -> Array:
        return np.asarray(self.total(_column_sums) / self.n)

    def project(self, W: Array) -> Array:
        return self.map(np.matmul, shared=(W.astype(self.dtype),))

    def gram(self) -> Array:
        """Return Σ φᵀφ in float64; each block's product is one SYRK in the precision of the blocks.

        In float32 the few directions with the largest variance are separated first: Φ = Ψ + AQᵀ,
        ΦᵀΦ = ΨᵀΨ + QAᵀΨ + ΨᵀAQᵀ + QAᵀAQᵀ. Otherwise the rounding error of one large eigenvalue can exceed the small
        eigenvalues and the ridge, by a factor of a hundred with many equal rows (e.g. texts of few words).
        """
        if self.dtype != np.float32:
            return np.asarray(self.total(_square))
        Q = self._leading()
        total, mixed, square = self.total(_deflated_square, shared=(Q,))
        side = (mixed + Q @ (square / 2)) @ Q.T.astype(np.float64)
        total += side
        total += side.T
        return np.asarray(total)

    def _leading(self) -> Array:
        """Approximate the leading eigenvectors of ΦᵀΦ from the first rows; any orthonormal columns are valid."""
        rows = self.head(1024)
        Q = np.eye(self.width, min(DEFLATED, self.width))
        Q += 1 / self.width  # no start is orthogonal to the direction that all features share
        for _ in range(8):
            Q = np.linalg.qr(rows.T @ (rows @ Q.astype(self.dtype)))[0]
        return np.asarray(Q, dtype=self.dtype)


def _itself(block: Array) -> Array:
    return block


def _column_sums(block: Array) -> Array:
    return np.add.reduce(block, axis=0, dtype=np.float64)


def _square(block: Array) -> Array:
    return block.T @ block


def _deflated_square(block: Array, Q: Array) -> tuple[Array, Array, Array]:
    """Return ΨᵀΨ, ΨᵀA and AᵀA for A = ΦQ, Ψ = Φ − AQᵀ."""
    A = block @ Q
    rest = A @ -Q.T
    rest += block
    wide = A.astype(np.float64)
    return rest.T @ rest, rest.T @ A, wide.T @ wide


def ordered_sum(results: Iterator[Any]) -> Any:
    """Return the float64 sum of arrays or numbers, or of tuples entry by entry, in the order they come."""
    totals: list[Any] | None = None
    alone = False
    for result in results:
        alone = not isinstance(result, tuple)
        entries = (result,) if alone else result
        if totals is None:
            totals = [np.add(0.0, entry, dtype=np.float64) for entry in entries]
        else:
            for i, entry in enumerate(entries):
                totals[i] += entry
    if totals is None:
        raise ValueError("nothing to sum: there are no blocks")
    return totals[0] if alone else tuple(totals)


class FeatureBlocks(FeatureRows):
    """The rows of ``compute(X)`` in this process, block by block.

    Parameters
    ----------
    X : (n, d) array or CSR
    compute : function of ``(X, rows)`` that returns the features of these rows as a new array
    width, dtype : of the features
    memory_limit : bytes for cached blocks and those in progress together; None for no limit
    block_rows : rows per block; by default :func:`rows_per_block`
    run_rows : rows after which a new block begins, for :meth:`run_totals`
    """

    def __init__(
        self,
        X: Matrix,
        compute: Callable[[Matrix, slice | Array], Array],
        *,
        width: int,
        dtype: np.dtype[Any],
        memory_limit: int | None = None,
        block_rows: int | None = None,
        run_rows: int | None = None,
    ) -> None:
        self.n, self.width, self.dtype = X.shape[0], width, dtype
        row_bytes = width * np.dtype(dtype).itemsize
        if block_rows is None:
            block_rows = rows_per_block(self.n, row_bytes, memory_limit)
        runs = block_groups(self.n, block_rows, run_rows)
        self._runs = [[len(group) for group in run] for run in runs]  # blocks of each group of each run
        self._slices = [rows for run in runs for group in run for rows in group]
        block_bytes = block_rows * row_bytes
        in_use = min(parallel_threads(), len(self._slices))
        self._cacheable = (
            len(self._slices)
            if memory_limit is None or self.n * row_bytes <= memory_limit
            else max(0, memory_limit // block_bytes - in_use)
        )
        self._X, self._compute = X, compute
        self._cache: dict[int, Array] = {}

    def __iter__(self) -> Iterator[tuple[slice, Array]]:
        """Yield every block with its rows, one after the other in the calling thread."""
        for i, rows in enumerate(self._slices):
            yield rows, self._block(i)

    def _block(self, i: int) -> Array:
        block = self._cache.get(i)
        if block is None:
            block = self._compute(self._X, self._slices[i])
            if i < self._cacheable:
                self._cache[i] = block
        return block

    def _results(self, work: Callable[..., Any], per_item: Sequence[Array], shared: Sequence[Any]) -> Iterator[Any]:
        """Yield the work's result for every block, in order; several blocks are in progress at a time."""
        return parallel_map(self._apply, range(len(self._slices)), repeat(work), repeat(per_item), repeat(shared))

    def _apply(self, i: int, work: Callable[..., Any], per_item: Sequence[Array], shared: Sequence[Any]) -> Any:
        return work(self._block(i), *(values[self._slices[i]] for values in per_item), *shared)

    def total(self, work: Callable[..., Any], *, per_item: Sequence[Array] = (), shared: Sequence[Any] = ()) -> Any:
        results = self._results(work, per_item, shared)
        return ordered_sum(ordered_sum(islice(results, size)) for run in self._runs for size in run)

    def run_totals(
        self, work: Callable[..., Any], *, per_item: Sequence[Array] = (), shared: Sequence[Any] = ()
    ) -> list[Any]:
        results = self._results(work, per_item, shared)  # of all runs, so that no thread waits at the end of one
        return [ordered_sum(ordered_sum(islice(results, size)) for size in run) for run in self._runs]

    def map(self, work: Callable[..., Array], *, per_item: Sequence[Array] = (), shared: Sequence[Any] = ()) -> Array:
        results = self._results(work, per_item, shared)
        first = next(results)
        if len(self._slices) == 1:
            return np.asarray(first)
        out = np.empty((self.n, *first.shape[1:]), dtype=first.dtype)
        out[self._slices[0]] = first
        for rows, result in zip(self._slices[1:], results, strict=True):
            out[rows] = result
        return out

    def head(self, size: int) -> Array:
        return self._block(0)[:size]

    def take(self, rows: Array) -> Array:
        return self._compute(self._X, rows)

    @property
    def held(self) -> bool:
        return self.cached == 1

    @property
    def cached(self) -> float:
        return min(self._cacheable, len(self._slices)) / len(self._slices)

    def subtract(self, row: Array) -> None:
        for block in self._cache.values():
            block -= row


class RemoteRows(ABC):
    """Raw features of many items that are not in this process.

    A work function is called as ``work(rows, *shared)`` with consecutive rows as an array, where they are stored; its
    requirements are those of :class:`FeatureRows`.
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]

    @abstractmethod
    def total(self, work: Callable[..., Any], *, shared: Sequence[Any] = ()) -> Any:
        """Return the sum of the work's results over all rows, in float64 and in a fixed order."""

    @abstractmethod
    def map(self, work: Callable[..., Array], *, shared: Sequence[Any] = ()) -> Array:
        """Return the work's results for all rows, as one array with a row per item."""

    @abstractmethod
    def __getitem__(self, rows: Array) -> Array:
        """Return a few rows, in the order given."""

    def mean(self) -> Array:
        return np.asarray(self.total(_column_sums) / self.shape[0])


class PlacedRows(RemoteRows):
    """Rows in groups of blocks, each of which stays on its worker."""

    @abstractmethod
    def features(self, feature_map: Any, *, width: int, dtype: np.dtype[Any], memory_limit: int | None) -> FeatureRows:
        """Return the features of these rows; ``feature_map`` is pickled and sent to the workers."""


class RemoteItems(RemoteRows):
    """The items of one modality as passed to a fit, checked."""

    sample: tuple[Array, Array]
    """Indices of a few rows, evenly spaced, and these rows."""
    largest: float
    """Largest magnitude of a feature."""

    @abstractmethod
    def ordered(self, order: Array) -> RemoteItems:
        """Return the rows in another order, which applies when they are placed."""

    @abstractmethod
    def placed(self, *, block_rows: int, run_rows: int | None = None) -> PlacedRows:
        """Return the rows as the groups of :func:`block_groups`."""

    @abstractmethod
    def beside(self, values: Array) -> Any:
        """Return an array with a row per item in the same form as the features."""
