"""Inputs of bulk encoding, in parts: from folders, manifests, Parquet lists and archives, at paths or fsspec URLs.

A part is encoded by one task into one file. The same sources give the same parts, so that an interrupted run can be
resumed. Lists are read here, and their files where the part is encoded; a tar is one part.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from modalhash.core.archives import (
    MAX_MEMBER_BYTES,
    OTHER_ARCHIVES,
    ArchiveError,
    ArchiveMember,
    Refusal,
    is_archive,
    is_hidden,
    leads_out,
    tar_members,
    too_large,
)
from modalhash.core.imports import require
from modalhash.data import ReadError, ReadLimits, TableFormat, has_columns, is_manifest, manifest_lines, usual_fields
from modalhash.engine.items.item import Item, Problem, ProblemCode, Seen, drop_duplicates, is_storable, unknown_modality
from modalhash.engine.items.lines import (
    LINE_FIELDS,
    BadLineError,
    check_columns,
    count_lines,
    manifest_fields,
    parse_common,
    parse_items,
)
from modalhash.engine.items.photos import (
    PICTURE_SUFFIXES,
    REFUSALS,
    FolderLabels,
    archive_items,
    archive_labels,
    is_picture,
    picture_files,
)
from modalhash.engine.items.sources import count_items
from modalhash.engine.items.urls import (
    EXTRA,
    base_name,
    exists,
    expand,
    is_folder,
    is_remote,
    local_copy,
    location,
    opened,
    parent,
    relative_files,
    size_of,
)
from modalhash.engine.settings import EncodeOptions

MAX_TEXT_BYTES = 2**20
_MODALITIES = {**{suffix.removeprefix("."): "image" for suffix in PICTURE_SUFFIXES}, "txt": "text"}
_FIELDS = ("cls", "json")
_MAX_PICTURES = 16
"""Pictures of a sample held in memory before they are taken for photos (``trip.1.jpg``, ``trip.2.jpg`` …)."""
_CONTENTS = ("path", "text", "data", "image")


@dataclass
class _TarSample:
    key: str
    files: dict[str, bytes | Problem] = field(default_factory=dict)
    """By suffix after the first dot."""
    pictures: dict[str, bytes | Problem] = field(default_factory=dict)
    """By name."""

    @property
    def is_photos(self) -> bool:
        """True if there are only pictures, without text, label or fields."""
        return bool(self.pictures) and not {"txt", *_FIELDS} & self.files.keys()


def tar_items(
    where: str, input_kinds: Mapping[str, str], fields: Mapping[str, str] | None = None
) -> Iterator[Item | Problem]:
    """Yield the pictures and texts of an uncompressed WebDataset tar with their contents, and problems.

    Files with the same name up to the first dot are one sample: ``000017.jpg`` and ``000017.txt`` are a picture and a
    text with one id, ``000017.cls`` is a label, ``000017.json`` an object with labels and other fields. A picture
    without any of these is a photo with its name as id and its folders as labels. Members are read in sequence and
    never unpacked.
    """
    tar, seen = base_name(where), set()
    for sample in _samples(where):
        if isinstance(sample, Problem):
            yield sample
            continue
        for entry in _sample_items(sample, tar, where, input_kinds, fields or {}):
            if isinstance(entry, Item):
                if entry.key in seen:
                    reason = f"the id {entry.id!r} occurs twice in this tar; the first one is used"
                    entry = entry.problem(ProblemCode.DUPLICATE, reason)
                else:
                    seen.add(entry.key)
            yield entry


def _samples(where: str) -> Iterator[_TarSample | Problem]:
    name = base_name(where)
    with opened(where) as file:
        sample: _TarSample | None = None
        damage: str | None = None
        try:
            for tar, member in tar_members(file):
                inner = member.name.removeprefix("./")
                if member.isdir() or is_hidden(inner):
                    continue
                key, ending = _split_name(inner)
                known = ending.lower() in (*_MODALITIES, *_FIELDS)
                if not known and not is_picture(inner):
                    continue
                if sample is None or sample.key != key or (len(sample.pictures) >= _MAX_PICTURES and sample.is_photos):
                    if sample is not None:
                        yield sample
                    sample = _TarSample(key)
                content = _read_member(tar, member, name)
                if known:
                    sample.files[ending.lower()] = content
                if is_picture(inner):
                    sample.pictures[inner] = content
        except (ArchiveError, tarfile.TarError) as error:  # storage errors raise
            damage = getattr(error, "reason", str(error))
        if sample is not None:
            yield sample
        if damage is not None:
            yield Problem(damage, source=name, id=name, path=where, code=ProblemCode.UNREADABLE)


def _split_name(name: str) -> tuple[str, str]:
    folder, slash, last = name.rpartition("/")
    stem, _, ending = last.partition(".")
    return f"{folder}{slash}{stem}", ending


def _read_member(tar: tarfile.TarFile, member: tarfile.TarInfo, source: str) -> bytes | Problem:
    name = member.name.removeprefix("./")
    refusal = Refusal.OUTSIDE if leads_out(name) else None
    if not member.isreg() or member.issparse():
        refusal = refusal or Refusal.LINK
    if refusal is not None:
        return Problem(refusal, source=source, id=name, code=REFUSALS[refusal])
    if member.size > MAX_MEMBER_BYTES:
        return Problem(too_large(member.size, MAX_MEMBER_BYTES), source=source, id=name, code=ProblemCode.UNREADABLE)
    content = tar.extractfile(member)
    assert content is not None  # a regular file
    data = content.read()
    if len(data) < member.size:
        raise ArchiveError(f"the tar is truncated within {name}; the rest is lost", source)
    return data


def decode_text(data: bytes) -> str:
    """Decode UTF-8 text; ValueError if it is too long or not UTF-8."""
    if len(data) > MAX_TEXT_BYTES:
        raise ValueError(f"longer than the limit of {MAX_TEXT_BYTES:,} bytes for a text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("not UTF-8; save the file as UTF-8") from None


def _sample_items(
    sample: _TarSample, tar: str, where: str, input_kinds: Mapping[str, str], fields: Mapping[str, str]
) -> Iterator[Item | Problem]:
    if sample.is_photos:
        for name, data in sample.pictures.items():
            labels = archive_labels(tar, name, FolderLabels())
            item = Item("image", f"{tar}/{name}", uri=_uri(where, name), labels=labels, source=tar)
            yield data if isinstance(data, Problem) else _filled(item, data, input_kinds)
        return
    id = f"{tar}/{sample.key}"
    try:
        line, common = _fields_of(sample, fields)
        wrong: BadLineError | None = None
    except BadLineError as error:
        line, common, wrong = {}, {}, error
    contents = {ending: data for ending, data in sample.files.items() if ending in _MODALITIES}
    words = line.get(fields.get("text", "text"))
    if "txt" not in contents and isinstance(words, str) and words.strip():
        contents["json"] = words.encode(errors="surrogatepass")
    for ending, data in contents.items():
        modality = _MODALITIES.get(ending, "text")
        item = Item(modality, id, uri=_uri(where, f"{sample.key}.{ending}"), source=tar, **common)
        if isinstance(data, Problem):
            yield data
        elif wrong is not None:
            yield item.problem(wrong.code, f"its fields: {wrong}")
        else:
            yield _filled(item, data, input_kinds)


def _uri(where: str, name: str) -> str:
    """Return the URI of a member, which fsspec can open if the tar is at a URL."""
    return f"tar://{name}::{where}" if is_remote(where) else str(ArchiveMember(Path(where), name))


def _filled(item: Item, data: bytes, input_kinds: Mapping[str, str]) -> Item | Problem:
    if input_kinds.get(item.modality) != item.modality:
        return item.problem(ProblemCode.UNKNOWN_MODALITY, unknown_modality(item.modality, input_kinds))
    if item.modality == "text":
        try:
            text = decode_text(data)
        except ValueError as error:
            return item.problem(ProblemCode.UNREADABLE, str(error))
        if not text.strip():
            return item.problem(ProblemCode.EMPTY, "the text is empty")
        item = replace(item, text=text)
    else:
        item = replace(item, data=data)
    problems: list[Problem] = []
    return item if is_storable(item, problems.append) else problems[0]


def _fields_of(sample: _TarSample, fields: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the JSON object of a sample, and the fields that its items share."""
    line: dict[str, Any] = {}
    written = sample.files.get("json")
    if isinstance(written, bytes):
        try:
            line = json.loads(decode_text(written))
        except (ValueError, RecursionError) as error:
            raise BadLineError(ProblemCode.MALFORMED, f"not JSON ({error})") from None
        if not isinstance(line, dict):
            raise BadLineError(ProblemCode.MALFORMED, f"{type(line).__name__}; expected an object with fields")
    names = {key: fields.get(key, key) for key in LINE_FIELDS}
    known = {*names.values(), *_CONTENTS, fields.get("text", "text")}
    common = parse_common(line, names, known)
    own = sample.files.get("cls")
    if isinstance(own, bytes):
        try:
            label = decode_text(own).strip()
        except ValueError as error:
            raise BadLineError(ProblemCode.MALFORMED, f"its .cls: {error}") from None
        common["labels"] = tuple(dict.fromkeys([*([label] if label else []), *common["labels"]]))
    return line, common


