"""Compiled scans: the k nearest, and all within a radius.

The database is in chunks ``words (chunks, words, CHUNK)``; README.md next to this file draws the layout. A scan
computes only the smallest distance in each chunk, and compares single codes only if that can still matter, which is
rare. All queries scan one block of chunks while it is in the first-level cache.

Rows ascend by id, so among equal distances the first row is kept. A row may be a code of several items
(:class:`modalhash.index.layout.DistinctCodes`), and then counts that number of times. Everything runs in the calling
thread without the GIL; callers use their own threads, which (unlike numba's) may start searches concurrently.

Importing this module loads numba, so import it inside the functions that need it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from modalhash.core.bit_kernels import VECTOR_POPCOUNT, compiled, popcount
from modalhash.core.typing import Array
from modalhash.index.kernels.bitsliced import (
    GROUP,
    GROUP_CHUNKS,
    LANES,
    MAX_DIGITS,
    TABLE_WORDS,
    TRIPLES,
    aligned_words,
    chunk_below,
    codes_below,
    fill_bound,
    fill_places,
    fill_table,
    lowest_bit,
    next_group_below,
)
from modalhash.index.layout import CHUNK

BLOCK_BYTES = 16384  # half of the smallest first-level cache in use; the rest is for the queries' buffers
MAX_DISTANCE = np.uint64(2**63)  # larger than any distance
EXTRA_CANDIDATES = 64  # capacity of a query's buffer beyond twice ``max_hits``
MIN_SAMPLED, MAX_SAMPLED = 16, 128  # chunks, a 16th of all, from which the first limit is estimated
SAMPLE_MARGIN = 3  # rows beyond those expected in the sample
GROUPS_OF_A_BLOCK = 4  # of one word; their tables, 28 kB, stay in the first-level cache
MIN_BYTES_FOR_HALVES = 2**23  # of codes; fewer are soon cached
CHUNKS_AT_ONCE = 8  # of each half; few enough to stay cached
MIN_QUERIES_FOR_PLANES = 4  # with fewer, building the tables costs more than it saves
LOG_LENGTH = 2**18  # hits of one radius scan; 6 MB


@compiled()
def chunk_distances(query: Array, chunk: Array, out: Array) -> None:
    """Write the distances from one query to the codes of a chunk into ``out``."""
    query_0, words_0 = query[0], chunk[0]
    for j in range(CHUNK):
        out[j] = popcount(query_0 ^ words_0[j])
    for w in range(1, chunk.shape[0]):
        query_w, words_w = query[w], chunk[w]
        for j in range(CHUNK):
            out[j] += popcount(query_w ^ words_w[j])


@compiled(inline="always")  # a call would count references to its arrays
def distance_to(query: Array, words: Array, row: int) -> np.int64:
    distance = np.int64(0)
    for w in range(query.shape[0]):
        distance += np.int64(popcount(query[w] ^ words[row // CHUNK, w, row % CHUNK]))
    return distance


@compiled()
def next_chunk_below(query: Array, block: Array, start: int, limit: int, cached: bool) -> int:
    """Return the first chunk from ``start`` on with a distance below ``limit``, or the block's length.

    Zeros after the last row of the database count too, so callers compare the filled rows again. A ``cached`` block is
    read out of memory order and without prefetching, which is a tenth faster for 256 bits.
    """
    if VECTOR_POPCOUNT and cached and block.itemsize == 8 and block.shape[1] == 4:
        query_0, query_1, query_2, query_3 = query[0], query[1], query[2], query[3]
        for c in range(start, block.shape[0]):
            words_0, words_1, words_2, words_3 = block[c, 0], block[c, 1], block[c, 2], block[c, 3]
            nearest_of_all = MAX_DISTANCE
            for j in range(CHUNK):
                near = popcount(query_0 ^ words_0[j]) + popcount(query_1 ^ words_1[j])
                near += popcount(query_2 ^ words_2[j]) + popcount(query_3 ^ words_3[j])
                nearest_of_all = min(nearest_of_all, near)
            if np.int64(nearest_of_all) < limit:
                return c
        return block.shape[0]
    if block.itemsize == 8:
        for c in range(start, block.shape[0]):
            if chunk_below(block, c, query, limit, c if cached else c + 1):
                return c
        return block.shape[0]
    query_0 = query[0]
    for c in range(start, block.shape[0]):
        words = block[c, 0]
        least = block.dtype.type(255)  # in the type of the words, so that 32 codes of 16 bits fit a vector
        for j in range(CHUNK):
            least = min(least, block.dtype.type(popcount(query_0 ^ words[j])))
        if np.int64(least) < limit:
            return c
    return block.shape[0]


@compiled()
def next_pairs_below(
    query: Array, chunks: Array, start: int, limit: int, other_limit: int, found: Array, n_found: Array
) -> int:
    """Write which chunks of two halves to compare, from ``start`` on, until a row of ``found`` is full.

    Chunks of the first half have a distance below ``limit``, those of the second below ``other_limit``. Each half has a
    row of ``found`` and its count in ``n_found``. Returns where to continue. It does not stop at the first chunk,
    because the prefetched ones would be lost. Words have 64 bits; the last chunk of an odd number is omitted.
    """
    second = (chunks.shape[0] + 1) // 2
    n_first, n_second, c = 0, 0, start
    while c < chunks.shape[0] // 2 and max(n_first, n_second) < found.shape[1]:
        found[0, n_first], found[1, n_second] = c, second + c
        n_first += chunk_below(chunks, c, query, limit, c + 1)
        n_second += chunk_below(chunks, second + c, query, other_limit, second + c + 1)
        c += 1
    n_found[0], n_found[1] = n_first, n_second
    return c


@compiled()
def block_chunks(words: Array, n_queries: int) -> int:
    """Return the chunks per block: those that fit the first-level cache, or all for a single query."""
    return words.shape[0] if n_queries == 1 else max(1, BLOCK_BYTES // (CHUNK * words.shape[1] * words.itemsize))


@compiled(inline="always")  # a call would count references to its arrays
def planes_pay(words: Array, n_queries: int) -> bool:
    """Return whether a batch is compared bit-sliced (:mod:`.bitsliced`): codes of 1, 2 or 4 64-bit words.

    If one instruction counts the bits of several words, chunks are compared faster without tables.
    """
    n_words = words.shape[1]
    possible = words.itemsize == 8 and (n_words <= 2 or n_words == 4)
    return possible and not VECTOR_POPCOUNT and n_queries >= MIN_QUERIES_FOR_PLANES


@compiled()
def sort_by_distance(rows: Array, distances: Array, n_bits: int, out_rows: Array, out_distances: Array) -> None:
    """Sort by distance, stably, by counting."""
    starts = np.zeros(n_bits + 2, np.int64)
    for i in range(distances.shape[0]):
        starts[distances[i] + 1] += 1
    for d in range(1, n_bits + 2):
        starts[d] += starts[d - 1]
    for i in range(distances.shape[0]):
        distance = distances[i]
        position = starts[distance]
        starts[distance] = position + 1
        out_rows[position] = rows[i]
        out_distances[position] = distance


# -- the k nearest


@compiled()
def compact(rows: Array, distances: Array, limit: int, quota: int) -> int:
    """Drop candidates beyond ``limit``, and at it all but the first ``quota``; return how many stay, in order."""
    size = 0
    for i in range(rows.shape[0]):
        distance = distances[i]
        if distance > limit:
            continue
        if distance == limit:
            if quota == 0:
                continue
            quota -= 1
        rows[size] = rows[i]
        distances[size] = distance
        size += 1
    return size


@compiled()
def likely_limit(query: Array, words: Array, n: int, k: int, n_bits: int, scratch: Array) -> int:
    """Estimate, from a sample of chunks, a distance that very likely contains k of the first ``n`` rows."""
    n_whole = n // CHUNK
    n_sampled = min(MAX_SAMPLED, n_whole // 16)
    if n_sampled < MIN_SAMPLED:
        return n_bits
    counts = np.zeros(n_bits + 1, np.int64)
    stride = n_whole // n_sampled
    wanted = SAMPLE_MARGIN + 1.25 * k * (n_sampled * CHUNK) / n
    limit, below = n_bits + 1, 0
    for i in range(n_sampled):
        c = i * stride
        if words.itemsize == 8:
            near = chunk_below(words, c, query, limit, c + stride)
        else:
            near = next_chunk_below(query, words[c : c + 1], 0, limit, True) == 0
        if not near:
            continue
        chunk_distances(query, words[c], scratch)
        for j in range(CHUNK):
            distance = np.int64(scratch[j])
            if distance < limit:
                counts[distance] += 1
                below += 1
                while below >= wanted:
                    limit -= 1
                    below -= counts[limit]
    return min(limit, n_bits)


class Search(NamedTuple):
    """Queries, and the database that they are compared with (:func:`nearest`)."""

    queries: Array
    words: Array
    n: int
    starts: Array
    k: int
    max_hits: int


class Candidates(NamedTuple):
    """The candidates of each query so far, whose fields :func:`nearest` explains."""

    rows: Array
    distances: Array
    counts: Array
    n_rows_at: Array
    sizes: Array
    n_within: Array
    limits: Array


@compiled()
def nearest(
    queries: Array, words: Array, n: int, starts: Array, k: int, max_hits: int, n_bits: int, max_distance: int
) -> tuple[Array, Array, Array]:
    """Return rows, distances (queries, max_hits) and counts for the k nearest items and their ties.

    Row i represents ``starts[i + 1] - starts[i]`` items, or one if ``starts`` is empty. The result has the rows of the
    ``k`` nearest items and all rows at the distance of the k-th, with ``1 ≤ k ≤ max_hits``. Of the rows at that
    distance, only the first ``max_hits`` minus the number of nearer items are kept, because each row has an item. With
    ``max_hits = k`` and one item per row, these are the k nearest rows. Rows beyond ``max_distance`` are omitted, and
    unfilled slots hold row 0.

    ``limit`` is the distance of a query's k-th item so far, or ``max_distance``. ``n_items_within`` counts the items
    up to the limit, ``counts`` the items at each distance, ``n_rows_at`` the rows at each distance. With these counts
    the limit falls without a heap, and a full buffer is compacted to at most ``max_hits`` rows. A sample gives each
    query its first limit. If that was too small, the scan is repeated without it.
    """
    n_queries = queries.shape[0]
    capacity = min(n, 2 * max_hits + EXTRA_CANDIDATES)
    found = Candidates(
        np.empty((n_queries, capacity), np.int64),
        np.empty((n_queries, capacity), np.int32),
        np.zeros((n_queries, n_bits + 1), np.int64),
        np.zeros((n_queries, n_bits + 1), np.int64),
        np.zeros(n_queries, np.int64),
        np.zeros(n_queries, np.int64),
        np.full(n_queries, max_distance, np.int64),
    )
    rows, distances, counts, n_rows_at, sizes, n_items_within, limits = found
    scratch = np.empty(CHUNK, np.uint64)
    if starts.shape[0] == 0:
        for q in range(n_queries):
            limits[q] = min(max_distance, likely_limit(queries[q], words, n, k, n_bits, scratch))
    scan_nearest(Search(queries, words, n, starts, k, max_hits), found, scratch)
    for q in range(n_queries):
        if n_items_within[q] < k and limits[q] < max_distance:
            one = slice(q, q + 1)
            counts[q], n_rows_at[q], sizes[q], n_items_within[q], limits[q] = 0, 0, 0, 0, max_distance
            own = Candidates(
                rows[one], distances[one], counts[one], n_rows_at[one], sizes[one], n_items_within[one], limits[one]
            )
            scan_nearest(Search(queries[one], words, n, starts, k, max_hits), own, scratch)
    out_rows = np.zeros((n_queries, max_hits), np.int64)
    out_distances = np.zeros((n_queries, max_hits), np.int32)
    for q in range(n_queries):
        quota = max_hits - (n_items_within[q] - counts[q, limits[q]])
        size = compact(rows[q, : sizes[q]], distances[q], limits[q], quota)
        sort_by_distance(rows[q, :size], distances[q, :size], n_bits, out_rows[q], out_distances[q])
        sizes[q] = size
    return out_rows, out_distances, sizes


@compiled()
def scan_nearest(search: Search, found: Candidates, scratch: Array) -> None:
    """Fill the candidates of each query (:func:`nearest`)."""
    queries, words, n, starts, k, max_hits = search
    rows, distances, counts, n_rows_at, sizes, n_within, limits = found
    n_queries = rows.shape[0]
    n_chunks = (n + CHUNK - 1) // CHUNK
    if halves_pay(words, n_chunks, n_queries):
        sizes[0], n_within[0], limits[0] = scan_halves(search, rows[0], distances[0], counts[0], limits[0])
        return
    begin = scan_groups(search, found) if planes_pay(words, n_queries) else 0
    step = block_chunks(words, n_queries)
    for first in range(begin, n_chunks, step):
        block = words[first : min(n_chunks, first + step)]
        for q in range(n_queries):
            query, limit = queries[q], limits[q]
            own_rows, own_distances, own_counts, own_n_rows_at = rows[q], distances[q], counts[q], n_rows_at[q]
            size, n_items_within = sizes[q], n_within[q]
            bound = bound_of(limit, n_items_within, max_hits, own_counts, own_n_rows_at)
            c = next_chunk_below(query, block, 0, bound, q > 0)
            while c < block.shape[0]:
                chunk_distances(query, block[c], scratch)
                row = (first + c) * CHUNK
                for j in range(min(CHUNK, n - row)):
                    distance = np.int64(scratch[j])
                    if distance < bound:
                        size, n_items_within, limit = insert(
                            row + j, distance, starts, k, max_hits, own_rows, own_distances, own_counts, own_n_rows_at,
                            size, n_items_within, limit,
                        )  # fmt: skip
                        bound = bound_of(limit, n_items_within, max_hits, own_counts, own_n_rows_at)
                c = next_chunk_below(query, block, c + 1, bound, q > 0)
            limits[q], sizes[q], n_within[q] = limit, size, n_items_within


@compiled(inline="always")  # a call would count references to its arrays
def halves_pay(words: Array, n_chunks: int, n_queries: int) -> bool:
    return words.itemsize == 8 and n_queries == 1 and n_chunks * words.shape[1] * CHUNK * 8 >= MIN_BYTES_FOR_HALVES


@compiled()
def scan_halves(search: Search, rows: Array, distances: Array, counts: Array, limit: int) -> tuple[int, int, int]:
    """Fill the candidates of one query from both halves of the database; return what :func:`insert` does.

    Memory is read faster from two places than from one. Each half has its own candidates and ``n_rows_at``, so that the
    first rows of each are kept; the limit is shared. Finally the candidates of the second half follow those of the
    first.
    """
    queries, words, n, starts, k, max_hits = search
    query, chunks = queries[0], words[: (n + CHUNK - 1) // CHUNK]
    n_pairs, second = chunks.shape[0] // 2, (chunks.shape[0] + 1) // 2
    half_rows, half_distances = np.empty((2, rows.shape[0]), np.int64), np.empty((2, rows.shape[0]), np.int32)
    n_rows_at, sizes = np.zeros((2, counts.shape[0]), np.int64), np.zeros(2, np.int64)
    found, n_found = np.empty((2, CHUNKS_AT_ONCE), np.int64), np.empty(2, np.int64)
    bounds, below = np.empty(2, np.int64), np.empty(CHUNK // 64, np.uint64)
    n_items_within, begin = 0, 0
    while begin < second:
        for part in range(2):
            bounds[part] = bound_of(limit, n_items_within, max_hits, counts, n_rows_at[part])
        begin = next_pairs_below(query, chunks, begin, bounds[0], bounds[1], found, n_found)
        if begin == n_pairs and max(n_found[0], n_found[1]) == 0:
            found[0, 0], n_found[0], begin = n_pairs, second - n_pairs, second  # last chunk of a longer first half
        for part in range(2):
            own_rows, own_distances, own_n_rows_at = half_rows[part], half_distances[part], n_rows_at[part]
            size, bound = sizes[part], bound_of(limit, n_items_within, max_hits, counts, own_n_rows_at)
            for i in range(n_found[part]):
                c = found[part, i]
                codes_below(chunks, c, query, bound, below)
                for lane in range(CHUNK // 64):
                    bits = below[lane]
                    while bits:
                        row = c * CHUNK + 64 * lane + lowest_bit(bits)
                        bits &= bits - np.uint64(1)
                        distance = distance_to(query, chunks, row)
                        if distance < bound and row < n:  # the bound falls as candidates are inserted
                            size, n_items_within, limit = insert(
                                row, distance, starts, k, max_hits, own_rows, own_distances, counts, own_n_rows_at,
                                size, n_items_within, limit,
                            )  # fmt: skip
                            bound = bound_of(limit, n_items_within, max_hits, counts, own_n_rows_at)
            sizes[part] = size
    size = 0
    for part in range(2):
        own_rows, own_distances = half_rows[part], half_distances[part]
        n_kept = compact(own_rows[: sizes[part]], own_distances, limit, max_hits - (n_items_within - counts[limit]))
        rows[size : size + n_kept], distances[size : size + n_kept] = own_rows[:n_kept], own_distances[:n_kept]
        size += n_kept
    return size, n_items_within, limit


@compiled()
def scan_groups(search: Search, found: Candidates) -> int:
    """Fill the candidates of each query from the complete groups of :mod:`.bitsliced`; return their chunks."""
    queries, words, n, _, _, max_hits = search
    n_queries, n_words = queries.shape
    n_groups = n // GROUP
    step = GROUPS_OF_A_BLOCK // n_words
    tables = aligned_words(step * n_words * TABLE_WORDS).reshape(step, n_words * TABLE_WORDS)
    planes, below = aligned_words(64 * LANES), aligned_words(LANES)
    places = np.empty((n_queries, 2 * TRIPLES * n_words), np.uint16)
    bounds = np.empty((n_queries, MAX_DIGITS), np.uint64)
    for q in range(n_queries):
        fill_places(queries[q], places[q])
        limit, n_within = found.limits[q], found.n_within[q]
        fill_bound(bound_of(limit, n_within, max_hits, found.counts[q], found.n_rows_at[q]), bounds[q])
    for first in range(0, n_groups, step):
        in_block = min(step, n_groups - first)
        for g in range(in_block):
            fill_table(words[(first + g) * GROUP_CHUNKS : (first + g + 1) * GROUP_CHUNKS], planes, tables[g])
        for q in range(n_queries):
            g = next_group_below(tables, 0, in_block, places, bounds, q, below)
            while g < in_block:
                bound = take_below(search, found, q, (first + g) * GROUP, below)
                fill_bound(bound, bounds[q])
                g = next_group_below(tables, g + 1, in_block, places, bounds, q, below)
    return n_groups * GROUP_CHUNKS


@compiled()
def take_below(search: Search, found: Candidates, q: int, start: int, below: Array) -> int:
    """Insert the codes of the group at row ``start`` whose bit in ``below`` is set; return the query's bound."""
    queries, words, _, starts, k, max_hits = search
    rows, distances, counts, n_rows_at, sizes, n_within, limits = found
    query = queries[q]
    own_rows, own_distances, own_counts, own_n_rows_at = rows[q], distances[q], counts[q], n_rows_at[q]
    size, n_items_within, limit = sizes[q], n_within[q], limits[q]
    bound = bound_of(limit, n_items_within, max_hits, own_counts, own_n_rows_at)
    for lane in range(LANES):
        bits = below[lane]
        first = start + 64 * lane
        while bits:
            row = first + lowest_bit(bits)
            bits &= bits - np.uint64(1)
            distance = distance_to(query, words, row)
            if distance < bound:  # the bound falls as candidates are inserted
                size, n_items_within, limit = insert(
                    row, distance, starts, k, max_hits, own_rows, own_distances, own_counts, own_n_rows_at,
                    size, n_items_within, limit,
                )  # fmt: skip
                bound = bound_of(limit, n_items_within, max_hits, own_counts, own_n_rows_at)
    sizes[q], n_within[q], limits[q] = size, n_items_within, limit
    return bound


