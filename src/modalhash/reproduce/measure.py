"""Measure one cell: prepare the data, fit, search three databases, keep everything a table or figure may want."""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from modalhash import registry
from modalhash._typing import Array
from modalhash.data import Parts, scenarios
from modalhash.evaluation import Direction, Protocol, evaluate, evaluate_databases
from modalhash.progress import Progress
from modalhash.reproduce.cells import Cell
from modalhash.reproduce.sources import prepared

RECALL = np.linspace(0, 1, 51)
"""Where curves are kept."""


def measure(cell: Cell, root: Path | None) -> dict[str, Any]:
    """Metrics, seconds per stage and objective traces of one cell."""
    from modalhash.reproduce.sources import SOURCES

    parts, pairs = scene(cell, root)
    model = registry.get(cell.method)(n_bits=cell.bits, random_state=cell.seed, **json.loads(cell.parameters))
    stages = Stages()
    wall, cpu = time.perf_counter(), time.process_time()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        model.fit(parts.training.features, parts.training.labels, pairs=pairs, callback=stages)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    result: dict[str, Any] = {
        "seconds": {"fit": wall, "cpu": cpu, "stages": stages.seconds(cpu)},
        "objective": plain(getattr(model, "objective_", None)),
        "solver": getattr(model, "solver_", None),
        "queries": digest_of_ids(parts),
        "warnings": sorted({f"{warning.category.__name__}: {warning.message}" for warning in heard}),
    }
    if cell.measured:
        start = time.perf_counter()
        roles = dict(zip(SOURCES[cell.dataset].modalities, ("I", "T"), strict=True))
        result["databases"] = databases(model, parts, Protocol.parse(cell.protocol), roles)
        result["seconds"]["evaluation"] = time.perf_counter() - start
    return result


def scene(cell: Cell, root: Path | None) -> tuple[Parts, Any]:
    """The data as the scenario has it, and what ``fit`` is told about pairs."""
    dataset = prepared(cell.dataset, root, cell.seed)
    if cell.scenario == "unpaired":
        return scenarios.unpaired(dataset, seed=cell.seed).parts(), None
    uses_pairs = registry.info(cell.method).pairing != "none"
    return scenarios.paired(dataset).parts(), "aligned" if uses_pairs else None


def databases(model: Any, parts: Parts, protocol: Protocol, roles: Mapping[str, str]) -> dict[str, Any]:
    """The three databases; a fourth, the whole retrieval set hashed, where it is more than the training items."""
    found = evaluate_databases(model, parts, protocol=protocol)
    if parts.database is not parts.training:
        found["retrieval"] = evaluate(
            model,
            (parts.query.features, parts.query.relevance),
            (parts.database.features, parts.database.relevance),
            protocol=protocol.with_database("unseen"),
            query_ids=parts.query.ids,
            database_ids=parts.database.ids,
        )
    return {
        kind: {f"{roles[d.query]}2{roles[d.database]}": of_direction(d) for d in result.directions.values()}
        for kind, result in found.items()
    }


def of_direction(direction: Direction) -> dict[str, Any]:
    """What is kept of one direction: four digits of each query's average precision, the curve on a recall grid."""
    curve = direction.by_rank
    recall, precision = np.concatenate([[0.0], curve.recall]), np.concatenate([curve.precision[:1], curve.precision])
    grid = RECALL[: np.searchsorted(RECALL, recall[-1] + 1e-9)]
    return {
        "map": direction.map,
        "chance": direction.chance,
        "n_queries": direction.n_queries,
        "n_items": direction.n_items,
        "average_precision": [None if np.isnan(x) else round(float(x), 4) for x in direction.average_precision],
        "curve": [round(float(x), 5) for x in np.interp(grid, recall, precision)],
    }


def digest_of_ids(parts: Parts) -> str:
    """Which queries were asked: two cells can be compared query by query only where they are the same."""
    total = hashlib.sha256()
    for ids in parts.query.ids.values():
        total.update(np.asarray(ids).astype(str).tobytes())
    return total.hexdigest()[:16]


def plain(value: Any) -> Any:
    """Traces as plain lists of eight digits; what is not a number is None."""
    if isinstance(value, Mapping):
        return {name: plain(entry) for name, entry in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        numbers: Array = np.asarray(value, dtype=np.float64)
        return [float(f"{number:.8g}") if np.isfinite(number) else None for number in numbers.ravel()]
    return value


class Stages:
    """A progress callback that remembers the CPU time at which each stage was last heard of."""

    def __init__(self) -> None:
        self._start = time.process_time()
        self._last: dict[str, float] = {}

    def __call__(self, progress: Progress) -> None:
        self._last[progress.stage] = time.process_time() - self._start

    def seconds(self, total: float) -> dict[str, float]:
        """CPU seconds of each stage; ``rest`` is what came after the last report."""
        found, before = {}, 0.0
        for stage, end in self._last.items():
            found[stage], before = round(end - before, 4), end
        found["rest"] = round(max(0.0, total - before), 4)
        return found
