"""The pages paired.md and unpaired.md of docs/measurements, with their figures: pure functions of the packed results.

    modalhash experiment run benchmarks/quality/unpaired.toml --results results/unpaired     # goes on where it was
    modalhash experiment pack results/unpaired benchmarks/results/unpaired.json.xz
    python benchmarks/quality/comparison_pages.py [--results benchmarks/results] [--docs docs]

The same for ``pair_shares`` and ``six_modalities``; ``paired_significance.py`` says how for ``paired``.
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dot_plots import draw_methods
from modalhash._files import write_atomically
from modalhash.data import NAMED
from modalhash.evaluation import Spread, Table
from modalhash.experiments import Results, Row, Study, environments, load_grid, read_studies
from modalhash.registry import info

HERE = Path(__file__).resolve().parent
FIGURE = "images/pair-shares.svg"
PAIRED = """\
# The paired comparison

This page compares every method that learns from pairs, together with SCM and the controls. AMSH and RLH stand beside
them: they get the same items, but are not told which ones belong together. Every method runs with its default
parameters on every data set, on the official split. The numbers are mAP over the full ranking, with ties in
expectation, as mean ± standard deviation over {seeds}.

AMSH and RLH were measured with 15 and 5 iterations of step 2, their defaults until November 2026. Four and two of
today's, which are accelerated otherwise, were level with them on folds of training items ([training](../training.md)).

There are three kinds of database. A **learned** database holds the training items with the codes that training gave
them, which come from their labels if the method uses labels; this is what papers report. A **hashed** database holds
the same items with codes computed from their features alone. An **unseen** database holds hashed items that took no
part in training, which is what a search engine meets when new items arrive. Compare numbers only within one kind of
database.

- † marks a re-implementation: neither the authors' code nor the full text was available.
- ‡ marks a control, which is a level to compare with rather than a method to use. `Chance` assigns random codes;
  `CCA-ITQ` sees no labels; `LabelOracle` takes the database codes from the true labels, and *queries too* does the same
  for the queries.
- SCM is the sequential solver and SCM-O the orthogonal one. SePH uses k-means centres as the sample for its kernel
  logistic regression, SePH-r random items.
- The sources of SDMCH and TECH leave open weights that change mAP by more than .02. SDMCH-g and TECH-g use the values
  guessed before any data were seen; the other rows use what folds of the training items chose
  ([choices](choices.md)).
- AMSH's ablations are in [the paper, reproduced](reproduction.md). Methods that need no pairs are compared on items
  without any in [the unpaired comparison](unpaired.md).
"""
READING = """\
## Which one to take

If your items have labels, take RLH. It is given no pairs, and still comes first on average with every kind of database;
on new items it is first, or level with the first, on each of the four data sets. Pairs add little once there are
labels: TECH, BATCH and ALECH, the best of the methods that need them, reach what AMSH reaches without. If both items of
a pair must have the same code, take BATCH or ALECH: their equations are the authors' own, and a fit of 17,664 pairs
takes four to five seconds. FDDH is faster still and hashes its own training items well, but falls behind on new ones.
SePH takes several times as long for slightly less. SCM makes sense only if a linear map is all you want. Without
labels, CRE comes first, far behind everything that has them; CMFH and FSH are barely above the control CCA-ITQ.
Whichever method you choose, look at the column of unseen items before you promise anything: the learned database that
papers report is a third above it, and on Wiki more than twice as high.

On IAPR TC-12, the authors' own code for SCM, ALECH, FCMH and FDDH takes 64, 15, 39 and 12 CPU seconds for a fit at 16
bits, and AMSH's takes 120 at 32 bits, on another machine; here it is 3, 4, 6, 2 and 8.
"""
UNPAIRED = """\
# The unpaired comparison

This page compares every method that needs no pairs, on data that have none: the training items of each modality are
shuffled separately, and anew for every seed. The methods run with their default parameters on the official split, with
the training items as the database. The numbers are mAP, as mean ± standard deviation over {seeds}.

