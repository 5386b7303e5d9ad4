"""Scans of the database, tiled over threads by queries and by chunks, and the merging of their hits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from modalhash.core.parallel import numba_threads, pool_map
from modalhash.core.typing import Array
from modalhash.index.kernels import LOOPS, Loops
from modalhash.index.layout import NO_STARTS, DistinctCodes, PackedRows, chunks_for

PADDING = -1  # fills rows of Hits if there are fewer than k items
RadiusPart = tuple[Array, Array, Array]  # ids, distances and offsets of the hits in one part of a database
T = TypeVar("T")
AnyTable = PackedRows | DistinctCodes
QUERY_TILE = 256  # queries per tile
MIN_QUERY_TILE = 16  # queries below which sharing cached codes gains little
MAX_CANDIDATES = 2**21  # per tile; with a large k, tiles have fewer queries
MIN_BYTES_FOR_THREADS = 2**24  # compared bytes below which threads cost more than they save


@dataclass(frozen=True)
class Hits:
    """Ids and distances of the items found, ordered by (distance, id) for each query.

    After ``search(k=…)`` both arrays are ``(queries, k)``, padded with -1 if there are fewer than k items. An id may be
    any integer, so only the distance -1 marks padding. After ``search(radius=…)`` both are flat, and the hits of query
    i are at ``offsets[i]:offsets[i + 1]``. In both cases ``hits[i]`` returns the ids and distances of query i without
    padding.
    """

    ids: Array
    distances: Array
    offsets: Array | None = None

    def __len__(self) -> int:
        return len(self.ids) if self.offsets is None else len(self.offsets) - 1

    def __getitem__(self, query: int) -> tuple[Array, Array]:
        if not -len(self) <= query < len(self):
            raise IndexError(f"query {query} of {len(self)}")
        query %= len(self)
        if self.offsets is None:
            filled = self.distances[query] != PADDING
            return self.ids[query][filled], self.distances[query][filled]
        part = slice(int(self.offsets[query]), int(self.offsets[query + 1]))
        return self.ids[part], self.distances[part]


@dataclass(frozen=True)
class Scanner:
    """Scans tables by compiled or numpy loops, as chosen when an index is made."""

    n_bits: int
    n_threads: int | None
    """Threads of one large scan; by default those of numba."""
    loops: Loops

    def nearest(self, queries: Array, tables: list[AnyTable], k: int) -> list[tuple[Array, Array]]:
        """Return ids and distances of each query's k nearest rows in each part of the tables."""

        def scan(tile: Array, table: AnyTable) -> tuple[Array, Array]:
            wanted = min(k, table.n)
            ids, distances, _ = self._nearest(tile, table, wanted, wanted, self.n_bits)
            return ids, distances

        max_tile = MAX_CANDIDATES // (2 * min(k, sum(table.n for table in tables)) + 1)
        return self._tiles(queries, tables, scan, max_tile)

    def with_ties(self, queries: Array, tables: list[AnyTable], k: int, max_hits: int) -> list[RadiusPart]:
        """Return each query's k nearest rows and all ties with the k-th, up to ``max_hits``, in each part.

        For a single query, parts may omit rows that are farther than the k-th of another part.
        """
        max_distance = self.n_bits

        def scan(tile: Array, table: AnyTable) -> RadiusPart:
            nonlocal max_distance
            limit = min(max_hits, table.n)
            ids, distances, sizes = self._nearest(tile, table, min(k, limit), limit, max_distance)
            if len(queries) == 1 and sizes[0] >= k:
                max_distance = int(distances[0, k - 1])
            if len(tile) == 1:
                return ids[0, : sizes[0]], distances[0, : sizes[0]], offsets_of(sizes)
            filled = np.arange(limit) < sizes[:, None]
            return ids[filled], distances[filled], offsets_of(sizes)

        max_tile = MAX_CANDIDATES // (2 * min(max_hits, sum(table.n for table in tables)) + 1)
        return self._tiles(queries, tables, scan, max_tile)

    def within(self, queries: Array, tables: list[AnyTable], radius: int) -> list[RadiusPart]:
        """Return all rows within ``radius`` of each query, in each part of the tables."""

        def scan(tile: Array, table: AnyTable) -> RadiusPart:
            if isinstance(table, PackedRows):
                rows, distances, offsets = self.loops.within(tile, table.words, table.n, radius, self.n_bits)
                return table.ids[rows], distances, offsets
            codes = self.loops.within(tile, table.words, table.n_codes, radius, self.n_bits)
            rows, distances, offsets = self.loops.items_within(*codes, table.starts, table.rows)
            return table.ids_of(rows), distances, offsets

        return self._tiles(queries, [table for table in tables if table.n], scan)

    def merge_ties(self, parts: list[RadiusPart], n_queries: int, k: int, max_hits: int) -> Hits:
        """Return the k nearest of several parts and all ties with the k-th, at most ``max_hits``.

        Each part is in canonical order and contains all its items that belong to the result.
        """
        if len(parts) != 2 or n_queries != 1:
            merged = merge_within(parts, n_queries)
            return merged if len(parts) == 1 else cut_ties(merged, k, max_hits)
        (ids, distances, _), (other_ids, other_distances, _) = parts  # one query in two groups: the most frequent
        ids, distances, _, _ = self.loops.merge_ordered(ids, distances, other_ids, other_distances)
        n = min(max_hits, int(np.searchsorted(distances, distances[min(k, len(ids)) - 1], "right"))) if len(ids) else 0
        return Hits(ids[:n], distances[:n], np.array([0, n]))

    def write_distances(self, query: Array, table: AnyTable, wanted: Array, out: Array) -> None:
        """Write the distance from one query to each id into ``out``; unknown ids are unchanged."""
        if isinstance(table, PackedRows):
            self.loops.distances_by_id(query, table.ids, NO_STARTS, table.words, wanted, out)
        else:
            self.loops.distances_by_id(query, table.offsets, table.numbers, table.words, wanted - table.first_id, out)

    def _nearest(
        self, queries: Array, table: AnyTable, k: int, max_hits: int, max_distance: int
    ) -> tuple[Array, Array, Array]:
        """Return ids and distances (queries, max_hits) of the k nearest rows and ties, and their number per query."""
        nearest, limits = self.loops.nearest, (k, max_hits, self.n_bits, max_distance)
        if isinstance(table, PackedRows):
            rows, distances, sizes = nearest(queries, table.words, table.n, NO_STARTS, *limits)
            return table.ids[rows], distances, sizes
        found = nearest(queries, table.words, table.n_codes, table.starts, *limits)
        rows, distances, sizes = self.loops.nearest_items(*found, table.starts, table.rows, max_hits)
        return table.ids_of(rows), distances, sizes

    def _tiles(
        self,
        queries: Array,
        tables: list[AnyTable],
        scan: Callable[[Array, AnyTable], tuple[Array, ...]],
        max_tile: int | None = None,
    ) -> list[Any]:
        parts = scan_tiles(queries, tables, scan, n_threads=self.n_threads, max_tile=max_tile)
        return [stack_tiles(part) for part in parts]


