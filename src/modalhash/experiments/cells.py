"""Cells: what is measured once, known by the digest of everything its result depends on, the code included."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from modalhash.experiments.config import Grid, Row
from modalhash.experiments.provenance import code_digest
from modalhash.methods import registry


class Point(NamedTuple):
    """The position of a cell in its grid, on one data set."""

    label: str
    scenario: str
    sweep: str
    bits: int
    seed: int


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
    features: str
    bits: int
    seed: int
    protocol: str
    intra: bool
    measured: bool
    """False: only the time of the fit means something."""
    code: str
    """Digest of the sources that the numbers come from, see :func:`code_digest`."""
    per_query: bool = True
    limit_seconds: float | None = None

    @property
    def key(self) -> str:
        """Digest of everything the numbers depend on; how long one waits, and what is kept, are no part of it."""
        content = asdict(self)
        del content["limit_seconds"], content["per_query"]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def path(self) -> str:
        """Path of the result under the folder of results: readable, and unique by its key."""
        words = f"{self.method}-{self.bits}-{self.scenario}-seed{self.seed}-{self.key}.json"
        return "/".join(re.sub(r"[^\w.+-]", "-", part) for part in (self.dataset, words))

    def __str__(self) -> str:
        return f"{self.method} {self.bits} bits on {self.dataset} ({self.scenario}), seed {self.seed}"


def cells_of(grid: Grid, dataset: str, digest: str, *, quick: bool = False) -> dict[Point, Cell]:
    """Return the cells of a grid on a data set whose content has this digest."""
    part = grid.part(dataset, quick=quick)
    if part is None:
        return {}
    return {
        Point(row.label, row.scenario, row.sweep, bits, seed): _cell(grid, row, dataset, digest, bits, seed)
        for row in grid.rows
        if (part.rows is None or row.label in part.rows) and (part.sweeps is None or row.sweep in part.sweeps)
        for bits in part.bits or grid.bits
        for seed in range(min(part.seeds or grid.seeds, row.seeds or grid.seeds))
    }


def _cell(grid: Grid, row: Row, dataset: str, digest: str, bits: int, seed: int) -> Cell:
    return Cell(
        dataset=dataset,
        digest=digest,
        scenario=row.scenario,
        method=row.method,
        parameters=resolved(row.method, json.dumps(row.parameters, sort_keys=True)),
        features=row.features,
        bits=bits,
        seed=seed,
        protocol=str(grid.protocol),
        intra=grid.intra,
        per_query=grid.per_query,
        measured=grid.inputs[dataset].measured,
        code=code_digest(row.method),
        limit_seconds=grid.limit_seconds,
    )


@cache
def resolved(method: str, changes: str) -> str:
    """Return all parameters of a method's constructor but bits and seed, as JSON. Unknown ones are an error."""
    parameters: dict[str, Any] = registry.get(method)().get_params(deep=False)
    given: Mapping[str, Any] = json.loads(changes)
    if unknown := set(given) - set(parameters):
        raise ValueError(f"{method} has no parameter {', '.join(sorted(unknown))}; it has {', '.join(parameters)}")
    parameters.update(given)
    for name in ("n_bits", "random_state"):
        parameters.pop(name, None)  # a method that draws nothing has no seed
    return json.dumps(parameters, sort_keys=True)


def unique(cells: Iterable[Cell], order: Iterable[str] = ()) -> list[Cell]:
    """Return every cell once; the first limit counts. Data sets stay together, in this order; cheap cells first."""
    by_key: dict[str, Cell] = {}
    for cell in cells:
        first = by_key.setdefault(cell.key, cell)
        if cell.per_query and not first.per_query:
            by_key[cell.key] = replace(first, per_query=True)
    rank = {name: number for number, name in enumerate(order)}
    return sorted(by_key.values(), key=lambda cell: (rank.get(cell.dataset, len(rank)), cell.seed, cell.bits))
