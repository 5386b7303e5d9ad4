"""Compiled walks over packed codes: all within a radius.

Most searches find little: one walk writes what it meets into a log of limited length, and the log is sorted.
Where that is too short, one walk counts and a second one fills arrays of the right size. The layout of the
database, and what holds for threads, is described in :mod:`modalhash.index.scan`.

Importing this module loads numba.
"""

from __future__ import annotations

import numpy as np

from modalhash._typing import Array
from modalhash.index.rows import CHUNK, Table
from modalhash.index.scan import block_chunks, distances, order, promising
from modalhash.kernels import compiled

LOG = 2**18  # hits of one walk that are logged: 6 MB


def all_within(queries: Array, table: Table, radius: int, n_bits: int) -> tuple[Array, Array, Array]:
    """Places and distances of all rows within ``radius``; query i's are at ``offsets[i]:offsets[i + 1]``, in order."""
    log = np.empty((LOG, 3), np.int64)
    size = log_within(queries, table.words, table.n, radius, log)
    if size >= 0:
        found: tuple[Array, Array, Array] = sort_log(log[:size], len(queries), n_bits)
        return found
    offsets = np.zeros(len(queries) + 1, dtype=np.int64)
    np.cumsum(count_within(queries, table.words, table.n, radius), out=offsets[1:])
    places, near = fill_within(queries, table.words, table.n, radius, n_bits, offsets)
    return places, near, offsets


@compiled()
def count_within(queries: Array, words: Array, n: int, radius: int) -> Array:
    """How many of the first ``n`` rows lie within ``radius`` of each query."""
    n_queries = queries.shape[0]
    totals = np.zeros(n_queries, np.int64)
    scratch = np.empty(CHUNK, np.uint64)
    n_chunks = (n + CHUNK - 1) // CHUNK
    bound = np.uint64(radius)
    step = block_chunks(words, n_queries)
    for first in range(0, n_chunks, step):
        block = words[first : min(n_chunks, first + step)]
        for q in range(n_queries):
            query = queries[q]
            for c in range(block.shape[0]):
                distances(query, block[c], scratch)
                inside = np.uint64(0)
                if n - (first + c) * CHUNK >= CHUNK:
                    for j in range(CHUNK):
                        inside += np.uint64(scratch[j] <= bound)
                else:
                    for j in range(n - (first + c) * CHUNK):
                        inside += np.uint64(scratch[j] <= bound)
                totals[q] += np.int64(inside)
    return totals


@compiled()
def log_within(queries: Array, words: Array, n: int, radius: int, log: Array) -> int:
    """Write (query, row, distance) of all of the first ``n`` rows within ``radius`` into ``log``, as they are met.

    Returns how many there are. Where the log is too short for them it stops and returns −1.
    """
    n_queries = queries.shape[0]
    scratch = np.empty(CHUNK, np.uint64)
    n_chunks = (n + CHUNK - 1) // CHUNK
    step = block_chunks(words, n_queries)
    size = 0
    for first in range(0, n_chunks, step):
        block = words[first : min(n_chunks, first + step)]
        for q in range(n_queries):
            query = queries[q]
            c = promising(query, block, 0, radius + 1, q > 0, scratch)
            while c < block.shape[0]:
                distances(query, block[c], scratch)
                row = (first + c) * CHUNK
                if size + CHUNK > log.shape[0]:
                    return -1
                for j in range(min(CHUNK, n - row)):
                    distance = np.int64(scratch[j])
                    if distance <= radius:
                        log[size, 0], log[size, 1], log[size, 2] = q, row + j, distance
                        size += 1
                c = promising(query, block, c + 1, radius + 1, q > 0, scratch)
    return size


@compiled()
def sort_log(log: Array, n_queries: int, n_bits: int) -> tuple[Array, Array, Array]:
    """A log by query and distance, equal ones in the order they came: rows, distances, and where each query begins."""
    offsets = np.zeros(n_queries + 1, np.int64)
    for i in range(log.shape[0]):
        offsets[log[i, 0] + 1] += 1
    for q in range(n_queries):
        offsets[q + 1] += offsets[q]
    places, found = np.empty(log.shape[0], np.int64), np.empty(log.shape[0], np.int32)
    ends = offsets[:n_queries].copy()
    for i in range(log.shape[0]):
        end = ends[log[i, 0]]
        places[end], found[end] = log[i, 1], log[i, 2]
        ends[log[i, 0]] = end + 1
    out_places, out_found = np.empty_like(places), np.empty_like(found)
    for q in range(n_queries):
        part = slice(offsets[q], offsets[q + 1])
        order(places[part], found[part], n_bits, out_places[part], out_found[part])
    return out_places, out_found, offsets


@compiled()
def fill_within(queries: Array, words: Array, n: int, radius: int, n_bits: int, offsets: Array) -> tuple[Array, Array]:
    """All of the first ``n`` rows within ``radius``: query i's rows and distances at ``offsets[i]:offsets[i + 1]``."""
    n_queries = queries.shape[0]
    places = np.empty(offsets[n_queries], np.int64)
    found = np.empty(offsets[n_queries], np.int32)
    ends = offsets[:n_queries].copy()
    scratch = np.empty(CHUNK, np.uint64)
    n_chunks = (n + CHUNK - 1) // CHUNK
    step = block_chunks(words, n_queries)
    for first in range(0, n_chunks, step):
        block = words[first : min(n_chunks, first + step)]
        for q in range(n_queries):
            query, end = queries[q], ends[q]
            for c in range(block.shape[0]):
                distances(query, block[c], scratch)
                row = (first + c) * CHUNK
                for j in range(min(CHUNK, n - row)):
                    distance = np.int64(scratch[j])
                    if distance <= radius:
                        places[end] = row + j
                        found[end] = distance
                        end += 1
            ends[q] = end
    out_places = np.empty_like(places)
    out_found = np.empty_like(found)
    for q in range(n_queries):
        part = slice(offsets[q], offsets[q + 1])
        order(places[part], found[part], n_bits, out_places[part], out_found[part])
    return out_places, out_found
