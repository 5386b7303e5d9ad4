"""The comparison pages of docs/measurements, with their figures: pure functions of the packed results.

    python -m reproduction extended --results results                      # goes on where it was
    python benchmarks/quality/comparison_pages.py --measured results       # tests, packs, and writes the pages
    python benchmarks/quality/comparison_pages.py                          # writes the pages from the packed results

``paired.md`` and ``unpaired.md`` are whole pages; of ``rlh.md`` the tables are replaced. ``pair_shares`` and
``six_modalities`` are grids in this folder, run by `modalhash experiment run`. A test of significance needs the average
precision of every query, which would make the packed results ten times as large, so its outcome is kept in
``comparison_significance.json``.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dot_plots import draw_methods
from modalhash.core.files import write_atomically
from modalhash.data import NAMED
from modalhash.evaluation import Spread, Table
from modalhash.evaluation.significance import SIGNIFICANT
from modalhash.experiments import Results, Row, Study, environments, load_grid, pack, read_studies
from modalhash.experiments.results import kind_of
from modalhash.methods.registry import info

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # for the grid of the reproduction
from reproduction.published import FOLDER, load  # noqa: E402

FIGURE = "images/pair-shares.svg"
REFERENCES = ("AMSH", "RLH")
DRAWS = 20_000
COMMON = """\
Every method runs with its default parameters on every data set. The numbers are mAP over the full ranking, with ties in
expectation, as mean ± standard deviation over {seeds}; methods that take half a minute or more have one.

There are three kinds of database. A **learned** database holds the training items with the codes that training gave
them, which come from their labels if the method uses labels; this is what papers report. A **hashed** database holds
the same items with codes computed from their features alone. An **unseen** database holds hashed items that took no
part in training, which is what a search engine meets when new items arrive. Compare numbers only within one kind of
database.

- Each heading says what the data are: *original*, or *recomputed features*, where items and labels are those of
  publications and features were computed again ([data sets](../datasets.md)).
- † marks a re-implementation: neither the authors' code nor the full text was available.
- ‡ marks a control, which is a level to compare with rather than a method to use. `Chance` assigns random codes;
  `CCA-ITQ` sees no labels; `LabelOracle` takes the database codes from the true labels, and *queries too* does the same
  for the queries.
- *Kernel chosen* is the same method with `kernel="auto"`: one of four kernels per modality, chosen on training items by
  how well it ranks held-out ones. RLH does this by default, so these rows show what of its lead is preprocessing.
"""
PAIRED = """\
# The paired comparison

This page compares the methods that learn from pairs, but for SDMCH and UCCH, whose fits take a minute or more. AMSH and
RLH are shown for comparison: they get the same items, but are not told which ones belong together. {common}\
- Sources of SDMCH and TECH leave open weights that change mAP by more than .02; folds of the training items chose
  them ([choices](choices.md)).
- The paper's own tables, with published numbers, are in [the paper, reproduced](reproduction.md). Methods that need no
  pairs are compared in [the unpaired comparison](unpaired.md).
"""
UNPAIRED = """\
# The unpaired comparison

This page compares the methods that need no pairs, on data that have none: the training items of each modality are
shuffled separately for every seed. {common}
Read these numbers with care. The sources of SAPMH, RUCMH, EDMH, FMH and UCMH leave parameters open, and their defaults
were picked partly on test queries of Wiki and of IAPR TC-12 with keywords; so were AMSH's start and weights on Wiki
([choices](choices.md)). Their numbers are optimistic by whatever such a choice gains. RUCMH and UAPMH use neither
labels nor, here, pairs: nothing ties the codes of one modality to those of another except the shape of their
distributions, and they stay at chance or slightly above it.
"""
READING = {
    "paired": """\
## Which one to take

If your items have labels, take RLH. It is given no pairs, and still comes first on average with every kind of database,
and first among new items in every cell against methods with their defaults. Pairs add little once there are labels:
WASH, TECH, BATCH and ALECH, the best of the methods that need them, reach what AMSH reaches without. If both items of a
pair must have the same code, take BATCH or ALECH: their equations are the authors' own, and a fit of 17,995 pairs takes
four seconds. Most methods gain from a chosen kernel, by up to two points of mAP; DCH gains six. Without labels, CRE
comes first, far behind everything that has them. Whichever method you choose, look at the column of unseen items
before you promise anything: the learned database that papers report is a quarter above it.
""",
    "unpaired": """\
