"""The ``Index`` protocol, search results, and the functions that check ids and merge hits."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from modalhash.core.typing import Array, Codes

PADDING = -1  # fills rows of Hits if there are fewer than k items
RadiusPart = tuple[Array, Array, Array]  # ids, distances and offsets of the hits in one part of a database


class IndexUnavailableError(RuntimeError):
    """The index cannot be searched now; the message gives the reason. Trying again later may help."""


@dataclass(frozen=True)
class Hits:
    """Ids and distances of the items found, ordered by (distance, id) for each query.

    After ``search(k=…)`` both arrays are ``(queries, k)``, padded with -1 if there are fewer than k items. An id may be
    any integer, so only the distance -1 marks padding. After ``search(radius=…)`` both are flat, and the hits of query
    i are at ``offsets[i]:offsets[i + 1]``. In both cases ``hits[i]`` returns the ids and distances of query i without
    padding.
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
            filled = self.distances[query] != PADDING
            return self.ids[query][filled], self.distances[query][filled]
        part = slice(int(self.offsets[query]), int(self.offsets[query + 1]))
        return self.ids[part], self.distances[part]


class Index(Protocol):
    """Packed codes in memory, searched by Hamming distance.

    Items are int64 ids with a code and a group, a small integer such as the number of their modality. Hits are ordered
    by (distance, id). Searches may run in several threads, concurrently with additions and removals.
    :class:`~modalhash.index.HammingIndex` documents the parameters.
    """

    n_bits: int

    def __len__(self) -> int: ...

    @property
    def groups(self) -> dict[int, int]:
        """Number of items in each non-empty group."""

    def contains(self, ids: Any) -> Array:
        """Return for each id whether it is in the index."""

    def add(self, ids: Any, codes: Codes, *, group: Any = 0, replace: bool = False) -> None:
        """Add items; if an id is in the index and ``replace`` is false, raise and add nothing."""

    def remove(self, ids: Any, *, missing: str = "error") -> int:
        """Remove items and return how many; an unknown id raises unless ``missing="ignore"``."""

    def search(
        self,
        query_codes: Codes,
        k: int | None = None,
        *,
        radius: int | None = None,
        ids: Any = None,
        group: int | Collection[int] | None = None,
    ) -> Hits:
        """Return the k nearest items of each query, or all within a radius."""

    def shortlist(
        self, query_codes: Codes, k: int, *, max_hits: int, ids: Any = None, group: int | Collection[int] | None = None
    ) -> Hits:
        """Return the k nearest items of each query and all ties with the k-th, at most ``max_hits``."""

    def distances(self, query_code: Codes, ids: Any, *, group: int | Collection[int] | None = None) -> Array:
        """Return the distances of some items from one query; -1 for unknown ids."""


def check_ids(ids: Any) -> Array:
    """Return ids as int64, or raise if they are not a 1-D array of integers that fit."""
    numbers = np.asarray(list(ids) if isinstance(ids, set | frozenset | range) else ids)
    if numbers.size == 0:
        numbers = numbers.reshape(-1).astype(np.int64)
    if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
        raise TypeError(f"ids: got {numbers.dtype} of shape {numbers.shape}; expected a row of integers")
    if numbers.dtype == np.uint64 and numbers.max() > np.iinfo(np.int64).max:
        raise ValueError(f"ids: {numbers.max()} does not fit a signed 64-bit integer")
    return numbers.astype(np.int64)


def distinct_ids(ids: Any) -> Array:
    """Return checked ids, ascending and distinct; no sorting if they already are."""
    numbers = check_ids(ids)
    if np.all(numbers[1:] > numbers[:-1]):
        return numbers
    numbers.sort()
    return numbers[np.concatenate([[True], numbers[1:] != numbers[:-1]])]


