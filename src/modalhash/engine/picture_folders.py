"""Folders and archives of pictures as items."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from pathlib import Path

from modalhash._archives import (
    ArchiveEntry,
    ArchiveError,
    ArchiveMember,
    Refusal,
    archive_entries,
    archive_stem,
)
from modalhash._decoding import RAW_SUFFIXES
from modalhash.engine.folder_names import FolderLabels
from modalhash.engine.source_items import Item, OnProblem, Problem, ProblemCode

PICTURE_SUFFIXES = frozenset({
    ".jpg", ".jpeg", ".jfif", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".avif", ".heic", ".heif", ".hif",
    *RAW_SUFFIXES,
})  # fmt: skip
_SAMPLE_SUFFIXES = (".cls", ".json")
"""Of files that have the labels of a picture in the tars of WebDataset."""


def is_picture(name: str) -> bool:
    """Return whether a file is named like a picture."""
    return Path(name).suffix.lower() in PICTURE_SUFFIXES


def picture_files(folder: Path, suffixes: Container[str] = PICTURE_SUFFIXES) -> Iterator[Path]:
    """Yield files that are named like pictures, in order of their names; hidden ones are passed over."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from picture_files(path, suffixes)
        elif path.suffix.lower() in suffixes:
            yield path


def picture_items(
    folder: Path, reads: Mapping[str, str], names: FolderLabels, *, only: Container[Path] | None = None
) -> Iterator[Item]:
    """Yield the pictures of a folder, or some; names of its subfolders are labels, as far as they say something.

    Of the folder ``photos``, ``boats/red/1.jpg`` is ``photos/boats/red/1.jpg`` with the labels boats and red.
    """
    if reads.get("image") != "image":
        raise ValueError(f"{folder} is a folder of pictures, and there is no encoder that reads pictures for 'image'")
    name = folder.resolve().name
    for path in picture_files(folder):
        if only is not None and path not in only:
            continue
        relative = path.relative_to(folder)
        labels = names.of(relative.parts[:-1])
        yield Item("image", f"{name}/{relative.as_posix()}", path=path.resolve(), labels=labels, source=name)


def archive_items(archive: Path, reads: Mapping[str, str], report: OnProblem, names: FolderLabels) -> Iterator[Item]:
    """Yield the pictures of a zip or tar as those of a folder, to be read where they lie.

    Of the archive ``photos.zip``, ``boats/red/1.jpg`` is ``photos.zip/boats/red/1.jpg`` with the labels boats and red.
    Packing the folder ``photos`` as ``photos.zip`` puts that folder into it, which is then no label.
    """
    if reads.get("image") != "image":
        raise ValueError(f"{archive} has pictures, and there is no encoder that reads pictures for 'image'")
    where, n_pictures, beside = archive.resolve(), 0, 0
    for entry in _reported_entries(archive, report):
        if is_picture(entry.name):
            n_pictures += 1
        elif entry.refusal is not Refusal.NESTED:
            beside += entry.name.lower().endswith(_SAMPLE_SUFFIXES)
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
        raise ValueError(f"{archive}: there are no pictures in it ({', '.join(sorted(PICTURE_SUFFIXES))})")
    if beside:
        reason = (
            f"{beside:,} .cls or .json files beside its pictures are not read, as in a folder; if it is a WebDataset, "
            "`modalhash encode` reads them"
        )
        report(Problem(reason, source=archive.name, id=archive.name, path=str(where)))


REFUSALS = {
    Refusal.OUTSIDE: ProblemCode.OUTSIDE,
    Refusal.LINK: ProblemCode.NOT_A_FILE,
    Refusal.ENCRYPTED: ProblemCode.UNREADABLE,
    Refusal.NESTED: ProblemCode.NOT_A_FILE,
}
"""What a member that is not read is to a program."""


def _reported_entries(archive: Path, report: OnProblem) -> Iterator[ArchiveEntry]:
    """Yield the files of an archive; what is damaged after some of them is a problem."""
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
    """Return the labels of a file in an archive: the folders that it lies in, but for one named like the archive."""
    folders = name.split("/")[:-1]
    if folders and folders[0].lower() == archive_stem(archive).lower():
        del folders[0]
    return names.of(folders)
