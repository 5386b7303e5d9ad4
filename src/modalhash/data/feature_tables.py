"""Features in tables, in memory or in one file, and in folders of feature files.

A modality's features are one column of number lists (an embedding), or several columns of numbers: those named
``image_0``, ``image_1`` … or by the caller. Labels are a column of names, or several of 0 and 1.
:func:`open_feature_files` opens a folder of files as one dask array, for fits that one machine could not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from modalhash.core.blocks import row_slices
from modalhash.core.files import sha256_of
from modalhash.core.frames import BINARY, NUMBER, PICTURE, VECTOR, Frame, Origin, is_frame
from modalhash.core.imports import require
from modalhash.core.typing import Array
from modalhash.data.dataset import Dataset, Split, label_matrix, label_names, parse_labels
from modalhash.data.formats.manifest import LINE_FIELDS, manifest_columns, manifest_lines, parse_part, table_format
from modalhash.data.formats.sandbox import ReadLimits
from modalhash.data.formats.tables import SEPARATORS, TABLE_FILES, TableFormat, column_list, open_table
from modalhash.data.formats.variables import ReadError, text_array

CELLS = "cells"  # kind of a column with cells of any type, as in Excel and text tables
_ENDINGS = re.compile(r"[_ .-](embeddings?|features?|vectors?|emb)$", re.I)
_NUMBERED = re.compile(r"^(?P<stem>.*?)[_ .-]?(?P<number>\d+)$")

CHUNK_BYTES = 32 * 2**20  # approximate size of the chunks that ``.npy`` files are read in, bytes
FORMATS = ("npy", "parquet", "zarr")

Part = tuple[Callable[..., Array], tuple[Any, ...], int]
"""Reader of a chunk of rows: a function, its arguments, and the number of rows it returns."""


@dataclass(frozen=True)
class FeatureTable:
    """The columns of a table in a file or in memory."""

    where: str
    kinds: Mapping[str, str]
    numbers: Callable[[str], Array]
    values: Callable[[str], list[Any]]
    lines: Array  # the number of each row in the user's own counting
    unit: str
    first: int = 1  # number of the first row if ``unit`` is ``"row"``

    def error(self, reason: str, row: int | None = None) -> ReadError:
        if row is None:
            return ReadError(self.where, reason)
        number = int(self.lines[row])
        if self.unit == "line":
            return ReadError(self.where, reason, line=number)
        return ReadError(self.where, f"row {number} (counted from {self.first}): {reason}")


def has_columns(source: Any) -> bool:
    """Return whether a source is a table that may hold features: a file with columns, or a frame."""
    if isinstance(source, str | Path):
        return Path(source).suffix.lower() in (*SEPARATORS, *TABLE_FILES)
    return is_frame(source)


def holds_features(source: Any, fields: Mapping[str, Any] | None = None, table: TableFormat | None = None) -> bool:
    """Return whether a table holds features, by its columns or by ``fields``, not texts and paths."""
    if not has_columns(source) or (not is_frame(source) and not Path(source).is_file()):
        return False
    return bool(feature_columns(column_kinds(source, table), fields or {}))


def column_kinds(source: Any, table: TableFormat | None = None) -> dict[str, str]:
    """Return the columns of a table and their kinds, without reading its rows."""
    if not isinstance(source, str | Path):
        return Frame(source, "the source").kinds
    path = Path(source)
    if path.suffix.lower() in TABLE_FILES:
        return dict(open_table(path, table or TableFormat(), head=True).columns)
    return dict.fromkeys(manifest_columns(path, table=table) or (), CELLS)


def feature_columns(kinds: Mapping[str, str], fields: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the feature columns of each modality; empty if the table lists texts and files.

    Parameters
    ----------
    kinds
        the columns of the table
    fields
        given by the caller: a column of number lists, several columns, or a pattern such as ``"image_*"``
    """
    given = {modality: value for modality, value in fields.items() if modality not in LINE_FIELDS}
    if given:
        found = {}
        for modality, value in given.items():
            plain = isinstance(value, str) and "*" not in value
            if not plain or kinds.get(str(value)) in (NUMBER, VECTOR):
                found[modality] = named_columns(kinds, value, modality)
        return found
    items = [name for name in ("path", "text", "data") if kinds.get(name, VECTOR) != VECTOR]
    if items or kinds.get("image") in (PICTURE, BINARY):
        return {}
    own = {str(value) for value in fields.values() if isinstance(value, str)} | set(LINE_FIELDS)
    vectors = {_ENDINGS.sub("", name): [name] for name, kind in kinds.items() if kind == VECTOR and name not in own}
    if vectors:
        return vectors
    groups: dict[str, list[tuple[int, str]]] = {}
    for name, kind in kinds.items():
        if kind in (NUMBER, CELLS) and name not in own and (found_name := _NUMBERED.match(name)):
            groups.setdefault(found_name["stem"], []).append((int(found_name["number"]), name))
    return {stem: [name for _, name in sorted(some)] for stem, some in groups.items() if stem and len(some) > 1}


