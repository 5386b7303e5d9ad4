"""What one search sees of a collection in Milvus, and its exact hits, ties in order.

Milvus returns ties in any order and at most 16,384 hits, so ties that do not fit are read again by ranges of ids, the
smallest first.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import compress
from typing import NamedTuple

import numpy as np

from modalhash.core.codes import check_groups
from modalhash.core.typing import Array
from modalhash.index.milvus_collection import MOST_HITS, MilvusCollection, Reached, among, parts

FEWEST_HITS = 256
"""Hits fetched at least, because fewer take the same time."""
RANGES = 16
"""The smallest ids of a tie are looked for in 1/16 of all ids first."""
Found = tuple[Array, Array]  # ids and distances of one query


class MilvusView(NamedTuple):
    """The items of a collection up to a state, without some; every result is in canonical order.

    For inner products, distances are the negative products.
    """

    collection: MilvusCollection
    state: Reached
    hidden: Array
    """Ids, ascending, that were removed or replaced since."""
    group: int | Collection[int] | None = None
    """Groups in which to search; None for all."""
    among: Array | None = None
    """Ids, ascending, among which to search; None for all."""

    def nearest(self, queries: Array, k: int, max_hits: int) -> list[Found]:
        """Return the k nearest of each query and all ties with the k-th, at least the first ``max_hits``."""
        if not self.state.items or not len(queries):
            return [_NONE] * len(queries)
        if self.among is not None and len(self.among) <= MOST_HITS:
            return self.of_ids(queries)
        beyond = self.collection.farthest + 1
        limit = min(MOST_HITS, max(FEWEST_HITS, max_hits + 1 + min(len(self.hidden), FEWEST_HITS)))
        fetched = self.collection.nearest(self.state, queries, limit, self._filter())
        found = [self._keep(*one) for one in fetched]
        last = np.array([near.max() if len(near) == limit else beyond for _, near in fetched])
        kth = np.array([near[k - 1] if len(near) >= k else beyond for _, near in found])
        few = np.flatnonzero((kth == beyond) & (last < beyond))
        tied = np.flatnonzero((kth == last) & (last < beyond))
        if len(few):
            for row, one in zip(few.tolist(), self._of_many(queries[few], k, last[few]), strict=True):
                found[row] = one
        if len(tied):
            nearer = [int(np.searchsorted(found[row][1], kth[row])) for row in tied.tolist()]
            ties = self.within(queries[tied], kth[tied], need=max_hits - np.array(nearer))
            for row, n, (ids, distances) in zip(tied.tolist(), nearer, ties, strict=True):
                at = distances == kth[row]
                found[row] = np.append(found[row][0][:n], ids[at]), np.append(found[row][1][:n], distances[at])
        return found

    def of_ids(self, queries: Array) -> list[Found]:
        """Return all of the ids to search among."""
        assert self.among is not None
        pieces: list[list[Found]] = [[] for _ in queries]
        for part in parts(self.among):
            for piece, one in zip(
                pieces, self.collection.nearest(self.state, queries, len(part), self._filter(among(part))), strict=True
            ):
                piece.append(one)
        return [self._keep(*joined(piece)) for piece in pieces]

    def _of_many(self, queries: Array, k: int, radius: Array) -> list[Found]:
        """Return at least the k nearest where Milvus's limit is too low because of ``k`` or of hidden ids."""
        if self.among is not None:
            return self.of_ids(queries)
        found, farthest = [], self.collection.farthest
        for query, near in zip(queries, radius.tolist(), strict=True):
            (one,) = self.within(query[None], np.array([near]))
            while len(one[0]) < k and near < farthest:
                near = min(farthest, near + max(1, farthest // 16))
                (one,) = self.within(query[None], np.array([near]))
            found.append(one)
        return found

    def within(self, queries: Array, radius: Array, need: Array | None = None) -> list[Found]:
        """Return all within the radius of each query, from ranges of ids that Milvus's limit allows.

        With ``need``, the ids ascend until the number at exactly the radius is reached.
        """
        if self.among is not None and len(self.among) <= MOST_HITS:
            return [_up_to(one, most) for one, most in zip(self.of_ids(queries), radius.tolist(), strict=True)]
        if not self.state.items:
            return [_NONE] * len(queries)
        limit = MOST_HITS if need is None else min(MOST_HITS, max(FEWEST_HITS, 2 * int(need.max())))
        missing = np.full(len(queries), np.inf) if need is None else need.copy()
        pieces: list[list[Found]] = [[] for _ in queries]

        def read(rows: Array, start: int, stop: int, size: int) -> None:
            """Read ids from ``start`` to ``stop``, in smaller ranges for those queries that have too many in one."""
            while start < stop and len(rows):
                end = min(start + size, stop)
                where = self._filter(f"id >= {start}", f"id < {end}")
                fetched = self.collection.nearest(self.state, queries[rows], limit, where)
                inside = [_up_to(one, int(radius[row])) for row, one in zip(rows.tolist(), fetched, strict=True)]
                counts = np.array([len(ids) for ids, _ in inside])
                too_many = (counts == limit) & (end - start > limit)
                for row, one in zip(rows[~too_many].tolist(), compress(inside, ~too_many), strict=True):
                    pieces[row].append(self._keep(*one))
                    missing[row] -= np.count_nonzero(pieces[row][-1][1] == radius[row])
                read(rows[too_many], start, end, max(limit, (end - start) // RANGES))
                is_dense = 8 * counts.max() > limit
                rows, start, size = rows[missing[rows] > 0], end, size if is_dense else 4 * size

        read(np.arange(len(queries)), 0, self.state.items + 1, max(limit, self.state.items // RANGES))
        return [self._keep(*joined(piece)) for piece in pieces]

    def _keep(self, ids: Array, distances: Array) -> Found:
        """Return the hits that count."""
        kept = (ids <= self.state.items) & ~np.isin(ids, self.hidden)
        if self.among is not None:
            kept &= np.isin(ids, self.among)
        ids, distances = ids[kept], distances[kept]
        order = np.lexsort((ids, distances))
        return ids[order], distances[order]

    def _filter(self, *conditions: str) -> str:
        if self.group is None:
            return " and ".join(conditions)
        groups = sorted(set(np.atleast_1d(check_groups(self.group, None)).tolist()))
        return " and ".join([f"group in {groups}", *conditions])


_NONE: Found = np.empty(0, np.int64), np.empty(0, np.int32)


def joined(pieces: list[Found]) -> Found:
    return np.concatenate([_NONE[0], *(ids for ids, _ in pieces)]), np.concatenate(
        [_NONE[1], *(distances for _, distances in pieces)]
    )


def _up_to(found: Found, radius: int) -> Found:
    near = found[1] <= radius
    return found[0][near], found[1][near]