TEXT_SUFFIX = ".txt"
BYTES_PER_INPUT = 100_000
"""Assumed size of an input of a tar, for the progress bar."""
_LIST_ROWS = 4096


@dataclass(frozen=True)
class BulkSource:
    """A source of inputs."""

    kind: str
    """``"folder"``, ``"manifest"``, ``"list"`` (Parquet), ``"tar"`` or ``"archive"`` (zip, or a compressed tar)."""
    where: str


@dataclass(frozen=True)
class InputPart:
    """Inputs that one task encodes into one file."""

    number: int
    root: str
    """Location of the folder that contains all paths; of an archive, its own."""
    entries: tuple[Item | Problem, ...] = ()
    """Items in order, with an unresolved ``uri`` or an archive member, and problems."""
    tar_bytes: int | None = None
    """Size of a tar, which has no entries until it is encoded."""

    @property
    def n_inputs(self) -> int:
        """Number of inputs, estimated from the size of a tar."""
        return len(self.entries) if self.tar_bytes is None else max(1, self.tar_bytes // BYTES_PER_INPUT)

    @cached_property
    def file_name(self) -> str:
        """File name with the number of the part and a digest of its inputs."""
        described = [self.root, self.tar_bytes, [_described(entry) for entry in self.entries]]
        digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode("ascii")).hexdigest()
        return f"part-{self.number:06d}-{digest[:12]}.parquet"


