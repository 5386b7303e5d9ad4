"""Validation of user input: features, labels, pairs and parameters.

The results are float arrays or canonical CSR, boolean labels and row ids of pairs. Every error names the modality, what
was passed, what was expected and what to do.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import numpy as np
import scipy

from modalhash.core.frames import TracedFeatures, frame_columns, frame_labels, frame_matrix, is_frame, name_row, quoted
from modalhash.core.typing import Array, Matrix

T = TypeVar("T")
Place = Callable[[int, int], str]

MAX_FEATURE = 1e15
"""Largest accepted feature; its inverse is the smallest accepted maximum of a modality. Outside this range, sums of
squares overflow or vanish in float32, in which kernels work, and all items would get the same code."""
USUAL_FEATURE = 1e5
"""If the largest feature of a modality is above this, or below its inverse, a fit in which all codes are equal raises.
With usual features, equal codes mean that there was nothing to learn, which is not an error."""


def check_features(X: Any, *, expected: Mapping[str, int] | None = None, first_row: int = 0) -> dict[str, Matrix]:
    """Return checked features by modality.

    ``expected`` maps the fitted modalities to their numbers of features. ``first_row`` is the row id of the first row,
    for error messages.
    """
    _check_mapping(X, "X", "features")
    clean = {}
    for name, values in X.items():
        if expected is not None and name not in expected:
            raise ValueError(f"X has the modality {name!r}; the model was fitted on {quoted(expected)}")
        clean[name] = _check_matrix(values, name, _places(X, name, first_row))
        width = clean[name].shape[1]
        if expected is not None and width != expected[name]:
            raise ValueError(
                f"{name!r}: got {width} features; the model was fitted on {expected[name]}. "
                "Use the same feature extraction as for fit"
            )
    return clean


def feature_names(X: Any) -> dict[str, list[str]]:
    if not isinstance(X, Mapping):
        return {}
    found = {name: frame_columns(values) for name, values in X.items() if is_frame(values)}
    return {name: columns for name, columns in found.items() if columns}


def check_feature_names(X: Any, expected: Mapping[str, list[str]]) -> None:
    """Raise if the columns of a frame are not those of the fit, in the same order."""
    for name, columns in feature_names(X).items():
        fitted = expected.get(name, columns)
        if columns == fitted:
            continue
        if sorted(columns) == sorted(fitted):
            what = "are in another order than in fit"
        else:
            odd = [one for one in columns if one not in fitted] or [one for one in fitted if one not in columns]
            what = (
                f"are not those of fit: {', '.join(map(repr, odd[:3]))} {'is' if len(odd) == 1 else 'are'} in one only"
            )
        raise ValueError(
            f"{name!r}: the columns {what}. Pass the same, in the same order: frame[model.feature_names_in_[{name!r}]]"
        )


def check_labels(Y: Any, X: Mapping[str, Matrix], *, unlabelled: str = "error") -> dict[str, Array]:
    """Return labels by modality as boolean ``(n, n_classes)`` arrays with the same columns."""
    _check_mapping(Y, "Y", "labels")
    check_choice(unlabelled, "unlabelled", ("error", "allow"))
    if missing := [name for name in X if name not in Y]:
        raise ValueError(f"Y lacks labels for {quoted(missing)}; it has {quoted(Y)}. Every modality needs its own")
    if unknown := [name for name in Y if name not in X]:
        raise ValueError(f"Y has labels for {quoted(unknown)}, but X has only {quoted(X)}")
    Y = frame_labels(Y)
    clean = {name: _check_label_matrix(Y[name], name, X[name].shape[0]) for name in X}
    columns = {name: labels.shape[1] for name, labels in clean.items()}
    if len(set(columns.values())) > 1:
        counts = ", ".join(f"{name!r}: {count}" for name, count in columns.items())
        raise ValueError(f"label columns differ between modalities ({counts}); all must share the same classes")
    for name, labels in clean.items():
        _check_unlabelled(labels, name, unlabelled)
    return clean


def check_label_rows(Y: Any, n_classes: int) -> scipy.sparse.csr_array:
    """Return label rows as canonical boolean CSR; ValueError for another width or a row without a label."""
    shape = np.shape(Y)
    labels = _check_label_matrix(Y, "label rows", shape[0] if shape else 0)
    if labels.shape[1] != n_classes:
        raise ValueError(f"label rows have {labels.shape[1]} columns; expected {n_classes}, as in training")
    if len(empty := np.flatnonzero(~labels.any(axis=1))):
        raise ValueError(f"label rows: row {empty[0]} has no label; expected at least one in every row")
    return scipy.sparse.csr_array(labels)


def check_pairs(pairs: Any, X: Mapping[str, Matrix]) -> Array | None:
    """Return pairs as an array (pairs, modalities) of row ids, in the order of X, or None."""
    if pairs is None:
        return None
    sizes = {name: values.shape[0] for name, values in X.items()}
    if isinstance(pairs, str):
        check_choice(pairs, "pairs", ("aligned",))
        if len(set(sizes.values())) > 1:
            counts = ", ".join(f"{name!r}: {n}" for name, n in sizes.items())
            raise ValueError(f"pairs='aligned' needs the same number of items in every modality; got {counts}")
        n = next(iter(sizes.values()))
        return np.repeat(np.arange(n)[:, None], len(sizes), axis=1)
    index = np.asarray(pairs)
    if index.ndim != 2 or index.shape[1] != len(sizes) or not np.issubdtype(index.dtype, np.integer):
        raise ValueError(
            f"pairs: got an array of {index.dtype} with shape {index.shape}; expected integers of shape "
            f"(pairs, {len(sizes)}): row numbers in {quoted(sizes)}, or 'aligned', or None"
        )
    for column, (name, n) in zip(index.T, sizes.items(), strict=True):
        if len(column) and (column.min() < 0 or column.max() >= n):
            raise ValueError(
                f"pairs: row numbers of {name!r} go from {column.min()} to {column.max()}; it has {n} items"
            )
        if len(np.unique(column)) != len(column):
            raise ValueError(f"pairs: an item of {name!r} occurs in more than one pair")
    return index


def check_fewer_bits(n_bits: Any, sizes: Mapping[str, int]) -> int:
    bits = check_int(n_bits, "n_bits", at_least=1)
    for name, n in sizes.items():
        if bits >= n:
            only = "is only one item" if n == 1 else f"are only {n} items"
            remedy = f"take n_bits ≤ {n - 1}" if n > 1 else "pass more items"
            raise ValueError(
                f"{name!r}: n_bits is {bits}, but there {only}; "
                f"uncorrelated, balanced bits need more items than bits: {remedy}"
            )
    return bits


def check_learned(arrays: Mapping[str, Any]) -> None:
    """Raise if a learned array has NaN or infinite values, because all codes would be the same."""
    for name, values in arrays.items():
        if np.issubdtype(values.dtype, np.floating) and not _is_finite(values):
            raise ValueError(f"{name} has NaN or infinite values, so that its codes would be meaningless")


def check_projections(values: Array, name: str) -> Array:
    """Return the projections; ValueError if one is NaN or infinite."""
    if not _is_finite(values):
        raise ValueError(
            f"{name!r}: projections are NaN or infinite: the features are too large for these hash functions. "
            "Scale them as for fit"
        )
    return values


def check_projections_vary(values: Array, largest: float, name: str) -> None:
    """Raise if very large or very small features have the same projections for all items, except for rounding."""
    if 1 / USUAL_FEATURE <= largest <= USUAL_FEATURE:
        return
    if len(values) > 1 and np.ptp(values, axis=0).max() <= 1e-6 * np.abs(values).max():
        raise ValueError(
            f"{name!r}: the hash functions that were learned give all items the same code; the features are too large "
            "or too small for this method's parameters. Scale them, e.g. divide by the largest one"
        )


def check_form(shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> None:
    """Raise unless the array has two dimensions, at least one item and feature, and real numbers."""
    if len(shape) != 2:
        raise ValueError(
            f"{name!r}: got {len(shape)} dimension(s), shape {shape}; expected (items, features). "
            "For a single item use x.reshape(1, -1)"
        )
    if 0 in shape:
        raise ValueError(f"{name!r}: got an empty array of shape {shape}; expected items and features")
    if dtype.kind not in "biuf":
        raise TypeError(f"{name!r}: got values of type {dtype}; expected real numbers")


def check_magnitudes(X: Mapping[str, Matrix]) -> None:
    for name, values in X.items():
        check_magnitude(largest_magnitude(values), name)


def check_magnitude(largest: float, name: str) -> None:
    """Raise if the largest feature of a modality is so small that its square vanishes."""
    least = 1 / MAX_FEATURE
    if 0 < largest < least:
        raise ValueError(
            f"{name!r}: no feature is larger than {largest:.3g}; expected some ≥ {least:g}. Scale them, e.g. "
            "divide by the largest one"
        )


def check_varied(X: Mapping[str, Matrix]) -> None:
    """Raise if all items of a modality are equal."""
    for name, values in X.items():
        first = values[:1]
        size = max(1, 2**20 // values.shape[1])
        for start in range(0, values.shape[0], size):
            block = values[start : start + size]
            if scipy.sparse.issparse(block):
                constant = scipy.sparse.csr_array(np.ones((block.shape[0], 1))) @ first
                differs = (block - constant).count_nonzero() > 0
            else:
                differs = bool(np.any(block != first))
            if differs:
                break
        else:
            raise ValueError(f"{name!r}: all {values.shape[0]} items are equal; there is nothing to learn from")


def per_modality(value: T | Mapping[str, T], X: Mapping[str, Any], parameter: str) -> dict[str, T]:
    """Return the value of a parameter for each modality, from one value or a dict by modality."""
    if not isinstance(value, Mapping):
        return dict.fromkeys(X, value)
    if set(value) != set(X):
        raise ValueError(f"{parameter} is given for {quoted(value)}; expected one value, or a dict with {quoted(X)}")
    return {name: value[name] for name in X}


def check_int(value: Any, parameter: str, *, at_least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{parameter} is {value!r} ({type(value).__name__}); expected an integer ≥ {at_least}")
    if value < at_least:
        raise ValueError(f"{parameter} is {value}; expected an integer ≥ {at_least}")
    return int(value)


def check_number(
    value: Any, parameter: str, *, at_least: float = 0.0, at_most: float = np.inf, positive: bool = False
) -> float:
    """Return a finite number from ``at_least`` to ``at_most``; above zero if ``positive``."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{parameter} is {value!r} ({type(value).__name__}); expected a number")
    if not np.isfinite(value) or not at_least <= value <= at_most or (positive and value <= 0):
        bound = "> 0" if positive else f"≥ {at_least:g}"
        limit = f" and ≤ {at_most:g}" if np.isfinite(at_most) else ""
        raise ValueError(f"{parameter} is {value}; expected a finite number {bound}{limit}")
    return float(value)


