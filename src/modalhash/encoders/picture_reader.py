"""Pictures read as an encoder reads them, to find those that cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from modalhash._decoding import MAX_PIXELS
from modalhash._typing import Array
from modalhash.encoders._pictures import read_picture
from modalhash.encoders.base import EncoderBase, State

SIZE = 32
"""Of the square that a picture becomes: small, since all that matters is that its pixels can be decoded."""


class PictureReader(EncoderBase):
    """Decodes pictures as the encoders do and makes nothing of them, which is faster than encoding.

    Given to :func:`~modalhash.encoders.encode_items`, it finds the pictures that no encoder can read.

    Parameters
    ----------
    max_pixels
        width × height above which a picture is refused before it is decoded

    Examples
    --------
    >>> from modalhash.encoders import encode_items
    >>> encode_items(PictureReader(), [b"no picture"], workers=1).failures[0].row
    0
    """

    name = "picture-reader"
    parallel = True
    limits = frozenset({"max_pixels"})

    def __init__(self, *, max_pixels: int = MAX_PIXELS) -> None:
        self.max_pixels = max_pixels

    @property
    def dim(self) -> int:
        """Return 0."""
        return 0

    @property
    def state(self) -> State:
        """Return the parameters; nothing is learned."""
        return State({"max_pixels": self.max_pixels})

    def encode(self, batch: Sequence[Any]) -> Array:
        """Decode pictures and return no features of them."""
        for source in batch:
            read_picture(source, size=SIZE, max_pixels=self.max_pixels)
        return np.empty((len(batch), 0), dtype=np.float32)
