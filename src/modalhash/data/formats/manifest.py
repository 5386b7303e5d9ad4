"""Manifests: files with one line or row per item, as JSONL, CSV, TSV, Excel, Parquet or Arrow.

The fields are ``id``, ``labels`` (a list; in a table, names separated by ``;`` or ``|``, and the column may also be
called ``label``), ``split`` (``train``, ``test`` or ``database``) and the item itself: ``path`` (a picture), ``text``,
or both for a pair. With a ``modality`` field a line is an item of that modality and ``path`` or ``text`` its content.
Lines are read one by one, so a manifest may be large.
"""

from __future__ import annotations

import csv
import json
import re
import reprlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from modalhash.core.files import sha256_of
from modalhash.core.frames import BINARY, PICTURE, Origin
from modalhash.core.typing import Array
from modalhash.data.dataset import Dataset, Split, clean_ids, label_matrix, label_names, padded_bytes, parse_labels
from modalhash.data.formats.sandbox import ReadLimits
from modalhash.data.formats.tables import (
    MARK,
    ON_ERROR,
    SEPARATORS,
    TABLE_FILES,
    TableFormat,
    check_names,
    find_encoding,
    find_separator,
    open_table,
)
from modalhash.data.formats.variables import ReadError, text_array

JSON_SUFFIXES = (".jsonl", ".ndjson")
MAX_DEPTH = 100  # nesting depth of lists and objects in the fields of a line, as in a store
TOO_DEEP = f"more than {MAX_DEPTH} nested lists and objects; expected plain values"
MANIFEST_SUFFIXES = (*JSON_SUFFIXES, *SEPARATORS, *TABLE_FILES)

_PARTS = {"train": "training", "training": "training", "test": "query", "query": "query", "database": "database"}
LINE_FIELDS = ("id", "labels", "split", "modality")  # fields of a line that are not the content of an item

OnProblem = Callable[[int, str], None]  # called with the line number and the reason if a line cannot be used


def is_manifest(path: str | Path) -> bool:
    """Return whether a file has the suffix of a manifest: .jsonl, .ndjson, .csv, .tsv, or of a table file."""
    return Path(path).suffix.lower() in MANIFEST_SUFFIXES


def table_format(path: str | Path, given: TableFormat | None = None) -> TableFormat:
    """Return the encoding and separator, or the sheet, of a manifest, as detected or as ``given``.

    Raises
    ------
    ReadError
        if the format is ambiguous; the message names the option to set
    """
    path, given = Path(path), given or TableFormat()
    suffix = path.suffix.lower()
    if suffix in TABLE_FILES:
        return TableFormat(sheet=open_table(path, given, head=True).sheet)
    found = find_encoding(path, given.encoding, eight_bits=suffix in SEPARATORS)
    if suffix not in SEPARATORS:
        return found
    assert found.encoding is not None
    return replace(found, separator=find_separator(path, found.encoding, given.separator).separator)


