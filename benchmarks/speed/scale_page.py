"""The tables of docs/scale.md, and that of filters in docs/search-internals.md, from the result files.

python benchmarks/speed/scale_page.py            # writes them between their marks
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = ("scale.md", "search-internals.md")
FILTERS = (
    "label = topic 30",
    "label = topic 30 and not label = topic 1",
    "label = topic 150 and year < 2005",
    "label = topic 1",
    "not label = topic 1",
    "note = rare",
)


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    return content


def lines(heads: list[str], rows: list[list[str]], numbers_from: int = 1) -> str:
    rule = ["---" if place < numbers_from else "--:" for place in range(len(heads))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, rule, *rows))


def short(value: float) -> str:
    """A number with two digits that count, and whole above 100."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2g}"


def machine(content: dict[str, Any]) -> str:
    about = content["environment"]
    where = f"{about['processor']}, {about['cores']} cores"
    return f"{where}; commit {about['commit']}; {about['date'][:10]}; load {about['load']}."


def growth() -> str:
    content = read("growth")
    rows = [
        [
            f"{row['items']:,}",
            short(row["alone_processor_ms"]),
            short(row["alone_ms"]),
            short(row["batch_processor_ms_per_query"]),
            short(row["items"] * row["bytes_per_item"] / 1e9),
            short(row["items"] * row["peak_bytes_per_item"] / 1e9),
            short(row["fill_seconds"]),
        ]
        for row in content["rows"]
    ]
    heads = [
        "codes",
        "one query, processor ms",
        "on the clock, ms",
        "a query of 256 together, processor ms",
        "memory, GB",
        "at its highest, GB",
        "filled in, s",
    ]
    return f"{lines(heads, rows, numbers_from=0)}\n\n{machine(content)}"


def filters() -> str:
    content = read("filter_speed")
    sizes = sorted({row["items"] for row in content["rows"]})
    found = {(row["search"], row["items"]): row for row in content["rows"]}
    rows = []
    for size in sizes:
        for where in FILTERS:
            row = found[where, size]
            cells = [short(row[name]) for name in ("matching_ms", "first_ms", "again_ms")]
            rows.append([f"{size:,}", f"`{where}`", f"{row['passing']:,}", *cells])
    heads = ["items", "filter", "items that pass", "which pass, after a write", "first search", "next ones"]
    plain = "; ".join(f"{size:,}: {short(found['plain', size]['again_ms'])}" for size in sizes)
    return f"{lines(heads, rows, numbers_from=2)}\n\nWithout a filter: {plain}. {machine(content)}"


def opening() -> str:
    rows = [row for row in read("filter_speed")["rows"] if row["search"] == "plain"]
    return "; ".join(
        f"{short(row['index_from_store_ms'] / 1e3)} s of processor time for {row['items']:,} items" for row in rows
    )


def filled(page: str) -> str:
    """Return a page with its tables as the results have them."""
    for name, made in (("growth", growth), ("filters", filters), ("opening", opening)):
        pattern = rf"(<!-- {name}: benchmarks/speed/scale_page.py -->\n).*?(<!-- end of {name} -->)"
        if re.search(pattern, page, re.DOTALL):
            block = f"\n{made()}\n\n"
            page = re.sub(pattern, lambda match, block=block: match[1] + block + match[2], page, flags=re.DOTALL)
    return page


def main() -> None:
    for name in PAGES:
        path = ROOT / "docs" / name
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
