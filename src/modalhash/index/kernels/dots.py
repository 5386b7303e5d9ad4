"""Compiled inner products of int8 vectors (:mod:`modalhash.index.vectors`).

Importing this module loads numba, so import it inside the functions that need it.
"""

from __future__ import annotations

import numpy as np

from modalhash.core.bit_kernels import compiled, prefetch
from modalhash.core.typing import Array

PREFETCHED_ROWS = 16  # rows in flight while one is multiplied


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
