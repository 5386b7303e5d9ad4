"""Kill -9 while 100,000 items are added, again and again: what was committed must be there, and nothing by halves.

    python benchmarks/robustness/kill_add.py                          # twenty kills, 100,000 items in batches of 1,000
    python benchmarks/robustness/kill_add.py --kills 5 --items 20000

Each round starts a process that adds the items that are still missing and kills it at a random moment: while it
loads, creates, writes, commits or tidies the log. Then the store is opened as any user would, without repair, read
whole, and compared with what the process had reported before it died. When all items are in before the kills are
used up, the next round begins a new store. A last process, left alone, completes the last store.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from modalhash.engine import refresh
from modalhash.index import HammingIndex
from modalhash.store import Record, SqliteStore

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "speed"))

from record import write

N_BITS = 64


def code(item: int) -> bytes:
    return (item * 0x9E3779B97F4A7C15 % 2**64).to_bytes(8, "big")


def key(item: int) -> tuple[str, str]:
    return ("image", "text")[item % 2], f"item-{item}"


def add_missing(path: str, n_items: int, size: int) -> None:
    """What the killed process does: batch by batch, each reported once it is committed."""
    with SqliteStore(path, n_bits=N_BITS) as store:
        for first in range(0, n_items, size):
            if key(first) not in store:
                batch = range(first, min(n_items, first + size))
                store.add(Record(f"item-{i}", ("image", "text")[i % 2], code(i), text=f"text of {i}") for i in batch)
            print(first // size, flush=True)


def run(path: Path, args: argparse.Namespace, seconds: float | None) -> tuple[set[int], bool]:
    """Start the process, kill it after ``seconds``; the batches it reported, and whether it was killed."""
    command = [sys.executable, __file__, "--add", str(path), "--items", str(args.items), "--batch", str(args.batch)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        out, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
    return {int(line) for line in out.split("\n")[:-1]}, process.returncode == -9


def check(path: Path, args: argparse.Namespace, reported: set[int]) -> int:
    """Open as if nothing had happened; every promise is an assertion. Returns the items found."""
    if not path.exists():
        assert not reported
        return 0
    with SqliteStore(path, n_bits=N_BITS) as store:
        store.check()
        found = Counter(int(record.id.removeprefix("item-")) // args.batch for record in store.scan())
        expected = {batch: min(args.batch, args.items - batch * args.batch) for batch in found}
        assert found == expected, "a batch is there in part"
        assert reported <= set(found), "a committed batch is gone"
        index = HammingIndex(N_BITS)
        refresh(index, store)
        assert len(index) == sum(found.values()) == store.count()
        for batch in random.Random(0).sample(sorted(found), min(5, len(found))):
            number = store.numbers([key(batch * args.batch)]).popitem()[1]
            hits = index.search(np.frombuffer(code(batch * args.batch), dtype=np.uint8)[None], radius=0)
            assert number in hits.ids, "a committed item is not found"
        return len(index)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--add", metavar="STORE", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.add:
        add_missing(args.add, args.items, args.batch)
        return
    draw = random.Random(args.seed)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path, reported, kills, stores = Path(folder) / "store-0.db", set(), 0, 1
        start = time.perf_counter()
        _, _ = run(Path(folder) / "whole.db", args, None)
        whole = time.perf_counter() - start
        print(f"undisturbed, {args.items} items take {whole:.1f} s")
        while kills < args.kills:
            seconds = draw.random() * whole
            batches, killed = run(path, args, seconds)
            reported |= batches
            kills += killed
            start = time.perf_counter()
            found = check(path, args, reported)
            opened = time.perf_counter() - start
            rows.append({"killed": killed, "seconds": seconds, "reported": len(reported) * args.batch, "found": found})
            how = "killed after" if killed else "ended before"
            print(
                f"{how} {seconds:5.2f} s: {found:6} items, {rows[-1]['reported']:6} reported, checked in {opened:.2f} s"
            )
            if found == args.items:
                path, reported, stores = Path(folder) / f"store-{stores}.db", set(), stores + 1
        batches, _ = run(path, args, None)
        assert check(path, args, reported | batches) == args.items
    write("kill_add", rows)
    print(f"{kills} kills in {stores} store(s): every committed item found, no partial batch, no repair")


if __name__ == "__main__":
    main()
