"""Experiments: one TOML file per table or figure of the paper, a grid with the published numbers."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modalhash.core.validation import check_choice
from modalhash.experiments import Grid, make_grid
from reproduction.paper_data import INPUTS

FOLDER = Path(__file__).parent / "experiments"
KINDS = ("statistics", "comparison", "curves", "sensitivity", "times", "convergence")
OWN_KEYS = ("paper", "kind", "order", "notes", "bits_drawn", "published")
"""Keys of an experiment that are not those of a grid."""


@dataclass(frozen=True)
class PaperRow:
    """One line of the paper's table, or one that was added to it."""

    label: str
    method: str = ""
    quoted: bool = False
    """Only the published value; not run here."""
    extra: bool = False
    """Not in the paper's table."""
    database: str = "learned"
    """The database whose numbers are compared with the published ones."""


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper."""

    grid: Grid
    paper: str
    """Its name in the paper, e.g. ``Table II``."""
    kind: str
    rows: Sequence[PaperRow]
    order: int = 0
    notes: Sequence[str] = ()
    bits_drawn: Sequence[int] = ()
    """Code lengths that the figure shows, where the cells have more."""
    published: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]] = field(default_factory=dict)
    """Data set → task → label → a value per code length (or one value)."""
    published_bits: Sequence[int] = ()
    published_table: str = ""
    """Name of the table in the list of the paper's numbers."""

    @property
    def id(self) -> str:
        """Its name on the command line."""
        return self.grid.name

    @property
    def title(self) -> str:
        """What it shows."""
        return self.grid.title

    @property
    def datasets(self) -> list[str]:
        """The data sets it is run on, where they are present."""
        return self.grid.datasets

    @property
    def scenario(self) -> str:
        """The scenario of its rows."""
        return self.grid.scenarios[0]

    def of(self, dataset: str, task: str, label: str, bits: int) -> float | None:
        """Return the published value, where there is one."""
        values = self.published.get(dataset, {}).get(task, {}).get(label)
        if values is None or bits not in self.published_bits:
            return None
        return values[list(self.published_bits).index(bits)]

    def row(self, label: str) -> PaperRow:
        """Return the row with this label."""
        return next(row for row in self.rows if row.label == label)


def load_all(folder: Path = FOLDER) -> dict[str, Experiment]:
    """Read every experiment, in the order of the paper."""
    found = sorted((load(path) for path in folder.glob("*.toml")), key=lambda experiment: experiment.order)
    return {experiment.id: experiment for experiment in found}


def load(path: Path) -> Experiment:
    """Read and check one file; errors name the file."""
    try:
        return _experiment(tomllib.loads(path.read_text(encoding="utf-8")), path)
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: {type(error).__name__}: {error}") from error


def choose(experiments: Mapping[str, Experiment], names: Sequence[str]) -> dict[str, Experiment]:
    """Return the experiments named, or all."""
    if unknown := [name for name in names if name not in experiments]:
        raise ValueError(f"no experiment is called {', '.join(unknown)}; there are {', '.join(experiments)}")
    return {name: experiment for name, experiment in experiments.items() if not names or name in names}


def _experiment(content: dict[str, Any], path: Path) -> Experiment:
    own = {key: content.pop(key) for key in OWN_KEYS if key in content}
    published = dict(own.pop("published", {}))
    rows, run = [], []
    for entry in content.pop("rows", []):
        quoted, extra = entry.pop("quoted", False), entry.pop("extra", False)
        database = entry.pop("published_database", "learned")
        rows.append(PaperRow(entry["label"], entry.get("method", ""), quoted, extra, database))
        if not quoted:
            run.append(entry)
    grid = make_grid({**content, "rows": run}, path, INPUTS)
    if grid.sweeps:
        rows += [PaperRow(row.label, row.method) for row in grid.rows]
    experiment = Experiment(
        grid=grid,
        rows=rows,
        published_bits=published.pop("bits", ()),
        published_table=published.pop("table", ""),
        published=published,
        **own,
    )
    _check(experiment)
    return experiment


def _check(experiment: Experiment) -> None:
    check_choice(experiment.kind, "kind", KINDS)
    if set(experiment.bits_drawn) - set(experiment.grid.bits):
        raise ValueError("bits_drawn are a part of bits")
    labels = {row.label for row in experiment.rows}
    for dataset, tasks in experiment.published.items():
        for task, values in tasks.items():
            for label, numbers in values.items():
                where = f"published.{dataset}.{task}.{label}"
                if experiment.kind != "statistics" and label not in labels:
                    raise ValueError(f"{where}: no row has this label")
                if len(numbers) != max(1, len(experiment.published_bits)):
                    raise ValueError(f"{where}: {len(numbers)} values for {len(experiment.published_bits)} bits")
