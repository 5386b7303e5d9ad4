"""A variable of a file, known by name and shape before its values are loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

OBJECTS = "object array (never loaded)"


@dataclass(frozen=True)
class Variable:
    """The name, shape and kind of a variable, and a function that loads its values."""

    name: str
    shape: tuple[int, ...]
    kind: str
    """``"numbers"``, ``"sparse"``, ``"texts"``, or another kind, which cannot be used."""
    load: Callable[[], Any]
    file: Path

    @property
    def usable(self) -> bool:
        """Whether it can hold features or labels."""
        return self.kind in ("numbers", "sparse")

    def __str__(self) -> str:
        shape = "×".join(map(str, self.shape)) or "scalar"
        return f"{self.name} {shape} {self.kind}" if self.kind != OBJECTS else f"{self.name} {OBJECTS}"


def variable_of(name: str, value: Any, file: Path) -> Variable:
    """Return a variable whose values are in memory already."""
    if sparse.issparse(value):
        return Variable(name, value.shape, "sparse", lambda: sparse.csr_array(value), file)
    value = np.asarray(value)
    kind = {"U": "texts", "S": "texts", "O": OBJECTS, "V": "records"}.get(value.dtype.kind, "numbers")
    return Variable(name, value.shape, kind, lambda: value, file)


def listing(variables: Iterable[Variable]) -> str:
    """List names and shapes for an error message."""
    return "; ".join(str(variable) for variable in variables) or "nothing"


def unreadable(path: Path, what: str, error: Exception, key: str | None = None) -> ValueError:
    """Return the error to raise for a broken file."""
    where = f"{path}, variable {key!r}" if key else str(path)
    detail = f"{type(error).__name__}: {error}".splitlines()[0]
    return ValueError(f"{where}: cannot be read as {what} ({detail}). It is truncated or corrupt: get the file again")
