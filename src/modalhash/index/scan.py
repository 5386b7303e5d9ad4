"""A compiled walk over packed codes: the k nearest.

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

import numpy as np

from modalhash._typing import Array
from modalhash.index.rows import CHUNK
from modalhash.kernels import compiled, popcount, prefetch

BLOCK_BYTES = 16384  # half of the smallest first cache in use: the rest is for the queries' buffers
FAR = np.uint64(2**63)  # from anything
SLACK = 64  # candidates above k that a buffer holds before it is tidied


@compiled()
def distances(query: Array, chunk: Array, out: Array) -> None:
    """Distances from one query to the codes of a chunk."""
    query_0, words_0 = query[0], chunk[0]
    for j in range(CHUNK):
        out[j] = popcount(query_0 ^ words_0[j])
    for w in range(1, chunk.shape[0]):
        query_w, words_w = query[w], chunk[w]
        for j in range(CHUNK):
            out[j] += popcount(query_w ^ words_w[j])


@compiled()
def fetch_ahead(words: Array) -> None:
    """Ask memory for the words after the next ones: by itself the processor stops at the end of each page."""
    size = words.itemsize * CHUNK
    for line in range(size // 64):
        prefetch(words, 2 * size + 64 * line)


@compiled()
def promising(query: Array, block: Array, start: int, limit: int, cached: bool, scratch: Array) -> int:
    """The first chunk from ``start`` on whose smallest distance is below ``limit``; the block's length if none is.

    What lies past the last row of the database counts too: callers look again. A block that is not ``cached`` is
    read in the order of memory, word by word: several streams at once would defeat the prefetcher, and take
    three times as long.
    """
    n_words = block.shape[1]
    if n_words == 1:
        query_0 = query[0]
        for c in range(start, block.shape[0]):
            words = block[c, 0]
            least = block.dtype.type(255)  # in the type of the words: of 16-bit codes, 32 fit an instruction
            for j in range(CHUNK):
                least = min(least, block.dtype.type(popcount(query_0 ^ words[j])))
            if np.int64(least) < limit:
                return c
        return block.shape[0]
    if n_words == 2 and cached:  # 128 and 256 bits are common enough for loops without a buffer
        query_0, query_1 = query[0], query[1]
        for c in range(start, block.shape[0]):
            words_0, words_1 = block[c, 0], block[c, 1]
            nearest_of_two = FAR
            for j in range(CHUNK):
                near = popcount(query_0 ^ words_0[j]) + popcount(query_1 ^ words_1[j])
                nearest_of_two = min(nearest_of_two, near)
            if np.int64(nearest_of_two) < limit:
                return c
        return block.shape[0]
    if n_words == 4 and cached:
        query_0, query_1, query_2, query_3 = query[0], query[1], query[2], query[3]
        for c in range(start, block.shape[0]):
            words_0, words_1, words_2, words_3 = block[c, 0], block[c, 1], block[c, 2], block[c, 3]
            nearest_of_four = FAR
            for j in range(CHUNK):
                near = popcount(query_0 ^ words_0[j]) + popcount(query_1 ^ words_1[j])
                near += popcount(query_2 ^ words_2[j]) + popcount(query_3 ^ words_3[j])
                nearest_of_four = min(nearest_of_four, near)
            if np.int64(nearest_of_four) < limit:
                return c
        return block.shape[0]
    for c in range(start, block.shape[0]):
        query_0, words_0 = query[0], block[c, 0]
        fetch_ahead(words_0)
        for j in range(CHUNK):
            scratch[j] = popcount(query_0 ^ words_0[j])
        for w in range(1, n_words - 1):
            query_w, words_w = query[w], block[c, w]
            fetch_ahead(words_w)
            for j in range(CHUNK):
                scratch[j] += popcount(query_w ^ words_w[j])
        query_last, words_last = query[n_words - 1], block[c, n_words - 1]
        fetch_ahead(words_last)
        nearest_of_all = FAR
        for j in range(CHUNK):
            nearest_of_all = min(nearest_of_all, scratch[j] + popcount(query_last ^ words_last[j]))
        if np.int64(nearest_of_all) < limit:
            return c
    return block.shape[0]


@compiled()
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


@compiled()
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


@compiled()
def block_chunks(words: Array, n_queries: int) -> int:
    """Chunks of a block: what stays in the first cache for the next query, or all for the only one."""
    return words.shape[0] if n_queries == 1 else max(1, BLOCK_BYTES // (CHUNK * words.shape[1] * words.itemsize))


@compiled()
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
    step = block_chunks(words, n_queries)
    for first in range(0, n_chunks, step):
        block = words[first : min(n_chunks, first + step)]
        for q in range(n_queries):
            query, limit = queries[q], limits[q]
            c = promising(query, block, 0, limit, q > 0, scratch)
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
                c = promising(query, block, c + 1, limit, q > 0, scratch)
            limits[q] = limit
    out_places = np.empty((n_queries, k), np.int64)
    out_found = np.empty((n_queries, k), np.int32)
    for q in range(n_queries):
        size = tidy(places[q, : sizes[q]], found[q], limits[q], k - below[q])
        order(places[q, :size], found[q, :size], n_bits, out_places[q], out_found[q])
    return out_places, out_found
