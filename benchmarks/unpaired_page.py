"""The page of the unpaired comparison, and its figure: pure functions of the result files."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, BinaryIO

import numpy as np

from modalhash.data import NAMED
from modalhash.evaluation import Protocol, Spread, Table
from modalhash.registry import info
from pages import count_seeds, facts_of, label, not_measured, provenance, sections
from tables import Row

FIGURE = "images/pair-shares.svg"
INTRODUCTION = """\
# The unpaired comparison

Every method that needs no pairs, on data that have none: the training items of each modality are shuffled on their own,
anew for every seed. Methods run with their default parameters, on the official split, with the training items as the
database. Numbers are mAP, mean ± standard deviation over {seeds}.

A **learned** database holds the codes that training made, from labels where the method is supervised; a
**hashed** one holds what the same items get from their features alone. Compare within one kind of database only.
The best of each column is **bold**, controls left out.

- † re-implementation: neither the authors' code nor the full text was at hand.
- ‡ control: a level to compare with, not a method to use. `Chance` has random codes; `LabelOracle` has database codes
  from the true labels, *queries too* makes those of the queries from their labels.
- *AMSH, paired* is AMSH on the same items in their original order.

Read with care: the defaults of SAPMH, RUCMH, EDMH, FMH and UCMH, whose sheets leave parameters open, were picked partly
on test queries of these data sets, and so were AMSH's start and weights on Wiki ([choices](choices.md)). Their numbers
are optimistic by what such a choice gains. RUCMH and UAPMH use neither labels nor, here, pairs: nothing ties the codes
of one modality to those of another beyond the shape of their distributions, and they stay at chance or little above it.
"""
FINDINGS = """\
In words, for learned databases: on Wiki AMSH leads image → text at 16, 32 and 128 bits, and EDMH at 64; text → image
the supervised methods lie within .05 of each other, SAPMH, which is lower, apart. On IAPR TC-12 AMSH leads
text → image at 16 and 32 bits and GSPH at 64 and 128, by .018 and .037; image → text AMSH is .01 to .04 behind FMH,
EDMH and SAPMH, and behind GSPH from 64 bits on. From features alone (hashed) AMSH leads text → image on IAPR TC-12 at
every length, FMH image → text, and EDMH both directions on Wiki, where its functions follow the training items closely.
"""
SHARES_HEAD = """\
## What pairs bring

A share of the training pairs is kept, the other items are shuffled within their modality; {bits} bits, {seeds}. Methods
that **can use** pairs are given them, methods that **need none** see the same items and are not told, and methods that
**need** pairs train on the pairs that there are: their other items' "learned" codes are hashed codes. GSPH's learned
mAP falls as pairs come in: its post-unification replaces codes made from labels by ones common to a pair
(`unify=False` leaves them).

![mAP over the share of paired items, one line per method, for both directions and both databases]({figure})
"""
SIX_HEAD = """\
## Six modalities at once

