"""Read Excel files (``.xlsx``) with openpyxl, inside the sandbox.

The declared size of a sheet is ignored; rows are read until they end. The first row that is not empty has the names of
the columns. Formulas are read as the values that Excel saved with them.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from contextlib import closing
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from modalhash.core.imports import require
from modalhash.data.formats.variables import Budget, Found, ReadError, TooLargeError, text_array

WHAT = "an Excel file"
EXTRA = "tables"
MAX_ROWS = 1_048_576
ERROR = "$error"  # key of a cell that shows an error, such as #N/A
_ERRORS = frozenset({"#N/A", "#REF!", "#VALUE!", "#DIV/0!", "#NAME?", "#NULL!", "#NUM!", "#SPILL!", "#CALC!"})
_OLE = b"\xd0\xcf\x11\xe0"


def prepare() -> None:
    require("openpyxl", extra=EXTRA, why="reading Excel files")


def variables(path: Path, budget: Budget, sheet: str | None = None, head: bool = False) -> list[Found]:
    """Return sheet names, column names, and rows with their numbers; with ``head``, no rows."""
    openpyxl = require("openpyxl", extra=EXTRA, why="reading Excel files")
    with path.open("rb") as file:
        if file.read(4) == _OLE:
            raise ReadError(path, "encrypted, or an old .xls file; save it as .xlsx, without a password")
    with zipfile.ZipFile(path) as archive:
        size = sum(info.file_size for info in archive.infolist())
    if size > budget.n_bytes:
        raise TooLargeError(size, None)
    with closing(openpyxl.load_workbook(path, read_only=True, data_only=True, keep_links=False)) as book:
        sheets = [one.title for one in book.worksheets]
        if sheet is not None and sheet not in sheets:
            raise ReadError(path, f"no sheet {sheet!r}; it has {', '.join(map(repr, sheets))}")
        if not sheets:
            raise ReadError(path, "no sheet with cells")
        chosen = book.worksheets[sheets.index(sheet) if sheet is not None else 0]
        chosen.reset_dimensions()  # the declared size may be wrong
        names: list[Any] = []
        lines: list[int] = []
        rows: list[str] = []
        for number, cells in _rows(path, chosen):
            if not names:
                names = cells
                lines.append(number)
                if head:
                    break
                continue
            if len(cells) < len(names):
                cells += [None] * (len(names) - len(cells))
            text = json.dumps(cells)
            budget.take((len(text),), 1, chosen.title)
            lines.append(number)
            rows.append(text)
    return [
        _texts("sheets", [chosen.title, *(one for one in sheets if one != chosen.title)]),
        _texts("columns", [json.dumps(["" if cell is None else str(cell), "cells"]) for cell in names]),
        Found("lines", (len(lines),), "numbers", np.array(lines, dtype=np.int64)),
        _texts("rows", rows),
    ]


def _texts(name: str, texts: list[str]) -> Found:
    return Found(name, (len(texts),), "texts", text_array(texts))


def _rows(path: Path, sheet: Any) -> Iterator[tuple[int, list[Any]]]:
    """Yield rows that are not empty, without the empty cells at their ends."""
    for number, cells in enumerate(sheet.iter_rows(values_only=True), 1):
        if number > MAX_ROWS:
            raise ReadError(path, f"more than {MAX_ROWS:,} rows, which Excel does not allow; the file is damaged")
        plain = [_plain(cell) for cell in cells]
        while plain and plain[-1] is None:
            plain.pop()
        if plain:
            yield number, plain


def _plain(cell: Any) -> Any:
    """Return a cell as a JSON value; Excel has no integers, and empty texts equal missing cells."""
    if isinstance(cell, str):
        text = cell.strip()
        return {ERROR: text} if text in _ERRORS else cell if text else None
    if isinstance(cell, float):
        return int(cell) if cell.is_integer() and abs(cell) < 2**53 else cell
    if isinstance(cell, datetime) and cell.time() == time():
        return cell.date().isoformat()
    if isinstance(cell, datetime | date | time):
        return cell.isoformat()
    if isinstance(cell, timedelta):
        return str(cell)
    return cell if cell is None or isinstance(cell, bool | int) else str(cell)