AMSH was measured with 15 iterations of step 2, its default until November 2026. Four of today's, which are accelerated
otherwise, were level with them on folds of training items ([training](../training.md)).

A **learned** database holds the codes that training made, which come from labels if the method is supervised; a
**hashed** database holds what the same items get from their features alone. Compare numbers only within one kind of
database. The best value of each column, controls left out, is **bold**.

- † marks a re-implementation: neither the authors' code nor the full text was available.
- ‡ marks a control, which is a level to compare with rather than a method to use. `Chance` assigns random codes;
  `LabelOracle` takes the database codes from the true labels, and *queries too* does the same for the queries.
- *AMSH, paired* is AMSH on the same items in their original order.

Read these numbers with care. The sources of SAPMH, RUCMH, EDMH, FMH and UCMH leave parameters open, and their defaults
were picked partly on test queries of these data sets; so were AMSH's start and weights on Wiki ([choices](choices.md)).
Their numbers are optimistic by whatever such a choice gains. RUCMH and UAPMH use neither labels nor, here, pairs:
nothing ties the codes of one modality to those of another except the shape of their distributions, and they stay at
chance or slightly above it.
"""
FINDINGS = """\
With learned databases, AMSH leads image → text on Wiki at 16, 32 and 128 bits, and EDMH at 64. Text → image, the
supervised methods are within .05 of each other, except for SAPMH, which is lower. On IAPR TC-12, AMSH leads
text → image at 16 and 32 bits, and GSPH at 64 and 128, by .018 and .037. Image → text, AMSH is .01 to .04 behind FMH,
EDMH and SAPMH, and also behind GSPH from 64 bits on. From features alone (hashed), AMSH leads text → image on
IAPR TC-12 at every length and FMH leads image → text; EDMH leads both directions on Wiki, where its functions follow
the training items closely.
"""
SHARES_HEAD = """\
## What pairs add

Here a share of the training pairs is kept and the other items are shuffled within their modality; {bits} bits, {seeds}.
Methods that **can use** pairs are given them. Methods that **need none** see the same items and are not told. Methods
that **need** pairs train on the pairs there are, so that the "learned" codes of all other items are in fact hashed.
GSPH's learned mAP falls as more pairs arrive, because its post-unification replaces codes made from labels with codes
shared by a pair (`unify=False` keeps them).

![mAP over the share of paired items, one line per method, for both directions and both databases]({figure})
"""
SIX_HEAD = """\
## Six modalities at once

{title}. {facts} Every modality is shuffled separately; one model learns from all six, {bits} bits, {seeds}. Rows are
the modality of the queries and columns that of the database; the diagonal is retrieval within a modality. Every digit
has one label, so where learned codes are a function of the labels alone, all databases of learned codes are alike.
"""
BOTH_WAYS = (
    "No equation of AMSH uses pairs, and items are taken in an order given by their content rather than by their rows. "
    "With the same seed, shuffling therefore changes nothing but rounding. The ± of the tables above shows what "
    "another seed changes."
)
DOTS = "![mAP at {bits} bits by method, one dot per kind of database, for both directions](../{figure})\n"
DOTS_CAPTION = (
    "*mAP at {bits} bits, mean over the seeds; the bars are ± one standard deviation, often shorter than the dot. "
    "Methods are sorted by the {last} database. Grey names are controls.*\n"
)
DOTS_BITS = 64
STYLES = {"optional": ("-", "can use pairs"), "none": ("--", "needs none"), "needed": (":", "needs pairs")}
LEVEL = 0.05
Studies = Mapping[str, Study]
Significance = Mapping[str, Mapping[str, Mapping[str, Mapping[str, tuple[float, float]]]]]
"""By data set, reference, row and cell: the difference of mAP and its p-value, of ``paired_significance.py``."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE.parent / "results", help="folder of the packed results")
    parser.add_argument("--docs", type=Path, default=HERE.parents[1] / "docs", help="folder to write the pages into")
    options = parser.parse_args()
    for name, content in pages(options.results).items():
        write_atomically(options.docs / name, content)


