"""Decoding pictures of unknown origin: what it may cost, what they are, and eight bits of whatever they hold.

Sides and area are in the header, before any pixel is decoded. Time is not: a progressive JPEG of a megabyte can have
ten thousand passes over all its pixels. Its decoder asks for the file piece by piece, and :class:`TimedFile` stops
answering when the time is over. What the other formats take is bounded by their area.

HEIC, which telephones write, and RAW, which cameras do, take packages of their own (extras ``heif`` and ``raw``),
loaded when the first such picture comes. Of a RAW file the preview is taken that its camera put into it, as it shows it
on its screen; only without one is a picture made of the sensor's values.
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

from modalhash.core.typing import Array

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


HEAD_BYTES = 512
"""Of a file, by which its kind is told."""
ORIENTATION = 0x0112
"""The tag of EXIF that says how a picture has to be turned."""
TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}
"""EXIF orientation to ``PIL.Image.Transpose``."""
HEIF_PACKAGES = ("pillow_heif", "pi_heif")
"""Packages that read HEIC: the second is the first without its encoder, whose licence is the GPL."""
NEEDS_HEIF = "a HEIC picture; reading it needs `pip install pi-heif`"
RAW = "RAW"
"""The format of pictures from RAW files, as Pillow names formats."""
RAW_SUFFIXES = (".cr2", ".cr3", ".nef", ".arw", ".dng", ".orf", ".rw2", ".raf", ".pef")
NEEDS_RAW = "a RAW picture of a camera; reading it needs the extra 'raw': `pip install rawpy`"
NO_PICTURE = "not a picture, or of a kind that Pillow cannot read"
_HEIF_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}
_FOREIGN = (
    (rb"\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*(?:<!doctype svg[^>]*>\s*)?<svg", "an SVG drawing; save it as PNG"),
    (rb"\s*<(?:!doctype html|html|head|body)", "a web page, perhaps of a download that failed; fetch it again"),
    (rb"version https://git-lfs", "a Git LFS pointer, not the file itself; fetch it with `git lfs pull`"),
    (rb"%PDF", "a PDF; save its pages as PNG or JPEG"),
    (rb"PK\x03\x04", "a zip archive or an office document"),
    (rb"\xff\x0a|\0\0\0\x0cJXL ", "a JPEG XL picture, which Pillow cannot read; save it as JPEG or PNG"),
    (rb"....ftyp|\x1a\x45\xdf\xa3|RIFF....AVI ", "a video; save a frame of it as JPEG or PNG"),
    (rb"\0+$", "nothing but zeros; it was perhaps not copied to its end"),
)
"""How files begin that are no pictures, or none that can be read, and what to say of them."""


_RAW_START = re.compile(rb"II\*\0.{4}CR|....ftypcrx |FUJIFILMCCD-RAW|IIU\0|IIR[OS]|MMOR", re.DOTALL)
"""How RAW files begin: CR2, CR3, RAF, RW2, ORF. The others begin as any TIFF."""
_TIFF_STARTS = (b"II*\0", b"MM\0*")
_MAKE, _MORE_TABLES, _DNG_VERSION = 0x010F, 0x014A, 0xC612
_FLIPS = {3: 3, 5: 8, 6: 6}
"""LibRaw's number for how a picture is turned, to EXIF orientation."""


class PictureError(Exception):
    """A picture cannot be decoded, for the reason that is its message."""


class SlowPictureError(PictureError):
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


# -- what a file is


def open_picture(file: BinaryIO, name: str | None = None, formats: tuple[str, ...] | None = None) -> Any:
    """Return an opened picture of any kind, as ``PIL.Image``; its pixels are decoded when they are asked for.

    Parameters
    ----------
    file : open, at its start
    name : of the file, if there is one: some RAW files cannot be told from a TIFF by their content
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
        except PictureError:  # a TIFF all the same
            file.seek(0)
    return Image.open(TimedFile(file), formats=formats)  # type: ignore[arg-type]


def is_heif(head: bytes) -> bool:
    """Return whether a file that begins so is a HEIC picture, and not an AVIF, which Pillow reads itself."""
    if head[4:8] != b"ftyp":
        return False
    end = min(int.from_bytes(head[:4], "big"), len(head))
    brands = {head[8:12], *(head[place : place + 4] for place in range(16, end, 4))}
    return bool(brands & _HEIF_BRANDS) and not brands & {b"avif", b"avis"}


@cache
def register_heif() -> bool:
    """Let Pillow read HEIC; return False if no package for that is installed."""
    for name in HEIF_PACKAGES:
        try:
            import_module(name).register_heif_opener()
        except ImportError:
            continue
        return True
    return False


def foreign_kind(head: bytes) -> str:
    """Say what a file is that Pillow cannot identify, by its first bytes."""
    if is_heif(head):
        return "a broken HEIC picture" if register_heif() else NEEDS_HEIF
    return next((said for start, said in _FOREIGN if re.match(start, head, re.DOTALL | re.IGNORECASE)), NO_PICTURE)


# -- RAW


def is_raw(head: bytes, name: str | None = None) -> bool:
    """Return whether a file that begins so, or is named so, is a RAW picture."""
    return _RAW_START.match(head) is not None or (name is not None and name.lower().endswith(RAW_SUFFIXES))


def is_camera_tiff(file: BinaryIO) -> bool:
    """Return whether a file is a TIFF that is a RAW picture by its first table of tags."""
    from PIL.TiffImagePlugin import ImageFileDirectory_v2

    try:
        start = file.read(8)
        if not start.startswith(_TIFF_STARTS):
            return False
        tags = ImageFileDirectory_v2(start)
        file.seek(tags.next)
        tags.load(file)
        return _DNG_VERSION in tags or (_MAKE in tags and _MORE_TABLES in tags)
    except Exception:  # a broken TIFF, of which its decoder says more
        return False
    finally:
        file.seek(0)


def open_raw(file: BinaryIO) -> Any:
    """Return the preview in a RAW file, or else what its sensor saw, as ``PIL.Image``."""
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
    """Return the picture that the camera put into the file, with how it has to be turned; None if there is none."""
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
    """Return a picture of half the width and height from the values of the sensor, upright."""
    from PIL import Image

    width, height = raw.sizes.width, raw.sizes.height
    if width * height > MAX_PIXELS:
        raise PictureError(f"{width:,} × {height:,} pixels without a preview, which are too many")
    return Image.fromarray(raw.postprocess(half_size=True, use_camera_wb=True, output_bps=8))


# -- what it holds


def turn_of(picture: Any) -> int | None:
    """Return how a picture has to be turned to stand upright, as ``PIL.Image.Transpose``; None if it does.

    To be asked after decoding: some formats are turned by their decoder, which then says so.
    """
    try:
        return TURNS.get(int(picture.getexif().get(ORIENTATION, 1)))
    except Exception:  # a broken EXIF block says nothing about the pixels
        return None


def with_eight_bits(picture: Any) -> Any:
    """Return a picture whose numbers have more than 8 bits, or that is in Lab, as grey or RGB; others as they are.

    16-bit numbers have a known range; 32-bit and real ones are stretched from their least to their greatest.
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
