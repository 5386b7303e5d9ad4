"""Pictures of items: content types read from their content, and cached thumbnails."""

from __future__ import annotations

import io
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from stat import S_ISREG
from typing import Any, NamedTuple, TypeAlias

from cachetools import LRUCache
from PIL import Image, ImageOps, UnidentifiedImageError

from modalhash.core.archives import ArchiveError, ArchiveMember, MissingMemberError
from modalhash.core.pictures import (
    HEAD_BYTES,
    MAX_SIDE,
    RAW,
    PictureError,
    in_pieces,
    is_camera_tiff,
    is_raw,
    open_picture,
    register_heif,
    with_eight_bits,
)
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
    "HEIF": "image/heif",
    RAW: "image/x-dcraw",
}
"""Content types by Pillow's format name. SVG and HTML are excluded, because browsers run scripts in them."""
THUMBNAIL_SIZES = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Longest sides of thumbnails in pixels; few sizes make cache hits likely."""
FILE_GONE = "the file of this item is missing; restore it, or remove the item"
NOT_A_PICTURE = f"not a picture of a supported format ({', '.join(name for name in CONTENT_TYPES if name != 'MPO')})"
File: TypeAlias = Path | ArchiveMember
DAMAGED = (
    OSError, ValueError, SyntaxError, ArithmeticError, LookupError, TypeError, EOFError, struct.error, RuntimeError,
    AttributeError, AssertionError,
)  # fmt: skip
"""Exceptions that Pillow raises for damaged pictures."""


class FileGoneError(HTTPError):
    """The file of an item does not exist."""

    def __init__(self) -> None:
        super().__init__(404, FILE_GONE)


@cache
def readable_formats() -> tuple[str, ...]:
    """Return Pillow's names of the readable formats; some builds do not have all, and MPO opens as JPEG."""
    Image.init()
    register_heif()
    return tuple(name for name in CONTENT_TYPES if name in Image.OPEN)


class Thumbnail(NamedTuple):
    """A small picture."""

    data: bytes
    content_type: str


def check_picture(data: bytes, max_pixels: int) -> str:
    """Return the content type of an uploaded picture, or raise; reads only its header."""
    if not data:
        raise HTTPError(415, "image: the file is empty; send a picture")
    if is_raw(data[:HEAD_BYTES]) or is_camera_tiff(io.BytesIO(data)):  # the RAW decoder cannot be interrupted
        raise HTTPError(415, "image: a camera's RAW picture; send it as JPEG or PNG")
    with _open_picture(io.BytesIO(data)) as picture:
        _check_pixels(picture, max_pixels, 413)
        return CONTENT_TYPES[str(picture.format)]


def inspect_picture(path: Path) -> tuple[os.stat_result, str]:
    status = _stat(path)
    with _open_picture(path, path.name) as picture:
        return status, CONTENT_TYPES[str(picture.format)]


def read_member(member: ArchiveMember) -> tuple[bytes, str]:
    data = _content(member)
    with _open_picture(io.BytesIO(data), member.name) as picture:
        return data, CONTENT_TYPES[str(picture.format)]


class Thumbnails:
    """Make thumbnails and cache up to ``max_bytes`` of them (least recently used), and why some cannot be made."""

    def __init__(self, *, max_bytes: int, max_pixels: int) -> None:
        self._max_pixels = max_pixels
        self._cache: LRUCache[Any, Thumbnail | HTTPError] = LRUCache(max_bytes, getsizeof=_cached_bytes)
        self._lock = threading.Lock()

    def get(self, path: File, size: int) -> Thumbnail:
        """Return a thumbnail whose sides are at most ``size``, rounded down to a thumbnail size."""
        found = self.cached(path, size)
        if found is not None:
            return found
        key = _thumbnail_key(path, size)
        try:
            made: Thumbnail | HTTPError = make_thumbnail(path, key[1], self._max_pixels)
        except FileGoneError:
            raise
        except HTTPError as error:
            made = HTTPError(error.status, error.message)  # without its traceback, which keeps the picture
        with self._lock, suppress(ValueError):  # larger than the whole cache
            self._cache[key] = made
        return _unless_refused(made)

    def cached(self, path: File, size: int) -> Thumbnail | None:
        """Return a thumbnail that was made before, or None; raise if it cannot be made."""
        key = _thumbnail_key(path, size)
        with self._lock:
            found = self._cache.get(key)
        return None if found is None else _unless_refused(found)


