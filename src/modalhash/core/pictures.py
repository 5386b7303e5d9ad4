"""Decoding of pictures of unknown origin, with limits on size and time.

Sides and area are in the header and checked before decoding. Time is not: a progressive JPEG of a megabyte can have ten
thousand passes over all its pixels. Its decoder reads the file in pieces, and :class:`TimedFile` raises when the time
is over. The time of other formats is bounded by their area.

HEIC and RAW need optional packages (extras ``heif`` and ``raw``), imported with the first such picture. The preview in
a RAW file is used if there is one; otherwise the values of the sensor are developed.
"""

from __future__ import annotations

import io
import re
import time
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, BinaryIO

import numpy as np

from modalhash.core.progress import check_not_stopped
from modalhash.core.typing import Array

MAX_SIDE = 65_500
"""Pixels along one side, the maximum of JPEG; long and thin pictures cost more than their area suggests."""
MAX_PIXELS = 64_000_000
"""More than common cameras produce; decoded, such a picture takes about 200 MB."""
PROGRAMS = {"EPS", "WMF"}
"""Formats that Pillow passes to another program, which is unsafe for files of unknown origin."""
MAX_SECONDS = 20.0
"""Time limit per picture; the largest allowed takes two or three seconds on a slow machine."""
PIECE_BYTES = 4 * 1024
"""Piece of a file that a decoder reads between two checks of the time."""
HEAD_BYTES = 512
"""Bytes that identify the kind of a file."""
ORIENTATION = 0x0112
"""EXIF tag of the orientation."""
TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}
"""EXIF orientation to ``PIL.Image.Transpose``."""
HEIF_PACKAGES = ("pillow_heif", "pi_heif")
"""Packages that read HEIC; the second is the first without its encoder, which has the GPL."""
NEEDS_HEIF = "a HEIC picture; reading it needs `pip install pi-heif`"
RAW = "RAW"
"""``PIL.Image.format`` of pictures from RAW files."""
RAW_SUFFIXES = (".cr2", ".cr3", ".nef", ".arw", ".dng", ".orf", ".rw2", ".raf", ".pef")
NEEDS_RAW = "a RAW picture of a camera; reading it needs the extra 'raw': `pip install rawpy`"
NO_PICTURE = "not a picture, or of a kind that Pillow cannot read"
_HEIF_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}
_FOREIGN = (
    (rb"\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*(?:<!doctype svg[^>]*>\s*)?<svg", "an SVG drawing; save it as PNG"),
    (rb"\s*<(?:!doctype html|html|head|body)", "a web page, possibly of a failed download; fetch it again"),
    (rb"version https://git-lfs", "a Git LFS pointer, not the file itself; fetch it with `git lfs pull`"),
    (rb"%PDF", "a PDF; save its pages as PNG or JPEG"),
    (rb"PK\x03\x04", "a zip archive or an office document"),
    (rb"\xff\x0a|\0\0\0\x0cJXL ", "a JPEG XL picture, which Pillow cannot read; save it as JPEG or PNG"),
    (rb"....ftyp|\x1a\x45\xdf\xa3|RIFF....AVI ", "a video; save a frame of it as JPEG or PNG"),
    (rb"\0+$", "only zeros; it may not be copied completely"),
)
"""First bytes of files that cannot be read as pictures, and messages about them."""
_RAW_START = re.compile(rb"II\*\0.{4}CR|....ftypcrx |FUJIFILMCCD-RAW|IIU\0|IIR[OS]|MMOR", re.DOTALL)
"""First bytes of CR2, CR3, RAF, RW2 and ORF; other RAW files begin like any TIFF."""
_TIFF_STARTS = (b"II*\0", b"MM\0*")
_MAKE, _MORE_TABLES, _DNG_VERSION = 0x010F, 0x014A, 0xC612
_FLIPS = {3: 3, 5: 8, 6: 6}
"""LibRaw's flip to EXIF orientation."""


class PictureError(Exception):
    """A picture cannot be decoded; the message is the reason."""


class SlowPictureError(PictureError):
    """A picture was not decoded in time."""

    def __init__(self, seconds: float = MAX_SECONDS) -> None:
        super().__init__(f"not decoded in {seconds:g} s; save it again, without many passes (progressive scans)")


