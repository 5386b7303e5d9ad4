"""What a run would measure: which data are here, which cells that makes, how long it may take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modalhash import __version__
from modalhash.reproduce.cells import Cell, cells_of, unique
from modalhash.reproduce.config import Experiment
from modalhash.reproduce.sources import SOURCES, describe
from modalhash.reproduce.store import Store


@dataclass
class Plan:
    """Cells to measure, and what cannot be."""

    cells: list[Cell] = field(default_factory=list)
    by_experiment: dict[str, list[Cell]] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    """Data set → how to get it."""
    broken: dict[str, str] = field(default_factory=dict)
    """Data set → why it could not be read."""


def choose(experiments: Mapping[str, Experiment], names: Sequence[str]) -> dict[str, Experiment]:
    """The experiments named, or all."""
    if unknown := [name for name in names if name not in experiments]:
        raise ValueError(f"no experiment is called {', '.join(unknown)}; there are {', '.join(experiments)}")
    return {name: experiment for name, experiment in experiments.items() if not names or name in names}


def make_plan(
    experiments: Mapping[str, Experiment],
    *,
    root: Path | None = None,
    quick: bool = False,
    datasets: Sequence[str] = (),
    seeds: int | None = None,
) -> Plan:
    """Every cell of the experiments on the data that are here, each once."""
    if unknown := [name for name in datasets if name not in SOURCES]:
        raise ValueError(f"no data set is called {', '.join(unknown)}; there are {', '.join(SOURCES)}")
    plan = Plan()
    for experiment in experiments.values():
        mine: list[Cell] = []
        for name in experiment.datasets:
            if (datasets and name not in datasets) or (quick and not _wanted(experiment, name)):
                continue
            if _look(plan, name, root):
                found = cells_of(experiment, name, plan.facts[name]["digest"], quick=quick, version=__version__)
                mine += [cell for cell in found.values() if seeds is None or cell.seed < seeds]
        plan.by_experiment[experiment.id] = unique(mine)
    plan.cells = unique(cell for cells in plan.by_experiment.values() for cell in cells)
    return plan


def _wanted(experiment: Experiment, dataset: str) -> bool:
    """A quick run looks at all data for Table I, and names the paper's own where they are absent."""
    return experiment.kind == "statistics" or dataset in experiment.quick or SOURCES[dataset].role == "paper"


def _look(plan: Plan, name: str, root: Path | None) -> bool:
    """Load a data set once, for its digest; say what is wrong where that fails."""
    if name in plan.facts:
        return True
    if name in plan.absent or name in plan.broken:
        return False
    source = SOURCES[name]
    if not source.present(root):
        plan.absent[name] = source.how_to_get()
        return False
    try:
        plan.facts[name] = describe(source, root)
    except Exception as error:  # a strange file must not keep the others from running
        plan.broken[name] = f"{type(error).__name__}: {error}"
        return False
    return True


def record(plan: Plan, store: Store) -> None:
    """Let the results folder know the data, so that the report needs nothing else."""
    for facts in plan.facts.values():
        store.write_dataset(facts)
