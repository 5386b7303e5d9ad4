"""Search codes in Milvus, exactly, together with what changed since Milvus was brought up to date.

A :class:`MilvusIndex` searches a collection (:mod:`modalhash.index.milvus_collection`) and, in memory, what was added
since. Ids that were removed since, or that another process is just writing, are ignored.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Any

import numpy as np

from modalhash.core.codes import check_codes, check_groups, check_ids, distinct_ids
from modalhash.core.typing import Array, Codes
from modalhash.core.validation import check_choice, check_int
from modalhash.index.hamming import HammingIndex
from modalhash.index.interface import IndexUnavailableError
from modalhash.index.milvus_collection import MilvusCollection, Reached
from modalhash.index.milvus_view import Found, MilvusView, joined
from modalhash.index.scan import PADDING, Hits, cut_ties, merge_within, offsets_of, padded_hits


class MilvusIndex:
    """An :class:`~modalhash.index.Index` of a collection in Milvus and of what changed since it was written.

    Items are added to and removed from memory. Another process, or another thread, writes them to the collection, of
    which this object uses what was there when it was made, so make a new one now and then. The hits are those of
    :class:`HammingIndex`, ties included. If Milvus does not answer, or does not have the collection, searches raise
    :class:`IndexUnavailableError`.

    Parameters
    ----------
    collection : MilvusCollection
    state : what the collection holds, from :meth:`MilvusCollection.find`; by default nothing
    n_threads, compiled : as for :class:`HammingIndex`
    """

    def __init__(
        self,
        collection: MilvusCollection,
        state: Reached = Reached(),  # noqa: B008  (a tuple)
        *,
        n_threads: int | None = None,
        compiled: bool = True,
    ) -> None:
        self.collection, self.n_bits, self.state, self.compiled = collection, collection.n_bits, state, compiled
        self._hidden = np.empty(0, np.int64)
        self._hidden_groups: dict[int, int] | None = {}
        self._recent = HammingIndex(self.n_bits, n_threads=n_threads, compiled=compiled)
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return sum(self.groups.values())

    def __repr__(self) -> str:
        return f"MilvusIndex(n_bits={self.n_bits}): revision {self.state[1:3]} and {len(self._recent)} items in memory"

    @property
    def groups(self) -> dict[int, int]:
        with self._lock:
            state, hidden, known, recent = self.state, self._hidden, self._hidden_groups, self._recent.groups
        if known is None:
            try:
                known = self.collection.groups(state, hidden)
            except IndexUnavailableError:
                known = {}  # removed items are counted until Milvus answers, because changes do not wait for it
            else:
                with self._lock:
                    if self._hidden is hidden:
                        self._hidden_groups = known
        gone = np.array(list(known.values()), dtype=np.int64)
        counts = {
            group: state.groups.get(group, 0) - int(np.count_nonzero(gone == group)) + recent.get(group, 0)
            for group in state.groups.keys() | recent.keys()
        }
        return {group: n for group, n in sorted(counts.items()) if n}

    def contains(self, ids: Any) -> Array:
        numbers = check_ids(ids)
        with self._lock:
            view, present = self._view(None, None), self._recent.contains(numbers)
        there = self.collection.groups(view.state, numbers[~present & self._may_be_there(numbers)])
        present |= np.isin(numbers, np.array(list(there), dtype=np.int64))
        return np.asarray(present)

    def add(self, ids: Any, codes: Codes, *, group: Any = 0, replace: bool = False) -> None:
        """Add items to memory; unless ``replace``, they must be new."""
        numbers = check_ids(ids)
        check_groups(group, len(numbers))
        if len(numbers) and numbers.min() < 0:
            raise ValueError(f"ids: {numbers.min()}; expected ids ≥ 0")
        with self._lock:
            old = numbers[self._may_be_there(numbers)]
            if not replace and len(old) and len(known := self.collection.groups(self.state, old)):
                raise ValueError(f"ids: {len(known)} are in the index already (first: {min(known)}); nothing was added")
            self._recent.add(numbers, codes, group=group, replace=replace)
            self._hide(old)

    def remove(self, ids: Any, *, missing: str = "error") -> int:
        """Remove items and return how many.

        With ``missing="ignore"``, ids of the collection are counted without asking Milvus whether it has them.
        """
        check_choice(missing, "missing", ("error", "ignore"))
        numbers = distinct_ids(ids)
        with self._lock:
            if missing == "error" and not (there := self.contains(numbers)).all():
                raise KeyError(f"{np.count_nonzero(~there)} of {len(numbers)} ids are not in the index")
            old = numbers[self._may_be_there(numbers)]
            self._hide(old)
            return self._recent.remove(numbers, missing="ignore") + len(old)

    def search(
        self,
        query_codes: Codes,
        k: int | None = None,
        *,
        radius: int | None = None,
        ids: Any = None,
        group: int | Collection[int] | None = None,
    ) -> Hits:
        if (k is None) == (radius is None):
            raise ValueError(f"got k={k} and radius={radius}; expected one of them")
        if k is not None:
            return padded_hits(self.shortlist(query_codes, k, max_hits=k, ids=ids, group=group), k)
        queries = check_codes(query_codes, self.n_bits, "query_codes")
        radius = min(check_int(radius, "radius", at_least=0), self.n_bits)
        with self._lock:
            near = self._recent.search(queries, radius=radius, ids=ids, group=group)
            view = self._view(ids, group)
        return _merge(near, view.within(queries, np.full(len(queries), radius)))

    def shortlist(
        self, query_codes: Codes, k: int, *, max_hits: int, ids: Any = None, group: int | Collection[int] | None = None
    ) -> Hits:
        queries = check_codes(query_codes, self.n_bits, "query_codes")
        with self._lock:
            near = self._recent.shortlist(queries, k, max_hits=max_hits, ids=ids, group=group)
            view = self._view(ids, group)
        return cut_ties(_merge(near, view.nearest(queries, k, max_hits)), k, max_hits)

    def distances(self, query_code: Codes, ids: Any, *, group: int | Collection[int] | None = None) -> Array:
        numbers = check_ids(ids)
        query = check_codes(np.asarray(query_code)[None], self.n_bits, "query_code")
        with self._lock:
            distances = self._recent.distances(query[0], numbers, group=group)
            view = self._view(numbers[distances == PADDING], group)
        ((there, near),) = view.of_ids(query)
        known = dict(zip(there.tolist(), near.tolist(), strict=True))
        for row in np.flatnonzero(distances == PADDING).tolist():
            distances[row] = known.get(int(numbers[row]), PADDING)
        return distances

    def _view(self, ids: Any, group: int | Collection[int] | None) -> MilvusView:
        """Return what a search sees; callers hold the lock."""
        wanted = None
        if ids is not None:
            wanted = distinct_ids(ids)
            wanted = wanted[self._may_be_there(wanted)]
        return MilvusView(self.collection, self.state, self._hidden, group, wanted)

    def _may_be_there(self, numbers: Array) -> Array:
        return (numbers <= self.state.items) & ~np.isin(numbers, self._hidden)

    def _hide(self, ids: Array) -> None:
        """Ignore ids of the collection; callers hold the lock."""
        if len(ids):
            self._hidden, self._hidden_groups = distinct_ids(np.concatenate([self._hidden, ids])), None


def _merge(near: Hits, found: list[Found]) -> Hits:
    """Return hits in memory (flat) and in Milvus as one, in canonical order."""
    assert near.offsets is not None
    ids, distances = joined(found)
    offsets = offsets_of(np.array([len(one) for one, _ in found], dtype=np.int64))
    return merge_within([(near.ids, near.distances, near.offsets), (ids, distances, offsets)], len(found))
