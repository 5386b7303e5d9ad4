"""The tables of docs/rlh.md, made from results: RLH beside AMSH, with significance, and beside the unpaired methods.

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

from modalhash.evaluation import holm, randomisation_tests
from modalhash.experiments import Results, Study, load_grid, read_studies

ROOT = Path(__file__).parents[2]
HERE, PAGE = Path(__file__).parent, ROOT / "docs" / "rlh.md"
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


def beside(study: Study, others: Study, database: str) -> list[str]:
    """Return the mAP of RLH beside all methods that need no pairs, where these were measured."""
    bits = [n for n in study.bits if n in others.bits]
    lines = [
        f"**{TITLES[study.dataset]}**, {database}:",
        "",
        "| | " + " | ".join(f"{n} bits, {way}" for n in bits for way in study.directions) + " |",
        "|---|" + "---|" * (len(bits) * len(study.directions)),
    ]
    rows = [("RLH", study, "")]
    rows += [(label, others, kind) for label, kind in others.rows if kind == "unpaired" and "Oracle" not in label]
    for label, source, scenario in rows:
        means = [source.mean(label, n, way, database, scenario=scenario) for n in bits for way in study.directions]
        lines.append(f"| {label} | " + " | ".join("–" if m is None else f"{m:.3f}" for m in means) + " |")
    return [*lines, ""]


def choices() -> list[str]:
    """Return the mean gain over AMSH of each variant of the defaults, on folds of training items."""
    known = json.loads((PACKED / "rlh_choices.json").read_text(encoding="utf-8"))
    gains: dict[str, dict[str, list[float]]] = {}
    for key, entry in known.items():
        where, _, variant = key.partition(" bits, ")
        where += " bits"
        if variant != "amsh":
            gain = np.mean(np.array(entry["map"]) - known[f"{where}, amsh"]["map"])
            gains.setdefault(variant, {}).setdefault(where.partition(",")[0], []).append(100 * float(gain))
    names = [name for name in TITLES if any(name in found for found in gains.values())]
    lines = [
        "| variant | " + " | ".join(TITLES[name] for name in names) + " | mean |",
        "|---|" + "---|" * (len(names) + 1),
    ]
    for variant in sorted(gains, key=lambda variant: variant != "default"):
        means = [float(np.mean(gains[variant][name])) for name in names]
        lines.append(f"| {variant} | " + " | ".join(f"{mean:+.2f}" for mean in [*means, float(np.mean(means))]) + " |")
    return lines


def main() -> None:
    results = Results(Path(sys.argv[1]) if len(sys.argv) > 1 else PACKED / "rlh.json.xz")
    studies = read_studies(results, load_grid(HERE / "rlh.toml"))
    lines = [line for study in studies.values() for line in table(study)]
    other = read_studies(Results(PACKED / "unpaired.json.xz"), load_grid(HERE / "unpaired.toml"))
    lines += ["### Beside the other methods without pairs", ""]
    lines += [
        "Theirs are means of three seeds (`benchmarks/quality/unpaired.toml`), where unseen items were not measured.",
        "",
    ]
    for name in [name for name in studies if name in other]:
        for database in other[name].databases:
            lines += beside(studies[name], other[name], database)
    text = replaced(PAGE.read_text(encoding="utf-8"), "choices", choices())
    PAGE.write_text(replaced(text, "tables", lines), encoding="utf-8")


if __name__ == "__main__":
    main()
