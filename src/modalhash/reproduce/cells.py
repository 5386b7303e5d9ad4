"""Cells: what is measured once. Experiments share them: a fit that two tables show is made once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from modalhash import registry
from modalhash.reproduce.config import Experiment, Row
from modalhash.reproduce.sources import SOURCES


@dataclass(frozen=True)
class Cell:
    """One fit on one data set with one seed."""

    dataset: str
    digest: str
    """Of the data."""
    scenario: str
    method: str
    parameters: str
    """All of the constructor's but bits and seed, as sorted JSON: a default that changes makes another cell."""
    bits: int
    seed: int
    protocol: str
    measured: bool
    """False: a twin, of which only the time of the fit means something."""
    version: str
    """Of modalhash. Not the commit: that would throw hours away at every change of a comment."""
    limit_seconds: float | None = None

    @property
    def key(self) -> str:
        """Digest of everything a result depends on; how long one is willing to wait is no part of it."""
        content = asdict(replace(self, limit_seconds=None))
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def path(self) -> str:
        """Of the result, under the results folder: readable, and unique by its key."""
        return f"{self.dataset}/{self.method}-{self.bits}-{self.scenario}-seed{self.seed}-{self.key}.json"

    def __str__(self) -> str:
        return f"{self.method} {self.bits} bits on {self.dataset} ({self.scenario}), seed {self.seed}"


def cells_of(
    experiment: Experiment,
    dataset: str,
    digest: str,
    *,
    quick: bool = False,
    rows: Iterable[Row] | None = None,
    bits: Sequence[int] | None = None,
    version: str,
) -> dict[tuple[str, str, int, int], Cell]:
    """The cells of an experiment on a data set, by (sweep, label, bits, seed)."""
    part = experiment.part(dataset, quick=quick)
    if part is None or experiment.kind == "statistics":
        return {}
    found = {}
    for row in experiment.rows if rows is None else rows:
        wanted = part.rows is None or row.label in part.rows
        if row.quoted or not wanted or (part.sweeps is not None and row.sweep not in part.sweeps):
            continue
        for n_bits in bits or part.bits or experiment.bits:
            for seed in range(part.seeds or experiment.seeds):
                found[row.sweep, row.label, n_bits, seed] = Cell(
                    dataset=dataset,
                    digest=digest,
                    scenario=row.scenario or experiment.scenario,
                    method=row.method,
                    parameters=resolved(row.method, json.dumps(row.parameters, sort_keys=True)),
                    bits=n_bits,
                    seed=seed,
                    protocol=str(experiment.protocol),
                    measured=not SOURCES[dataset].twin,
                    version=version,
                    limit_seconds=experiment.limit_seconds,
                )
    return found


@cache
def resolved(method: str, changes: str) -> str:
    """All parameters of a method's constructor but bits and seed, as JSON. Unknown ones are an error."""
    cls = registry.get(method)
    parameters: dict[str, Any] = cls().get_params(deep=False)
    given: Mapping[str, Any] = json.loads(changes)
    if unknown := set(given) - set(parameters):
        raise ValueError(f"{method} has no parameter {', '.join(sorted(unknown))}; it has {', '.join(parameters)}")
    parameters.update(given)
    for name in ("n_bits", "random_state"):
        parameters.pop(name)
    return json.dumps(parameters, sort_keys=True)


def unique(cells: Iterable[Cell]) -> list[Cell]:
    """Every cell once, by its key; the first limit counts. Data sets stay together, cheap seeds first."""
    by_key: dict[str, Cell] = {}
    for cell in cells:
        by_key.setdefault(cell.key, cell)
    order = {name: number for number, name in enumerate(SOURCES)}
    return sorted(by_key.values(), key=lambda cell: (order[cell.dataset], cell.seed, cell.bits))
