"""Sources of rows, so that an error names the row of the user's file instead of that of an array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from modalhash.core.typing import Array, Matrix


@dataclass(frozen=True)
class Origin:
    """Positions of the items of one modality in the files that they were read from.

    Parameters
    ----------
    ids : of all items that were read
    pieces : names, for errors, of the files or variables that they were read from, in order
    ends : number of items up to the end of each piece
    lines : line or row number of each item in its piece; by default counted from ``first``
    columns : names of the features, if any
    unit : what the numbers count: ``"line"`` or ``"row"``
    first : number of the first row; lines count from 1

    Examples
    --------
    >>> origin = Origin(np.array(["a", "b", "c"]), ("'I_tr'", "'I_te'"), (2, 3))
    >>> origin.place("c", 4)
    "'I_te', row 1 (counted from 1), feature 4"
    """

    ids: Array
    pieces: tuple[str, ...]
    ends: tuple[int, ...]
    lines: Array | None = None
    columns: Sequence[str] | None = None
    unit: str = "row"
    first: int = 1

    def place(self, id: Any, column: int | None = None) -> str | None:
        """Describe the position of an item; None if it was not read from here."""
        found = np.flatnonzero(self.ids == id)
        if len(found) != 1:
            return None
        row = int(found[0])
        piece = int(np.searchsorted(self.ends, row, side="right"))
        start = self.ends[piece - 1] if piece else 0
        number = row - start + self.first if self.lines is None else int(self.lines[row])
        counted = f" (counted from {self.first})" if self.unit == "row" else ""
        text = f"{self.pieces[piece]}, {self.unit} {number}{counted}"
        if column is None:
            return text
        named = self.columns is not None and column < len(self.columns)
        return f"{text}, column {self.columns[column]!r}" if named and self.columns else f"{text}, feature {column}"

    def lines_by_id(self) -> dict[Any, int]:
        """Return the line of each item by its id if all come from one file with lines."""
        if self.lines is None or len(self.pieces) != 1 or self.unit != "line":
            return {}
        return dict(zip(self.ids.tolist(), self.lines.tolist(), strict=True))


class TracedFeatures(dict[str, Matrix]):
    """Features by modality, with the ids and origins of their rows."""

    def __init__(self, features: Mapping[str, Matrix], ids: Mapping[str, Array], origins: Mapping[str, Origin]) -> None:
        super().__init__(features)
        self._ids, self._origins = ids, origins

    def place(self, modality: str, row: int, column: int | None = None) -> str | None:
        """Describe the position of a row in its file; None if unknown."""
        origin, ids = self._origins.get(modality), self._ids.get(modality)
        if origin is None or ids is None or row >= len(ids):
            return None
        return origin.place(ids[row], column)

    def __reduce__(self) -> Any:
        return TracedFeatures, (dict(self), self._ids, self._origins)
