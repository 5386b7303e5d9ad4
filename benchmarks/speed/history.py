"""The history of speed measurements, and what became slower.

    python benchmarks/speed/history.py            # name rows that are slower than before by more than 15 %

``make bench`` adds what it measured to ``benchmarks/results/history.jsonl``, one line for each result file and date,
and names such rows. A row is compared with the median of its last five measurements on the same processor, by its
ratio if it has one, because both sides of a ratio suffer alike from a busy machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from record import RESULTS

HISTORY = RESULTS / "history.jsonl"
TOLERANCE = 0.15
LAST = 5

Entry = dict[str, Any]


def goodness(row: Entry) -> float:
    """Return how good a row is as a positive number, twice as much for twice as fast or half as large."""
    if row["ratio"] is not None:
        return 1 / row["ratio"] if row["reach"].startswith("<=") else float(row["ratio"])
    return float(row["ours"]) if row["unit"].endswith("/s") else 1 / max(row["ours"], 1e-12)


def entry(name: str, content: Entry) -> Entry:
    """Return what the history keeps of a result file."""
    machine = content["environment"]
    return {
        "benchmark": name,
        "date": machine["date"],
        "commit": machine["commit"],
        "processor": f"{machine['processor']}, {machine['cores']} cores",
        "rows": {row["row"]: float(f"{goodness(row):.4g}") for row in content["rows"]},
    }


def read(path: Path = HISTORY) -> list[Entry]:
    if not path.exists():
        return []
    return sorted(map(json.loads, path.read_text(encoding="utf-8").splitlines()), key=lambda one: one["date"])


def add(results: dict[str, Entry], path: Path = HISTORY) -> None:
    """Add result files that the history does not have yet."""
    entries = read(path)
    known = {(one["benchmark"], one["date"]) for one in entries}
    new = [entry(name, content) for name, content in results.items()]
    entries += [one for one in new if (one["benchmark"], one["date"]) not in known]
    entries.sort(key=lambda one: (one["date"], one["benchmark"]))
    path.write_text("".join(json.dumps(one) + "\n" for one in entries), encoding="utf-8")


def slower(entries: Iterable[Entry]) -> list[str]:
    """Name the rows whose last measurement is worse than the median of those before by more than ``TOLERANCE``."""
    series: dict[str, list[tuple[Entry, float]]] = {}
    for one in entries:
        for row, value in one["rows"].items():
            series.setdefault(row, []).append((one, value))
    found = []
    for row, values in series.items():
        last, _ = values[-1]
        *before, (_, value) = (pair for pair in values if pair[0]["processor"] == last["processor"])
        usual = median(value for _, value in before[-LAST:]) if before else value
        if value < usual * (1 - TOLERANCE):
            figures = f"{value:.3g} where {usual:.3g} was usual: {1 - value / usual:.0%} slower"
            measured = f"commit {last['commit']}, {len(before)} measurements before"
            found.append(f"{last['benchmark']}: {row} has {figures} ({measured})")
    return found


def main() -> None:
    found = slower(read())
    print("\n".join(found) or f"nothing is slower than before by more than {TOLERANCE:.0%}")
    raise SystemExit(bool(found))


if __name__ == "__main__":
    main()
