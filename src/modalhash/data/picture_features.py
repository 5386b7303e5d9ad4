"""Features of pictures without learned weights, in plain NumPy.

:func:`edge_histogram` and :func:`gist` are the hand-crafted features of the hashing literature, with the conventions of
the MPEG-7 standard and of Oliva and Torralba's MATLAB code. :func:`picture_features` are simpler ones.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy import fft

from modalhash.core.typing import Array

CELLS, ORIENTATIONS, GRID = 8, 8, 5
N_EDGES, EDGE_BLOCKS, EDGE_THRESHOLD = 150, 1100, 11
GIST_SIZE, GIST_MARGIN, GIST_SCALES, GIST_DIRECTIONS, GIST_CELLS = 128, 32, 4, 8, 4
N_GIST = GIST_SCALES * GIST_DIRECTIONS * GIST_CELLS * GIST_CELLS


def picture_features(pixels: Array) -> Array:
    """Return 512 gradient histogram values and 225 colour moments of uint8 pixels (height, width, 3)."""
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
    histogram: Array = np.sqrt(counts)  # so that a few strong outlines do not dominate
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
    """Return mean, spread and skew from the means of values, squares and cubes (rows, columns, colours)."""
    spread = np.sqrt(np.maximum(second - mean**2, 0))
    skew = np.cbrt(third - 3 * mean * second + 2 * mean**3)
    skew[spread < 1e-6] = 0  # the cube root would amplify rounding errors
    return np.stack([mean, spread, skew], axis=2).ravel()


def edge_histogram(grey: Array) -> Array:
    """Return the MPEG-7 edge histogram of brightness from 0 to 255: 80 local, 5 global, 65 semi-global values.

    The picture is divided into 4×4 sub-images, and these into square blocks, about 1,100 in all. Five filters on the
    mean brightness of the quarters of a block classify its edge as vertical, horizontal, 45°, 135° or undirected; below
    the threshold there is no edge. A local value is the fraction of the blocks of a sub-image with one of these edges.
    Global values are means over all sub-images, semi-global ones over 13 groups of them: columns, rows, the 2×2 squares
    in the corners and the one in the centre.

    References
    ----------
    D. K. Park, Y. S. Jeon, C. S. Won. Efficient Use of Local Edge Histogram Descriptor. ACM Multimedia Workshops, 2000
    """
    height, width = (size // 4 for size in grey.shape)  # of a sub-image
    block = min(int(np.sqrt(grey.size / EDGE_BLOCKS)), height, width) // 2 * 2
    block = max(block, 2)
    rows, columns = height // block, width // block
    if not rows or not columns:
        raise ValueError(f"the picture has {grey.shape[0]}×{grey.shape[1]} pixels; expected at least 8×8")
    images = grey[: 4 * height, : 4 * width].reshape(4, height, 4, width)
    blocks = images[:, : rows * block, :, : columns * block].astype(np.float64)
    quarters = blocks.reshape(4, rows, 2, block // 2, 4, columns, 2, block // 2).mean(axis=(3, 7))
    quarters = quarters.transpose(0, 3, 1, 4, 2, 5).reshape(4, 4, rows * columns, 4)
    root = np.sqrt(2)
    filters = np.array([[1, -1, 1, -1], [1, 1, -1, -1], [root, 0, 0, -root], [0, root, -root, 0], [2, -2, -2, 2]])
    strength = np.abs(quarters @ filters.T)
    edge = np.where(strength.max(axis=-1) >= EDGE_THRESHOLD, strength.argmax(axis=-1), -1)
    local = (edge[..., None] == np.arange(5)).mean(axis=2)
    corners = [local[i : i + 2, j : j + 2].mean(axis=(0, 1)) for i, j in ((0, 0), (0, 2), (2, 0), (2, 2), (1, 1))]
    parts = [local, local.mean(axis=(0, 1)), local.mean(axis=0), local.mean(axis=1), *corners]
    return np.concatenate([part.ravel() for part in parts]).astype(np.float32)


def gist(grey: Array) -> Array:
    """Return the 512 values of GIST for a square picture: mean responses of 4 × 8 Gabor filters in 4×4 cells.

    The order is that of Oliva and Torralba's code: filters from fine to coarse, directions within, then the cells
    column by column. Their usual picture is the central square, 128 pixels wide, of the mean of red, green and blue.

    References
    ----------
    A. Oliva, A. Torralba. Modeling the Shape of the Scene: A Holistic Representation of the Spatial Envelope.
    International Journal of Computer Vision 42, 2001
    """
    grey = grey.astype(np.float32) - np.float32(grey.min())
    stretched = 255 * grey / max(float(grey.max()), 1e-9)
    padded = np.pad(_even_contrast(stretched), GIST_MARGIN, mode="symmetric")
    spectrum = fft.fft2(padded)
    responses = np.abs(fft.ifft2(spectrum * _gabor_filters(len(padded))))
    inner = responses[:, GIST_MARGIN:-GIST_MARGIN, GIST_MARGIN:-GIST_MARGIN]
    side = inner.shape[1] // GIST_CELLS
    cells = inner.reshape(-1, GIST_CELLS, side, GIST_CELLS, side).mean(axis=(2, 4))
    features: Array = cells.transpose(0, 2, 1).ravel()
    return features


def _even_contrast(grey: Array, cycles: float = 4, margin: int = 5) -> Array:
    """Return log brightness minus its local mean, divided by the local standard deviation."""
    values = np.pad(np.log1p(grey), margin, mode="symmetric")
    frequency = np.fft.fftfreq(len(values), 1 / len(values)).astype(np.float32)
    low_pass = np.exp(-(frequency[:, None] ** 2 + frequency**2) * np.log(2) / cycles**2).astype(np.float32)

    def smooth(values: Array) -> Array:
        return np.asarray(fft.ifft2(fft.fft2(values) * low_pass).real)

    detail = values - smooth(values)
    even: Array = detail / (0.2 + np.sqrt(np.abs(smooth(detail * detail))))
    return even[margin:-margin, margin:-margin]


@cache
def _gabor_filters(size: int) -> Array:
    """Return transfer functions ``(scales × directions, size, size)``; do not modify them."""
    across = np.fft.fftfreq(size)
    frequency, angle = np.hypot(across[:, None], across), np.arctan2(across[:, None], across)
    filters = []
    for scale in range(GIST_SCALES):
        radial = -3.5 * (frequency / (0.3 / 1.85**scale) - 1) ** 2
        for direction in range(GIST_DIRECTIONS):
            turned = (angle + np.pi * direction / GIST_DIRECTIONS + np.pi) % (2 * np.pi) - np.pi
            filters.append(np.exp(radial - 2 * np.pi * turned**2))
    return np.stack(filters).astype(np.float32)
