"""Is a difference more than chance? The same queries, asked to two methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from modalhash._typing import Array
from modalhash.reproduce.gather import OURS, TASKS, Study

LEVEL = 0.05
DRAWS = 20_000
AT_ONCE = 1000
STATEMENT = (
    f"Two-sided paired randomisation test over queries against {OURS} ({DRAWS:,} draws; average precision of each "
    "query, averaged over seeds first), corrected by Holm over all comparisons of one table on one data set, at "
    f"{LEVEL:g}. It answers for other queries, not for other training data; the ± (sample standard deviation over "
    "seeds) shows the spread of training."
)
Place = tuple[str, int, str, str]
"""Label, bits, task, database."""


@dataclass(frozen=True)
class Verdict:
    """A method against AMSH at one place of a table."""

    difference: float
    """AMSH less the other."""
    p: float
    """After correction."""

    @property
    def sign(self) -> int:
        """1: AMSH is better, −1: worse, 0: cannot be told apart."""
        return 0 if self.p >= LEVEL else (1 if self.difference > 0 else -1)


def against_ours(study: Study, ours: str = OURS) -> dict[Place, Verdict]:
    """Every other row of a table against AMSH."""
    places: list[Place] = []
    differences: list[Array] = []
    for database in study.databases:
        for task in TASKS:
            for bits in study.bits:
                for label in study.labels:
                    pair = None if label == ours else _pair(study, ours, label, bits, task, database)
                    if pair is not None:
                        places.append((label, bits, task, database))
                        differences.append(pair)
    p_values = holm(randomisation_tests(differences))
    means = [float(np.nanmean(difference)) for difference in differences]
    return {place: Verdict(mean, p) for place, mean, p in zip(places, means, p_values, strict=True)}


def _pair(study: Study, ours: str, label: str, bits: int, task: str, database: str) -> Array | None:
    seeds = sorted(set(study.of(ours, bits)) & set(study.of(label, bits)))
    first = study.per_query(ours, bits, task, database, seeds) if seeds else None
    second = study.per_query(label, bits, task, database, seeds) if seeds else None
    if first is None or second is None or len(first) != len(second):
        return None
    return first - second


def randomisation_tests(differences: Sequence[Array], *, draws: int = DRAWS, seed: int = 0) -> list[float]:
    """Two-sided p-values of many paired comparisons; those of one length share their tosses.

    Examples
    --------
    >>> randomisation_tests([np.zeros(9), np.ones(40)], draws=999)
    [1.0, 0.001]
    """
    p_values = [1.0] * len(differences)
    groups: dict[int, list[int]] = {}
    for number, difference in enumerate(differences):
        groups.setdefault(len(difference), []).append(number)
    for length, members in groups.items():
        rng = np.random.default_rng([seed, length])
        columns = np.nan_to_num(np.stack([differences[number] for number in members], axis=1))
        observed = np.abs(columns.sum(axis=0)) * (1 - 1e-9)
        extreme = np.zeros(len(members), dtype=np.int64)
        for start in range(0, draws, AT_ONCE):
            some = min(AT_ONCE, draws - start)
            signs = 2.0 * rng.integers(2, size=(some, length), dtype=np.int8) - 1
            extreme += (np.abs(signs @ columns) >= observed).sum(axis=0)
        for number, count in zip(members, extreme.tolist(), strict=True):
            p_values[number] = (count + 1) / (draws + 1)
    return p_values


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrected for their number: Holm's step-down rule.

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    corrected = np.asarray(p_values, dtype=np.float64)[order] * np.arange(len(p_values), 0, -1)
    corrected = np.minimum(np.maximum.accumulate(corrected), 1.0) if len(corrected) else corrected
    found = np.empty(len(p_values))
    found[order] = corrected
    return [float(f"{p:.12g}") for p in found]
