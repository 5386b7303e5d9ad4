"""Compiled search in the shells of clusters (:mod:`modalhash.index.clusters`); README.md next to this file draws them.

Importing this module loads numba, so import it inside the functions that need it.
"""

from __future__ import annotations

import numpy as np

from modalhash.core.bit_kernels import compiled, popcount
from modalhash.core.typing import Array
from modalhash.index.layout import ROW_BITS

CLUSTER_BITS = np.uint64(16)  # low bits with the cluster; the distance is above, so that the minimum is the nearest
BLOCK = 64  # codes whose distances are computed together
MIN_BUFFER = 4096  # hits of a query before those beyond the limit are dropped


@compiled()
def write_distances(query: Array, codes: Array, start: int, stop: int, out: Array) -> np.uint64:
    """Write the distances from one query to the codes ``start`` to ``stop``, and return the smallest."""
    own, words = query[0], codes[0, start:stop]
    for j in range(words.shape[0]):
        out[j] = popcount(own ^ words[j])
    for w in range(1, query.shape[0]):
        own, words = query[w], codes[w, start:stop]
        for j in range(words.shape[0]):
            out[j] += popcount(own ^ words[j])
    least = np.uint64(2**63)
    for j in range(stop - start):
        least = min(least, out[j])
    return least


@compiled()
def assign(codes: Array, centres: Array, clusters: Array, distances: Array) -> None:
    """Write the nearest centre of each code (n, words), the first of several, and its distance."""
    found, numbers = np.empty(centres.shape[1], np.uint64), np.arange(centres.shape[1], dtype=np.uint64)
    for i in range(codes.shape[0]):
        write_distances(codes[i], centres, 0, centres.shape[1], found)
        nearest = np.uint64(2**63)
        for c in range(numbers.shape[0]):
            nearest = min(nearest, (found[c] << CLUSTER_BITS) | numbers[c])
        clusters[i] = nearest & ((np.uint64(1) << CLUSTER_BITS) - np.uint64(1))
        distances[i] = nearest >> CLUSTER_BITS


@compiled()
def fill_shells(
    codes: Array, clusters: Array, distances: Array, n_shells: int, starts: Array, sorted_codes: Array, rows: Array
) -> None:
    """Sort codes by cluster and shell, by counting. ``starts`` are zeros, two more than the shells."""
    for i in range(codes.shape[0]):
        starts[np.int64(clusters[i]) * n_shells + np.int64(distances[i]) + 2] += 1
    for s in range(2, starts.shape[0]):
        starts[s] += starts[s - 1]
    for i in range(codes.shape[0]):
        shell = np.int64(clusters[i]) * n_shells + np.int64(distances[i]) + 1
        place = starts[shell]
        starts[shell] = place + 1  # finally the end of this shell and start of the next
        rows[place] = i
        for w in range(codes.shape[1]):
            sorted_codes[w, place] = codes[i, w]


@compiled()
def is_among(ascending: Array, value: int) -> bool:
    place = np.searchsorted(ascending, value)
    return bool(place < ascending.shape[0] and ascending[place] == value)


@compiled()
def keep_below(hits: Array, size: int, limit: int) -> int:
    """Move the hits up to distance ``limit`` to the front, and return their number."""
    kept = 0
    for i in range(size):
        if np.int64(hits[i] >> ROW_BITS) <= limit:
            hits[kept] = hits[i]
            kept += 1
    return kept


@compiled()
def sort_clusters(distances: Array, counts: Array, order: Array) -> None:
    """Write the clusters in the order of their centres' distances, by counting."""
    counts[:] = 0
    for c in range(distances.shape[0]):
        counts[distances[c] + np.uint64(1)] += 1
    for d in range(1, counts.shape[0]):
        counts[d] += counts[d - 1]
    for c in range(distances.shape[0]):
        d = distances[c]
        order[counts[d]] = c
        counts[d] += 1


@compiled()
def nearest_in_shells(
    queries: Array, shells: tuple[Array, ...], gone: Array, k: int, max_hits: int, n_bits: int, budget: int
) -> tuple[Array, Array, Array]:
    """Return each query's k nearest rows and all ties with the k-th, up to ``max_hits``, as encoded hits.

    Also returns offsets and the queries skipped because more than ``budget`` codes would be compared. Rows in ``gone``,
    ascending, are ignored.
    """
    centres, radii, starts, codes, rows = shells
    n_queries, n_clusters, n_shells = queries.shape[0], centres.shape[1], n_bits + 1
    to_centres, order = np.empty(n_clusters, np.uint64), np.empty(n_clusters, np.int64)
    counts, seen = np.empty(n_shells + 1, np.int64), np.empty(n_shells, np.int64)
    distances, buffer = np.empty(BLOCK, np.uint64), np.empty(max(MIN_BUFFER, 4 * max_hits), np.uint64)
    hits, ends = np.empty(1024, np.uint64), np.zeros(n_queries + 1, np.int64)
    left_out = np.zeros(n_queries, np.bool_)
    for q in range(n_queries):
        query = queries[q]
        write_distances(query, centres, 0, n_clusters, to_centres)
        sort_clusters(to_centres, counts, order)
        seen[:] = 0
        limit, n_seen, size = n_bits, 0, 0
        n_compared = np.int64(0)
        for place in range(n_clusters):
            c = order[place]
            distance = np.int64(to_centres[c])
            if distance - limit > radii[c]:
                continue  # |d(q, c) − d(x, c)| ≤ d(q, x): every code x of this cluster is too far away
            first = np.int64(starts[c * n_shells + max(0, distance - limit)])
            last = np.int64(starts[c * n_shells + min(n_bits, distance + limit) + 1])
            n_compared += last - first
            if n_compared > budget:
                left_out[q] = True
                break
            while first < last:
                stop = min(last, first + BLOCK)
                if np.int64(write_distances(query, codes, first, stop, distances)) <= limit:
                    for j in range(stop - first):
                        near = np.int64(distances[j])
                        if near > limit:
                            continue
                        row = rows[first + j]
                        if gone.shape[0] and is_among(gone, np.int64(row)):
                            continue
                        if size == buffer.shape[0]:
                            size = keep_below(buffer, size, limit)
                            if size > buffer.shape[0] // 2:
                                buffer[:size].sort()
                                size = max_hits
                        buffer[size] = (np.uint64(near) << ROW_BITS) | np.uint64(row)
                        size += 1
                        seen[near] += 1
                        n_seen += 1
                        while n_seen - seen[limit] >= k:
                            n_seen -= seen[limit]
                            limit -= 1
                first = stop
        ends[q + 1] = ends[q]
        if left_out[q]:
            continue
        size = keep_below(buffer, size, limit)
        buffer[:size].sort()
        size = min(size, max_hits)
        if ends[q] + size > hits.shape[0]:
            longer = np.empty(2 * (ends[q] + size), np.uint64)
            longer[: ends[q]] = hits[: ends[q]]
            hits = longer
        hits[ends[q] : ends[q] + size] = buffer[:size]
        ends[q + 1] += size
    return hits[: ends[n_queries]], ends, left_out
