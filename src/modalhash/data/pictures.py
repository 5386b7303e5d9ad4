"""Simple features of small pictures with numpy alone: histograms of edge directions and colour moments."""

from __future__ import annotations

import numpy as np

from modalhash._typing import Array

CELLS, ORIENTATIONS, GRID = 8, 8, 5
N_FEATURES = CELLS * CELLS * ORIENTATIONS + GRID * GRID * 9


def picture_features(pixels: Array) -> Array:
    """Return 512 gradient histogram values and 225 colour moments of one picture (height, width, 3) of uint8."""
    pixels = np.asarray(pixels, dtype=np.float32) / 255
    return np.concatenate([gradient_histogram(pixels), colour_moments(pixels)]).astype(np.float32)


def gradient_histogram(pixels: Array) -> Array:
    """Return the edge strength by cell (8×8) and direction (8, over half a turn), scaled to length 1."""
    grey = pixels @ np.array([0.299, 0.587, 0.114], dtype=np.float32)
    dy, dx = np.gradient(grey)
    strength = np.hypot(dx, dy)
    direction = np.minimum((np.arctan2(dy, dx) % np.pi / np.pi * ORIENTATIONS).astype(int), ORIENTATIONS - 1)
    rows, columns = (np.arange(size) * CELLS // size for size in grey.shape)
    cell = (rows[:, None] * CELLS + columns) * ORIENTATIONS + direction
    counts = np.bincount(cell.ravel(), weights=strength.ravel(), minlength=CELLS * CELLS * ORIENTATIONS)
    histogram: Array = np.sqrt(counts)  # a few strong outlines would drown everything else
    length = np.linalg.norm(histogram)
    return histogram / length if length > 0 else histogram


def colour_moments(pixels: Array) -> Array:
    """Return mean, spread and skew of each colour in each field of a 5×5 grid."""
    if min(pixels.shape[:2]) < GRID:
        raise ValueError(f"the picture has {pixels.shape[0]}×{pixels.shape[1]} pixels; expected at least {GRID}×{GRID}")
    rows, columns = (np.arange(GRID) * size // GRID for size in pixels.shape[:2])

    def fields(values: Array) -> Array:
        sums = np.add.reduceat(np.add.reduceat(values, rows, axis=0), columns, axis=1)
        return np.asarray(sums / counts)

    heights, widths = (
        np.diff(np.append(edges, size)) for edges, size in zip((rows, columns), pixels.shape[:2], strict=True)
    )
    counts = np.outer(heights, widths)[:, :, None]
    values = pixels.astype(np.float64)
    return moments_of(fields(values), fields(values**2), fields(values**3))


def moments_of(mean: Array, second: Array, third: Array) -> Array:
    """Return mean, spread and skew from the means of values, squares and cubes ``(rows, columns, colours)``."""
    spread = np.sqrt(np.maximum(second - mean**2, 0))
    skew = np.cbrt(third - 3 * mean * second + 2 * mean**3)
    skew[spread < 1e-6] = 0  # a cube root makes a lot of rounding
    return np.stack([mean, spread, skew], axis=2).ravel()
