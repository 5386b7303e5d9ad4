"""How long a large engine takes to open and to answer its first query, in a fresh process.

    python benchmarks/speed/start_speed.py [--quick]

An engine is trained on a few texts, and its store is filled with items of random codes and vectors: no two codes are
equal, which is the most there can be to read. A first process opens it without a snapshot, from the store alone, and
writes the snapshot when it closes the engine; later ones open it by that. Times are on the clock, from the call of
``Engine.open`` and thus with everything that it imports, and the shortest counts; processor seconds are in the note.
Files have been read once before: what is measured is not the disk. The first search is also measured in processes that
load the compiled kernels for it, from numba's cache and once with an empty one. Memory is that of two processes that
have the engine open at once.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from modalhash import Engine
from record import AS_INSTALLED, write
from speed_rows import row, show

START = """
import sys, time
begin = time.perf_counter()
import json
from modalhash import Engine
loaded = time.perf_counter()
engine = Engine.open(sys.argv[1], read_only=sys.argv[2] == "read", compiled=sys.argv[3] == "kernels")
opened = time.perf_counter()
hits = engine.search(text="red boat", k=10)
first = time.perf_counter()
processor = time.process_time()
engine.search(text="blue house", k=10)
second = time.perf_counter()
memory = {}
if sys.argv[3] == "wait":
    print("ready", flush=True)
    sys.stdin.readline()
    for line in open("/proc/self/smaps_rollup"):
        name, _, value = line.partition(":")
        if name in ("Rss", "Pss", "Private_Dirty"):
            memory[name] = int(value.split()[0]) / 1024
engine.close()
closed = time.perf_counter()
print(json.dumps({
    "import": loaded - begin, "open": opened - loaded, "first": first - loaded, "whole": first - begin,
    "search": first - opened, "second": second - first, "close": closed - second, "processor": processor,
    "memory": memory, "hits": [[hit.id, hit.distance] for hit in hits],
}))
"""
FILL = """
WITH RECURSIVE row (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM row WHERE number < :n)
INSERT INTO item (modality, id, code, kind, refinement)
SELECT 1, 'made ' || number, randomblob(8), 'hashed', randomblob(:width) FROM row
"""
KNOWN = "UPDATE meta SET value = (SELECT max(number) FROM item) WHERE key = 'words'"


def make_engine(folder: Path, n: int) -> None:
    """An engine of ``n`` items and a few that it was trained on."""
    pairs = list(itertools.product(("red", "blue", "green", "white"), ("boat", "house", "tree", "car")))
    items = [
        {"id": f"{i}", "text": f"a {colour} {thing} {i}", "labels": [colour, thing]}
        for i, (colour, thing) in enumerate(pairs * 25)
    ]
    with Engine.train(items, folder, n_bits=64) as engine:
        width = engine.refinement.width("text")
    with sqlite3.connect(folder / "items.sqlite") as connection:  # the store's own way takes minutes for millions
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(FILL, {"n": n, "width": width})
        connection.execute(KNOWN)  # else the first to open it would first read all ids for their words
    connection.close()


def start(folder: Path, mode: str = "read", how: str = "go", **variables: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", START, str(folder), mode, how],
        check=True,
        capture_output=True,
        text=True,
        env=AS_INSTALLED | variables,
    )
    return json.loads(done.stdout)


def memory_of_two(folder: Path) -> list[dict]:
    """What two processes take that have the engine open at once, in MiB."""
    command = [sys.executable, "-c", START, str(folder), "read", "wait"]
    both = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=AS_INSTALLED)
        for _ in range(2)
    ]
    for process in both:
        process.stdout.readline()
    for process in both:
        process.stdin.write("\n")
        process.stdin.flush()
    return [json.loads(process.communicate()[0])["memory"] for process in both]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=10_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a million items, three runs; write nothing")
    parser.add_argument("--folder", type=Path, help="where to make the engine, or has it; a temporary one by default")
    args = parser.parse_args()
    n, repeat = (1_000_000, 3) if args.quick else (args.items, args.repeat)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.folder or Path(temporary)) / "engine"
        begin = time.perf_counter()
        if not folder.exists():
            make_engine(folder, n)
            print(f"made in {time.perf_counter() - begin:.0f} s", flush=True)
        (folder / "index.snapshot").unlink(missing_ok=True)
        without = start(folder, "write")
        print(f"without a snapshot: {without}", flush=True)
        size = (folder / "index.snapshot").stat()
        both = [(start(folder), start(folder, how="kernels")) for _ in range(repeat)]
        runs, compiled = (list(one) for one in zip(*both, strict=True))
        cold = start(folder, how="kernels", NUMBA_CACHE_DIR=temporary)
        memory = memory_of_two(folder)
    assert all(run["hits"] == without["hits"] for run in (*runs, *compiled, cold))
    searches = [min(run["search"] for run in some) for some in (runs, compiled)]
    ratios = sorted(theirs["search"] / ours["search"] for ours, theirs in both)
    millions = f"{n / 1e6:g}M items"
    best = {
        name: min(run[name] for run in runs) for name in ("import", "open", "first", "whole", "processor", "second")
    }
    told = f"snapshot {512 * size.st_blocks / 1e6:,.0f} MB on disk, written in {without['close']:.1f} s"
    rows = [
        row(
            "start-open", f"an engine of {millions} opens", against="without a snapshot", ours=best["open"],
            theirs=without["open"], mark="-", note=f"best of {repeat}, files in memory; {told}",
        ),
        row(
            "start-open-seconds", f"an engine of {millions} opens by its snapshot", against="", ours=best["open"],
            theirs=None, mark="<= 1 s", note="from Engine.open on, with what it imports",
        ),
        row(
            "start-first", f"first answer of an engine of {millions}", against="", ours=best["first"], theirs=None,
            mark="<= 1.5 s",
            note=f"from Engine.open on; whole process {best['whole']:.2f} s, of it importing {best['import']:.2f} s; "
            f"{best['processor']:.2f} processor seconds; second answer {1000 * best['second']:.1f} ms",
        ),
        row(
            "start-search", f"first search of a process in an engine of {millions}, by numpy",
            against="numba loaded from its cache", ours=searches[0], theirs=searches[1], mark="-",
            note=f"after the engine is open; ratios of {repeat} pairs of processes, in turn: {ratios[0]:.1f} to "
            f"{ratios[-1]:.1f}; {cold['search']:.1f} s where numba's cache is empty and all is compiled",
        ),
        row(
            "start-memory", f"memory of each of two processes with an engine of {millions}", against="resident",
            ours=memory[0]["Pss"], theirs=memory[0]["Rss"], mark="-", unit="MiB",
            note=f"proportional share against resident; private and changed {memory[0]['Private_Dirty']:.0f} MiB",
        ),
    ]  # fmt: skip
    for line in rows:
        show(line)
    if not args.quick:
        write("start_speed", rows)


if __name__ == "__main__":
    main()
