"""Runs of any system, measured by the relevance that qrels say and compared query by query.

Measures have the names of ir_measures and the values of trec_eval with its option ``-c``: every query of the qrels
counts, with 0 where a run has nothing for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from modalhash._typing import Array
from modalhash.evaluation.significance import bootstrap_interval, paired_tests
from modalhash.evaluation.tables import Table
from modalhash.evaluation.trec import Qrels, TrecRun

NAMES = ("AP", "P", "R", "nDCG", "RR")


@dataclass(frozen=True)
class RunMeasure:
    """A measure of one query's ranking, which prints as it is parsed.

    ``AP`` is the average precision, divided by all relevant items; ``P@k`` the precision and ``R@k`` the recall;
    ``nDCG`` has the relevance as gain and a discount of log2(rank + 1); ``RR`` is the reciprocal rank of the first
    relevant item. ``AP``, ``nDCG`` and ``RR`` may have a cut-off as well.

    Examples
    --------
    >>> RunMeasure.parse("P@10")
    RunMeasure(name='P', cutoff=10)
    >>> RunMeasure("AP")(["a", "b", "c"], {"a": 1, "c": 1})
    0.8333333333333333
    """

    name: str
    cutoff: int | None = None

    @classmethod
    def parse(cls, text: str) -> RunMeasure:
        """Return the measure that prints as ``text``."""
        match = re.fullmatch(r"(?P<name>[A-Za-z]+)(@(?P<cutoff>[0-9]+))?", text.strip())
        named = {name.lower(): name for name in NAMES}
        name = named.get(match["name"].lower()) if match else None
        if match is None or name is None:
            raise ValueError(f"measure {text!r}: expected AP, P@k, R@k, nDCG, nDCG@k or RR, e.g. P@10")
        cutoff = None if match["cutoff"] is None else int(match["cutoff"])
        if cutoff == 0 or (cutoff is None and name in ("P", "R")):
            raise ValueError(f"measure {text!r}: expected a cut-off of 1 or more, e.g. {name}@10")
        return cls(name, cutoff)

    def __str__(self) -> str:
        return self.name if self.cutoff is None else f"{self.name}@{self.cutoff}"

    def __call__(self, ranked: Sequence[str], judged: Mapping[str, int]) -> float:
        """Return the measure of the items found, best first, for a query with these judgements."""
        gains = np.array([max(0, judged.get(item, 0)) for item in ranked[: self.cutoff]], dtype=np.float64)
        relevant = gains > 0
        total = sum(gain > 0 for gain in judged.values())
        if self.name == "P":
            return float(relevant.sum()) / (self.cutoff or 1)
        if not total or not relevant.any():
            return 0.0
        if self.name == "RR":
            return 1.0 / (int(np.argmax(relevant)) + 1)
        if self.name == "R":
            return float(relevant.sum()) / total
        if self.name == "AP":
            ranks = np.flatnonzero(relevant) + 1
            return float(np.sum(np.arange(1, len(ranks) + 1) / ranks)) / total
        ideal = np.sort(np.array([gain for gain in judged.values() if gain > 0], dtype=np.float64))[::-1]
        return _dcg(gains) / _dcg(ideal[: self.cutoff])


def _dcg(gains: Array) -> float:
    return float(np.sum(gains / np.log2(np.arange(2, len(gains) + 2))))


def measure_run(run: TrecRun, qrels: Qrels, measure: RunMeasure | str) -> dict[str, float]:
    """Return the measure of every query of the qrels; 0 where the run has nothing for a query."""
    if isinstance(measure, str):
        measure = RunMeasure.parse(measure)
    return {query: measure(run.items.get(query, ()), judged) for query, judged in qrels.items()}


def compare_runs(
    runs: Mapping[str, TrecRun],
    qrels: Qrels,
    measures: Sequence[RunMeasure | str] = ("AP", "P@10", "nDCG@10"),
    *,
    reference: str | None = None,
    draws: int = 10_000,
    random_state: int = 0,
) -> Table:
    """Compare runs on the same queries: means, and the difference of each from the reference with its p-value.

    Parameters
    ----------
    runs : by the name that the table shows; at least one
    qrels : which items are relevant to which query
    measures : texts are parsed, e.g. ``"P@10"``
    reference : the run that the others are compared with; the first by default
    draws, random_state : of the randomisation test over queries
    """
    if not runs or not qrels:
        raise ValueError("expected at least one run, and qrels of at least one query")
    reference = next(iter(runs)) if reference is None else reference
    if reference not in runs:
        raise ValueError(f"the reference {reference!r} is not among the runs {', '.join(runs)}")
    for name, run in runs.items():
        if not run.items.keys() & qrels.keys():
            raise ValueError(
                f"{name}: none of its queries (e.g. {next(iter(run.items), None)!r}) is in the qrels "
                f"(e.g. {next(iter(qrels))!r}); do the files belong together?"
            )
    chosen = [RunMeasure.parse(one) if isinstance(one, str) else one for one in measures]
    values = {
        (measure, name): np.array(list(measure_run(run, qrels, measure).values()))
        for measure in chosen
        for name, run in runs.items()
    }
    others = [place for place in values if place[1] != reference]
    differences = {(m, name): values[m, name] - values[m, reference] for m, name in others}
    tests = paired_tests(differences, draws=draws, random_state=random_state)
    rows: list[list[object]] = []
    for (measure, name), each in values.items():
        low, high = bootstrap_interval(each, random_state=random_state)
        row: list[object] = [str(measure), name, float(each.mean()), f"{low:.4f} – {high:.4f}"]
        if (measure, name) in tests:
            difference, test = differences[measure, name], tests[measure, name]
            better, worse = int((difference > 1e-12).sum()), int((difference < -1e-12).sum())
            wins = f"{better} / {worse} / {len(difference) - better - worse}"
            row += [test.difference, wins, test.p, test.p_holm]
        else:
            row += [None, None, None, None]
        rows.append(row)
    columns = ["measure", "run", "mean", "95 % interval", "difference", "better / worse / equal", "p", "p (Holm)"]
    return Table(f"{len(runs)} runs, {len(qrels)} queries", columns, rows, _notes(runs, qrels, reference, draws))


def _notes(runs: Mapping[str, TrecRun], qrels: Qrels, reference: str, draws: int) -> list[str]:
    notes = [
        f"Every query of the qrels counts, as with trec_eval -c. Intervals: bootstrap over the {len(qrels)} queries.",
    ]
    if len(runs) > 1:
        notes.append(
            f"Differences are from {reference}; p: two-sided paired randomisation test over queries, {draws} draws; "
            f"corrected by Holm for all tests of this table."
        )
    if empty := sum(not any(gain > 0 for gain in judged.values()) for judged in qrels.values()):
        notes.append(f"{empty} queries have no relevant item and count 0.")
    for name, run in runs.items():
        if missing := len(qrels.keys() - run.items.keys()):
            notes.append(f"{name}: {missing} queries of the qrels are not in it and count 0.")
        if extra := len(run.items.keys() - qrels.keys()):
            notes.append(f"{name}: {extra} of its queries are not in the qrels and do not count.")
    return notes
