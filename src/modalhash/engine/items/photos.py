"""Items from folders and archives of pictures, with labels from folder names, EXIF fields and recognized text."""

from __future__ import annotations

import io
import os
import re
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from modalhash.core.archives import ArchiveEntry, ArchiveError, ArchiveMember, Refusal, archive_entries, archive_stem
from modalhash.core.imports import require
from modalhash.core.pictures import HEAD_BYTES, RAW_SUFFIXES, TimedFile, is_heif, is_raw, open_raw, register_heif
from modalhash.core.progress import Reporter
from modalhash.engine.items.item import Item, OnProblem, Problem, ProblemCode
from modalhash.store import PICTURE_TEXT

MAX_NAMED = 6
_WORD = re.compile(r"[^\W\d_]+")
_CAMERA = re.compile(r"\d{3}[a-z0-9_]{5}", re.IGNORECASE)
"""Folder names of the DCF standard: 100CANON, 101_PANA."""
_HASH = re.compile(r"(?=.*\d)(?=.*[a-f])[0-9a-f-]{8,}", re.IGNORECASE)
_MONTHS = frozenset({
    "jan", "january", "feb", "february", "mar", "march", "apr", "april", "may", "jun", "june", "jul", "july",
    "aug", "august", "sep", "sept", "september", "oct", "october", "nov", "november", "dec", "december",
})  # fmt: skip
_EMPTY = frozenset({
    "album", "albums", "backup", "backups", "bilder", "dcim", "directory", "download", "downloads", "export",
    "exported", "exports", "files", "folder", "folders", "foto", "fotos", "image", "images", "img", "imgs",
    "import", "imported", "imports", "jpeg", "jpg", "misc", "miscellaneous", "photo", "photos", "pic",
    "pics", "picture", "pictures", "png", "takeout", "temp", "tmp", "unnamed", "unsorted", "untitled",
    "uploads", "various",
})  # fmt: skip
_FILLING = frozenset({
    "all", "and", "android", "camera", "copy", "data", "default", "edited", "from", "google", "icloud", "my",
    "new", "of", "old", "original", "originals", "other", "others", "raw", "sort", "sorted", "stuff",
    "the", "to", "unknown", "upload", "whatsapp",
})  # fmt: skip
"""Words that are uninformative next to a number or one of the former; alone they may be labels."""
_PHRASES = frozenset({"camera roll"})


class FolderLabels:
    """Convert folder names to labels, and remember the names that are not labels.

    Years, numbers, hashes and names that cameras and programs assign are not labels.

    Parameters
    ----------
    every
        use every name as a label

    Examples
    --------
    >>> names = FolderLabels()
    >>> names.of(["2019", "holiday"]), names.of(["DCIM", "100CANON"]), names.of(["New folder (2)"])
    (('holiday',), (), ())
    >>> FolderLabels(every=True).of(["2019", "holiday"])
    ('2019', 'holiday')
    """

    def __init__(self, *, every: bool = False) -> None:
        self._every = every
        self._left: dict[str, None] = {}

    def of(self, folders: Sequence[str]) -> tuple[str, ...]:
        labels: dict[str, None] = {}
        camera = False
        for name in filter(None, folders):
            camera = camera or name.casefold() == "dcim"  # subfolders are named by the camera too
            if self._every or not (camera or says_nothing(name)):
                labels[name] = None
            else:
                self._left[name] = None
        return tuple(labels)

    def note(self) -> str | None:
        if not self._left:
            return None
        names = list(self._left)
        more = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
        return (
            f"folder names not used as labels because they are uninformative: {', '.join(names[:MAX_NAMED])}{more}; "
            "labels='folders' (--labels folders) uses every name"
        )


def says_nothing(name: str) -> bool:
    """Return whether a folder name is uninformative about its pictures.

    Examples
    --------
    >>> [says_nothing(name) for name in ("2019-06", "IMG_2019", "Photos from 2019", "3f2a9c01", "2019 June")]
    [True, True, True, True, True]
    >>> [says_nothing(name) for name in ("2019-06 Nice", "may", "old", "camera", "facade", "n01440764")]
    [False, False, False, False, False, False]
    """
    if _CAMERA.fullmatch(name) or _HASH.fullmatch(name):
        return True
    words = _WORD.findall(name.casefold())
    dated = any(sign.isdigit() for sign in name)
    nothing = _EMPTY | _FILLING | (_MONTHS if dated else frozenset())
    known = dated or not words or not _EMPTY.isdisjoint(words) or " ".join(words) in _PHRASES
    return known and (set(words) <= nothing or " ".join(words) in _PHRASES)


PICTURE_SUFFIXES = frozenset({
    ".jpg", ".jpeg", ".jfif", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".avif", ".heic", ".heif", ".hif",
    *RAW_SUFFIXES,
})  # fmt: skip
_SAMPLE_SUFFIXES = (".cls", ".json")
"""Suffixes of label files in WebDataset tars."""


def is_picture(name: str) -> bool:
    return Path(name).suffix.lower() in PICTURE_SUFFIXES


