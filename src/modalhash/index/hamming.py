"""Exact search over packed codes in memory."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from modalhash.core.codes import check_codes, check_groups, check_ids, distinct_ids, n_bytes
from modalhash.core.typing import Array, Codes
from modalhash.core.validation import check_choice, check_int
from modalhash.index.clusters import BackgroundBuilder, ClusterIndex
from modalhash.index.kernels import LOOPS
from modalhash.index.layout import FrozenRows, GroupRows, PackedRows, pack_words, to_rows, word_type
from modalhash.index.scan import (
    PADDING,
    AnyTable,
    Hits,
    RadiusPart,
    Scanner,
    merge_nearest,
    merge_within,
    padded_hits,
)


class HammingIndex:
    """Exact search by Hamming distance: add, remove, find the k nearest or all within a radius.

    Hits are in canonical order, by (distance, id). Searches may run in several threads, concurrently with additions and
    removals; each search sees one state.

    Parameters
    ----------
    n_bits : int
        Length of the codes, 1 or more.
    n_threads : int, optional
        Threads of one large search; by default those of numba (``NUMBA_NUM_THREADS``, or all cores). Small searches run
        in the calling thread.
    compiled : bool
        Whether searches use compiled code. Loading it takes half a second, so an index of up to a million items that is
        searched once is quicker without; the hits are the same.

    Examples
    --------
    >>> index = HammingIndex(n_bits=8)
    >>> index.add([10, 20, 30], np.array([[0b1111_0000], [0b1111_0001], [0b0000_1111]], dtype=np.uint8))
    >>> hits = index.search(np.array([[0b1111_0000]], dtype=np.uint8), k=2)
    >>> hits.ids.tolist(), hits.distances.tolist()
    ([[10, 20]], [[0, 1]])
    """

    def __init__(self, n_bits: int, *, n_threads: int | None = None, compiled: bool = True) -> None:
        self.n_bits, self.compiled = check_int(n_bits, "n_bits", at_least=1), compiled
        self._n_threads = None if n_threads is None else check_int(n_threads, "n_threads", at_least=1)
        self._scanner = Scanner(self.n_bits, self._n_threads if compiled else 1, LOOPS[compiled])
        self._groups: dict[int, GroupRows] = {}
        self._lock = threading.RLock()
        self._builder = BackgroundBuilder(self._lock)
        self._clusters = ClusterIndex(self.n_bits, self._builder)

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._groups.values()))

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int | np.integer) and bool(self.contains([int(number)])[0])

    def __repr__(self) -> str:
        return f"HammingIndex(n_bits={self.n_bits}): {len(self)} items"

    @property
    def groups(self) -> dict[int, int]:
        """Number of items in each non-empty group."""
        with self._lock:
            return {group: len(rows) for group, rows in sorted(self._groups.items()) if len(rows)}

    @property
    def nbytes(self) -> int:
        """Bytes of ids and codes, without the tables of :meth:`build_clusters`."""
        with self._lock:
            return sum(rows.nbytes for rows in self._groups.values())

    def contains(self, ids: Any) -> Array:
        ids = check_ids(ids)
        with self._lock:
            present = np.zeros(len(ids), dtype=bool)
            for rows in self._groups.values():
                present |= rows.contains(ids)
            return present

    def add(self, ids: Any, codes: Codes, *, group: Any = 0, replace: bool = False) -> None:
        """Add items.

        Parameters
        ----------
        ids : array-like of int64
            Distinct ids. If one is in the index already, ValueError is raised and nothing is added.
        codes : uint8 (n, ceil(n_bits / 8))
            Codes packed as by :func:`modalhash.core.codes.pack`.
        group : int or array-like of int
            A small integer per item (or one for all), e.g. the number of its modality. A search in one group does not
            read the others.
        replace : bool
            Replace code and group of items that are in the index already.
        """
        numbers = check_ids(ids)
        rows = pack_words(self._check(codes, "codes", len(numbers)), self.n_bits)
        groups = check_groups(group, len(numbers))
        if not np.all(numbers[1:] > numbers[:-1]):
            ascending = np.argsort(numbers, kind="stable")
            numbers, rows, groups = numbers[ascending], rows[ascending], groups[ascending]
        if len(repeated := numbers[1:][numbers[1:] == numbers[:-1]]):
            count = np.count_nonzero(numbers == repeated[0])
            raise ValueError(f"ids: {repeated[0]} is given {count} times; expected once")
        with self._lock:
            if replace:
                self.remove(numbers, missing="ignore")
            elif len(known := numbers[self.contains(numbers)]):
                raise ValueError(
                    f"ids: {len(known)} of {len(numbers)} are in the index already (first: {known[0]}); nothing was "
                    "added. Pass replace=True to give them the new codes"
                )
            present = np.unique(groups).tolist()
            for number in present:
                if number not in self._groups:
                    self._groups[number] = GroupRows(rows.shape[1], word_type(self.n_bits), compiled=self.compiled)
                members = groups == number if len(present) > 1 else slice(None)
                self._groups[number].add(numbers[members], rows[members])
                self._clusters.record_changes(number, numbers[members])

    def remove(self, ids: Any, *, missing: str = "error") -> int:
        """Remove items and return how many; an unknown id raises unless ``missing="ignore"``."""
        check_choice(missing, "missing", ("error", "ignore"))
        numbers = distinct_ids(ids)
        with self._lock:
            if missing == "error" and len(unknown := numbers[~self.contains(numbers)]):
                raise ValueError(
                    f"ids: {len(unknown)} of {len(numbers)} are not in the index (first: {unknown[0]}); nothing was "
                    "removed. Pass missing='ignore' to remove the others"
                )
            n_removed = 0
            for group, rows in self._groups.items():
                removed = rows.remove(numbers)
                self._clusters.record_changes(group, numbers[removed])
                n_removed += int(np.count_nonzero(removed))
            return n_removed

    def build_clusters(self, *, drop: bool = False) -> int:
        """Assign codes to clusters, so that exact searches for the k nearest need no scan.

        Parameters
        ----------
        drop : bool
            Drop the clusters instead.

        Returns
        -------
        int
            Additional bytes: for codes of 64 bits, 12 per item and up to a million. 0 if a scan is faster in every
            group, as for fewer than 262,144 items, for codes of up to 32 bits, for codes without clusters, and for
            codes that repeat so often that each is stored once.

        Notes
        -----
        This is iDistance (:mod:`modalhash.index.clusters`), for :meth:`search` with ``k`` and :meth:`shortlist`: the
        triangle inequality excludes clusters that cannot contain nearer codes. If more than 1/8 of the codes would have
        to be compared, the query falls back to a scan. Additions and removals are respected; once a 32nd of a group has
        changed, a search starts to rebuild its clusters in a thread, which takes about half a second per million items.
        Until they are ready, searches use the old ones, and both take memory: another 12 bytes per item. If the rebuild
        fails, a RuntimeWarning is issued, and the group is scanned until it has doubled or this method is called again.

        Examples
        --------
        >>> index = HammingIndex(n_bits=64)
        >>> rng = np.random.default_rng(0)
        >>> centres = rng.integers(0, 256, (100, 8), dtype=np.uint8)
        >>> flips = rng.integers(0, 256, (4, 300_000, 8), dtype=np.uint8)
        >>> index.add(range(300_000), centres[np.arange(300_000) % 100] ^ np.bitwise_and.reduce(flips))
        >>> expected = index.search(centres, k=10)
        >>> index.build_clusters() > 0
        True
        >>> bool((index.search(centres, k=10).ids == expected.ids).all())
        True
        """
        with self._lock:
            if drop:
                self._clusters.drop()
                return 0
            return self._clusters.build(self._groups, n_threads=self._n_threads)

    def dump(self, *, group: int | Collection[int] | None = None) -> tuple[Array, Codes]:
        """Return ids and codes of all items, or of some groups, in ascending order of id."""
        tables = self._tables(None, group)
        ids = np.concatenate([np.empty(0, np.int64), *(table.ids for table in tables)])
        width = n_bytes(self.n_bits)
        parts = [to_rows(table.words, table.n) if isinstance(table, PackedRows) else table.codes() for table in tables]
        codes = np.concatenate([np.empty((0, width), np.uint8), *(part.view(np.uint8)[:, :width] for part in parts)])
        ascending = np.argsort(ids, kind="stable")
        return ids[ascending], codes[ascending]

    def _freeze(self) -> dict[int, FrozenRows]:
        """Return the current state of all groups as arrays that never change, for a snapshot."""
        with self._lock:
            return {group: rows.freeze() for group, rows in sorted(self._groups.items()) if len(rows)}

    def _thaw(self, groups: Mapping[int, FrozenRows]) -> None:
        """Restore a frozen state into an empty index."""
        with self._lock:
            for group, frozen in groups.items():
                n_words = pack_words(np.empty((0, n_bytes(self.n_bits)), np.uint8), self.n_bits).shape[1]
                self._groups[group] = GroupRows.of_tables(
                    n_words, word_type(self.n_bits), frozen, compiled=self.compiled
                )

    def search(
        self,
        query_codes: Codes,
        k: int | None = None,
        *,
        radius: int | None = None,
        ids: Any = None,
        group: int | Collection[int] | None = None,
    ) -> Hits:
        """Return the k nearest items of each query, or all within a radius.

        Parameters
        ----------
        query_codes : uint8 (queries, ceil(n_bits / 8))
            Packed codes.
        k, radius : int
            Exactly one of the two: number of items, or maximum distance (inclusive).
        ids : array-like of int64, optional
            Search only among these; unknown ids are ignored.
        group : int or several, optional
            Search only in these groups.

        Returns
        -------
        Hits
            With ``k``: arrays (queries, k), padded with -1 if there are fewer than k items. With ``radius``: flat
            arrays and offsets.
        """
        if (k is None) == (radius is None):
            raise ValueError(f"got k={k} and radius={radius}; expected one of them")
        queries = pack_words(self._check(query_codes, "query_codes"), self.n_bits)
        if k is not None:
            k = check_int(k, "k", at_least=1)
            if self._clusters.is_built and ids is None:
                parts = self._in_clusters(queries, k, k, group)
                return padded_hits(self._scanner.merge_ties(parts, len(queries), k, k), k)
            return merge_nearest(self._scanner.nearest(queries, self._tables(ids, group), k), len(queries), k)
        radius = min(check_int(radius, "radius", at_least=0), self.n_bits)
        return merge_within(self._scanner.within(queries, self._tables(ids, group), radius), len(queries))

    def shortlist(
        self, query_codes: Codes, k: int, *, max_hits: int, ids: Any = None, group: int | Collection[int] | None = None
    ) -> Hits:
        """Return the k nearest items of each query and all ties with the k-th, from one scan.

        Parameters
        ----------
        query_codes : uint8 (queries, ceil(n_bits / 8))
            Packed codes.
        k : int
            Minimum number of items, if there are that many.
        max_hits : int
            Maximum number of items, at least k; from a larger tie the first by id are taken.
        ids, group : optional
            As for :meth:`search`.

        Returns
        -------
        Hits
            Flat arrays and offsets, as after ``search(radius=…)``.

        Examples
        --------
        >>> index = HammingIndex(n_bits=8)
        >>> index.add([1, 2, 3, 4], np.array([[7], [3], [5], [0]], dtype=np.uint8))
        >>> index.shortlist(np.array([[7]], dtype=np.uint8), k=2, max_hits=10)[0][0].tolist()
        [1, 2, 3]
        """
        k = check_int(k, "k", at_least=1)
        max_hits = check_int(max_hits, "max_hits", at_least=k)
        queries = pack_words(self._check(query_codes, "query_codes"), self.n_bits)
        if self._clusters.is_built and ids is None:
            parts = self._in_clusters(queries, k, max_hits, group)
        else:
            parts = self._scanner.with_ties(queries, self._tables(ids, group), k, max_hits)
        return self._scanner.merge_ties(parts, len(queries), k, max_hits)

    def distances(self, query_code: Codes, ids: Any, *, group: int | Collection[int] | None = None) -> Array:
        """Return the int32 distances of some items, in any order, from one query; -1 for unknown ids.

        Examples
        --------
        >>> index = HammingIndex(n_bits=8)
        >>> index.add([1, 2, 3], np.array([[7], [3], [0]], dtype=np.uint8))
        >>> index.distances(np.array([7], dtype=np.uint8), [3, 5, 1]).tolist()
        [3, -1, 0]
        """
        numbers = check_ids(ids)
        query = pack_words(self._check(np.asarray(query_code)[None], "query_code"), self.n_bits)[0]
        distances = np.full(len(numbers), PADDING, dtype=np.int32)
        for table in self._tables(None, group):
            self._scanner.write_distances(query, table, numbers, distances)
        return distances

    def _in_clusters(
        self, queries: Array, k: int, max_hits: int, group: int | Collection[int] | None
    ) -> list[RadiusPart]:
        with self._lock:
            views = self._clusters.views(self._chosen(group))
        return self._clusters.search(queries, views, k, max_hits, self._scanner)

    def _tables(self, ids: Any, group: int | Collection[int] | None) -> list[AnyTable]:
        with self._lock:
            tables = [table for rows in self._chosen(group).values() for table in rows.tables()]
        if ids is not None:
            wanted = distinct_ids(ids)
            tables = [table.select(wanted) for table in tables]
        return [table for table in tables if table.n]

    def _chosen(self, group: int | Collection[int] | None) -> dict[int, GroupRows]:
        if group is None:
            return self._groups
        wanted = sorted(set(np.atleast_1d(check_groups(group, None)).tolist()))
        return {number: self._groups[number] for number in wanted if number in self._groups}

    def _check(self, codes: Any, name: str, n: int | None = None) -> Codes:
        codes = check_codes(codes, self.n_bits, name)
        if n is not None and len(codes) != n:
            raise ValueError(f"{name}: {len(codes)} rows for {n} ids; expected one code per id")
        return codes
