"""Compiled walks over packed codes: the k nearest, and all within a radius.

The database lies in chunks, ``(chunks, words, CHUNK)``: one chunk is CHUNK codes, word by word, so that a
loop over it is a handful of vector instructions. For each chunk a walk takes only the smallest distance
to the query; codes are looked at one by one only where that smallest distance can still matter, which
is rare. All queries walk over one block of chunks while it lies in the first cache.

Rows come in ascending order of id, so that among equal distances the first found is the one to keep.
Everything runs in the calling thread and without the interpreter's lock: callers spread the work over
their own threads, which (unlike numba's) may start searches at the same time.

Importing this module loads numba.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from modalhash._typing import Array
from modalhash.kernels import popcount
from modalhash.search.rows import CHUNK

njit: Any = numba.njit  # numba's own annotations do not describe what its decorators return
BLOCK_BYTES = 16384  # half of the smallest first cache in use: the rest is for the queries' buffers
SLACK = 64  # candidates above k that a buffer holds before it is tidied


@njit(cache=True, nogil=True)
def distances(query: Array, chunk: Array, out: Array) -> None:
    """Distances from one query to the codes of a chunk."""
    done = 4 if chunk.shape[0] >= 4 else 1
    query_0, words_0 = query[0], chunk[0]
    if done == 4:  # four words in one go: adding word by word would store and load four times
        query_1, query_2, query_3 = query[1], query[2], query[3]
        words_1, words_2, words_3 = chunk[1], chunk[2], chunk[3]
        for j in range(CHUNK):
            near = popcount(query_0 ^ words_0[j]) + popcount(query_1 ^ words_1[j])
            out[j] = near + popcount(query_2 ^ words_2[j]) + popcount(query_3 ^ words_3[j])
    else:
        for j in range(CHUNK):
            out[j] = popcount(query_0 ^ words_0[j])
    for w in range(done, chunk.shape[0]):
        query_w, words_w = query[w], chunk[w]
        for j in range(CHUNK):
            out[j] += popcount(query_w ^ words_w[j])


@njit(cache=True, nogil=True)
def promising(query: Array, block: Array, start: int, limit: int, scratch: Array) -> int:
    """The first chunk from ``start`` on whose smallest distance is below ``limit``; the block's length if none is.

    What lies past the last row of the database counts too: callers look again.
    """
    if block.shape[1] == 1:
        query_0 = query[0]
        for c in range(start, block.shape[0]):
            words = block[c, 0]
            least = block.dtype.type(255)  # in the type of the words: of 16-bit codes, 32 fit an instruction
            for j in range(CHUNK):
                least = min(least, block.dtype.type(popcount(query_0 ^ words[j])))
            if np.int64(least) < limit:
                return c
        return block.shape[0]
    if block.shape[1] == 2:  # 128 bits are common enough for a loop without a buffer, twice as fast
        query_0, query_1 = query[0], query[1]
        for c in range(start, block.shape[0]):
            words_0, words_1 = block[c, 0], block[c, 1]
            nearer = np.uint64(255)
            for j in range(CHUNK):
                nearer = min(nearer, popcount(query_0 ^ words_0[j]) + popcount(query_1 ^ words_1[j]))
            if np.int64(nearer) < limit:
                return c
        return block.shape[0]
    for c in range(start, block.shape[0]):
        distances(query, block[c], scratch)
        smallest = scratch[0]
        for j in range(CHUNK):
            smallest = min(smallest, scratch[j])
        if np.int64(smallest) < limit:
            return c
    return block.shape[0]


@njit(cache=True, nogil=True)
def tidy(places: Array, found: Array, limit: int, quota: int) -> int:
    """Drop candidates beyond ``limit``, and at it all but the first ``quota``. Returns how many stay, in order."""
    kept = 0
    for i in range(places.shape[0]):
        distance = found[i]
        if distance > limit:
            continue
        if distance == limit:
            if quota == 0:
                continue
            quota -= 1
        places[kept] = places[i]
        found[kept] = distance
        kept += 1
    return kept


@njit(cache=True, nogil=True)
def order(places: Array, found: Array, n_bits: int, out_places: Array, out_found: Array) -> None:
    """Sort by distance, equal ones in the order they came, by counting."""
    starts = np.zeros(n_bits + 2, np.int64)
    for i in range(found.shape[0]):
        starts[found[i] + 1] += 1
    for d in range(1, n_bits + 2):
        starts[d] += starts[d - 1]
    for i in range(found.shape[0]):
        distance = found[i]
        place = starts[distance]
        starts[distance] = place + 1
        out_places[place] = places[i]
        out_found[place] = distance


@njit(cache=True, nogil=True)
def nearest(queries: Array, words: Array, n: int, k: int, n_bits: int) -> tuple[Array, Array]:
    """The ``k`` nearest of the first ``n`` rows to each query, ``1 ≤ k ≤ n``: rows and distances, (queries, k).

    ``limit`` is the distance of a query's k-th candidate so far, n_bits + 1 before there are k: a later row
    enters only below it. ``below`` counts the candidates nearer than that, ``counts`` those at each distance;
    so the limit falls without a heap, and a full buffer is tidied down to exactly k.
    """
    n_queries = queries.shape[0]
    room = min(n, 2 * k + SLACK)
    places = np.empty((n_queries, room), np.int64)
    found = np.empty((n_queries, room), np.int32)
    counts = np.zeros((n_queries, n_bits + 1), np.int64)
    sizes = np.zeros(n_queries, np.int64)
    below = np.zeros(n_queries, np.int64)
    limits = np.full(n_queries, n_bits + 1, np.int64)
    scratch = np.empty(CHUNK, np.uint64)
    n_chunks = (n + CHUNK - 1) // CHUNK
    step = max(1, BLOCK_BYTES // (CHUNK * words.shape[1] * words.itemsize))
    for first in range(0, n_chunks, step):
        block = words[first : min(n_chunks, first + step)]
        for q in range(n_queries):
            query, limit = queries[q], limits[q]
            c = promising(query, block, 0, limit, scratch)
            while c < block.shape[0]:
                distances(query, block[c], scratch)
                row = (first + c) * CHUNK
                for j in range(min(CHUNK, n - row)):
                    distance = np.int64(scratch[j])
                    if distance >= limit:
                        continue
                    size = sizes[q]
                    if size == room:
                        size = tidy(places[q], found[q], limit, k - below[q])
                    places[q, size] = row + j
                    found[q, size] = distance
                    sizes[q] = size + 1
                    counts[q, distance] += 1
                    below[q] += 1
                    while below[q] >= k:
                        limit -= 1
                        below[q] -= counts[q, limit]
                c = promising(query, block, c + 1, limit, scratch)
            limits[q] = limit
    out_places = np.empty((n_queries, k), np.int64)
    out_found = np.empty((n_queries, k), np.int32)
    for q in range(n_queries):
        size = tidy(places[q, : sizes[q]], found[q], limits[q], k - below[q])
        order(places[q, :size], found[q, :size], n_bits, out_places[q], out_found[q])
    return out_places, out_found


@njit(cache=True, nogil=True)
def count_within(queries: Array, words: Array, n: int, radius: int) -> Array:
    """How many of the first ``n`` rows lie within ``radius`` of each query."""
    n_queries = queries.shape[0]
    totals = np.zeros(n_queries, np.int64)
    scratch = np.empty(CHUNK, np.uint64)
    n_chunks = (n + CHUNK - 1) // CHUNK
    bound = np.uint64(radius)
    step = max(1, BLOCK_BYTES // (CHUNK * words.shape[1] * words.itemsize))
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


@njit(cache=True, nogil=True)
def within(queries: Array, words: Array, n: int, radius: int, n_bits: int, offsets: Array) -> tuple[Array, Array]:
    """All of the first ``n`` rows within ``radius``: query i's rows and distances at ``offsets[i]:offsets[i + 1]``."""
    n_queries = queries.shape[0]
    places = np.empty(offsets[n_queries], np.int64)
    found = np.empty(offsets[n_queries], np.int32)
    ends = offsets[:n_queries].copy()
    scratch = np.empty(CHUNK, np.uint64)
    n_chunks = (n + CHUNK - 1) // CHUNK
    step = max(1, BLOCK_BYTES // (CHUNK * words.shape[1] * words.itemsize))
    for first in range(0, n_chunks, step):
        block = words[first : min(n_chunks, first + step)]
        for q in range(n_queries):
            query, end = queries[q], ends[q]
            c = promising(query, block, 0, radius + 1, scratch)
            while c < block.shape[0]:
                distances(query, block[c], scratch)
                row = (first + c) * CHUNK
                for j in range(min(CHUNK, n - row)):
                    distance = np.int64(scratch[j])
                    if distance <= radius:
                        places[end] = row + j
                        found[end] = distance
                        end += 1
                c = promising(query, block, c + 1, radius + 1, scratch)
            ends[q] = end
    out_places = np.empty_like(places)
    out_found = np.empty_like(found)
    for q in range(n_queries):
        part = slice(offsets[q], offsets[q + 1])
        order(places[part], found[part], n_bits, out_places[part], out_found[part])
    return out_places, out_found