def _thumbnail_key(path: File, size: int) -> tuple[File, int, int, int]:
    """Return file and side, and the file's time and size, so that changed files are reloaded."""
    side = max((one for one in THUMBNAIL_SIZES if one <= size), default=THUMBNAIL_SIZES[0])
    status = _stat(path.archive if isinstance(path, ArchiveMember) else path)
    return path, side, status.st_mtime_ns, status.st_size


def _unless_refused(found: Thumbnail | HTTPError) -> Thumbnail:
    if isinstance(found, HTTPError):
        raise HTTPError(found.status, found.message)
    return found


def _cached_bytes(found: Thumbnail | HTTPError) -> int:
    return len(found.message if isinstance(found, HTTPError) else found.data)


def make_thumbnail(path: File, side: int, max_pixels: int) -> Thumbnail:
    """Return a WebP picture with sides of at most ``side`` pixels, rotated as its EXIF data say."""
    source = io.BytesIO(_content(path)) if isinstance(path, ArchiveMember) else path
    with _open_picture(source, path.name) as picture:
        _check_pixels(picture, max_pixels, 415)
        try:
            in_pieces(picture).draft(None, (2 * side, 2 * side))
            small = with_eight_bits(ImageOps.exif_transpose(picture))
            if small.mode not in ("RGB", "RGBA"):
                small = small.convert("RGBA" if small.has_transparency_data else "RGB")
            small.thumbnail((side, side), Image.Resampling.LANCZOS)
            out = io.BytesIO()
            small.save(out, "WEBP", quality=82, method=2)
        except PictureError as error:
            raise HTTPError(415, f"image: {error}") from None
        except DAMAGED:
            raise HTTPError(415, "the picture of this item is damaged and cannot be shown") from None
    return Thumbnail(out.getvalue(), "image/webp")


def _stat(path: Path) -> os.stat_result:
    """Return the status of an item's file; raise unless it is a regular file."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        raise FileGoneError() from None
    if not S_ISREG(status.st_mode):
        raise FileGoneError()
    return status


def _content(member: ArchiveMember) -> bytes:
    try:
        return member.read()
    except MissingMemberError:
        raise FileGoneError() from None
    except ArchiveError as error:
        raise HTTPError(415, f"image: {error.reason}") from None


@contextmanager
def _open_picture(source: Path | io.BytesIO, name: str | None = None) -> Iterator[Any]:
    """Open a picture by its content; reads only its header."""
    try:
        file = source if isinstance(source, io.BytesIO) else source.open("rb")
    except OSError:
        raise FileGoneError() from None
    with file:
        try:
            picture = open_picture(file, name, readable_formats())
        except UnidentifiedImageError:
            raise HTTPError(415, f"image: {NOT_A_PICTURE}") from None
        except Image.DecompressionBombError:
            raise HTTPError(413, "image: far too many pixels") from None
        except PictureError as error:
            raise HTTPError(415, f"image: {error}") from None
        except DAMAGED:
            raise HTTPError(415, f"image: {NOT_A_PICTURE}, or its header is broken") from None
        with picture:
            yield picture


def _check_pixels(picture: Any, max_pixels: int, status: int) -> None:
    width, height = picture.size
    if width * height > max_pixels:
        raise HTTPError(status, f"image: {width:,} × {height:,} pixels; the limit is {max_pixels:,}. Make it smaller")
    if max(width, height) > MAX_SIDE:
        reason = f"image: {width:,} × {height:,} pixels; a side may have at most {MAX_SIDE:,}. Cut it into pieces"
        raise HTTPError(status, reason)
    if not width or not height:
        raise HTTPError(415, "image: it has no pixels")
