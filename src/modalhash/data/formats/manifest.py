"""Manifests: a JSONL, CSV or TSV file with one line per item.

The fields are ``id``, ``labels`` (a list; in a table, names separated by ``;`` or ``|``), ``split`` (``train``,
``test`` or ``database``) and the item itself: ``path`` (a picture), ``text``, or both for a pair. With a ``modality``
field a line is an item of that modality and ``path`` or ``text`` its content.

:func:`manifest_lines` is the one reader of such lines. An experiment needs every item, so :func:`read_manifest` uses
it strictly and refuses a file with any mistake. For a collection of ten thousand photos, pass ``on_problem``: a bad
line is then reported with its number and the rest is read. Lines are read one by one, so a manifest may be large.
"""

from __future__ import annotations

import csv
import json
import reprlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from modalhash._files import sha256_of
from modalhash._typing import Array
from modalhash.data._checks import clean_ids, padded_bytes
from modalhash.data._errors import ReadError
from modalhash.data.dataset import Dataset, Split
from modalhash.data.formats._found import text_array
from modalhash.data.labels import label_matrix, label_names, parse_labels
from modalhash.data.limits import ReadLimits

JSON_SUFFIXES = (".jsonl", ".ndjson")
DELIMITERS = {".csv": ",", ".tsv": "\t"}
MAX_DEPTH = 100
"""Of lists and objects within the fields of a line, as for what a store keeps."""
TOO_DEEP = f"more than {MAX_DEPTH} lists and objects within each other; expected plain values"
MANIFEST_SUFFIXES = (*JSON_SUFFIXES, *DELIMITERS)

_PARTS = {
    "train": "training",
    "training": "training",
    "test": "query",
    "query": "query",
    "database": "database",
}
_OWN_FIELDS = ("id", "labels", "split", "modality")

OnProblem = Callable[[int, str], None]
"""Called with the line number and the reason where a line cannot be used."""


def is_manifest(path: str | Path) -> bool:
    """Return whether a file has the suffix of a manifest: .jsonl, .ndjson, .csv or .tsv."""
    return Path(path).suffix.lower() in MANIFEST_SUFFIXES


