"""Measure one cell: split the data, apply the scenario, fit, and search the databases.

The digest of this module is part of every cell (``provenance.code_digest``) because it determines the numbers.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from modalhash.core.progress import Progress
from modalhash.core.typing import Array
from modalhash.data import Dataset, SplitData, scenarios, with_split
from modalhash.evaluation import Direction, Protocol, evaluate, evaluate_databases
from modalhash.experiments.config import Scenario
from modalhash.methods import registry

if TYPE_CHECKING:
    from modalhash.experiments.config import Cell
    from modalhash.experiments.provenance import Input

RECALL = np.linspace(0, 1, 51)
"""Recall at which curves have the precision."""


class Loader:
    """Loads the data sets of a grid; the last data set and its last parts stay in memory."""

    def __init__(self, inputs: Mapping[str, Input], root: Path | None) -> None:
        self._load = lru_cache(maxsize=1)(lambda name: inputs[name].load(root))
        self._parts = lru_cache(maxsize=1)(lambda name, *rest: parts_under(self.dataset(name, rest[1]), *rest))

    def dataset(self, name: str, seed: int) -> Dataset:
        return with_split(self._load(name), seed=seed)

    def __call__(self, name: str, scenario: str, seed: int) -> tuple[SplitData, Any]:
        return self._parts(name, scenario, seed)


def parts_under(dataset: Dataset, scenario: str, seed: int) -> tuple[SplitData, Any]:
    dataset, pairs = apply_scenario(Scenario.parse(scenario), dataset, seed)
    return dataset.parts(), pairs


def apply_scenario(scenario: Scenario, dataset: Dataset, seed: int) -> tuple[Dataset, Any]:
    """Return the changed data set, and its pairs for ``fit`` (None if pairs are unknown)."""
    (pairing, share), *label_changes = scenario.steps
    pairs: Any = None
    if pairing == "paired":
        dataset, pairs = scenarios.paired(dataset), "aligned"
    elif pairing == "unpaired":
        dataset = scenarios.unpaired(dataset, seed=seed)
    elif pairing == "unequal":
        dataset = scenarios.unequal(dataset, *_given(share), seed=seed)
    else:
        dataset, pairs = scenarios.semi_paired(dataset, *_given(share), seed=seed)
    change = {"noisy_labels": scenarios.noisy_labels, "missing_labels": scenarios.missing_labels}
    for name, rate in label_changes:
        dataset = change[name](dataset, *_given(rate), seed=seed, shared=pairs is not None)
    return dataset, pairs


def _given(number: float | None) -> tuple[float, ...]:
    return () if number is None else (number,)


def prepare(cell: Cell, parts: SplitData, pairs: Any) -> tuple[Any, SplitData, Any]:
    """Return the model, the parts with the features it learns from, and the pairs for the fit of a cell."""
    if registry.info(cell.method).pairing == "none":
        pairs = None
    if cell.features == "labels":
        training, query = (replace(part, features=part.labels) for part in parts[:2])
        same = parts.database is parts.training
        parts = SplitData(
            training, query, training if same else replace(parts.database, features=parts.database.labels)
        )
    model = registry.method(cell.method)(n_bits=cell.bits, **json.loads(cell.parameters))
    if "random_state" in model.get_params(deep=False):  # a method without randomness has no seed
        model.set_params(random_state=cell.seed)
    return model, parts, pairs


def measure(cell: Cell, load: Loader) -> dict[str, Any]:
    """Return metrics, seconds per stage and objective traces of one cell."""
    model, parts, pairs = prepare(cell, *load(cell.dataset, cell.scenario, cell.seed))
    stages, memory = _Stages(), PeakMemory()
    wall, cpu = time.perf_counter(), time.process_time()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        model.fit(parts.training.features, parts.training.labels, pairs=pairs, callback=stages)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    result: dict[str, Any] = {
        "seconds": {"fit": wall, "cpu": cpu, "stages": stages.seconds(cpu)},
        "memory": memory.bytes(),
        "objective": _plain(getattr(model, "objective_", None)),
        "solver": getattr(model, "solver_", None),
        "queries": _digest_of_ids(parts),
        "warnings": sorted({f"{warning.category.__name__}: {warning.message}" for warning in heard}),
    }
    if cell.measured:
        start = time.perf_counter()
        result["databases"] = _databases(model, parts, cell)
        result["seconds"]["evaluation"] = time.perf_counter() - start
    return result


def _databases(model: Any, parts: SplitData, cell: Cell) -> dict[str, Any]:
    """Search the three databases, and the whole hashed retrieval set if it exceeds the training items."""
    protocol = Protocol.parse(cell.protocol)
    found = evaluate_databases(model, parts, protocol=protocol, intra=cell.intra)
    if parts.database is not parts.training:
        found["retrieval"] = evaluate(
            model,
            (parts.query.features, parts.query.relevance),
            (parts.database.features, parts.database.relevance),
            protocol=protocol.with_database("unseen"),
            query_ids=parts.query.ids,
            database_ids=parts.database.ids,
            intra=cell.intra,
        )
    return {
        kind: {
            direction.name: _of_direction(direction, per_query=cell.per_query)
            for direction in result.directions.values()
        }
        for kind, result in found.items()
    }


def _of_direction(direction: Direction, *, per_query: bool) -> dict[str, Any]:
    """Return the stored values of one direction: rounded average precisions and the curve on a grid."""
    kept: dict[str, Any] = {
        "map": direction.map,
        "chance": direction.chance,
        "n_queries": direction.n_queries,
        "n_items": direction.n_items,
        "precision_at": {str(n): round(share, 5) for n, share in direction.precision_at.items()},
    }
    if per_query:
        curve = direction.by_rank
        recall = np.concatenate([[0.0], curve.recall])
        precision = np.concatenate([curve.precision[:1], curve.precision])
        grid = RECALL[: np.searchsorted(RECALL, recall[-1] + 1e-9)]
        kept["average_precision"] = [None if np.isnan(x) else round(float(x), 4) for x in direction.average_precision]
        kept["curve"] = [round(float(x), 5) for x in np.interp(grid, recall, precision)]
    return kept


def _digest_of_ids(parts: SplitData) -> str:
    """Return the digest of the queries; cells are compared query by query only if it is equal."""
    total = hashlib.sha256()
    for ids in parts.query.ids.values():
        total.update(np.asarray(ids).astype(str).tobytes())
    return total.hexdigest()[:16]


def _plain(value: Any) -> Any:
    """Return traces as lists of numbers with eight digits; non-finite values become None."""
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        numbers: Array = np.asarray(value, dtype=np.float64)
        return [float(f"{number:.8g}") if np.isfinite(number) else None for number in numbers.ravel()]
    return value


class PeakMemory:
    """Peak memory of this process from now on, where the system reports it (Linux)."""

    def __init__(self) -> None:
        try:
            ctypes.CDLL(None).malloc_trim(0)  # otherwise memory freed by earlier fits would be reused unnoticed
            Path("/proc/self/clear_refs").write_text("5")  # reset the peak
            self._before: int | None = _resident("VmRSS")
        except (AttributeError, OSError, TypeError, ValueError):
            self._before = None

    def bytes(self) -> dict[str, int] | None:
        """Return the bytes held at the start, including data and libraries, and the peak since; None if unknown."""
        return None if self._before is None else {"before": self._before, "peak": _resident("VmHWM")}


def _resident(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"the system does not report {name}")


class _Stages:
    """A progress callback that records the CPU time of the last report of each stage."""

    def __init__(self) -> None:
        self._start = time.process_time()
        self._last: dict[str, float] = {}

    def __call__(self, progress: Progress) -> None:
        self._last[progress.stage] = time.process_time() - self._start

    def seconds(self, total: float) -> dict[str, float]:
        """Return the CPU seconds of each stage; ``rest`` follows the last report."""
        found, before = {}, 0.0
        for stage, end in self._last.items():
            found[stage], before = round(end - before, 4), end
        found["rest"] = round(max(0.0, total - before), 4)
        return found
