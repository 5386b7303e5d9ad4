"""Rows of the speed table: both sides of a ratio are timed in turn, and each row says whether its mark is reached.

A row has an id, what was measured and against what, both numbers in one unit, their ratio written so that the mark
can be read off it, the mark as text (``>= 10 x``, ``<= 1.6 x``, ``<= 0.35 s``), whether it is met, and a note.
:mod:`speed_table` puts the rows of all result files together.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

ROWS_FILE = "MODALHASH_SPEED_ROWS"
"""Environment variable: a file to which rows are added as JSON when they are shown, for whoever runs the scripts."""
MARK = re.compile(r"(>=|<=) ([\d.]+)( x| s)?$")


class Run(NamedTuple):
    """One run: seconds on the clock, processor seconds of all threads."""

    seconds: float
    processor: float


def timed(work: Callable[[], Any]) -> tuple[Run, Any]:
    clock, processor = time.perf_counter(), time.process_time()
    value = work()
    return Run(time.perf_counter() - clock, time.process_time() - processor), value


def in_turn(works: Mapping[str, Callable[[], Any]], repeat: int) -> dict[str, list[Run]]:
    """Each work ``repeat`` times, one after the other, so that a busy minute of the machine falls on all alike."""
    runs: dict[str, list[Run]] = {name: [] for name in works}
    for _ in range(repeat):
        for name, work in works.items():
            runs[name].append(timed(work)[0])
    return runs


def peak_megabytes(work: Callable[[], Any]) -> tuple[float, Any]:
    """Memory that some work takes at its peak, beside what there is already; and its value. Linux only."""
    ctypes.CDLL(None).malloc_trim(0)  # freed memory that the allocator keeps would hide what is taken
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = _resident("VmRSS")
    value = work()
    return _resident("VmHWM") - before, value


def _resident(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024 / 1e6


def best(runs: list[Run]) -> float:
    """Shortest time on the clock: what the machine can do when nobody disturbs it."""
    return min(run.seconds for run in runs)


def middle(runs: list[Run]) -> float:
    """Median time on the clock: what one may expect, also where others disturb the machine now and then."""
    return median(run.seconds for run in runs)


def spread(runs: list[Run]) -> str:
    """How far runs lie apart, for a note: the least and the greatest time, and how many there are."""
    seconds = [run.seconds for run in runs]
    return f"{min(seconds):.3g} to {max(seconds):.3g} s in {len(runs)} runs"


def ratio_spread(ours: list[Run], theirs: list[Run], scale: float = 1.0) -> str:
    """The least and the greatest ratio of two works that took turns, pair by pair, for a note.

    ``scale`` is how many times as much ours did in one turn.
    """
    ratios = [scale * their.seconds / our.seconds for our, their in zip(ours, theirs, strict=True)]
    return f"median of {len(ratios)} in turn; ratios of single turns {min(ratios):.3g} to {max(ratios):.3g}"


def reached(value: float, mark: str) -> bool:
    """Whether a value reaches a mark such as ``>= 2.5 x``; a mark of ``-`` is always reached."""
    if mark == "-":
        return True
    found = MARK.match(mark)
    if found is None:
        raise ValueError(f"mark is {mark!r}; expected e.g. '>= 2.5 x', '<= 0.35 s' or '-'")
    return value >= float(found[2]) if found[1] == ">=" else value <= float(found[2])


def row(
    name: str,
    measure: str,
    *,
    against: str,
    ours: float,
    theirs: float | None,
    mark: str,
    unit: str = "s",
    note: str = "",
) -> dict[str, Any]:
    """A row. The ratio is theirs / ours where the mark asks for at least so much, ours / theirs where for at most."""
    ratio = None
    if theirs is not None:
        ratio = ours / theirs if mark.startswith("<=") else theirs / ours
    return {
        "row": name,
        "measure": measure,
        "against": against,
        "ours": rounded(ours),
        "theirs": None if theirs is None else rounded(theirs),
        "unit": unit,
        "ratio": None if ratio is None else rounded(ratio),
        "reach": mark,
        "met": reached(ours if ratio is None else ratio, mark),
        "note": f"{note}; load {os.getloadavg()[0]:.1f}" if note else f"load {os.getloadavg()[0]:.1f}",
    }


def rounded(value: float) -> float:
    """Four digits."""
    return float(f"{value:.4g}")


def show(line: Mapping[str, Any]) -> None:
    """Print a row as it is made, and add it to the file that the environment names."""
    if path := os.environ.get(ROWS_FILE):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    theirs = "" if line["theirs"] is None else f" against {line['theirs']:g} {line['unit']} ({line['against']})"
    ratio = "" if line["ratio"] is None else f", ratio {line['ratio']:g}"
    verdict = "reached" if line["met"] else "MISSED"
    print(f"{line['row']}: {line['ours']:g} {line['unit']}{theirs}{ratio}; {line['reach']} {verdict}; {line['note']}")