def named_columns(kinds: Mapping[str, str], value: Any, role: str) -> list[str]:
    wanted = [value] if isinstance(value, str) else list(value)
    names: list[str] = []
    for one in wanted:
        matching = [name for name in kinds if fnmatchcase(name, str(one))] if "*" in str(one) else [str(one)]
        if not matching or not set(matching) <= set(kinds):
            raise ValueError(f"{role}={one!r}: no such column; there are {column_list(list(kinds)) or 'none'}")
        names += matching
    return list(dict.fromkeys(names))


def read_table(
    source: Any,
    *,
    name: str,
    fields: Mapping[str, Any] | None = None,
    table: TableFormat | None = None,
    limits: ReadLimits | None = None,
) -> Dataset:
    """Return the data set of a table that holds features.

    ``source`` is a CSV, TSV, Excel, Parquet or Arrow file, or a frame. ``fields`` maps modalities to columns of
    features as in :func:`feature_columns` or of texts, and ``labels`` (one column, or several of 0 and 1), ``id`` and
    ``split``.
    """
    fields, limits = dict(fields or {}), limits or ReadLimits()
    if is_frame(source):
        frame, where = Frame(source, f"data set {name!r}"), f"the table {name!r}"
        opened = FeatureTable(where, frame.kinds, frame.numbers, frame.values, np.arange(len(frame)), "row", first=0)
        provenance: dict[str, Any] = {"source": where}
    else:
        path = Path(source)
        opened = _file_table(path, table, limits)
        digest = sha256_of([path])
        provenance = {"source": "table", "files": [path.name], "sha256": digest, "base": str(path.parent)}
    columns = feature_columns(opened.kinds, fields)
    raw = {
        modality: str(value)
        for modality, value in fields.items()
        if modality not in (*LINE_FIELDS, *columns) and isinstance(value, str)
    }
    for column in raw.values():
        named_columns(opened.kinds, column, "column")
    features, places = {}, {}
    for modality, names in columns.items():
        features[modality], places[modality] = _matrix(opened, names)
    n_items = len(next(iter(features.values())))
    if not n_items:
        raise opened.error("no rows; expected one for each item")
    rows, class_names = _labels(opened, fields, {*(c for some in columns.values() for c in some), *raw.values()})
    ids = _ids(opened, fields)
    modalities = [*features, *raw]
    return Dataset(
        features,
        dict.fromkeys(modalities, rows) if rows is not None else {},
        dict.fromkeys(modalities, ids),
        class_names=class_names,
        name=name,
        provenance=provenance,
        raw={modality: _raw(opened, column) for modality, column in raw.items()},
        split=_split(opened, fields, ids, modalities),
        origins={
            modality: Origin(
                ids, (opened.where,), (n_items,), opened.lines, places.get(modality), opened.unit, opened.first
            )
            for modality in modalities
        },
    )