def pages(results: Path) -> dict[str, bytes]:
    """Return both pages and their figures, by their names under the folder of the documentation."""
    paired, unpaired, shares, six = (
        read(results, name) for name in ("paired", "unpaired", "pair_shares", "six_modalities")
    )
    return {
        "measurements/paired.md": paired_page(
            paired, json.loads((results / "paired_significance.json").read_bytes())
        ).encode(),
        "measurements/unpaired.md": unpaired_page(unpaired, shares, six).encode(),
        FIGURE: draw_shares(next(iter(shares.values()))),
        **{
            dots_name(kind, study): draw_methods(study, rows, [name_of(row) for row in rows], DOTS_BITS)
            for kind, studies in (("paired", paired), ("unpaired", unpaired))
            for study in studies.values()
            for rows in [present(study)]
        },
    }


def dots_name(kind: str, study: Study) -> str:
    """Return where the dot plot of a data set is, under the folder of the documentation."""
    return f"images/map-{kind}-{study.dataset}.svg"


def dots(kind: str, study: Study) -> str:
    """Return the dot plot of a data set, as the page shows it."""
    caption = DOTS_CAPTION.format(bits=DOTS_BITS, last=study.databases[-1])
    return DOTS.format(bits=DOTS_BITS, figure=dots_name(kind, study)) + "\n" + caption


def read(results: Path, name: str) -> Studies:
    """Return the studies of a grid, by data set."""
    return read_studies(Results(results / f"{name}.json.xz"), load_grid(HERE / f"{name}.toml"))


def paired_page(studies: Studies, significance: Significance) -> str:
    source = (
        "Every number is in `benchmarks/results/paired.json.xz`, made by `modalhash experiment run "
        "benchmarks/quality/paired.toml`, and what is significant in `paired_significance.json`, made by "
        "`benchmarks/quality/paired_significance.py`; this page by `python benchmarks/quality/comparison_pages.py`."
    )
    return "\n".join(
        [
            PAIRED.format(seeds=count_seeds([studies])),
            READING,
            overview(studies, significance),
            *(paired_section(study, significance[name]["AMSH"]) for name, study in studies.items()),
            *not_measured([studies]),
            provenance([studies], source),
        ]
    )


def overview(studies: Studies, significance: Significance) -> str:
    """Return one row per method: means over everything, seconds, memory, and how often it differs from AMSH and RLH."""
    largest = max(studies.values(), key=lambda study: study.facts["training"])
    databases = next(iter(studies.values())).databases

    def mean_of(row: Row, database: str) -> str:
        values = [
            study.mean(row.label, bits, direction, database)
            for study in studies.values()
            for bits in study.bits
            for direction in study.directions
        ]
        known = [value for value in values if value is not None]
        return f"{np.mean(known):.3f}" if len(known) == len(values) else "–"

    def differs(row: Row, reference: str) -> str:
        found = [
            entry for name in studies for entry in significance[name][reference].get(row.label, {}).values()
        ]  # (difference, p)
        ahead, behind = (sum(p < LEVEL and sign * d > 0 for d, p in found) for sign in (1, -1))
        return f"{ahead} / {behind}" if found else "–"

    def fit(row: Row) -> list[str]:
        seconds, memory = largest.seconds(row.label, 64), largest.memory(row.label, 64)
        return ["–" if seconds is None else f"{seconds.mean:.1f}", "–" if memory is None else f"{memory / 1e6:,.0f}"]

    rows = [row for row in largest.grid.rows if any(row in present(study) for study in studies.values())]
    cells = sum(len(study.bits) * len(study.directions) * len(study.databases) for study in studies.values())
    return Table(
        title="Means over all data sets, lengths and directions",
        columns=[
            "method", "labels", *databases, "above / below AMSH", "above / below RLH", "CPU seconds", "memory, MB",
        ],
        rows=[
            [
                name_of(row),
                "yes" if info(row.method).supervised else "no",
                *(mean_of(row, database) for database in databases),
                *(differs(row, reference) for reference in ("AMSH", "RLH")),
                *fit(row),
            ]
            for row in rows
        ],
        notes=[
            protocols(largest),
            f"*Above / below*: in how many of {cells} cells (data set, length, direction, database) the difference is "
            "significant (randomisation test over queries, Holm's correction within a data set, p < .05).",
            f"CPU seconds and peak memory of the process, data and libraries included, at 64 bits on "
            f"{largest.dataset}, {largest.facts['training']:,} pairs, one BLAS thread.",
        ],
    ).to_markdown()  # fmt: skip


