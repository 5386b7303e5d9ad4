"""Pictures of any kind as small squares of RGB, without trusting the file.

The header is read first: a picture with more pixels than allowed, or a longer side, is refused before any of them is
decoded, and a JPEG is decoded at the smallest scale that is still large enough. The time is bounded too. Only the first
frame of an animation counts, the camera's rotation (EXIF) is undone, what is transparent becomes white, and numbers of
more than 8 bits are scaled.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from modalhash._decoding import MAX_PIXELS, SlowPictureError, TimedFile, in_pieces, refusal
from modalhash._imports import require
from modalhash._typing import Array
from modalhash.encoders.base import ItemError

EMPTY = "the file is empty (0 bytes)"
TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}
"""EXIF orientation to ``PIL.Image.Transpose``."""
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
    try:
        with file, image.open(TimedFile(file)) as picture:
            if reason := refusal(picture, max_pixels):
                raise ItemError(reason)
            if picture.format in ("JPEG", "MPO"):
                picture.draft(None, (at_least, at_least))
            whole = _rgb(in_pieces(picture))
            turn = TURNS.get(_orientation(picture))  # after decoding: Pillow turns TIFFs itself, and then says so
            small = scaled(whole)
            return small if turn is None else small.transpose(image.Transpose(turn))
    except ItemError as error:
        raise ItemError(error.reason, where) from None
    except (MemoryError, KeyboardInterrupt):
        raise
    except Exception as error:  # a broken file can make a decoder fail in any way
        raise ItemError(_reason(error), where) from error


def _opened(source: Any) -> tuple[str | None, BinaryIO]:
    if isinstance(source, bytes | bytearray | memoryview):
        if not len(source):
            raise ItemError(EMPTY)
        return None, io.BytesIO(source)
    if not isinstance(source, str | os.PathLike):
        raise ItemError(f"got {type(source).__name__}; expected the path or the bytes of a picture")
    path = Path(source)
    if path.is_dir():
        raise ItemError("a folder; expected a picture", str(path))
    if not path.exists():
        raise ItemError("no such file", str(path))
    if not path.stat().st_size:
        raise ItemError(EMPTY, str(path))
    try:
        return str(path), path.open("rb")
    except OSError as error:
        raise ItemError(_reason(error), str(path)) from error


def _orientation(picture: Any) -> int:
    try:
        return int(picture.getexif().get(0x0112, 1))
    except Exception:  # a broken EXIF block says nothing about the pixels
        return 1


def _rgb(picture: Any) -> Any:
    """Decode the first frame and convert it; this is where a truncated file shows."""
    from PIL import Image

    picture.load()
    if picture.mode.startswith(("I", "F")):
        return Image.fromarray(_eight_bits(np.asarray(picture), picture.mode)).convert("RGB")
    if picture.mode == "LAB":
        from PIL import ImageCms

        lab, rgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        return ImageCms.profileToProfile(picture, lab, rgb, outputMode="RGB")
    if picture.has_transparency_data:
        whole = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", whole.size, "white"), whole).convert("RGB")
    return picture.convert("RGB")


def _eight_bits(values: Array, mode: str) -> Array:
    """16-bit numbers have a known range; 32-bit and real ones are stretched from their least to their greatest."""
    if mode.startswith("I;16"):
        return (values.astype(np.uint32) // 257).astype(np.uint8)
    values = values.astype(np.float64)
    low, high = values.min(), values.max()
    if not np.isfinite(high - low):
        raise ItemError("some pixels are not finite numbers")
    return np.rint((values - low) * (255 / (high - low) if high > low else 0)).astype(np.uint8)


def _reason(error: Exception) -> str:
    from PIL import Image, UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "not a picture, or of a kind that Pillow cannot read"
    if isinstance(error, Image.DecompressionBombError):
        return f"far too many pixels ({error})"
    if isinstance(error, SlowPictureError):
        return str(error)
    if isinstance(error, PermissionError):
        return "no permission to read it"
    if "truncated" in str(error).lower():
        return "the file is truncated"
    return f"a broken picture ({type(error).__name__}: {error})"