def _file_table(path: Path, form: TableFormat | None, limits: ReadLimits) -> FeatureTable:
    if path.suffix.lower() in TABLE_FILES:
        opened = open_table(path, form or TableFormat(), warn=True, limits=limits)
        if (load := opened.numbers) is not None:
            rows: list[dict[str, Any]] = []

            def values(name: str) -> list[Any]:
                if not rows:
                    rows.extend(row for _, row in opened.rows())
                return [row[name] for row in rows]

            lines = np.arange(1, (opened.n_rows or 0) + 1)
            return FeatureTable(str(path), opened.columns, load, values, lines, "row")
        numbered, comma = list(opened.rows()), False
    else:
        found = table_format(path, form)
        numbered, comma = list(manifest_lines(path, table=form)), found.separator != ","
        limits.check(8 * sum(len(row) for _, row in numbered), path, "its columns as numbers")
    kinds = dict.fromkeys(numbered[0][1], CELLS) if numbered else {}
    lines = np.array([line for line, _ in numbered], dtype=np.int64)

    def cells(name: str) -> list[Any]:
        return [row[name] for _, row in numbered]

    def numbers(name: str) -> Array:
        return _parse_numbers(table, name, decimal_comma=comma)

    if not numbered:
        raise ReadError(path, "no rows below the names of the columns; expected one for each item")
    table = FeatureTable(str(path), kinds, numbers, cells, lines, "line")
    return table


def _parse_numbers(table: FeatureTable, name: str, *, decimal_comma: bool) -> Array:
    """Return the cells of a column as numbers; empty is NaN. Decimal commas need another separator."""
    cells = table.values(name)
    commas = decimal_comma and any(isinstance(cell, str) and "," in cell for cell in cells)
    numbers = np.empty(len(cells))
    for row, cell in enumerate(cells):
        text = cell.strip() if isinstance(cell, str) else cell
        if text is None or text == "":
            numbers[row] = np.nan
            continue
        try:
            if commas and isinstance(text, str):
                if "." in text:
                    raise ValueError
                text = text.replace(",", ".")
            numbers[row] = float(text)
        except (TypeError, ValueError, OverflowError):
            mixed = "; other cells have a decimal comma" if commas and "." in str(cell) else ""
            raise table.error(f"column {name!r} is {str(cell)[:40]!r}; expected a number{mixed}", row) from None
    return numbers


def _matrix(table: FeatureTable, names: Sequence[str]) -> tuple[Array, list[str]]:
    parts, columns = [], list[str]()
    for name in names:
        if table.kinds[name] not in (NUMBER, VECTOR, CELLS):
            raise table.error(f"column {name!r} holds {table.kinds[name]}; expected numbers, or lists of numbers")
        values = table.numbers(name)
        columns += [name] if values.ndim == 1 else [f"{name}[{at}]" for at in range(values.shape[1])]
        parts.append(values[:, None] if values.ndim == 1 else values)
    if any(part.dtype != np.float32 for part in parts):
        parts = [part.astype(np.float64, copy=False) for part in parts]
    return np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0], columns


def _labels(table: FeatureTable, fields: Mapping[str, Any], used: set[str]) -> tuple[Array | None, list[str]]:
    given = fields.get("labels")
    if given is None:
        given = next((name for name in ("labels", "label") if name in table.kinds and name not in used), None)
    if given is None:
        return None, []
    names = named_columns(table.kinds, given, "labels")
    if len(names) == 1 and isinstance(given, str) and "*" not in given:
        rows = []
        for row, cell in enumerate(table.values(names[0])):
            try:
                rows.append(parse_labels(cell))
            except ValueError as error:
                raise table.error(f"column {names[0]!r}: {error}", row) from None
        class_names = label_names(rows)
        return (label_matrix(rows, class_names), class_names) if class_names else (None, [])
    matrix, _ = _matrix(table, names)
    wrong = np.argwhere((matrix != 0) & (matrix != 1))
    if len(wrong):
        row, column = map(int, wrong[0])
        raise table.error(f"column {names[column]!r} is {matrix[row, column]:g}; expected a label: 0 or 1", row)
    prefix = str(given).partition("*")[0] if isinstance(given, str) else ""
    return matrix.astype(bool), [name.removeprefix(prefix) or name for name in names]


