"""MATLAB files up to version 7, by scipy: dense, sparse, text and cell arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from modalhash._typing import Array
from modalhash.data.formats._variables import Variable, unreadable, variable_of

_FORMAT = "a MATLAB v5 file"
_NUMBERS = (
    "double",
    "single",
    "logical",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
)


def variables(path: Path) -> list[Variable]:
    """List the variables of the file; the elements of a cell array ``X`` are ``X{1}``, ``X{2}`` and so on."""
    from scipy.io import whosmat

    try:
        contents = whosmat(str(path))
    except Exception as error:  # scipy raises whatever the broken bytes lead to
        raise unreadable(path, _FORMAT, error) from error
    listed: list[Variable] = []
    for name, shape, kind in contents:
        if kind == "cell":
            listed += cell_variables(name, _load(path, name), path)
        elif kind == "char":
            listed.append(variable_of(name, stripped(_load(path, name)), path))
        elif kind == "sparse" or kind in _NUMBERS:
            label = "sparse" if kind == "sparse" else "numbers"
            listed.append(Variable(name, shape, label, _loader(path, name), path))
        else:
            listed.append(Variable(name, shape, kind, _loader(path, name), path))
    return listed


def cell_variables(name: str, cells: Array, path: Path) -> list[Variable]:
    """Return one variable for a cell array of texts, and one per cell for a cell array of matrices."""
    items = [np.asarray(cell) if isinstance(cell, str) else cell for cell in cells.ravel(order="F")]
    if items and all(isinstance(item, np.ndarray) and (item.dtype.kind == "U" or item.size == 0) for item in items):
        texts = np.array(["".join(item.ravel().tolist()) for item in items]).reshape(cells.shape, order="F")
        return [variable_of(name, stripped(texts), path)]
    return [variable_of(f"{name}{{{number}}}", item, path) for number, item in enumerate(items, 1)]


def stripped(texts: Array) -> Array:
    """Remove MATLAB's padding from texts; the columns of a row are joined to one path."""
    texts = np.char.rstrip(np.asarray(texts, dtype=str))
    if texts.ndim == 2 and 1 in texts.shape:
        texts = texts.ravel()
    if texts.ndim == 2:  # NUS-WIDE's image list has a folder and a file column
        texts = np.array(["/".join(row) for row in texts.tolist()])
    return texts


def _loader(path: Path, name: str) -> Any:
    return lambda: _load(path, name)


def _load(path: Path, name: str) -> Any:
    from scipy.io import loadmat

    try:
        return loadmat(str(path), variable_names=[name], spmatrix=False)[name]
    except Exception as error:
        raise unreadable(path, _FORMAT, error, name) from error
