"""Experiments: one TOML file per table or figure of the paper, with the published numbers beside the settings."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from modalhash.evaluation import Protocol
from modalhash.registry import METHODS
from modalhash.validation import check_choice

KINDS = ("statistics", "comparison", "curves", "sensitivity", "times", "convergence")
SCENARIOS = ("paired", "unpaired")
TASKS = {"I2T": "image → text", "T2I": "text → image"}
_KEYS = {"id", "title", "paper", "kind", "scenario", "protocol", "bits", "seeds", "datasets", "rows",
         "sweeps", "published", "quick", "full", "notes", "bits_drawn", "order",
         "limit_seconds"}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One line of a table: a method under the name the paper gives it."""

    label: str
    method: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    scenario: str = ""
    quoted: bool = False
    """Not run here: the published value is all there is."""
    extra: bool = False
    """Not in the paper's table."""
    sweep: str = ""
    """Name of the sweep that this point belongs to."""


@dataclass(frozen=True)
class Sweep:
    """Parameters varied together; every combination is a point."""

    name: str
    title: str
    values: Mapping[str, Sequence[float]]
    symbols: Mapping[str, str]
    fixed: Mapping[str, Any]

    def rows(self, method: str) -> list[Row]:
        """A row per point."""
        points = [dict(zip(self.values, point, strict=True)) for point in product(*self.values.values())]
        return [Row(self.label(point), method, parameters={**self.fixed, **point}, sweep=self.name) for point in points]

    def label(self, point: Mapping[str, float]) -> str:
        """E.g. ``λ=0.001, β=1``."""
        return ", ".join(f"{self.symbols[name]}={value:g}" for name, value in point.items())


@dataclass(frozen=True)
class Part:
    """What of an experiment is run on a data set; None is everything."""

    bits: Sequence[int] | None = None
    seeds: int | None = None
    rows: Sequence[str] | None = None
    sweeps: Sequence[str] | None = None


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper."""

    id: str
    title: str
    paper: str
    kind: str
    datasets: Sequence[str]
    path: Path
    scenario: str = "paired"
    protocol: Protocol = field(default_factory=Protocol)
    bits: Sequence[int] = ()
    bits_drawn: Sequence[int] = ()
    """Code lengths that the figure shows, where the cells have more."""
    seeds: int = 1
    limit_seconds: float | None = None
    """A fit that takes longer is stopped and recorded as failed."""
    rows: Sequence[Row] = ()
    sweeps: Sequence[Sweep] = ()
    published: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]] = field(default_factory=dict)
    """Data set → task → label → a value per code length (or one value)."""
    published_bits: Sequence[int] = ()
    published_table: str = ""
    """Name of the table in ``published.csv``."""
    quick: Mapping[str, Part] = field(default_factory=dict)
    full: Mapping[str, Part] = field(default_factory=dict)
    notes: Sequence[str] = ()
    order: int = 0

    def part(self, dataset: str, *, quick: bool) -> Part | None:
        """What is run on a data set; None for nothing."""
        return self.quick.get(dataset) if quick else self.full.get(dataset, Part())

    def of(self, dataset: str, task: str, label: str, bits: int) -> float | None:
        """The published value, where there is one."""
        values = self.published.get(dataset, {}).get(task, {}).get(label)
        if values is None or bits not in self.published_bits:
            return None
        return values[list(self.published_bits).index(bits)]

    def row(self, label: str) -> Row:
        """The row with this label."""
        return next(row for row in self.rows if row.label == label)


def folder() -> Path:
    """Where the experiments are: inside an installed package, or at the root of the repository."""
    inside = Path(__file__).parent / "experiments"
    return inside if inside.is_dir() else Path(__file__).parents[3] / "experiments"


def load_all(where: Path | None = None) -> dict[str, Experiment]:
    """Every experiment, in the order of the paper."""
    where = where or folder()
    found = sorted((load(path) for path in where.glob("*.toml")), key=lambda experiment: experiment.order)
    if not found:
        raise FileNotFoundError(f"{where}: no experiment (*.toml) there; the package was installed without them")
    return {experiment.id: experiment for experiment in found}


def load(path: Path) -> Experiment:
    """One file, checked."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        return _experiment(content, path)
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: {type(error).__name__}: {error}") from error


def _experiment(content: dict[str, Any], path: Path) -> Experiment:
    if unknown := set(content) - _KEYS:
        raise ValueError(f"unknown key(s) {', '.join(sorted(unknown))}; known: {', '.join(sorted(_KEYS))}")
    published = dict(content.pop("published", {}))
    sweeps = [_sweep(**entry) for entry in content.pop("sweeps", [])]
    rows = [_row(entry) for entry in content.pop("rows", [])]
    if sweeps:
        if len(rows) != 1:
            raise ValueError(f"sweeps vary the parameters of one row; there are {len(rows)}")
        rows = [point for sweep in sweeps for point in sweep.rows(rows[0].method)]
    if len({row.label + row.sweep for row in rows}) < len(rows):
        raise ValueError("two rows have the same label")
    experiment = Experiment(
        path=path,
        protocol=Protocol.parse(content.pop("protocol", "")),
        rows=rows,
        sweeps=sweeps,
        published_bits=published.pop("bits", ()),
        published_table=published.pop("table", ""),
        published=published,
        quick={name: Part(**part) for name, part in content.pop("quick", {}).items()},
        full={name: Part(**part) for name, part in content.pop("full", {}).items()},
        **content,
    )
    _check(experiment)
    return experiment


def _row(entry: dict[str, Any]) -> Row:
    # TOML has no null: the text "none" stands for it
    parameters = {key: None if value == "none" else value for key, value in entry.pop("parameters", {}).items()}
    return Row(parameters=parameters, **entry)


def _sweep(*, name: str, title: str, values: Any, symbols: Any, fixed: Any) -> Sweep:
    if set(values) != set(symbols) or not 1 <= len(values) <= 2:
        raise ValueError(f"sweep {name!r}: values and symbols must name the same one or two parameters")
    return Sweep(name, title, values, symbols, fixed)


def _check(experiment: Experiment) -> None:
    check_choice(experiment.kind, "kind", KINDS)
    check_choice(experiment.scenario, "scenario", SCENARIOS)
    for row in experiment.rows:
        check_choice(row.scenario or experiment.scenario, f"{row.label}: scenario", SCENARIOS)
        if not row.quoted and row.method not in METHODS:
            raise ValueError(f"{row.label}: unknown method {row.method!r}; known: {', '.join(METHODS)}")
    for dataset, part in {**experiment.full, **experiment.quick}.items():
        if dataset not in experiment.datasets:
            raise ValueError(f"{dataset!r} is not among the data sets {', '.join(experiment.datasets)}")
        if set(part.bits or ()) - set(experiment.bits) or (part.seeds or 0) > experiment.seeds:
            raise ValueError(f"{dataset!r}: quick and full take a part of the experiment, they do not add to it")
    if set(experiment.bits_drawn) - set(experiment.bits):
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
