"""Approximate search with FAISS: inverted lists of codes near the same centre, of which a search reads a few.

Four properties of FAISS shape this module:

- ``OMP_WAIT_POLICY=passive`` must be set before it is loaded, or its threads spin and slow each other down.
- ``IndexBinaryIDMap2`` over inverted lists gives wrong ids after a removal: it expects the lists to renumber their
  items, as the flat index does. Inverted lists keep the ids they are given, so nothing is wrapped around them.
- Its range search is strict (<) where ours is inclusive; so radius searches go to the exact index, as do id sets.
- It returns ties in any order: hits are sorted by (distance, id) afterwards, and recall counts distances, not ids.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Collection
from typing import Any

import numpy as np

from modalhash._imports import require
from modalhash._typing import Array, Codes
from modalhash.codes import check_codes, n_bytes
from modalhash.index.base import BuildReport, Hits, check_groups, check_ids, cut_ties, distinct_ids, merge_nearest
from modalhash.index.hamming import HammingIndex
from modalhash.validation import check_int, check_number

MIN_ITEMS_FOR_LISTS = 10_000  # of a group: a smaller one is searched exactly in any case
TRAINING_CODES_PER_LIST = 40  # to learn the centres from
MIN_CODES_PER_LIST = 39  # below which FAISS warns that centres are poor
MIN_RECALL = 0.95  # of the exact answer on the codes of the index itself; lists that find less are refused
MISSING_DISTANCE = np.iinfo(np.int32).max  # FAISS's distance where the lists it read hold fewer than k items


class FaissIndex:
    """An exact :class:`~modalhash.index.hamming.HammingIndex` with FAISS's inverted lists beside it.

    Until :meth:`build` is called every search is exact. Afterwards the k nearest come from the lists, with the recall
    that :attr:`report` states, measured on the codes of the index and at least 0.95; searches by radius or in an id
    set, and groups of fewer than 10,000 items, stay exact, and so does a query whose lists hold fewer than k items.
    Items are added and removed without rebuilding; build again when the index has grown several times over.

    Parameters
    ----------
    n_bits : int
        Length of the codes.
    n_lists : int, optional
        Lists per group; about 4 √n by default.
    n_probe : int, optional
        Lists read per query; by default as few (of 1, 2, 4, …) as reach ``recall``.
    recall : float
        Recall to reach if ``n_probe`` is not given, at least 0.95.
    n_threads : int, optional
        Threads of exact searches; FAISS has its own (``OMP_NUM_THREADS``).
    """

    def __init__(
        self,
        n_bits: int,
        *,
        n_lists: int | None = None,
        n_probe: int | None = None,
        recall: float = 0.95,
        n_threads: int | None = None,
    ) -> None:
        self._faiss = _load_faiss()
        self.exact = HammingIndex(n_bits, n_threads=n_threads)
        self.n_bits = self.exact.n_bits
        self.n_lists = None if n_lists is None else check_int(n_lists, "n_lists", at_least=1)
        self.n_probe = None if n_probe is None else check_int(n_probe, "n_probe", at_least=1)
        self.recall = check_number(recall, "recall", positive=True)
        if not MIN_RECALL <= self.recall <= 1:
            raise ValueError(f"recall is {recall}; expected {MIN_RECALL} to 1: lists that find less are refused")
        self.report: dict[int, BuildReport] = {}
        self._lists: dict[int, Any] = {}
        self._lock = threading.RLock()  # FAISS may not be searched while it is changed

    def __len__(self) -> int:
        return len(self.exact)

    def __repr__(self) -> str:
        return f"FaissIndex(n_bits={self.n_bits}): {len(self)} items, lists for {len(self._lists)} group(s)"

    @property
    def groups(self) -> dict[int, int]:
        """The number of items in each group that has any."""
        return self.exact.groups

    def contains(self, ids: Any) -> Array:
        """Return for each id whether it is in the index."""
        return self.exact.contains(ids)

    def add(self, ids: Any, codes: Codes, *, group: Any = 0, replace: bool = False) -> None:
        """Add items, as :meth:`HammingIndex.add` does."""
        with self._lock:
            numbers = check_ids(ids)
            known = numbers[self.exact.contains(numbers)]
            self.exact.add(numbers, codes, group=group, replace=replace)
            groups = check_groups(group, len(codes))
            for number, lists in self._lists.items():
                if len(known):
                    lists.remove_ids(known)
                members = groups == number
                if members.any():
                    lists.add_with_ids(np.ascontiguousarray(codes[members]), np.ascontiguousarray(numbers[members]))

    def remove(self, ids: Any, *, missing: str = "error") -> int:
        """Remove items and return how many, as :meth:`HammingIndex.remove` does."""
        with self._lock:
            removed = self.exact.remove(ids, missing=missing)
            for lists in self._lists.values():
                lists.remove_ids(distinct_ids(ids))
            return removed

    def build(self, *, queries: Codes | None = None, k: int = 100) -> dict[int, BuildReport]:
        """Build the lists of all large groups and measure their recall.

        Parameters
        ----------
        queries : packed codes, optional
            What to measure the recall with; by default 200 of the stored codes.
        k : int
            The recall is that of the k nearest.

        Returns
        -------
        dict
            A report for each group that has lists now; also in :attr:`report`.

        Raises
        ------
        ValueError
            If ``n_probe`` lists find less than 0.95 of the exact answer in some group. Searches are then exact.
        """
        check_int(k, "k", at_least=1)
        with self._lock:
            if queries is None:
                stored = self.exact.dump()[1]
                chosen = np.random.default_rng(0).choice(len(stored), min(200, len(stored)), replace=False)
                queries = stored[np.sort(chosen)]
            queries = np.ascontiguousarray(check_codes(queries, self.n_bits, "queries"))
            self._lists, self.report = {}, {}
            for group, items in self.exact.groups.items():
                if items >= MIN_ITEMS_FOR_LISTS and len(queries):
                    self._lists[group] = self._new_lists(group)
                    self.report[group] = self._tune(group, queries, k)
            if poor := [report for report in self.report.values() if report.recall < MIN_RECALL]:
                self._lists, self.report = {}, {}
                raise ValueError(
                    f"the lists are refused, and searches stay exact: {poor[0]}; expected at least {MIN_RECALL}. Leave "
                    "n_probe out, or read more lists"
                )
            return dict(self.report)

    def search(
        self,
        query_codes: Codes,
        k: int | None = None,
        *,
        radius: int | None = None,
        ids: Any = None,
        group: int | Collection[int] | None = None,
    ) -> Hits:
        """Return most of the k nearest items of each query, or all within a radius; see :meth:`HammingIndex.search`."""
        if k is None or radius is not None or ids is not None or not self._lists:
            return self.exact.search(query_codes, k, radius=radius, ids=ids, group=group)
        k = check_int(k, "k", at_least=1)
        queries = np.ascontiguousarray(check_codes(query_codes, self.n_bits, "query_codes"))
        with self._lock:
            wanted = self.exact.groups if group is None else np.unique(check_groups(group, None)).tolist()
            parts = []
            for number in wanted:
                if number in self._lists:
                    parts.append(self._search_lists(number, queries, k))
                else:
                    hits = self.exact.search(queries, k, group=number)
                    filled = min(k, self.exact.groups.get(number, 0))
                    parts.append((hits.ids[:, :filled], hits.distances[:, :filled]))
        return merge_nearest(parts, len(queries), k, ordered=False)

    def shortlist(
        self, query_codes: Codes, k: int, *, most: int, ids: Any = None, group: int | Collection[int] | None = None
    ) -> Hits:
        """Return most of the k nearest items of each query with their ties; see :meth:`HammingIndex.shortlist`."""
        if ids is not None or not self._lists:
            return self.exact.shortlist(query_codes, k, most=most, ids=ids, group=group)
        return cut_ties(self.search(query_codes, most, group=group), k, most)

    def distances(self, query_code: Codes, ids: Any, *, group: int | Collection[int] | None = None) -> Array:
        """Return the distance of each of some items from one query; see :meth:`HammingIndex.distances`."""
        return self.exact.distances(query_code, ids, group=group)

    def _search_lists(self, group: int, queries: Codes, k: int) -> tuple[Array, Array]:
        lists = self._lists[group]
        k = min(k, lists.ntotal)
        if not len(queries) or not k:
            return np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.int32)
        distances, ids = lists.search(queries, k)
        short = distances[:, -1] == MISSING_DISTANCE
        if short.any():
            hits = self.exact.search(queries[short], k, group=group)
            ids[short], distances[short] = hits.ids, hits.distances
        return ids, distances

    def _new_lists(self, group: int) -> Any:
        ids, codes = self.exact.dump(group=group)
        n_lists = self.n_lists or max(1, min(4 * int(len(ids) ** 0.5), len(ids) // MIN_CODES_PER_LIST))
        width = 8 * n_bytes(self.n_bits)
        centres = self._faiss.IndexBinaryFlat(width)
        lists = self._faiss.IndexBinaryIVF(centres, width, n_lists)
        lists.own_fields = True
        centres.this.disown()  # freed with the lists, not before them
        sample = np.random.default_rng(0).choice(
            len(ids), min(len(ids), TRAINING_CODES_PER_LIST * n_lists), replace=False
        )
        lists.train(np.ascontiguousarray(codes[np.sort(sample)]))
        lists.add_with_ids(np.ascontiguousarray(codes), ids)
        return lists

    def _tune(self, group: int, queries: Codes, k: int) -> BuildReport:
        """Double the number of lists that are read until the recall is reached, unless ``n_probe`` was given."""
        lists = self._lists[group]
        k = min(k, lists.ntotal)
        limits = self.exact.search(queries, k, group=group).distances[:, -1:]
        lists.nprobe = min(self.n_probe or 1, lists.nlist)
        while True:
            recall = float(np.mean(lists.search(queries, k)[0] <= limits))
            if self.n_probe is not None or recall >= self.recall or lists.nprobe >= lists.nlist:
                return BuildReport(group, lists.ntotal, lists.nlist, lists.nprobe, recall, k, len(queries))
            lists.nprobe = min(2 * lists.nprobe, lists.nlist)


def _load_faiss() -> Any:
    """Import FAISS with threads that sleep while they wait."""
    if "faiss" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    return require("faiss", extra="faiss", why="the index backend 'faiss-ivf'")