def paired_section(study: Study, against_amsh: Mapping[str, Mapping[str, tuple[float, float]]]) -> str:
    """Return one data set: a table per kind of database, with what differs from AMSH marked, then the seconds."""
    rows = present(study)
    columns = [(bits, direction) for bits in study.bits for direction in study.directions]

    def table(database: str) -> str:
        spreads = {
            (row.label, column): study.spread(row.label, *column, database, scenario=row.scenario)
            for row in rows
            for column in columns
        }
        highest = {
            column: max(
                (
                    round(spread.mean, 4)
                    for row in rows
                    if not info(row.method).control and (spread := spreads[row.label, column]) is not None
                ),
                default=None,
            )
            for column in columns
        }

        def cell(row: Row, column: tuple[int, str]) -> str:
            spread = spreads[row.label, column]
            if spread is None:
                return "–"
            difference, p = against_amsh.get(row.label, {}).get(f"{column[0]} {column[1]} {database}", (0.0, 1.0))
            mark = "" if p >= LEVEL else " ▲" if difference > 0 else " ▼"
            best = not info(row.method).control and round(spread.mean, 4) == highest[column]
            return (f"**{spread}**" if best else str(spread)) + mark

        chance = ", ".join(f"{direction} {study.chance(direction, database):.4f}" for direction in study.directions)
        return Table(
            title=f"mAP, {database} database",
            columns=["method", *(f"{bits} bits, {direction}" for bits, direction in columns)],
            rows=[[name_of(row), *(cell(row, column) for column in columns)] for row in rows],
            notes=[
                f"`{study.grid.protocol.with_database(database)}`",
                f"The best of each column is bold, controls left out. ▲ significantly above AMSH, ▼ below. A random "
                f"ranking has {chance}.",
            ],
        ).to_markdown()

    head = f"## {NAMED[study.dataset].title}\n\n{facts_of(study, 'training pairs')}\n"
    return "\n".join(
        [head, dots("paired", study), *(table(database) for database in study.databases), seconds(study, rows)]
    )


def unpaired_page(table: Studies, shares: Studies, six: Studies) -> str:
    source = (
        "Every number is in `benchmarks/results/` (`unpaired.json.xz`, `pair_shares.json.xz`, "
        "`six_modalities.json.xz`), made by `modalhash experiment run` of the grids in `benchmarks/quality/`; this "
        "page and its figures by `python benchmarks/quality/comparison_pages.py`."
    )
    return "\n".join(
        [
            UNPAIRED.format(seeds=count_seeds([table])),
            FINDINGS,
            *(section(study, "training items in each modality", table) for study in table.values()),
            *both_ways(table),
            shares_section(next(iter(shares.values()))),
            six_section(next(iter(six.values()))),
            *not_measured([table, shares, six]),
            provenance([table, shares, six], source),
        ]
    )


def count_seeds(groups: Iterable[Studies]) -> str:
    """Return e.g. ``3 seeds``."""
    seeds = len({seed for studies in groups for study in studies.values() for seed in study.seeds})
    return f"{seeds} seed{'s' if seeds != 1 else ''}"