def check_groups(group: Any, n: int | None) -> Array:
    """Return group numbers as int64, one per item if ``n`` is given; raise if they are not integers ≥ 0."""
    numbers = np.asarray(list(group) if isinstance(group, set | frozenset) else group)
    if not (np.issubdtype(numbers.dtype, np.integer) or numbers.size == 0) or (numbers.size and numbers.min() < 0):
        raise ValueError(f"group: got {group!r}; expected integers ≥ 0")
    numbers = numbers.astype(np.int64)
    if n is None:
        return numbers
    if numbers.ndim and numbers.shape != (n,):
        raise ValueError(f"group: got shape {numbers.shape} for {n} items; expected one number, or one per item")
    return np.broadcast_to(numbers, (n,))


def merge_nearest(parts: list[tuple[Array, Array]], n_queries: int, k: int, *, ordered: bool = True) -> Hits:
    """Return the k nearest of several parts, each given as ids and distances (queries, up to k).

    ``ordered`` says that each part is in canonical order, so that a single part needs no sorting.
    """
    if len(parts) == 1 and ordered:
        ids, distances = parts[0]
    else:
        ids = np.concatenate([part[0] for part in parts] or [np.empty((n_queries, 0), np.int64)], axis=1)
        distances = np.concatenate([part[1] for part in parts] or [np.empty((n_queries, 0), np.int32)], axis=1)
        first = np.lexsort((ids, distances), axis=1)[:, :k]
        ids, distances = np.take_along_axis(ids, first, axis=1), np.take_along_axis(distances, first, axis=1)
    if missing := k - ids.shape[1]:
        columns = ((0, 0), (0, missing))
        ids = np.pad(ids, columns, constant_values=PADDING)
        distances = np.pad(distances, columns, constant_values=PADDING)
    return Hits(ids, distances)


def merge_within(parts: list[RadiusPart], n_queries: int) -> Hits:
    """Return the hits of all parts in canonical order for each query."""
    if len(parts) == 1:
        return Hits(*parts[0])
    counts = np.zeros((len(parts), n_queries), dtype=np.int64)
    for row, (_, _, offsets) in zip(counts, parts, strict=True):
        row[:] = np.diff(offsets)
    queries = [np.repeat(np.arange(n_queries), count) for count in counts]
    ids = np.concatenate([np.empty(0, np.int64), *(part[0] for part in parts)])
    distances = np.concatenate([np.empty(0, np.int32), *(part[1] for part in parts)])
    order = np.lexsort((ids, distances, np.concatenate([np.empty(0, np.int64), *queries])))
    return Hits(ids[order], distances[order], offsets_of(counts.sum(axis=0)))


def cut_ties(hits: Hits, k: int, max_hits: int) -> Hits:
    """Return the k nearest hits of each query and all ties with the k-th, at most ``max_hits``."""
    found = [hits[query] for query in range(len(hits))]
    sizes = [min(max_hits, int(np.searchsorted(d, d[min(k, len(d)) - 1], "right"))) if len(d) else 0 for _, d in found]
    ids = [np.empty(0, np.int64), *(ids[:n] for (ids, _), n in zip(found, sizes, strict=True))]
    distances = [np.empty(0, np.int32), *(near[:n] for (_, near), n in zip(found, sizes, strict=True))]
    return Hits(np.concatenate(ids), np.concatenate(distances), offsets_of(np.array(sizes, dtype=np.int64)))


def padded_hits(hits: Hits, k: int) -> Hits:
    """Return flat hits, at most k per query, as arrays (queries, k)."""
    assert hits.offsets is not None
    sizes = np.diff(hits.offsets)
    filled = np.arange(k) < sizes[:, None]
    ids = np.full(filled.shape, PADDING, dtype=np.int64)
    distances = np.full(filled.shape, PADDING, dtype=np.int32)
    ids[filled], distances[filled] = hits.ids, hits.distances
    return Hits(ids, distances)


def for_all_queries(part: RadiusPart, chosen: Array) -> RadiusPart:
    """Return the hits of the chosen queries as hits of all queries, empty for the others."""
    ids, distances, offsets = part
    counts = np.zeros(len(chosen), dtype=np.int64)
    counts[chosen] = np.diff(offsets)
    return ids, distances, offsets_of(counts)


def offsets_of(counts: Array) -> Array:
    """Return the start of each query's hits in a flat array, and the end of the last."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
