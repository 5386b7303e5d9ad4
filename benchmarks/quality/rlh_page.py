"""The tables of docs/measurements/rlh.md: RLH beside AMSH and beside every other method, with significance.

    modalhash experiment run benchmarks/quality/rlh.toml --results results/rlh
    modalhash experiment pack results/rlh benchmarks/results/rlh.json.xz
    python benchmarks/quality/rlh_page.py [results/rlh]

Without a folder, the packed file is read. What stands between the marks of the page is replaced.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from modalhash._typing import Array
from modalhash.evaluation import holm, randomisation_tests
from modalhash.experiments import Results, Study, load_grid, read_studies

ROOT = Path(__file__).parents[2]
HERE, PAGE = Path(__file__).parent, ROOT / "docs" / "measurements" / "rlh.md"
PACKED = ROOT / "benchmarks" / "results"
DRAWS, LEVEL = 20_000, 0.05
TITLES = {
    "wiki": "Wiki",
    "openmoji": "OpenMoji",
    "mfeat": "Mfeat (pix, fou)",
    "iapr-tc12": "IAPR TC-12 (German captions)",
}


def replaced(text: str, what: str, lines: list[str]) -> str:
    """Return the page with other lines between the marks of a part."""
    begin, end = f"<!-- {what}: benchmarks/quality/rlh_page.py -->", f"<!-- end of {what} -->"
    head, _, rest = text.partition(begin)
    return "\n".join([head + begin, "", *lines, ""]).rstrip("\n") + "\n\n" + end + rest.partition(end)[2]


def comparisons(study: Study) -> dict[tuple[int, str, str], tuple[float, float]]:
    """Return the difference RLH − AMSH and its p-value, corrected over the data set, by (bits, direction, database)."""
    differences = {}
    for bits in study.bits:
        seeds = sorted(set(study.of("RLH", bits)) & set(study.of("AMSH", bits)))
        for direction in study.directions:
            for database in study.databases:
                first, second = (study.per_query(row, bits, direction, database, seeds) for row in ("RLH", "AMSH"))
                if first is not None and second is not None:
                    differences[bits, direction, database] = first - second
    p_values = holm(randomisation_tests(list(differences.values()), draws=DRAWS))
    return {key: (float(np.nanmean(d)), p) for (key, d), p in zip(differences.items(), p_values, strict=True)}


def table(study: Study) -> list[str]:
    """Return the table of one data set: a row per length and direction."""
    tests = comparisons(study)
    lines = [
        f"### {TITLES[study.dataset]}",
        "",
        "| bits | direction | " + " | ".join(f"RLH, {kind} | AMSH, {kind} | gain" for kind in study.databases) + " |",
        "|---|---|" + "---|---|---|" * len(study.databases),
    ]
    for bits in study.bits:
        for direction in study.directions:
            row = [str(bits), direction]
            for database in study.databases:
                ours, amsh = (study.spread(label, bits, direction, database) for label in ("RLH", "AMSH"))
                difference, p = tests[bits, direction, database]
                mark = ("**" if difference > 0 else "_") if p < LEVEL else ""
                row += [f"{ours.mean:.3f} ± {ours.sd:.3f}", f"{amsh.mean:.3f} ± {amsh.sd:.3f}"]
                row += [f"{mark}{100 * difference:+.1f}{mark}"]
            lines.append("| " + " | ".join(row) + " |")
    ahead = sum(d > 0 and p < LEVEL for d, p in tests.values())
    behind = sum(d < 0 and p < LEVEL for d, p in tests.values())
    mean = 100 * np.mean([d for d, _ in tests.values()])
    lines += [
        "",
        f"Mean gain {mean:+.2f} points; significantly ahead in {ahead} of {len(tests)} cells, behind in {behind}.",
        "",
    ]
    return lines


def beside(study: Study, others: Study, database: str) -> tuple[list[str], str]:
    """Return a table of RLH beside every other method, and the cells in which RLH is first or second, as one line.

    A row says how far RLH is from the best of the others, and whether that is significant.
    """
    cells = [(bits, way) for bits in study.bits if bits in others.bits for way in study.directions]
    rows = [("RLH", study, ""), ("AMSH", study, ""), *((label, others, scenario) for label, scenario in others.rows)]
    means = {
        (label, scenario): [source.mean(label, *cell, database, scenario=scenario) for cell in cells]
        for label, source, scenario in rows
        if label != "RLH"
    }
    means = {row: values for row, values in means.items() if any(value is not None for value in values)}
    ours = [study.mean("RLH", *cell, database) or 0.0 for cell in cells]
    best = [max(means, key=lambda row, n=n: means[row][n] or 0.0) for n in range(len(cells))]
    differences = [_paired(study, others, cell, database, row) for cell, row in zip(cells, best, strict=True)]
    p_values = holm(randomisation_tests(differences, draws=DRAWS))
    lines = [
        f"**{TITLES[study.dataset]}**, {database}:",
        "",
        "| | " + " | ".join(f"{n} bits, {way}" for n, way in cells) + " |",
        "|---|" + "---|" * len(cells),
        "| RLH | " + " | ".join(f"{value:.3f}" for value in ours) + " |",
    ]
    for (label, scenario), values in means.items():
        name = f"{label}, paired" if scenario == "paired" else label
        lines.append(f"| {name} | " + " | ".join("–" if m is None else f"{m:.3f}" for m in values) + " |")
    gains, first, behind = [], 0, 0
    for n, (difference, p) in enumerate(zip(differences, p_values, strict=True)):
        gain, mark = ours[n] - (means[best[n]][n] or 0.0), ""
        if p < LEVEL:
            mark = "**" if np.nanmean(difference) > 0 else "_"
            behind += mark == "_"
        first += gain >= 0
        gains.append(f"{mark}{100 * gain:+.1f}{mark} {best[n][0]}")
    lines += ["| gain over the best other | " + " | ".join(gains) + " |", ""]
    count = f"{TITLES[study.dataset]}, {database}: first in {first} of {len(cells)} cells"
    return lines, f"{count}, significantly behind the best other in {behind}"


def _paired(study: Study, others: Study, cell: tuple[int, str], database: str, row: tuple[str, str]) -> Array:
    """Return RLH's average precision of every query less that of another method, over the seeds that both have."""
    source = study if row[0] == "AMSH" else others
    seeds = sorted(set(study.of("RLH", cell[0])) & set(source.of(row[0], cell[0])))
    first = study.per_query("RLH", *cell, database, seeds)
    second = source.per_query(row[0], *cell, database, seeds)
    assert first is not None
    assert second is not None
    return first - second


