"""Pictures without learned weights: edges, structure and colour.

The structure is GIST: how much structure of which size and direction is where in a picture (A. Oliva, A. Torralba.
Modeling the Shape of the Scene: A Holistic Representation of the Spatial Envelope. International Journal of Computer
Vision 42, 2001). The picture, local contrast evened out, passes a bank of Gabor filters (4 sizes × 8 directions) in
the Fourier domain; the mean response in each field of a 4×4 grid is a feature. A coarse filter lets only low
frequencies through, so its response is computed on a coarser grid: the inverse transform of the middle of the
spectrum, which loses nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from scipy import fft

from modalhash._decoding import MAX_PIXELS
from modalhash._typing import Array
from modalhash.data.pictures import CELLS, GRID, ORIENTATIONS, colour_moments, gradient_histogram
from modalhash.encoders._pictures import read_picture
from modalhash.encoders.base import EncoderBase, State
from modalhash.validation import check_int

GIST_SIZE, GIST_PAD, GIST_GRID = 64, 8, 4
SCALES, DIRECTIONS = 4, 8
GIST_FEATURES = SCALES * DIRECTIONS * GIST_GRID * GIST_GRID
GIST_STEPS = (1, 1, 2, 4)
"""Sampling of each scale's response; what the smaller grids cut off is below 1e-4 of the filter's peak."""
CONTRAST_CYCLES, CONTRAST_FLOOR = 4, 0.2
SIZE = 2 * GIST_SIZE
DIM = CELLS * CELLS * ORIENTATIONS + GIST_FEATURES + GRID * GRID * 9
LUMINANCE = np.array([0.299, 0.587, 0.114], dtype=np.float32)


class ImageEncoder(EncoderBase):
    """1,249 features of a picture: 512 edge histogram values, 512 of GIST, 225 colour moments.

    Each of the three parts is scaled to the same length, and the whole to length 1: distances between two pictures
    weigh edges, structure and colour alike. The picture is first made a square of 128 × 128 pixels. Items are
    paths or the bytes of files of any kind that Pillow reads.

    Parameters
    ----------
    max_pixels
        width × height above which a picture is refused before it is decoded

    Examples
    --------
    >>> ImageEncoder().dim
    1249
    """

    name = "image"
    parallel = True
    limits = frozenset({"max_pixels"})

    def __init__(self, *, max_pixels: int = MAX_PIXELS) -> None:
        self.max_pixels = check_int(max_pixels, "max_pixels", at_least=1)

    @property
    def dim(self) -> int:
        """Return 1,249."""
        return DIM

    @property
    def state(self) -> State:
        """Return the parameters; nothing is learned."""
        return State({"max_pixels": self.max_pixels})

    def encode(self, batch: Sequence[Any]) -> Array:
        """Return features of pictures, made one by one: what belongs to one picture stays in the processor's cache."""
        out = np.empty((len(batch), DIM), dtype=np.float32)
        for row, source in enumerate(batch):
            out[row] = features_of(read_picture(source, size=SIZE, max_pixels=self.max_pixels))
        return out


def features_of(pixels: Array) -> Array:
    """Return the features of uint8 ``(128, 128, 3)``."""
    values = pixels.astype(np.float32) / np.float32(255)
    grey = values @ LUMINANCE
    half = (grey[::2, ::2] + grey[1::2, ::2] + grey[::2, 1::2] + grey[1::2, 1::2]) / np.float32(4)
    parts = [gradient_histogram(values), gist(half), _unit(colour_moments(values))]
    return np.concatenate(parts) / np.sqrt(len(parts))


def _unit(values: Array) -> Array:
    length = np.linalg.norm(values)
    return values / length if length > 0 else values


def gist(grey: Array) -> Array:
    """Return the 512 features of GIST for a ``(64, 64)`` picture of brightness from 0 to 1, scaled to length 1."""
    spectrum = fft.fft2(_even_contrast(np.pad(np.log1p(255 * grey), GIST_PAD, mode="symmetric")))
    features = np.concatenate([_responses(spectrum, step) for step in dict.fromkeys(GIST_STEPS)])
    length = np.linalg.norm(features)
    return features / length if length > 0 else features


def _even_contrast(grey: Array) -> Array:
    """Brightness less its surroundings', divided by their spread: shadow and sun look alike."""
    smooth = _smoothing(grey.shape[0])
    detail = grey - fft.irfft2(fft.rfft2(grey) * smooth, s=grey.shape)
    spread = np.sqrt(np.abs(fft.irfft2(fft.rfft2(detail * detail) * smooth, s=grey.shape)))
    out: Array = detail / (np.float32(CONTRAST_FLOOR) + spread)
    return out


def _responses(spectrum: Array, step: int) -> Array:
    """Mean response by filter and field, of the filters that are sampled at every ``step``-th pixel."""
    size, side = spectrum.shape[0] // step, GIST_SIZE // step
    if step > 1:
        middle = np.fft.fftfreq(size, 1 / size).astype(int)
        spectrum = spectrum[np.ix_(middle, middle)]
    strength = np.abs(fft.ifft2(spectrum * _filters(size, step), overwrite_x=True))
    edge, field = GIST_PAD // step, side // GIST_GRID
    inner = strength[:, edge : edge + side, edge : edge + side]
    sums = inner.reshape(-1, GIST_GRID, field, side).sum(axis=2).reshape(-1, GIST_GRID, GIST_GRID, field).sum(axis=3)
    out: Array = sums.reshape(-1) / np.float32(field * field * step * step)
    return out


@cache
def _filters(size: int, step: int) -> Array:
    """Transfer functions ``(filters, size, size)`` of the scales with this step; read only."""
    across = np.fft.fftfreq(size, step)
    frequency, angle = np.hypot(across[:, None], across), np.arctan2(across[:, None], across)
    bank = []
    for scale in (scale for scale, own in enumerate(GIST_STEPS) if own == step):
        centre = 0.3 / 1.85**scale
        radial = -3.5 * (frequency / centre - 1) ** 2
        for direction in range(DIRECTIONS):
            turned = (angle + np.pi * direction / DIRECTIONS + np.pi) % (2 * np.pi) - np.pi
            bank.append(np.exp(radial - 2 * np.pi * (DIRECTIONS / 8) ** 2 * turned**2))
    return np.stack(bank).astype(np.float32)


@cache
def _smoothing(size: int) -> Array:
    """Gaussian low-pass for ``rfft2``; read only."""
    down, across = np.fft.fftfreq(size, 1 / size)[:, None], np.fft.rfftfreq(size, 1 / size)
    gaussian: Array = np.exp(-(down**2 + across**2) * np.log(2) / CONTRAST_CYCLES**2)
    return gaussian.astype(np.float32)
