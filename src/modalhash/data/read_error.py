"""The one error of all readers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


class ReadError(ValueError):
    """A file cannot be read; the message says which, where in it, why, and what to do.

    Parameters
    ----------
    file
        path of the file, or of several that are read together
    reason
        what is wrong, and what to do
    line
        number of the line in a manifest or a list, from 1
    variable
        name of the variable in a file of arrays
    mapping
        where the layout of a file is not recognised, a guess which variable is which: what ``read`` may be given

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
        super().__init__(str(file), reason, line, variable, mapping)  # what pickle makes it anew from
        self.file, self.reason, self.line, self.variable = str(file), reason, line, variable
        self.mapping = dict(mapping or {})

    def __str__(self) -> str:
        where = self.file
        if self.line is not None:
            where += f", line {self.line}"
        if self.variable is not None:
            where += f", variable {self.variable!r}"
        return f"{where}: {self.reason}"
