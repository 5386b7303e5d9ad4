"""Compiled kernels of multi-index hashing: rows sorted by a part of their code, and searches that look there first.

A part is some bits of a code, described by ``pieces``, rows of (part, word, shift, mask, place): the bits of
``word`` from ``shift`` on that ``mask`` lets through, moved up by ``place``. For each value of a part its rows lie
together, in ascending order: those of value v at ``offsets[v]:offsets[v + 1]``.

Importing this module loads numba.
"""

from __future__ import annotations

import numpy as np

from modalhash._typing import Array
from modalhash.index.rows import CHUNK
from modalhash.kernels import compiled, popcount

ROW_BITS = np.uint64(40)  # of a hit: the rest is its distance, so that hits sort by (distance, row)


@compiled()
def fill(words: Array, n: int, pieces: Array, offsets: Array, rows: Array) -> None:
    """Sort the first ``n`` rows by a part of their code, by counting. ``offsets`` are zeros, two more than values."""
    for step in range(2):  # count, then place
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
                    place = offsets[value + np.uint64(1)]
                    rows[place] = c * CHUNK + j
                    offsets[value + np.uint64(1)] = place + 1  # at last the end of this value: the start of the next
        if step == 0:
            for v in range(2, offsets.shape[0]):
                offsets[v] += offsets[v - 1]


@compiled()
def cut(code: Array, pieces: Array, values: Array) -> None:
    """The parts of a code."""
    values[:] = 0
    for p in range(pieces.shape[0]):
        bits = (np.uint64(code[pieces[p, 1]]) >> np.uint64(pieces[p, 2])) & np.uint64(pieces[p, 3])
        values[pieces[p, 0]] |= bits << np.uint64(pieces[p, 4])


@compiled()
def look(
    query: Array,
    values: Array,
    words: Array,
    radius: int,
    pieces: Array,
    reaches: Array,
    part: int,
    rows: Array,
    scratch: Array,
    hits: Array,
    size: int,
) -> int:
    """Append to ``hits`` those of ``rows`` within ``radius`` that no part before ``part`` leads to."""
    for i in range(rows.shape[0]):
        chunk, place = rows[i] // np.uint64(CHUNK), rows[i] % np.uint64(CHUNK)
        distance = np.uint64(0)
        for w in range(query.shape[0]):
            distance += popcount(query[w] ^ words[chunk, w, place])
        if np.int64(distance) > radius:
            continue
        cut(words[chunk, :, place], pieces, scratch)
        known = False
        for earlier in range(part):
            known |= np.int64(popcount(values[earlier] ^ scratch[earlier])) <= reaches[earlier]
        if not known:
            hits[size] = (distance << ROW_BITS) | rows[i]
            size += 1
    return size


@compiled()
def probe(
    queries: Array,
    words: Array,
    radius: int,
    pieces: Array,
    reaches: Array,
    masks: Array,
    mask_starts: Array,
    offsets: Array,
    bases: Array,
    rows: Array,
    budget: int,
) -> tuple[Array, Array, Array]:
    """All rows within ``radius`` of each query: hits in order, where each query's begin, and which were left out.

    Part i is tried with each of ``masks[mask_starts[i]:mask_starts[i + 1]]``, which flip up to ``reaches[i]`` bits; its
    offsets begin at ``bases[i]``. Queries with more than ``budget`` rows to look at are left out. Everything waits
    for memory here: offsets are read for all values, then rows, then codes, so that many reads are under way at once.
    """
    n_queries, n_parts = queries.shape[0], rows.shape[0]
    values, scratch = np.empty(n_parts, np.uint64), np.empty(n_parts, np.uint64)
    candidates, hits = np.empty(1024, np.uint64), np.empty(1024, np.uint64)
    ends = np.zeros(n_queries + 1, np.int64)
    left = np.zeros(n_queries, np.bool_)
    part_ends = np.zeros(n_parts + 1, np.int64)
    size = 0
    for q in range(n_queries):
        cut(queries[q], pieces, values)
        total = np.int64(0)
        for part in range(n_parts):
            for i in range(mask_starts[part], mask_starts[part + 1]):
                v = bases[part] + np.int64(values[part] ^ masks[i])
                total += np.int64(offsets[v + 1]) - np.int64(offsets[v])
        left[q] = total > budget
        if not left[q]:
            if total > candidates.shape[0]:
                candidates = np.empty(2 * total, np.uint64)
            if size + total > hits.shape[0]:
                longer = np.empty(2 * (size + total), np.uint64)
                longer[:size] = hits[:size]
                hits = longer
            filled = 0
            for part in range(n_parts):
                for i in range(mask_starts[part], mask_starts[part + 1]):
                    v = bases[part] + np.int64(values[part] ^ masks[i])
                    for place in range(np.int64(offsets[v]), np.int64(offsets[v + 1])):
                        candidates[filled] = rows[part, place]
                        filled += 1
                part_ends[part + 1] = filled
            for part in range(n_parts):
                mine = candidates[part_ends[part] : part_ends[part + 1]]
                size = look(queries[q], values, words, radius, pieces, reaches, part, mine, scratch, hits, size)
            hits[ends[q] : size].sort()
        ends[q + 1] = size
    return hits[:size], ends, left
