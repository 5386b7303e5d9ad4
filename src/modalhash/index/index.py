"""Exact search over packed codes in memory."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Any

import numpy as np

from modalhash._typing import Array, Codes
from modalhash.codes import check_codes, n_bytes
from modalhash.index.hits import Hits, merge_nearest, merge_within
from modalhash.index.radius_search import RadiusSearch
from modalhash.index.rows import Rows, Table, in_rows, to_rows, word_type
from modalhash.index.walk import stack, walk
from modalhash.validation import check_choice, check_int

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
        self._within = RadiusSearch(self.n_bits, self._groups)
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
                self._within.touch(number, numbers[mine])

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
            n_removed = 0
            for group, rows in self._groups.items():
                here = rows.remove(numbers)
                self._within.touch(group, numbers[here])
                n_removed += int(np.count_nonzero(here))
            return n_removed

    def build_radius(self, radius: int | None = 2) -> int:
        """Make tables that answer searches within a small radius without a walk over all codes: exact, and far faster.

        Parameters
        ----------
        radius : int or None
            The radius to be fast for; others gain as well where that is possible. None forgets the tables.

        Returns
        -------
        int
            The bytes that the tables take beside the index: for codes of 64 bits and radius 2, 12 per item and up to
            50 million for their heads. 0 where a walk is the faster way in every group.

        Notes
        -----
        Multi-index hashing: codes within the radius share at least one of a few parts, nearly or exactly, so only items
        that do are looked at. A query with so many of these that a walk would be faster (more than a 256th of the
        group) gets the walk. Items added or removed later are found and not found as they should be; once a 32nd of
        a group has changed, the next search within a radius makes its tables anew.
        """
        reach = None if radius is None else min(check_int(radius, "radius", at_least=0), self.n_bits)
        with self._lock:
            return self._within.build(reach)

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
        if k is not None:
            k = check_int(k, "k", at_least=1)
            tables = self._tables(ids, group)
            at_once = CANDIDATES // (2 * min(k, sum(table.n for table in tables)) + 1)
            parts = walk(
                queries, tables, lambda part, table: self._nearest(part, table, k),
                n_threads=self.n_threads, at_once=at_once,
            )  # fmt: skip
            return merge_nearest([stack(part) for part in parts], len(queries), k)
        reach = min(check_int(radius, "radius", at_least=0), self.n_bits)
        if self._within.radius is None or ids is not None:
            found = self._within.scan(queries, self._tables(ids, group), reach, self.n_threads)
        else:
            with self._lock:
                views = self._within.views(self._chosen(group))
            found = self._within.found(queries, views, reach, self.n_threads)
        return merge_within(found, len(queries))

    def _nearest(self, queries: Array, table: Table, k: int) -> tuple[Array, ...]:
        from modalhash.index import scan

        places, distances = scan.nearest(queries, table.words, table.n, min(k, table.n), self.n_bits)
        return table.ids[places], distances

    def _tables(self, ids: Any, group: int | Collection[int] | None) -> list[Table]:
        with self._lock:
            tables = [self._groups[number].table() for number in self._chosen(group)]
        if ids is not None:
            among = np.unique(check_ids(ids))
            tables = [table.only(among) for table in tables]
        return [table for table in tables if table.n]

    def _chosen(self, group: int | Collection[int] | None) -> list[int]:
        if group is None:
            return list(self._groups)
        wanted = np.unique(np.atleast_1d(check_groups(group, None)))
        return [number for number in wanted.tolist() if number in self._groups]

    def _check(self, codes: Any, name: str, n: int | None = None) -> Codes:
        codes = check_codes(codes, self.n_bits, name)
        if n is not None and len(codes) != n:
            raise ValueError(f"{name}: {len(codes)} rows for {n} ids; expected one code per id")
        return codes


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