def choices() -> list[str]:
    """Return the mean gain over AMSH of each variant of the defaults, on folds of training items."""
    known = json.loads((PACKED / "rlh_choices.json").read_text(encoding="utf-8"))
    gains: dict[str, dict[str, list[float]]] = {}
    misplaced: dict[str, float] = {}
    for key, entry in known.items():
        where, _, variant = key.partition(" bits, ")
        where += " bits"
        if variant != "amsh":
            if where == "openmoji, fold 1, 64 bits":
                misplaced[variant] = entry["misplaced"]
            gain = np.mean(np.array(entry["map"]) - known[f"{where}, amsh"]["map"])
            gains.setdefault(variant, {}).setdefault(where.partition(",")[0], []).append(100 * float(gain))
    names = [name for name in TITLES if any(name in found for found in gains.values())]
    lines = [
        "| variant | " + " | ".join(TITLES[name] for name in names) + " | mean | misplaced on OpenMoji, 64 bits |",
        "|---|" + "---|" * (len(names) + 2),
    ]
    for variant in sorted(gains, key=lambda variant: variant != "default"):
        means = [float(np.mean(gains[variant][name])) for name in names]
        cells = [*(f"{mean:+.2f}" for mean in [*means, float(np.mean(means))]), f"{misplaced[variant]:.1%}"]
        lines.append(f"| {variant} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    results = Results(Path(sys.argv[1]) if len(sys.argv) > 1 else PACKED / "rlh.json.xz")
    studies = read_studies(results, load_grid(HERE / "rlh.toml"))
    lines = [line for study in studies.values() for line in table(study)]
    lines += ["### Beside every other method", ""]
    lines += [
        "Of the package, with default parameters, on the same queries and items; *paired* methods learn from the pairs "
        "that the others are not shown. One seed of theirs. What is not in a table is not measured yet. The last row: "
        "points by which RLH is ahead of "
        "the best other method, **bold** or _italic_ where that is significant (as above; the best is found on the "
        "same queries, which favours it).",
        "",
    ]
    others = read_studies(Results(PACKED / "every_method.json.xz"), load_grid(HERE / "every_method.toml"))
    tables, counts = [], []
    for name in [name for name in studies if name in others]:
        for database in studies[name].databases:
            rows, count = beside(studies[name], others[name], database)
            tables += rows
            counts.append(f"- {count}")
    lines += [*counts, "", *tables]
    text = replaced(PAGE.read_text(encoding="utf-8"), "choices", choices())
    PAGE.write_text(replaced(text, "tables", lines), encoding="utf-8")


if __name__ == "__main__":
    main()
