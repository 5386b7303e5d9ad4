"""Variables of a file: as found by the readers in the sandbox, and as loaded by the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from modalhash.core.typing import Array
from modalhash.data.read_error import ReadError

OBJECTS = "object array (never loaded)"


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
