"""Tables in Excel, Parquet and Arrow files, whose libraries run in the sandbox."""

from __future__ import annotations

import base64
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from modalhash.core.typing import Array
from modalhash.data.formats.arrow import BYTES
from modalhash.data.formats.excel import ERROR
from modalhash.data.formats.sandbox import ForeignFile, ReadLimits
from modalhash.data.formats.tables import TableFormat
from modalhash.data.read_error import ReadError

TABLE_FILES = {
    ".xlsx": "excel", ".xlsm": "excel", ".parquet": "arrow", ".feather": "arrow", ".arrow": "arrow", ".ipc": "arrow",
}  # fmt: skip
"""The module that reads a file, by suffix."""
_REFUSED = {".xls": "an old Excel file", ".xlsb": "a binary Excel file", ".ods": "an OpenDocument file"}
TABLE_FILES |= dict.fromkeys(_REFUSED, "none")


@dataclass(frozen=True)
class TableFile:
    """The columns of a table and their kinds, and functions that read its rows or a column of numbers."""

    path: Path
    columns: Mapping[str, str]
    """Kinds as in :mod:`modalhash.data.formats.arrow`; ``"cells"`` if a column may have any values."""
    sheet: str | None
    rows: Callable[..., Iterator[tuple[int, dict[str, Any]]]]
    """Yields the number and the fields of each row; takes a callback for invalid rows."""
    numbers: Callable[[str], Array] | None
    n_rows: int | None


def open_table(
    path: Path, given: TableFormat, *, warn: bool = False, head: bool = False, limits: ReadLimits | None = None
) -> TableFile:
    """Return the table in an Excel, Parquet or Arrow file; ``head`` reads no rows.

    The sheet of an Excel file is ``given.sheet`` or the first one; ``warn`` warns if there are others.
    """
    suffix = path.suffix.lower()
    if what := _REFUSED.get(suffix):
        raise ReadError(path, f"{what}, which is not supported; save it as .xlsx or .csv")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    if not path.stat().st_size:
        raise ReadError(path, "the file is empty")
    kind = TABLE_FILES[suffix]
    options = {"sheet": given.sheet, "head": head} if kind == "excel" else {}
    file = ForeignFile(path.absolute(), path, kind, limits or ReadLimits(), options=options)
    parts = {one.name: one for one in file.variables()}
    listed = [json.loads(text) for text in parts["columns"].load().tolist()]
    names = [str(name).strip() for name, _ in listed]
    while names and not names[-1]:
        names.pop()
    if kind == "excel":
        return _excel(path, parts, names, given, warn=warn)
    check_names(path, names, None)
    return _arrow(path, file, parts, dict(zip(names, (kind for _, kind in listed), strict=True)))


def check_names(path: Path, names: list[str], line: int | None) -> list[str]:
    """Return the names of columns; raise ReadError if one is missing or occurs twice."""
    for number, name in enumerate(names):
        if not name:
            raise ReadError(path, f"column {number + 1} has no name, but later ones do; name it", line=line)
        if name in names[:number]:
            both = f"{names.index(name) + 1} and {number + 1}"
            raise ReadError(path, f"two columns are called {name!r} ({both}); rename one", line=line)
    return names


def _excel(path: Path, parts: Mapping[str, Any], names: list[str], given: TableFormat, *, warn: bool) -> TableFile:
    sheets, lines = parts["sheets"].load().tolist(), parts["lines"].load().tolist()
    if not names:
        others = f"; other sheets: {', '.join(sheets[1:])} (--sheet)" if len(sheets) > 1 else ""
        raise ReadError(path, f"the sheet {sheets[0]!r} is empty; expected a row with the names of the columns{others}")
    check_names(path, names, lines[0])
    if warn and given.sheet is None and len(sheets) > 1:
        warnings.warn(
            f"{path}: read the first sheet, {sheets[0]!r}; others: {', '.join(sheets[1:])}. To read another, "
            "name it: --sheet (table=TableFormat(sheet=…))",
            UserWarning,
            stacklevel=4,
        )

    def rows(problem: Callable[[int, str], None] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
        for line, text in zip(lines[1:], parts["rows"].load().tolist(), strict=True):
            cells = json.loads(text)
            wrong = None
            if any(cell is not None for cell in cells[len(names) :]):
                wrong = f"a value in column {len(cells)}, which has no name in row {lines[0]}"
            for name, cell in zip(names, cells, strict=False):
                if isinstance(cell, dict):
                    wrong = f"column {name!r} is the error {cell.get(ERROR)}; repair the formula, or clear the cell"
            if wrong is None:
                yield line, dict(zip(names, cells, strict=False))
            elif problem is None:
                raise ReadError(path, wrong, line=line)
            else:
                problem(line, wrong)

    return TableFile(path, dict.fromkeys(names, "cells"), sheets[0], rows, None, max(0, len(lines) - 1))


def _arrow(path: Path, file: ForeignFile, parts: Mapping[str, Any], kinds: Mapping[str, str]) -> TableFile:
    portions = [one for name, one in parts.items() if name.startswith("rows ")]

    def rows(problem: Callable[[int, str], None] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
        number = 0
        for portion in portions:
            for text in portion.load().tolist():
                number += 1
                yield number, {name: _cell(value) for name, value in json.loads(text).items()}
            file.taken.pop(portion.name, None)  # its memory is free again

    def numbers(name: str) -> Array:
        return np.asarray(parts[f"column {name}"].load())

    return TableFile(path, kinds, None, rows, numbers, sum(one.shape[0] for one in portions))


def _cell(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {BYTES}:
        return base64.b64decode(value[BYTES])
    return value


def column_list(names: Sequence[str], limit: int = 20) -> str:
    return ", ".join(names[:limit]) + (f", … ({len(names):,})" if len(names) > limit else "")
