"""NumPy files: ``.npz``, ``.npy`` and scipy's sparse ``.npz``. Never with pickle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from modalhash.data.formats._variables import OBJECTS, Variable, unreadable, variable_of

_FORMAT = "a NumPy file"


def variables(path: Path) -> list[Variable]:
    """List the arrays of the file; ``T_indptr``, ``T_indices`` and ``T_shape`` are one sparse matrix ``T``."""
    if path.suffix == ".npy":
        return [variable_of(path.stem, _load_npy(path), path)]
    try:
        archive = np.load(path, allow_pickle=False)
    except Exception as error:  # zipfile, zlib and numpy each have their own
        raise unreadable(path, _FORMAT, error) from error
    with archive:
        arrays: dict[str, Any] = {}
        objects: list[Variable] = []
        for name in archive.files:
            try:
                arrays[name] = archive[name]
            except ValueError as error:
                if "Object arrays" not in str(error):
                    raise unreadable(path, _FORMAT, error, name) from error
                objects.append(Variable(name, (), OBJECTS, lambda: None, path))
            except Exception as error:
                raise unreadable(path, _FORMAT, error, name) from error
    if {"format", "shape", "data"} <= set(arrays):
        return [variable_of(path.stem, _scipy_matrix(path), path)]
    for stem in [name[: -len("_indptr")] for name in arrays if name.endswith("_indptr")]:
        if f"{stem}_indices" in arrays and f"{stem}_shape" in arrays:
            arrays[stem] = _triple(path, stem, arrays)
    return [variable_of(name, value, path) for name, value in arrays.items()] + objects


def _load_npy(path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except ValueError as error:
        if "Object arrays" in str(error):
            raise TypeError(f"{path}: holds an object array; expected numbers. Objects are never loaded") from error
        raise unreadable(path, _FORMAT, error) from error
    except Exception as error:
        raise unreadable(path, _FORMAT, error) from error


def _scipy_matrix(path: Path) -> Any:
    try:
        return sparse.load_npz(path)
    except Exception as error:
        raise unreadable(path, "a scipy sparse matrix", error) from error


def _triple(path: Path, stem: str, arrays: dict[str, Any]) -> sparse.csr_array:
    indptr, indices = (arrays.pop(f"{stem}_{part}").astype(np.int32) for part in ("indptr", "indices"))
    rows, columns = (int(size) for size in arrays.pop(f"{stem}_shape"))
    shape = (rows, columns)
    values = arrays.pop(f"{stem}_data", None)
    if values is None:
        values = np.ones(len(indices), dtype=np.float32)
    try:
        matrix = sparse.csr_array((values, indices, indptr), shape=shape)
        matrix.check_format(full_check=True)
        return matrix
    except Exception as error:
        raise unreadable(path, f"CSR arrays of shape {shape}", error, stem) from error
