"""All speed benchmarks one after the other, within a time that is known before; what ``make bench`` calls.

    python benchmarks/speed/run.py            # at most 20 minutes; result files, the table, the page and its figures
    python benchmarks/speed/run.py --quick    # at most 5 minutes on smaller data; prints ratios, writes nothing

Each script has a budget, and is ended when that is used up: the machine is then too busy, or the script too slow. Its
former results stay, with their date and commit, the others are measured all the same, and the command fails at the end.
What takes longer (learned codes, near-duplicates, growth to 100 million codes, filters, PostgreSQL, Dask) is measured
by itself, and the table takes it from the result files: see benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import history
from speed_rows import ROWS_FILE
from speed_table import as_text, load, update

HERE = Path(__file__).parent
TOTAL, QUICK_TOTAL = 20 * 60, 5 * 60


class Script(NamedTuple):
    """A benchmark, the seconds that it may take, and those of its quick form; 0 leaves it out of one of them."""

    name: str
    seconds: int
    quick_seconds: int
    args: tuple[str, ...] = ()


SCRIPTS = (
    Script("import_speed", 45, 15),
    Script("start_speed", 0, 40),
    Script("search_speed", 240, 40),
    Script("search_speed", 140, 0, ("--avx2",)),
    Script("learned_speed", 0, 40),
    Script("image_encoder_speed", 35, 35),
    Script("transform_speed", 70, 30, ("--repeat", "3")),
    Script("evaluation_speed", 100, 30),
    Script("training_speed", 385, 60),
    Script("serve_load", 144, 0),
)
"""Their budgets add up to less than the whole; a test checks that."""


def run(script: Script, *, quick: bool, rows_file: Path | None = None) -> str | None:
    """Run one benchmark; return what went wrong, or None."""
    command = [sys.executable, str(HERE / f"{script.name}.py"), *(("--quick",) if quick else script.args)]
    budget = script.quick_seconds if quick else script.seconds
    kept = "the rows that it had are in the table" if quick else "its former results stay"
    environment = {**os.environ, **({ROWS_FILE: str(rows_file)} if rows_file else {})}
    # a group of its own, so that processes which the script started end with it
    with subprocess.Popen(command, env=environment, start_new_session=True) as process:
        try:
            code = process.wait(timeout=budget)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                return f"{script.name}: not done in {budget} s; {kept}"
            raise
    return f"{script.name}: ended with {code}; {kept}" if code else None


def run_all(scripts: tuple[Script, ...], *, quick: bool, rows_file: Path | None = None) -> list[str]:
    """Run benchmarks, say how far they are, and return what went wrong."""
    problems: list[str] = []
    budgets = [script.quick_seconds if quick else script.seconds for script in scripts]
    begin = time.monotonic()
    for place, (script, budget) in enumerate(zip(scripts, budgets, strict=True)):
        passed, left = time.monotonic() - begin, sum(budgets[place:])
        print(f"== {script.name} ({place + 1} of {len(scripts)}): at most {budget} s; {passed:.0f} s passed, "
              f"at most {left} s left in all", flush=True)  # fmt: skip
        problem = run(script, quick=quick, rows_file=rows_file)
        if problem:
            problems.append(problem)
            print(problem, flush=True)
    return problems


def rows_in(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller data; print the ratios and write nothing")
    parser.add_argument("--only", nargs="+", choices=[script.name for script in SCRIPTS], help="these alone")
    args = parser.parse_args()
    chosen = tuple(
        script
        for script in SCRIPTS
        if (script.quick_seconds if args.quick else script.seconds) and (not args.only or script.name in args.only)
    )
    if args.quick:
        with tempfile.TemporaryDirectory() as scratch:
            rows_file = Path(scratch) / "rows.jsonl"
            problems = run_all(chosen, quick=True, rows_file=rows_file)
            rows = [line for line in rows_in(rows_file) if line["ratio"] is not None or line["reach"] != "-"]
        print("\nOn smaller data than that of the marks, which are there to compare with:\n")
        print(as_text({"quick": {"rows": rows}}))
    else:
        problems = run_all(chosen, quick=False)
        update()
        history.add(load())
        print("\n".join(history.slower(history.read())))
    if problems:
        raise SystemExit("\n".join(problems))


if __name__ == "__main__":
    main()
