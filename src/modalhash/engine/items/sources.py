"""Items from sources: manifests, folders and archives of pictures, data sets, frames and dicts.

Items (:class:`Item`) come in batches of one modality. Invalid items are reported as a :class:`Problem` and skipped.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from modalhash.core.archives import OTHER_ARCHIVES, ArchiveError, ArchiveMember, archive_entries, is_archive
from modalhash.core.frames import is_frame
from modalhash.core.validation import check_choice
from modalhash.data import TableFormat, has_columns, holds_features, is_manifest
from modalhash.engine.items.item import (
    Item,
    ItemBatch,
    OnProblem,
    Problem,
    ProblemCode,
    ReadOptions,
    drop_duplicates,
    is_storable,
    unknown_modality,
)
from modalhash.engine.items.lines import count_lines, fill_item, given_items, locate, manifest_items
from modalhash.engine.items.photos import (
    FolderLabels,
    add_exif,
    archive_items,
    is_picture,
    picture_files,
    picture_items,
)

if TYPE_CHECKING:
    from modalhash.data import Dataset
    from modalhash.encoders import Encoder


NAMES = ("file", "filename", "file_name", "image", "photo", "picture", "name", "id")
"""Fields that may name a photo in a row without ``path`` and ``text``, in order of precedence."""
MAX_NAMED = 3


class _PhotoPlace(NamedTuple):
    source: Path
    row: int


class Photos:
    """The photos of folders and archives, with which rows of tables are merged.

    A row names its photo by ``path`` or one of :data:`NAMES`. Names match if one path ends with the other, so that
    paths may be relative to the table or the folder, or come from another machine. Case, Unicode normalization and a
    missing suffix are ignored. A row with a text belongs to a photo if its id, or one of these fields, is the name of a
    picture.
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
        for row, item in enumerate(self._items[source]):
            yield self._taken.get(_PhotoPlace(source, row), item)

    def take(self, table: Path, input_kinds: Mapping[str, str], report: OnProblem, how: ReadOptions) -> Iterator[Item]:
        """Merge the rows of a table that name photos, and yield its other items; ``how.note`` gets a summary."""
        n_rows = n_met = n_several = n_named = 0
        for _, line in groupby(
            manifest_items(table, input_kinds, report, how, names=NAMES), key=lambda item: item.line
        ):
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
            text = f"{table.name}: {n_met:,} of {n_rows:,} rows name photos of {self._where}"
            text += f"; {none:,} {'names' if none == 1 else 'name'} no photo there" if none > 0 else ""
            text += f"; {n_several:,} {'names' if n_several == 1 else 'name'} several" if n_several else ""
            how.note(text)

    def _of_text(self, item: Item) -> list[_PhotoPlace]:
        """Return the photo that a row names by its id or another field, if it is unambiguous."""
        names = [item.id, *(str(item.extra[name]) for name in NAMES if name in item.extra)]
        for name in names:
            found = self._find(name, None) if is_picture(name) else []
            if len(found) == 1:
                return found
        return []

    def _find(self, name: str, base: Path | None) -> list[_PhotoPlace]:
        if base is not None:
            try:
                path = locate(name, base)
                if path in self._by_path:
                    return [self._by_path[path]]
                if path.is_file():
                    return []
            except (OSError, ValueError, RuntimeError):  # reported for the row
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
        """Add the labels of a row to those of a photo, and replace its other fields."""
        photo = self._items[place.source][place.row]
        first = self._taken.get(place)
        if first is not None and row.uri is not None:
            other = f" of {first.source}" if first.source != row.source else ""
            reason = f"the photo {photo.id!r} is already in line {first.line}{other}; the first one is used"
            report(replace(row, path=photo.path).problem(ProblemCode.DUPLICATE, reason))
            return
        if first is not None:  # another text about this photo
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
        return f"{name!r} is the name of {len(ids):,} photos ({shown}); give the path of one"

    def _elsewhere(self, item: Item, base: Path, report: OnProblem) -> Iterator[Item]:
        """Yield the item of a file that is not among the photos; report a missing one."""
        filled = fill_item(replace(item, uri=None), "path", item.uri, base)
        if not isinstance(filled, Problem):
            yield filled
        elif filled.code is ProblemCode.MISSING_FILE:
            report(replace(filled, reason=f"{filled.reason}, and {self._where} has no photo of this name"))
        else:
            report(filled)


def _parts(name: str) -> list[str]:
    folded = unicodedata.normalize("NFC", name).casefold().replace("\\", "/")
    return [part for part in folded.split("/") if part not in ("", ".", "..")]


def _common_end(one: list[str], other: tuple[str, ...]) -> int:
    n = 0
    while n < min(len(one), len(other)) and one[-1 - n] == other[-1 - n]:
        n += 1
    return n