## Which one to take

Take RLH. With a learned database it leads on MIRFlickr-25K and IAPR TC-12 at every length and in both directions, by
2 to 4 points image → text; GSPH and EDMH come next. Among new items it leads there as well, by .3 to 3 points over
methods whose kernel was chosen in the same way, and by more over their defaults. On Wiki it is level with EDMH with a
chosen kernel, whose hashed codes of training items are ahead because they follow these items closely; on Mfeat up to
1.5 points behind the best of them. AMSH is behind FMH, GSPH and EDMH with learned databases, and ahead of GSPH and EDMH
among new items; a chosen kernel brings it one point there.
""",
}
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
DOTS = "![mAP at {bits} bits by method, one dot per kind of database, for both directions](../{figure})\n"
DOTS_CAPTION = (
    "*mAP at {bits} bits, mean over the seeds; the bars are ± one standard deviation, often shorter than the dot. "
    "Methods are sorted by the {last} database. Grey names are controls.*\n"
)
DOTS_BITS = 64
STYLES = {"optional": ("-", "can use pairs"), "none": ("--", "needs none"), "needed": (":", "needs pairs")}
Studies = Mapping[str, Study]
Significance = Mapping[str, Mapping[str, Mapping[str, Mapping[str, tuple[float, float]]]]]
"""By data set, reference, row and cell: the difference of mAP and its corrected p-value."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, help="folder of results to test and pack first")
    parser.add_argument("--results", type=Path, default=HERE.parent / "results", help="folder of the packed results")
    parser.add_argument("--docs", type=Path, default=HERE.parents[1] / "docs", help="folder to write the pages into")
    options = parser.parse_args()
    if options.measured is not None:
        studies = read_studies(Results(options.measured), load(FOLDER / "extended.toml").grid)
        text = json.dumps(significance_of(studies), ensure_ascii=False, separators=(",", ":")) + "\n"
        write_atomically(options.results / "comparison_significance.json", text.encode())
        cells = {study.cells[point].path for study in studies.values() for point in study.found}
        if stale := [path for path in cells if not (options.measured / "cells" / path).is_file()]:
            parser.error(f"{len(stale)} cells were measured by other code, e.g. {stale[0]}; run the experiment again")
        write_atomically(options.results / "comparison.json.xz", pack(options.measured, per_query=False, only=cells))
    for name, content in pages(options.results).items():
        write_atomically(options.docs / name, content)
    page = options.docs / "measurements" / "rlh.md"
    write_atomically(page, rlh_page(page.read_text(encoding="utf-8"), options.results).encode())


def significance_of(studies: Studies) -> dict[str, dict[str, dict[str, dict[str, list[float]]]]]:
    """Test every row against each reference: a randomisation test over queries, corrected by Holm in a data set."""
    found: dict[str, Any] = {}
    for name, study in studies.items():
        for reference in REFERENCES:
            by_row = found.setdefault(name, {}).setdefault(reference, {})
            for (row, bits, direction, database), test in study.tests(reference, draws=DRAWS).items():
                values = [round(test.difference, 5), round(test.p_holm, 5)]
                by_row.setdefault(row[0], {})[f"{bits} {direction} {database}"] = values
    return found


def pages(results: Path) -> dict[str, bytes]:
    """Return both pages and their figures, by their names under the folder of the documentation."""
    studies, significance = read_comparison(results)
    shares, six = (
        read_studies(Results(results / f"{name}.json.xz"), load_grid(HERE / f"{name}.toml"))
        for name in ("pair_shares", "six_modalities")
    )
    found = {
        "measurements/paired.md": comparison_page("paired", studies, significance).encode(),
        "measurements/unpaired.md": unpaired_page(studies, significance, shares, six).encode(),
        FIGURE: draw_shares(next(iter(shares.values()))),
    }
    for kind in ("paired", "unpaired"):
        for study in studies.values():
            rows = rows_of(study, kind)
            found[dots_name(kind, study)] = draw_methods(study, rows, [name_of(row) for row in rows], DOTS_BITS)
    return found


