"""Read Parquet and Arrow files (``.parquet``, ``.feather``, ``.arrow``) with pyarrow, inside the sandbox.

A file is listed by its columns and by portions of rows, which are row groups or record batches. Rows are sent as JSON
without columns of number lists; these, and columns of numbers, are sent as arrays.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from modalhash.core.imports import require
from modalhash.core.typing import Array
from modalhash.data.formats.variables import Budget, Found, ReadError, TooLargeError, Value, text_array

WHAT = "a Parquet or Arrow file"
EXTRA = "tables"
WHY = "reading Parquet and Arrow files"
BYTES = "$bytes"  # key of a cell of bytes, in base64
CODES = b"modalhash"  # metadata key of files that hold codes; see :mod:`modalhash.engine.storage.code_files`
NUMBER, VECTOR, TEXT, NAMES, BINARY, PICTURE, OTHER = "number", "vector", "text", "names", "bytes", "picture", "other"
"""Kinds of columns: numbers, lists of numbers, texts, lists of texts, bytes, bytes or a path, anything else."""


def prepare() -> None:
    """Import pyarrow without threads, which would count against the address space limit."""
    pyarrow = require("pyarrow", extra=EXTRA, why=WHY)
    pyarrow.set_memory_pool(pyarrow.system_memory_pool())
    pyarrow.set_cpu_count(1)
    pyarrow.set_io_thread_count(1)
    for module in ("compute", "ipc", "parquet", "types"):
        require(f"pyarrow.{module}", extra=EXTRA, why=WHY)


def variables(path: Path, budget: Budget, **options: Any) -> list[Found]:
    """List the columns with their kinds, the portions of rows, and the columns that load as numbers."""
    with _opened(path) as file:
        if CODES in (file.schema.metadata or {}):
            raise ReadError(
                path, "codes that `modalhash encode` wrote; only `modalhash add` accepts them, without other files"
            )
        kinds = {field.name: kind_of(field.type) for field in file.schema if not _is_index(field.name)}
        names = [field.name for field in file.schema if not _is_index(field.name)]
        if len(names) != len(kinds):
            twice = next(name for name in names if names.count(name) > 1)
            raise ReadError(path, f"two columns are called {twice!r}; rename one")
        n_rows = sum(file.sizes)
        found = [
            Found("columns", (len(names),), "texts", text_array([json.dumps([one, kinds[one]]) for one in names])),
            *(Found(f"rows {number}", (size,), "texts") for number, size in enumerate(file.sizes)),
        ]
        numeric = [name for name in names if kinds[name] in (NUMBER, VECTOR)]
        return found + [Found(f"column {name}", (n_rows,), "numbers") for name in numeric]


def load(path: Path, name: str, budget: Budget, **options: Any) -> Value:
    """Return a portion of rows as JSON texts, or a column of numbers."""
    what, _, which = name.partition(" ")
    with _opened(path) as file:
        if what == "column":
            return numbers(file.column(which, budget), path, which, budget)
        kinds = {field.name: kind_of(field.type) for field in file.schema if not _is_index(field.name)}
        wanted = [column for column, kind in kinds.items() if kind != VECTOR]
        table = file.portion(int(which), wanted, budget)
        classes = class_names(file.schema.metadata)
        columns = [
            [_named(_plain(cell), classes.get(column)) for cell in table.column(column).to_pylist()]
            for column in wanted
        ]
        texts = []
        for row in zip(*columns, strict=True) if columns else [()] * table.num_rows:
            texts.append(json.dumps(dict(zip(wanted, row, strict=True))))
            budget.take((len(texts[-1]),), 1, name)
        return text_array(texts)


def kind_of(arrow: Any) -> str:
    types = require("pyarrow.types", extra=EXTRA, why=WHY)
    if types.is_dictionary(arrow):
        return kind_of(arrow.value_type)
    if types.is_integer(arrow) or types.is_floating(arrow) or types.is_boolean(arrow) or types.is_decimal(arrow):
        return NUMBER
    if types.is_string(arrow) or types.is_large_string(arrow) or types.is_string_view(arrow):
        return TEXT
    if types.is_binary(arrow) or types.is_large_binary(arrow) or types.is_fixed_size_binary(arrow):
        return BINARY
    if _is_list(types, arrow):
        return {TEXT: NAMES, NUMBER: VECTOR}.get(kind_of(arrow.value_type), OTHER)
    if types.is_struct(arrow) and {field.name for field in arrow} == {"bytes", "path"}:
        return PICTURE
    return OTHER


def numbers(column: Any, path: Path | str, name: str, budget: Budget) -> Array:
    """Return a column of numbers (rows,), or of lists of them (rows, width), with NaN for null."""
    types = require("pyarrow.types", extra=EXTRA, why=WHY)
    compute = require("pyarrow.compute", extra=EXTRA, why=WHY)
    column = column.combine_chunks()
    if not _is_list(types, column.type):
        budget.take((len(column),), 8, name)
        return _as_array(types, column)
    if column.null_count:
        row = int(np.flatnonzero(_as_array(types, column.is_null()))[0])
        raise ReadError(path, f"row {row + 1}, column {name!r} is empty; expected a list of numbers in every row")
    lengths = _as_array(types, compute.list_value_length(column))
    width = int(lengths[0]) if len(lengths) else 0
    if (other := np.flatnonzero(lengths != width)).size:
        row = int(other[0])
        found = f"row {row + 1}, column {name!r} has {lengths[row]} numbers, row 1 has {width}"
        raise ReadError(path, f"{found}; expected equal numbers")
    values = column.flatten()
    budget.take((len(column), width), 4 if values.type == "float" else 8, name)
    return _as_array(types, values).reshape(len(column), width)


def _as_array(types: Any, values: Any) -> Array:
    """Return Arrow numbers as a new array from their buffer; ``to_numpy`` would import pandas."""
    if types.is_boolean(values.type):
        values = values.cast("uint8")
    elif types.is_decimal(values.type) or types.is_dictionary(values.type) or types.is_float16(values.type):
        values = values.cast("float64")
    nulls = _as_array(types, values.is_null()).astype(bool) if values.null_count else None
    if nulls is not None and not types.is_floating(values.type):
        values = values.cast("float64")
    bits = values.type.bit_width
    kind = "f" if types.is_floating(values.type) else "u" if types.is_unsigned_integer(values.type) else "i"
    if not len(values):
        return np.empty(0, dtype=f"{kind}{bits // 8}")
    start = values.offset * bits // 8
    flat = np.frombuffer(values.buffers()[1], dtype=np.uint8)[start : start + len(values) * bits // 8]
    array = flat.copy().view(f"{kind}{bits // 8}")
    if nulls is not None:
        array[nulls] = np.nan
    return array


def _is_list(types: Any, arrow: Any) -> bool:
    return types.is_list(arrow) or types.is_large_list(arrow) or types.is_fixed_size_list(arrow)


def class_names(metadata: Any) -> dict[str, list[str]]:
    """Return the class names by column from the metadata of Hugging Face's ``datasets``."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        found = {name: one.get("names") or (one.get("feature") or {}).get("names") for name, one in features.items()}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return {}
    return {name: [str(one) for one in names] for name, names in found.items() if isinstance(names, list)}


