"""Items of a manifest: a bad line is reported with its number, and the rest goes on.

The fields are those of :mod:`modalhash.data.formats.manifest`, which refuses a file with any mistake: right for
an experiment, wrong for a folder of ten thousand photos. Lines are read one by one, so a manifest may be large.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from modalhash.engine.raw_items import OWN, Item, Problem, Report, items_of

TABLES = {".csv": ",", ".tsv": "\t"}
LINES = (".jsonl", ".ndjson")


def is_manifest(path: Path) -> bool:
    """Whether a file has the name of a manifest."""
    return path.suffix.lower() in (*LINES, *TABLES)


def read_items(
    manifest: Path, reads: Mapping[str, str], report: Report, *, fields: Mapping[str, str] | None = None
) -> Iterator[Item]:
    """The usable items of a JSONL, CSV or TSV manifest; see :func:`modalhash.engine.raw_items.items_of`.

    Paths in it are relative to its folder.
    """
    if not manifest.is_file():
        raise FileNotFoundError(f"{manifest}: no such file; expected a manifest (.jsonl, .csv or .tsv)")
    kind = manifest.suffix.lower()
    lines = _json_lines(manifest, report) if kind in LINES else _table(manifest, TABLES[kind], report, fields or {})
    yield from items_of(lines, reads, report, base=manifest.parent, fields=fields, source=manifest.name)


def count_lines(manifest: Path) -> int:
    """Lines of a file, for a progress bar; one that is not there has none."""
    if not manifest.is_file():
        return 0
    with manifest.open("rb") as file:
        return sum(1 for _ in file)


def _json_lines(path: Path, report: Report) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            if not text.strip():
                continue
            try:
                line = json.loads(text.decode("utf-8-sig"))
            except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
                report(Problem(f"not JSON in UTF-8 ({error})", number, path.name))
                continue
            if isinstance(line, dict):
                yield number, line
            else:
                report(Problem(f"{type(line).__name__}; expected an object with fields", number, path.name))


def _table(
    path: Path, delimiter: str, report: Report, fields: Mapping[str, str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.DictReader(file, delimiter=delimiter)
        columns = list(reader.fieldnames or [])
        _check_columns(path, columns, fields)
        while True:
            try:
                line = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                report(Problem(f"not readable as a table ({error})", reader.line_num, path.name))
                continue
            values = [value for value in line.values() if isinstance(value, str)]
            number = reader.line_num - sum(value.count("\n") for value in values)  # where a row of several lines begins
            if None in line or None in line.values():
                reason = f"not {len(columns)} columns as in line 1; is a comma not within quotes?"
                report(Problem(reason, number, path.name))
            elif any("\udc80" <= sign <= "\udcff" for value in values for sign in value):
                report(Problem("not in UTF-8; save the table as UTF-8", number, path.name))
            else:
                yield number, dict(line)


def _check_columns(path: Path, columns: list[str], fields: Mapping[str, str]) -> None:
    """A table without the columns that matter would give an error in every line: one is enough."""
    wanted = [value for key, value in fields.items() if key not in OWN] or ["path", "text"]
    own = [value for key, value in fields.items() if key in OWN]
    if not set(wanted) & set(columns) or not set(own) <= set(columns):
        raise ValueError(
            f"{path}: the columns are {', '.join(columns) or 'none'}; expected {' or '.join(wanted)}"
            f"{''.join(f' and {name}' for name in own)}. "
            "Say which holds what, e.g. --field text=caption --field image=file (fields={...})"
        )