def open_source(
    source: Any, *, fields: Mapping[str, Any] | None = None, table: TableFormat | None = None
) -> list[Path] | Dataset | Iterable[Any]:
    """Return paths of manifests, folders and archives, a data set given by name or path, or the source itself.

    A table with features, in a file or in memory, is read as a data set with ``fields`` and ``table``.
    """

    def is_path(path: Path) -> bool:
        if path.is_dir():
            return next(picture_files(path), None) is not None
        return is_manifest(path) or (is_archive(path) and path.is_file())

    if isinstance(source, list | tuple) and source and all(isinstance(one, str | Path) for one in source):
        if len(source) == 1:
            return open_source(source[0], fields=fields, table=table)
        paths = [Path(one) for one in source]
        if wrong := [path for path in paths if not is_path(path)]:
            raise _unknown_archive(wrong[0]) or ValueError(
                f"{wrong[0]}: several sources must be manifests, folders or archives of pictures"
            )
        return paths
    from modalhash.data import NAMED, ReadError, is_named, load_dataset, read

    if has_columns(source) and holds_features(source, fields, table):
        return read(source, table=table, **(fields or {}))
    if is_frame(source):
        return [source]
    if not isinstance(source, str | Path):
        return source
    path = Path(source)
    if is_path(path):
        return [path]
    if error := _unknown_archive(path):
        raise error
    if path.exists():
        try:
            return read(path)
        except ReadError as error:
            if path.is_dir():
                error.add_note("It contains no pictures either.")
            raise
    if is_named(str(source)):
        return load_dataset(str(source))
    raise FileNotFoundError(
        f"{path}: no such file, and no data set of that name ({', '.join(NAMED)}). "
        "Expected a manifest (.jsonl, .csv, .tsv, .xlsx, .parquet, .feather), a folder or an archive of pictures "
        "(.zip, .tar, .tar.gz), a file with features, or one of these names"
    )


def _unknown_archive(path: Path) -> ValueError | None:
    if not path.name.lower().endswith(OTHER_ARCHIVES) or not path.is_file():
        return None
    kind = "".join(path.suffixes[-2:])
    return ValueError(
        f"{path}: this kind of archive ({kind}) is not supported; unpack it, or pack the pictures as a .zip"
    )


def count_items(source: Any) -> int:
    if _is_paths(source):
        return sum(_count_path(path) for path in source)
    if hasattr(source, "sizes"):
        return int(sum(source.sizes.values()))
    return len(source) if hasattr(source, "__len__") else 0


def _count_path(path: Path) -> int:
    if path.is_dir():
        return sum(1 for _ in picture_files(path))
    if is_archive(path):
        try:
            return sum(1 for entry in archive_entries(path) if is_picture(entry.name))
        except ArchiveError:  # reported when it is read
            return 0
    return count_lines(path)


def choose_encoders(
    source: Any, given: Mapping[str, Any] | None, *, quality: str | None = None, download: bool = False
) -> dict[str, Encoder]:
    """Return an encoder per modality: those given, by name or instance, and defaults of ``quality``."""
    from modalhash.encoders import READS, Precomputed, encoder_for, encoders_of

    chosen: dict[str, Any] = dict(given or {})
    defaults = encoders_of(quality)
    if hasattr(source, "modalities"):
        for modality in source.modalities:
            if modality not in chosen:
                default = defaults.get(modality) if _has_raw_items(source, modality) else None
                chosen[modality] = default or Precomputed(source=source.name)
    else:
        chosen = {**defaults, **chosen}
    encoders: dict[str, Encoder] = {
        modality: encoder_for(modality, value, download=download) if isinstance(value, str | Path) else value
        for modality, value in chosen.items()
    }
    for modality, encoder in encoders.items():
        check_choice(encoder.reads, f"encoder of {modality!r}: reads", READS)
    return encoders


def read_batches(
    source: Any,
    input_kinds: Mapping[str, str],
    report: OnProblem,
    how: ReadOptions | None = None,
    *,
    size: int | None = None,
) -> Iterator[ItemBatch]:
    """Yield the valid items of an opened source in batches of one modality, up to ``size`` items each."""
    how = how or ReadOptions()
    if hasattr(source, "modalities"):
        for modality in source.modalities:
            yield from _dataset_batches(source, modality, input_kinds, report, size)
        return
    items: Iterator[Item]
    if _is_paths(source):
        items = _path_items(source, input_kinds, report, how)
    else:
        items = given_items(source, input_kinds, report, how.fields)
    waiting: dict[str, list[Item]] = {}
    for item in drop_duplicates((item for item in items if is_storable(item, report)), report):
        waiting.setdefault(item.modality, []).append(item)
        if size is not None and len(waiting[item.modality]) == size:
            yield _batch(item.modality, waiting.pop(item.modality), how)
    for modality, rest in waiting.items():
        yield _batch(modality, rest, how)


