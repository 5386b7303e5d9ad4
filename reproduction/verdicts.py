"""Is a difference more than chance? The same queries, asked to two methods."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from modalhash._typing import Array
from modalhash.evaluation import holm, randomisation_tests
from reproduction.study import OURS, TASKS, Study

LEVEL = 0.05
DRAWS = 20_000
STATEMENT = (
    f"Two-sided paired randomisation test over queries against {OURS} ({DRAWS:,} draws; average precision of each "
    "query, averaged over seeds first), corrected by Holm over all comparisons of one table on one data set, at "
    f"{LEVEL:g}. It answers for other queries, not for other training data; the ± (sample standard deviation over "
    "seeds) shows the spread of training."
)
Comparison = tuple[str, int, str, str]
"""Label, bits, task, database."""


@dataclass(frozen=True)
class Verdict:
    """The outcome of one comparison of a method with AMSH."""

    difference: float
    """AMSH less the other."""
    p: float
    """After correction."""

    @property
    def sign(self) -> int:
        """1: AMSH is better, −1: worse, 0: cannot be told apart."""
        return 0 if self.p >= LEVEL else (1 if self.difference > 0 else -1)


def against_ours(study: Study, ours: str = OURS) -> dict[Comparison, Verdict]:
    """Compare every other row of a table with AMSH."""
    comparisons: list[Comparison] = []
    differences: list[Array] = []
    for database in study.databases:
        for task in TASKS:
            for bits in study.bits:
                for label in study.labels:
                    pair = None if label == ours else _difference(study, ours, label, bits, task, database)
                    if pair is not None:
                        comparisons.append((label, bits, task, database))
                        differences.append(pair)
    p_values = holm(randomisation_tests(differences, draws=DRAWS))
    means = [float(np.nanmean(difference)) for difference in differences]
    return {comparison: Verdict(mean, p) for comparison, mean, p in zip(comparisons, means, p_values, strict=True)}


def _difference(study: Study, ours: str, label: str, bits: int, task: str, database: str) -> Array | None:
    seeds = sorted(set(study.of(ours, bits)) & set(study.of(label, bits)))
    first = study.per_query(ours, bits, task, database, seeds) if seeds else None
    second = study.per_query(label, bits, task, database, seeds) if seeds else None
    if first is None or second is None or len(first) != len(second):
        return None
    return first - second