def name_of(row: Row) -> str:
    """Return the row's label, marked where the method is a control or a re-implementation."""
    entry = info(row.method)
    return row.label + (" ‡" if entry.control else " †" if entry.reimplementation else "")


def present(study: Study) -> list[Row]:
    """Return the rows with any result."""
    return [row for row in study.grid.rows if (row.label, row.scenario) in study.rows]


def section(study: Study, unit: str, studies: Studies) -> str:
    """Return one data set: a table per direction, then the seconds."""
    head = f"## {NAMED[study.dataset].title}\n\n{facts_of(study, unit)}\n"
    rows = present(study)
    seeds = len({seed for other in studies.values() for seed in other.seeds})
    short = [
        row
        for row in rows
        if any(len(study.of(row.label, bits, scenario=row.scenario)) not in (0, seeds) for bits in study.bits)
    ]
    notes = [f"Fewer than {seeds} seeds in some cells: {', '.join(map(name_of, short))}.\n"] if short else []
    tables = [quality(study, direction, rows) for direction in study.directions]
    return "\n".join([head, dots("unpaired", study), *tables, seconds(study, rows), *notes])


def facts_of(study: Study, unit: str) -> str:
    """Say how to load the data, and how large they are."""
    facts = study.facts
    sizes = " + ".join(f"{width} {name}" for name, width in facts["features"].items())
    options = "".join(f", {name}={value!r}" for name, value in facts["options"].items())
    return (
        f"`load_dataset({study.dataset!r}{options})`: {facts['training']} {unit}, {facts['queries']} queries, "
        f"{facts['classes']} classes, {sizes} features."
    )


def quality(study: Study, direction: str, rows: list[Row]) -> str:
    """Return one direction, the databases side by side, the best of each column bold."""
    columns = [(bits, database) for bits in study.bits for database in study.databases]

    def spread_of(row: Row, column: tuple[int, str]) -> Spread | None:
        bits, database = column
        return study.spread(row.label, bits, direction, database, scenario=row.scenario)

    def best(column: tuple[int, str]) -> float | None:
        found = [spread_of(row, column) for row in rows if not info(row.method).control]
        return max((round(spread.mean, 4) for spread in found if spread is not None), default=None)

    highest = {column: best(column) for column in columns}

    def cell(row: Row, column: tuple[int, str]) -> str:
        spread = spread_of(row, column)
        if spread is None:
            return "–"
        bold = not info(row.method).control and round(spread.mean, 4) == highest[column]
        return f"**{spread}**" if bold else str(spread)

    return Table(
        title=f"mAP, {direction}",
        columns=["method", "labels", *(f"{bits} bits, {database}" for bits, database in columns)],
        rows=[
            [name_of(row), "yes" if info(row.method).supervised else "no", *(cell(row, column) for column in columns)]
            for row in rows
        ],
        notes=[protocols(study), f"A random ranking has {study.chance(direction, 'learned'):.4f}."],
    ).to_markdown()


def protocols(study: Study) -> str:
    return "; ".join(f"`{study.grid.protocol.with_database(database)}`" for database in study.databases)


def seconds(study: Study, rows: list[Row]) -> str:
    """Return the mean CPU seconds of a fit, and the most memory where that was noted."""

    def cell(row: Row, bits: int) -> str:
        found, memory = study.seconds(row.label, bits, row.scenario), study.memory(row.label, bits, row.scenario)
        if found is None:
            return "–"
        return f"{found.mean:.1f}" if memory is None else f"{found.mean:.1f} s, {memory / 1e6:,.0f} MB"

    noted = any(study.memory(row.label, bits, row.scenario) for row in rows for bits in study.bits)
    notes = ["CPU time, kernel features included; mean over the seeds."]
    if noted:
        notes += ["Memory is the peak of the process, data set and libraries included."]
    return Table(
        title="CPU seconds and memory of a fit" if noted else "CPU seconds per fit",
        columns=["method", *(f"{bits} bits" for bits in study.bits)],
        rows=[[name_of(row), *(cell(row, bits) for bits in study.bits)] for row in rows],
        notes=notes,
    ).to_markdown()