def open_sources(given: Any) -> list[BulkSource]:
    """Return the sources of paths, URLs and patterns with ``*``."""
    urls = [given] if isinstance(given, str | Path) else list(given)
    if not urls or not all(isinstance(url, str | Path) for url in urls):
        raise TypeError("encode takes folders, manifests, Parquet lists and archives, each as a path or a URL")
    sources = [_source(where) for url in urls for where in expand(str(url))]
    names: dict[str, str] = {}
    for source in sources:
        if source.kind != "list" and source.kind != "manifest":
            name = base_name(source.where)
            if name in names:  # their items would have the same ids
                raise ValueError(
                    f"{names[name]} and {source.where} have the same name, which is part of the ids; rename one"
                )
            names[name] = source.where
    return sources


def _source(where: str) -> BulkSource:
    lower = where.lower()
    if lower.endswith(OTHER_ARCHIVES):
        raise ValueError(f"{where}: this kind of archive is not supported; unpack it, or pack the pictures as a .zip")
    suffixes = {".tar": "tar", ".parquet": "list"}
    kind = next((kind for suffix, kind in suffixes.items() if lower.endswith(suffix)), None)
    if kind is None and is_archive(where) and not is_folder(where):
        if is_remote(where):
            raise ValueError(
                f"{where}: only an uncompressed .tar can be read from a URL; download it, or repack it as a .tar"
            )
        kind = "archive"
    if kind is None and is_manifest(base_name(where)):
        kind = "manifest"
    if kind is None and is_folder(where):
        kind = "folder"
    if kind is None or not exists(where):
        what = "no such file or folder" if not exists(where) else "unknown kind"
        manifests = ".jsonl, .csv, .tsv, .xlsx or .feather"
        expected = f"a folder, a manifest ({manifests}), a Parquet list (.parquet), a .tar, .zip or .tar.gz"
        raise FileNotFoundError(f"{where}: {what}; expected {expected}, as a path or a URL")
    return BulkSource(kind, where)


def count_inputs(sources: Iterable[BulkSource], input_kinds: Mapping[str, str]) -> int:
    total = 0
    for source in sources:
        if source.kind == "tar":
            total += InputPart(0, source.where, tar_bytes=size_of(source.where)).n_inputs
        elif source.kind == "archive":
            total += count_items([Path(source.where)])
        elif source.kind == "folder":
            total += sum(1 for _ in _folder_paths(source.where, input_kinds))
        else:
            with local_copy(source.where) as path:
                if source.kind == "manifest":
                    total += max(0, count_lines(path) - has_columns(path))
                else:
                    total += _parquet(path).metadata.num_rows
    return total