def check_choice(value: Any, parameter: str, choices: tuple[Any, ...]) -> Any:
    if not any(value is choice or (isinstance(value, str) and value == choice) for choice in choices):
        raise ValueError(f"{parameter} is {value!r}; expected one of {', '.join(map(repr, choices))}")
    return value


def check_memory(value: Any, parameter: str = "memory_limit") -> int | None:
    """Return bytes, from an integer or a text such as "2GB" or "512 MiB"; None for no limit."""
    if value is None:
        return None
    if isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)(i?)[bB]?\s*", value)
        if not found:
            raise ValueError(f"{parameter} is {value!r}; expected bytes or a text such as '2GB' or '512MiB'")
        power = " kmgt".index(found[2].lower() or " ")
        value = int(float(found[1]) * (1024 if found[3] else 1000) ** power)
    return check_int(value, parameter, at_least=1)


def check_type(hint: Any, value: Any, parameter: str) -> None:
    """Raise unless the value of a parameter meets what its declared type demands.

    A type such as ``Annotated[int, integer()]`` has the function that checks the value, ``Literal`` the choices. In a
    union, None is checked by None, a dict value by value if the type has one, and a text by the choices if there are.
    """
    kind, parts = get_origin(hint), get_args(hint)
    if kind is Annotated:
        parts[1](value, parameter)
    elif kind is Literal:
        check_choice(value, parameter, parts)
    elif kind in (Union, UnionType) and not (value is None and NoneType in parts):
        by_kind = {get_origin(part): part for part in reversed(parts) if is_constrained(part)}
        if isinstance(value, Mapping) and Mapping in by_kind:
            for one in value.values():
                check_type(get_args(by_kind[Mapping])[1], one, parameter)
        elif Literal in by_kind and (isinstance(value, str) or Annotated not in by_kind):
            check_type(by_kind[Literal], value, parameter)
        elif Annotated in by_kind:
            check_type(by_kind[Annotated], value, parameter)


