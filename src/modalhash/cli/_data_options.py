"""The data set of a research command: which one, which of its modalities, and how its files are read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from modalhash.cli._common import Map, ReadMemory, ReadSeconds, command_with, file_mapping, open_dataset

if TYPE_CHECKING:  # numpy and what needs it are loaded when the command runs: `modalhash --help` stays quick
    from modalhash.data import Dataset


class ScenarioName(StrEnum):
    """What is done to the training items: each is a function of :mod:`modalhash.data` of the same name."""

    paired = "paired"
    unpaired = "unpaired"
    unequal = "unequal"
    semi_paired = "semi_paired"
    noisy_labels = "noisy_labels"
    missing_labels = "missing_labels"


@dataclass(frozen=True)
class DataOptions:
    """Options of commands that measure on a data set."""

    dataset: Annotated[str, typer.Argument(metavar="DATA", help="Name of a data set, or a file that `read` takes.")]
    mapping: Map = None
    modalities: Annotated[str, typer.Option(help="Only these, separated by commas.")] = ""
    scenario: Annotated[
        ScenarioName | None,
        typer.Option(
            help="What is done to the training items.", show_default="paired if a method needs pairs, else unpaired"
        ),
    ] = None
    test_share: Annotated[
        float | None,
        typer.Option(
            help="Share of the items drawn as queries where there is no split.",
            show_default="the data set's own number of queries, or 0.2",
        ),
    ] = None
    root: Annotated[Path | None, typer.Option(help="Folder that holds the data sets.")] = None
    read_memory: ReadMemory = None
    read_seconds: ReadSeconds = None

    def open(self) -> Dataset:
        """Read the data set, which must have labels, and take the modalities."""
        data = open_dataset(self.dataset, self.root, file_mapping(self.mapping))
        check_labels(data, self.dataset)
        return data.only(*self.modalities.split(",")) if self.modalities else data


def check_labels(data: Dataset, name: str) -> None:
    """Refuse a data set without labels; where a variable of the file may have them, show how to say so."""
    if data.labels or not data.features:
        return
    from modalhash.data import guess_mapping

    error = ValueError(f"{name}: there are no labels, and without them nothing is relevant to a query")
    guessed = guess_mapping(name) if Path(name).exists() else {}
    if "labels" in guessed and (line := command_with(guessed)):
        error.add_note(f"If a variable that was not recognised has them, say which is which:\n  {line}")
    else:
        error.add_note(
            "A file of arrays has them as a variable `labels`: a row per item and a column of 0 and 1 per class, or "
            "one column of class numbers; a table as a column `labels`"
        )
    raise error
