"""The table of ``SECURITY.md``, made of the results of the campaign."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- fuzz: written by benchmarks/robustness/fuzz.py --write -->", "<!-- end of fuzz -->"
PAGE = Path(__file__).parents[3] / "SECURITY.md"
BROKEN = ("broken", "too slow", "too large", "elsewhere")
CONTAINED = ("worker crashed, contained", "worker hung, contained")


def with_table(page: str, content: Mapping[str, Any]) -> str:
    """Return the page with the table of these results between its two marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{table(content)}\n{END}{rest.partition(END)[2]}"


def summary(content: Mapping[str, Any]) -> str:
    """Return how much was tried and what was found, in a sentence or two."""
    rows = content["rows"]
    n_inputs, n_failures = (
        sum(values) for values in zip(*((row["inputs"], len(row["failures"])) for row in rows), strict=True)
    )
    text = (
        f"{n_inputs:,} inputs on {len(rows)} targets; distinct ways in which they broke a promise: {n_failures}, "
        f"of which {len(content['still broken'])} are left."
    )
    if before := content.get("before"):
        text += (
            f" On the state before, {before['inputs']:,} inputs on {before['targets']} of them found "
            f"{len(before['failures'])}, of which {len(before['still broken'])} are left."
        )
    return text


def table(content: Mapping[str, Any]) -> str:
    """Return what was tried, a row per target."""
    rows = content["rows"]
    lines = [
        summary(content),
        "",
        "| what was mutated | inputs | taken | refused | crash or hang, contained | broke a promise | arcs |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        counts = row["outcomes"]
        broken, contained = (sum(counts.get(name, 0) for name in names) for names in (BROKEN, CONTAINED))
        refused = counts.get("refused", 0)
        taken = row["inputs"] - refused - broken - contained
        told = f"{contained:,}" if row["room"] == "foreign" else ""
        defects = f"{broken:,} ({len(row['failures'])})" if broken else "0"
        lines.append(
            f"| {row['what']} | {row['inputs']:,} | {taken:,} | {refused:,} | {told} | {defects} | {row['arcs']:,} |"
        )
    return "\n".join(lines)