def manifest_lines(path: str | Path, on_problem: OnProblem | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line number and the fields of every line of a manifest; blank lines are skipped.

    A row of a table that spans several lines has the number of the first. A byte order mark is ignored.

    Parameters
    ----------
    path
        of the file; the suffix tells JSONL, CSV and TSV apart
    on_problem
        called with ``(line_number, reason)`` for a line that is not JSON, not an object, not in UTF-8, or has another
        number of columns than the first; the line is skipped. By default the first problem is a
        :class:`~modalhash.data.ReadError` that names the file and the line
    """
    path = Path(path)

    def strict(number: int, reason: str) -> None:
        raise ReadError(path, reason, line=number)

    read = _table_lines if path.suffix.lower() in DELIMITERS else _json_lines
    yield from read(path, on_problem or strict)


def manifest_columns(path: str | Path) -> list[str] | None:
    """Return the column names of a CSV or TSV manifest, or None for JSONL, where every line names its own fields."""
    path = Path(path)
    if path.suffix.lower() not in DELIMITERS:
        return None
    with _open(path) as file:
        return _header(path, _reader(path, file))


def read_manifest(
    path: Path, *, name: str, fields: Mapping[str, Any] | None = None, limits: ReadLimits | None = None
) -> Dataset:
    """Return the items of a manifest: texts and paths, no features yet.

    Parameters
    ----------
    path
        of the file
    name
        of the data set
    fields
        what the file calls things: ``{"text": "caption_en", "labels": "keywords"}``
    limits
        how much memory its labels and ids may take, as matrices
    """
    limits = limits or ReadLimits()
    own = {key: str((fields or {}).get(key, key)) for key in _OWN_FIELDS}
    contents = {key: str(value) for key, value in (fields or {}).items() if key not in _OWN_FIELDS}
    ids: dict[str, list[Any]] = {}
    raw: dict[str, list[str]] = {}
    labels: dict[str, list[tuple[str, ...]]] = {}
    lines: dict[str, list[int]] = {}
    parts: dict[str, list[str]] = {}
    for number, line in manifest_lines(path):
        try:
            words = parse_labels(line.get(own["labels"]))
            part = _part(line.get(own["split"]) or "")
            items = _contents(line, own["modality"], contents)
        except ValueError as error:
            raise ReadError(path, str(error), line=number) from error
        for modality, content in items.items():
            ids.setdefault(modality, []).append(line.get(own["id"], number))
            raw.setdefault(modality, []).append(content)
            labels.setdefault(modality, []).append(words)
            parts.setdefault(modality, []).append(part)
            lines.setdefault(modality, []).append(number)
    if not ids:
        raise ReadError(path, "no items; expected one line per item")
    class_names = label_names(row for rows in labels.values() for row in rows)
    n_labels = len(class_names) * sum(len(rows) for rows in labels.values())
    limits.check(n_labels, path, f"a matrix of {len(class_names):,} labels")
    keys = {modality: _ids(values, modality, path, lines[modality], limits) for modality, values in ids.items()}
    return Dataset(
        {},
        {modality: label_matrix(rows, class_names) for modality, rows in labels.items()} if class_names else {},
        keys,
        class_names=class_names,
        name=name,
        provenance={
            "source": "manifest",
            "files": [path.name],
            "sha256": sha256_of([path]),
            "base": str(path.parent),
        },
        raw={modality: text_array(values) for modality, values in raw.items()},
        split=_split(keys, parts, path),
    )


def _json_lines(path: Path, problem: OnProblem) -> Iterator[tuple[int, dict[str, Any]]]:
    with _open(path) as file:
        for number, text in enumerate(file, 1):
            text = text.removeprefix("\ufeff")  # files with a byte order mark each, put together
            if not text.strip():
                continue
            if not _is_utf8(text):
                problem(number, "not in UTF-8; save the file as UTF-8")
                continue
            try:
                line = json.loads(text)
            except ValueError as error:
                problem(number, f"not JSON ({error}); is the file truncated?")
                continue
            except RecursionError:  # how deep is too deep for json depends on how deep the caller is
                problem(number, TOO_DEEP)
                continue
            if not isinstance(line, dict):
                problem(number, f"{type(line).__name__}; expected an object with fields")
            elif _is_deep(line):
                problem(number, TOO_DEEP)
            else:
                yield number, line


def _is_deep(value: Any) -> bool:
    """Return whether a value is nested so deeply that showing or storing it may fail."""
    waiting = [(value, 0)]
    while waiting:
        one, depth = waiting.pop()
        if depth > MAX_DEPTH:
            return True
        inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        waiting += [(part, depth + 1) for part in inner if isinstance(part, dict | list)]
    return False


def _table_lines(path: Path, problem: OnProblem) -> Iterator[tuple[int, dict[str, Any]]]:
    with _open(path) as file:
        reader = _reader(path, file)
        columns = _header(path, reader)
        if not _is_utf8("".join(columns)):
            problem(1, "the column names are not in UTF-8; save the table as UTF-8")
        while True:
            number = reader.line_num + 1
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                problem(number, f"not readable as a table ({error})")
                continue
            if not row:
                continue
            if len(row) != len(columns):
                problem(number, f"not {len(columns)} columns as in line 1; is a comma not within quotes?")
            elif not _is_utf8("".join(row)):
                problem(number, "not in UTF-8; save the table as UTF-8")
            else:
                yield number, dict(zip(columns, row, strict=True))


def _open(path: Path) -> TextIO:
    """Open the file so that bytes that are not UTF-8 spoil their own line and not the whole file."""
    newline = "" if path.suffix.lower() in DELIMITERS else None  # csv wants to see the line ends within quotes
    return path.open(encoding="utf-8-sig", errors="surrogateescape", newline=newline)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a byte that could not be decoded stands there as a surrogate
        return False
    return True


def _reader(path: Path, file: TextIO) -> Any:
    return csv.reader(file, delimiter=DELIMITERS[path.suffix.lower()])


def _header(path: Path, reader: Any) -> list[str]:
    try:
        return list(next(reader, []))
    except csv.Error as error:
        raise ReadError(path, f"not readable as a table ({error})", line=1) from error


def _part(value: Any) -> str:
    part = str(value).lower()
    if part and part not in _PARTS:
        raise ValueError(f"split is {reprlib.repr(value)}; expected one of {', '.join(_PARTS)}")
    return _PARTS[part] if part else ""


def _contents(line: Mapping[str, Any], modality: str, contents: Mapping[str, str]) -> dict[str, str]:
    """Return the texts and paths of a line by modality."""
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


def _ids(values: list[Any], modality: str, path: Path, lines: list[int], limits: ReadLimits) -> Array:
    if all(isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 for value in values):
        ids = np.array(values)
    else:
        texts = [str(value) for value in values]
        row = max(range(len(texts)), key=lambda row: len(texts[row]))
        what = f"ids with one of {len(texts[row]):,} characters among {len(texts):,}"
        limits.check(padded_bytes(len(texts[row]), len(texts)), path, what, line=lines[row])
        ids = np.array(texts)
    try:
        return clean_ids(ids, repr(modality))
    except ValueError as error:
        raise ReadError(path, str(error)) from error


def _split(ids: Mapping[str, Array], parts: Mapping[str, list[str]], path: Path) -> Split | None:
    present = {part for values in parts.values() for part in values}
    if present == {""}:
        return None
    if "" in present:
        raise ReadError(path, "some lines have a split and some have none; expected all or none")

    def of(part: str) -> dict[str, Array]:
        return {name: values[np.array(parts[name]) == part] for name, values in ids.items()}

    if "query" not in present or "training" not in present:
        return None
    return Split(of("training"), of("query"), of("database") if "database" in present else None)
