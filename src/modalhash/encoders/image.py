"""Encode pictures without learned weights: gradients, structure, colour and edges.

The structure is GIST (A. Oliva, A. Torralba. International Journal of Computer Vision 42, 2001): mean responses of 4 ×
8 Gabor filters in a 4×4 grid, after local contrast normalisation. A coarse filter passes only low frequencies, so its
response is computed on a coarser grid from the centre of the spectrum, without loss. Pictures are smaller, and cropped
differently, than for published data sets, whose GIST is :func:`modalhash.data.picture_features.gist`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from scipy import fft

from modalhash.core.pictures import MAX_PIXELS
from modalhash.core.typing import Array
from modalhash.core.validation import check_choice, check_int
from modalhash.data.picture_features import CELLS, GRID, N_EDGES, ORIENTATIONS, edge_histogram, moments_of
from modalhash.encoders.encoder import EncoderBase, State
from modalhash.encoders.picture_files import read_picture

GIST_SIZE, GIST_PAD, GIST_GRID = 64, 8, 4
SCALES, DIRECTIONS = 4, 8
GIST_FEATURES = SCALES * DIRECTIONS * GIST_GRID * GIST_GRID
GIST_STEPS = (1, 1, 2, 4)
"""Sampling step of each scale's response; the smaller grids omit less than 1e-4 of the filter's peak."""
CONTRAST_CYCLES, CONTRAST_FLOOR = 4, 0.2
SIZE = 2 * GIST_SIZE
PARTS = {"gradients": CELLS * CELLS * ORIENTATIONS, "gist": GIST_FEATURES, "colours": GRID * GRID * 9, "edges": N_EDGES}
"""Parts of the features and the number of values of each."""
DEFAULT_PARTS = ("gradients", "gist", "colours")
DECODED_TOGETHER = 16
"""Pictures decoded in a row, so that decoder and filters do not evict each other from the cache."""
LUMINANCE = np.array([0.299, 0.587, 0.114], dtype=np.float32)


class ImageEncoder(EncoderBase):
    """1,249 features of a picture: 512 of a gradient histogram, 512 of GIST, 225 colour moments.

    Each part is scaled to the same length and the whole to length 1, so that all parts contribute equally to distances.
    The picture is first scaled to 128 × 128 pixels. Items are paths or the bytes of files that Pillow reads.

    Parameters
    ----------
    max_pixels
        width × height above which a picture is refused before it is decoded
    parts
        features in this order: ``"gradients"``, ``"gist"``, ``"colours"``; ``"edges"`` are the 150 values of the
        MPEG-7 edge histogram

    Examples
    --------
    >>> ImageEncoder().dim
    1249
    >>> ImageEncoder(parts=["edges"]).dim
    150
    """

    name = "image"
    parallel = True
    limits = frozenset({"max_pixels"})

    def __init__(self, *, max_pixels: int = MAX_PIXELS, parts: Sequence[str] = DEFAULT_PARTS) -> None:
        self.max_pixels = check_int(max_pixels, "max_pixels", at_least=1)
        self.parts = tuple(check_choice(part, "parts", tuple(PARTS)) for part in parts)
        if not self.parts or len(set(self.parts)) < len(self.parts):
            raise ValueError(f"parts are {list(parts)}; expected one or more of {', '.join(PARTS)}, each once")

    @property
    def dim(self) -> int:
        return sum(PARTS[part] for part in self.parts)

    @property
    def state(self) -> State:
        chosen = {} if self.parts == DEFAULT_PARTS else {"parts": list(self.parts)}
        return State({"max_pixels": self.max_pixels, **chosen})

    def encode(self, batch: Sequence[Any]) -> Array:
        out = np.empty((len(batch), self.dim), dtype=np.float32)
        for start in range(0, len(batch), DECODED_TOGETHER):
            some = batch[start : start + DECODED_TOGETHER]
            pictures = [read_picture(source, size=SIZE, max_pixels=self.max_pixels) for source in some]
            for row, pixels in enumerate(pictures, start):
                out[row] = features_of(pixels, self.parts)
        return out


def features_of(pixels: Array, parts: Sequence[str] = DEFAULT_PARTS) -> Array:
    values = pixels.astype(np.float32, order="C") / np.float32(255)
    grey = values @ LUMINANCE

    def part_of(name: str) -> Array:
        if name == "gradients":
            return _unit(_gradients(grey))
        if name == "gist":
            return gist((grey[::2, ::2] + grey[1::2, ::2] + grey[::2, 1::2] + grey[1::2, 1::2]) / np.float32(4))
        return _unit(_colours(values) if name == "colours" else edge_histogram(255 * grey))

    return np.concatenate([part_of(name) for name in parts]) / np.sqrt(len(parts))


def _gradients(grey: Array) -> Array:
    """Compute :func:`modalhash.data.picture_features.gradient_histogram` without the final scaling."""
    from modalhash.encoders.image_kernels import edge_sums, gradients

    down, across = np.empty_like(grey), np.empty_like(grey)
    gradients(grey, down, across)
    sums = np.empty(CELLS * CELLS * ORIENTATIONS)
    edge_sums(down, across, np.arctan2(down, across), sums)
    return np.sqrt(sums)


def _colours(values: Array) -> Array:
    """Compute :func:`modalhash.data.picture_features.colour_moments`."""
    from modalhash.encoders.image_kernels import colour_sums

    sums = np.empty((3, GRID, GRID, 3))
    colour_sums(values, sums)
    return moments_of(*(sums / _field_sizes(*values.shape[:2])))


@cache
def _field_sizes(height: int, width: int) -> Array:
    rows, columns = (np.diff(np.arange(GRID + 1) * size // GRID) for size in (height, width))
    return np.outer(rows, columns)[:, :, None]


def _unit(values: Array) -> Array:
    length = np.linalg.norm(values)
    return values / length if length > 0 else values


def gist(grey: Array) -> Array:
    """Return the 512 features of GIST for brightness from 0 to 1, ``(64, 64)``, scaled to length 1."""
    spectrum = fft.fft2(_even_contrast(np.log1p(255 * grey)))
    return _unit(np.concatenate([_responses(spectrum, step) for step in dict.fromkeys(GIST_STEPS)]))


def _even_contrast(grey: Array) -> Array:
    """Return brightness minus its local mean, divided by the local deviation, with a margin."""
    from modalhash.encoders.image_kernels import even_contrast, twiddles

    size = grey.shape[0] + 2 * GIST_PAD
    out = np.empty((size, size), dtype=np.float32)
    even_contrast(grey, _smoothing(size), twiddles(size), CONTRAST_FLOOR, _workspace.array(size)[:2], out)
    return out


def _responses(spectrum: Array, step: int) -> Array:
    """Return the mean response by filter and field of the filters sampled every ``step`` pixels."""
    from modalhash.encoders.image_kernels import mean_responses, twiddles

    size = spectrum.shape[0] // step
    parts = spectrum.view(np.float32).reshape(*spectrum.shape, 2)
    banks = _filters(size, step)
    out = np.empty((len(banks), GIST_GRID, GIST_GRID, DIRECTIONS), dtype=np.float32)
    for bank, means in zip(banks, out, strict=True):
        mean_responses(parts, bank, twiddles(size), GIST_PAD // step, _workspace.array(size), means)
    features: Array = out.transpose(0, 3, 1, 2).reshape(-1) / np.float32(step * step)
    return features


class _Workspace(threading.local):
    """Arrays for intermediate results, per thread, because allocating them takes as long as using them."""

    def __init__(self) -> None:
        self.arrays: dict[int, Array] = {}

    def array(self, size: int) -> Array:
        if size not in self.arrays:
            from modalhash.encoders.image_kernels import LANES

            self.arrays[size] = np.empty((size + 2, size, 2, LANES), dtype=np.float32)
        return self.arrays[size]


_workspace = _Workspace()


@cache
def _filters(size: int, step: int) -> Array:
    """Return transfer functions ``(scales, size, size, DIRECTIONS)`` of a step, across first; do not modify."""
    across = np.fft.fftfreq(size, step)
    frequency, angle = np.hypot(across[:, None], across), np.arctan2(across[:, None], across)
    banks = []
    for scale in (scale for scale, own in enumerate(GIST_STEPS) if own == step):
        centre = 0.3 / 1.85**scale
        radial = -3.5 * (frequency / centre - 1) ** 2
        bank = []
        for direction in range(DIRECTIONS):
            turned = (angle + np.pi * direction / DIRECTIONS + np.pi) % (2 * np.pi) - np.pi
            bank.append(np.exp(radial - 2 * np.pi * (DIRECTIONS / 8) ** 2 * turned**2))
        banks.append(np.stack(bank).transpose(2, 1, 0))
    return np.ascontiguousarray(np.stack(banks), dtype=np.float32)


@cache
def _smoothing(size: int) -> Array:
    """Return a Gaussian low-pass by frequency, in one direction; do not modify."""
    cycles = np.fft.fftfreq(size, 1 / size)
    gaussian: Array = np.exp(-(cycles**2) * np.log(2) / CONTRAST_CYCLES**2)
    return gaussian.astype(np.float32)
