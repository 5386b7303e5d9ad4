"""Edges and colours of a picture, compiled: one pass each over numbers that stay in the processor's cache.

They make what :mod:`modalhash.data.pictures` makes with numpy. Importing this module loads numba.
"""

from __future__ import annotations

import numpy as np

from modalhash._typing import Array
from modalhash.data.pictures import CELLS, GRID, ORIENTATIONS
from modalhash.kernels import compiled

HALF_TURN = np.float32(np.pi)


@compiled()
def gradients(grey: Array, down: Array, across: Array) -> None:
    """Fill ``down`` and ``across`` with the differences that ``np.gradient`` gives for a picture of brightness."""
    height, width = grey.shape
    for y in range(height):
        above, row, below = grey[max(y - 1, 0)], grey[y], grey[min(y + 1, height - 1)]
        share = np.float32(0.5) if 0 < y < height - 1 else np.float32(1)
        to = down[y]
        for x in range(width):
            to[x] = (below[x] - above[x]) * share
        left, right, to = row[:-2], row[2:], across[y]
        inner = to[1:-1]
        for x in range(width - 2):
            inner[x] = (right[x] - left[x]) * np.float32(0.5)
        to[0], to[-1] = row[1] - row[0], row[-1] - row[-2]


@compiled()
def edge_sums(down: Array, across: Array, angle: Array, sums: Array) -> None:
    """Add up the strength of edges by cell and direction in float64 ``sums`` ``(CELLS * CELLS * ORIENTATIONS,)``.

    ``angle`` is the arc tangent, from minus half a turn to half a turn; a direction and its opposite are one. The
    arithmetic on it is that of numpy in float32, since many edges lie exactly between two directions.
    """
    height, width = down.shape
    strength, place = np.empty(width, dtype=np.float32), np.empty(width, dtype=np.int32)
    cells = np.empty(width, dtype=np.int32)
    for x in range(width):
        cells[x] = x * CELLS // width * ORIENTATIONS
    sums[:] = 0
    for y in range(height):
        dy, dx, turn = down[y], across[y], angle[y]
        for x in range(width):
            strength[x] = np.sqrt(dx[x] * dx[x] + dy[x] * dy[x])
        for x in range(width):
            half = turn[x] if turn[x] >= 0 else turn[x] + HALF_TURN
            half = np.float32(0) if half == HALF_TURN and turn[x] > 0 else half
            direction = np.int32(half / HALF_TURN * np.float32(ORIENTATIONS))
            place[x] = cells[x] + min(direction, np.int32(ORIENTATIONS - 1))
        cell_row = sums[y * CELLS // height * CELLS * ORIENTATIONS :]
        for x in range(width):
            cell_row[place[x]] += strength[x]


@compiled()
def colour_sums(values: Array, sums: Array) -> None:
    """Fill float64 ``sums`` ``(3, GRID, GRID, 3)`` with sums of values, squares and cubes by field and colour."""
    height, width = values.shape[0], values.shape[1]
    flat = values.reshape(height, 3 * width)
    ones, twos, threes = np.empty(3 * width), np.empty(3 * width), np.empty(3 * width)
    sums[:] = 0
    for i in range(GRID):
        ones[:] = 0
        twos[:] = 0
        threes[:] = 0
        for y in range(i * height // GRID, (i + 1) * height // GRID):
            row = flat[y]
            for x in range(3 * width):
                value = np.float64(row[x])
                square = value * value
                ones[x] += value
                twos[x] += square
                threes[x] += square * value
        for j in range(GRID):
            for x in range(j * width // GRID, (j + 1) * width // GRID):
                for colour in range(3):
                    sums[0, i, j, colour] += ones[3 * x + colour]
                    sums[1, i, j, colour] += twos[3 * x + colour]
                    sums[2, i, j, colour] += threes[3 * x + colour]
