"""Pictures of items: their type is read from their content, and thumbnails of them are made and cached."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path
from stat import S_ISREG
from typing import Any, NamedTuple

from cachetools import LRUCache, cached
from PIL import Image, ImageOps, UnidentifiedImageError

from modalhash.serve.errors import HTTPError

CONTENT_TYPES = {
    "PNG": "image/png",
    "JPEG": "image/jpeg",
    "MPO": "image/jpeg",
    "GIF": "image/gif",
    "WEBP": "image/webp",
    "BMP": "image/bmp",
    "AVIF": "image/avif",
    "TIFF": "image/tiff",
}
"""Content types by Pillow's name of the format. SVG and HTML are programs to a browser, so they are not among them."""
FORMATS = tuple(CONTENT_TYPES)
THUMBNAIL_SIZES = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Longest sides of thumbnails: few, so that cached ones are used again."""
FILE_GONE = "the file of this item is no longer where it was; restore it, or remove the item"
NOT_A_PICTURE = f"not a picture of a supported format ({', '.join(name for name in FORMATS if name != 'MPO')})"


class Thumbnail(NamedTuple):
    """A small picture as it is sent."""

    data: bytes
    content_type: str


def check_picture(data: bytes, max_pixels: int) -> str:
    """Return the content type of an uploaded picture, or raise; only its header is read."""
    if not data:
        raise HTTPError(415, "image: the file is empty; send a picture")
    with _open_picture(io.BytesIO(data)) as picture:
        _check_pixels(picture, max_pixels, 413)
        return CONTENT_TYPES[str(picture.format)]


def inspect_picture(path: Path) -> tuple[os.stat_result, str]:
    """Return the file status and the content type of an item's picture."""
    status = _stat(path)
    with _open_picture(path) as picture:
        return status, CONTENT_TYPES[str(picture.format)]


class Thumbnails:
    """Makes thumbnails and caches up to ``max_bytes`` of them; the least recently used go first."""

    def __init__(self, *, max_bytes: int, max_pixels: int) -> None:
        self._max_pixels = max_pixels
        self._cache: LRUCache[Any, Thumbnail] = LRUCache(max_bytes, getsizeof=lambda thumbnail: len(thumbnail.data))
        self._cached = cached(self._cache, lock=threading.Lock())(self._make)

    def get(self, path: Path, size: int) -> Thumbnail:
        """Return the picture at a path, with sides of at most ``size`` rounded down to a thumbnail size."""
        side = max((one for one in THUMBNAIL_SIZES if one <= size), default=THUMBNAIL_SIZES[0])
        status = _stat(path)
        return self._cached(path, side, status.st_mtime_ns, status.st_size)

    def _make(self, path: Path, side: int, modified: int, n_bytes: int) -> Thumbnail:
        """Make a thumbnail; time and size of the file are part of the cache's key, so a changed file is read anew."""
        return make_thumbnail(path, side, self._max_pixels)


def make_thumbnail(path: Path, side: int, max_pixels: int) -> Thumbnail:
    """Return a picture with sides of at most ``side`` pixels, rotated as its camera says, as WebP."""
    with _open_picture(path) as picture:
        _check_pixels(picture, max_pixels, 415)
        try:
            picture.draft(None, (2 * side, 2 * side))
            small = ImageOps.exif_transpose(picture)
            if small.mode not in ("RGB", "RGBA"):
                small = small.convert("RGBA" if small.has_transparency_data else "RGB")
            small.thumbnail((side, side), Image.Resampling.LANCZOS)
            out = io.BytesIO()
            small.save(out, "WEBP", quality=82, method=2)
        except (OSError, ValueError, SyntaxError, ArithmeticError, LookupError, TypeError, EOFError):
            raise HTTPError(415, "the picture of this item is damaged and cannot be shown") from None
    return Thumbnail(out.getvalue(), "image/webp")


def _stat(path: Path) -> os.stat_result:
    """Return the status of an item's file; raise if it is gone or no regular file."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        raise HTTPError(404, FILE_GONE) from None
    if not S_ISREG(status.st_mode):
        raise HTTPError(404, FILE_GONE)
    return status


def _open_picture(source: Any) -> Any:
    try:
        return Image.open(source, formats=FORMATS)
    except UnidentifiedImageError:
        raise HTTPError(415, f"image: {NOT_A_PICTURE}") from None
    except Image.DecompressionBombError:
        raise HTTPError(413, "image: far too many pixels") from None
    except FileNotFoundError:
        raise HTTPError(404, FILE_GONE) from None
    except Exception:  # a broken header can make a reader fail in any way
        raise HTTPError(415, f"image: {NOT_A_PICTURE}, or its header is broken") from None


def _check_pixels(picture: Any, max_pixels: int, status: int) -> None:
    width, height = picture.size
    if width * height > max_pixels:
        raise HTTPError(status, f"image: {width:,} × {height:,} pixels; the limit is {max_pixels:,}. Make it smaller")
    if not width or not height:
        raise HTTPError(415, "image: it has no pixels")
