"""Search codes in Milvus, exactly, together with what changed since Milvus was brought up to date.

A :class:`MilvusIndex` searches a collection (:mod:`modalhash.index.milvus_collection`) and, in memory, what was added
since. Ids that were removed since, or that another process is just writing, are ignored. Milvus returns ties in any
order and at most 16,384 hits, so ties that do not fit are read again by ranges of ids, the smallest first.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from modalhash.core.codes import check_codes, check_groups, check_ids, distinct_ids
from modalhash.core.typing import Array, Codes
from modalhash.core.validation import check_choice, check_int
from modalhash.index.hamming import HammingIndex
from modalhash.index.interface import IndexUnavailableError
from modalhash.index.milvus_collection import MOST_HITS, MilvusCollection, Reached, among, parts
from modalhash.index.scan import PADDING, Hits, cut_ties, merge_within, offsets_of, padded_hits

FEWEST_HITS = 256
"""Hits fetched at least, because fewer take the same time."""
RANGES = 16
"""The smallest ids of a tie are looked for in 1/16 of all ids first."""
Found = tuple[Array, Array]  # ids and distances of one query


class _View(NamedTuple):
    """What one search sees of the collection."""

    state: Reached
    hidden: Array
    """Ids, ascending, that were removed or replaced since."""
    among: Array | None
    """Ids, ascending, among which to search; None for all."""
    where: tuple[str, ...]
    """Conditions of Milvus's filter."""

    def keep(self, ids: Array, distances: Array) -> tuple[Array, Array]:
        """Return the hits that count, in canonical order."""
        kept = (ids <= self.state.items) & ~np.isin(ids, self.hidden)
        if self.among is not None:
            kept &= np.isin(ids, self.among)
        ids, distances = ids[kept], distances[kept]
        order = np.lexsort((ids, distances))
        return ids[order], distances[order]

    def filter(self, *more: str) -> str:
        return " and ".join([*self.where, *more])


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
        return _merge(near, self._within(view, queries, np.full(len(queries), radius)))

    def shortlist(
        self, query_codes: Codes, k: int, *, max_hits: int, ids: Any = None, group: int | Collection[int] | None = None
    ) -> Hits:
        queries = check_codes(query_codes, self.n_bits, "query_codes")
        with self._lock:
            near = self._recent.shortlist(queries, k, max_hits=max_hits, ids=ids, group=group)
            view = self._view(ids, group)
        return cut_ties(_merge(near, self._nearest(view, queries, k, max_hits)), k, max_hits)

    def distances(self, query_code: Codes, ids: Any, *, group: int | Collection[int] | None = None) -> Array:
        numbers = check_ids(ids)
        query = check_codes(np.asarray(query_code)[None], self.n_bits, "query_code")
        with self._lock:
            distances = self._recent.distances(query[0], numbers, group=group)
            view = self._view(numbers[distances == PADDING], group)
        ((there, near),) = self._of_ids(view, query)
        known = dict(zip(there.tolist(), near.tolist(), strict=True))
        for row in np.flatnonzero(distances == PADDING).tolist():
            distances[row] = known.get(int(numbers[row]), PADDING)
        return distances

    # -- what Milvus has; every result is in canonical order

    def _view(self, ids: Any, group: int | Collection[int] | None) -> _View:
        """Return what a search sees; callers hold the lock."""
        where = []
        if group is not None:
            where.append(f"group in {sorted(set(np.atleast_1d(check_groups(group, None)).tolist()))}")
        wanted = None
        if ids is not None:
            wanted = distinct_ids(ids)
            wanted = wanted[self._may_be_there(wanted)]
        return _View(self.state, self._hidden, wanted, tuple(where))

    def _may_be_there(self, numbers: Array) -> Array:
        return (numbers <= self.state.items) & ~np.isin(numbers, self._hidden)

    def _hide(self, ids: Array) -> None:
        """Ignore ids of the collection; callers hold the lock."""
        if len(ids):
            self._hidden, self._hidden_groups = distinct_ids(np.concatenate([self._hidden, ids])), None

    def _nearest(self, view: _View, queries: Codes, k: int, max_hits: int) -> list[Found]:
        """Return the k nearest of each query and all ties with the k-th, at least the first ``max_hits``."""
        if not view.state.items or not len(queries):
            return [_NONE] * len(queries)
        if view.among is not None and len(view.among) <= MOST_HITS:
            return self._of_ids(view, queries)
        limit = min(MOST_HITS, max(FEWEST_HITS, max_hits + 1 + min(len(view.hidden), FEWEST_HITS)))
        fetched = self.collection.nearest(view.state, queries, limit, view.filter())
        found = [view.keep(*one) for one in fetched]
        last = np.array([near.max(initial=0) if len(near) == limit else self.n_bits + 1 for _, near in fetched])
        kth = np.array([near[k - 1] if len(near) >= k else self.n_bits + 1 for _, near in found])
        few = np.flatnonzero((kth > self.n_bits) & (last <= self.n_bits))
        tied = np.flatnonzero((kth == last) & (last <= self.n_bits))
        if len(few):
            for row, one in zip(few.tolist(), self._of_many(view, queries[few], k, last[few]), strict=True):
                found[row] = one
        if len(tied):
            nearer = [int(np.searchsorted(found[row][1], kth[row])) for row in tied.tolist()]
            ties = self._within(view, queries[tied], kth[tied], need=max_hits - np.array(nearer))
            for row, n, (ids, distances) in zip(tied.tolist(), nearer, ties, strict=True):
                at = distances == kth[row]
                found[row] = np.append(found[row][0][:n], ids[at]), np.append(found[row][1][:n], distances[at])
        return found

    def _of_ids(self, view: _View, queries: Codes) -> list[Found]:
        """Return all of the ids to search among."""
        assert view.among is not None
        pieces: list[list[Found]] = [[] for _ in queries]
        for part in parts(view.among):
            for piece, one in zip(
                pieces, self.collection.nearest(view.state, queries, len(part), view.filter(among(part))), strict=True
            ):
                piece.append(one)
        return [view.keep(*_joined(piece)) for piece in pieces]

    def _of_many(self, view: _View, queries: Codes, k: int, radius: Array) -> list[Found]:
        """Return at least the k nearest where Milvus's limit is too low because of ``k`` or of hidden ids."""
        if view.among is not None:
            return self._of_ids(view, queries)
        found = []
        for query, near in zip(queries, radius.tolist(), strict=True):
            one = _NONE
            while len(one[0]) < k and near <= self.n_bits:
                (one,) = self._within(view, query[None], np.array([near]))
                near += max(1, self.n_bits // 16)
            found.append(one)
        return found

    def _within(self, view: _View, queries: Codes, radius: Array, need: Array | None = None) -> list[Found]:
        """Return all within the radius of each query, from ranges of ids that Milvus's limit allows.

        With ``need``, the ids ascend until the number at exactly the radius is reached.
        """
        if view.among is not None and len(view.among) <= MOST_HITS:
            return [_up_to(one, most) for one, most in zip(self._of_ids(view, queries), radius.tolist(), strict=True)]
        if not view.state.items:
            return [_NONE] * len(queries)
        limit = MOST_HITS if need is None else min(MOST_HITS, max(FEWEST_HITS, 2 * int(need.max())))
        pieces: list[list[Found]] = [[] for _ in queries]
        counts, pending = np.zeros(len(queries), np.int64), np.arange(len(queries))
        start, size = 0, max(limit, view.state.items // RANGES)
        while start <= view.state.items and len(pending):
            where = view.filter(f"id >= {start}", f"id < {start + size}")
            fetched = self.collection.nearest(view.state, queries[pending], limit, where)
            inside = [_up_to(one, int(radius[row])) for row, one in zip(pending.tolist(), fetched, strict=True)]
            most = max(len(ids) for ids, _ in inside)
            if most == limit and size > limit:  # there may be more in this range
                size = max(limit, size // RANGES)
                continue
            for row, one in zip(pending.tolist(), inside, strict=True):
                pieces[row].append(view.keep(*one))
                counts[row] += np.count_nonzero(pieces[row][-1][1] == radius[row])
            pending = pending if need is None else pending[counts[pending] < need[pending]]
            start, size = start + size, size if 8 * most > limit else 4 * size
        return [view.keep(*_joined(piece)) for piece in pieces]


_NONE: Found = np.empty(0, np.int64), np.empty(0, np.int32)


def _joined(pieces: list[Found]) -> Found:
    return np.concatenate([_NONE[0], *(ids for ids, _ in pieces)]), np.concatenate(
        [_NONE[1], *(distances for _, distances in pieces)]
    )


def _up_to(found: Found, radius: int) -> Found:
    near = found[1] <= radius
    return found[0][near], found[1][near]


def _merge(near: Hits, found: list[Found]) -> Hits:
    """Return hits in memory (flat) and in Milvus as one, in canonical order."""
    assert near.offsets is not None
    ids, distances = _joined(found)
    offsets = offsets_of(np.array([len(one) for one, _ in found], dtype=np.int64))
    return merge_within([(near.ids, near.distances, near.offsets), (ids, distances, offsets)], len(found))
