"""The compiled loops that :mod:`modalhash.index.kernels.numpy_search` has in numpy: scans, hit lists, inner products.

Importing this module loads numba, so import it inside the functions that need it.
"""

from __future__ import annotations

import numpy as np

from modalhash.core.bit_kernels import compiled, popcount, prefetch
from modalhash.core.typing import Array
from modalhash.index.kernels.scans import nearest as nearest, within as within
from modalhash.index.layout import CHUNK

PREFETCHED_ROWS = 16  # rows in flight while one is multiplied

# -- hits: items of distinct codes, merged lists, distances of some items


@compiled()
def merge_items(starts: Array, items: Array, codes: Array, wanted: int, out: Array, heads: Array, heap: Array) -> int:
    """Write the first ``wanted`` items of some codes into ``out``, ascending, and return their number.

    The items of code c are ``items[starts[c]:starts[c + 1]]``, ascending. ``heads`` and ``heap`` are scratch arrays
    with an entry per code: the position of its next item, and a heap of the codes by that item.
    """
    n = codes.shape[0]
    if n == 1:
        first = starts[codes[0]]
        size = min(wanted, starts[codes[0] + 1] - first)
        for i in range(size):
            out[i] = items[first + i]
        return size
    for i in range(n):
        heads[i] = starts[codes[i]]
        heap[i] = i
    for i in range(n // 2 - 1, -1, -1):
        sift_down(items, heads, heap, i, n)
    size = 0
    while n > 0 and size < wanted:
        top = heap[0]
        out[size] = items[heads[top]]
        size += 1
        heads[top] += 1
        if heads[top] == starts[codes[top] + 1]:
            n -= 1
            heap[0] = heap[n]
        sift_down(items, heads, heap, 0, n)
    return size


@compiled()
def sift_down(items: Array, heads: Array, heap: Array, i: int, n: int) -> None:
    while 2 * i + 1 < n:
        child = 2 * i + 1
        if child + 1 < n and items[heads[heap[child + 1]]] < items[heads[heap[child]]]:
            child += 1
        if items[heads[heap[i]]] <= items[heads[heap[child]]]:
            return
        heap[i], heap[child] = heap[child], heap[i]
        i = child


@compiled()
def nearest_items(
    codes: Array, distances: Array, sizes: Array, starts: Array, items: Array, max_hits: int
) -> tuple[Array, Array, Array]:
    """Return the items of each query's codes, up to ``max_hits``, by (distance, item), and their number.

    The codes of query q, ordered by distance, are ``codes[q, : sizes[q]]``, as :func:`nearest` returns them.
    """
    n_queries = codes.shape[0]
    out = np.zeros((n_queries, max_hits), np.int64)
    out_distances = np.zeros((n_queries, max_hits), np.int32)
    out_sizes = np.zeros(n_queries, np.int64)
    heads, heap = np.empty(codes.shape[1], np.int64), np.empty(codes.shape[1], np.int64)
    for q in range(n_queries):
        first = filled = 0
        while first < sizes[q] and filled < max_hits:
            last = first + 1
            while last < sizes[q] and distances[q, last] == distances[q, first]:
                last += 1
            level = codes[q, first:last]
            added = merge_items(starts, items, level, max_hits - filled, out[q, filled:], heads, heap)
            out_distances[q, filled : filled + added] = distances[q, first]
            filled += added
            first = last
        out_sizes[q] = filled
    return out, out_distances, out_sizes


@compiled()
def items_within(
    codes: Array, distances: Array, offsets: Array, starts: Array, items: Array
) -> tuple[Array, Array, Array]:
    """Return the items of the codes that :func:`within` returned, their distances, and offsets per query."""
    n_queries = offsets.shape[0] - 1
    out_offsets = np.zeros(n_queries + 1, np.int64)
    longest = 0
    for q in range(n_queries):
        total = out_offsets[q]
        for i in range(offsets[q], offsets[q + 1]):
            total += starts[codes[i] + 1] - starts[codes[i]]
        out_offsets[q + 1] = total
        longest = max(longest, offsets[q + 1] - offsets[q])
    out = np.empty(out_offsets[n_queries], np.int64)
    out_distances = np.empty(out_offsets[n_queries], np.int32)
    heads, heap = np.empty(longest, np.int64), np.empty(longest, np.int64)
    for q in range(n_queries):
        first, filled = offsets[q], out_offsets[q]
        while first < offsets[q + 1]:
            last = first + 1
            while last < offsets[q + 1] and distances[last] == distances[first]:
                last += 1
            room = out_offsets[q + 1] - filled
            added = merge_items(starts, items, codes[first:last], room, out[filled:], heads, heap)
            out_distances[filled : filled + added] = distances[first]
            filled += added
            first = last
    return out, out_distances, out_offsets


@compiled()
def merge_ordered(ids: Array, distances: Array, other_ids: Array, other_distances: Array) -> tuple[Array, ...]:
    """Merge two lists of hits, each ordered by (distance, id); also return which list contains each hit."""
    n = ids.shape[0] + other_ids.shape[0]
    out_ids, out_distances = np.empty(n, np.int64), np.empty(n, np.int32)
    in_first, in_other = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    i, j, size = 0, 0, 0
    while i < ids.shape[0] or j < other_ids.shape[0]:
        first, other = i < ids.shape[0], j < other_ids.shape[0]
        if first and other:
            here, there = (distances[i], ids[i]), (other_distances[j], other_ids[j])
            first, other = here <= there, there <= here
        if first:
            out_ids[size], out_distances[size] = ids[i], distances[i]
            i += 1
        if other:
            out_ids[size], out_distances[size] = other_ids[j], other_distances[j]
            j += 1
        in_first[size], in_other[size] = first, other
        size += 1
    return out_ids[:size], out_distances[:size], in_first[:size], in_other[:size]


@compiled()
def find_row(ids: Array, wanted: int) -> int:
    """Return the row of an id among ascending ones, or −1.

    Ids are mostly spread evenly, so the search starts from an interpolated guess and widens the bounds until the id is
    between them. A plain binary search would wait for memory at most of its steps.
    """
    last = ids.shape[0] - 1
    if last < 0 or wanted < ids[0] or wanted > ids[last]:
        return -1
    guess = np.int64((float(wanted) - float(ids[0])) / max(1.0, float(ids[last]) - float(ids[0])) * last)
    low = high = max(0, min(last, guess))
    step = 1
    while ids[low] > wanted:
        low, step = max(0, low - step), 2 * step
    while ids[high] < wanted:
        high, step = min(last, high + step), 2 * step
    while low < high:
        middle = (low + high) // 2
        if ids[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low if ids[low] == wanted else -1


@compiled()
def distances_by_id(query: Array, ids: Array, numbers: Array, words: Array, wanted: Array, out: Array) -> None:
    """Write the distance from one query to the row of each id into ``out``; unknown ids are unchanged.

    ``numbers`` has the position of each row's code, or is empty if each row has its own.
    """
    for i in range(wanted.shape[0]):
        row = find_row(ids, wanted[i])
        if row >= 0:
            code = np.int64(numbers[row]) if numbers.shape[0] else row
            distance = np.uint64(0)
            for w in range(query.shape[0]):
                distance += popcount(query[w] ^ words[code // CHUNK, w, code % CHUNK])
            out[i] = distance


# -- inner products of int8 vectors (:mod:`modalhash.index.vectors`)


@compiled()
def prefetch_row(table: Array, rows: Array, i: int, start: int) -> None:
    """Prefetch a row, because rows are far apart in memory."""
    if i < rows.shape[0]:
        prefetch(table, np.int64(rows[i] * table.shape[1] + start))


@compiled()
def dots(query: Array, table: Array, rows: Array, start: int) -> Array:
    """Return the int32 inner products of ``query`` with the values from ``start`` on of some rows of a table."""
    out = np.empty(rows.shape[0], np.int32)
    for i in range(min(PREFETCHED_ROWS, rows.shape[0])):
        prefetch_row(table, rows, i, start)
    for i in range(rows.shape[0]):
        prefetch_row(table, rows, i + PREFETCHED_ROWS, start)
        row = table[rows[i]][start : start + query.shape[0]]
        total = np.int32(0)
        for j in range(query.shape[0]):
            total += np.int32(query[j]) * np.int32(row[j])
        out[i] = total
    return out


@compiled()
def dots_and_cosines(query: Array, table: Array, rows: Array, start: int) -> tuple[Array, Array]:
    """Return the int32 inner products of the values before ``start``, and the cosines of those from ``start`` on.

    Rows may be longer than ``query``; the rest is ignored. The cosine is 0 if all values of either vector are.
    """
    products = np.empty(rows.shape[0], np.int32)
    cosines = np.zeros(rows.shape[0], np.float64)
    first, other = query[:start], query[start:]
    other_square = np.int32(0)
    for j in range(other.shape[0]):
        other_square += np.int32(other[j]) * np.int32(other[j])
    for i in range(min(PREFETCHED_ROWS, rows.shape[0])):
        prefetch_row(table, rows, i, 0)
        prefetch_row(table, rows, i, start)
    for i in range(rows.shape[0]):
        prefetch_row(table, rows, i + PREFETCHED_ROWS, 0)
        prefetch_row(table, rows, i + PREFETCHED_ROWS, start)
        row = table[rows[i]]
        before, after = row[:start], row[start : start + other.shape[0]]
        product = np.int32(0)
        for j in range(first.shape[0]):
            product += np.int32(first[j]) * np.int32(before[j])
        products[i] = product
        product, square = np.int32(0), np.int32(0)
        for j in range(other.shape[0]):
            product += np.int32(other[j]) * np.int32(after[j])
            square += np.int32(after[j]) * np.int32(after[j])
        length = np.sqrt(float(square) * float(other_square))
        if length > 0:
            cosines[i] = product / length
    return products, cosines
