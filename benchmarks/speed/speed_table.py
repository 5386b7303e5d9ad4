"""One table of all speed measurements, from the result files; nothing is measured here.

    python benchmarks/speed/speed_table.py                  # print it, write the page and its figures
    python benchmarks/speed/speed_table.py --no-page        # only print it

A result file takes part if its rows have the form that :mod:`speed_rows` describes. Rows that miss their mark come
first, with what their note says, and stand in the table of their section too.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import speed_figures as figures
from record import RESULTS

PAGE = Path(__file__).parents[2] / "docs" / "measurements" / "speed.md"
FIGURES = PAGE.parent / "images"
KEYS = {"row", "measure", "against", "ours", "theirs", "unit", "ratio", "reach", "met", "note"}
SECTIONS = {  # result file -> heading, in this order; others follow under their own names
    "training_speed": "Training",
    "rlh_speed": "Training RLH",
    "transform_speed": "Hashing new items",
    "image_encoder_speed": "Encoding photos",
    "evaluation_speed": "Evaluation",
    "search_speed": "Exact search",
    "search_speed_avx2": "Exact search without AVX-512",
    "learned_speed": "Exact search among codes that many items share",
    "growth_faiss": "Growth with the number of codes",
    "duplicates_speed": "Near-duplicates",
    "import_speed": "Start",
    "start_speed": "Start of a large engine",
    "serve_load": "The service",
}
HEAD = """# Speed

`make bench` measures all of this in at most 20 minutes and makes this page from `benchmarks/results/*.json`;
`benchmarks/README.md` says how to read it and what the floors are. A ratio marked ≥ says how many times faster than the
other side; one marked ≤ how many times the floor. Both sides took turns in one run. Rows without a mark show the trend.
The notes under each table give the commit and the date of its measurement, since some take too long for every run.

"""


def load(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """The result files that have such rows, by name, in the order of the sections."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text())
        rows = content.get("rows") if isinstance(content, dict) else None
        if rows and all(isinstance(each, dict) and set(each) >= KEYS for each in rows):
            found[path.stem] = content
    order = list(SECTIONS)
    return dict(sorted(found.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))


def check(results: dict[str, dict[str, Any]]) -> None:
    """Refuse two rows with the same id."""
    names = [line["row"] for content in results.values() for line in content["rows"]]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"rows with the same id: {', '.join(twice)}; expected each once")


def cells(line: dict[str, Any]) -> list[str]:
    """Measure, against, ours, theirs, ratio, mark, whether it is met."""
    unit = line["unit"]
    theirs = "" if line["theirs"] is None else f"{digits(line['theirs'])} {unit}"
    ratio = "" if line["ratio"] is None else digits(line["ratio"])
    mark = "" if line["reach"] == "-" else line["reach"].replace(">=", "≥").replace("<=", "≤").replace(" x", " ×")
    met = "" if not mark else "yes" if line["met"] else "**no**"
    return [line["measure"], line["against"], f"{digits(line['ours'])} {unit}", theirs, ratio, mark, met]


def digits(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


NO_BREAK = "\N{NO-BREAK SPACE}"
COLUMNS = ["measure", "against", "ours", "theirs", "ratio", "mark", "met"]


def as_text(results: dict[str, dict[str, Any]]) -> str:
    """The table for a terminal."""
    lines = [COLUMNS, *(cells(line) for content in results.values() for line in content["rows"])]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def table(rows: list[dict[str, Any]]) -> str:
    """A table in Markdown, in which a number stays with its unit."""
    head = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"
    lines = [[*own[:2], *(cell.replace(" ", NO_BREAK) for cell in own[2:])] for own in map(cells, rows)]
    return head + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def as_page(results: dict[str, dict[str, Any]]) -> str:
    """The page of the documentation: what missed its mark, the figures, and a section for each result file."""
    rows = [line for content in results.values() for line in content["rows"]]
    marked = [line for line in rows if line["reach"] != "-"]
    missed = [line for line in marked if not line["met"]]
    parts = [HEAD, "## Marks that were missed\n\n"]
    if missed:
        parts.append(f"{len(missed)} of {len(marked)} marks were missed; all others were reached.\n\n{table(missed)}\n")
        parts += [f"- {line['measure']}: {line['note']}\n" for line in missed]
    else:
        parts.append(f"None: all {len(marked)} were reached.\n")
    parts.append("\n")
    parts += [f"![{alt}](images/{name})\n\n" for name, alt in figures.captions(results).items()]
    for name, content in results.items():
        parts.append(f"## {SECTIONS.get(name, name)}\n\n{table(content['rows'])}")
        parts.append(f"\nNotes: {machine(content['environment'])}\n\n")
        parts += [f"- {line['measure']}: {line['note']}\n" for line in content["rows"]]
        parts.append("\n")
    return "".join(parts).rstrip() + "\n"


def machine(environment: dict[str, Any]) -> str:
    """What measured, in a line."""
    versions = ", ".join(f"{name} {number}" for name, number in environment["versions"].items())
    facts = [f"{environment['processor']}, {environment['cores']} cores", f"Python {environment['python']}", versions]
    for key, word in (("commit", "commit"), ("date", "on"), ("load", "load")):
        if environment.get(key) not in (None, ""):
            facts.append(f"{word} {environment[key]}")
    return "; ".join(facts) + "."


def update(*, page: bool = True) -> None:
    """Print the table of all result files, and write the page and its figures."""
    results = load()
    if not results:
        raise SystemExit("no results yet: run the benchmarks first (make bench)")
    check(results)
    print(as_text(results))
    rows = [line for content in results.values() for line in content["rows"]]
    marked = [line for line in rows if line["reach"] != "-"]
    print(f"\n{sum(line['met'] for line in marked)} of {len(marked)} marks reached; {len(rows)} rows")
    for line in marked:
        if not line["met"]:
            print(f"missed: {line['measure']}: {line['note']}")
    if page:
        FIGURES.mkdir(parents=True, exist_ok=True)
        for name, drawing in figures.draw(results).items():
            (FIGURES / name).write_bytes(drawing)
        PAGE.write_text(as_page(results), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-page", action="store_true", help="leave the page and its figures as they are")
    args = parser.parse_args()
    update(page=not args.no_page)


if __name__ == "__main__":
    main()
