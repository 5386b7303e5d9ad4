"""Sparse matrices whose arrays do not fit together, as a file or a careless program may hand them over."""

from __future__ import annotations

import numpy as np
from scipy import sparse

ROWS, COLUMNS = 12, 6


def whole(kind: str = "csr"):
    """The matrix that the others are broken from: 0 and 1, two in every row."""
    dense = np.zeros((ROWS, COLUMNS), dtype=np.float32)
    dense[np.arange(ROWS), np.arange(ROWS) % COLUMNS] = 1
    dense[np.arange(ROWS), (np.arange(ROWS) + 1) % COLUMNS] = 1
    return getattr(sparse, f"{kind}_array")(dense)


def _with(kind: str, attribute: str, place, value):
    matrix = whole(kind)
    array = getattr(matrix, attribute).copy()
    array[place] = value
    setattr(matrix, attribute, array)
    return matrix


def _set(kind: str, attribute: str, value):
    matrix = whole(kind)
    setattr(matrix, attribute, value)
    return matrix


def _coo(axis: int, value: int):
    matrix = whole("coo")
    coords = [indices.copy() for indices in matrix.coords]
    coords[axis][3] = value
    matrix.coords = tuple(coords)
    return matrix


def _lil():
    matrix = whole("lil")
    matrix.rows[2] = [0, 10**6]
    return matrix


BROKEN = {
    "csr, column too large": lambda: _with("csr", "indices", 3, 10**6),
    "csr, column one too large": lambda: _with("csr", "indices", 3, COLUMNS),
    "csr, column negative": lambda: _with("csr", "indices", 3, -5),
    "csr, pointers beyond the end": lambda: _with("csr", "indptr", -1, 10**6),
    "csr, pointers descend": lambda: _with("csr", "indptr", 2, 20),
    "csr, pointers do not begin at 0": lambda: _with("csr", "indptr", 0, 1),
    "csr, a pointer is negative": lambda: _with("csr", "indptr", 1, -7),
    "csr, too few pointers": lambda: _set("csr", "indptr", np.array([0, 2, 4])),
    "csr, too few values": lambda: _set("csr", "data", np.ones(3, dtype=np.float32)),
    "csr, indices are no integers": lambda: _set("csr", "indices", np.zeros(2 * ROWS)),
    "csc, row too large": lambda: _with("csc", "indices", 3, 10**6),
    "csc, row negative": lambda: _with("csc", "indices", 3, -1),
    "csc, pointers beyond the end": lambda: _with("csc", "indptr", -1, 10**6),
    "bsr, column too large": lambda: _with("bsr", "indices", 0, 10**6),
    "coo, row too large": lambda: _coo(0, 10**6),
    "coo, column negative": lambda: _coo(1, -3),
    "lil, column too large": _lil,
}
