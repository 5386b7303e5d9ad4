"""How long the package and its help page take to load, and a search in a fresh process.

    python benchmarks/speed/import_speed.py [--quick]

Each command runs in processes of its own, start of the interpreter included, and the shortest counts. They have one
thread: processor seconds are what the clock shows on a quiet machine, and they decide; the clock is in the note.
All files have been read once before. A single search is done by numpy, or by compiled code, for which numba is loaded
and finds its machine code on disk, or compiles it where the cache is empty.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from pathlib import Path

from record import AS_INSTALLED, write
from speed_rows import Run, row, show, timed

FIRST_SEARCH = """
import numpy as np
from modalhash import HammingIndex
index = HammingIndex(64, compiled=False)
index.add(np.arange(100), np.zeros((100, 8), np.uint8))
index.search(np.zeros((1, 8), np.uint8), k=3)
"""
WITH_NUMBA = FIRST_SEARCH.replace(", compiled=False", "")
COMMANDS = {
    "import": ("import modalhash", [sys.executable, "-c", "import modalhash"], "<= 0.35 s"),
    "help": ("modalhash --help", [str(Path(sys.executable).with_name("modalhash")), "--help"], "<= 0.5 s"),
    "first-search": ("first search of a process", [sys.executable, "-c", FIRST_SEARCH], "-"),
    "first-kernels": (
        "first search of a process that loads numba and finds its cache",
        [sys.executable, "-c", WITH_NUMBA],
        "-",
    ),
}


def run(command: list[str]) -> Run:
    """Clock and processor seconds of a process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    clock, _ = timed(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=AS_INSTALLED))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Run(clock.seconds, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="three runs each; write nothing")
    args = parser.parse_args()
    repeat = 3 if args.quick else args.repeat
    for _, command, _ in COMMANDS.values():
        run(command)
    runs = {name: [run(command) for _ in range(repeat)] for name, (_, command, _) in COMMANDS.items()}
    rows = []
    for name, (measure, _, mark) in COMMANDS.items():
        clock = min(each.seconds for each in runs[name])
        rows.append(
            row(
                name,
                measure,
                against="",
                ours=min(each.processor for each in runs[name]),
                theirs=None,
                mark=mark,
                note=f"processor seconds, best of {repeat}; {clock:.2f} s on the clock",
            )
        )
        show(rows[-1])
    if not args.quick:
        write("import_speed", rows)


if __name__ == "__main__":
    main()