class TimedFile(io.RawIOBase):
    """A file for a decoder that raises :class:`SlowPictureError` after a time limit."""

    def __init__(self, file: BinaryIO, seconds: float | None = None) -> None:
        self._file = file
        self._seconds = MAX_SECONDS if seconds is None else seconds
        self._end = time.monotonic() + self._seconds

    def read(self, size: int | None = -1) -> bytes:
        """Read up to ``size`` bytes; raise :class:`SlowPictureError` or :class:`StoppedError` if it took too long."""
        if time.monotonic() > self._end:
            raise SlowPictureError(self._seconds)
        check_not_stopped()
        return self._file.read(-1 if size is None else size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


def refusal(picture: Any, max_pixels: int = MAX_PIXELS) -> str | None:
    """Return why an opened picture must not be decoded, by its header; None if it may be."""
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
        return f"{width} × {height} pixels; the picture is empty"
    return None


def in_pieces(picture: Any) -> Any:
    """Make the decoder of an opened picture read small pieces, and return the picture."""
    picture.decodermaxblock = PIECE_BYTES
    return picture


def open_picture(file: BinaryIO, name: str | None = None, formats: tuple[str, ...] | None = None) -> Any:
    """Open a picture of any kind as ``PIL.Image``; pixels are decoded on access.

    Parameters
    ----------
    file : open, at its start
    name : of the file, if any; some RAW files cannot be distinguished from a TIFF by their content
    formats : that Pillow may read; all by default

    Raises
    ------
    PictureError
        if a package is missing, or a RAW file is broken; and whatever Pillow raises
    """
    from PIL import Image

    head = file.read(HEAD_BYTES)
    file.seek(0)
    if is_heif(head) and not register_heif():
        raise PictureError(NEEDS_HEIF)
    if is_raw(head, name):
        return open_raw(file)
    if name is None and find_spec("rawpy") is not None and is_camera_tiff(file):
        try:
            return open_raw(file)
        except PictureError:  # an ordinary TIFF
            file.seek(0)
    return Image.open(TimedFile(file), formats=formats)  # type: ignore[arg-type]


def is_heif(head: bytes) -> bool:
    """Return whether a file with this head is a HEIC picture, and not an AVIF, which Pillow reads itself."""
    if head[4:8] != b"ftyp":
        return False
    end = min(int.from_bytes(head[:4], "big"), len(head))
    brands = {head[8:12], *(head[place : place + 4] for place in range(16, end, 4))}
    return bool(brands & _HEIF_BRANDS) and not brands & {b"avif", b"avis"}


@cache
def register_heif() -> bool:
    """Register a HEIC reader with Pillow; return False if none is installed."""
    for name in HEIF_PACKAGES:
        try:
            import_module(name).register_heif_opener()
        except ImportError:
            continue
        return True
    return False


def foreign_kind(head: bytes) -> str:
    """Describe a file that Pillow cannot identify, by its first bytes."""
    if is_heif(head):
        return "a broken HEIC picture" if register_heif() else NEEDS_HEIF
    return next((said for start, said in _FOREIGN if re.match(start, head, re.DOTALL | re.IGNORECASE)), NO_PICTURE)


def is_raw(head: bytes, name: str | None = None) -> bool:
    return _RAW_START.match(head) is not None or (name is not None and name.lower().endswith(RAW_SUFFIXES))


def is_camera_tiff(file: BinaryIO) -> bool:
    """Return whether a TIFF is a RAW picture by its first table of tags."""
    from PIL.TiffImagePlugin import ImageFileDirectory_v2

    try:
        start = file.read(8)
        if not start.startswith(_TIFF_STARTS):
            return False
        tags = ImageFileDirectory_v2(start)
        file.seek(tags.next)
        tags.load(file)
        return _DNG_VERSION in tags or (_MAKE in tags and _MORE_TABLES in tags)
    except Exception:  # a broken TIFF; its decoder reports more
        return False
    finally:
        file.seek(0)


def open_raw(file: BinaryIO) -> Any:
    """Return the preview in a RAW file, or the developed picture if it has none, as ``PIL.Image``."""
    try:
        rawpy = import_module("rawpy")
    except ModuleNotFoundError:
        raise PictureError(NEEDS_RAW) from None
    try:
        with rawpy.imread(file) as raw:
            picture = _preview(rawpy, raw) or _developed(raw)
    except rawpy.LibRawError as error:
        said = error.args[0] if error.args else error
        raise PictureError(f"a broken RAW picture ({said.decode() if isinstance(said, bytes) else said})") from None
    picture.format = RAW
    return picture


def _preview(rawpy: Any, raw: Any) -> Any:
    from PIL import Image

    try:
        found = raw.extract_thumb()
    except (rawpy.LibRawNoThumbnailError, rawpy.LibRawUnsupportedThumbnailError):
        return None
    if found.format == rawpy.ThumbFormat.JPEG:
        picture: Any = Image.open(TimedFile(io.BytesIO(found.data)), formats=("JPEG",))  # type: ignore[arg-type]
    elif found.format == rawpy.ThumbFormat.BITMAP:
        picture = Image.fromarray(found.data)
    else:
        return None
    picture.getexif().setdefault(ORIENTATION, _FLIPS.get(raw.sizes.flip, 1))
    return picture


def _developed(raw: Any) -> Any:
    """Return an upright picture of half the width and height from the values of the sensor."""
    from PIL import Image

    width, height = raw.sizes.width, raw.sizes.height
    if width * height > MAX_PIXELS:
        raise PictureError(f"{width:,} × {height:,} pixels without a preview are too many")
    return Image.fromarray(raw.postprocess(half_size=True, use_camera_wb=True, output_bps=8))


def turn_of(picture: Any) -> int | None:
    """Return the ``PIL.Image.Transpose`` that turns a picture upright; None if it already is.

    Call it after decoding, because some decoders turn the picture and update its tag.
    """
    try:
        return TURNS.get(int(picture.getexif().get(ORIENTATION, 1)))
    except Exception:  # a broken EXIF block says nothing about the pixels
        return None


def with_eight_bits(picture: Any) -> Any:
    """Convert a picture with more than 8 bits per value, or in Lab, to 8-bit grey or RGB; return others unchanged.

    16-bit values have a known range; 32-bit and float values are stretched from their minimum to their maximum.
    """
    from PIL import Image

    if picture.mode.startswith(("I", "F")):
        return Image.fromarray(_eight_bits(np.asarray(picture), picture.mode))
    if picture.mode == "LAB":
        from PIL import ImageCms

        lab, rgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        return ImageCms.profileToProfile(picture, lab, rgb, outputMode="RGB")
    return picture


def _eight_bits(values: Array, mode: str) -> Array:
    if mode.startswith("I;16"):
        return (values // 257).astype(np.uint8)
    values = values.astype(np.float64)
    low, high = values.min(), values.max()
    if not np.isfinite(high - low):
        raise PictureError("some pixels are not finite numbers")
    return np.rint((values - low) * (255 / (high - low) if high > low else 0)).astype(np.uint8)