def scan_tiles(
    queries: Array,
    tables: list[AnyTable],
    scan: Callable[[Array, AnyTable], T],
    *,
    n_threads: int | None = None,
    max_tile: int | None = None,
) -> list[list[T]]:
    """Call ``scan`` for each table and tile of queries, in threads if that is faster.

    Returns a list per table of a list per tile. If there are fewer tiles than threads, tables are split into parts, and
    each part counts as a table.
    """
    if not len(queries):
        return []
    n_scanned = sum(_n_scanned(table) for table in tables)
    alone = n_scanned * queries.nbytes < MIN_BYTES_FOR_THREADS
    n_threads = 1 if alone else n_threads or numba_threads()
    n_tiles = 1 if n_threads == 1 else 4 * n_threads  # several per thread, because some take longer
    share = max(MIN_QUERY_TILE, -(-len(queries) // n_tiles))
    tiles = tiles_of(queries, share if max_tile is None else min(share, max(1, max_tile)))
    if len(tiles) < n_threads:
        tables = [part for table in tables for part in split_table(table, n_threads)]
    tasks = [(tile, table) for table in tables for tile in tiles]
    if n_threads == 1 or len(tasks) < 2:
        results = [scan(*task) for task in tasks]
    else:
        results = pool_map(scan, *zip(*tasks, strict=True), n_threads=n_threads)
    return [results[start : start + len(tiles)] for start in range(0, len(results), len(tiles))]


def tiles_of(queries: Array, size: int | None = None) -> list[Array]:
    """Return the queries in tiles of up to ``size``, at most QUERY_TILE."""
    size = QUERY_TILE if size is None else min(QUERY_TILE, size)
    return [queries[start : start + size] for start in range(0, len(queries), size)]


def _n_scanned(table: AnyTable) -> int:
    return table.n if isinstance(table, PackedRows) else table.n_codes


def split_table(table: AnyTable, n: int) -> list[AnyTable]:
    """Return a table in up to ``n`` parts of whole chunks."""
    bounds = np.unique(np.linspace(0, chunks_for(_n_scanned(table)), n + 1).astype(int)).tolist()
    return [table.chunks(first, last) for first, last in pairwise(bounds)]


def stack_tiles(tiles: Sequence[tuple[Array, ...]]) -> Any:
    """Return the results of several tiles of queries as one, with adjusted offsets."""
    if len(tiles) == 1:
        return tiles[0]
    ids, distances, *offsets = zip(*tiles, strict=True)
    stacked = [np.concatenate(ids), np.concatenate(distances)]
    if offsets:
        stacked.append(offsets_of(np.concatenate([np.diff(part) for part in offsets[0]])))
    return tuple(stacked)


def merge_sources(
    found: tuple[Array, Array], other: tuple[Array, Array], *, compiled: bool = True
) -> tuple[Array, Array, Array, Array]:
    """Merge the ids and distances of two searches; also return for each item which of them found it.

    The first is in canonical order, as is the result; the second in any order. Distances of -1 are dropped from it.

    Examples
    --------
    >>> found = np.array([7, 2]), np.array([0, 3], dtype=np.int32)
    >>> other = np.array([9, 2, 5]), np.array([-1, 3, 1], dtype=np.int32)
    >>> [values.tolist() for values in merge_sources(found, other)]
    [[7, 5, 2], [0, 1, 3], [True, False, True], [False, True, True]]
    """
    ids, distances = other
    order = np.lexsort((ids, distances))[np.count_nonzero(distances == PADDING) :]
    merged: tuple[Array, Array, Array, Array] = LOOPS[compiled].merge_ordered(*found, ids[order], distances[order])
    return merged


def merge_nearest(parts: list[tuple[Array, Array]], n_queries: int, k: int) -> Hits:
    """Return the k nearest of several parts, each as ids and distances (queries, up to k) in canonical order."""
    if len(parts) == 1:
        ids, distances = parts[0]
    else:
        ids = np.concatenate([part[0] for part in parts] or [np.empty((n_queries, 0), np.int64)], axis=1)
        distances = np.concatenate([part[1] for part in parts] or [np.empty((n_queries, 0), np.int32)], axis=1)
        first = np.lexsort((ids, distances), axis=1)[:, :k]
        ids, distances = np.take_along_axis(ids, first, axis=1), np.take_along_axis(distances, first, axis=1)
    if missing := k - ids.shape[1]:
        columns = ((0, 0), (0, missing))
        ids = np.pad(ids, columns, constant_values=PADDING)
        distances = np.pad(distances, columns, constant_values=PADDING)
    return Hits(ids, distances)


def merge_within(parts: list[RadiusPart], n_queries: int) -> Hits:
    """Return the hits of all parts in canonical order for each query."""
    if len(parts) == 1:
        return Hits(*parts[0])
    counts = np.zeros((len(parts), n_queries), dtype=np.int64)
    for row, (_, _, offsets) in zip(counts, parts, strict=True):
        row[:] = np.diff(offsets)
    queries = [np.repeat(np.arange(n_queries), count) for count in counts]
    ids = np.concatenate([np.empty(0, np.int64), *(part[0] for part in parts)])
    distances = np.concatenate([np.empty(0, np.int32), *(part[1] for part in parts)])
    order = np.lexsort((ids, distances, np.concatenate([np.empty(0, np.int64), *queries])))
    return Hits(ids[order], distances[order], offsets_of(counts.sum(axis=0)))


def cut_ties(hits: Hits, k: int, max_hits: int) -> Hits:
    """Return the k nearest hits of each query and all ties with the k-th, at most ``max_hits``."""
    found = [hits[query] for query in range(len(hits))]
    sizes = [min(max_hits, int(np.searchsorted(d, d[min(k, len(d)) - 1], "right"))) if len(d) else 0 for _, d in found]
    ids = [np.empty(0, np.int64), *(ids[:n] for (ids, _), n in zip(found, sizes, strict=True))]
    distances = [np.empty(0, np.int32), *(near[:n] for (_, near), n in zip(found, sizes, strict=True))]
    return Hits(np.concatenate(ids), np.concatenate(distances), offsets_of(np.array(sizes, dtype=np.int64)))


def padded_hits(hits: Hits, k: int) -> Hits:
    """Return flat hits, at most k per query, as arrays (queries, k)."""
    assert hits.offsets is not None
    sizes = np.diff(hits.offsets)
    filled = np.arange(k) < sizes[:, None]
    ids = np.full(filled.shape, PADDING, dtype=np.int64)
    distances = np.full(filled.shape, PADDING, dtype=np.int32)
    ids[filled], distances[filled] = hits.ids, hits.distances
    return Hits(ids, distances)


def for_all_queries(part: RadiusPart, chosen: Array) -> RadiusPart:
    """Return the hits of the chosen queries as hits of all queries, empty for the others."""
    ids, distances, offsets = part
    counts = np.zeros(len(chosen), dtype=np.int64)
    counts[chosen] = np.diff(offsets)
    return ids, distances, offsets_of(counts)


def offsets_of(counts: Array) -> Array:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