def read_comparison(results: Path) -> tuple[Studies, Significance]:
    """Return the results of every method by data set, and what is significant."""
    studies = read_studies(Results(results / "comparison.json.xz"), load(FOLDER / "extended.toml").grid)
    return studies, json.loads((results / "comparison_significance.json").read_bytes())


def rows_of(study: Study, kind: str) -> list[Row]:
    """Return the rows of a page with any result: AMSH and RLH, the methods of its kind, and the controls."""
    return [
        row
        for row in study.grid.rows
        if (row.label, row.scenario) in study.rows
        and (row.scenario == kind or row.label in REFERENCES or info(row.method).control)
    ]


def dots_name(kind: str, study: Study) -> str:
    """Return where the dot plot of a data set is, under the folder of the documentation."""
    return f"images/map-{kind}-{study.dataset}.svg"


def dots(kind: str, study: Study) -> str:
    """Return the dot plot of a data set, as the page shows it."""
    caption = DOTS_CAPTION.format(bits=DOTS_BITS, last=study.databases[-1])
    return DOTS.format(bits=DOTS_BITS, figure=dots_name(kind, study)) + "\n" + caption


def comparison_page(kind: str, studies: Studies, significance: Significance, more: Iterable[str] = ()) -> str:
    """Return a page: the overview, a section per data set, and ``more``."""
    source = (
        "Every number is in `benchmarks/results/`, made by `python -m reproduction extended` and by the grids in "
        "`benchmarks/quality/`; this page and its figures by `python benchmarks/quality/comparison_pages.py`."
    )
    return "\n".join(
        [
            (PAIRED if kind == "paired" else UNPAIRED).format(common=COMMON.format(seeds=count_seeds([studies]))),
            READING[kind],
            overview(kind, studies, significance),
            *(section(kind, study, significance[name]["AMSH"]) for name, study in studies.items()),
            *more,
            *not_measured([studies]),
            provenance([studies], source),
        ]
    )


def unpaired_page(studies: Studies, significance: Significance, shares: Studies, six: Studies) -> str:
    more = [shares_section(next(iter(shares.values()))), six_section(next(iter(six.values())))]
    return comparison_page("unpaired", studies, significance, more)


def overview(kind: str, studies: Studies, significance: Significance) -> str:
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
        ahead, behind = (sum(p < SIGNIFICANT and sign * d > 0 for d, p in found) for sign in (1, -1))
        return f"{ahead} / {behind}" if found else "–"

    def fit(row: Row) -> list[str]:
        seconds, memory = largest.seconds(row.label, 64), largest.memory(row.label, 64)
        return ["–" if seconds is None else f"{seconds.mean:.1f}", "–" if memory is None else f"{memory / 1e6:,.0f}"]

    rows = rows_of(largest, kind)
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
            f"{largest.dataset}, {largest.facts['training']:,} items in each modality, one BLAS thread.",
        ],
    ).to_markdown()  # fmt: skip


