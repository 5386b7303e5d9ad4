"""HDF5 files: MATLAB v7.3 and what Python programs write.

MATLAB stores its arrays with the axes reversed and marks them with ``MATLAB_class``: those are transposed here, so that
shapes are the ones MATLAB shows. Which axis counts the items is decided later, by shape.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from modalhash._imports import require
from modalhash._typing import Array
from modalhash.data.formats._variables import Variable, unreadable, variable_of
from modalhash.data.formats.matlab import cell_variables, stripped

_FORMAT = "an HDF5 or MATLAB v7.3 file"


def variables(path: Path) -> list[Variable]:
    """List the variables of the file; those inside groups are named ``group/name``."""
    h5py = require("h5py", extra="data", why=f"reading {path} (MATLAB v7.3 or HDF5)")
    try:
        with h5py.File(path, "r") as file:
            return _scan(h5py, file, "", path)
    except ValueError:
        raise
    except Exception as error:
        raise unreadable(path, _FORMAT, error) from error


def _scan(h5py: Any, group: Any, prefix: str, path: Path) -> list[Variable]:
    listed: list[Variable] = []
    for key in group:
        if key.startswith("#"):  # MATLAB's own group: the targets of references
            continue
        name, item = prefix + key, group.get(key)
        if item is None:
            raise ValueError(f"{path}, variable {name!r}: the link leads nowhere; the file is truncated or corrupt")
        kind = _matlab_class(item)
        if isinstance(item, h5py.Group):
            if "MATLAB_sparse" in item.attrs:
                listed.append(Variable(name, _sparse_shape(item), "sparse", _loader(path, name, _sparse), path))
            elif kind == "struct":
                listed.append(Variable(name, (), "struct", _loader(path, name, _dense), path))
            else:
                listed += _scan(h5py, item, name + "/", path)
        elif kind == "cell":
            listed += cell_variables(name, _cells(item), path)
        elif kind == "char" or h5py.check_string_dtype(item.dtype) is not None:
            listed.append(variable_of(name, _texts(item, kind), path))
        elif item.dtype.kind in "fiub":
            shape = item.shape[::-1] if _is_reversed(item) else item.shape
            listed.append(Variable(name, shape, "numbers", _loader(path, name, _dense), path))
        else:
            listed.append(Variable(name, item.shape, f"type {item.dtype}", _loader(path, name, _dense), path))
    return listed


def _matlab_class(item: Any) -> str:
    value = item.attrs.get("MATLAB_class", b"")
    return value.decode() if isinstance(value, bytes) else str(value)


def _loader(path: Path, name: str, convert: Any) -> Any:
    def load() -> Any:
        h5py = require("h5py", extra="data", why=f"reading {path}")
        try:
            with h5py.File(path, "r") as file:
                return convert(file[name])
        except Exception as error:
            raise unreadable(path, _FORMAT, error, name) from error

    return load


def _dense(item: Any) -> Array:
    values = np.asarray(item[()])
    return values.T if _is_reversed(item) else values


def _is_reversed(item: Any) -> bool:
    """Return whether MATLAB reversed the axes; pixels with the colours third were written in row order."""
    rows_first = len(item.shape) == 4 and item.shape[2] in (1, 3) and item.shape[1] not in (1, 3)
    return bool(_matlab_class(item)) and not rows_first


def _sparse_shape(group: Any) -> tuple[int, int]:
    return int(group.attrs["MATLAB_sparse"]), len(group["jc"]) - 1


def _sparse(group: Any) -> sparse.csr_array:
    shape = _sparse_shape(group)
    if "data" not in group:  # MATLAB leaves the arrays out where nothing is stored
        return sparse.csr_array(shape)
    indices, indptr = group["ir"][()].astype(np.int64), group["jc"][()].astype(np.int64)
    return sparse.csr_array(sparse.csc_array((group["data"][()], indices, indptr), shape=shape))


def _texts(item: Any, kind: str) -> Array:
    if kind != "char":
        return np.asarray(item.asstr()[()], dtype=str)
    if item.attrs.get("MATLAB_empty", 0):
        return np.array([""])
    characters = np.atleast_2d(item[()]).T  # one text per row
    return stripped(np.array(["".join(map(chr, row)) for row in characters.tolist()]))


def _cells(item: Any) -> Array:
    references = item[()].T
    cells = np.empty(references.shape, dtype=object)
    for index, reference in np.ndenumerate(references):
        target = item.file[reference]
        kind = _matlab_class(target)
        if "MATLAB_sparse" in target.attrs:
            cells[index] = _sparse(target)
        else:
            cells[index] = _texts(target, kind) if kind == "char" else _dense(target)
    return cells
