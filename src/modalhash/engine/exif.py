"""What a camera wrote into a picture, as fields of its item: when, where and with what it was taken.

======================  =====================================================================
field                   from EXIF
======================  =====================================================================
``taken``               ``2019-06-14T12:30:00``: DateTimeOriginal, else DateTimeDigitized, else DateTime
``camera``              ``Canon EOS 70D``: Make and Model
``lens``                LensModel
``latitude``,           degrees, south and west negative
``longitude``
======================  =====================================================================

Only the header of a file is read. A field that is broken or makes no sense is left out, and nothing here ever fails.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, BinaryIO

from modalhash._archives import ArchiveMember
from modalhash._decoding import HEAD_BYTES, TimedFile, is_heif, is_raw, open_raw, register_heif
from modalhash.engine.source_items import Item

MAX_SECONDS = 2.0
"""For the header of one picture."""
MAX_FIELD_LENGTH = 100
"""Characters of a camera's or lens's name."""
_DETAILS, _GPS = 0x8769, 0x8825
"""Parts of EXIF that are tables of their own."""
_MAKE, _MODEL, _CHANGED, _DIGITIZED, _ORIGINAL, _LENS = 0x010F, 0x0110, 0x0132, 0x9004, 0x9003, 0xA434
_SEQUENTIAL = (".gz", ".tgz")
"""Archives that are read from their start for every member."""


def add_exif(items: Iterable[Item]) -> list[Item]:
    """Return items with the fields that cameras wrote into their pictures, where they have no such field."""
    return [_with_fields(item) if item.path is not None or item.data is not None else item for item in items]


def _with_fields(item: Item) -> Item:
    source = item.path if item.data is None else item.data
    found = exif_fields(source)
    return replace(item, extra={**found, **item.extra}) if found else item


def exif_fields(source: Any) -> dict[str, Any]:
    """Return what a camera wrote into a picture: a path, a member of an archive, or the bytes of its file.

    Examples
    --------
    >>> exif_fields(b"no picture")
    {}
    """
    try:
        with _opened(source) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's, of broken EXIF and of large pictures
            return _fields(_read_exif(file))
    except Exception:  # a broken header can make a parser fail in any way
        return {}


def _opened(source: Any) -> BinaryIO:
    if isinstance(source, ArchiveMember):
        return io.BytesIO(b"" if source.archive.name.lower().endswith(_SEQUENTIAL) else source.read())
    return io.BytesIO(source) if isinstance(source, bytes) else open(os.fspath(source), "rb")


def _read_exif(file: BinaryIO) -> Any:
    """Return the EXIF of a picture without decoding it; empty if it has none."""
    from PIL import Image, UnidentifiedImageError

    head = file.read(HEAD_BYTES)
    file.seek(0)
    if is_heif(head):
        register_heif()
    try:
        opened: Any = Image.open(TimedFile(file, MAX_SECONDS))  # type: ignore[arg-type]
    except UnidentifiedImageError:
        if not is_raw(head):
            raise
        file.seek(0)
        opened = open_raw(file)  # many cameras repeat it in the preview
    with opened as picture:
        if picture.format == "PNG" and "exif" not in picture.info:
            return Image.Exif()  # it may follow the pixels, which would be decoded to look for it
        exif = picture.getexif()
        for part in (_DETAILS, _GPS):
            exif.get_ifd(part)  # read while the file is open
        return exif


def _fields(exif: Any) -> dict[str, Any]:
    """Return the fields that are whole, each by itself."""
    own = exif.get_ifd(_DETAILS)
    dates = (own.get(_ORIGINAL), own.get(_DIGITIZED), exif.get(_CHANGED))
    place = _place(exif.get_ifd(_GPS))
    found = {
        "taken": next(filter(None, map(_date, dates)), None),
        "camera": _camera(_text(exif.get(_MAKE)), _text(exif.get(_MODEL))),
        "lens": _text(own.get(_LENS)),
        "latitude": place and place[0],
        "longitude": place and place[1],
    }
    return {name: value for name, value in found.items() if value not in (None, "")}


def _text(value: Any) -> str:
    """Return a name without what cannot be printed: cameras fill the rest of a field with zeros."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value if isinstance(value, str) else ""
    text = text.partition("\0")[0]
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())[:MAX_FIELD_LENGTH]


def _camera(make: str, model: str) -> str:
    """Return make and model, the make once.

    Examples
    --------
    >>> _camera("Canon", "Canon EOS 70D"), _camera("NIKON CORPORATION", "NIKON D90"), _camera("Apple", "iPhone 12")
    ('Canon EOS 70D', 'NIKON D90', 'Apple iPhone 12')
    """
    if make and model and not model.casefold().startswith(make.split()[0].casefold()):
        return f"{make} {model}"
    return model or make


def _date(value: Any) -> str | None:
    """Return a date of EXIF as ISO 8601 has it; None if it is none.

    Examples
    --------
    >>> _date("2019:06:14 12:30:00"), _date("0000:00:00 00:00:00"), _date("    :  :     :  :  ")
    ('2019-06-14T12:30:00', None, None)
    """
    text = _text(value).replace("-", ":").replace("/", ":").replace("T", " ")[:19]
    with suppress(ValueError):
        return datetime.strptime(text, "%Y:%m:%d %H:%M:%S").isoformat()
    return None


def _place(gps: Any) -> tuple[float, float] | None:
    """Return latitude and longitude; None if one of them is missing or impossible, or both are 0: no fix."""
    latitude = _degrees(gps.get(2), _text(gps.get(1)), {"N": 1, "S": -1}, 90)
    longitude = _degrees(gps.get(4), _text(gps.get(3)), {"E": 1, "W": -1}, 180)
    if latitude is None or longitude is None or latitude == longitude == 0:
        return None
    return latitude, longitude


def _degrees(value: Any, side: str, signs: dict[str, int], most: int) -> float | None:
    """Return an angle in degrees from degrees, minutes and seconds."""
    with suppress(TypeError, ValueError, ArithmeticError, LookupError):
        degrees, minutes, seconds = (float(part) for part in value)
        angle = degrees + minutes / 60 + seconds / 3600
        if min(degrees, minutes, seconds) >= 0 and minutes < 60 and seconds <= 60 and angle <= most:
            return round(angle * signs[side.upper()[:1]], 6)
    return None