def section(kind: str, study: Study, against_amsh: Mapping[str, Mapping[str, tuple[float, float]]]) -> str:
    """Return one data set: a table per kind of database, with what differs from AMSH marked, then the seconds."""
    rows = rows_of(study, kind)
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
            mark = "" if p >= SIGNIFICANT else " ▲" if difference > 0 else " ▼"
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

    unit = "training pairs" if kind == "paired" else "training items in each modality"
    head = f"## {NAMED[study.dataset].title}\n\nData: {kind_of(study.facts)}. {facts_of(study, unit)}\n"
    return "\n".join(
        [head, dots(kind, study), *(table(database) for database in study.databases), seconds(study, rows)]
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


def facts_of(study: Study, unit: str) -> str:
    """Say how to load the data, and how large they are."""
    facts = study.facts
    sizes = " + ".join(f"{width} {name}" for name, width in facts["features"].items())
    options = "".join(f", {name}={value!r}" for name, value in facts["options"].items())
    return (
        f"`load_dataset({study.dataset!r}{options})`: {facts['training']} {unit}, {facts['queries']} queries, "
        f"{facts['classes']} classes, {sizes} features."
    )


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


# RLH


def rlh_page(text: str, results: Path) -> str:
    """Return the page of RLH with the tables of these results."""
    studies, significance = read_comparison(results)
    text = replaced(text, "choices", choices(json.loads((results / "rlh_choices.json").read_bytes())))
    lines = [line for name, study in studies.items() for line in against_all(study, significance[name]["RLH"])]
    return replaced(replaced(text, "tables", lines), "few labels", few_labels(results))


def few_labels(results: Path) -> list[str]:
    """Return the mAP of unseen items with few and with wrong labels, by data set."""
    studies = read_studies(Results(results / "rlh_labels.json.xz"), load_grid(HERE / "rlh_labels.toml"))
    labels = dict.fromkeys(row.label for study in studies.values() for row in study.grid.rows)
    lines = ["| | " + " | ".join(studies) + " |", "|---|" + "---|" * len(studies)]
    for label in labels:
        cells = []
        for study in studies.values():
            means = [study.mean(label, study.bits[0], direction, "unseen") for direction in study.directions]
            cells.append(" / ".join("–" if mean is None else f"{mean:.3f}" for mean in means))
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return lines


def replaced(text: str, what: str, lines: list[str]) -> str:
    """Return the page with other lines between the marks of a part."""
    begin, end = f"<!-- {what}: benchmarks/quality/comparison_pages.py -->", f"<!-- end of {what} -->"
    head, _, rest = text.partition(begin)
    return "\n".join([head + begin, "", *lines, "", end]) + rest.partition(end)[2]


def against_all(study: Study, tests: Mapping[str, Mapping[str, tuple[float, float]]]) -> list[str]:
    """Return, per database and cell, RLH, RLH before, AMSH and the best of all other methods with RLH's lead."""
    cells = [(bits, direction) for bits in study.bits for direction in study.directions]
    others = [row for row in present(study) if not row.label.startswith("RLH") and not info(row.method).control]
    lines = [
        f"### {NAMED[study.dataset].title}",
        "",
        f"Data: {kind_of(study.facts)}.",
        "",
        "| database | | " + " | ".join(f"{bits} bits, {direction}" for bits, direction in cells) + " |",
        "|---|---|" + "---|" * len(cells),
    ]
    for database in study.databases:
        leads, first, behind = [], 0, 0
        for bits, direction in cells:
            means = {
                row.label: study.mean(row.label, bits, direction, database, scenario=row.scenario) for row in others
            }
            best = max(means, key=lambda label: means[label] or 0.0)
            lead = (study.mean("RLH", bits, direction, database) or 0.0) - (means[best] or 0.0)
            difference, p = tests.get(best, {}).get(f"{bits} {direction} {database}", (0.0, 1.0))
            mark = "" if p >= SIGNIFICANT else "**" if difference < 0 else "_"  # of the other row less RLH
            first += lead >= 0
            behind += mark == "_"
            leads.append(f"{mark}{100 * lead:+.1f}{mark} {best}")
        for label in ("RLH", "RLH, before", "AMSH"):
            values = [study.mean(label, bits, direction, database) for bits, direction in cells]
            shown = " | ".join("–" if value is None else f"{value:.3f}" for value in values)
            lines.append(f"| {database} | {label} | {shown} |")
        count = f"first in {first} of {len(cells)}" + (f", significantly behind in {behind}" if behind else "")
        lines.append(f"| {database} | lead over the best other: {count} | " + " | ".join(leads) + " |")
    return [*lines, ""]


def choices(known: Mapping[str, Any]) -> list[str]:
    """Return by how much each variant of the defaults changes mAP on folds of training items, unseen and learned."""
    gains: dict[str, dict[str, list[Any]]] = {}
    for key, entry in known.items():
        where, _, variant = key.partition(" bits, ")
        difference = 100 * (np.array(entry["map"]) - known[f"{where} bits, default"]["map"])
        gains.setdefault(variant, {}).setdefault(where.partition(",")[0], []).append(difference)
    names = list(dict.fromkeys(key.partition(",")[0] for key in known))

    def cell(values: Any) -> str:
        means = np.mean(values, axis=0)
        return f"{(means[2] + means[5]) / 2:+.2f} / {(means[0] + means[3]) / 2:+.2f}"

    lines = ["| variant | " + " | ".join(names) + " | mean |", "|---|" + "---|" * (len(names) + 1)]
    for variant in gains:
        if variant != "default":
            by_set = [np.mean(gains[variant][name], axis=0) for name in names]
            lines.append(f"| {variant} | " + " | ".join(cell([one]) for one in by_set) + f" | {cell(by_set)} |")
    return lines


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
