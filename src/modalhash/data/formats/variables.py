"""Variables of a file, as found by the readers in the sandbox and as loaded by the caller, and the error of readers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from modalhash.core.typing import Array

OBJECTS = "object array (never loaded)"


class ReadError(ValueError):
    """A file cannot be read. The message names the file, the position, the reason and a remedy.

    Parameters
    ----------
    file
        path of the file, or of several files that are read together
    reason
        what is wrong and how to fix it
    line
        line number in a manifest or list, from 1
    variable
        name of the variable in a file of arrays
    mapping
        if the layout is not recognised, a guess of the keywords to pass to ``read``

    Examples
    --------
    >>> print(ReadError("items.csv", "not 3 columns as in line 1", line=7))
    items.csv, line 7: not 3 columns as in line 1
    """

    def __init__(
        self,
        file: str | Path,
        reason: str,
        line: int | None = None,
        variable: str | None = None,
        mapping: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(str(file), reason, line, variable, mapping)  # the arguments that pickle restores it from
        self.file, self.reason, self.line, self.variable = str(file), reason, line, variable
        self.mapping = dict(mapping or {})

    def __str__(self) -> str:
        where = self.file
        if self.line is not None:
            where += f", line {self.line}"
        if self.variable is not None:
            where += f", variable {self.variable!r}"
        return f"{where}: {self.reason}"


class SparseParts(NamedTuple):
    """The arrays of a sparse matrix as stored in the file; the indices are not checked."""

    layout: str  # ``"csr"`` or ``"csc"`` with pointers, ``"coo"`` with row and column indices
    shape: tuple[int, ...]
    data: Array
    indices: Array  # column indices (CSR, COO) or row indices (CSC)
    pointers: Array  # row pointers (CSR), column pointers (CSC) or row indices (COO)


Value = Array | SparseParts  # numbers, texts as an object array of str, or a sparse matrix


@dataclass(frozen=True)
class Found:
    """A variable found in a file; ``value`` is set if it had to be loaded to find its shape and kind."""

    name: str
    shape: tuple[int, ...]
    kind: str
    value: Value | None = None


class TooLargeError(Exception):
    """A variable needs more memory than is left."""

    def __init__(self, n_bytes: int, variable: str | None) -> None:
        super().__init__(n_bytes, variable)
        self.n_bytes, self.variable = n_bytes, variable


@dataclass
class Budget:
    """The memory left for a file, counted by declared sizes before anything is allocated."""

    n_bytes: int

    def take(self, shape: tuple[int, ...], itemsize: int, variable: str) -> None:
        """Subtract the bytes of an array of this shape, or raise TooLargeError."""
        wanted = prod(int(size) for size in shape) * itemsize
        if wanted < 0:
            raise ValueError(f"the shape is {shape}")
        if wanted > self.n_bytes:
            raise TooLargeError(wanted, variable)
        self.n_bytes -= wanted


def found(name: str, value: Any) -> Found:
    if isinstance(value, SparseParts):
        return Found(name, value.shape, "sparse", value)
    if value.dtype.kind == "O":
        return Found(name, value.shape, "texts", value)
    kind = kind_of(value.dtype)
    return Found(name, value.shape, kind, value if kind == "numbers" else None)


def kind_of(dtype: Any) -> str:
    """Return the kind of an array: ``"numbers"``, ``"texts"``, or an unusable one."""
    if dtype.kind in "biufc":
        return "numbers"
    return {"U": "texts", "S": "texts", "O": OBJECTS, "V": "records"}.get(dtype.kind, f"type {dtype}")


def text_array(texts: list[str], shape: tuple[int, ...] | None = None) -> Array:
    """Return texts as an object array, which does not pad them to the longest."""
    array = np.empty(len(texts), dtype=object)
    array[:] = texts
    return array if shape is None else array.reshape(shape)


def damaged(path: Path, what: str, error: BaseException, variable: str | None = None) -> ReadError:
    detail = (f"{type(error).__name__}: {error}".splitlines() or [""])[0][:300]
    reason = f"cannot be read as {what} ({detail}). It is truncated or corrupt; get the file again"
    return ReadError(path, reason, variable=variable)


@dataclass(frozen=True)
class Variable:
    """The name, shape and kind of a variable, and a function that loads its values."""

    name: str
    shape: tuple[int, ...]
    kind: str  # ``"numbers"``, ``"sparse"``, ``"texts"``, or an unusable kind
    load: Callable[[], Any]
    file: Path

    @property
    def usable(self) -> bool:
        """Whether it can hold features or labels."""
        return self.kind in ("numbers", "sparse")

    def __str__(self) -> str:
        shape = "×".join(map(str, self.shape)) or "scalar"
        return f"{self.name} {shape} {self.kind}" if self.kind != OBJECTS else f"{self.name} {OBJECTS}"


def listing(variables: Iterable[Variable]) -> str:
    return "; ".join(str(variable) for variable in variables) or "nothing"
