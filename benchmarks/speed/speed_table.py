"""One table of all speed measurements, from the result files; nothing is measured here.

    python benchmarks/speed/speed_table.py                  # print it, and write docs/speed.md
    python benchmarks/speed/speed_table.py --no-page        # only print it

A result file takes part if its rows have the form that :mod:`speed_rows` describes. Rows that miss their mark stay,
with what their note says.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from record import RESULTS

PAGE = Path(__file__).parents[2] / "docs" / "speed.md"
KEYS = {"row", "measure", "against", "ours", "theirs", "unit", "ratio", "reach", "met", "note"}
SECTIONS = {  # result file -> heading, in this order; others follow under their own names
    "training_speed": "Training",
    "transform_speed": "Hashing new items",
    "evaluation_speed": "Evaluation",
    "search_speed": "Exact search",
    "learned_speed": "Exact search among codes that many items share",
    "radius_speed": "Search within a radius",
    "duplicates_speed": "Near-duplicates",
    "import_speed": "Start",
}
HEAD = """# Speed

Made by `make bench` from `benchmarks/results/*.json`; how to read it, and what the floors are, is in
`benchmarks/README.md`. A ratio marked ≥ says how many times faster than the other side; one marked ≤ how many times
the floor. Both sides were timed in turn in one run. Rows without a mark are there to see the trend.

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


COLUMNS = ["measure", "against", "ours", "theirs", "ratio", "mark", "met"]


def as_text(results: dict[str, dict[str, Any]]) -> str:
    """The table for a terminal."""
    lines = [COLUMNS, *(cells(line) for content in results.values() for line in content["rows"])]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def as_page(results: dict[str, dict[str, Any]]) -> str:
    """The page of the documentation."""
    parts = [HEAD]
    for name, content in results.items():
        parts.append(f"## {SECTIONS.get(name, name)}\n\n")
        parts.append(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n")
        parts += [f"| {' | '.join(cells(line))} |\n" for line in content["rows"]]
        missed = [line for line in content["rows"] if not line["met"]]
        parts += [f"\nMissed: {line['measure']}: {line['note']}.\n" for line in missed]
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-page", action="store_true", help="leave docs/speed.md as it is")
    args = parser.parse_args()
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
    if not args.no_page:
        PAGE.write_text(as_page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