def manifest_lines(
    path: str | Path, on_problem: OnProblem | None = None, *, table: TableFormat | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line number and the fields of every line of a manifest; skip blank lines.

    A row of a text table that spans several lines has the number of the first. Rows of Excel have the numbers that it
    shows; rows of Parquet and Arrow files count from 1. A byte order mark is ignored.

    Parameters
    ----------
    path
        of the file; the suffix distinguishes JSONL, CSV, TSV and the other tables
    on_problem
        called with ``(line_number, reason)`` for a line that is not JSON, not an object, not in the file's encoding, or
        has another number of columns than the first; the line is skipped. By default the first problem raises a
        :class:`~modalhash.data.ReadError` that names the file and the line
    table
        encoding, separator or sheet if detection fails
    """
    path = Path(path)

    def strict(number: int, reason: str) -> None:
        raise ReadError(path, reason, line=number)

    suffix = path.suffix.lower()
    if suffix in TABLE_FILES:
        yield from open_table(path, table or TableFormat(), warn=True).rows(on_problem)
        return
    form = table_format(path, table)
    if form.example:
        warnings.warn(
            f"{path}: not in UTF-8; read as {form.encoding}, e.g. {form.example!r}. If that looks wrong, name the "
            "encoding: --encoding (table=TableFormat(encoding=…))",
            UserWarning,
            stacklevel=2,
        )
    read = _table_lines if suffix in SEPARATORS else _json_lines
    yield from read(path, form, on_problem or strict)


def manifest_columns(path: str | Path, *, table: TableFormat | None = None) -> list[str] | None:
    """Return the column names of a table, or None for JSONL, whose lines name their own fields."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix in TABLE_FILES:
        return list(open_table(path, table or TableFormat(), head=True).columns)
    if suffix not in SEPARATORS:
        return None
    form = table_format(path, table)
    with _open(path, form) as file:
        return _header(path, form, _reader(form, file))[0]


def usual_fields(kinds: Mapping[str, str], fields: Mapping[str, str] | None) -> dict[str, str]:
    """Return ``fields`` and, if they are not given, the usual column names ``label`` and ``image``."""
    found = dict(fields or {})
    if "labels" not in found and "labels" not in kinds and "label" in kinds:
        found["labels"] = "label"
    if not set(found) - set(LINE_FIELDS) and "path" not in kinds and kinds.get("image") in (PICTURE, BINARY):
        found |= {"image": "image"} | ({"text": "text"} if "text" in kinds else {})
    return found


def read_manifest(
    path: Path,
    *,
    name: str,
    fields: Mapping[str, Any] | None = None,
    limits: ReadLimits | None = None,
    table: TableFormat | None = None,
) -> Dataset:
    """Return the items of a manifest as a data set of texts and paths, without features.

    ``fields`` maps roles to names of columns: ``{"text": "caption_en", "labels": "keywords"}``. ``limits`` apply to the
    memory of labels and ids as matrices.
    """
    columns = manifest_columns(path, table=table)
    fields = usual_fields(dict.fromkeys(columns, ""), fields) if columns is not None else fields
    lines = manifest_lines(path, table=table)
    provenance = {"source": "manifest", "files": [path.name], "sha256": sha256_of([path]), "base": str(path.parent)}
    return _dataset(lines, path, name=name, fields=fields or {}, limits=limits, provenance=provenance, unit="line")


def read_rows(
    rows: Iterable[tuple[int, dict[str, Any]]],
    kinds: Mapping[str, str],
    *,
    name: str,
    fields: Mapping[str, Any] | None = None,
    limits: ReadLimits | None = None,
) -> Dataset:
    """Return the items of numbered rows of a table in memory, as :func:`read_manifest` does."""
    where = f"the table {name!r}"
    return _dataset(
        rows,
        where,
        name=name,
        fields=usual_fields(kinds, fields),
        limits=limits,
        provenance={"source": where},
        unit="row",
    )


def _dataset(
    rows: Iterable[tuple[int, dict[str, Any]]],
    where: Path | str,
    *,
    name: str,
    fields: Mapping[str, Any],
    limits: ReadLimits | None,
    provenance: Mapping[str, Any],
    unit: str,
) -> Dataset:
    limits = limits or ReadLimits()
    own = {key: str(fields.get(key, key)) for key in LINE_FIELDS}
    contents = {key: str(value) for key, value in fields.items() if key not in LINE_FIELDS}
    ids: dict[str, list[Any]] = {}
    raw: dict[str, list[str]] = {}
    labels: dict[str, list[tuple[str, ...]]] = {}
    lines: dict[str, list[int]] = {}
    parts: dict[str, list[str]] = {}
    for number, line in rows:
        try:
            words = parse_labels(line.get(own["labels"]))
            part = parse_part(line.get(own["split"]) or "")
            items = _contents(line, own["modality"], contents)
        except ValueError as error:
            if unit == "line":
                raise ReadError(where, str(error), line=number) from error
            raise ReadError(where, f"row {number} (counted from 0): {error}") from error
        id = line.get(own["id"])
        for modality, content in items.items():
            ids.setdefault(modality, []).append(number if id is None else id)
            raw.setdefault(modality, []).append(content)
            labels.setdefault(modality, []).append(words)
            parts.setdefault(modality, []).append(part)
            lines.setdefault(modality, []).append(number)
    if not ids:
        raise ReadError(where, "no items; expected one line per item")
    class_names = label_names(row for rows in labels.values() for row in rows)
    n_labels = len(class_names) * sum(len(rows) for rows in labels.values())
    if isinstance(where, Path):
        limits.check(n_labels, where, f"a matrix of {len(class_names):,} labels")
    keys = {modality: _ids(values, modality, where, lines[modality], limits) for modality, values in ids.items()}
    return Dataset(
        {},
        {modality: label_matrix(rows, class_names) for modality, rows in labels.items()} if class_names else {},
        keys,
        class_names=class_names,
        name=name,
        provenance=provenance,
        raw={modality: text_array(values) for modality, values in raw.items()},
        split=_split(keys, parts, where),
        origins={
            modality: Origin(ids, (str(where),), (len(ids),), np.array(lines[modality]), unit=unit, first=0)
            for modality, ids in keys.items()
        },
    )


def _json_lines(path: Path, form: TableFormat, problem: OnProblem) -> Iterator[tuple[int, dict[str, Any]]]:
    with _open(path, form) as file:
        for number, text in enumerate(file, 1):
            text = text.removeprefix("\ufeff")  # from concatenated files
            if not text.strip():
                continue
            if MARK in text:
                problem(number, _not_in(form, "the file"))
                continue
            try:
                line = json.loads(text)
            except ValueError as error:
                problem(number, f"not JSON ({error}); is the file truncated?")
                continue
            except RecursionError:  # the depth that json accepts depends on the caller's stack
                problem(number, TOO_DEEP)
                continue
            if not isinstance(line, dict):
                problem(number, f"{type(line).__name__}; expected an object with fields")
            elif _is_deep(line):
                problem(number, TOO_DEEP)
            else:
                yield number, line


def _is_deep(value: Any) -> bool:
    waiting = [(value, 0)]
    while waiting:
        one, depth = waiting.pop()
        if depth > MAX_DEPTH:
            return True
        inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        waiting += [(part, depth + 1) for part in inner if isinstance(part, dict | list)]
    return False


def _table_lines(path: Path, form: TableFormat, problem: OnProblem) -> Iterator[tuple[int, dict[str, Any]]]:
    with _open(path, form) as file:
        reader = _reader(form, file)
        columns, line = _header(path, form, reader)
        while True:
            number = reader.line_num + 1
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                problem(number, f"not readable as a table ({error})")
                continue
            if not any(cell.strip() for cell in row) and (len(row) != 1 or len(columns) > 1):
                continue  # an empty line, or only separators, as spreadsheets write after the last row
            surplus = row[len(columns) :]
            if len(row) < len(columns) or any(surplus):
                problem(
                    number,
                    f"not {len(columns)} columns as in line {line} but {len(row)}; is a text with {form.separator!r} "
                    "in it not within quotes?",
                )
            elif MARK in "".join(row):
                problem(number, _not_in(form, "the table"))
            elif "\0" in "".join(row):
                problem(number, "a NUL character; the file is damaged, or in another encoding (--encoding utf-16)")
            else:
                yield number, dict(zip(columns, row, strict=False))


def _open(path: Path, form: TableFormat) -> TextIO:
    """Open the file so that undecodable bytes affect only their own line."""
    newline = "" if path.suffix.lower() in SEPARATORS else None  # csv needs the line ends within quotes
    return path.open(encoding=form.encoding, errors=ON_ERROR, newline=newline)


def _not_in(form: TableFormat, what: str) -> str:
    name = (form.encoding or "").removesuffix("-sig").upper()
    return f"not in {name}; save {what} as UTF-8, or name its encoding: --encoding (table=TableFormat(encoding=…))"


def _reader(form: TableFormat, file: TextIO) -> Any:
    assert form.separator is not None
    return csv.reader(file, delimiter=form.separator)


def _header(path: Path, form: TableFormat, reader: Any) -> tuple[list[str], int]:
    """Return the names of the columns and their line number, without unnamed columns at the end."""
    try:
        row = list(next(reader, []))
        if row and re.match("\ufeff?sep=", "".join(row), re.I):  # Excel's line with the separator
            row = list(next(reader, []))
        while not any(cell.strip() for cell in row):
            row = list(next(reader))
    except StopIteration:
        raise ReadError(path, "the file is empty; expected a line with the names of the columns") from None
    except csv.Error as error:
        raise ReadError(path, f"not readable as a table ({error})", line=1) from error
    names = [cell.strip().removeprefix("\ufeff") for cell in row]
    while names and not names[-1]:
        names.pop()
    line = reader.line_num
    if MARK in "".join(names):
        raise ReadError(path, f"the column names are {_not_in(form, 'the table')}", line=line)
    return check_names(path, names, line), line


def parse_part(value: Any) -> str:
    """Return the part of a split that a field names; raise ``ValueError`` for another word."""
    part = str(value).lower()
    if part and part not in _PARTS:
        raise ValueError(f"split is {reprlib.repr(value)}; expected one of {', '.join(_PARTS)}")
    return _PARTS[part] if part else ""


def _contents(line: Mapping[str, Any], modality: str, contents: Mapping[str, str]) -> dict[str, str]:
    if contents:
        if missing := [field for field in contents.values() if not isinstance(line.get(field), str)]:
            raise ValueError(f"no text in the field {missing[0]!r}; the fields are {', '.join(line)}")
        return {name: line[field] for name, field in contents.items()}
    given = {key: line[key] for key in ("path", "text") if line.get(key)}
    if not given:
        raise ValueError(
            f"neither 'path' nor 'text'; the fields are {', '.join(line)}. "
            'Say which holds what, e.g. read(path, image="file", text="caption")'
        )
    if name := line.get(modality):
        if len(given) > 1:
            raise ValueError(f"modality {name!r} with both 'path' and 'text'; expected one of them")
        return {str(name): str(next(iter(given.values())))}
    return {{"path": "image", "text": "text"}[key]: str(value) for key, value in given.items()}


def _ids(values: list[Any], modality: str, path: Path | str, lines: list[int], limits: ReadLimits) -> Array:
    if all(isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 for value in values):
        ids = np.array(values)
    else:
        texts = [str(value) for value in values]
        row = max(range(len(texts)), key=lambda row: len(texts[row]))
        what = f"ids with one of {len(texts[row]):,} characters among {len(texts):,}"
        if isinstance(path, Path):
            limits.check(padded_bytes(len(texts[row]), len(texts)), path, what, line=lines[row])
        ids = np.array(texts)
    try:
        return clean_ids(ids, repr(modality))
    except ValueError as error:
        raise ReadError(path, str(error)) from error


def _split(ids: Mapping[str, Array], parts: Mapping[str, list[str]], path: Path | str) -> Split | None:
    present = {part for values in parts.values() for part in values}
    if present == {""}:
        return None
    if "" in present:
        raise ReadError(path, "some lines have a split and others do not; expected all or none")

    def of(part: str) -> dict[str, Array]:
        return {name: values[np.array(parts[name]) == part] for name, values in ids.items()}

    if "query" not in present or "training" not in present:
        return None
    return Split(of("training"), of("query"), of("database") if "database" in present else None)
