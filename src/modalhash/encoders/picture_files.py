"""Pictures of any kind as small squares of RGB, without trusting the file.

The header is read first: a picture with more pixels than allowed, or a longer side, is refused before any of them is
decoded, and a JPEG is decoded at the smallest scale that is still large enough. The time is bounded too. Only the first
frame of an animation counts, the camera's rotation (EXIF) is undone, what is transparent becomes white, and numbers of
more than 8 bits are scaled. What cannot be read is said to be what it is, as far as its first bytes tell.
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
"""Up to which a file is read at once: decoders ask for a few bytes at a time, each of which would be a call."""
Source: TypeAlias = str | os.PathLike[str] | bytes
"""The path of a picture, or the bytes of its file."""


def read_picture(source: Source, *, size: int, max_pixels: int = MAX_PIXELS) -> Array:
    """Return a picture as uint8 ``(size, size, 3)``; its sides are scaled independently, so that nothing is cut off.

    Parameters
    ----------
    source : path, or the bytes of the file
    size : of the square
    max_pixels : width × height above which a picture is refused unread

    Raises
    ------
    ItemError
        for whatever cannot be read, with the reason
    """

    def squared(whole: Any) -> Any:
        from PIL import Image

        return whole.resize((size, size), Image.Resampling.BILINEAR, reducing_gap=2.0)

    return np.asarray(_read(source, 2 * size, max_pixels, squared))


def read_whole_picture(source: Source, *, at_least: int, max_pixels: int = MAX_PIXELS) -> Any:
    """Return a picture as a ``PIL.Image`` in RGB, with the sides it has, for those who scale and cut it themselves.

    A JPEG whose sides are twice ``at_least`` or more is decoded at a smaller scale. Errors are those of
    :func:`read_picture`.
    """
    return _read(source, at_least, max_pixels, lambda whole: whole)


def _read(source: Source, at_least: int, max_pixels: int, scaled: Callable[[Any], Any]) -> Any:
    """Return the picture ``scaled``, upright."""
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
    except Exception as error:  # a broken file can make a decoder fail in any way
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
    except (OSError, ValueError):  # a name that no file can have, too
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
    """Decode the first frame and convert it; this is where a truncated file shows."""
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


# -- Pictures read as an encoder reads them, to find those that cannot be.

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
