"""Exact search over packed codes in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from modalhash._typing import Array, Codes
from modalhash.codes import check_codes, n_bytes
from modalhash.search.hits import Hits, merge_nearest, merge_within
from modalhash.search.rows import CHUNK, Rows, Table, in_rows, to_rows, word_type
from modalhash.validation import check_choice, check_int

T = TypeVar("T")
TILE = 256  # queries that walk over the database together
ALONE = 2**24  # bytes looked at below which starting threads costs more than it saves
CANDIDATES = 2**21  # that one walk may hold: with a large k, fewer queries walk together


class HammingIndex:
    """Exact nearest codes by Hamming distance: add, remove, the k nearest, all within a radius.

    The order is canonical: by distance, and among equal distances by id. Searches may run from several
    threads at once, and while others add or remove: each sees one state from start to end.

    Parameters
    ----------
    n_bits : int
        Length of the codes, 1 or more.
    n_threads : int, optional
        Threads of one large search. As many as numba uses by default (``NUMBA_NUM_THREADS``, or all cores);
        small searches run in the calling thread.

    Examples
    --------
    >>> index = HammingIndex(n_bits=8)
    >>> index.add([10, 20, 30], np.array([[0b1111_0000], [0b1111_0001], [0b0000_1111]], dtype=np.uint8))
    >>> hits = index.search(np.array([[0b1111_0000]], dtype=np.uint8), k=2)
    >>> hits.ids.tolist(), hits.distances.tolist()
    ([[10, 20]], [[0, 1]])
    """

    def __init__(self, n_bits: int, *, n_threads: int | None = None) -> None:
        self.n_bits = check_int(n_bits, "n_bits", at_least=1)
        self.n_threads = None if n_threads is None else check_int(n_threads, "n_threads", at_least=1)
        self._groups: dict[int, Rows] = {}
        self._lock = threading.RLock()

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._groups.values()))

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int | np.integer) and bool(self.contains([int(number)])[0])

    def __repr__(self) -> str:
        return f"HammingIndex(n_bits={self.n_bits}): {len(self)} items"

    @property
    def groups(self) -> dict[int, int]:
        """Items in each group."""
        with self._lock:
            return {group: len(rows) for group, rows in sorted(self._groups.items()) if len(rows)}

    def contains(self, ids: Any) -> Array:
        """Whether each id is in the index."""
        ids = check_ids(ids)
        with self._lock:
            there = np.zeros(len(ids), dtype=bool)
            for rows in self._groups.values():
                there |= rows.contains(ids)
            return there

    def add(self, ids: Any, codes: Codes, *, group: Any = 0, replace: bool = False) -> None:
        """Add items.

        Parameters
        ----------
        ids : array-like of int64
            Distinct. An id that is in the index already is an error, and then nothing is added.
        codes : uint8 (n, ceil(n_bits / 8))
            Packed as by :func:`modalhash.codes.pack`.
        group : int or array-like of int
            A small number per item (or one for all), e.g. its modality. Groups lie apart: a search in one of
            them does not look at the others.
        replace : bool
            Items whose id is there already take the new code and group instead.
        """
        numbers = check_ids(ids)
        rows = to_rows(self._check(codes, "codes", len(numbers)), self.n_bits)
        groups = check_groups(group, len(numbers))
        if not np.all(numbers[1:] > numbers[:-1]):
            ascending = np.argsort(numbers, kind="stable")
            numbers, rows, groups = numbers[ascending], rows[ascending], groups[ascending]
        if len(twice := numbers[1:][numbers[1:] == numbers[:-1]]):
            raise ValueError(f"ids: {twice[0]} is given {np.count_nonzero(numbers == twice[0])} times; expected once")
        with self._lock:
            if replace:
                self.remove(numbers, missing="ignore")
            elif len(there := numbers[self.contains(numbers)]):
                raise ValueError(
                    f"ids: {len(there)} of {len(numbers)} are in the index already (first: {there[0]}); nothing was "
                    "added. Pass replace=True to give them the new codes"
                )
            present = np.unique(groups).tolist()
            for number in present:
                if number not in self._groups:
                    self._groups[number] = Rows(rows.shape[1], word_type(self.n_bits))
                mine = groups == number if len(present) > 1 else slice(None)
                self._groups[number].add(numbers[mine], rows[mine])

    def remove(self, ids: Any, *, missing: str = "error") -> int:
        """Remove items; returns how many. An unknown id is an error unless ``missing="ignore"``."""
        check_choice(missing, "missing", ("error", "ignore"))
        numbers = np.unique(check_ids(ids))
        with self._lock:
            if missing == "error" and len(lost := numbers[~self.contains(numbers)]):
                raise ValueError(
                    f"ids: {len(lost)} of {len(numbers)} are not in the index (first: {lost[0]}); nothing was "
                    "removed. Pass missing='ignore' to remove the others"
                )
            return int(sum(np.count_nonzero(rows.remove(numbers)) for rows in self._groups.values()))

    def dump(self, *, group: int | Collection[int] | None = None) -> tuple[Array, Codes]:
        """Ids and codes of all items, or of some groups, in ascending order of id."""
        tables = self._tables(None, group)
        width = n_bytes(self.n_bits)
        ids = np.concatenate([np.empty(0, np.int64), *(table.ids[: table.n] for table in tables)])
        parts = [in_rows(table.words, table.n).view(np.uint8)[:, :width] for table in tables]
        codes = np.concatenate([np.empty((0, width), np.uint8), *parts])
        ascending = np.argsort(ids, kind="stable")
        return ids[ascending], codes[ascending]

    def search(
        self,
        query_codes: Codes,
        k: int | None = None,
        *,
        radius: int | None = None,
        ids: Any = None,
        group: int | Collection[int] | None = None,
    ) -> Hits:
        """The k nearest items of each query, or all within a radius.

        Parameters
        ----------
        query_codes : uint8 (queries, ceil(n_bits / 8))
            Packed codes.
        k, radius : int
            One of the two: how many items, or up to which distance (inclusive).
        ids : array-like of int64, optional
            Look only among these; ids that are not in the index are not found.
        group : int or several, optional
            Look only in these groups.

        Returns
        -------
        Hits
            With ``k``: arrays (queries, k), padded with -1 where there are fewer than k items. With ``radius``:
            one long row and offsets.
        """
        if (k is None) == (radius is None):
            raise ValueError(f"got k={k} and radius={radius}; expected one of them")
        queries = to_rows(self._check(query_codes, "query_codes"), self.n_bits)
        tables = self._tables(ids, group)
        if k is not None:
            k = check_int(k, "k", at_least=1)
            at_once = CANDIDATES // (2 * min(k, sum(table.n for table in tables)) + 1)
            parts = self._walk(queries, tables, at_once, lambda part, table: self._nearest(part, table, k))
            return merge_nearest([stack(part) for part in parts], len(queries), k)
        reach = min(check_int(radius, "radius", at_least=0), self.n_bits)
        parts = self._walk(queries, tables, TILE, lambda part, table: self._within(part, table, reach))
        return merge_within([stack(part) for part in parts], len(queries))

    def _nearest(self, queries: Array, table: Table, k: int) -> tuple[Array, ...]:
        from modalhash.search import scan

        places, distances = scan.nearest(queries, table.words, table.n, min(k, table.n), self.n_bits)
        return table.ids[places], distances

    def _within(self, queries: Array, table: Table, radius: int) -> tuple[Array, ...]:
        from modalhash.search import scan

        offsets = np.zeros(len(queries) + 1, dtype=np.int64)
        np.cumsum(scan.count_within(queries, table.words, table.n, radius), out=offsets[1:])
        places, distances = scan.within(queries, table.words, table.n, radius, self.n_bits, offsets)
        return table.ids[places], distances, offsets

    def _walk(
        self, queries: Array, tables: list[Table], at_once: int, work: Callable[[Array, Table], T]
    ) -> list[list[T]]:
        """``work`` on each table and each tile of queries, in threads where that pays: by table, then by tile."""
        if not len(queries):
            return []
        size = sum(table.n for table in tables) * queries.nbytes
        n_threads = 1 if size < ALONE else self.n_threads or default_threads()
        tile = min(TILE, max(1, at_once), max(16, -(-len(queries) // (4 * n_threads))))
        tiles = [queries[start : start + tile] for start in range(0, len(queries), tile)]
        if len(tiles) < n_threads:  # few queries: the database is shared out instead
            tables = [part for table in tables for part in shares(table, n_threads)]
        tasks = [(part, table) for table in tables for part in tiles]
        if n_threads == 1 or len(tasks) == 1:
            done = [work(*task) for task in tasks]
        else:
            with ThreadPoolExecutor(n_threads) as pool:
                done = list(pool.map(lambda task: work(*task), tasks))
        return [done[start : start + len(tiles)] for start in range(0, len(done), len(tiles))]

    def _tables(self, ids: Any, group: int | Collection[int] | None) -> list[Table]:
        with self._lock:
            if group is None:
                chosen = list(self._groups.values())
            else:
                wanted = np.unique(np.atleast_1d(check_groups(group, None)))
                chosen = [self._groups[number] for number in wanted.tolist() if number in self._groups]
            tables = [rows.table() for rows in chosen]
        if ids is not None:
            among = np.unique(check_ids(ids))
            tables = [table.only(among) for table in tables]
        return [table for table in tables if table.n]

    def _check(self, codes: Any, name: str, n: int | None = None) -> Codes:
        codes = check_codes(codes, self.n_bits, name)
        if n is not None and len(codes) != n:
            raise ValueError(f"{name}: {len(codes)} rows for {n} ids; expected one code per id")
        return codes


def shares(table: Table, n: int) -> list[Table]:
    """A table in up to ``n`` parts of whole chunks."""
    n_chunks = -(-table.n // CHUNK)
    bounds = np.unique(np.linspace(0, n_chunks, n + 1).astype(int)).tolist()
    return [table.part(first, last) for first, last in pairwise(bounds)]


def stack(tiles: list[tuple[Array, ...]]) -> Any:
    """Results of several tiles of queries as one; the offsets of a radius search run on."""
    if len(tiles) == 1:
        return tiles[0]
    ids, distances, *offsets = zip(*tiles, strict=True)
    whole = [np.concatenate(ids), np.concatenate(distances)]
    if offsets:
        counts = np.concatenate([np.diff(part) for part in offsets[0]])
        whole.append(np.concatenate([[0], np.cumsum(counts)]))
    return tuple(whole)


def check_ids(ids: Any) -> Array:
    """Ids as int64, or an error."""
    numbers = np.asarray(list(ids) if isinstance(ids, set | frozenset | range) else ids)
    if numbers.size == 0:
        numbers = numbers.reshape(-1).astype(np.int64)
    if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
        raise TypeError(f"ids: got {numbers.dtype} of shape {numbers.shape}; expected a row of integers")
    if numbers.dtype == np.uint64 and numbers.max() > np.iinfo(np.int64).max:
        raise ValueError(f"ids: {numbers.max()} does not fit a signed 64-bit integer")
    return numbers.astype(np.int64)


def check_groups(group: Any, n: int | None) -> Array:
    """One group number per item, or an error."""
    numbers = np.asarray(list(group) if isinstance(group, set | frozenset) else group)
    if not (np.issubdtype(numbers.dtype, np.integer) or numbers.size == 0) or (numbers.size and numbers.min() < 0):
        raise ValueError(f"group: got {group!r}; expected integers ≥ 0")
    numbers = numbers.astype(np.int64)
    if n is None:
        return numbers
    if numbers.ndim and numbers.shape != (n,):
        raise ValueError(f"group: got shape {numbers.shape} for {n} items; expected one number, or one per item")
    return np.broadcast_to(numbers, (n,))


def default_threads() -> int:
    """As many threads as numba would use."""
    import numba

    return int(numba.get_num_threads())
