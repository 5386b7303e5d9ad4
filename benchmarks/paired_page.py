"""The page of the paired comparison: a pure function of the result file that ``paired_table.py`` writes."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from modalhash.data.named import NAMED
from modalhash.evaluation import Protocol, Spread, Table
from modalhash.registry import get, info

SPELT = {"cca-itq": "CCA-ITQ"}
"""Methods whose name a class cannot have."""
INTRODUCTION = """\
# The paired comparison

Every method that learns from pairs, AMSH (which is given the same rows but not told that they are pairs) and its
ablations, and the controls. Every method runs with its default parameters on every data set, on the official
split, with the training items as the database. Numbers are mAP, mean ± standard deviation over {seeds}.

A **learned** database holds the codes that training made, from labels where the method is supervised; a
**hashed** one holds what the same items get from their features alone. Compare within one kind of database only.
The best of each column is **bold**, controls left out.

- † re-implementation: neither the authors' code nor the full text was at hand.
- ‡ control: a level to compare with, not a method to use. `Chance` has random codes; `CCA-ITQ` sees no labels;
  `LabelOracle` has database codes from the true labels, *queries too* makes those of the queries from their labels.
- AMSH-s has no similarity within modalities (`intra=0`), AMSH-t none between them (`inter=0`), AMSH-k no kernel
  (`kernel=None`), AMSH-m no margins (`margins=False`). SMFH-L is the variant of Liu et al.
"""


def page(content: dict[str, Any], order: list[tuple[str, str]]) -> str:
    """Markdown. ``order`` lists (method, variant) as they shall follow one another."""
    records = content["records"]
    seeds = len({record["seed"] for record in records})
    parts = [INTRODUCTION.format(seeds=f"{seeds} seeds" if seeds != 1 else "1 seed")]
    for dataset, facts in content["datasets"].items():
        mine = [record for record in records if record["dataset"] == dataset]
        if mine:
            parts += [section(dataset, facts, mine, order, content["protocol"], seeds)]
    if content["failures"]:
        reasons = {f"- {label(f['method'], f['variant'])} on {f['dataset']}: {f['error']}" for f in content["failures"]}
        parts += ["## Not measured\n\n" + "\n".join(sorted(reasons)) + "\n"]
    parts += [provenance(content)]
    return "\n".join(parts)


def section(
    dataset: str,
    facts: dict[str, Any],
    records: list[dict[str, Any]],
    order: list[tuple[str, str]],
    protocol: str,
    seeds: int,
) -> str:
    """One data set: a table per direction, then the seconds."""
    sizes = " + ".join(f"{width} {name}" for name, width in facts["features"].items())
    options = "".join(f", {name}={value!r}" for name, value in facts["options"].items())
    head = (
        f"## {NAMED[dataset].title}\n\n`load_dataset({dataset!r}{options})`: {facts['training']} training pairs, "
        f"{facts['queries']} queries, {facts['classes']} classes, {sizes} features.\n"
    )
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


def provenance(content: dict[str, Any]) -> str:
    """Where the numbers come from."""
    lines = ["## How this was measured\n"]
    for number, environment in enumerate(content["environments"]):
        count = sum(record["environment"] == number for record in content["records"])
        if count:
            versions = ", ".join(f"{name} {value}" for name, value in environment["versions"].items())
            commit = f", commit {environment['commit']}" if environment["commit"] else ""
            threads = f"{environment['threads']} thread{'s' if environment['threads'] != 1 else ''}"
            lines.append(f"- {count} cells: {environment['machine']}, {threads}; {versions}{commit}")
    lines.append(
        "\nEvery cell is in `benchmarks/results/paired.json`, made by `python benchmarks/paired_table.py`; "
        "this page by `python benchmarks/paired_table.py --markdown docs/paired.md`.\n"
    )
    return "\n".join(lines)