def list_parts(
    sources: Iterable[BulkSource],
    input_kinds: Mapping[str, str],
    *,
    fields: Mapping[str, str] | None = None,
    root: str | None = None,
    size: int = EncodeOptions.part_size,
    table: TableFormat | None = None,
) -> Iterator[InputPart]:
    """Yield the parts of some sources in order, ``size`` inputs each, without duplicate keys.

    ``root`` is the folder that contains the paths in manifests and lists; their own by default.
    """
    seen: Seen = {}
    number = 0
    for source in sources:
        if source.kind == "tar":
            yield InputPart(number, source.where, tar_bytes=size_of(source.where))
            number += 1
            continue
        base = source.where if source.kind in ("folder", "archive") else root or parent(source.where)
        entries = _entries(source, input_kinds, fields, seen, table)
        while some := tuple(islice(entries, size)):
            yield InputPart(number, location(base), some)
            number += 1


def _entries(
    source: BulkSource,
    input_kinds: Mapping[str, str],
    fields: Mapping[str, str] | None,
    seen: Seen,
    table: TableFormat | None,
) -> Iterator[Item | Problem]:
    problems: list[Problem] = []
    with _items(source, input_kinds, fields, problems.append, table) as items:
        storable = (item for item in items if is_storable(item, problems.append))
        for item in drop_duplicates(storable, problems.append, seen):
            yield from problems
            problems.clear()
            yield item
        yield from problems


@contextmanager
def _items(
    source: BulkSource,
    input_kinds: Mapping[str, str],
    fields: Mapping[str, str] | None,
    report: Any,
    table: TableFormat | None,
) -> Iterator[Any]:
    if source.kind == "folder":
        yield _folder_items(source.where, input_kinds)
        return
    if source.kind == "archive":
        yield archive_items(Path(source.where), input_kinds, report, FolderLabels())
        return
    with local_copy(source.where) as path:
        if source.kind == "manifest":
            fields = manifest_fields(path, fields, table)
            lines = manifest_lines(path, lambda number, reason: report(Problem(reason, number, path.name)), table=table)
        else:
            fields = usual_fields(dict.fromkeys(_parquet(path).schema_arrow.names, ""), fields)
            lines = _list_rows(path, source.where, fields)
        yield parse_items(lines, input_kinds, report, base=None, fields=fields, source=path.name)


def _folder_items(folder: str, input_kinds: Mapping[str, str]) -> Iterator[Item]:
    name, names = base_name(folder), FolderLabels()
    for relative in _folder_paths(folder, input_kinds):
        labels = names.of(relative.split("/")[:-1])
        modality = "text" if relative.lower().endswith(TEXT_SUFFIX) else "image"
        yield Item(modality, f"{name}/{relative}", uri=relative, labels=labels, source=name)


def _folder_paths(folder: str, input_kinds: Mapping[str, str]) -> Iterator[str]:
    wanted = set(PICTURE_SUFFIXES) if input_kinds.get("image") == "image" else set()
    wanted |= {TEXT_SUFFIX} if input_kinds.get("text") == "text" else set()
    if not wanted:
        raise ValueError(f"{folder} is a folder, and there is no encoder that reads pictures for 'image' or texts")
    if is_remote(folder):
        yield from (one for one in relative_files(folder) if Path(one).suffix.lower() in wanted)
    else:
        base = Path(folder)
        yield from (path.relative_to(base).as_posix() for path in picture_files(base, wanted))


def _list_rows(path: Path, where: str, fields: Mapping[str, str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the numbered rows of a Parquet file without binary columns, because a list contains paths."""
    types = require("pyarrow.types", extra=EXTRA, why="reading Parquet files")
    file = _parquet(path)
    binary = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    columns = [field.name for field in file.schema_arrow if not any(test(field.type) for test in binary)]
    no_json = (types.is_temporal, types.is_decimal)  # stored as text
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
        raise ReadError(path, f"not a complete Parquet file ({error})") from error


def _check_memory(file: Any, path: Path, columns: list[str]) -> None:
    """Raise ReadError if a row group would need more memory than the limit for a file of its size."""
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
