"""What decoding a picture of unknown origin may cost: the sides, the area, the time.

Sides and area are in the header, before any pixel is decoded. Time is not: a progressive JPEG of a megabyte can have
ten thousand passes over all its pixels. Its decoder asks for the file piece by piece, and :class:`TimedFile` stops
answering when the time is over. What the other formats take is bounded by their area.
"""

from __future__ import annotations

import io
import time
from typing import Any, BinaryIO

MAX_SIDE = 65_500
"""Pixels along one side: the most that a JPEG can have. Longer and thinner ones cost far more than their area says."""
MAX_PIXELS = 64_000_000
"""More than any camera of today in its usual mode; decoded, a picture of this size takes about 200 MB."""
PROGRAMS = {"EPS", "WMF"}
"""Formats that Pillow hands to another program: not for files of unknown origin."""
MAX_SECONDS = 20.0
"""For one picture; the largest allowed takes two or three on a slow machine."""
PIECE_BYTES = 4 * 1024
"""Of a file that a decoder gets at once: what it may do between two looks at the clock."""


class SlowPictureError(Exception):
    """A picture was not decoded in time."""

    def __init__(self, seconds: float = MAX_SECONDS) -> None:
        super().__init__(f"not decoded in {seconds:g} s; save it anew, without many passes (progressive scans)")


class TimedFile(io.RawIOBase):
    """A file for a decoder, which can be read until the time is over."""

    def __init__(self, file: BinaryIO, seconds: float | None = None) -> None:
        self._file = file
        self._seconds = MAX_SECONDS if seconds is None else seconds
        self._end = time.monotonic() + self._seconds

    def read(self, size: int | None = -1) -> bytes:
        """Read some bytes, or raise :class:`SlowPictureError`."""
        if time.monotonic() > self._end:
            raise SlowPictureError(self._seconds)
        return self._file.read(-1 if size is None else size)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place in the file."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Return the place in the file."""
        return self._file.tell()

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True


def refusal(picture: Any, max_pixels: int = MAX_PIXELS) -> str | None:
    """Return why an opened picture is not to be decoded, by its header; None if it may be."""
    if picture.format in PROGRAMS:
        return f"{picture.format} pictures are programs and are not run; convert it to PNG or JPEG"
    width, height = picture.size
    if width * height > max_pixels:
        return (
            f"{width:,} × {height:,} pixels, more than the limit of {max_pixels:,}; "
            "make it smaller, or raise max_pixels if you trust it"
        )
    if max(width, height) > MAX_SIDE:
        return f"{width:,} × {height:,} pixels; a side may have at most {MAX_SIDE:,}. Cut it into pieces"
    if not width or not height:
        return f"{width} × {height} pixels; there is nothing to see"
    return None


def in_pieces(picture: Any) -> Any:
    """Let the decoder of an opened picture look at the clock often, and return the picture."""
    picture.decodermaxblock = PIECE_BYTES
    return picture
