"""Decode untrusted picture files to small RGB squares.

The header is read first, so that too large pictures are refused before they are decoded, and a JPEG is decoded at the
smallest sufficient scale. Time is limited too. Only the first frame is used, the EXIF rotation is applied, transparent
pixels become white, and values of more than 8 bits are scaled. Unreadable files are named by type (PDF, SVG, …).
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from modalhash.core.imports import require
from modalhash.core.pictures import (
    HEAD_BYTES,
    MAX_PIXELS,
    RAW,
    PictureError,
    foreign_kind,
    in_pieces,
    open_picture,
    refusal,
    turn_of,
    with_eight_bits,
)
from modalhash.core.typing import Array
from modalhash.encoders.encoder import EncoderBase, ItemError, State

EMPTY = "the file is empty (0 bytes)"
WHOLE_BYTES = 1024 * 1024
"""Size up to which a file is read in one call, bytes; decoders read a few bytes at a time."""
Source: TypeAlias = str | os.PathLike[str] | bytes  # the path of a picture, or the bytes of its file


def read_picture(source: Source, *, size: int, max_pixels: int = MAX_PIXELS) -> Array:
    """Return a picture as uint8 ``(size, size, 3)``; both sides are scaled to ``size`` and nothing is cropped.

    Parameters
    ----------
    source : path, or the bytes of the file
    size : side of the square, pixels
    max_pixels : width × height above which a picture is refused before it is decoded

    Raises
    ------
    ItemError
        if the picture cannot be read, with the reason
    """

    def squared(whole: Any) -> Any:
        from PIL import Image

        return whole.resize((size, size), Image.Resampling.BILINEAR, reducing_gap=2.0)

    return np.asarray(_read(source, 2 * size, max_pixels, squared))


def read_whole_picture(source: Source, *, at_least: int, max_pixels: int = MAX_PIXELS) -> Any:
    """Return a picture as a ``PIL.Image`` in RGB with its own aspect ratio.

    A JPEG whose sides are at least twice ``at_least`` is decoded at a smaller scale. Errors are those of
    :func:`read_picture`.
    """
    return _read(source, at_least, max_pixels, lambda whole: whole)


def _read(source: Source, at_least: int, max_pixels: int, scaled: Callable[[Any], Any]) -> Any:
    image = require("PIL.Image", extra="images", why="reading pictures")
    where, file = _opened(source)
    head = b""
    try:
        head = file.read(HEAD_BYTES)
        file.seek(0)
        with file, open_picture(file, where) as picture:
            if reason := refusal(picture, max_pixels):
                raise ItemError(reason)
            if picture.format in ("JPEG", "MPO", RAW):
                picture.draft(None, (at_least, at_least))
            whole = _rgb(in_pieces(picture))
            turn = turn_of(picture)
            small = scaled(whole)
            return small if turn is None else small.transpose(image.Transpose(turn))
    except ItemError as error:
        raise ItemError(error.reason, where) from None
    except (MemoryError, KeyboardInterrupt):
        raise
    except Exception as error:  # a damaged file can make a decoder raise anything
        raise ItemError(_reason(error, head), where) from error
    finally:
        file.close()


def _opened(source: Any) -> tuple[str | None, BinaryIO]:
    if isinstance(source, bytes | bytearray | memoryview):
        if not len(source):
            raise ItemError(EMPTY)
        return None, io.BytesIO(source)
    if not isinstance(source, str | os.PathLike):
        raise ItemError(f"got {type(source).__name__}; expected the path or the bytes of a picture")
    path = Path(source)
    try:
        about = path.stat()
    except PermissionError as error:
        raise ItemError(_reason(error), str(path)) from error
    except (OSError, ValueError):  # also for invalid file names
        raise ItemError("no such file", str(path)) from None
    if stat.S_ISDIR(about.st_mode):
        raise ItemError("a folder; expected a picture", str(path))
    if not about.st_size:
        raise ItemError(EMPTY, str(path))
    try:
        return str(path), io.BytesIO(path.read_bytes()) if about.st_size <= WHOLE_BYTES else path.open("rb")
    except OSError as error:
        raise ItemError(_reason(error), str(path)) from error


def _rgb(picture: Any) -> Any:
    """Decode and convert the first frame; a truncated file raises here."""
    from PIL import Image

    picture.load()
    picture = with_eight_bits(picture)
    if picture.has_transparency_data:
        whole = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", whole.size, "white"), whole).convert("RGB")
    return picture.convert("RGB")


def _reason(error: Exception, head: bytes = b"") -> str:
    from PIL import Image, UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return foreign_kind(head)
    if isinstance(error, Image.DecompressionBombError):
        return f"far too many pixels ({error})"
    if isinstance(error, PictureError):
        return str(error)
    if isinstance(error, PermissionError):
        return "no permission to read it"
    if "truncated" in str(error).lower():
        return "the file is truncated"
    return f"a broken picture ({type(error).__name__}: {error})"


SIZE = 32  # side of the squares that :class:`PictureReader` decodes to, pixels


class PictureReader(EncoderBase):
    """Decodes pictures as the encoders do, without computing features.

    With :func:`~modalhash.encoders.encode_items` it finds the pictures that no encoder can read.

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
        return 0

    @property
    def state(self) -> State:
        return State({"max_pixels": self.max_pixels})

    def encode(self, batch: Sequence[Any]) -> Array:
        for source in batch:
            read_picture(source, size=SIZE, max_pixels=self.max_pixels)
        return np.empty((len(batch), 0), dtype=np.float32)