def picture_files(folder: Path, suffixes: Container[str] = PICTURE_SUFFIXES) -> Iterator[Path]:
    """Yield files with a picture suffix in order of their names, without hidden ones."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from picture_files(path, suffixes)
        elif path.suffix.lower() in suffixes:
            yield path


def picture_items(
    folder: Path, input_kinds: Mapping[str, str], names: FolderLabels, *, only: Container[Path] | None = None
) -> Iterator[Item]:
    """Yield the pictures of a folder, or those in ``only``, with informative subfolder names as labels.

    In the folder ``photos``, ``boats/red/1.jpg`` gets the id ``photos/boats/red/1.jpg`` and the labels boats and red.
    """
    if input_kinds.get("image") != "image":
        raise ValueError(f"{folder} is a folder of pictures, and no encoder reads pictures for 'image'")
    name = folder.resolve().name
    for path in picture_files(folder):
        if only is not None and path not in only:
            continue
        relative = path.relative_to(folder)
        labels = names.of(relative.parts[:-1])
        yield Item("image", f"{name}/{relative.as_posix()}", path=path.resolve(), labels=labels, source=name)


def archive_items(
    archive: Path, input_kinds: Mapping[str, str], report: OnProblem, names: FolderLabels
) -> Iterator[Item]:
    """Yield the pictures of a zip or tar, which are read from the archive.

    In ``photos.zip``, ``boats/red/1.jpg`` gets the id ``photos.zip/boats/red/1.jpg`` and the labels boats and red. A
    top folder with the name of the archive is not a label.
    """
    if input_kinds.get("image") != "image":
        raise ValueError(f"{archive} has pictures, and no encoder reads pictures for 'image'")
    where, n_pictures, n_samples = archive.resolve(), 0, 0
    for entry in _reported_entries(archive, report):
        if is_picture(entry.name):
            n_pictures += 1
        elif entry.refusal is not Refusal.NESTED:
            n_samples += entry.name.lower().endswith(_SAMPLE_SUFFIXES)
            continue
        item = Item(
            "image",
            f"{archive.name}/{entry.name}",
            path=ArchiveMember(where, entry.name),
            labels=archive_labels(archive.name, entry.name, names),
            source=archive.name,
        )
        if entry.refusal is None:
            yield item
        else:
            report(item.problem(REFUSALS[entry.refusal], entry.refusal))
    if not n_pictures:
        raise ValueError(f"{archive}: no pictures found ({', '.join(sorted(PICTURE_SUFFIXES))})")
    if n_samples:
        reason = (
            f"{n_samples:,} .cls or .json files next to its pictures are not read, as in a folder; for a WebDataset, "
            "use `modalhash encode`"
        )
        report(Problem(reason, source=archive.name, id=archive.name, path=str(where)))


REFUSALS = {
    Refusal.OUTSIDE: ProblemCode.OUTSIDE,
    Refusal.LINK: ProblemCode.NOT_A_FILE,
    Refusal.ENCRYPTED: ProblemCode.UNREADABLE,
    Refusal.NESTED: ProblemCode.NOT_A_FILE,
}


def _reported_entries(archive: Path, report: OnProblem) -> Iterator[ArchiveEntry]:
    """Yield the files of an archive; report damage after the first one."""
    n = 0
    try:
        for entry in archive_entries(archive):
            n += 1
            yield entry
    except ArchiveError as error:
        if not n:
            raise
        report(Problem(error.reason, source=archive.name, path=str(archive), code=ProblemCode.UNREADABLE))


def archive_labels(archive: str, name: str, names: FolderLabels) -> tuple[str, ...]:
    """Return the labels of an archive member: its folders, except a top folder named like the archive."""
    folders = name.split("/")[:-1]
    if folders and folders[0].lower() == archive_stem(archive).lower():
        del folders[0]
    return names.of(folders)


MAX_SECONDS = 2.0
"""Time limit in seconds for the header of one picture."""
MAX_FIELD_LENGTH = 100
_DETAILS, _GPS = 0x8769, 0x8825
"""EXIF tags that are tables."""
_MAKE, _MODEL, _CHANGED, _DIGITIZED, _ORIGINAL, _LENS = 0x010F, 0x0110, 0x0132, 0x9004, 0x9003, 0xA434
_SEQUENTIAL = (".gz", ".tgz")
"""Archives that are read from the start for every member."""


def add_exif(items: Iterable[Item]) -> list[Item]:
    """Add EXIF fields to items of pictures; fields that exist are kept."""
    return [_with_fields(item) if item.path is not None or item.data is not None else item for item in items]


def _with_fields(item: Item) -> Item:
    source = item.path if item.data is None else item.data
    found = exif_fields(source)
    return replace(item, extra={**found, **item.extra}) if found else item


def exif_fields(source: Any) -> dict[str, Any]:
    """Return EXIF fields of a picture, given as a path, an archive member or bytes. Never raises.

    Only the header is read. Invalid fields are left out.

    ==========================  ====================================================================================
    ``taken``                   ``2019-06-14T12:30:00``: DateTimeOriginal, else DateTimeDigitized, else DateTime
    ``camera``                  ``Canon EOS 70D``: Make and Model
    ``lens``                    LensModel
    ``latitude``, ``longitude`` degrees, south and west negative
    ==========================  ====================================================================================

    Examples
    --------
    >>> exif_fields(b"no picture")
    {}
    """
    try:
        with _opened(source) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Pillow, for broken EXIF and large pictures
            return _fields(_read_exif(file))
    except Exception:  # parsers may raise anything on a broken header
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
        opened = open_raw(file)  # many cameras copy EXIF into the preview
    with opened as picture:
        if picture.format == "PNG" and "exif" not in picture.info:
            return Image.Exif()  # EXIF after the pixels would require decoding them
        exif = picture.getexif()
        for part in (_DETAILS, _GPS):
            exif.get_ifd(part)  # read while the file is open
        return exif


def _fields(exif: Any) -> dict[str, Any]:
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
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value if isinstance(value, str) else ""
    text = text.partition("\0")[0]
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())[:MAX_FIELD_LENGTH]


def _camera(make: str, model: str) -> str:
    """Return make and model without repeating the make.

    Examples
    --------
    >>> _camera("Canon", "Canon EOS 70D"), _camera("NIKON CORPORATION", "NIKON D90"), _camera("Apple", "iPhone 12")
    ('Canon EOS 70D', 'NIKON D90', 'Apple iPhone 12')
    """
    if make and model and not model.casefold().startswith(make.split()[0].casefold()):
        return f"{make} {model}"
    return model or make


def _date(value: Any) -> str | None:
    """Convert an EXIF date to ISO 8601; None if it is invalid.

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
    """Return latitude and longitude; None if one is missing or invalid, or both are 0 (no fix)."""
    latitude = _degrees(gps.get(2), _text(gps.get(1)), {"N": 1, "S": -1}, 90)
    longitude = _degrees(gps.get(4), _text(gps.get(3)), {"E": 1, "W": -1}, 180)
    if latitude is None or longitude is None or latitude == longitude == 0:
        return None
    return latitude, longitude


