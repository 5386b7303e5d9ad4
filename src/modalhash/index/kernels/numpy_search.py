"""Scans, merges and products in numpy, for a process that searches once (:mod:`modalhash.index.kernels`).

Each function has the arguments and results of the compiled function of the same name, which documents them. They are
short, and fast for a single query.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from modalhash.core.typing import Array
from modalhash.index.layout import CHUNK, chunks_for, find_sorted

BLOCK_CHUNKS = 512  # per block; half a megabyte of 64-bit words stays in the second-level cache
_NOTHING = np.empty(0, np.int64), np.empty(0, np.uint8)  # rows and their distances


def _blocks(query: Array, words: Array, n: int, n_bits: int) -> Iterator[tuple[int, Array]]:
    dtype = np.uint8 if n_bits < 256 else np.uint16
    for first in range(0, chunks_for(n), BLOCK_CHUNKS):
        block = words[first : first + BLOCK_CHUNKS]
        distances = np.bitwise_count(block[:, 0] ^ query[0]).astype(dtype, copy=False)
        for w in range(1, len(query)):
            distances += np.bitwise_count(block[:, w] ^ query[w])
        yield first * CHUNK, distances.reshape(-1)[: n - first * CHUNK]


def nearest(
    queries: Array, words: Array, n: int, starts: Array, k: int, max_hits: int, n_bits: int, max_distance: int
) -> tuple[Array, Array, Array]:
    out_rows, out_distances = np.zeros((len(queries), max_hits), np.int64), np.zeros((len(queries), max_hits), np.int32)
    sizes = np.zeros(len(queries), np.int64)
    n_items = np.diff(starts) if len(starts) else None
    for q, query in enumerate(queries):
        counts = np.zeros(n_bits + 1, np.int64)
        limit = max_distance
        parts = [_NOTHING]
        for first, distances in _blocks(query, words, n, n_bits):
            rows = np.flatnonzero(distances <= limit)
            near = distances[rows]
            rows += first
            counts += _count(near, None if n_items is None else n_items[rows], n_bits)
            limit = min(max_distance, int(np.searchsorted(np.cumsum(counts), k)))  # contains k items
            parts.append((rows, near))
        rows, near = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
        kept = near <= limit
        rows, near = rows[kept], near[kept]
        order = np.argsort(near, kind="stable")
        n_nearer = int(np.count_nonzero(near < limit))
        order = order[: n_nearer + max_hits - int(counts[:limit].sum())]
        sizes[q] = len(order)
        out_rows[q, : len(order)], out_distances[q, : len(order)] = rows[order], near[order]
    return out_rows, out_distances, sizes


def _count(distances: Array, n_items: Array | None, n_bits: int) -> Array:
    if n_items is None:
        return np.bincount(distances, minlength=n_bits + 1)
    counts = np.zeros(n_bits + 1, np.int64)
    np.add.at(counts, distances, n_items)
    return counts


def within(queries: Array, words: Array, n: int, radius: int, n_bits: int) -> tuple[Array, Array, Array]:
    found = [(np.empty(0, np.int64), np.empty(0, np.int32))]
    for query in queries:
        parts = [_NOTHING]
        for first, distances in _blocks(query, words, n, n_bits):
            rows = np.flatnonzero(distances <= radius)
            parts.append((rows + first, distances[rows]))
        rows, near = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
        order = np.argsort(near, kind="stable")
        found.append((rows[order], near[order].astype(np.int32)))
    offsets = np.cumsum([len(rows) for rows, _ in found], dtype=np.int64)
    return np.concatenate([rows for rows, _ in found]), np.concatenate([near for _, near in found]), offsets


def nearest_items(
    codes: Array, distances: Array, sizes: Array, starts: Array, items: Array, max_hits: int
) -> tuple[Array, Array, Array]:
    out, out_distances = np.zeros((len(codes), max_hits), np.int64), np.zeros((len(codes), max_hits), np.int32)
    out_sizes = np.zeros(len(codes), np.int64)
    for q, size in enumerate(sizes.tolist()):
        own, near = _items_of(codes[q, :size], distances[q, :size], starts, items, max_hits)
        out_sizes[q] = len(own)
        out[q, : len(own)], out_distances[q, : len(own)] = own, near
    return out, out_distances, out_sizes


def items_within(
    codes: Array, distances: Array, offsets: Array, starts: Array, items: Array
) -> tuple[Array, Array, Array]:
    found = [(np.empty(0, np.int64), np.empty(0, np.int32))]
    for q in range(len(offsets) - 1):
        part = slice(int(offsets[q]), int(offsets[q + 1]))
        found.append(_items_of(codes[part], distances[part], starts, items, len(items)))
    out_offsets = np.cumsum([len(own) for own, _ in found], dtype=np.int64)
    return np.concatenate([own for own, _ in found]), np.concatenate([near for _, near in found]), out_offsets


def _items_of(codes: Array, distances: Array, starts: Array, items: Array, max_hits: int) -> tuple[Array, Array]:
    """Return the first ``max_hits`` items of some codes by (distance, item), and their distances."""
    firsts = starts[codes].tolist()
    sizes = np.minimum(starts[codes + 1] - starts[codes], max_hits)  # more of one code cannot be among the first
    parts = [items[first : first + size] for first, size in zip(firsts, sizes.tolist(), strict=True)]
    own = np.concatenate([np.empty(0, np.int64), *parts])
    near = np.repeat(distances, sizes)
    order = np.lexsort((own, near))[:max_hits]
    return own[order], near[order]


def merge_ordered(ids: Array, distances: Array, other_ids: Array, other_distances: Array) -> tuple[Array, ...]:
    both_ids = np.concatenate([ids, other_ids])
    both_distances = np.concatenate([distances, other_distances]).astype(np.int32, copy=False)
    order = np.lexsort((both_ids, both_distances))
    both_ids, both_distances, in_first = both_ids[order], both_distances[order], order < len(ids)
    repeated = np.zeros(len(order) + 1, dtype=bool)  # whether each hit equals the previous one
    repeated[1:-1] = (both_ids[1:] == both_ids[:-1]) & (both_distances[1:] == both_distances[:-1])
    once = ~repeated[:-1]
    return both_ids[once], both_distances[once], in_first[once], (~in_first | repeated[1:])[once]


def distances_by_id(query: Array, ids: Array, numbers: Array, words: Array, wanted: Array, out: Array) -> None:
    rows, present = find_sorted(ids, wanted)
    rows = rows[present]
    chunk, column = np.divmod(numbers[rows].astype(np.int64) if len(numbers) else rows, CHUNK)
    out[present] = np.bitwise_count(words[chunk, :, column] ^ query).sum(axis=1, dtype=np.int32)


def dots(query: Array, table: Array, rows: Array, start: int) -> Array:
    return table[rows, start : start + len(query)].astype(np.int32) @ query.astype(np.int32)


def dots_and_cosines(query: Array, table: Array, rows: Array, start: int) -> tuple[Array, Array]:
    values, wanted = table[rows, : len(query)].astype(np.int32), query.astype(np.int32)
    before, after = values[:, :start], values[:, start:]
    products = after @ wanted[start:]
    squares = np.einsum("ij,ij->i", after, after)
    lengths = np.sqrt(squares.astype(np.float64) * float(wanted[start:] @ wanted[start:]))
    cosines = np.zeros(len(rows), np.float64)
    np.divide(products, lengths, out=cosines, where=lengths > 0)
    return before @ wanted[:start], cosines