def _path_items(
    paths: list[Path], input_kinds: Mapping[str, str], report: OnProblem, how: ReadOptions
) -> Iterator[Item]:
    """Yield the items of manifests, folders and archives in order; rows about photos are merged."""
    names = FolderLabels(every=how.every_folder)

    def pictures(path: Path) -> Iterator[Item]:
        return (
            picture_items(path, input_kinds, names)
            if path.is_dir()
            else archive_items(path, input_kinds, report, names)
        )

    tables = [path for path in paths if not path.is_dir() and not is_archive(path)]
    if tables and len(tables) < len(paths):
        photos = Photos({path: list(pictures(path)) for path in paths if path not in tables})
        rows = {path: list(photos.take(path, input_kinds, report, how)) for path in tables}
        for path in paths:
            yield from rows[path] if path in rows else photos.items(path)
    else:
        for path in paths:
            yield from manifest_items(path, input_kinds, report, how) if tables else pictures(path)
    if text := names.note():
        how.note(text)


def _batch(modality: str, items: list[Item], how: ReadOptions) -> ItemBatch:
    items = add_exif(items) if how.exif else items
    return ItemBatch(modality, items, [item.content for item in items])


def _is_paths(source: Any) -> bool:
    return isinstance(source, list) and bool(source) and all(isinstance(one, Path) for one in source)


def _dataset_batches(
    dataset: Dataset, modality: str, input_kinds: Mapping[str, str], report: OnProblem, size: int | None
) -> Iterator[ItemBatch]:
    ids = [str(id) for id in dataset.ids[modality].tolist()]
    if modality not in input_kinds:
        reason = unknown_modality(modality, input_kinds)
        for id in ids:
            report(Problem(reason, modality=modality, id=id, code=ProblemCode.UNKNOWN_MODALITY))
        return
    raw = dataset.raw.get(modality)
    contents: Any
    if input_kinds[modality] == "array":
        if modality not in dataset.features:
            raise ValueError(f"data set {dataset.name!r}: {modality!r} has no features, which its encoder requires")
        contents = dataset.features[modality]
    elif raw is None:
        raise ValueError(f"data set {dataset.name!r}: {modality!r} has no raw items, which its encoder requires")
    elif input_kinds[modality] == "text":
        contents = raw.tolist()
    else:
        contents = [_base_folder(dataset) / path for path in raw.tolist()]
    names = np.array(dataset.class_names, dtype=object)
    labels = dataset.labels.get(modality)
    training = np.isin(dataset.ids[modality], dataset.split.training[modality]) if dataset.split else None
    origin = dataset.origins.get(modality)
    lines = {} if origin is None else {str(id): line for id, line in origin.lines_by_id().items()}
    for start in range(0, len(ids), size or len(ids) or 1):
        rows = range(start, min(start + (size or len(ids)), len(ids)))
        items = [
            Item(
                modality,
                ids[row],
                text=str(raw[row]) if raw is not None and modality == "text" else None,
                path=contents[row] if input_kinds[modality] == "image" else None,
                uri=str(raw[row]) if raw is not None and modality != "text" else None,
                labels=() if labels is None else tuple(map(str, names[labels[row]])),
                training=training is None or bool(training[row]),
                line=lines.get(ids[row]),
                source=Path(origin.pieces[0]).name if lines and origin is not None else None,
            )
            for row in rows
        ]
        batch = ItemBatch(modality, items, contents[rows.start : rows.stop])
        columns = None if origin is None else origin.columns
        finite = _report_non_finite_features(batch, columns, report)
        usable = [row for row, item in enumerate(items) if row in finite and is_storable(item, report)]
        if len(usable) < len(items):
            batch = ItemBatch(modality, [items[row] for row in usable], batch.contents_of(usable))
        if usable:
            yield batch


def _report_non_finite_features(batch: ItemBatch, columns: Sequence[str] | None, report: OnProblem) -> Container[int]:
    """Report items with NaN or infinite features; return the other rows."""
    values = batch.contents
    rows = range(len(batch.items))
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f" or values.ndim != 2:
        return rows
    odd = ~np.isfinite(values)
    bad = np.flatnonzero(odd.any(axis=1)).tolist()
    for row in bad:
        column = int(np.argmax(odd[row]))
        name = f"column {columns[column]!r}" if columns is not None else f"feature {column}"
        reason = f"{name} is {values[row, column]}; expected a finite number"
        report(batch.items[row].problem(ProblemCode.UNREADABLE, reason))
    return set(rows) - set(bad) if bad else rows


def _has_raw_items(dataset: Dataset, modality: str) -> bool:
    """Return whether there are texts, or pictures of which the first exists."""
    raw = dataset.raw.get(modality)
    if raw is None or not len(raw):
        return False
    return modality == "text" or (_base_folder(dataset) / str(raw[0])).is_file()


def _base_folder(dataset: Dataset) -> Path:
    return Path(str(dataset.provenance.get("base", "."))).absolute()