def _named(cell: Any, names: list[str] | None) -> Any:
    if names is None or cell is None:
        return cell
    numbers = cell if isinstance(cell, list) else [cell]
    return [names[one] for one in numbers if isinstance(one, int) and 0 <= one < len(names)]  # -1 means no class


def _plain(cell: Any) -> Any:
    if isinstance(cell, bytes):
        return {BYTES: base64.b64encode(cell).decode("ascii")}
    if isinstance(cell, float):
        return None if np.isnan(cell) else cell
    if isinstance(cell, datetime | date | time):
        return cell.isoformat()
    if isinstance(cell, timedelta | Decimal):
        return str(cell)
    if isinstance(cell, list):
        return [_plain(one) for one in cell]
    if isinstance(cell, dict):
        if cell.keys() == {"bytes", "path"}:
            return _plain(cell["bytes"]) if cell["bytes"] is not None else cell["path"]
        return {str(key): _plain(one) for key, one in cell.items()}
    return cell if cell is None or isinstance(cell, bool | int | str) else str(cell)


def _is_index(name: str) -> bool:
    return name.startswith("__index_level_")


class _ArrowFile:
    """A Parquet file, or an Arrow file or stream, read in portions."""

    def __init__(self, schema: Any, sizes: list[int], read: Any, declared: list[int]) -> None:
        self.schema, self.sizes, self._read, self._declared = schema, sizes, read, declared

    def portion(self, number: int, columns: list[str], budget: Budget) -> Any:
        if self._declared[number] > budget.n_bytes:
            raise TooLargeError(self._declared[number], f"rows {number}")
        return self._read(number, columns)

    def column(self, name: str, budget: Budget) -> Any:
        chunks = [chunk for n in range(len(self.sizes)) for chunk in self._read(n, [name]).column(name).chunks]
        return require("pyarrow", extra=EXTRA, why=WHY).chunked_array(chunks, self.schema.field(name).type)


@contextmanager
def _opened(path: Path) -> Iterator[_ArrowFile]:
    pyarrow = require("pyarrow", extra=EXTRA, why=WHY)
    with path.open("rb") as file:
        head = file.read(6)
    if head.startswith(b"PAR1"):
        parquet = require("pyarrow.parquet", extra=EXTRA, why=WHY)
        with parquet.ParquetFile(path, memory_map=False, pre_buffer=False) as table:
            groups = [table.metadata.row_group(number) for number in range(table.num_row_groups)]
            yield _ArrowFile(
                table.schema_arrow,
                [group.num_rows for group in groups],
                lambda number, columns: table.read_row_group(number, columns=columns, use_threads=False),
                [group.total_byte_size for group in groups],
            )
        return
    if head.startswith(b"FEA1"):
        raise ReadError(path, "a Feather file of version 1; convert it, e.g. pandas.read_feather(…).to_feather(…)")
    ipc = require("pyarrow.ipc", extra=EXTRA, why=WHY)
    with pyarrow.OSFile(str(path)) as source:
        if head == b"ARROW1":
            reader = ipc.open_file(source, options=ipc.IpcReadOptions(use_threads=False))
            batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
            schema = reader.schema
        else:
            with ipc.open_stream(source, options=ipc.IpcReadOptions(use_threads=False)) as stream:
                schema, batches = stream.schema, list(stream)
        yield _ArrowFile(
            schema,
            [batch.num_rows for batch in batches],
            lambda number, columns: pyarrow.Table.from_batches([batches[number]]).select(columns),
            [batch.nbytes for batch in batches],
        )
