"""Where items come from: manifests, folders and archives of pictures, data sets, and fields given as dicts.

Whatever the source, it becomes items (:class:`Item`), in batches of one modality. What is wrong with an item is
reported as a :class:`Problem`, and the others go on.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from modalhash._archives import OTHER_ARCHIVES, ArchiveError, archive_entries, is_archive
from modalhash.data import TableFormat, has_columns, holds_features, is_manifest
from modalhash.engine.exif import add_exif
from modalhash.engine.folder_names import FolderLabels
from modalhash.engine.photo_tables import Photos
from modalhash.engine.picture_folders import archive_items, is_picture, picture_files, picture_items
from modalhash.engine.source_items import (
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
from modalhash.engine.source_lines import count_lines, given_items, manifest_items
from modalhash.frames import is_frame
from modalhash.validation import check_choice

if TYPE_CHECKING:
    from modalhash.data import Dataset
    from modalhash.encoders import Encoder


def open_source(
    source: Any, *, fields: Mapping[str, Any] | None = None, table: TableFormat | None = None
) -> list[Path] | Dataset | Iterable[Any]:
    """Return paths of manifests, folders and archives, the data set behind a name or path, or the source itself.

    A table with features, in a file or in memory, is a data set; ``fields`` and ``table`` tell how to read it.
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
                f"{wrong[0]}: of several sources each is a manifest, or a folder or an archive of pictures"
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
                error.add_note("There is no picture in it either.")
            raise
    if is_named(str(source)):
        return load_dataset(str(source))
    raise FileNotFoundError(
        f"{path}: no such file, and no data set of that name ({', '.join(NAMED)}). "
        "Expected a manifest (.jsonl, .csv, .tsv, .xlsx, .parquet, .feather), a folder or an archive of pictures "
        "(.zip, .tar, .tar.gz), a file with features, or one of these names"
    )


def _unknown_archive(path: Path) -> ValueError | None:
    """Say that an archive is of a kind that is not read."""
    if not path.name.lower().endswith(OTHER_ARCHIVES) or not path.is_file():
        return None
    kind = "".join(path.suffixes[-2:])
    return ValueError(f"{path}: archives of this kind ({kind}) are not read; unpack it, or pack the pictures as a .zip")


def count_items(source: Any) -> int:
    """Return the number of lines or items of an opened source, or 0 if it does not say."""
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
        except ArchiveError:  # which is said when it is read
            return 0
    return count_lines(path)


def choose_encoders(
    source: Any, given: Mapping[str, Any] | None, *, quality: str | None = None, download: bool = False
) -> dict[str, Encoder]:
    """Return an encoder per modality: those given, by name or as they are, and those of a quality for the others."""
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
    reads: Mapping[str, str],
    report: OnProblem,
    how: ReadOptions | None = None,
    *,
    size: int | None = None,
) -> Iterator[ItemBatch]:
    """Yield the usable items of an opened source, up to ``size`` of one modality at a time (None: all at once)."""
    how = how or ReadOptions()
    if hasattr(source, "modalities"):
        for modality in source.modalities:
            yield from _dataset_batches(source, modality, reads, report, size)
        return
    items: Iterator[Item]
    if _is_paths(source):
        items = _path_items(source, reads, report, how)
    else:
        items = given_items(source, reads, report, how.fields)
    waiting: dict[str, list[Item]] = {}
    for item in drop_duplicates((item for item in items if is_storable(item, report)), report):
        waiting.setdefault(item.modality, []).append(item)
        if size is not None and len(waiting[item.modality]) == size:
            yield _batch(item.modality, waiting.pop(item.modality), how)
    for modality, rest in waiting.items():
        yield _batch(modality, rest, how)


def _path_items(paths: list[Path], reads: Mapping[str, str], report: OnProblem, how: ReadOptions) -> Iterator[Item]:
    """Yield the items of manifests, folders and archives in order; rows about photos of the others are merged."""
    names = FolderLabels(every=how.every_folder)

    def pictures(path: Path) -> Iterator[Item]:
        return picture_items(path, reads, names) if path.is_dir() else archive_items(path, reads, report, names)

    tables = [path for path in paths if not path.is_dir() and not is_archive(path)]
    if tables and len(tables) < len(paths):
        photos = Photos({path: list(pictures(path)) for path in paths if path not in tables})
        rows = {path: list(photos.take(path, reads, report, how)) for path in tables}
        for path in paths:
            yield from rows[path] if path in rows else photos.items(path)
    else:
        for path in paths:
            yield from manifest_items(path, reads, report, how) if tables else pictures(path)
    if text := names.note():
        how.note(text)


def _batch(modality: str, items: list[Item], how: ReadOptions) -> ItemBatch:
    items = add_exif(items) if how.exif else items
    return ItemBatch(modality, items, [item.content for item in items])


def _is_paths(source: Any) -> bool:
    return isinstance(source, list) and bool(source) and all(isinstance(one, Path) for one in source)


# -- data sets


def _dataset_batches(
    dataset: Dataset, modality: str, reads: Mapping[str, str], report: OnProblem, size: int | None
) -> Iterator[ItemBatch]:
    ids = [str(id) for id in dataset.ids[modality].tolist()]
    if modality not in reads:
        reason = unknown_modality(modality, reads)
        for id in ids:
            report(Problem(reason, modality=modality, id=id, code=ProblemCode.UNKNOWN_MODALITY))
        return
    raw = dataset.raw.get(modality)
    contents: Any
    if reads[modality] == "array":
        if modality not in dataset.features:
            raise ValueError(f"data set {dataset.name!r}: {modality!r} has no features, which its encoder takes")
        contents = dataset.features[modality]
    elif raw is None:
        raise ValueError(f"data set {dataset.name!r}: {modality!r} has no raw items, which its encoder takes")
    elif reads[modality] == "text":
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
                path=contents[row] if reads[modality] == "image" else None,
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
        finite = _report_features_that_are_none(batch, columns, report)
        usable = [row for row, item in enumerate(items) if row in finite and is_storable(item, report)]
        if len(usable) < len(items):
            batch = ItemBatch(modality, [items[row] for row in usable], batch.contents_of(usable))
        if usable:
            yield batch


def _report_features_that_are_none(
    batch: ItemBatch, columns: Sequence[str] | None, report: OnProblem
) -> Container[int]:
    """Report the items with features that are NaN or infinite, by the name of the first; return the other rows."""
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
    """Return whether there are texts, or names of pictures of which the first one is there."""
    raw = dataset.raw.get(modality)
    if raw is None or not len(raw):
        return False
    return modality == "text" or (_base_folder(dataset) / str(raw[0])).is_file()


def _base_folder(dataset: Dataset) -> Path:
    return Path(str(dataset.provenance.get("base", "."))).absolute()
