"""Results of an experiment on a data set; nothing is fitted here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from modalhash.experiments import Results, Study as GridStudy, read_study
from modalhash.methods.registry import info
from reproduction.paper_data import SOURCES, Source
from reproduction.published import Experiment

OURS = "AMSH"
TASKS = ("I2T", "T2I")


@dataclass(frozen=True, eq=False)
class Study(GridStudy):
    """The results of an experiment on one data set; a direction is called by the paper's task, I2T or T2I."""

    experiment: Experiment

    @property
    def source(self) -> Source:
        """The relation of the data set to the paper."""
        return SOURCES[self.dataset]

    @property
    def same(self) -> bool:
        """Whether these are the paper's data, so that its numbers may be compared."""
        return self.source.same(self.facts)

    @property
    def quotes(self) -> str:
        """The paper's data set whose numbers are shown as well; "" for none."""
        name = self.dataset if self.same else self.source.quotes
        return name if name in self.experiment.published else ""

    @cached_property
    def labels(self) -> list[str]:
        """Rows with any result, and those that are quoted, in the order of the file."""
        found = {point.label for point in self.results}
        rows = [row.label for row in self.experiment.rows if row.label in found or (row.quoted and self.same)]
        return list(dict.fromkeys(rows))

    @cached_property
    def papers(self) -> list[str]:
        """Those of :attr:`labels` that are in the paper's table: its claims are about them."""
        return [label for label in self.labels if not self.experiment.row(label).extra]

    @cached_property
    def directions(self) -> list[str]:
        """The paper's tasks."""
        return list(TASKS)

    def direction(self, task: str) -> str:
        """Return the name of the paper's task in the results, e.g. ``image→text``."""
        first, second = self.source.modalities
        return f"{first}→{second}" if task == "I2T" else f"{second}→{first}"

    def entry(self, result: dict[str, Any], database: str, direction: str) -> Mapping[str, Any] | None:
        """Return the measurements of a task on one kind of database, or None."""
        return super().entry(result, database, self.direction(direction))

    def supervised(self, label: str) -> bool:
        """Whether the method of a row uses labels."""
        row = self.experiment.row(label)
        return row.quoted or info(row.method).supervised


class Evidence:
    """All experiments on all data sets that the results know."""

    def __init__(self, results: Results, experiments: Mapping[str, Experiment]) -> None:
        self.experiments = experiments
        self.facts = {name: facts for name, facts in results.datasets().items() if name in SOURCES}
        self.studies: dict[str, dict[str, Study]] = {}
        planned: set[str] = set()
        cells: dict[str, dict[str, Any]] = {}
        for name, experiment in experiments.items():
            self.studies[name] = {}
            for dataset in (name for name in experiment.datasets if name in self.facts):
                of_grid = read_study(results, experiment.grid, dataset, self.facts[dataset])
                planned |= {cell.key for cell in of_grid.cells.values()}
                cells |= {of_grid.cells[point].key: result for point, result in of_grid.found.items()}
                if of_grid.results:
                    self.studies[name][dataset] = Study(
                        of_grid.grid, dataset, of_grid.facts, of_grid.cells, of_grid.found, experiment
                    )
        self.cells = list(cells.values())
        """Every result that enters the report, once."""
        self.planned = len(planned)
        """Cells of the full plan on the data sets known."""