def _ids(table: FeatureTable, fields: Mapping[str, Any]) -> Array:
    column = fields.get("id", "id" if "id" in table.kinds else None)
    if column is None:
        return table.lines
    values = table.values(named_columns(table.kinds, column, "id")[0])
    for row, value in enumerate(values):
        if value is None or value == "":
            raise table.error(f"column {column!r} is empty; expected an id in every row", row)
    if all(isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 for value in values):
        return np.array(values, dtype=np.int64)
    return np.array([str(value) for value in values])


def _raw(table: FeatureTable, column: str) -> Array:
    cells = table.values(column)
    for row, cell in enumerate(cells):
        if isinstance(cell, bytes):
            raise table.error(f"column {column!r} holds bytes; a data set has texts and paths", row)
    return text_array(["" if cell is None else str(cell) for cell in cells])


def _split(table: FeatureTable, fields: Mapping[str, Any], ids: Array, modalities: Sequence[str]) -> Split | None:
    column = fields.get("split", "split" if "split" in table.kinds else None)
    if column is None:
        return None
    parts = []
    for row, cell in enumerate(table.values(named_columns(table.kinds, column, "split")[0])):
        try:
            parts.append(parse_part(cell or ""))
        except ValueError as error:
            raise table.error(str(error), row) from None
    present = set(parts)
    if "" in present and present != {""}:
        raise table.error("the row has no split but others do; expected all or none", parts.index(""))
    if not {"training", "query"} <= present:
        return None

    def of(part: str) -> dict[str, Array]:
        return dict.fromkeys(modalities, ids[np.array(parts) == part])

    return Split(of("training"), of("query"), of("database") if "database" in present else None)


def open_feature_files(folder: str | Path, *, columns: list[str] | None = None) -> Any:
    """Return the rows of all files of a folder as one lazy dask array, in the order of the files' names.

    Every worker must see the folder under the same path. Only headers are read before the array is computed.

    Parameters
    ----------
    folder : str or Path
        contains ``.npy`` files, or ``.parquet`` files, or is a Zarr array. A ``.npy`` file is a matrix. A Parquet file
        has one column of lists of equal length, or columns of numbers.
    columns : list of str, optional
        columns of Parquet files to take, in this order; all by default.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for i in range(3):
    ...     np.save(folder / f"{i:04}.npy", np.full((2, 4), i, dtype=np.float32))
    >>> open_feature_files(folder).shape
    (6, 4)
    """
    folder = Path(folder)
    if (folder / "zarr.json").is_file() or (folder / ".zarray").is_file():
        require("zarr", extra="dask", why="reading Zarr arrays")
        array: Any = require("dask.array", extra="dask", why="reading shards").from_zarr(str(folder))
        if array.ndim != 2:
            raise ReadError(folder, f"an array of shape {array.shape}; expected (items, features)")
        return array
    found = {suffix: sorted(folder.glob(f"*.{suffix}")) for suffix in ("npy", "parquet")}
    kinds = [suffix for suffix, files in found.items() if files]
    if len(kinds) != 1:
        there = "both .npy and .parquet files" if kinds else "no .npy or .parquet files, and no Zarr array"
        raise ReadError(folder, f"{there}; expected a folder with files of one kind: {', '.join(FORMATS)}")
    if columns is not None and kinds != ["parquet"]:
        raise ValueError(f"columns are for Parquet files; {folder} has .{kinds[0]} files")
    forms: list[tuple[Path, int, np.dtype[Any], list[Part]]] = [
        _npy_parts(file) if kinds == ["npy"] else _parquet_parts(file, columns) for file in found[kinds[0]]
    ]
    first, width, dtype, _ = forms[0]
    for file, other_width, other_dtype, _ in forms:
        if (other_width, other_dtype) != (width, dtype):
            raise ReadError(
                file,
                f"{other_width} columns of {other_dtype}; {first.name} has {width} of {dtype}. All files must agree",
            )
    dask_array = require("dask.array", extra="dask", why="reading shards")
    delayed = require("dask", extra="dask", why="reading shards").delayed
    pieces = [
        dask_array.from_delayed(delayed(read, pure=True)(*arguments), shape=(rows, width), dtype=dtype)
        for _, _, _, parts in forms
        for read, arguments, rows in parts
    ]
    if not pieces:
        raise ReadError(folder, "its files have no rows")
    return dask_array.concatenate(pieces)