def is_constrained(hint: Any) -> bool:
    return get_origin(hint) in (Annotated, Literal) or any(map(is_constrained, get_args(hint)))


def integer(at_least: int = 1) -> Constraint:
    return partial(check_int, at_least=at_least)


def number(at_least: float = 0.0, *, at_most: float = np.inf, positive: bool = False) -> Constraint:
    return partial(check_number, at_least=at_least, at_most=at_most, positive=positive)


def choice(*choices: Any) -> Constraint:
    return partial(check_choice, choices=choices)


Constraint = Callable[[Any, str], Any]
"""A function of a value and the parameter's name that raises ``TypeError`` or ``ValueError`` if it is invalid."""
Count = Annotated[int, integer()]
NonNegative = Annotated[float, number()]
Positive = Annotated[float, number(positive=True)]
Share = Annotated[float, number(at_most=1)]
Flag = Annotated[bool, choice(True, False)]
MemoryLimit = Annotated[int | str | None, check_memory]


def check_sparse(values: Any, where: str) -> None:
    """Raise if the arrays of a sparse matrix are inconsistent.

    scipy checks only their lengths, and compiled code would read and write out of bounds for an invalid index. The
    check is one pass over the indices, without a copy of a CSR, CSC, BSR or COO matrix.
    """
    if values.ndim != 2:
        raise ValueError(f"{where}: got a sparse array of shape {values.shape}; expected two dimensions")
    if values.format not in ("csr", "csc", "bsr", "coo"):
        try:
            values = values.tocoo()  # from lists or diagonals, in Python, which finds most errors
        except (ValueError, IndexError) as error:
            raise _broken(where, str(error)) from None
    if values.format == "coo":
        for axis, (indices, size) in enumerate(zip(values.coords, values.shape, strict=True)):
            _check_indices(indices, size, where, ("row", "column")[axis])
            if len(indices) != len(values.data):
                raise _broken(where, f"{len(indices)} indices for {len(values.data)} values")
        return
    block = values.blocksize if values.format == "bsr" else (1, 1)
    sizes = [size // side for size, side in zip(values.shape, block, strict=True)]
    major, minor = sizes if values.format != "csc" else sizes[::-1]
    starts, indices = values.indptr, values.indices
    if starts.ndim != 1 or starts.dtype.kind != "i" or len(starts) != major + 1:
        raise _broken(where, f"the pointers have shape {starts.shape} and type {starts.dtype} for {major} rows")
    if starts[0] != 0 or np.any(starts[1:] < starts[:-1]):
        raise _broken(where, "the pointers do not ascend from 0")
    if not starts[-1] <= len(indices) == len(values.data):
        raise _broken(
            where, f"the pointers end at {starts[-1]}; there are {len(indices)} indices, {len(values.data)} values"
        )
    _check_indices(indices, minor, where, "row" if values.format == "csc" else "column", used=int(starts[-1]))


def _check_indices(indices: Array, size: int, where: str, axis: str, used: int | None = None) -> None:
    if indices.ndim != 1 or indices.dtype.kind != "i":
        raise _broken(where, f"the {axis} indices have shape {indices.shape} and type {indices.dtype}")
    indices = indices[:used]  # scipy may have spare capacity
    if len(indices) and (indices.min() < 0 or indices.max() >= size):
        raise _broken(where, f"{axis} indices from {indices.min()} to {indices.max()} for {size} {axis}s")


def _broken(where: str, what: str) -> ValueError:
    return ValueError(f"{where}: a broken sparse matrix: {what}. Rebuild it, or fetch its file again")


def _check_mapping(value: Any, argument: str, what: str) -> None:
    if not isinstance(value, Mapping):
        raise TypeError(
            f"{argument} is {_kind(value)}; expected a dict from modality name to {what}, "
            f'e.g. {argument} = {{"image": ..., "text": ...}}'
        )
    if not value:
        raise ValueError(f"{argument} is an empty dict; expected at least one modality")
    for name in value:
        if not isinstance(name, str) or not name:
            raise TypeError(f"{argument} has the key {name!r}; a modality's name is a non-empty string")


def _places(X: Any, name: str, first_row: int) -> Place:
    """Return a function that names a row and a feature in errors, by their place in the source file if known."""

    def place(row: int, column: int) -> str:
        own = X.place(name, row, column) if isinstance(X, TracedFeatures) else None
        return own or f"row {first_row + row}, feature {column}"

    return place


def _check_matrix(values: Any, name: str, place: Place) -> Matrix:
    if not isinstance(values, np.ndarray) and not scipy.sparse.issparse(values) and is_frame(values):
        native = values
        values, columns = frame_matrix(native, name)

        def place(row: int, column: int) -> str:
            return f"{name_row(native, row)}, column {columns[column]!r}"

    if scipy.sparse.issparse(values):
        check_sparse(values, repr(name))
        matrix = values if isinstance(values, scipy.sparse.csr_array) else scipy.sparse.csr_array(values)
        if not matrix.has_canonical_format:
            matrix = matrix.copy()
            matrix.sum_duplicates()
        numbers = matrix.data
    elif isinstance(values, np.ndarray):
        matrix = numbers = values
    else:
        raise TypeError(
            f"{name!r}: got {_kind(values)}; expected a 2-D numpy array, a scipy CSR matrix or a frame. "
            "Convert it with numpy.asarray(..., dtype=float)"
        )
    check_form(matrix.shape, numbers.dtype, name)
    if numbers.dtype != np.float32:
        matrix = matrix.astype(np.float64, copy=False)
    _check_finite(matrix, name, place)
    return matrix


def _check_finite(matrix: Matrix, name: str, place: Place) -> None:
    n, width = matrix.shape
    size = max(1, 2**20 // width)
    for start in range(0, n, size):
        block = matrix if size >= n else matrix[start : start + size]
        if (largest := largest_magnitude(block)) <= MAX_FEATURE:
            continue
        if np.isfinite(largest):
            raise ValueError(
                f"{name!r}: a feature is {largest:.3g} in magnitude; expected at most {MAX_FEATURE:g}. Scale them, "
                "e.g. divide by the largest one"
            )
        where = np.argwhere(~np.isfinite(block.data if scipy.sparse.issparse(block) else block))[0]
        if scipy.sparse.issparse(block):
            row = int(np.searchsorted(block.indptr, where[0], side="right")) - 1
            column = int(block.indices[where[0]])
        else:
            row, column = map(int, where)
        raise ValueError(
            f"{name!r}: {place(start + row, column)} is NaN or infinite; "
            "expected finite numbers. Impute or drop such items first"
        )


def largest_magnitude(values: Matrix) -> float:
    """Return the largest magnitude, or NaN if a value is NaN."""
    numbers = values.data if scipy.sparse.issparse(values) else values
    return float(max(numbers.max(), -numbers.min())) if numbers.size else 0.0


def _is_finite(values: Array) -> bool:
    return not values.size or bool(np.isfinite(largest_magnitude(values)))


def _check_label_matrix(values: Any, name: str, n: int) -> Array:
    if scipy.sparse.issparse(values):
        check_sparse(values, f"{name!r}, labels")
        values = values.toarray()
    if not isinstance(values, np.ndarray):
        raise TypeError(f"{name!r}: labels are {_kind(values)}; expected a 0/1 array (items, classes) or CSR")
    if values.ndim != 2:
        raise ValueError(
            f"{name!r}: labels have shape {values.shape}; expected (items, classes) with 0/1. "
            "For one class number per item use numpy.eye(n_classes)[numbers]"
        )
    if values.shape[0] != n:
        raise ValueError(f"{name!r}: {values.shape[0]} label rows for {n} items; expected one row per item")
    if values.shape[1] == 0:
        raise ValueError(f"{name!r}: labels have no columns; expected at least one class")
    if values.dtype != bool:
        wrong = (values != 0) & (values != 1)
        if values.dtype == object or wrong.any():
            found = values.flat[0] if values.dtype == object else values[tuple(np.argwhere(wrong)[0])]
            raise ValueError(
                f"{name!r}: labels contain {found!r}; expected only 0 and 1. "
                "Threshold weights or counts first, e.g. Y > 0"
            )
    return np.ascontiguousarray(values, dtype=bool)


def _check_unlabelled(labels: Array, name: str, unlabelled: str) -> None:
    empty = np.flatnonzero(~labels.any(axis=1))
    if not len(empty):
        return
    if len(empty) == len(labels):
        raise ValueError(f"{name!r}: none of the {len(labels)} items has a label; expected some")
    if unlabelled == "error":
        raise ValueError(
            f"{name!r}: {len(empty)} of {len(labels)} items have no label (first: row {empty[0]}). "
            "Drop them, or pass unlabelled='allow' to keep them: similar to nothing by label"
        )
    warnings.warn(
        f"{name!r}: {len(empty)} of {len(labels)} items have no label; kept, similar to nothing by label",
        UserWarning,
        stacklevel=5,
    )


def _kind(value: Any) -> str:
    kind = type(value).__name__
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"
