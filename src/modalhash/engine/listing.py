"""What is to be encoded, in parts: the inputs of folders, manifests, lists and archives, at paths or fsspec URLs.

A part is what one task encodes and one file holds. The same sources give the same parts, so that a run can go on where
another one was stopped. Lists are read here and their contents where the part is encoded; a tar is a part by itself,
and all of it is read there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from modalhash._archives import OTHER_ARCHIVES, is_archive
from modalhash._imports import require
from modalhash.data import ReadError, ReadLimits, TableFormat, has_columns, is_manifest, manifest_lines, usual_fields
from modalhash.engine._urls import (
    EXTRA,
    base_name,
    exists,
    expand,
    is_folder,
    is_remote,
    local_copy,
    location,
    parent,
    relative_files,
    size_of,
)
from modalhash.engine.folder_names import FolderLabels
from modalhash.engine.picture_folders import PICTURE_SUFFIXES, archive_items, picture_files
from modalhash.engine.source_items import Item, Problem, Seen, drop_duplicates, is_storable
from modalhash.engine.source_lines import check_columns, count_lines, manifest_fields, parse_items
from modalhash.engine.sources import count_items

TEXT_SUFFIX = ".txt"
PART_SIZE = 2048
"""Inputs of a part, except for a tar's."""
BYTES_PER_INPUT = 100_000
"""What an input of a tar is taken to have, to tell how long it will take."""
_LIST_ROWS = 4096


@dataclass(frozen=True)
class BulkSource:
    """One place where inputs are."""

    kind: str
    """``"folder"``, ``"manifest"``, ``"list"`` (Parquet), ``"tar"`` or ``"archive"`` (zip, or a compressed tar)."""
    where: str
    """Its location."""


@dataclass(frozen=True)
class InputPart:
    """What one task encodes into one file."""

    number: int
    root: str
    """The location of the folder that paths are relative to and must lie in; of an archive, its own."""
    entries: tuple[Item | Problem, ...] = ()
    """Inputs in order: items whose ``uri`` is a path as given, or whose file lies in an archive, and what is wrong with
    others."""
    tar_bytes: int | None = None
    """The size of the tar, if it is one: then there are no entries yet."""

    @property
    def n_inputs(self) -> int:
        """The number of inputs; of a tar, a guess from its size."""
        return len(self.entries) if self.tar_bytes is None else max(1, self.tar_bytes // BYTES_PER_INPUT)

    @cached_property
    def file_name(self) -> str:
        """The name of its file: its number, and a digest of its inputs, so that other inputs have another name."""
        told = [self.root, self.tar_bytes, [_described(entry) for entry in self.entries]]
        digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode("ascii")).hexdigest()
        return f"part-{self.number:06d}-{digest[:12]}.parquet"


def open_sources(given: Any) -> list[BulkSource]:
    """Return the sources behind paths, URLs and patterns with ``*``; an error says what may be given."""
    urls = [given] if isinstance(given, str | Path) else list(given)
    if not urls or not all(isinstance(url, str | Path) for url in urls):
        raise TypeError("encode takes folders, manifests, Parquet lists and archives, each as a path or a URL")
    sources = [_source(where) for url in urls for where in expand(str(url))]
    names: dict[str, str] = {}
    for source in sources:
        if source.kind != "list" and source.kind != "manifest":
            name = base_name(source.where)
            if name in names:  # what they hold would get the same ids
                raise ValueError(f"{names[name]} and {source.where} have one name, which ids begin with; rename one")
            names[name] = source.where
    return sources


def _source(where: str) -> BulkSource:
    lower = where.lower()
    if lower.endswith(OTHER_ARCHIVES):
        raise ValueError(f"{where}: archives of this kind are not read; unpack it, or pack the pictures as a .zip")
    suffixes = {".tar": "tar", ".parquet": "list"}
    kind = next((kind for suffix, kind in suffixes.items() if lower.endswith(suffix)), None)
    if kind is None and is_archive(where) and not is_folder(where):
        if is_remote(where):
            raise ValueError(f"{where}: at a URL only a plain .tar is read; copy it here, or pack it as a .tar")
        kind = "archive"
    if kind is None and is_manifest(base_name(where)):
        kind = "manifest"
    if kind is None and is_folder(where):
        kind = "folder"
    if kind is None or not exists(where):
        what = "no such file or folder" if not exists(where) else "not known"
        manifests = ".jsonl, .csv, .tsv, .xlsx or .feather"
        expected = f"a folder, a manifest ({manifests}), a Parquet list (.parquet), a .tar, .zip or .tar.gz"
        raise FileNotFoundError(f"{where}: {what}; expected {expected}, as a path or a URL")
    return BulkSource(kind, where)


def count_inputs(sources: Iterable[BulkSource], reads: Mapping[str, str]) -> int:
    """Return how many inputs there are, for a progress bar: of tars a guess from their size."""
    total = 0
    for source in sources:
        if source.kind == "tar":
            total += InputPart(0, source.where, tar_bytes=size_of(source.where)).n_inputs
        elif source.kind == "archive":
            total += count_items([Path(source.where)])
        elif source.kind == "folder":
            total += sum(1 for _ in _folder_paths(source.where, reads))
        else:
            with local_copy(source.where) as path:
                if source.kind == "manifest":
                    total += max(0, count_lines(path) - has_columns(path))
                else:
                    total += _parquet(path).metadata.num_rows
    return total


