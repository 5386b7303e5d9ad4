"""The exception that all readers raise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


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
