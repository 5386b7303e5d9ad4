"""Scans of the database, tiled over threads by queries and by chunks, and the merging of their hits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from modalhash.core.parallel import numba_threads, pool_map
from modalhash.core.typing import Array
from modalhash.index.interface import PADDING, Hits, RadiusPart, cut_ties, merge_within, offsets_of
from modalhash.index.kernels import loops
from modalhash.index.layout import NO_STARTS, DistinctCodes, PackedRows, chunks_for

T = TypeVar("T")
AnyTable = PackedRows | DistinctCodes
QUERY_TILE = 256  # queries per tile
MIN_QUERY_TILE = 16  # queries below which sharing cached codes gains little
MAX_CANDIDATES = 2**21  # per tile; with a large k, tiles have fewer queries
MIN_BYTES_FOR_THREADS = 2**24  # compared bytes below which threads cost more than they save


def scan_nearest(
    queries: Array,
    tables: list[AnyTable],
    k: int,
    n_bits: int,
    *,
    n_threads: int | None = None,
    compiled: bool = True,
) -> list[tuple[Array, Array]]:
    """Return ids and distances of each query's k nearest rows in each part of the tables."""

    def scan(tile: Array, table: AnyTable) -> tuple[Array, Array]:
        wanted = min(k, table.n)
        ids, distances, _ = _nearest(tile, table, wanted, wanted, n_bits, n_bits, compiled)
        return ids, distances

    max_tile = MAX_CANDIDATES // (2 * min(k, sum(table.n for table in tables)) + 1)
    parts = scan_tiles(queries, tables, scan, n_threads=n_threads if compiled else 1, max_tile=max_tile)
    return [stack_tiles(part) for part in parts]


def scan_with_ties(
    queries: Array,
    tables: list[AnyTable],
    k: int,
    max_hits: int,
    n_bits: int,
    *,
    n_threads: int | None = None,
    compiled: bool = True,
) -> list[RadiusPart]:
    """Return each query's k nearest rows and all ties with the k-th, up to ``max_hits``, in each part.

    For a single query, parts may omit rows that are farther than the k-th of another part.
    """
    max_distance = n_bits

    def scan(tile: Array, table: AnyTable) -> RadiusPart:
        nonlocal max_distance
        limit = min(max_hits, table.n)
        ids, distances, sizes = _nearest(tile, table, min(k, limit), limit, n_bits, max_distance, compiled)
        if len(queries) == 1 and sizes[0] >= k:
            max_distance = int(distances[0, k - 1])
        if len(tile) == 1:
            return ids[0, : sizes[0]], distances[0, : sizes[0]], offsets_of(sizes)
        filled = np.arange(limit) < sizes[:, None]
        return ids[filled], distances[filled], offsets_of(sizes)

    max_tile = MAX_CANDIDATES // (2 * min(max_hits, sum(table.n for table in tables)) + 1)
    parts = scan_tiles(queries, tables, scan, n_threads=n_threads if compiled else 1, max_tile=max_tile)
    return [stack_tiles(part) for part in parts]


def _nearest(
    queries: Array, table: AnyTable, k: int, max_hits: int, n_bits: int, max_distance: int, compiled: bool
) -> tuple[Array, Array, Array]:
    """Return ids and distances (queries, max_hits) of the k nearest rows and ties, and their number per query."""
    kernels = loops(compiled)
    if isinstance(table, PackedRows):
        rows, distances, sizes = kernels.nearest(
            queries, table.words, table.n, NO_STARTS, k, max_hits, n_bits, max_distance
        )
        return table.ids[rows], distances, sizes
    found = kernels.nearest(queries, table.words, table.n_codes, table.starts, k, max_hits, n_bits, max_distance)
    rows, distances, sizes = kernels.nearest_items(*found, table.starts, table.rows, max_hits)
    return table.ids_of(rows), distances, sizes


def scan_within(
    queries: Array,
    tables: list[AnyTable],
    radius: int,
    n_bits: int,
    *,
    n_threads: int | None = None,
    compiled: bool = True,
) -> list[RadiusPart]:
    """Return all rows within ``radius`` of each query, in each part of the tables."""

    def scan(tile: Array, table: AnyTable) -> RadiusPart:
        kernels = loops(compiled)
        if isinstance(table, PackedRows):
            rows, distances, offsets = kernels.within(tile, table.words, table.n, radius, n_bits)
            return table.ids[rows], distances, offsets
        codes = kernels.within(tile, table.words, table.n_codes, radius, n_bits)
        rows, distances, offsets = kernels.items_within(*codes, table.starts, table.rows)
        return table.ids_of(rows), distances, offsets

    filled = [table for table in tables if table.n]
    parts = scan_tiles(queries, filled, scan, n_threads=n_threads if compiled else 1)
    return [stack_tiles(part) for part in parts]


def write_distances(query: Array, table: AnyTable, wanted: Array, out: Array, *, compiled: bool = True) -> None:
    """Write the distance from one query to each id into ``out``; unknown ids are unchanged."""
    distances_by_id = loops(compiled).distances_by_id
    if isinstance(table, PackedRows):
        distances_by_id(query, table.ids, NO_STARTS, table.words, wanted, out)
    else:
        distances_by_id(query, table.offsets, table.numbers, table.words, wanted - table.first_id, out)


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
    results = pool_map(scan, *zip(*tasks, strict=True), n_threads=n_threads) if tasks else []
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


def merge_ties(parts: list[RadiusPart], n_queries: int, k: int, max_hits: int, *, compiled: bool = True) -> Hits:
    """Return the k nearest of several parts and all ties with the k-th, at most ``max_hits``.

    Each part is in canonical order and contains all its items that belong to the result.
    """
    if len(parts) != 2 or n_queries != 1:
        merged = merge_within(parts, n_queries)
        return merged if len(parts) == 1 else cut_ties(merged, k, max_hits)
    (ids, distances, _), (other_ids, other_distances, _) = parts  # one query in two groups is the most frequent search
    ids, distances, _, _ = loops(compiled).merge_ordered(ids, distances, other_ids, other_distances)
    n = (
        min(max_hits, int(np.searchsorted(distances, distances[min(k, len(distances)) - 1], "right")))
        if len(ids)
        else 0
    )
    return Hits(ids[:n], distances[:n], np.array([0, n]))


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
    merged: tuple[Array, Array, Array, Array] = loops(compiled).merge_ordered(*found, ids[order], distances[order])
    return merged
