"""Results of fits by point, and the means, curves and tests that tables and figures are made of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from modalhash.core.typing import Array
from modalhash.evaluation import PairedTest, Spread
from modalhash.experiments.config import Point

DATABASES = ("learned", "hashed", "unseen", "retrieval")
DRAWN = ("learned", "unseen")
"""Databases with curves."""
Result = dict[str, Any]
RowName = tuple[str, str, str]
"""Label, scenario and sweep."""
Curves = dict[tuple[str, str, int], dict[str, Array]]
"""(database, direction, bits) → row → precision at recall 0, 0.02, …"""


@dataclass(frozen=True)
class MarkedSpread(Spread):
    """A spread over seeds with an arrow if it differs from the reference."""

    arrow: str = ""
    p_holm: float | None = None

    def __str__(self) -> str:
        return f"{super().__str__()} {self.arrow}".rstrip()


def marked(spread: Spread, test: PairedTest | None) -> MarkedSpread:
    """Return a spread with the arrow of its test, if it was tested."""
    arrow, p_holm = (test.arrow, test.p_holm) if test else ("", None)
    return MarkedSpread(spread.mean, spread.sd, spread.n, arrow, p_holm)


class Measured:
    """Results of fits on one data set."""

    found: Mapping[Point, Result]
    """Results, including failures."""

    @cached_property
    def results(self) -> dict[Point, Result]:
        return {point: result for point, result in self.found.items() if "error" not in result}

    @cached_property
    def bits(self) -> list[int]:
        return sorted({point.bits for point in self.results})

    @cached_property
    def seeds(self) -> list[int]:
        return sorted({point.seed for point in self.results})

    @cached_property
    def databases(self) -> list[str]:
        found = {kind for result in self.results.values() for kind in result.get("databases", {})}
        return [kind for kind in DATABASES if kind in found]

    @cached_property
    def directions(self) -> list[str]:
        """Measured directions, e.g. ``image→text``."""
        entries = (entry for result in self.results.values() for entry in result.get("databases", {}).values())
        return list(dict.fromkeys(direction for entry in entries for direction in entry))

    @cached_property
    def _by_row(self) -> dict[tuple[str, str, str, int], dict[int, Result]]:
        found: dict[tuple[str, str, str, int], dict[int, Result]] = defaultdict(dict)
        for point, result in sorted(self.results.items(), key=lambda item: item[0].seed):
            for scenario in (point.scenario, ""):
                found[point.label, scenario, point.sweep, point.bits].setdefault(point.seed, result)
        return found

    def of(self, label: str, bits: int, sweep: str = "", scenario: str = "") -> dict[int, Result]:
        """Return the results by seed. Without a scenario, use the row's only or first one."""
        return self._by_row.get((label, scenario, sweep, bits), {})

    def of_row(self, row: RowName, bits: int) -> dict[int, Result]:
        label, scenario, sweep = row
        return self.of(label, bits, sweep, scenario)

    def entry(self, result: Result, database: str, direction: str) -> Mapping[str, Any] | None:
        """Return the measurements in one direction on one kind of database, or None."""
        found: Mapping[str, Any] | None = result.get("databases", {}).get(database, {}).get(direction)
        return found

    def entries(self, results: Iterable[Result], database: str, direction: str) -> list[Mapping[str, Any]]:
        """Return the measurements of the results that have them."""
        found = (self.entry(result, database, direction) for result in results)
        return [entry for entry in found if entry is not None]

    def spread(
        self, label: str, bits: int, direction: str, database: str, sweep: str = "", scenario: str = ""
    ) -> Spread | None:
        entries = self.entries(self.of(label, bits, sweep, scenario).values(), database, direction)
        return Spread.of([entry["map"] for entry in entries]) if entries else None

    def mean(
        self, label: str, bits: int, direction: str, database: str = "learned", sweep: str = "", scenario: str = ""
    ) -> float | None:
        found = self.spread(label, bits, direction, database, sweep, scenario)
        return None if found is None else found.mean

    def chance(self, direction: str, database: str, bits: int | None = None) -> float | None:
        """Return the mean mAP of a random ranking, over all code lengths or of one."""
        results = (result for point, result in self.results.items() if bits in (None, point.bits))
        entries = self.entries(results, database, direction)
        return float(np.mean([entry["chance"] for entry in entries])) if entries else None

    def curve(self, label: str, bits: int, direction: str, database: str, scenario: str = "") -> Array | None:
        """Return the precision over the recall grid, mean over the seeds, up to the end of the shortest curve."""
        entries = self.entries(self.of(label, bits, scenario=scenario).values(), database, direction)
        curves = [entry["curve"] for entry in entries if "curve" in entry]
        n = min(map(len, curves), default=0)
        return np.mean([curve[:n] for curve in curves], axis=0) if curves else None

    def curves_of(self, names: Mapping[RowName, str]) -> Curves:
        """Return the curves of some rows by the names to draw them with; points of sweeps have none."""
        found: Curves = {}
        for database, direction, bits in product(DRAWN, self.directions, self.bits):
            for (label, scenario, sweep), name in names.items():
                curve = None if sweep else self.curve(label, bits, direction, database, scenario)
                if curve is not None:
                    found.setdefault((database, direction, bits), {})[name] = curve
        return found

    def difference(
        self, own: Mapping[int, Result], other: Mapping[int, Result], database: str, direction: str
    ) -> Array | None:
        """Return the difference of average precision on every query that both have with the same seed, or None.

        If the seeds have the same queries, this is the mean over the seeds, otherwise their concatenation, so that no
        query is counted twice.
        """
        each: dict[int, Array] = {}
        for seed in sorted(own.keys() & other.keys()):
            if own[seed]["queries"] == other[seed]["queries"]:
                values = [self.per_query(result[seed], database, direction) for result in (own, other)]
                if values[0] is not None and values[1] is not None:
                    each[seed] = values[0] - values[1]
        return _joined([own[seed]["queries"] for seed in each], list(each.values()))

    def per_query(self, result: Result, database: str, direction: str) -> Array | None:
        """Return the average precision of every query of a result, NaN if the protocol excludes it."""
        entry = self.entry(result, database, direction)
        if entry is None or "average_precision" not in entry:
            return None
        return np.array([np.nan if x is None else x for x in entry["average_precision"]])


def _joined(queries: Sequence[object], values: Sequence[Array]) -> Array | None:
    if not values:
        return None
    return np.asarray((np.mean if len(set(queries)) == 1 else np.concatenate)(values, axis=0), dtype=np.float64)