def _npy_parts(file: Path) -> tuple[Path, int, np.dtype[Any], list[Part]]:
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ReadError(file, f"cannot be read as a matrix: {error}") from error
    if array.ndim != 2:
        raise ReadError(file, f"an array of shape {array.shape}; expected (items, features)")
    n, width = array.shape
    size = max(1, CHUNK_BYTES // max(1, width * array.dtype.itemsize))
    parts = [(read_npy, (str(file), rows.start, rows.stop), rows.stop - rows.start) for rows in row_slices(n, size)]
    return file, width, array.dtype, list(parts)


def read_npy(file: str, start: int, stop: int) -> Array:
    return np.array(np.load(file, mmap_mode="r", allow_pickle=False)[start:stop])


def _parquet_parts(file: Path, columns: list[str] | None) -> tuple[Path, int, np.dtype[Any], list[Part]]:
    parquet = require("pyarrow.parquet", extra="dask", why="reading Parquet")
    try:
        with parquet.ParquetFile(file) as opened:
            sizes = [opened.metadata.row_group(i).num_rows for i in range(opened.metadata.num_row_groups)]
            names = list(opened.schema_arrow.names)
    except Exception as error:  # pyarrow's errors have no common base
        raise ReadError(file, f"cannot be read as Parquet: {error}") from error
    wanted = names if columns is None else columns
    if missing := [name for name in wanted if name not in names]:
        raise ReadError(file, f"has no column {missing[0]!r}; it has {', '.join(names)}")
    parts: list[Part] = [(read_parquet, (str(file), i, wanted), n) for i, n in enumerate(sizes) if n]
    if not parts:
        raise ReadError(file, "has no rows; remove it")
    like = read_parquet(*parts[0][1])
    return file, like.shape[1], like.dtype, parts


def read_parquet(file: str, group: int, columns: list[str]) -> Array:
    """Return one row group of a Parquet file as a matrix, from a column of lists or columns of numbers."""
    parquet = require("pyarrow.parquet", extra="dask", why="reading Parquet")
    with parquet.ParquetFile(file) as opened:
        table = opened.read_row_group(group, columns=columns).select(columns)
    return np.ascontiguousarray(np.concatenate([_column(table.column(name), name, file) for name in columns], axis=1))


def _column(column: Any, name: str, file: str) -> Array:
    types = require("pyarrow", extra="dask", why="reading Parquet").types
    compute = require("pyarrow.compute", extra="dask", why="reading Parquet")
    nested = any(is_kind(column.type) for is_kind in (types.is_fixed_size_list, types.is_list, types.is_large_list))
    lengths = compute.list_value_length(column).unique() if nested else [1]
    values = compute.list_flatten(column) if nested else column
    if len(lengths) != 1 or column.null_count or values.null_count:
        raise ReadError(file, "has lists of different lengths, or missing values", variable=name)
    numbers = values.to_numpy()
    if numbers.dtype.kind not in "biuf":
        raise ReadError(
            file, f"has {values.type} values; expected numbers. Select other columns with columns=", variable=name
        )
    return np.asarray(numbers.reshape(len(column), -1))