def not_measured(groups: Iterable[Studies]) -> list[str]:
    """Say what failed, and why; nothing where nothing did."""
    reasons = {
        f"- {point.label} on {study.dataset}: {error}"
        for studies in groups
        for study in studies.values()
        for point, error in study.failures.items()
    }
    return ["## Not measured\n\n" + "\n".join(sorted(reasons)) + "\n"] if reasons else []


def provenance(groups: list[Studies], source: str) -> str:
    """Say where the numbers come from: every mAP counts."""
    results = [result for studies in groups for study in studies.values() for result in study.results.values()]
    each = [result for result in results for entry in result["databases"].values() for _ in entry]
    cells = [f"- {count} cells: {environment}" for environment, count in environments(each).items()]
    return "\n".join(["## How this was measured\n", *cells, f"\n{source}\n"])


# AMSH with and without pairs


def both_ways(studies: Studies) -> list[str]:
    """Return AMSH without pairs less AMSH with them, the seed with the largest difference."""
    bits = sorted({bits for study in studies.values() for bits in study.bits})
    rows = []
    for study in studies.values():
        for database in study.databases:
            for direction in study.directions:
                differences = [largest(study, n_bits, direction, database) for n_bits in bits]
                if any(text != "–" for text in differences):
                    rows.append([study.dataset, direction, database, *differences])
    if not rows:
        return []
    protocol = next(iter(studies.values())).grid.protocol
    table = Table(
        title="AMSH: mAP unpaired less mAP paired, the seed with the largest difference",
        columns=["data", "direction", "database", *(f"{n_bits} bits" for n_bits in bits)],
        rows=rows,
        notes=[f"`{protocol}` and the same with a hashed database.", BOTH_WAYS],
    )
    return ["## AMSH paired and unpaired\n", table.to_markdown()]


def largest(study: Study, bits: int, direction: str, database: str) -> str:
    first, second = study.of("AMSH", bits), study.of("AMSH, paired", bits)
    pairs = [
        (study.entry(first[seed], database, direction), study.entry(second[seed], database, direction))
        for seed in first
        if seed in second
    ]
    values = [a["map"] - b["map"] for a, b in pairs if a is not None and b is not None]
    return "–" if not values else f"{round(max(values, key=abs), 4) + 0.0:+.4f}"  # + 0.0: no -0.0000


# Shares of pairs


def share_of(scenario: str) -> float:
    """Return the share of items that keep their pairs."""
    known = {"unpaired": 0.0, "paired": 1.0}
    return known[scenario] if scenario in known else float(scenario.partition(":")[2])


def curves(study: Study, direction: str, database: str) -> list[tuple[Row, dict[float, Spread]]]:
    """Return the mAP of each method by share of paired items, with one of its rows."""
    lines: dict[str, tuple[Row, dict[float, Spread]]] = {}
    for row in present(study):
        spread = study.spread(row.label, study.bits[0], direction, database, scenario=row.scenario)
        if spread is not None:
            lines.setdefault(row.label, (row, {}))[1][share_of(row.scenario)] = spread
    return list(lines.values())


def panels(study: Study) -> list[tuple[str, str]]:
    """Return directions and databases, in the order they are shown."""
    return [(direction, database) for database in study.databases for direction in study.directions]


