"""The results folder: one JSON file per cell, one per data set. Written wholly or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from modalhash._files import write_atomically
from modalhash.reproduce.cells import Cell

FORMAT = 1
Result = dict[str, Any]


class Store:
    """Results of cells under a folder.

    A cell's file is named by the digest of its configuration, which has the digest of the data, every parameter and
    the version of modalhash in it: what changed is another file, and is run anew.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, cell: Cell) -> Result | None:
        """What is known of a cell, also that it failed; None if nothing is."""
        return self._load(self.folder / "cells" / cell.path)

    def write(self, cell: Cell, result: Result) -> None:
        """Keep a result."""
        configuration = {name: value for name, value in vars(cell).items() if name != "limit_seconds"}
        configuration["parameters"] = json.loads(cell.parameters)
        content = {"format": FORMAT, "configuration": configuration, **result}
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        write_atomically(self.folder / "cells" / cell.path, text.encode())

    def done(self, cell: Cell, *, retry: bool = False) -> bool:
        """Whether there is nothing to do: measured, or failed and not to be tried again."""
        known = self.read(cell)
        return known is not None and not (retry and "error" in known)

    def write_dataset(self, facts: dict[str, Any]) -> None:
        """Keep digest and statistics of a data set."""
        text = json.dumps(facts, ensure_ascii=False, indent=1)
        write_atomically(self.folder / "datasets" / f"{facts['name']}.json", text.encode())

    def datasets(self) -> dict[str, dict[str, Any]]:
        """Of every data set that was run on."""
        paths = sorted((self.folder / "datasets").glob("*.json"))
        return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}

    def everything(self) -> Iterator[Result]:
        """All results, of whatever configuration: to estimate times from."""
        for path in sorted((self.folder / "cells").glob("*/*.json")):
            if (content := self._load(path)) is not None:
                yield content

    def _load(self, path: Path) -> Result | None:
        if not path.is_file():
            return None
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError(f"{path}: not a result of this version (format {FORMAT}); take another --results folder")
        return content