@compiled(inline="always")  # a call would count references to its arrays
def bound_of(limit: int, n_items_within: int, max_hits: int, counts: Array, n_rows_at: Array) -> int:
    """Return the distance from which on rows do not matter: above the limit, or at it if there are enough."""
    return limit + int(n_rows_at[limit] < max_hits - (n_items_within - counts[limit]))


@compiled(inline="always")  # a call would count references to its arrays
def insert(
    row: int,
    distance: int,
    starts: Array,
    k: int,
    max_hits: int,
    rows: Array,
    distances: Array,
    counts: Array,
    n_rows_at: Array,
    size: int,
    n_items_within: int,
    limit: int,
) -> tuple[int, int, int]:
    """Insert a row into a query's candidates; return their number, the items within the limit, and the limit."""
    if size == rows.shape[0]:
        size = compact(rows, distances, limit, max_hits - (n_items_within - counts[limit]))
    rows[size] = row
    distances[size] = distance
    weight = starts[row + 1] - starts[row] if starts.shape[0] else 1
    counts[distance] += weight
    n_rows_at[distance] += 1
    n_items_within += weight
    while n_items_within - counts[limit] >= k:
        n_items_within -= counts[limit]
        limit -= 1
    return size + 1, n_items_within, limit


# -- all within a radius