def list_parts(
    sources: Iterable[BulkSource],
    reads: Mapping[str, str],
    *,
    fields: Mapping[str, str] | None = None,
    root: str | None = None,
    size: int = PART_SIZE,
    table: TableFormat | None = None,
) -> Iterator[InputPart]:
    """Yield the parts of some sources in order; every item's modality and id is once among those without a problem.

    Parameters
    ----------
    sources : as :func:`open_sources` returns them
    reads : the modalities there are, and whether each reads a ``"text"`` or an ``"image"``
    fields : what manifests and lists call things
    root : the folder that paths in manifests and lists are relative to, and must lie in; by default their own
    size : inputs of a part
    table : how manifests that are tables are written, where that is not to be found
    """
    seen: Seen = {}
    number = 0
    for source in sources:
        if source.kind == "tar":
            yield InputPart(number, source.where, tar_bytes=size_of(source.where))
            number += 1
            continue
        base = source.where if source.kind in ("folder", "archive") else root or parent(source.where)
        entries = _entries(source, reads, fields, seen, table)
        while some := tuple(islice(entries, size)):
            yield InputPart(number, location(base), some)
            number += 1


def _entries(
    source: BulkSource,
    reads: Mapping[str, str],
    fields: Mapping[str, str] | None,
    seen: Seen,
    table: TableFormat | None,
) -> Iterator[Item | Problem]:
    """Yield items and problems in the order of the inputs."""
    problems: list[Problem] = []
    with _items(source, reads, fields, problems.append, table) as items:
        storable = (item for item in items if is_storable(item, problems.append))
        for item in drop_duplicates(storable, problems.append, seen):
            yield from problems
            problems.clear()
            yield item
        yield from problems


@contextmanager
def _items(
    source: BulkSource,
    reads: Mapping[str, str],
    fields: Mapping[str, str] | None,
    report: Any,
    table: TableFormat | None,
) -> Iterator[Any]:
    if source.kind == "folder":
        yield _folder_items(source.where, reads)
        return
    if source.kind == "archive":
        yield archive_items(Path(source.where), reads, report, FolderLabels())
        return
    with local_copy(source.where) as path:
        if source.kind == "manifest":
            fields = manifest_fields(path, fields, table)
            lines = manifest_lines(path, lambda number, reason: report(Problem(reason, number, path.name)), table=table)
        else:
            fields = usual_fields(dict.fromkeys(_parquet(path).schema_arrow.names, ""), fields)
            lines = _list_rows(path, source.where, fields)
        yield parse_items(lines, reads, report, base=None, fields=fields, source=path.name)


def _folder_items(folder: str, reads: Mapping[str, str]) -> Iterator[Item]:
    """Yield the pictures and texts of a folder; the names of its subfolders are the labels."""
    name, names = base_name(folder), FolderLabels()
    for relative in _folder_paths(folder, reads):
        labels = names.of(relative.split("/")[:-1])
        modality = "text" if relative.lower().endswith(TEXT_SUFFIX) else "image"
        yield Item(modality, f"{name}/{relative}", uri=relative, labels=labels, source=name)


def _folder_paths(folder: str, reads: Mapping[str, str]) -> Iterator[str]:
    wanted = set(PICTURE_SUFFIXES) if reads.get("image") == "image" else set()
    wanted |= {TEXT_SUFFIX} if reads.get("text") == "text" else set()
    if not wanted:
        raise ValueError(f"{folder} is a folder, and there is no encoder that reads pictures for 'image' or texts")
    if is_remote(folder):
        yield from (one for one in relative_files(folder) if Path(one).suffix.lower() in wanted)
    else:
        base = Path(folder)
        yield from (path.relative_to(base).as_posix() for path in picture_files(base, wanted))


def _list_rows(path: Path, where: str, fields: Mapping[str, str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the numbered rows of a Parquet file, without binary columns: a list names files, it does not hold them."""
    types = require("pyarrow.types", extra=EXTRA, why="reading Parquet files")
    file = _parquet(path)
    binary = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    columns = [field.name for field in file.schema_arrow if not any(test(field.type) for test in binary)]
    no_json = (types.is_temporal, types.is_decimal)  # dates and the like are stored as texts
    as_text = {field.name for field in file.schema_arrow if any(test(field.type) for test in no_json)}
    check_columns(path, columns, fields)
    _check_memory(file, path, columns)
    number = 0
    try:
        for batch in file.iter_batches(batch_size=_LIST_ROWS, columns=columns):
            for row in batch.to_pylist():
                number += 1
                texts = {name: str(row[name]) for name in as_text if row[name] is not None}
                yield number, {**row, **texts}
    except (OSError, ValueError) as error:
        raise ReadError(where, f"damaged after row {number:,} ({error})") from error


def _parquet(path: Path) -> Any:
    parquet = require("pyarrow.parquet", extra=EXTRA, why="reading Parquet files")
    try:
        return parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise ReadError(path, f"not a whole Parquet file ({error})") from error


def _check_memory(file: Any, path: Path, columns: list[str]) -> None:
    """Refuse a file of which a row group would take more memory than a file of its size may."""
    limits = ReadLimits()
    for group in range(file.metadata.num_row_groups):
        chunks = [file.metadata.row_group(group).column(number) for number in range(file.metadata.num_columns)]
        own = [chunk for chunk in chunks if chunk.path_in_schema.split(".")[0] in columns]
        limits.check(sum(chunk.total_uncompressed_size for chunk in own), path, f"row group {group}")


def _described(entry: Item | Problem) -> list[Any]:
    if isinstance(entry, Problem):
        return [entry.reason, entry.source, entry.line, entry.id]
    uri = entry.uri if entry.path is None else str(entry.path)
    return [entry.modality, entry.id, entry.text, uri, entry.labels, dict(entry.extra)]
