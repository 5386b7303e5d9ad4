"""Pages of comparisons: pure functions of the result files that ``tables.py`` writes."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from modalhash.data import NAMED
from modalhash.evaluation import Protocol, Spread, Table
from modalhash.registry import get, info

SPELT = {"cca-itq": "CCA-ITQ"}
"""Methods whose name a class cannot have."""


def page(content: dict[str, Any], order: list[tuple[str, str]], introduction: str, source: str) -> str:
    """Markdown. ``order`` lists (method, variant) as they shall follow one another."""
    parts = [introduction.format(seeds=count_seeds(content)), *sections(content, order, "training pairs")]
    return "\n".join([*parts, *not_measured([content]), provenance([content], source)])


def count_seeds(content: dict[str, Any]) -> str:
    """E.g. ``3 seeds``."""
    seeds = len({record["seed"] for record in content["records"]})
    return f"{seeds} seed{'s' if seeds != 1 else ''}"


def sections(content: dict[str, Any], order: list[tuple[str, str]], unit: str) -> list[str]:
    """One per data set that was measured; ``unit`` is what its training set holds."""
    found = []
    for dataset, facts in content["datasets"].items():
        mine = [record for record in content["records"] if record["dataset"] == dataset]
        if mine:
            seeds = len({record["seed"] for record in content["records"]})
            found.append(section(dataset, facts, mine, order, content["protocol"], seeds, unit))
    return found


def not_measured(contents: list[dict[str, Any]]) -> list[str]:
    """What failed, and why; nothing where nothing did."""
    failures = [failure for content in contents for failure in content["failures"]]
    reasons = {f"- {label(f['method'], f['variant'])} on {f['dataset']}: {f['error']}" for f in failures}
    return ["## Not measured\n\n" + "\n".join(sorted(reasons)) + "\n"] if reasons else []


def section(
    dataset: str,
    facts: dict[str, Any],
    records: list[dict[str, Any]],
    order: list[tuple[str, str]],
    protocol: str,
    seeds: int,
    unit: str,
) -> str:
    """One data set: a table per direction, then the seconds."""
    head = f"## {NAMED[dataset].title}\n\n{facts_of(dataset, facts, unit)}\n"
    present = [row for row in order if any((r["method"], r["variant"]) == row for r in records)]
    bits = sorted({record["bits"] for record in records})
    databases = list(dict.fromkeys(record["database"] for record in records))
    tables = [
        quality(direction, [r for r in records if r["direction"] == direction], present, bits, databases, protocol)
        for direction in dict.fromkeys(record["direction"] for record in records)
    ]
    short = [r for r in present if any(len(seeds_of(records, r, b)) not in (0, seeds) for b in bits)]
    notes = [f"Fewer than {seeds} seeds in some cells: {', '.join(label(*row) for row in short)}.\n"] if short else []
    return "\n".join([head, *tables, seconds(records, present, bits), *notes])


def facts_of(dataset: str, facts: dict[str, Any], unit: str) -> str:
    """How to load the data, and their sizes."""
    sizes = " + ".join(f"{width} {name}" for name, width in facts["features"].items())
    options = "".join(f", {name}={value!r}" for name, value in facts["options"].items())
    return (
        f"`load_dataset({dataset!r}{options})`: {facts['training']} {unit}, {facts['queries']} queries, "
        f"{facts['classes']} classes, {sizes} features."
    )


def seeds_of(records: list[dict[str, Any]], row: tuple[str, str], bits: int) -> set[int]:
    return {r["seed"] for r in records if (r["method"], r["variant"]) == row and r["bits"] == bits}


def quality(
    direction: str,
    records: list[dict[str, Any]],
    rows: list[tuple[str, str]],
    bits: list[int],
    databases: list[str],
    protocol: str,
) -> str:
    """One direction, learned and hashed databases side by side."""
    values = defaultdict(list)
    for r in records:
        values[r["method"], r["variant"], r["bits"], r["database"]].append(r["map"])
    columns = [(b, database) for b in bits for database in databases]
    spreads = {key: Spread.of(found) for key, found in values.items()}
    best = {
        column: max(
            (round(spreads[*row, *column].mean, 4) for row in rows if competes(row) and (*row, *column) in spreads),
            default=None,
        )
        for column in columns
    }

    def cell(row: tuple[str, str], column: tuple[int, str]) -> str:
        spread = spreads.get((*row, *column))
        if spread is None:
            return "–"
        return f"**{spread}**" if competes(row) and round(spread.mean, 4) == best[column] else str(spread)

    measured = Protocol.parse(protocol)
    chance = Spread.of([r["chance"] for r in records]).mean
    return Table(
        title=f"mAP, {direction}",
        columns=["method", "labels", *(f"{b} bits, {database}" for b, database in columns)],
        rows=[
            [label(*row), "yes" if info(row[0]).supervised else "no", *(cell(row, column) for column in columns)]
            for row in rows
        ],
        notes=[
            "; ".join(f"`{measured.with_database(database)}`" for database in databases),
            f"A random ranking has {chance:.4f}.",
        ],
    ).to_markdown()


def seconds(records: list[dict[str, Any]], rows: list[tuple[str, str]], bits: list[int]) -> str:
    """Mean CPU seconds of a fit."""
    once: dict[Any, dict[int, float]] = defaultdict(dict)  # a fit has one record per database and direction
    for r in records:
        once[r["method"], r["variant"], r["bits"]][r["seed"]] = r["fit_seconds"]

    def cell(row: tuple[str, str], b: int) -> str:
        found = once.get((*row, b))
        return f"{sum(found.values()) / len(found):.1f}" if found else "–"

    return Table(
        title="CPU seconds per fit",
        columns=["method", *(f"{b} bits" for b in bits)],
        rows=[[label(*row), *(cell(row, b) for b in bits)] for row in rows],
        notes=["CPU time, kernel features included; mean over the seeds."],
    ).to_markdown()


def competes(row: tuple[str, str]) -> bool:
    return not info(row[0]).control


def label(method: str, variant: str) -> str:
    """E.g. ``AMSH-s`` or ``CRE †``."""
    entry = info(method)
    mark = " ‡" if entry.control else " †" if entry.reimplementation else ""
    join = "" if not variant else "-" if len(variant) == 1 else ", "
    return f"{SPELT.get(method) or get(method).__name__}{join}{variant}{mark}"


def provenance(contents: list[dict[str, Any]], source: str) -> str:
    """Where the numbers come from."""
    counts: dict[str, int] = defaultdict(int)
    for content in contents:
        for record in content["records"]:
            counts[describe(content["environments"][record["environment"]])] += 1
    cells = [f"- {count} cells: {environment}" for environment, count in counts.items()]
    return "\n".join(["## How this was measured\n", *cells, f"\n{source}\n"])


def describe(environment: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {value}" for name, value in environment["versions"].items())
    commit = f", commit {environment['commit']}" if environment["commit"] else ""
    threads = f"{environment['threads']} thread{'s' if environment['threads'] != 1 else ''}"
    return f"{environment['machine']}, {threads}; {versions}{commit}"
