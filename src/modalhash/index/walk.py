"""How a search is spread over threads: queries in tiles, the database in groups or shares of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from modalhash._typing import Array
from modalhash.index.rows import CHUNK, Table

T = TypeVar("T")
TILE = 256  # queries that walk over the database together
ALONE = 2**24  # bytes looked at below which starting threads costs more than it saves


def walk(
    queries: Array,
    tables: list[Table],
    work: Callable[[Array, Table], T],
    *,
    n_threads: int | None = None,
    at_once: int = TILE,
) -> list[list[T]]:
    """``work`` on each table and each tile of queries, in threads where that pays: by table, then by tile."""
    if not len(queries):
        return []
    size = sum(table.n for table in tables) * queries.nbytes
    n_threads = 1 if size < ALONE else n_threads or default_threads()
    tile = min(TILE, max(1, at_once), max(16, -(-len(queries) // (4 * n_threads))))
    tiles = [queries[start : start + tile] for start in range(0, len(queries), tile)]
    if len(tiles) < n_threads:  # few queries: the database is shared out instead
        tables = [part for table in tables for part in shares(table, n_threads)]
    done = in_threads(work, [(part, table) for table in tables for part in tiles], n_threads)
    return [done[start : start + len(tiles)] for start in range(0, len(done), len(tiles))]


def in_threads(work: Callable[..., T], tasks: list[tuple[Any, ...]], n_threads: int) -> list[T]:
    """``work`` on each task; the results in order."""
    if n_threads == 1 or len(tasks) < 2:
        return [work(*task) for task in tasks]
    return list(pool_of(n_threads).map(lambda task: work(*task), tasks))


_pools: dict[int, ThreadPoolExecutor] = {}
if hasattr(os, "register_at_fork"):  # a child has none of its parent's threads
    os.register_at_fork(after_in_child=_pools.clear)


def pool_of(n_threads: int) -> ThreadPoolExecutor:
    """Threads that are kept: starting them takes longer than a short search. Tasks must not wait for each other."""
    if n_threads not in _pools:
        _pools.setdefault(n_threads, ThreadPoolExecutor(n_threads, thread_name_prefix="modalhash-search"))
    return _pools[n_threads]


def shares(table: Table, n: int) -> list[Table]:
    """A table in up to ``n`` parts of whole chunks."""
    n_chunks = -(-table.n // CHUNK)
    bounds = np.unique(np.linspace(0, n_chunks, n + 1).astype(int)).tolist()
    return [table.part(first, last) for first, last in pairwise(bounds)]


def stack(tiles: Sequence[tuple[Array, ...]]) -> Any:
    """Results of several tiles of queries as one; the offsets of a radius search run on."""
    if len(tiles) == 1:
        return tiles[0]
    ids, distances, *offsets = zip(*tiles, strict=True)
    whole = [np.concatenate(ids), np.concatenate(distances)]
    if offsets:
        counts = np.concatenate([np.diff(part) for part in offsets[0]])
        whole.append(np.concatenate([[0], np.cumsum(counts)]))
    return tuple(whole)


def default_threads() -> int:
    """As many threads as numba would use."""
    import numba

    return int(numba.get_num_threads())
