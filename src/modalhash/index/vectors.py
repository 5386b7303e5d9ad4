"""Short int8 vectors by item, in memory or memory-mapped, and their inner products with a query."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from modalhash.core.codes import check_groups, check_ids, distinct_ids
from modalhash.core.typing import Array
from modalhash.index.kernels import LOOPS
from modalhash.index.layout import aligned_zeros, find_sorted

MAP_ABOVE = 2**28
"""Bytes of vectors above which they are in a memory-mapped temporary file, so that the system can drop unused pages.
256 MiB are two million items."""


class VectorView(NamedTuple):
    """One state of a table: arrays that never change below ``n``."""

    ids: Array
    groups: Array
    rows: Array
    n: int


class VectorTable:
    """Rows of int8 values by id, which are added and removed with the items of an index.

    Searches may run in several threads, concurrently with additions and removals. A removed id may still be found until
    the table is compacted, so look up only ids that an index returned.

    Parameters
    ----------
    width : int
        Values per row.
    folder : str or Path, optional
        Folder of the temporary file for many rows; the system's temporary folder by default.
    map_above : int
        Bytes of rows above which the file is used.
    compiled : bool
        As for :class:`HammingIndex`.

    Examples
    --------
    >>> table = VectorTable(4)
    >>> table.add([3, 8], np.array([[1, 2, 3, 4], [0, 0, -1, 5]], dtype=np.int8))
    >>> rows = table.find([8, 5, 3])
    >>> rows.present.tolist()
    [True, False, True]
    >>> rows.dots(np.array([1, 1, 1, 1], dtype=np.int8), 0, 2).tolist()
    [0, 3]
    """

    def __init__(
        self, width: int, *, folder: str | Path | None = None, map_above: int = MAP_ABOVE, compiled: bool = True
    ) -> None:
        self.width, self._compiled = width, compiled
        self._folder, self._map_above = folder, map_above
        self._view = VectorView(np.empty(0, np.int64), np.empty(0, np.int32), np.empty((0, width), np.int8), 0)
        self._n_removed = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._view.n - self._n_removed

    @property
    def last_id(self) -> int:
        """The largest id ever added; 0 if none."""
        return int(self._view.ids[self._view.n - 1]) if self._view.n else 0

    @property
    def mapped(self) -> bool:
        """Whether the rows are in a memory-mapped file."""
        return isinstance(self._view.rows, np.memmap)

    def add(self, ids: Any, vectors: Array, *, group: Any = 0) -> None:
        """Add rows with ascending ids, all larger than those added before."""
        numbers = check_ids(ids)
        groups = check_groups(group, len(numbers))
        if vectors.shape != (len(numbers), self.width) or vectors.dtype != np.int8:
            raise ValueError(
                f"vectors: got {vectors.dtype} {vectors.shape}; expected int8 {(len(numbers), self.width)}"
            )
        with self._lock:
            view = self._view
            last = view.ids[view.n - 1 : view.n]
            if not np.all(np.diff(np.concatenate([last, numbers])) > 0):
                raise ValueError("ids: expected ascending ids, larger than those in the table")
            stop = view.n + len(numbers)
            if stop > len(view.ids):
                view = self._copied(view, slice(0, view.n), max(stop, view.n * 3 // 2))
            view.ids[view.n : stop], view.groups[view.n : stop] = numbers, groups
            view.rows[view.n : stop] = vectors
            self._view = view._replace(n=stop)

    def remove(self, ids: Any) -> None:
        """Remove rows; unknown ids are ignored."""
        numbers = distinct_ids(ids)
        with self._lock:
            view = self._view
            rows, present = find_sorted(view.ids[: view.n], numbers)
            rows = rows[present & (view.groups[np.minimum(rows, max(0, view.n - 1))] >= 0)] if view.n else rows[:0]
            view.groups[rows] = -1
            self._n_removed += len(rows)
            if 2 * self._n_removed > view.n:
                kept = np.flatnonzero(view.groups[: view.n] >= 0)
                self._view, self._n_removed = self._copied(view, kept, len(kept))._replace(n=len(kept)), 0

    def nearest(self, query: Array, start: int, stop: int, groups: Sequence[int] | None, k: int) -> tuple[Array, Array]:
        """Return ids and inner products of the k rows, of some groups or of all, with the largest products.

        The product is that of values ``start`` to ``stop``. Of rows with the same product, those with the smallest ids
        are taken; ids ascend.
        """
        view = self._view
        own = view.groups[: view.n]
        ids = np.asarray(view.ids[: view.n][own >= 0 if groups is None else np.isin(own, groups)])
        products = self.find(ids).dots(query, start, stop)
        rows = largest(products, k)
        return ids[rows], products[rows]

    def find(self, ids: Array) -> FoundRows:
        """Return the rows of some ids, for products with a query."""
        view = self._view
        numbers = np.asarray(ids, dtype=np.int64)
        if view.n and view.ids[view.n - 1] - view.ids[0] == view.n - 1:  # no gaps, so rows can be computed
            rows = numbers - view.ids[0]
            present = (rows >= 0) & (rows < view.n)
        else:
            rows, present = find_sorted(view.ids[: view.n], numbers)
        rows = rows if present.all() else rows[present]
        return FoundRows(view.rows, rows, view.groups[rows], present, self._compiled)

    def _freeze(self) -> VectorView:
        """Return all current rows as arrays that never change, for a snapshot."""
        with self._lock:
            view = self._view
            groups = view.groups[: view.n].copy()  # removals are marked here
            return view._replace(ids=view.ids[: view.n], groups=groups, rows=view.rows[: view.n])

    def _thaw(self, view: VectorView) -> None:
        """Restore a frozen state, including its spare capacity, into an empty table."""
        with self._lock:
            self._view, self._n_removed = view, int(np.count_nonzero(view.groups[: view.n] < 0))

    def _copied(self, view: VectorView, kept: slice | Array, capacity: int) -> VectorView:
        ids, groups = np.zeros(capacity, np.int64), np.zeros(capacity, np.int32)
        rows = self._allocate(capacity)
        n = len(view.ids[kept])
        ids[:n], groups[:n], rows[:n] = view.ids[kept], view.groups[kept], view.rows[kept]
        return VectorView(ids, groups, rows, view.n)

    def _allocate(self, capacity: int) -> Array:
        """Return zeros for rows, in a memory-mapped file if there are many."""
        size = capacity * self.width
        if size > self._map_above:
            with tempfile.TemporaryFile(dir=self._folder) as file:  # unnamed, so deleted when unmapped
                file.truncate(size)
                return np.memmap(file, dtype=np.int8, mode="r+", shape=(capacity, self.width))
        return aligned_zeros((capacity, self.width), np.dtype(np.int8))


def largest(values: Array, k: int) -> Array:
    """Return the ascending positions of the k largest values, the first of equal ones."""
    if k >= len(values):
        return np.arange(len(values))
    least = np.partition(values, len(values) - k)[len(values) - k]
    larger = np.flatnonzero(values > least)
    return np.union1d(larger, np.flatnonzero(values == least)[: k - len(larger)])


class FoundRows(NamedTuple):
    """Rows of a table, for the ids that have one."""

    table: Array
    rows: Array
    groups: Array
    present: Array
    """Whether each requested id has a row."""
    compiled: bool = True

    def dots(self, query: Array, start: int, stop: int) -> Array:
        """Return the int32 inner product of values ``start`` to ``stop`` of the query and each row."""
        products: Array = LOOPS[self.compiled].dots(query[start:stop], self.table, self.rows, start)
        return products

    def dots_and_cosines(self, query: Array, start: int, stop: int) -> tuple[Array, Array]:
        """Return inner products of the values before ``start``, and cosines of those from there to ``stop``.

        These are int32 and float64, of the query and each row; the cosine with zeros is 0. Rows are read once.
        """
        products, cosines = LOOPS[self.compiled].dots_and_cosines(query[:stop], self.table, self.rows, start)
        return products, cosines

    def vectors(self) -> Array:
        return np.array(self.table[self.rows])
