"""Pictures without learned weights: edges, structure and colour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from modalhash._typing import Array
from modalhash.data.pictures import CELLS, GRID, ORIENTATIONS, colour_moments, gradient_histogram
from modalhash.encoders import gist
from modalhash.encoders.protocol import EncoderBase, State
from modalhash.encoders.reading import MAX_PIXELS, read_picture
from modalhash.validation import check_int

SIZE = 2 * gist.SIZE
DIM = CELLS * CELLS * ORIENTATIONS + gist.N_FEATURES + GRID * GRID * 9
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
        """Always 1,249."""
        return DIM

    @property
    def state(self) -> State:
        """The parameters; nothing is learned."""
        return State({"max_pixels": self.max_pixels})

    def encode(self, batch: Sequence[Any]) -> Array:
        """Features of pictures, one by one: what belongs to one picture stays in the processor's cache."""
        out = np.empty((len(batch), DIM), dtype=np.float32)
        for row, source in enumerate(batch):
            out[row] = features_of(read_picture(source, size=SIZE, max_pixels=self.max_pixels))
        return out


def features_of(pixels: Array) -> Array:
    """Features of uint8 ``(128, 128, 3)``."""
    values = pixels.astype(np.float32) / np.float32(255)
    grey = values @ LUMINANCE
    half = (grey[::2, ::2] + grey[1::2, ::2] + grey[::2, 1::2] + grey[1::2, 1::2]) / np.float32(4)
    parts = [gradient_histogram(values), gist.gist(half), _unit(colour_moments(values))]
    return np.concatenate(parts) / np.sqrt(len(parts))


def _unit(values: Array) -> Array:
    length = np.linalg.norm(values)
    return values / length if length > 0 else values
