"""Run and qrels files in the formats of trec_eval, measured and compared query by query.

Measures have the names of ir_measures and the values of trec_eval with its option ``-c``: every query of the qrels
counts, with 0 if a run has nothing for it.
"""

from __future__ import annotations

import gzip
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from modalhash.core.blocks import row_slices
from modalhash.core.typing import Array
from modalhash.evaluation.measures import Ranking
from modalhash.evaluation.result import Table
from modalhash.evaluation.significance import bootstrap_interval, paired_tests

PAIRS_AT_ONCE = 2**22
RUN_LINE = "query Q0 item rank score tag"
QRELS_LINE = "query 0 item relevance"
Qrels = Mapping[str, Mapping[str, int]]
"""Query → item → relevance; unlisted items are not relevant."""


@dataclass(frozen=True)
class TrecRun:
    """Items found by a system, best first, by query."""

    tag: str
    items: Mapping[str, Sequence[str]]


def read_run(path: str | Path) -> TrecRun:
    """Read a run file, plain or gzip, with lines ``query Q0 item rank score tag``.

    Items are ordered by descending score and then by descending name, as trec_eval does; the rank in the file is
    ignored. Errors name the line.
    """
    scores: dict[str, dict[str, float]] = {}
    tag = ""
    for number, (query, _, item, _, score, own) in _read_lines(path, RUN_LINE):
        found = scores.setdefault(query, {})
        if item in found:
            raise ValueError(f"{path}, line {number}: the item {item!r} was given for the query {query!r} before")
        try:
            value = float(score)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ValueError(f"{path}, line {number}: the score is {score!r}; expected a finite number")
        if tag not in ("", own):
            raise ValueError(
                f"{path}, line {number}: the tag is {own!r}, before it was {tag!r}; expected one run per file"
            )
        found[item], tag = value, own
    ordered = {
        query: [item for item, _ in sorted(found.items(), key=lambda one: (one[1], one[0]), reverse=True)]
        for query, found in scores.items()
    }
    return TrecRun(tag, ordered)


def read_qrels(path: str | Path) -> dict[str, dict[str, int]]:
    """Read a qrels file, plain or gzip, with lines ``query 0 item relevance``; relevant is above 0."""
    qrels: dict[str, dict[str, int]] = {}
    for number, (query, _, item, relevance) in _read_lines(path, QRELS_LINE):
        found = qrels.setdefault(query, {})
        if item in found:
            raise ValueError(f"{path}, line {number}: the item {item!r} was judged for the query {query!r} before")
        try:
            found[item] = int(relevance)
        except ValueError:
            raise ValueError(
                f"{path}, line {number}: the relevance is {relevance!r}; expected a whole number"
            ) from None
    return qrels


def _read_lines(path: str | Path, layout: str) -> Iterator[tuple[int, list[str]]]:
    """Yield line numbers and the words of each line; raise if their number differs from that of the layout."""
    path, n = Path(path), len(layout.split())
    with path.open("rb") as plain:
        packed = plain.read(2) == b"\x1f\x8b"
    number = 0
    try:
        with gzip.open(path, "rb") if packed else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                words = line.split()  # at ASCII spaces, as trec_eval does
                if not words:
                    continue
                if len(words) != n:
                    raise ValueError(f"{path}, line {number}: {len(words)} words; expected {n}: {layout}")
                try:
                    yield number, [word.decode() for word in words]
                except UnicodeDecodeError:
                    raise ValueError(f"{path}, line {number}: not in UTF-8; save the file as UTF-8") from None
    except (EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: truncated or damaged after line {number} ({error}); copy it again") from None
    if not number:
        raise ValueError(f"{path}: the file is empty; expected lines {layout!r}")


def write_run(
    path: str | Path,
    ranking: Ranking,
    *,
    query_ids: Any,
    database_ids: Any,
    k: int | None = None,
    tag: str = "modalhash",
) -> None:
    """Write the first ``k`` items of each query (all by default), ties in the order of the database.

    The score is ``k + 1 − rank``, so that there are no ties for a reader to break.
    """
    queries, items = _ids(query_ids, database_ids, ranking)
    depth = ranking.n_items if k is None else k
    if not 1 <= depth <= ranking.n_items:
        raise ValueError(f"k is {k}; expected 1 to {ranking.n_items}, the size of the database")
    if not tag or tag.split() != [tag]:
        raise ValueError(f"tag is {tag!r}; expected one word")
    with open(path, "w", encoding="utf-8") as file:
        for query, distances, _ in _rows(ranking):
            order = np.argsort(distances, kind="stable")
            order = order[order != ranking.excluded[query]][:depth]
            file.writelines(
                f"{queries[query]} Q0 {item} {rank} {depth + 1 - rank} {tag}\n"
                for rank, item in enumerate(items[order], start=1)
            )


def write_qrels(path: str | Path, ranking: Ranking, *, query_ids: Any, database_ids: Any) -> None:
    """Write the relevant items of each query; unlisted items are not relevant."""
    queries, items = _ids(query_ids, database_ids, ranking)
    with open(path, "w", encoding="utf-8") as file:
        for query, _, relevant in _rows(ranking):
            file.writelines(f"{queries[query]} 0 {item} 1\n" for item in items[relevant])


def _rows(ranking: Ranking) -> Iterator[tuple[int, Array, Array]]:
    from modalhash.core import bit_kernels as kernels

    codes = np.ascontiguousarray(ranking.codes.T)
    for rows in row_slices(ranking.n_queries, max(1, PAIRS_AT_ONCE // len(codes))):
        distances = kernels.hamming(ranking.query_codes[rows], codes)
        for query, row in zip(range(rows.start, rows.stop), distances, strict=True):
            relevant = (ranking.labels & ranking.query_labels[query][:, None]).any(axis=0)
            if ranking.excluded[query] >= 0:
                relevant[ranking.excluded[query]] = False
            yield query, row, relevant


def _ids(query_ids: Any, database_ids: Any, ranking: Ranking) -> tuple[Array, Array]:
    out = []
    for name, ids, n in (("query", query_ids, ranking.n_queries), ("database", database_ids, ranking.n_items)):
        given = np.asarray(ids, dtype=object)  # numpy's strings lose a trailing NUL
        if given.shape != (n,):
            raise ValueError(f"{name}_ids have shape {given.shape}; expected one id for each of {n} items")
        texts = np.array([one.decode() if isinstance(one, bytes) else str(one) for one in given], dtype=object)
        if len(np.unique(texts)) != n:
            raise ValueError(f"{name}_ids: some occur twice; every id must occur once")
        if bad := [text for text in texts.tolist() if text.split() != [text] or not _is_utf8(text)]:
            raise ValueError(f"{name}_ids: {bad[0]!r} is empty, or has a space, which separates fields, or a surrogate")
        out.append(texts)
    return out[0], out[1]


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


NAMES = ("AP", "P", "R", "nDCG", "RR")


@dataclass(frozen=True)
class RunMeasure:
    """A measure of one query's ranking; ``parse`` reads what ``str`` prints.

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
    """Return the measure of every query of the qrels; 0 if the run has nothing for a query."""
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
    qrels : relevance of items by query
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
        f"Every query of the qrels counts, as with trec_eval -c. Intervals: bootstrap over the {len(qrels)} queries."
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
