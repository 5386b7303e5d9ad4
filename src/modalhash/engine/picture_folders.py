"""A folder of pictures as a source of items: the names of its subfolders are the labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from modalhash.engine.raw_items import Item

PICTURES = frozenset({".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff"})


def has_pictures(folder: Path) -> bool:
    """Whether there is a picture in the folder or below it."""
    return next(pictures(folder), None) is not None


def pictures(folder: Path) -> Iterator[Path]:
    """Files that are named like pictures, in order of their names; hidden ones are passed over."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from pictures(path)
        elif path.suffix.lower() in PICTURES:
            yield path


def picture_items(folder: Path, reads: Mapping[str, str]) -> Iterator[Item]:
    """Of the folder ``photos``, ``boats/red/1.jpg`` is ``photos/boats/red/1.jpg`` with the labels boats and red."""
    if reads.get("image") != "image":
        raise ValueError(f"{folder} is a folder of pictures, and there is no encoder that reads pictures for 'image'")
    name = folder.resolve().name
    for path in pictures(folder):
        place = path.relative_to(folder)
        labels = tuple(dict.fromkeys(place.parts[:-1]))
        yield Item("image", f"{name}/{place.as_posix()}", path=path.resolve(), labels=labels, source=name)
