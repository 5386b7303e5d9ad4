"""Compiled kernels for the buckets of multi-index hashing (see :mod:`modalhash.index.radius`).

A substring is some bits of a code, described by ``pieces``, rows of (substring, word, shift, mask, position): the
bits of ``word`` from ``shift`` on that ``mask`` lets through, moved up by ``position``. The rows of each value of a
substring lie together, in ascending order: those of value v, its bucket, at ``offsets[v]:offsets[v + 1]``.


Importing this module loads numba, so others import it inside the functions that need it.
"""

from __future__ import annotations

import numpy as np

from modalhash.core.bit_kernels import compiled, popcount
from modalhash.core.typing import Array
from modalhash.index.layout import CHUNK, ROW_BITS


@compiled()
def fill_buckets(words: Array, n: int, pieces: Array, offsets: Array, rows: Array) -> None:
    """Sort the first ``n`` rows by a substring, by counting. ``offsets`` are zeros, two more than there are values."""
    for step in range(2):  # count, then write
        for c in range((n + CHUNK - 1) // CHUNK):
            chunk = words[c]
            for j in range(min(CHUNK, n - c * CHUNK)):
                value = np.uint64(0)
                for p in range(pieces.shape[0]):
                    bits = (np.uint64(chunk[pieces[p, 1], j]) >> np.uint64(pieces[p, 2])) & np.uint64(pieces[p, 3])
                    value |= bits << np.uint64(pieces[p, 4])
                if step == 0:
                    offsets[value + np.uint64(2)] += 1
                else:
                    end = offsets[value + np.uint64(1)]
                    rows[end] = c * CHUNK + j
                    offsets[value + np.uint64(1)] = end + 1  # in the end that of this bucket: the start of the next
        if step == 0:
            for v in range(2, offsets.shape[0]):
                offsets[v] += offsets[v - 1]


@compiled()
def cut(code: Array, pieces: Array, values: Array) -> None:
    """Write the substrings of a code into ``values``."""
    values[:] = 0
    for p in range(pieces.shape[0]):
        bits = (np.uint64(code[pieces[p, 1]]) >> np.uint64(pieces[p, 2])) & np.uint64(pieces[p, 3])
        values[pieces[p, 0]] |= bits << np.uint64(pieces[p, 4])


@compiled()
def verify(
    query: Array,
    values: Array,
    words: Array,
    radius: int,
    pieces: Array,
    radii: Array,
    substring: int,
    candidates: Array,
    scratch: Array,
    hits: Array,
    size: int,
) -> int:
    """Append to ``hits`` the candidates within ``radius`` that no substring before ``substring`` has led to."""
    for i in range(candidates.shape[0]):
        chunk, column = candidates[i] // np.uint64(CHUNK), candidates[i] % np.uint64(CHUNK)
        distance = np.uint64(0)
        for w in range(query.shape[0]):
            distance += popcount(query[w] ^ words[chunk, w, column])
        if np.int64(distance) > radius:
            continue
        cut(words[chunk, :, column], pieces, scratch)
        known = False
        for earlier in range(substring):
            known |= np.int64(popcount(values[earlier] ^ scratch[earlier])) <= radii[earlier]
        if not known:
            hits[size] = (distance << ROW_BITS) | candidates[i]
            size += 1
    return size


@compiled()
def probe_buckets(
    queries: Array,
    words: Array,
    radius: int,
    pieces: Array,
    radii: Array,
    masks: Array,
    mask_starts: Array,
    offsets: Array,
    bases: Array,
    rows: Array,
    budget: int,
) -> tuple[Array, Array, Array]:
    """Return all rows within ``radius`` as encoded hits in order, where each query's begin, and the queries left out.

    Substring i is looked up with each of ``masks[mask_starts[i]:mask_starts[i + 1]]``, which flip up to ``radii[i]``
    bits; its offsets begin at ``bases[i]``. Queries with more than ``budget`` candidates are left out. Everything waits
    for memory here: offsets are read for all values, then rows, then codes, so that many reads are under way at once.
    """
    n_queries, n_substrings = queries.shape[0], rows.shape[0]
    values, scratch = np.empty(n_substrings, np.uint64), np.empty(n_substrings, np.uint64)
    candidates, hits = np.empty(1024, np.uint64), np.empty(1024, np.uint64)
    ends = np.zeros(n_queries + 1, np.int64)
    left_out = np.zeros(n_queries, np.bool_)
    candidate_ends = np.zeros(n_substrings + 1, np.int64)
    size = 0
    for q in range(n_queries):
        cut(queries[q], pieces, values)
        total = np.int64(0)
        for s in range(n_substrings):
            for i in range(mask_starts[s], mask_starts[s + 1]):
                v = bases[s] + np.int64(values[s] ^ masks[i])
                total += np.int64(offsets[v + 1]) - np.int64(offsets[v])
        left_out[q] = total > budget
        if not left_out[q]:
            if total > candidates.shape[0]:
                candidates = np.empty(2 * total, np.uint64)
            if size + total > hits.shape[0]:
                longer = np.empty(2 * (size + total), np.uint64)
                longer[:size] = hits[:size]
                hits = longer
            filled = 0
            for s in range(n_substrings):
                for i in range(mask_starts[s], mask_starts[s + 1]):
                    v = bases[s] + np.int64(values[s] ^ masks[i])
                    for r in range(np.int64(offsets[v]), np.int64(offsets[v + 1])):
                        candidates[filled] = rows[s, r]
                        filled += 1
                candidate_ends[s + 1] = filled
            for s in range(n_substrings):
                own = candidates[candidate_ends[s] : candidate_ends[s + 1]]
                size = verify(queries[q], values, words, radius, pieces, radii, s, own, scratch, hits, size)
            hits[ends[q] : size].sort()
        ends[q + 1] = size
    return hits[:size], ends, left_out
