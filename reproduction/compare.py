"""Compare the numbers of two reports, table by table: ``python -m reproduction.compare OLD.md NEW.md``.

Tables are matched by their title, or else by their columns and rows; cells by row and column. Seconds are left out, as
they depend on the machine. Says how many numbers agree, the largest difference, and every cell that differs.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import takewhile
from pathlib import Path

NUMBER = re.compile(r"[−-]?\d[\d,]*(?:\.\d+)?")
SECONDS = re.compile(r"seconds|times AMSH|Training time")


@dataclass(frozen=True)
class ReportTable:
    """A table of a report: its cells by row and column."""

    title: str
    columns: tuple[str, ...]
    cells: dict[tuple[str, str], str]

    @property
    def shape(self) -> tuple[object, ...]:
        """Columns and rows, without the content of cells."""
        return self.columns, tuple(self.cells)


def read_tables(text: str) -> Iterator[ReportTable]:
    """Iterate over the tables of a Markdown report."""
    title, lines = "", text.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("**") and line.rstrip().endswith("**"):
            title = line.strip("* ")
        if not line.startswith("|") or (number and lines[number - 1].startswith("|")):
            continue
        table = takewhile(lambda row: row.startswith("|"), lines[number:])
        rows = [[cell.strip() for cell in row.strip().strip("|").split(" | ")] for row in table]
        head, body = rows[0], rows[2:]
        cells: dict[tuple[str, str], str] = {}
        for row in body:
            claims = head[0] == "the paper says"  # a claim and a data set name a row together
            label, values, names = (" · ".join(row[:2]), row[2:], head[2:]) if claims else (row[0], row[1:], head[1:])
            cells |= {(label, name): value for name, value in zip(names, values, strict=True)}
        yield ReportTable(title, tuple(head), cells)


@dataclass
class Difference:
    """Differences of two reports."""

    numbers: int = 0
    """Numbers in both."""
    equal: int = 0
    largest: float = 0.0
    """Among numbers that both have in the same cell."""
    cells: int = 0
    lines: tuple[str, ...] = ()
    """Every cell, table or row that differs."""


def compare(old: str, new: str) -> Difference:
    """Compare two reports, given as Markdown."""
    theirs = list(read_tables(new))
    found = Difference()
    lines: list[str] = []
    for table in read_tables(old):
        if SECONDS.search(table.title):
            continue
        match = _match(table, theirs)
        if match is None:
            lines.append(f"only in the old report: {table.title}")
            continue
        for key, before in table.cells.items():
            after = match.cells.get(key)
            where = f"{table.title} | {key[0]} | {key[1]}"
            if after is None:
                lines.append(f"only in the old report: {where}")
                continue
            first, second = ([_number(x) for x in NUMBER.findall(cell)] for cell in (before, after))
            found.cells += 1
            if len(first) == len(second):
                found.numbers += len(first)
                found.equal += sum(a == b for a, b in zip(first, second, strict=True))
                found.largest = max([found.largest, *(abs(a - b) for a, b in zip(first, second, strict=True))])
            if before != after:
                lines.append(f"{where}: {before} → {after}")
    found.lines = tuple(lines)
    return found


def _match(table: ReportTable, others: list[ReportTable]) -> ReportTable | None:
    """Return the table with the same title; or the one with the same columns and rows whose title is the nearest."""
    same = [other for other in others if other.title == table.title or other.shape == table.shape]
    return max(same, key=lambda other: SequenceMatcher(None, other.title, table.title).ratio(), default=None)


def _number(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))


def main() -> int:
    """Compare two files; the exit code is 1 where a number differs by more than the tolerance."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--tolerance", type=float, default=0.0, help="largest difference that counts as agreement")
    parser.add_argument("--lines", type=int, default=40, help="how many differences are shown")
    options = parser.parse_args()
    found = compare(*(path.read_text(encoding="utf-8") for path in (options.old, options.new)))
    print(*found.lines[: options.lines], sep="\n")
    if len(found.lines) > options.lines:
        print(f"… and {len(found.lines) - options.lines} more")
    print(
        f"{found.cells} cells and {found.numbers} numbers in both; {found.equal} numbers are equal, "
        f"the largest difference is {found.largest:g}; {len(found.lines)} cells, rows or tables differ in any way"
    )
    return 1 if found.largest > options.tolerance or not found.numbers else 0


if __name__ == "__main__":
    sys.exit(main())
