"""Reports of what a grid measured: tables with significance, curves, where it was measured. Nothing is fitted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

from modalhash.evaluation import PairedTest, Spread, Table, describe_tests, render_curves
from modalhash.experiments.comparison import DRAWN, Curves, MarkedSpread
from modalhash.experiments.results import Result, RowName, Study


def quality_tables(study: Study, against: str = "") -> list[Table]:
    """Return a table of mAP per direction: mean ± standard deviation over seeds, the databases next to each other.

    Arrows mark the rows that differ significantly from the one with the label ``against``, by default the first.
    """
    reference = reference_of(study, against)
    tests = study.tests(reference)
    columns = [(bits, kind) for bits in study.bits for kind in study.databases]
    several = study.has_scenarios
    tables = []
    for direction in study.directions:
        rows = []
        for row in study.shown:
            spreads = [_marked(study, row, bits, direction, kind, tests) for bits, kind in columns]
            if any(spread is not None for spread in spreads):
                rows.append([*row[: 2 if several else 1], *spreads])
        tables.append(
            Table(
                title=f"{study.described}: mAP, {direction}",
                columns=["", *(["scenario"] if several else []), *(f"{bits} bits, {kind}" for bits, kind in columns)],
                rows=rows,
                notes=[
                    *_settings(study, direction),
                    *_test_notes(study, reference, {row for row, *_ in tests}, len(tests)),
                ],
            )
        )
    return tables


def reference_of(study: Study, against: str = "") -> str:
    """Return the label that the other rows are tested against; one that the grid does not have is an error."""
    labels = list(dict.fromkeys(row.label for row in study.grid.rows))
    if against and against not in labels:
        raise ValueError(f"no row has the label {against!r}; there are {', '.join(labels)}")
    return against or (study.shown[0][0] if study.shown else "")


def _marked(
    study: Study,
    row: RowName,
    bits: int,
    direction: str,
    database: str,
    tests: Mapping[tuple[RowName, int, str, str], PairedTest],
) -> Spread | None:
    label, scenario, sweep = row
    spread = study.spread(label, bits, direction, database, sweep, scenario)
    test = tests.get((row, bits, direction, database))
    if spread is None or test is None:
        return spread
    return MarkedSpread(spread.mean, spread.sd, spread.n, test.arrow, test.p_holm)


def _settings(study: Study, direction: str) -> list[str]:
    protocols = [study.grid.protocol.with_database(kind) for kind in study.databases if kind != "retrieval"]
    chance = ", ".join(f"{study.chance(direction, kind) or 0:.4f} ({kind})" for kind in study.databases)
    return [
        "; ".join(f"`{protocol}`" for protocol in protocols),
        f"Mean ± standard deviation over {_seeds(study)}. A random ranking has {chance}.",
    ]


def _seeds(study: Study) -> str:
    return f"{len(study.seeds)} seed{'s' if len(study.seeds) != 1 else ''}"


def _test_notes(study: Study, reference: str, tested: set[RowName], n_tests: int) -> list[str]:
    """Explain the arrows, and say why a row was not tested."""
    others = [row for row in study.shown if row[0] != reference]
    named = f"{reference} in the same scenario" if study.has_scenarios else reference
    notes = [describe_tests(named, n_tests, "this data set")] if n_tests else []
    reasons: dict[str, list[str]] = {}
    for row in others:
        if row not in tested:
            reasons.setdefault(_why_not_tested(study, row, reference), []).append(study.name(row))
    return notes + [f"Not tested: {', '.join(names)}; {reason}." for reason, names in reasons.items()]


def _why_not_tested(study: Study, row: RowName, reference: str) -> str:
    def kept(results: Iterable[Result]) -> bool:
        entries = (
            entry for result in results for kind in result.get("databases", {}).values() for entry in kind.values()
        )
        return any("average_precision" in entry for entry in entries)

    own = [result for bits in study.bits for result in study.of_row(row, bits).values()]
    other = [result for bits in study.bits for result in study.reference_of_row(row, reference, bits).values()]
    if not other:
        return f"{reference} was not measured"
    for name, results in ((reference, other), (row[0], own)):
        if not kept(results):
            return f"the results of {name} have no average precision per query (`per_query = false`, or packed so)"
    return f"no seed asked the same queries as {reference}"


def study_curves(study: Study) -> Curves:
    """Return the curves to draw, mean over the seeds; points of sweeps are left out."""
    found: Curves = {}
    for database, direction, bits in product(DRAWN, study.directions, study.bits):
        for row in study.shown:
            curve = None if row[2] else study.curve(row[0], bits, direction, database, row[1])
            if curve is not None:
                found.setdefault((database, direction, bits), {})[study.name(row)] = curve
    return found


def curve_figure(study: Study, against: str = "", kind: str = "svg") -> bytes | None:
    """Return a file, svg, png or pdf, that shows precision over recall; None where no curves were kept.

    The thick line is the row that the others are tested against. It needs the extra ``plot``.
    """
    curves = study_curves(study)
    if not curves:
        return None
    bold = next((study.name(row) for row in study.shown if row[0] == reference_of(study, against)), "")
    caption = [f"Mean over {_seeds(study)}. The thick line is {bold}."]
    caption += [
        f"Protocol: {study.grid.protocol.with_database(database)}" for database in dict.fromkeys(p[0] for p in curves)
    ]
    title = f"Precision over recall on {study.described}"
    return render_curves(curves, title=title, caption="\n".join(caption), bold=bold, kind=kind)


def seconds_table(study: Study) -> Table:
    """Return a table of CPU seconds per fit, mean over the seeds."""
    rows = []
    for label, scenario in study.rows:
        spreads = [study.seconds(label, bits, scenario) for bits in study.bits]
        rows.append([f"{label} ({scenario})", *(None if s is None else f"{s.mean:.2f}" for s in spreads)])
    return Table(
        f"{study.described}: CPU seconds per fit",
        ["", *(f"{bits} bits" for bits in study.bits)],
        rows,
        ["CPU time of a process with one BLAS thread, kernel features included; mean over the seeds."],
    )


def environments(results: Iterable[Result]) -> dict[str, int]:
    """Count the results by where they were measured, described in words."""
    counts: dict[str, int] = defaultdict(int)
    for result in results:
        if "environment" in result:
            counts[describe(result["environment"])] += 1
    return counts


def describe(environment: Mapping[str, Any]) -> str:
    """Return machine, threads, versions and commit as one line."""
    versions = ", ".join(f"{name} {value}" for name, value in environment["versions"].items())
    threads = f"thread{'s' if environment['threads'] != 1 else ''}"
    if "blas" in environment:
        threads = f"BLAS {threads} ({', '.join(environment['blas'])})"
    commit = f", commit {environment['commit']}" if environment["commit"] else ""
    return f"{environment['machine']}, {environment['threads']} {threads}; {versions}{commit}"
