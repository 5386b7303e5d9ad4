"""Significance of differences between two methods on the same queries."""

from __future__ import annotations

from modalhash.evaluation import PairedTest
from modalhash.evaluation.significance import SIGNIFICANT
from reproduction.study import OURS, Study

DRAWS = 20_000
STATEMENT = (
    f"Two-sided paired randomisation test over queries against {OURS} ({DRAWS:,} draws; average precision of each "
    "query, averaged over seeds first), corrected by Holm over all comparisons of one table on one data set, at "
    f"{SIGNIFICANT:g}. It answers for other queries, not for other training data; the ± (sample standard deviation "
    "over seeds) shows the spread of training."
)
Comparison = tuple[str, int, str, str]
"""Label, bits, task, database."""


def against_ours(study: Study, ours: str = OURS) -> dict[Comparison, PairedTest]:
    """Compare every other row of a table with AMSH; the sign of a test is 1 if the other row is better."""
    found = study.tests(ours, draws=DRAWS)
    return {(row[0], bits, task, database): test for (row, bits, task, database), test in found.items()}


def level_with_best(study: Study) -> set[Comparison]:
    """Return the cells that are not significantly below the best of their column, without the best itself."""
    found = study.tests_against_best(draws=DRAWS)
    return {(row[0], bits, task, database) for (row, bits, task, database), test in found.items() if test.sign == 0}
