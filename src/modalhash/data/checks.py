"""Check the content of a data set; every error names the modality, the value and the remedy."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from modalhash.core.typing import Array, Matrix
from modalhash.core.validation import check_sparse, parse_labels as parse_labels


def label_names(rows: Iterable[Iterable[str]]) -> list[str]:
    """Return the sorted set of label names that occur in ``rows``."""
    return sorted({name for row in rows for name in row})


def label_matrix(rows: Sequence[Iterable[Hashable]], classes: Sequence[Hashable]) -> Array:
    """Return the boolean matrix (items, classes) of the labels; every label must be in ``classes``.

    Examples
    --------
    >>> label_matrix([["a", "c"], []], ["a", "b", "c"]).astype(int)
    array([[1, 0, 1],
           [0, 0, 0]])
    """
    column = {name: number for number, name in enumerate(classes)}
    matrix = np.zeros((len(rows), len(classes)), dtype=bool)
    for number, row in enumerate(rows):
        matrix[number, [column[name] for name in row]] = True
    return matrix


def clean_features(values: Any, where: str) -> Matrix:
    """Check that features are numeric with one row per item; convert sparse matrices to CSR."""
    if sparse.issparse(values):
        check_sparse(values, where)
        matrix: Matrix = sparse.csr_array(values)
        dtype = matrix.dtype
    elif isinstance(values, np.ndarray):
        matrix, dtype = values, values.dtype
    else:
        raise TypeError(f"{where}: features are {type(values).__name__}; expected a numpy array or a scipy matrix")
    if dtype.kind == "O":
        raise TypeError(
            f"{where}: features are an object array of shape {matrix.shape}; expected numbers. "
            "Stack the rows into one numeric array first, e.g. numpy.vstack(rows)"
        )
    if not (np.issubdtype(dtype, np.number) or dtype.kind == "b") or np.issubdtype(dtype, np.complexfloating):
        raise TypeError(f"{where}: features have type {dtype}; expected real numbers (texts and paths go to 'raw')")
    if matrix.ndim < 2:
        raise ValueError(f"{where}: features have shape {matrix.shape}; expected (items, features)")
    return matrix


def clean_labels(values: Any, where: str) -> Array:
    if sparse.issparse(values):
        check_sparse(values, f"{where}, labels")
        values = values.toarray()
    values = np.asarray(values)
    if values.dtype == object:
        raise TypeError(f"{where}: labels are an object array of shape {values.shape}; expected 0 and 1")
    if values.ndim != 2 or values.shape[1] == 0:
        raise ValueError(f"{where}: labels have shape {values.shape}; expected (items, classes) with 0 and 1")
    if values.dtype != bool:
        if not np.issubdtype(values.dtype, np.number):
            raise TypeError(f"{where}: labels have type {values.dtype}; expected 0 and 1")
        wrong = (values != 0) & (values != 1)
        if wrong.any():
            row, column = (int(i) for i in np.argwhere(wrong)[0])
            raise ValueError(
                f"{where}: labels are not binary: row {row}, class {column} is {values[row, column]}; "
                "expected only 0 and 1. Threshold weights or counts first, e.g. labels > 0"
            )
    labels: Array = np.ascontiguousarray(values, dtype=bool)
    if len(labels) and not labels.any():
        raise ValueError(
            f"{where}: none of the {len(labels)} items has a label (shape {values.shape}); expected "
            "at least one 1. Leave the labels out if there are no labels"
        )
    return labels


def clean_ids(values: Any, where: str) -> Array:
    """Return ids as a 1-D array of int64 or str without duplicates."""
    ids = np.asarray(values)
    if ids.dtype == object and all(isinstance(value, str) for value in ids.flat):
        ids = ids.astype(str)
    if ids.ndim != 1 or ids.dtype.kind not in "iuU":
        raise TypeError(f"{where}: ids have shape {ids.shape} and type {ids.dtype}; expected a 1-D array of int or str")
    if ids.dtype.kind in "iu":
        ids = ids.astype(np.int64, copy=False)
    unique, counts = np.unique(ids, return_counts=True)
    if len(unique) != len(ids):
        twice = unique[counts > 1]
        raise ValueError(
            f"{where}: {len(twice)} duplicate id(s), e.g. {shown(twice)}; every id must occur once. "
            "Use row numbers as ids if the source repeats its own"
        )
    return ids


def clean_raw(values: Any, where: str) -> Array:
    """Return texts or paths as a 1-D object array of str, which does not pad them to the longest."""
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "UO":
        given = list(values) if not isinstance(values, str) else None
        if given is None or (isinstance(values, np.ndarray) and len(given)):
            kind = f"type {values.dtype}" if isinstance(values, np.ndarray) else "one text"
            raise TypeError(f"{where}: raw items are {kind}; expected a list of str")
        values = np.empty(len(given), dtype=object)
        values[:] = given
    raw: Array = values.astype(object)
    if raw.ndim != 1 or not all(isinstance(value, str) for value in raw.flat):
        raise TypeError(f"{where}: raw items have shape {raw.shape} and type {values.dtype}; expected a list of str")
    return raw


def padded_bytes(longest: int, n: int) -> int:
    """Return the bytes that ``n`` texts take in a fixed-width array."""
    return 4 * longest * n


def rows_of(ids: Array, wanted: Any, where: str) -> Array:
    """Return the row numbers of the ids in ``wanted``, in that order."""
    wanted = np.asarray(wanted)
    if wanted.size == 0:
        return np.empty(0, dtype=np.intp)
    if wanted.ndim != 1 or (wanted.dtype.kind in "iu") != (ids.dtype.kind in "iu"):
        raise TypeError(
            f"{where}: got ids of type {wanted.dtype}, shape {wanted.shape}; the data set has "
            f"{ids.dtype}, e.g. {shown(ids[:1])}"
        )
    order = np.argsort(ids, kind="stable")
    position = np.minimum(np.searchsorted(ids, wanted, sorter=order), max(len(ids) - 1, 0))
    rows = order[position] if len(ids) else np.zeros(len(wanted), dtype=np.intp)
    unknown = ids[rows] != wanted if len(ids) else np.ones(len(wanted), dtype=bool)
    if unknown.any():
        raise ValueError(
            f"{where}: {int(unknown.sum())} of {len(wanted)} ids are not in the data set, e.g. {shown(wanted[unknown])}"
        )
    return rows


def check_mapping(value: Any, argument: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{argument} is {type(value).__name__}; expected a dict by modality name")
    for name in value:
        if not isinstance(name, str) or not name:
            raise TypeError(f"{argument} has the key {name!r}; a modality's name is a non-empty string")
    return dict(value)


def shown(values: Iterable[Any], limit: int = 3) -> str:
    values = list(values)
    some = ", ".join(repr(value.item() if isinstance(value, np.generic) else value) for value in values[:limit])
    return some + (", …" if len(values) > limit else "")
