"""A variable of a file, known by name and shape before its values are loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modalhash.data.formats._found import OBJECTS


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


def listing(variables: Iterable[Variable]) -> str:
    """List names and shapes for an error message."""
    return "; ".join(str(variable) for variable in variables) or "nothing"
