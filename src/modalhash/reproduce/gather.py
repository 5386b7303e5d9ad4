"""What the results folder holds of an experiment on a data set. Nothing is fitted from here on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from modalhash import __version__
from modalhash._typing import Array
from modalhash.evaluation import Spread
from modalhash.registry import info
from modalhash.reproduce.cells import cells_of
from modalhash.reproduce.config import Experiment, Sweep
from modalhash.reproduce.sources import SOURCES, Source
from modalhash.reproduce.store import Result, Store

OURS = "AMSH"
TASKS = ("I2T", "T2I")
DATABASES = ("learned", "hashed", "unseen", "retrieval")
Key = tuple[str, str, int, int]
"""Sweep, label, bits, seed."""


@dataclass(frozen=True, eq=False)
class Study:
    """The results of an experiment on one data set."""

    experiment: Experiment
    dataset: str
    facts: Mapping[str, Any]
    results: Mapping[Key, Result]
    failures: Mapping[Key, str]
    planned: int

    @property
    def source(self) -> Source:
        """Where the data come from."""
        return SOURCES[self.dataset]

    @property
    def same(self) -> bool:
        """Whether these are the paper's data, so that its numbers may be compared."""
        return bool(self.facts["same"])

    @property
    def quotes(self) -> str:
        """The paper's data set whose numbers stand beside; "" for none."""
        name = self.dataset if self.same else self.source.quotes
        return name if name in self.experiment.published else ""

    @cached_property
    def labels(self) -> list[str]:
        """Rows with any result, and those that are quoted, in the order of the file."""
        found = {key[1] for key in self.results}
        return [row.label for row in self.experiment.rows if row.label in found or (row.quoted and self.same)]

    @cached_property
    def bits(self) -> list[int]:
        """Code lengths with any result."""
        return sorted({key[2] for key in self.results})

    @cached_property
    def seeds(self) -> list[int]:
        """Seeds with any result."""
        return sorted({key[3] for key in self.results})

    @cached_property
    def databases(self) -> list[str]:
        """Kinds of database that were searched."""
        found = {kind for result in self.results.values() for kind in result.get("databases", {})}
        return [kind for kind in DATABASES if kind in found]

    @cached_property
    def sweeps(self) -> list[Sweep]:
        """Those with two points or more: the default values alone, which other tables share, show nothing."""
        points: dict[str, set[str]] = {}
        for sweep, label, _, _ in self.results:
            points.setdefault(sweep, set()).add(label)
        return [sweep for sweep in self.experiment.sweeps if len(points.get(sweep.name, ())) > 1]

    def of(self, label: str, bits: int, sweep: str = "") -> dict[int, Result]:
        """Results by seed."""
        found = {seed: self.results.get((sweep, label, bits, seed)) for seed in self.seeds}
        return {seed: result for seed, result in found.items() if result is not None}

    def spread(self, label: str, bits: int, task: str, database: str, sweep: str = "") -> Spread | None:
        """Mean and deviation of the mAP over the seeds."""
        values = [r["databases"][database][task]["map"] for r in self.of(label, bits, sweep).values()
                  if database in r.get("databases", {})]  # fmt: skip
        return Spread.of(values) if values else None

    def mean(self, label: str, bits: int, task: str, database: str = "learned", sweep: str = "") -> float | None:
        """Mean mAP over the seeds."""
        found = self.spread(label, bits, task, database, sweep)
        return None if found is None else found.mean

    def chance(self, task: str, database: str) -> float | None:
        """The level of a random ranking."""
        values = [r["databases"][database][task]["chance"] for r in self.results.values()
                  if database in r.get("databases", {})]  # fmt: skip
        return float(np.mean(values)) if values else None

    def seconds(self, label: str, bits: int) -> Spread | None:
        """CPU seconds of a fit."""
        values = [result["seconds"]["cpu"] for result in self.of(label, bits).values()]
        return Spread.of(values) if values else None

    def stages(self, label: str, bits: int) -> dict[str, float]:
        """Mean CPU seconds per stage."""
        found: dict[str, list[float]] = {}
        for result in self.of(label, bits).values():
            for stage, value in result["seconds"]["stages"].items():
                found.setdefault(stage, []).append(value)
        return {stage: float(np.mean(values)) for stage, values in found.items()}

    def curve(self, label: str, bits: int, task: str, database: str) -> Array | None:
        """Precision over the recall grid, mean over the seeds."""
        curves = [r["databases"][database][task]["curve"] for r in self.of(label, bits).values()
                  if database in r.get("databases", {})]  # fmt: skip
        if not curves:
            return None
        n = min(map(len, curves))
        return np.mean([curve[:n] for curve in curves], axis=0)

    def per_query(self, label: str, bits: int, task: str, database: str, seeds: Iterable[int]) -> Array | None:
        """Average precision of every query: mean over the seeds where these ask the same queries, else one after
        another, so that a query is never counted twice.
        """  # noqa: D205
        found = self.of(label, bits)
        chosen = [found[seed] for seed in seeds if database in found[seed].get("databases", {})]
        if not chosen:
            return None
        values = [
            np.array([np.nan if x is None else x for x in r["databases"][database][task]["average_precision"]])
            for r in chosen
        ]
        alike = len({result["queries"] for result in chosen}) == 1
        return np.mean(values, axis=0) if alike else np.concatenate(values)

    def supervised(self, label: str) -> bool:
        """Whether the method of a row sees labels."""
        row = self.experiment.row(label)
        return row.quoted or info(row.method).supervised


class Gathered:
    """All experiments on all data sets that the store knows."""

    def __init__(self, store: Store, experiments: Mapping[str, Experiment]) -> None:
        self.experiments = experiments
        self.facts = store.datasets()
        self._cache: dict[str, Result | None] = {}
        self._store = store
        self.studies: dict[str, dict[str, Study]] = {
            name: {
                dataset: study
                for dataset in experiment.datasets
                if dataset in self.facts and (study := self._study(experiment, dataset)).results
            }
            for name, experiment in experiments.items()
        }

    def _study(self, experiment: Experiment, dataset: str) -> Study:
        cells = cells_of(experiment, dataset, self.facts[dataset]["digest"], version=__version__)
        results, failures = {}, {}
        for key, cell in cells.items():
            if cell.key not in self._cache:
                self._cache[cell.key] = self._store.read(cell)
            found = self._cache[cell.key]
            if found is not None and "error" in found:
                failures[key] = str(found["error"])
            elif found is not None:
                results[key] = found
        return Study(experiment, dataset, self.facts[dataset], results, failures, len(cells))

    def cells(self) -> list[Result]:
        """Every result that enters the report, once."""
        return [result for result in self._cache.values() if result is not None]

    def planned(self) -> int:
        """Cells of the full plan on the data sets known."""
        return len(self._cache)
