"""Manifests: a JSONL, CSV or TSV file with one line per item.

The fields are ``id``, ``labels`` (a list; in CSV separated by ``;`` or ``|``), ``split`` (``train``, ``test``
or ``database``) and what the item is: ``path`` (a picture), ``text``, or both for a pair. With a ``modality``
field a line is an item of that modality and ``path`` or ``text`` its content.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from modalhash._files import sha256_of
from modalhash._typing import Array
from modalhash.data._checks import clean_ids
from modalhash.data.dataset import Dataset
from modalhash.data.split import Split

PARTS = {
    "train": "training",
    "training": "training",
    "test": "query",
    "query": "query",
    "database": "database",
}
OWN = ("id", "labels", "split", "modality")


def read_manifest(path: Path, *, name: str, fields: Mapping[str, Any] | None = None) -> Dataset:
    """The items of the manifest: texts and paths, no features yet.

    ``fields`` maps what is wanted to what the file calls it: ``text="caption_en"``, ``labels="keywords"``.
    """
    lines = _json_lines(path) if path.suffix.lower() in (".jsonl", ".ndjson") else _table(path)
    if not lines:
        raise ValueError(f"{path}: no items; expected one line per item")
    own = {key: str((fields or {}).get(key, key)) for key in OWN}
    contents = {key: str(value) for key, value in (fields or {}).items() if key not in OWN}
    ids: dict[str, list[Any]] = {}
    raw: dict[str, list[str]] = {}
    labels: dict[str, list[list[str]]] = {}
    parts: dict[str, list[str]] = {}
    for number, line in lines:
        where = f"{path}, line {number}"
        words = _labels(line.get(own["labels"]), where)
        part = line.get(own["split"]) or ""
        if part and str(part).lower() not in PARTS:
            raise ValueError(f"{where}: split is {part!r}; expected one of {', '.join(PARTS)}")
        for modality, content in _contents(line, own["modality"], contents, where).items():
            ids.setdefault(modality, []).append(line.get(own["id"], number))
            raw.setdefault(modality, []).append(content)
            labels.setdefault(modality, []).append(words)
            parts.setdefault(modality, []).append(PARTS[str(part).lower()] if part else "")
    class_names = sorted({word for rows in labels.values() for row in rows for word in row})
    keys = {modality: _ids(values, f"{path}, {modality!r}") for modality, values in ids.items()}
    return Dataset(
        {},
        {m: _matrix(rows, class_names) for m, rows in labels.items()} if class_names else {},
        keys,
        class_names=class_names,
        name=name,
        provenance={
            "source": "manifest",
            "files": [path.name],
            "sha256": sha256_of([path]),
            "base": str(path.parent),
        },
        raw={modality: np.array(values) for modality, values in raw.items()},
        split=_split(keys, parts, path),
    )


def _json_lines(path: Path) -> list[tuple[int, dict[str, Any]]]:
    lines = []
    with path.open(encoding="utf-8") as file:
        for number, text in enumerate(file, 1):
            if not text.strip():
                continue
            try:
                line = json.loads(text)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}, line {number}: not JSON ({error}); is the file truncated?") from error
            if not isinstance(line, dict):
                raise ValueError(f"{path}, line {number}: {type(line).__name__}; expected an object with fields")
            lines.append((number, line))
    return lines


def _table(path: Path) -> list[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
        lines = []
        for line in reader:
            if None in line or None in line.values():
                raise ValueError(
                    f"{path}, line {reader.line_num}: not {len(reader.fieldnames or [])} columns as in line 1"
                )
            lines.append((reader.line_num, dict(line)))
    return lines


def _contents(line: Mapping[str, Any], modality: str, contents: Mapping[str, str], where: str) -> dict[str, str]:
    if contents:
        if missing := [field for field in contents.values() if not isinstance(line.get(field), str)]:
            raise ValueError(f"{where}: no text in the field {missing[0]!r}; the fields are {', '.join(line)}")
        return {name: line[field] for name, field in contents.items()}
    found = {key: line[key] for key in ("path", "text") if line.get(key)}
    if not found:
        raise ValueError(
            f"{where}: neither 'path' nor 'text'; the fields are {', '.join(line)}. "
            'Say which holds what, e.g. read(path, image="file", text="caption")'
        )
    if name := line.get(modality):
        if len(found) > 1:
            raise ValueError(f"{where}: modality {name!r} with both 'path' and 'text'; expected one of them")
        return {str(name): str(next(iter(found.values())))}
    return {{"path": "image", "text": "text"}[key]: str(value) for key, value in found.items()}


def _labels(value: Any, where: str) -> list[str]:
    if value is None or value == "":
        return []
    if isinstance(value, str):
        value = value.replace("|", ";").split(";")
    if not isinstance(value, list) or any(isinstance(word, dict | list) for word in value):
        raise ValueError(f"{where}: labels are {value!r}; expected a list of names, or names separated by ';'")
    return [word for word in (str(word).strip() for word in value) if word]


def _ids(values: list[Any], where: str) -> Array:
    numbers = all(isinstance(value, int) and not isinstance(value, bool) for value in values)
    return clean_ids(np.array(values if numbers else [str(value) for value in values]), where)


def _matrix(rows: list[list[str]], class_names: list[str]) -> Array:
    column = {name: number for number, name in enumerate(class_names)}
    matrix = np.zeros((len(rows), len(class_names)), dtype=bool)
    for number, row in enumerate(rows):
        matrix[number, [column[word] for word in row]] = True
    return matrix


def _split(ids: Mapping[str, Array], parts: Mapping[str, list[str]], path: Path) -> Split | None:
    present = {part for values in parts.values() for part in values}
    if present == {""}:
        return None
    if "" in present:
        raise ValueError(f"{path}: some lines have a split and some have none; expected all or none")

    def of(part: str) -> dict[str, Array]:
        return {name: values[np.array(parts[name]) == part] for name, values in ids.items()}

    if "query" not in present or "training" not in present:
        return None
    return Split(of("training"), of("query"), of("database") if "database" in present else None)
