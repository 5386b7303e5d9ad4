"""Tables about the photos of a folder: a row and the photo that it names become one item.

A row names its photo by ``path``, or, without any content, by one of :data:`NAMES`. The path may be relative to the
table or to the folder, a part of either, or one of another machine: what counts is that it ends as the photo's path
does, or the photo's path in its folder as it. Capital letters and the two ways to store accents make no difference, and
``IMG_1`` names ``IMG_1.jpg``. A row with a text is about a photo too where its id, or such a field, is a file's name.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from modalhash._archives import ArchiveMember
from modalhash.engine.picture_folders import is_picture
from modalhash.engine.source_items import Item, OnProblem, Problem, ProblemCode, ReadOptions
from modalhash.engine.source_lines import fill_item, locate, manifest_items

NAMES = ("file", "filename", "file_name", "image", "photo", "picture", "name", "id")
"""Fields that may name a photo in a row with neither ``path`` nor ``text``, the first of them that has a value."""
MAX_NAMED = 3
"""Photos that are listed where a name is that of several."""


class _PhotoPlace(NamedTuple):
    """Where a photo is among those that were read."""

    source: Path
    row: int


class Photos:
    """The photos of folders and archives, which rows of tables are merged with.

    Parameters
    ----------
    items : the photos by folder or archive
    """

    def __init__(self, items: Mapping[Path, list[Item]]) -> None:
        self._items = items
        self._where = " and ".join(f"{path.name}/" if path.is_dir() else path.name for path in items)
        self._taken: dict[_PhotoPlace, Item] = {}
        self._by_path: dict[Path | ArchiveMember | None, _PhotoPlace] = {}
        self._by_name: dict[str, list[_PhotoPlace]] = {}
        self._folders: dict[_PhotoPlace, tuple[str, ...]] = {}
        for source, photos in items.items():
            for row, item in enumerate(photos):
                place = _PhotoPlace(source, row)
                *folders, name = _parts(item.id)
                self._by_path[item.path] = place
                self._folders[place] = tuple(folders)
                for key in dict.fromkeys((name, PurePosixPath(name).stem)):
                    self._by_name.setdefault(key, []).append(place)

    def items(self, source: Path) -> Iterator[Item]:
        """Yield the photos of a folder or an archive, each with what a row says of it."""
        for row, item in enumerate(self._items[source]):
            yield self._taken.get(_PhotoPlace(source, row), item)

    def take(self, table: Path, reads: Mapping[str, str], report: OnProblem, how: ReadOptions) -> Iterator[Item]:
        """Merge the rows of a table that are about photos, and yield its other items; ``how.note`` gets the numbers."""
        n_rows = n_met = n_several = n_named = 0
        for _, line in groupby(manifest_items(table, reads, report, how, names=NAMES), key=lambda item: item.line):
            items = list(line)
            n_rows += 1
            named = next((item for item in items if item.modality == "image" and item.uri is not None), None)
            n_named += named is not None
            found = self._of_text(items[0]) if named is None else self._find(named.uri or "", table.parent)
            if len(found) == 1:
                n_met += 1
                self._merge(found[0], items[0] if named is None else named, report)
            elif found and named is not None:
                n_several += 1
                report(named.problem(ProblemCode.AMBIGUOUS, self._several(named.uri or "", found)))
            elif named is not None:
                yield from self._elsewhere(named, table.parent, report)
            yield from (item for item in items if item is not named)
        if n_met or n_several:
            none = n_named - n_met - n_several
            text = f"{table.name}: {n_met:,} of {n_rows:,} rows are about photos of {self._where}"
            text += f"; {none:,} {'names' if none == 1 else 'name'} no photo there" if none > 0 else ""
            text += f"; {n_several:,} {'names' if n_several == 1 else 'name'} several" if n_several else ""
            how.note(text)

    def _of_text(self, item: Item) -> list[_PhotoPlace]:
        """Return the photo of a row that names it by its id or another field, if it is one alone."""
        names = [item.id, *(str(item.extra[name]) for name in NAMES if name in item.extra)]
        for name in names:
            found = self._find(name, None) if is_picture(name) else []
            if len(found) == 1:
                return found
        return []

    def _find(self, name: str, base: Path | None) -> list[_PhotoPlace]:
        """Return the photos that a name fits best."""
        if base is not None:
            try:
                path = locate(name, base)
                if path in self._by_path:
                    return [self._by_path[path]]
                if path.is_file():
                    return []
            except (OSError, ValueError, RuntimeError):  # which is said of the row
                return []
        *given, last = _parts(name) or [""]
        fits: dict[tuple[int, bool], list[_PhotoPlace]] = {}
        for place in self._by_name.get(last, ()):
            folders = self._folders[place]
            inner = folders[1:]
            common = _common_end(given, folders)
            if common == len(given) or common >= len(inner):
                fits.setdefault((common, tuple(given) == inner), []).append(place)
        return fits[max(fits)] if fits else []

    def _merge(self, place: _PhotoPlace, row: Item, report: OnProblem) -> None:
        """Give a photo what a row says of it: labels in addition to its own, and all else."""
        photo = self._items[place.source][place.row]
        first = self._taken.get(place)
        if first is not None and row.uri is not None:
            other = f" of {first.source}" if first.source != row.source else ""
            reason = f"the photo {photo.id!r} is in line {first.line}{other} already; the first one is taken"
            report(replace(row, path=photo.path).problem(ProblemCode.DUPLICATE, reason))
            return
        if first is not None:  # another text about it
            self._taken[place] = replace(first, labels=tuple(dict.fromkeys((*first.labels, *row.labels))))
            return
        by_path = row.uri is not None and row.id == Path(row.uri).as_posix()
        by_field = row.uri is None and not is_picture(row.id)
        self._taken[place] = replace(
            photo,
            id=photo.id if by_path or by_field else row.id,
            labels=tuple(dict.fromkeys((*row.labels, *photo.labels))),
            extra=row.extra,
            training=row.training,
            line=row.line,
            source=row.source,
        )

    def _several(self, name: str, found: list[_PhotoPlace]) -> str:
        ids = [self._items[place.source][place.row].id for place in found]
        shown = ", ".join(ids[:MAX_NAMED]) + (", …" if len(ids) > MAX_NAMED else "")
        return f"{name!r} is the name of {len(ids):,} photos ({shown}); write the path of the one that is meant"

    def _elsewhere(self, item: Item, base: Path, report: OnProblem) -> Iterator[Item]:
        """Yield a row about a file that is none of the photos; one that is not there goes to ``report``."""
        filled = fill_item(replace(item, uri=None), "path", item.uri, base)
        if not isinstance(filled, Problem):
            yield filled
        elif filled.code is ProblemCode.MISSING_FILE:
            report(replace(filled, reason=f"{filled.reason}, and no photo of {self._where} is called so"))
        else:
            report(filled)


def _parts(name: str) -> list[str]:
    """Return the folders and the file of a path as they are compared."""
    folded = unicodedata.normalize("NFC", name).casefold().replace("\\", "/")
    return [part for part in folded.split("/") if part not in ("", ".", "..")]


def _common_end(one: list[str], other: tuple[str, ...]) -> int:
    """Return how many parts two paths have in common at their ends."""
    n = 0
    while n < min(len(one), len(other)) and one[-1 - n] == other[-1 - n]:
        n += 1
    return n