def _degrees(value: Any, side: str, signs: dict[str, int], most: int) -> float | None:
    with suppress(TypeError, ValueError, ArithmeticError, LookupError):
        degrees, minutes, seconds = (float(part) for part in value)
        angle = degrees + minutes / 60 + seconds / 3600
        if min(degrees, minutes, seconds) >= 0 and minutes < 60 and seconds <= 60 and angle <= most:
            return round(angle * signs[side.upper()[:1]], 6)
    return None


MIN_SCORE = 0.6
"""Lowest confidence of a line of text."""
MAX_PICTURE_TEXT = 2000
"""Characters kept of the text in a picture."""
MAX_SIDE = 2000
"""Longer side in pixels to which larger pictures are reduced for the reader."""

Reader = Callable[[Any], str]
"""Callable that takes the path or bytes of a picture and returns the text in it."""


class PictureTextReader:
    """Reads the text in pictures with RapidOCR (extra ``ocr``)."""

    def __init__(self) -> None:
        rapidocr = require("rapidocr", extra="ocr", why="reading the text in pictures")
        limits = {"Global.text_score": MIN_SCORE, "Global.max_side_len": MAX_SIDE}
        self._ocr = rapidocr.RapidOCR(params={**limits, "Global.log_level": "critical"})

    def __call__(self, source: Any) -> str:
        from modalhash.encoders import read_whole_picture

        picture = np.asarray(read_whole_picture(source, at_least=MAX_SIDE))
        found = self._ocr(np.ascontiguousarray(picture[:, :, ::-1]))  # RapidOCR expects BGR
        return "\n".join(found.txts or ())


def reader_of(read_text: bool | Reader) -> Reader | None:
    """Return the reader that ``read_text`` requests, or None; MissingExtraError names the extra."""
    if callable(read_text):
        return read_text
    return PictureTextReader() if read_text else None


def with_picture_text(items: Sequence[Item], read: Reader, progress: Reporter | None = None) -> list[Item]:
    """Add the text in pictures to their items; items that have this field keep it.

    If the reader fails, the picture has no text, and one warning is issued for all.
    """
    done, failures = [], []
    for number, item in enumerate(items, 1):
        if PICTURE_TEXT not in item.extra:
            content = item.content
            try:
                text = read(content.read() if isinstance(content, ArchiveMember) else content)
            except (MemoryError, KeyboardInterrupt):
                raise
            except Exception as error:  # third-party readers may raise anything
                failures.append(f"{item.id}: {error}")
                text = ""
            if text := shortened(text):
                item = replace(item, extra={**item.extra, PICTURE_TEXT: text})
        done.append(item)
        if progress is not None:
            progress("read text", number, len(items))
    if failures:
        text = f"the text in {len(failures):,} pictures could not be read; the first: {failures[0]}"
        warnings.warn(text, UserWarning, stacklevel=3)
    return done


def shortened(text: str) -> str:
    """Return text without unprintable characters and empty lines, cut at the limit."""
    printable = "".join(sign if sign.isprintable() or sign == "\n" else " " for sign in text)
    lines = (" ".join(line.split()) for line in printable.split("\n"))
    return "\n".join(line for line in lines if line)[:MAX_PICTURE_TEXT].rstrip()
