"""What a search finds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from modalhash._typing import Array

Found = tuple[Array, Array, Array]  # ids, distances and offsets of a radius search
NOTHING = -1  # where there are fewer than k items


@dataclass(frozen=True)
class Hits:
    """Ids and distances, each query's ordered by (distance, id).

    After ``search(k=…)`` both are ``(queries, k)``; where fewer than k items were there to be found, the rest
    is -1 (an id may be any integer: the distance -1 tells). After ``search(radius=…)`` both are one long row,
    and those of query i lie at ``offsets[i]:offsets[i + 1]``. ``hits[i]`` gives the ids and distances of query
    i without padding in both cases.
    """

    ids: Array
    distances: Array
    offsets: Array | None = None

    def __len__(self) -> int:
        return len(self.ids) if self.offsets is None else len(self.offsets) - 1

    def __getitem__(self, query: int) -> tuple[Array, Array]:
        if not -len(self) <= query < len(self):
            raise IndexError(f"query {query} of {len(self)}")
        query %= len(self)
        if self.offsets is None:
            found = self.distances[query] >= 0
            return self.ids[query][found], self.distances[query][found]
        part = slice(int(self.offsets[query]), int(self.offsets[query + 1]))
        return self.ids[part], self.distances[part]


def merge_nearest(parts: list[tuple[Array, Array]], n_queries: int, k: int, *, ordered: bool = True) -> Hits:
    """The k nearest of several parts of a database, each given as ids and distances (queries, up to k)."""
    if len(parts) == 1 and ordered:
        ids, distances = parts[0]
    else:
        ids = np.concatenate([part[0] for part in parts] or [np.empty((n_queries, 0), np.int64)], axis=1)
        distances = np.concatenate([part[1] for part in parts] or [np.empty((n_queries, 0), np.int32)], axis=1)
        first = np.lexsort((ids, distances), axis=1)[:, :k]
        ids, distances = np.take_along_axis(ids, first, axis=1), np.take_along_axis(distances, first, axis=1)
    if missing := k - ids.shape[1]:
        empty = ((0, 0), (0, missing))
        ids = np.pad(ids, empty, constant_values=NOTHING)
        distances = np.pad(distances, empty, constant_values=NOTHING)
    return Hits(ids, distances)


def merge_within(parts: list[Found], n_queries: int) -> Hits:
    """All of several parts, each given as ids, distances and offsets."""
    if len(parts) == 1:
        return Hits(*parts[0])
    counts = np.zeros((len(parts), n_queries), dtype=np.int64)
    for row, (_, _, offsets) in zip(counts, parts, strict=True):
        row[:] = np.diff(offsets)
    queries = [np.repeat(np.arange(n_queries), count) for count in counts]
    ids = np.concatenate([np.empty(0, np.int64), *(part[0] for part in parts)])
    distances = np.concatenate([np.empty(0, np.int32), *(part[1] for part in parts)])
    ordered = np.lexsort((ids, distances, np.concatenate([np.empty(0, np.int64), *queries])))
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts.sum(axis=0))])
    return Hits(ids[ordered], distances[ordered], ends)


def widen(part: Found, chosen: Array) -> Found:
    """What some of the queries found as what all of them found; ``chosen`` tells which they are."""
    ids, distances, offsets = part
    counts = np.zeros(len(chosen), dtype=np.int64)
    counts[chosen] = np.diff(offsets)
    return ids, distances, np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


def without(part: Found, gone: Array) -> Found:
    """What was found, less some ids (ascending)."""
    ids, distances, offsets = part
    if not len(gone):
        return part
    places = np.minimum(np.searchsorted(gone, ids), len(gone) - 1)
    keep = gone[places] != ids
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(keep)])
    return ids[keep], distances[keep], before[offsets]