def within(queries: Array, words: Array, n: int, radius: int, n_bits: int) -> tuple[Array, Array, Array]:
    """Return rows, distances and offsets of all of the first ``n`` rows within ``radius``.

    Hits of query i are at ``offsets[i]:offsets[i + 1]``, ordered. Most searches find little, so a scan writes the hits
    into a log of limited length, which is sorted. If the log was too short, another scan fills one of the right size.
    """
    log = np.empty((LOG_LENGTH, 3), np.int64)
    size = log_within(queries, words, n, radius, log)
    if size > len(log):
        log = np.empty((size, 3), np.int64)
        log_within(queries, words, n, radius, log)
    hits: tuple[Array, Array, Array] = sort_log(log[:size], len(queries), n_bits)
    return hits


@compiled()
def log_within(queries: Array, words: Array, n: int, radius: int, log: Array) -> int:
    """Write (query, row, distance) of the first ``n`` rows within ``radius`` into ``log``, unsorted.

    Returns their number, which may be larger than the log; the others are not written.
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
            c = next_chunk_below(query, block, 0, radius + 1, q > 0)
            while c < block.shape[0]:
                chunk_distances(query, block[c], scratch)
                row = (first + c) * CHUNK
                for j in range(min(CHUNK, n - row)):
                    distance = np.int64(scratch[j])
                    if distance <= radius:
                        if size < log.shape[0]:
                            log[size, 0], log[size, 1], log[size, 2] = q, row + j, distance
                        size += 1
                c = next_chunk_below(query, block, c + 1, radius + 1, q > 0)
    return size


@compiled()
def sort_log(log: Array, n_queries: int, n_bits: int) -> tuple[Array, Array, Array]:
    """Sort a log by query and distance, stably, by counting; return rows, distances and offsets."""
    n_levels = n_bits + 1
    places = np.zeros(n_queries * n_levels + 1, np.int64)
    for i in range(log.shape[0]):
        places[log[i, 0] * n_levels + log[i, 2] + 1] += 1
    for level in range(n_queries * n_levels):
        places[level + 1] += places[level]
    offsets = places[::n_levels].copy()
    rows, distances = np.empty(log.shape[0], np.int64), np.empty(log.shape[0], np.int32)
    for i in range(log.shape[0]):
        level = log[i, 0] * n_levels + log[i, 2]
        place = places[level]
        places[level] = place + 1
        rows[place], distances[place] = log[i, 1], log[i, 2]
    return rows, distances, offsets
