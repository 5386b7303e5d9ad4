"""Read MATLAB files up to version 7 with scipy: dense, sparse, text and cell arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from modalhash.core.typing import Array
from modalhash.data.formats.variables import Budget, Found, SparseParts, Value, found, kind_of, text_array

WHAT = "a MATLAB v5 file"
_ITEM_BYTES = {
    "double": 8, "single": 4, "logical": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2,
    "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
}  # fmt: skip
_CELL_BYTES, _CHARACTER_BYTES = 100, 16
"""Minimum memory of a cell and of a character while they are read, bytes."""


def prepare() -> None:
    import scipy.io.matlab  # noqa: F401


def variables(path: Path, budget: Budget) -> list[Found]:
    """List the variables of the file; the elements of a cell array ``X`` are ``X{1}``, ``X{2}`` and so on."""
    listed: list[Found] = []
    for name, shape, kind in _contents(path):
        if kind == "cell":
            budget.take(shape, _CELL_BYTES, name)
            listed += cell_variables(name, _loaded(path, name))
        elif kind == "char":
            budget.take(shape, _CHARACTER_BYTES, name)
            listed.append(found(name, stripped(_loaded(path, name))))
        elif kind in _ITEM_BYTES:
            listed.append(Found(name, shape, "numbers"))
        else:
            listed.append(Found(name, shape, kind))
    return listed


def load(path: Path, name: str, budget: Budget) -> Value:
    shape, kind = next((shape, kind) for own, shape, kind in _contents(path) if own == name)
    if kind in _ITEM_BYTES:
        budget.take(shape, _ITEM_BYTES[kind], name)
    return _value(_loaded(path, name))


def _contents(path: Path) -> list[tuple[str, tuple[int, ...], str]]:
    from scipy.io import whosmat

    with path.open("rb") as file:  # an open file, because scipy adds .mat to other names
        return list(whosmat(file))


def _loaded(path: Path, name: str) -> Any:
    from scipy.io import loadmat

    with path.open("rb") as file:
        return loadmat(file, variable_names=[name], spmatrix=False)[name]


def _value(values: Any) -> Value:
    """Return numbers or the parts of a sparse matrix; its indices are not checked yet."""
    if isinstance(values, SparseParts):
        return values
    kind = getattr(values, "format", None)
    if kind in ("csr", "csc"):
        return SparseParts(kind, values.shape, values.data, values.indices, values.indptr)
    if kind == "coo":  # version 4
        rows, columns = values.coords
        return SparseParts("coo", values.shape, values.data, columns, rows)
    return np.asarray(values)


def cell_variables(name: str, cells: Array) -> list[Found]:
    """Return one variable for a cell array of texts, or one per cell for matrices."""
    items = [_value(np.asarray(cell) if isinstance(cell, str) else cell) for cell in cells.ravel(order="F").tolist()]
    texts = [_text(item) for item in items]
    if texts and None not in texts:
        return [found(name, stripped(text_array([text or "" for text in texts]).reshape(cells.shape, order="F")))]
    return [_cell(f"{name}{{{number}}}", item) for number, item in enumerate(items, 1)]


def _text(item: Value) -> str | None:
    if isinstance(item, np.ndarray) and (item.dtype.kind == "U" or item.size == 0):
        return "".join(map(str, item.ravel().tolist()))
    return None


def _cell(name: str, item: Value) -> Found:
    if isinstance(item, np.ndarray) and item.dtype.kind not in "biufc":
        return Found(name, item.shape, f"cell of {kind_of(item.dtype)}")
    return found(name, item)


def stripped(texts: Array) -> Array:
    """Remove MATLAB's padding from texts; join the columns of a row to a path."""
    if texts.ndim == 2 and 1 in texts.shape:
        texts = texts.ravel()
    if texts.ndim == 2:  # NUS-WIDE's image list has a folder and a file column
        return text_array(["/".join(str(part).rstrip() for part in row) for row in texts.tolist()])
    return text_array([str(text).rstrip() for text in texts.ravel().tolist()], texts.shape)
