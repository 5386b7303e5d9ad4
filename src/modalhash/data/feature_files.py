"""Features or labels in many files, as one dask array: for fits that no single machine could read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from modalhash.core.blocks import row_slices
from modalhash.core.imports import require
from modalhash.core.typing import Array
from modalhash.data.read_error import ReadError

CHUNK_BYTES = 32 * 2**20
"""Rows of a file that are read at once. Files are cut into chunks of about this size."""
FORMATS = ("npy", "parquet", "zarr")

Part = tuple[Callable[..., Array], tuple[Any, ...], int]
"""How some rows are read: a function, its arguments, and how many rows it returns."""


def open_feature_files(folder: str | Path, *, columns: list[str] | None = None) -> Any:
    """Return the rows of all files of a folder as one dask array, lazily, in the order of the files' names.

    Every worker has to see the folder under the same path. Nothing but headers is read before the array is computed.

    Parameters
    ----------
    folder : str or Path
        It holds ``.npy`` files, or ``.parquet`` files, or it is a Zarr array. A ``.npy`` file is a matrix. A Parquet
        file has one column of lists of equal length, or columns of numbers.
    columns : list of str, optional
        The columns of Parquet files to take, in this order; all of them by default.

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
                file, f"{other_width} columns of {other_dtype}; {first.name} has {width} of {dtype}. Make them alike"
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
    """Return these rows of a ``.npy`` file."""
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
    """Return one row group of a Parquet file as a matrix: one column of lists, or columns of numbers."""
    parquet = require("pyarrow.parquet", extra="dask", why="reading Parquet")
    with parquet.ParquetFile(file) as opened:
        table = opened.read_row_group(group, columns=columns).select(columns)
    return np.ascontiguousarray(np.concatenate([_column(table.column(name), name, file) for name in columns], axis=1))


def _column(column: Any, name: str, file: str) -> Array:
    """A column as a matrix: its lists, or its numbers below each other."""
    types = require("pyarrow", extra="dask", why="reading Parquet").types
    compute = require("pyarrow.compute", extra="dask", why="reading Parquet")
    nested = any(is_kind(column.type) for is_kind in (types.is_fixed_size_list, types.is_list, types.is_large_list))
    lengths = compute.list_value_length(column).unique() if nested else [1]
    values = compute.list_flatten(column) if nested else column
    if len(lengths) != 1 or column.null_count or values.null_count:
        raise ReadError(file, "has lists of several lengths, or nothing in some rows", variable=name)
    numbers = values.to_numpy()
    if numbers.dtype.kind not in "biuf":
        raise ReadError(file, f"has {values.type} where numbers are expected; name others by columns=", variable=name)
    return np.asarray(numbers.reshape(len(column), -1))