def shares_section(study: Study) -> str:
    """Return the figure, and its numbers."""
    bits = ", ".join(map(str, study.bits))
    head = SHARES_HEAD.format(bits=bits, seeds=count_seeds([{"": study}]), figure=f"../{FIGURE}")
    tables = []
    for direction, database in panels(study):
        lines = curves(study, direction, database)
        shares = sorted({share for _, points in lines for share in points})
        tables.append(
            Table(
                title=f"mAP, {direction}, {database} database",
                columns=["method", "pairs", *(f"{100 * share:g} %" for share in shares)],
                rows=[
                    [name_of(row), STYLES[info(row.method).pairing][1], *(str(points.get(s, "–")) for s in shares)]
                    for row, points in lines
                ],
                notes=[f"`{study.grid.protocol.with_database(database)}`"],
            ).to_markdown()
        )
    return "\n".join([head, *tables])


def draw_shares(study: Study) -> bytes:
    """Return the figure as SVG, the same bytes for the same results."""
    import matplotlib
    from matplotlib.figure import Figure

    shown = panels(study)
    with matplotlib.rc_context({"svg.hashsalt": "pair-shares", "svg.fonttype": "none"}):
        figure = Figure(figsize=(10, 7.5), layout="constrained")
        grid = figure.subplots(-(-len(shown) // 2), 2, squeeze=False, sharex=True)
        for ax, (direction, database) in zip(grid.flat, shown, strict=False):
            for number, (row, points) in enumerate(curves(study, direction, database)):
                style, kind = STYLES[info(row.method).pairing]
                ax.errorbar(
                    [100 * share for share in points],
                    [spread.mean for spread in points.values()],
                    yerr=[spread.sd or 0.0 for spread in points.values()],
                    linestyle=style, marker="o", markersize=4, capsize=2, color=f"C{number}",
                    label=f"{name_of(row)} ({kind})",
                )  # fmt: skip
            ax.set(title=f"{direction}, {database} database", xticks=[0, 25, 50, 75, 100])
            ax.grid(alpha=0.3)
        for ax in grid[-1]:
            ax.set_xlabel("share of paired items, %")
        for ax in grid[:, 0]:
            ax.set_ylabel("mAP")
        figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


# Six modalities


def six_section(study: Study) -> str:
    """Return a summary of the methods, then square tables for AMSH; those of the others are in the results."""
    bits = study.bits[0]
    names = list(study.facts["features"])
    rows = sorted(present(study), key=lambda row: row.method != "amsh")

    def mean(row: Row, database: str, query: str, target: str) -> float:
        found = study.mean(row.label, bits, f"{query}→{target}", database)
        assert found is not None
        return found

    def average(row: Row, database: str, within: bool) -> float:
        return float(np.mean([mean(row, database, q, d) for q in names for d in names if (q == d) == within]))

    def fit_seconds(row: Row) -> str:
        found = study.seconds(row.label, bits)
        return "–" if found is None else f"{found.mean:.1f}"

    head = SIX_HEAD.format(
        title=NAMED[study.dataset].title,
        facts=facts_of(study, "training items in each modality"),
        bits=", ".join(map(str, study.bits)),
        seeds=count_seeds([{"": study}]),
    )
    chance: Any = np.mean([study.chance(direction, "learned") for direction in study.directions])
    kinds = [(database, within) for database in study.databases for within in (False, True)]
    summary = Table(
        title="mAP, mean over the 30 directions between modalities and over the 6 within",
        columns=["method", *(f"{'within' if w else 'between'}, {d}" for d, w in kinds), "CPU seconds per fit"],
        rows=[[name_of(row), *(average(row, d, w) for d, w in kinds), fit_seconds(row)] for row in rows],
        notes=[protocols(study), f"A random ranking has {chance:.4f}."],
    )
    squares = [
        Table(
            title=f"{name_of(row)}: mAP by modality of query and database, {database} database",
            columns=["query ↓ database →", *names],
            rows=[[q, *(mean(row, database, q, d) for d in names)] for q in names],
            notes=[f"`{study.grid.protocol.with_database(database)}`"],
        )
        for row in rows
        if row.method == "amsh"
        for database in study.databases
    ]
    return "\n".join([head, *(table.to_markdown() for table in (summary, *squares))])


if __name__ == "__main__":
    main()
