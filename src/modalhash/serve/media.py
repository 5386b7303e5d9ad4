"""Pictures of items: what they are is told by their content, and small ones are made and kept ready."""

from __future__ import annotations

import io
import os
import threading
from collections import OrderedDict
from pathlib import Path
from stat import S_ISREG
from typing import Any, NamedTuple

from PIL import Image, ImageOps, UnidentifiedImageError

from modalhash.serve.errors import Refusal

TYPES = {
    "PNG": "image/png",
    "JPEG": "image/jpeg",
    "MPO": "image/jpeg",
    "GIF": "image/gif",
    "WEBP": "image/webp",
    "BMP": "image/bmp",
    "AVIF": "image/avif",
    "TIFF": "image/tiff",
}
"""Formats that are taken and given. SVG and HTML are programs to a browser, and are not among them."""
FORMATS = tuple(TYPES)
SIZES = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Of small pictures: few, so that what is kept ready is used again."""
GONE = "the file of this item is no longer where it was; restore it, or remove the item"
NOT_A_PICTURE = f"not a picture of a kind that is taken ({', '.join(name for name in FORMATS if name != 'MPO')})"


class Small(NamedTuple):
    """A small picture."""

    data: bytes
    type: str


def check_picture(data: bytes, pixels: int) -> str:
    """The content type of an uploaded picture, from its header alone; or a refusal."""
    if not data:
        raise Refusal(415, "image: the file is empty; send a picture")
    with _opened(io.BytesIO(data)) as picture:
        _check_pixels(picture, pixels, 413)
        return TYPES[str(picture.format)]


def look(path: Path) -> tuple[os.stat_result, str]:
    """Size and time of an item's picture, and its content type."""
    state = stat(path)
    with _opened(path) as picture:
        return state, TYPES[str(picture.format)]


class Thumbnails:
    """Small pictures, made when first asked for, kept up to a number of bytes; the least used go first."""

    def __init__(self, *, most_bytes: int, pixels: int) -> None:
        self._kept: OrderedDict[tuple[Any, ...], Small] = OrderedDict()
        self._bytes, self._most, self._pixels = 0, most_bytes, pixels
        self._lock = threading.Lock()

    def get(self, path: Path, size: int) -> Small:
        """The picture at a path, with sides of at most ``size``, rounded down to one of :data:`SIZES`."""
        side = max((one for one in SIZES if one <= size), default=SIZES[0])
        state = stat(path)
        key = (str(path), state.st_mtime_ns, state.st_size, side)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        small = shrink(path, side, self._pixels)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = small
                self._bytes += len(small.data)
            while self._bytes > self._most:
                self._bytes -= len(self._kept.popitem(last=False)[1].data)
        return small


def shrink(path: Path, side: int, pixels: int) -> Small:
    """A picture of at most this many pixels a side, turned as its camera says, as WebP."""
    with _opened(path) as picture:
        _check_pixels(picture, pixels, 415)
        try:
            picture.draft(None, (2 * side, 2 * side))
            small = ImageOps.exif_transpose(picture)
            if small.mode not in ("RGB", "RGBA"):
                small = small.convert("RGBA" if small.has_transparency_data else "RGB")
            small.thumbnail((side, side), Image.Resampling.LANCZOS)
            out = io.BytesIO()
            small.save(out, "WEBP", quality=82, method=2)
        except (OSError, ValueError, SyntaxError, ArithmeticError, LookupError, TypeError, EOFError):
            raise Refusal(415, "the picture of this item is damaged and cannot be shown") from None
    return Small(out.getvalue(), "image/webp")


def stat(path: Path) -> os.stat_result:
    """Size and time of an item's file; one that is gone, or is something else now, is refused."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        raise Refusal(404, GONE) from None
    if not S_ISREG(found.st_mode):
        raise Refusal(404, GONE)
    return found


def _opened(source: Any) -> Any:
    try:
        return Image.open(source, formats=FORMATS)
    except UnidentifiedImageError:
        raise Refusal(415, f"image: {NOT_A_PICTURE}") from None
    except Image.DecompressionBombError:
        raise Refusal(413, "image: far too many pixels") from None
    except FileNotFoundError:
        raise Refusal(404, GONE) from None
    except Exception:  # a broken header can make a reader fail in any way
        raise Refusal(415, f"image: {NOT_A_PICTURE}, or its header is broken") from None


def _check_pixels(picture: Any, most: int, status: int) -> None:
    width, height = picture.size
    if width * height > most:
        raise Refusal(status, f"image: {width:,} × {height:,} pixels; the limit is {most:,}. Make it smaller")
    if not width or not height:
        raise Refusal(415, "image: it has no pixels")
