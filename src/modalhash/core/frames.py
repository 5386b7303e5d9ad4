"""Frames, Arrow tables and Hugging Face data sets as columns of plain values and as labels, and the origins of rows.

They are recognised by the module of their class and read through narwhals, so no package is imported in vain; pandas is
never imported here.

:class:`Origin` and :class:`TracedFeatures` have the origins of rows, so that an error names the row of the user's file
instead of that of an array.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from modalhash.core.imports import require
from modalhash.core.typing import Array, Matrix

NUMBER, VECTOR, TEXT, NAMES, BINARY, PICTURE, OTHER = "number", "vector", "text", "names", "bytes", "picture", "other"
"""Kinds of columns; VECTOR is a list of numbers, NAMES a list of texts."""
_PACKAGES = ("pandas", "polars", "pyarrow", "datasets", "modin", "cudf", "geopandas")
_CLASSES = ("DataFrame", "Series", "Table", "RecordBatch", "ChunkedArray", "Dataset", "LazyFrame", "IterableDataset",
            "DatasetDict", "GeoDataFrame", "GeoSeries")  # fmt: skip
EXTRA = "tables"


def is_frame(value: Any) -> bool:
    """Return whether a value is a frame or a column of one, an Arrow table or a Hugging Face data set."""
    return any(
        one.__module__.partition(".")[0] in _PACKAGES and one.__name__ in _CLASSES for one in type(value).__mro__
    )


def kind_of_frame(value: Any) -> str:
    """Return the name of a frame for errors, e.g. ``"a pandas DataFrame"``."""
    return f"a {type(value).__module__.partition('.')[0]} {type(value).__name__}"


def name_row(native: Any, number: int) -> str:
    """Return the name of a row for errors: its number, and its label in pandas."""
    index = getattr(native, "index", None)
    if index is not None and hasattr(index, "__getitem__") and not callable(index):
        label = index[number]
        label = label.item() if isinstance(label, np.generic) else label
        if label != number:
            return f"row {number} (counted from 0; index {label!r})"
    return f"row {number} (counted from 0)"


class Frame:
    """The columns of a table in memory.

    Parameters
    ----------
    native : a pandas, polars or Arrow frame or column, or a ``datasets.Dataset``
    what : name for errors, e.g. ``"'image'"``
    """

    def __init__(self, native: Any, what: str) -> None:
        self.what, self.native = what, native
        self.is_column = False
        self._classes: dict[str, list[str]] = {}
        package = type(native).__module__.partition(".")[0]
        if package == "datasets":
            native = self._hugging_face(native)
        given = [str(name) for name in getattr(native, "columns", ())] if package == "pandas" else []
        if twice := [name for name in given if given.count(name) > 1]:
            raise ValueError(f"{what}: two columns are called {twice[0]!r}; rename one")
        nw: Any = require("narwhals", extra=EXTRA, why=f"reading {kind_of_frame(self.native)}")
        if type(native).__name__ == "RecordBatch":
            native = require("pyarrow", extra=EXTRA, why="reading Arrow").Table.from_batches([native])
        frame: Any = nw.from_native(native, allow_series=True)
        if isinstance(frame, nw.LazyFrame):
            raise TypeError(f"{what} is {kind_of_frame(self.native)}, which holds no rows yet; pass its .collect()")
        if isinstance(frame, nw.Series):
            self.is_column = True
            frame = frame.alias(frame.name or "column").to_frame()
        self._nw, self._frame = nw, frame
        names = [str(name) for name in frame.columns]
        self._names = dict(zip(names, frame.columns, strict=True))
        self.kinds = {name: self._kind(self._series(name)) for name in names}

    def __len__(self) -> int:
        return len(self._frame)

    @property
    def columns(self) -> list[str]:
        return list(self._names)

    def row(self, number: int) -> str:
        return name_row(self.native, number)

    def _series(self, name: str) -> Any:
        return self._frame.get_column(self._names[name])

    def _hugging_face(self, native: Any) -> Any:
        """Return the Arrow table of a data set without decoding pictures, and keep its class names."""
        datasets: Any = require("datasets", extra=EXTRA, why="reading a Hugging Face data set")
        if type(native).__name__ == "DatasetDict":
            raise TypeError(f"{self.what} is a DatasetDict; pass one of its parts: {', '.join(map(repr, native))}")
        if type(native).__name__ != "Dataset":
            raise TypeError(f"{self.what} is {kind_of_frame(native)}; expected a datasets.Dataset, whose rows are here")
        for name, feature in dict(native.features).items():
            if isinstance(feature, datasets.Image):
                native = native.cast_column(name, datasets.Image(decode=False))
            inner = getattr(feature, "feature", feature)
            if isinstance(inner, datasets.ClassLabel):
                self._classes[name] = list(inner.names)
        return native.with_format("arrow")[:]

    def _kind(self, series: Any) -> str:
        nw, dtype = self._nw, series.dtype
        if dtype.is_numeric() or dtype == nw.Boolean:
            return TEXT if series.name in self._classes else NUMBER
        if dtype in (nw.String, nw.Categorical, nw.Enum):
            return TEXT
        if dtype == nw.Binary:
            return BINARY
        if isinstance(dtype, nw.List | nw.Array):
            inner = dtype.inner
            if inner in (nw.String, nw.Categorical, nw.Enum) or series.name in self._classes:
                return NAMES
            return VECTOR if inner.is_numeric() or inner == nw.Boolean else OTHER
        if isinstance(dtype, nw.Struct):
            return PICTURE if {field.name for field in dtype.fields} == {"bytes", "path"} else OTHER
        if dtype == nw.Object or dtype == nw.Unknown:
            return _kind_of_cells(series.to_list())
        return OTHER

    def numbers(self, name: str) -> Array:
        """Return a column of numbers (rows,) or of lists of numbers (rows, width); missing values become NaN."""
        series = self._series(name)
        if self.kinds[name] == VECTOR:
            return self._vectors(name, series)
        if series.dtype.is_integer() and series.null_count():
            series = series.cast(self._nw.Float64)
        if series.dtype == self._nw.Boolean and series.null_count():
            series = series.cast(self._nw.Int8).cast(self._nw.Float64)
        values = series.to_numpy()
        if values.dtype == object:
            values = np.array([np.nan if _is_missing(one) else one for one in values.tolist()], dtype=np.float64)
        return values

    def _vectors(self, name: str, series: Any) -> Array:
        rows = list(series.to_numpy()) if series.implementation.is_polars() else series.to_list()
        width = None
        for number, cell in enumerate(rows):
            where = f"{self.what}: {self.row(number)}, column {name!r}"
            if _is_missing(cell):
                raise ValueError(f"{where} is empty; expected a list of numbers in every row")
            if width is not None and len(cell) != width:
                raise ValueError(f"{where} has {len(cell)} numbers, row 0 has {width}; expected as many")
            width = len(cell)
        try:
            values = np.array(rows)
            if values.dtype == object:
                values = np.array([[np.nan if one is None else one for one in row] for row in rows], dtype=float)
        except (ValueError, TypeError):
            values = np.empty(0, dtype=object)
        if values.ndim != 2 or values.dtype.kind not in "biuf":
            raise ValueError(f"{self.what}: column {name!r} holds lists; expected lists of numbers")
        return values

    def values(self, name: str) -> list[Any]:
        """Return the cells of a column as plain values; None if missing."""
        cells = [_plain(cell) for cell in self._series(name).to_list()]
        if (classes := self._classes.get(name)) is not None:
            return [None if cell is None else _named(cell, classes) for cell in cells]
        return cells

    def rows(self, size: int = 1024) -> Iterator[dict[str, Any]]:
        """Yield every row as a dict, without columns of number lists."""
        names = [name for name, kind in self.kinds.items() if kind != VECTOR]
        for start in range(0, len(self), size):
            part = object.__new__(Frame)
            part.__dict__.update(self.__dict__)
            part._frame = self._frame[start : start + size]
            columns = [part.values(name) for name in names]
            yield from (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def frame_columns(native: Any) -> list[str]:
    names = getattr(native, "column_names", None)
    if names is None and not hasattr(native, "name"):
        names = getattr(native, "columns", None)
    return [str(name) for name in names] if names is not None and is_frame(native) else []


def frame_matrix(native: Any, name: str) -> tuple[Matrix, Sequence[str]]:
    """Return the features in a frame (numbers, or lists of numbers) and the names of their columns."""
    if (sparse := _pandas_sparse(native)) is not None:
        return sparse, [str(one) for one in native.columns]
    frame = Frame(native, repr(name))
    wrong = [column for column, kind in frame.kinds.items() if kind not in (NUMBER, VECTOR)]
    if wrong:
        kinds = {TEXT: "texts", NAMES: "lists of texts", BINARY: "bytes", PICTURE: "pictures"}
        held = kinds.get(frame.kinds[wrong[0]], "no numbers")
        raise TypeError(
            f"{name!r}: column {wrong[0]!r} of {kind_of_frame(native)} holds {held}; expected features, which are "
            f"numbers. Select numeric columns, e.g. frame[{[one for one in frame.columns if one not in wrong][:3]!r}]"
        )
    if frame.is_column and frame.kinds[frame.columns[0]] == NUMBER:
        raise ValueError(
            f"{name!r}: got one column of numbers, shape ({len(frame)},); expected (items, features). Pass a frame, or "
            "a column of lists"
        )
    parts, columns = [], list[str]()
    for column in frame.columns:
        values = frame.numbers(column)
        columns += [column] if values.ndim == 1 else [f"{column}[{at}]" for at in range(values.shape[1])]
        parts.append(values[:, None] if values.ndim == 1 else values)
    if not parts:
        raise ValueError(f"{name!r}: got {kind_of_frame(native)} without columns; expected items and features")
    if any(part.dtype != np.float32 for part in parts):
        parts = [part.astype(np.float64, copy=False) for part in parts]
    return np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0], columns


def _pandas_sparse(native: Any) -> Any:
    """Return the matrix of a pandas frame with sparse columns only; None for any other."""
    if type(native).__module__.partition(".")[0] != "pandas" or not hasattr(native.dtypes, "items"):
        return None
    dtypes: Any = native.dtypes
    if not len(native.columns) or not all(type(dtype).__name__ == "SparseDtype" for dtype in dtypes):
        return None
    if any(dtype.fill_value != 0 for dtype in dtypes):
        return native.sparse.to_dense().to_numpy()
    return native.sparse.to_coo().tocsr()


def _kind_of_cells(cells: list[Any]) -> str:
    """Return the kind of a column of Python objects, which is that of its first non-missing cell."""
    first = next((cell for cell in cells if not _is_missing(cell)), None)
    if first is None or isinstance(first, str):
        return TEXT
    if isinstance(first, bool | int | float | np.number):
        return NUMBER
    if isinstance(first, bytes | bytearray):
        return BINARY
    if isinstance(first, list | tuple | set | frozenset | np.ndarray):
        lists = (cell for cell in cells if isinstance(cell, list | tuple | set | frozenset | np.ndarray))
        inner = next((one for cell in lists for one in cell), "")
        return VECTOR if isinstance(inner, int | float | np.number) else NAMES if isinstance(inner, str) else OTHER
    if (isinstance(first, dict) and first.keys() == {"bytes", "path"}) or _is_pillow(first):
        return PICTURE
    return OTHER


def _is_pillow(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "PIL" and hasattr(value, "save")


def _is_missing(cell: Any) -> bool:
    """Return whether a cell is missing (None, NaN, NaT or pandas' NA)."""
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(cell, float | np.floating) and bool(np.isnan(cell))


def _plain(cell: Any) -> Any:
    if _is_missing(cell):
        return None
    if isinstance(cell, np.generic):
        return cell.item()
    if isinstance(cell, np.ndarray | tuple):
        return [_plain(one) for one in (cell.tolist() if isinstance(cell, np.ndarray) else cell)]
    if isinstance(cell, set | frozenset):
        return sorted(map(str, cell))
    if isinstance(cell, dict) and cell.keys() == {"bytes", "path"}:
        return cell["bytes"] if cell["bytes"] is not None else cell["path"]
    if _is_pillow(cell):
        return _picture_bytes(cell)
    if isinstance(cell, str | bytes | bool | int | float | list | dict):
        return cell
    return cell.isoformat() if hasattr(cell, "isoformat") else str(cell)


def _picture_bytes(picture: Any) -> bytes:
    """Return an open picture as the bytes of a PNG, or a TIFF if PNG cannot hold its mode."""
    from io import BytesIO

    target = BytesIO()
    picture.save(target, format="PNG" if picture.mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16") else "TIFF")
    return target.getvalue()


def _named(cell: Any, names: list[str]) -> list[str]:
    """Return the names of class numbers of Hugging Face's ``ClassLabel``; −1 means no class."""
    numbers = cell if isinstance(cell, list) else [cell]
    return [names[one] for one in numbers if isinstance(one, int) and 0 <= one < len(names)]


def frame_labels(Y: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return labels in which frames are 0/1 arrays, with the same classes as columns in every modality.

    Columns of 0 and 1 are classes, matched by name. A single column of names, lists of names or class numbers becomes
    one column for each name that occurs in any modality.
    """
    frames = {name: Frame(values, f"{name!r}, labels") for name, values in Y.items() if is_frame(values)}
    if not frames:
        return Y
    if others := [name for name in Y if name not in frames]:
        raise TypeError(
            f"labels of {quoted(frames)} are frames, and those of {quoted(others)} an array, whose columns have no "
            "names to match. Pass all as frames, or all as arrays"
        )
    indicators = {name: frame for name, frame in frames.items() if _are_indicators(frame)}
    if indicators and len(indicators) < len(frames):
        others = [name for name in frames if name not in indicators]
        raise TypeError(
            f"labels of {quoted(indicators)} are columns of 0 and 1, and those of {quoted(others)} names: pass all in "
            "one form"
        )
    if indicators:
        first = next(iter(indicators))
        columns = indicators[first].columns
        for name, frame in indicators.items():
            if set(frame.columns) != set(columns):
                odd = sorted(set(frame.columns) ^ set(columns))
                raise ValueError(
                    f"label columns of {first!r} and {name!r} differ: only one has {', '.join(map(repr, odd[:5]))}; "
                    "all share the same classes. Add the column, with 0 in it, where it is missing"
                )
        return {name: _indicator_matrix(frame, columns) for name, frame in frames.items()}
    cells = {name: _label_cells(frame, name) for name, frame in frames.items()}
    classes = {word: at for at, word in enumerate(sorted({w for rows in cells.values() for row in rows for w in row}))}
    spread = {}
    for name, rows in cells.items():
        spread[name] = np.zeros((len(rows), max(1, len(classes))), dtype=bool)
        for number, row in enumerate(rows):
            spread[name][number, [classes[word] for word in row]] = True
    return spread


def _indicator_matrix(frame: Frame, columns: list[str]) -> Array:
    matrix = np.stack([frame.numbers(column) for column in columns], axis=1)
    wrong = np.argwhere((matrix != 0) & (matrix != 1))
    if len(wrong):
        row, column = map(int, wrong[0])
        raise ValueError(
            f"{frame.what}: {frame.row(row)}, column {columns[column]!r} is {matrix[row, column].item()!r}; expected "
            "only 0 and 1. Threshold weights or counts first, e.g. Y > 0; class numbers go into one column"
        )
    return matrix.astype(bool)


def _are_indicators(frame: Frame) -> bool:
    """Return whether labels are columns of 0 and 1: several columns, or a boolean one."""
    if any(kind != NUMBER for kind in frame.kinds.values()):
        if len(frame.columns) > 1:
            odd = next(name for name, kind in frame.kinds.items() if kind != NUMBER)
            raise TypeError(
                f"{frame.what} are {len(frame.columns)} columns, and {odd!r} holds no numbers; expected one column of "
                f"names, e.g. frame[{odd!r}], or several of 0 and 1"
            )
        return False
    return len(frame.columns) != 1 or bool(frame.numbers(frame.columns[0]).dtype == bool)


def _label_cells(frame: Frame, name: str) -> list[tuple[str, ...]]:
    """Return the labels of each row, from names, lists of names, ``a;b`` or class numbers."""
    column = frame.columns[0]
    if (kind := frame.kinds[column]) not in (TEXT, NAMES, NUMBER):
        raise TypeError(
            f"{name!r}: labels are {kind_of_frame(frame.native)} of {kind} values; expected names, lists of names, "
            "class numbers, or columns of 0 and 1"
        )
    cells = []
    for number, cell in enumerate(frame.values(column)):
        try:
            cells.append(parse_labels(cell))
        except ValueError as error:
            raise ValueError(f"{name!r}: {frame.row(number)}, column {column!r}: {error}") from None
    return cells


def parse_labels(value: Any) -> tuple[str, ...]:
    """Return the distinct label names of one item.

    Parameters
    ----------
    value
        A list of names, a text with ``;`` or ``|`` between the names, a class number, None or an empty text.

    Examples
    --------
    >>> parse_labels("dog; pet"), parse_labels(["house", 7]), parse_labels(3), parse_labels("")
    (('dog', 'pet'), ('house', '7'), ('3',), ())
    """
    if value is None or (isinstance(value, str) and not value):
        return ()
    if isinstance(value, float):
        if value != value:
            return ()
        value = int(value) if value.is_integer() else value
    if isinstance(value, int) and not isinstance(value, bool):
        value = [value]
    if isinstance(value, str):
        value = value.replace("|", ";").split(";")
    if not isinstance(value, list | tuple) or any(isinstance(word, dict | list) for word in value):
        raise ValueError(f"labels are {reprlib.repr(value)}; expected a list of names, or names separated by ';'")
    words = (str(word).strip() for word in value if word is not None)
    return tuple(dict.fromkeys(word for word in words if word))


def quoted(names: Any) -> str:
    return ", ".join(repr(name) for name in names)


@dataclass(frozen=True)
class Origin:
    """Positions of the items of one modality in the files that they were read from.

    Parameters
    ----------
    ids : of all items that were read
    pieces : names, for errors, of the files or variables that they were read from, in order
    ends : number of items up to the end of each piece
    lines : line or row number of each item in its piece; by default counted from ``first``
    columns : names of the features, if any
    unit : what the numbers count: ``"line"`` or ``"row"``
    first : number of the first row; lines count from 1

    Examples
    --------
    >>> origin = Origin(np.array(["a", "b", "c"]), ("'I_tr'", "'I_te'"), (2, 3))
    >>> origin.place("c", 4)
    "'I_te', row 1 (counted from 1), feature 4"
    """

    ids: Array
    pieces: tuple[str, ...]
    ends: tuple[int, ...]
    lines: Array | None = None
    columns: Sequence[str] | None = None
    unit: str = "row"
    first: int = 1

    def place(self, id: Any, column: int | None = None) -> str | None:
        """Describe the position of an item; None if it was not read from here."""
        found = np.flatnonzero(self.ids == id)
        if len(found) != 1:
            return None
        row = int(found[0])
        piece = int(np.searchsorted(self.ends, row, side="right"))
        start = self.ends[piece - 1] if piece else 0
        number = row - start + self.first if self.lines is None else int(self.lines[row])
        counted = f" (counted from {self.first})" if self.unit == "row" else ""
        text = f"{self.pieces[piece]}, {self.unit} {number}{counted}"
        if column is None:
            return text
        named = self.columns is not None and column < len(self.columns)
        return f"{text}, column {self.columns[column]!r}" if named and self.columns else f"{text}, feature {column}"

    def lines_by_id(self) -> dict[Any, int]:
        """Return the line of each item by its id if all come from one file with lines."""
        if self.lines is None or len(self.pieces) != 1 or self.unit != "line":
            return {}
        return dict(zip(self.ids.tolist(), self.lines.tolist(), strict=True))


class TracedFeatures(dict[str, Matrix]):
    """Features by modality, with the ids and origins of their rows."""

    def __init__(self, features: Mapping[str, Matrix], ids: Mapping[str, Array], origins: Mapping[str, Origin]) -> None:
        super().__init__(features)
        self._ids, self._origins = ids, origins

    def place(self, modality: str, row: int, column: int | None = None) -> str | None:
        """Describe the position of a row in its file; None if unknown."""
        origin, ids = self._origins.get(modality), self._ids.get(modality)
        if origin is None or ids is None or row >= len(ids):
            return None
        return origin.place(ids[row], column)

    def __reduce__(self) -> Any:
        return TracedFeatures, (dict(self), self._ids, self._origins)
