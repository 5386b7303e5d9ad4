"""Approximate search with FAISS: inverted lists of codes near the same centre, of which a search reads a few.

What is known of FAISS and kept in mind here:

- ``OMP_WAIT_POLICY=passive`` must be set before it is loaded, or its threads spin and slow each other down.
- ``IndexBinaryIDMap2`` over inverted lists gives wrong ids after a removal: it expects the lists to renumber their
  items, as the flat index does. Inverted lists keep the ids they are given, so nothing is wrapped around them.
- Range search is strict (<) where ours is inclusive; here it goes to the exact index, as do id sets.
- Ties come in any order: hits are sorted by (distance, id) afterwards, and recall counts distances, not ids.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from modalhash._extras import require
from modalhash._typing import Array, Codes
from modalhash.codes import check_codes, n_bytes
from modalhash.index.hits import Hits, merge_nearest
from modalhash.index.index import HammingIndex, check_groups, check_ids
from modalhash.validation import check_int, check_number

SMALL = 10_000  # items of a group below which it is searched exactly in any case
TRAINING = 40  # codes per list to learn the centres from
FEWEST = 39  # codes per list below which FAISS warns that centres are poor
ABSENT = np.iinfo(np.int32).max  # FAISS's distance where it found fewer than k


@dataclass(frozen=True)
class Built:
    """How the lists of one group were made, and how much of the exact answer they find."""

    group: int
    items: int
    n_lists: int
    n_probe: int
    recall: float
    k: int
    n_queries: int

    def __str__(self) -> str:
        return (
            f"group {self.group}: {self.items} items in {self.n_lists} lists, {self.n_probe} read per query; "
            f"recall@{self.k} against exact {self.recall:.4f} ({self.n_queries} queries)"
        )


class FaissIndex:
    """The interface of :class:`~modalhash.index.index.HammingIndex` with FAISS's inverted lists beside it.

    Until :meth:`build` is called every search is exact. Afterwards the k nearest come from the lists, with the recall
    that :attr:`report` states; searches by radius or in an id set, and groups of fewer than 10,000 items, stay
    exact, and so does a query whose lists hold fewer than k items. Items are added and removed without rebuilding;
    build again when the index has grown several times over.

    Parameters
    ----------
    n_bits : int
        Length of the codes.
    n_lists : int, optional
        Lists per group; about 4 √n by default.
    n_probe : int, optional
        Lists read per query. By default as few (of 1, 2, 4, …) as reach ``recall``.
    recall : float
        Recall to reach where ``n_probe`` is not given.
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
        self._faiss = load_faiss()
        self.exact = HammingIndex(n_bits, n_threads=n_threads)
        self.n_bits = self.exact.n_bits
        self.n_lists = None if n_lists is None else check_int(n_lists, "n_lists", at_least=1)
        self.n_probe = None if n_probe is None else check_int(n_probe, "n_probe", at_least=1)
        self.recall = check_number(recall, "recall", positive=True)
        self.report: dict[int, Built] = {}
        self._lists: dict[int, Any] = {}
        self._lock = threading.RLock()  # FAISS may not be searched while it is changed

    def __len__(self) -> int:
        return len(self.exact)

    def __repr__(self) -> str:
        return f"FaissIndex(n_bits={self.n_bits}): {len(self)} items, lists for {len(self._lists)} group(s)"

    @property
    def groups(self) -> dict[int, int]:
        """Items in each group."""
        return self.exact.groups

    def contains(self, ids: Any) -> Array:
        """Whether each id is in the index."""
        return self.exact.contains(ids)

    def add(self, ids: Any, codes: Codes, *, group: Any = 0, replace: bool = False) -> None:
        """Add items, as :meth:`HammingIndex.add` does."""
        with self._lock:
            known = check_ids(ids)
            known = known[self.exact.contains(known)]
            self.exact.add(ids, codes, group=group, replace=replace)
            numbers, groups = check_ids(ids), check_groups(group, len(codes))
            for name, lists in self._lists.items():
                if len(known):
                    lists.remove_ids(known)
                mine = groups == name
                if mine.any():
                    lists.add_with_ids(np.ascontiguousarray(codes[mine]), np.ascontiguousarray(numbers[mine]))

    def remove(self, ids: Any, *, missing: str = "error") -> int:
        """Remove items, as :meth:`HammingIndex.remove` does."""
        with self._lock:
            removed = self.exact.remove(ids, missing=missing)
            for lists in self._lists.values():
                lists.remove_ids(np.unique(check_ids(ids)))
            return removed

    def build(self, *, queries: Codes | None = None, k: int = 100) -> dict[int, Built]:
        """Make the lists anew and measure their recall@k; by default for 200 of the stored codes as queries."""
        check_int(k, "k", at_least=1)
        with self._lock:
            if queries is None:
                stored = self.exact.dump()[1]
                chosen = np.random.default_rng(0).choice(len(stored), min(200, len(stored)), replace=False)
                queries = stored[np.sort(chosen)]
            queries = np.ascontiguousarray(check_codes(queries, self.n_bits, "queries"))
            self._lists, self.report = {}, {}
            for group, items in self.exact.groups.items():
                if items >= SMALL and len(queries):
                    self._lists[group] = self._new_lists(group)
                    self.report[group] = self._tune(group, queries, k)
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
        """The k nearest items, mostly; or all within a radius. See :meth:`HammingIndex.search`."""
        if k is None or radius is not None or ids is not None or not self._lists:
            return self.exact.search(query_codes, k, radius=radius, ids=ids, group=group)
        k = check_int(k, "k", at_least=1)
        queries = np.ascontiguousarray(check_codes(query_codes, self.n_bits, "query_codes"))
        with self._lock:
            wanted = self.exact.groups if group is None else np.unique(check_groups(group, None)).tolist()
            parts = []
            for name in wanted:
                if name in self._lists:
                    parts.append(self._from_lists(name, queries, k))
                else:
                    hits = self.exact.search(queries, k, group=name)
                    there = min(k, self.exact.groups.get(name, 0))
                    parts.append((hits.ids[:, :there], hits.distances[:, :there]))
        return merge_nearest(parts, len(queries), k, ordered=False)

    def _from_lists(self, group: int, queries: Codes, k: int) -> tuple[Array, Array]:
        lists = self._lists[group]
        k = min(k, lists.ntotal)
        if not len(queries) or not k:
            return np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.int32)
        distances, ids = lists.search(queries, k)
        short = distances[:, -1] == ABSENT  # the lists read held fewer than k items, though there are as many
        if short.any():
            hits = self.exact.search(queries[short], k, group=group)
            ids[short], distances[short] = hits.ids, hits.distances
        return ids, distances

    def _new_lists(self, group: int) -> Any:
        ids, codes = self.exact.dump(group=group)
        n_lists = self.n_lists or max(1, min(4 * int(len(ids) ** 0.5), len(ids) // FEWEST))
        width = 8 * n_bytes(self.n_bits)
        centres = self._faiss.IndexBinaryFlat(width)
        lists = self._faiss.IndexBinaryIVF(centres, width, n_lists)
        lists.own_fields = True
        centres.this.disown()  # freed with the lists, not before them
        sample = np.random.default_rng(0).choice(len(ids), min(len(ids), TRAINING * n_lists), replace=False)
        lists.train(np.ascontiguousarray(codes[np.sort(sample)]))
        lists.add_with_ids(np.ascontiguousarray(codes), ids)
        return lists

    def _tune(self, group: int, queries: Codes, k: int) -> Built:
        """Read twice as many lists until the recall is reached; what was asked for, if anything was."""
        lists = self._lists[group]
        k = min(k, lists.ntotal)
        limits = self.exact.search(queries, k, group=group).distances[:, -1:]
        lists.nprobe = min(self.n_probe or 1, lists.nlist)
        while True:
            found = float(np.mean(lists.search(queries, k)[0] <= limits))
            if self.n_probe is not None or found >= self.recall or lists.nprobe >= lists.nlist:
                return Built(group, lists.ntotal, lists.nlist, lists.nprobe, found, k, len(queries))
            lists.nprobe = min(2 * lists.nprobe, lists.nlist)


def load_faiss() -> Any:
    """The package, with its threads told to wait quietly."""
    if "faiss" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    return require("faiss", extra="faiss", why="the index backend 'faiss-ivf'")
