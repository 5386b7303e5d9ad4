"""Where rows come from, so that an error names the row of the user's file, and not that of a part of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from modalhash.core.typing import Array, Matrix


@dataclass(frozen=True)
class Origin:
    """Where the items of one modality stand in the files that they were read from.

    Parameters
    ----------
    ids
        of all items that were read
    pieces
        the files or variables that they were read from, one after the other, as an error names them
    ends
        the number of items up to the end of each piece
    lines
        the number of each item's line or row in its piece, as its file counts; from 1 by default
    columns
        the names of the features, where they have some
    unit
        what the numbers count: ``"line"`` or ``"row"``
    first
        the number of the first row, which is said of rows; lines count from 1

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
        """Say where an item stands; None if it was not read from here."""
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
        """Return the line of each item, by its id, where all stand in one file with lines."""
        if self.lines is None or len(self.pieces) != 1 or self.unit != "line":
            return {}
        return dict(zip(self.ids.tolist(), self.lines.tolist(), strict=True))


class TracedFeatures(dict[str, Matrix]):
    """Features by modality that know which items their rows are."""

    def __init__(self, features: Mapping[str, Matrix], ids: Mapping[str, Array], origins: Mapping[str, Origin]) -> None:
        super().__init__(features)
        self._ids, self._origins = ids, origins

    def place(self, modality: str, row: int, column: int | None = None) -> str | None:
        """Say where a row stands in the file that it was read from; None if that is not known."""
        origin, ids = self._origins.get(modality), self._ids.get(modality)
        if origin is None or ids is None or row >= len(ids):
            return None
        return origin.place(ids[row], column)

    def __reduce__(self) -> Any:
        return TracedFeatures, (dict(self), self._ids, self._origins)