{title}. {facts} Every modality is shuffled on its own; one model learns from all six, {bits} bits, {seeds}. Rows are
the modality of the queries, columns that of the database; the diagonal is retrieval within a modality. Every digit has
one label: where learned codes are a function of the labels alone, all databases of learned codes are alike.
"""
SOURCE = (
    "Every cell is in `benchmarks/results/` (`unpaired.json`, `pair_shares.json`, `six_modalities.json`), made by "
    "`python benchmarks/unpaired_table.py`; this page and its figure by "
    "`python benchmarks/unpaired_table.py --markdown docs/unpaired.md`."
)
STYLES = {"optional": ("-", "can use pairs"), "none": ("--", "needs none"), "needed": (":", "needs pairs")}


def page(contents: dict[str, Any], rows: dict[str, list[Row]]) -> str:
    """Markdown, from the content of the three files."""
    table, shares, six = (contents[name] for name in ("table", "shares", "six"))
    order = [(row.method, row.variant) for row in rows["table"]]
    return "\n".join(
        [
            INTRODUCTION.format(seeds=count_seeds(table)),
            FINDINGS,
            *sections(table, order, "training items in each modality"),
            *both_ways(table),
            shares_section(shares, rows["shares"]),
            six_section(six, [row.method for row in rows["six"]]),
            *not_measured([table, shares, six]),
            provenance([table, shares, six], SOURCE),
        ]
    )


def both_ways(content: dict[str, Any]) -> list[str]:
    """AMSH without pairs less AMSH with them, seed by seed."""
    found: dict[Any, dict[str, float]] = defaultdict(dict)
    for r in content["records"]:
        if r["method"] == "amsh":
            found[r["dataset"], r["direction"], r["database"], r["bits"], r["seed"]][r["variant"]] = r["map"]
    differences = defaultdict(list)
    for (*row, bits, _), values in found.items():
        if "" in values and "paired" in values:
            differences[(*row,), bits].append(values[""] - values["paired"])
    if not differences:
        return []
    bits = sorted({b for _, b in differences})
    lines = list(dict.fromkeys(row for row, _ in differences))
    table = Table(
        title="AMSH: mAP unpaired less mAP paired, the seed with the largest difference",
        columns=["data", "direction", "database", *(f"{b} bits" for b in bits)],
        rows=[[*row, *(largest(differences.get((row, b))) for b in bits)] for row in lines],
        notes=[f"`{content['protocol']}` and the same with a hashed database.", BOTH_WAYS],
    )
    return ["## AMSH paired and unpaired\n", table.to_markdown()]


BOTH_WAYS = (
    "No equation of AMSH knows of pairs, and items are taken in the order of their content, not of their rows: with "
    "the same seed, shuffling leaves only rounding. The ± of the tables above is what another seed changes."
)


def largest(values: list[float] | None) -> str:
    return "–" if not values else f"{round(max(values, key=abs), 4) + 0.0:+.4f}"  # + 0.0: no -0.0000


def shares_section(content: dict[str, Any], rows: list[Row]) -> str:
    """The figure, and its numbers."""
    bits = ", ".join(map(str, sorted({r["bits"] for r in content["records"]})))
    head = SHARES_HEAD.format(bits=bits, seeds=count_seeds(content), figure=FIGURE)
    lines = curves(content, rows)
    shares = sorted({share for points in lines.values() for share in points})
    tables = []
    for direction, database in panels(content):
        mine = {method: points for (method, *place), points in lines.items() if place == [direction, database]}
        tables.append(
            Table(
                title=f"mAP, {direction}, {database} database",
                columns=["method", "pairs", *(f"{100 * share:g} %" for share in shares)],
                rows=[
                    [label(method, ""), STYLES[info(method).pairing][1], *(str(points.get(s, "–")) for s in shares)]
                    for method, points in mine.items()
                ],
                notes=[f"`{Protocol.parse(content['protocol']).with_database(database)}`"],
            ).to_markdown()
        )
    return "\n".join([head, *tables])


def panels(content: dict[str, Any]) -> list[tuple[str, str]]:
    """Directions and databases, as they were measured."""
    return list(dict.fromkeys((r["direction"], r["database"]) for r in content["records"]))


def curves(content: dict[str, Any], rows: list[Row]) -> dict[tuple[str, str, str], dict[float, Spread]]:
    """For (method, direction, database) the mAP by share of paired items, in the order of the rows."""
    values = defaultdict(list)
    for r in content["records"]:
        values[r["method"], r["variant"], r["direction"], r["database"]].append(r["map"])
    lines: dict[tuple[str, str, str], dict[float, Spread]] = defaultdict(dict)
    for row in rows:
        for place in panels(content):
            if found := values.get((row.method, row.variant, *place)):
                lines[row.method, *place][row.paired] = Spread.of(found)
    return lines


def draw_shares(content: dict[str, Any], rows: list[Row], file: BinaryIO) -> None:
    """The figure as SVG, the same bytes for the same results."""
    import matplotlib
    from matplotlib.figure import Figure

    lines, places = curves(content, rows), panels(content)
    methods = list(dict.fromkeys(method for method, *_ in lines))
    with matplotlib.rc_context({"svg.hashsalt": "pair-shares", "svg.fonttype": "none"}):
        figure = Figure(figsize=(10, 7.5), layout="constrained")
        grid = figure.subplots(-(-len(places) // 2), 2, squeeze=False, sharex=True)
        for ax, (direction, database) in zip(grid.flat, places, strict=False):
            for number, method in enumerate(methods):
                points = lines.get((method, direction, database), {})
                style, kind = STYLES[info(method).pairing]
                ax.errorbar(
                    [100 * share for share in points],
                    [spread.mean for spread in points.values()],
                    yerr=[spread.sd or 0.0 for spread in points.values()],
                    linestyle=style, marker="o", markersize=4, capsize=2, color=f"C{number}",
                    label=f"{label(method, '')} ({kind})",
                )  # fmt: skip
            ax.set(title=f"{direction}, {database} database", xticks=[0, 25, 50, 75, 100])
            ax.grid(alpha=0.3)
        for ax in grid[-1]:
            ax.set_xlabel("share of paired items, %")
        for ax in grid[:, 0]:
            ax.set_ylabel("mAP")
        figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
        figure.savefig(file, format="svg", metadata={"Date": None})


def six_section(content: dict[str, Any], methods: list[str]) -> str:
    """A summary of the methods, then square tables for AMSH; those of the others are in the result file."""
    (dataset, facts), *_ = content["datasets"].items()
    values: dict[Any, list[float]] = defaultdict(list)
    for r in content["records"]:
        values[r["method"], r["database"], *r["direction"].split("→")].append(r["map"])
    means = {key: float(np.mean(found)) for key, found in values.items()}
    seconds = defaultdict(list)
    for r in content["records"]:
        seconds[r["method"]].append(r["fit_seconds"])
    present = sorted((m for m in methods if m in seconds), key=lambda m: m != "amsh")
    names, databases = list(facts["features"]), list(dict.fromkeys(r["database"] for r in content["records"]))
    chance = float(np.mean([r["chance"] for r in content["records"]]))
    protocol = Protocol.parse(content["protocol"])
    head = SIX_HEAD.format(
        title=NAMED[dataset].title,
        facts=facts_of(dataset, facts, "training items in each modality"),
        bits=", ".join(map(str, sorted({r["bits"] for r in content["records"]}))),
        seeds=count_seeds(content),
    )

    def average(method: str, database: str, within: bool) -> float:
        return float(np.mean([means[method, database, q, d] for q in names for d in names if (q == d) == within]))

    kinds = [(database, within) for database in databases for within in (False, True)]
    summary = Table(
        title="mAP, mean over the 30 directions between modalities and over the 6 within",
        columns=["method", *(f"{'within' if w else 'between'}, {d}" for d, w in kinds), "CPU seconds per fit"],
        rows=[[label(m, ""), *(average(m, d, w) for d, w in kinds), f"{np.mean(seconds[m]):.1f}"] for m in present],
        notes=["; ".join(f"`{protocol.with_database(d)}`" for d in databases), f"A random ranking has {chance:.4f}."],
    )
    squares = [
        Table(
            title=f"{label(method, '')}: mAP by modality of query and database, {database} database",
            columns=["query ↓ database →", *names],
            rows=[[q, *(means[method, database, q, d] for d in names)] for q in names],
            notes=[f"`{protocol.with_database(database)}`"],
        )
        for method in present
        if method == "amsh"
        for database in databases
    ]
    return "\n".join([head, *(table.to_markdown() for table in (summary, *squares))])
