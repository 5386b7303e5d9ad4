"""PostgreSQL as the store: records added a second, a replica of a million from zero, and following when nothing is new.

    python benchmarks/speed/postgres_speed.py                   # 200,000 records added, a replica of a million
    python benchmarks/speed/postgres_speed.py --records 20000 --replica 100000

Records are added in batches of 10,000, each one transaction, to a server of its own (``tests/postgres_server.py``) that
waits for the disk at every commit: full records with an id, a code, a text of eight words, two labels, a field and a
refinement vector of 128 bytes; and records with an id, a code and labels alone. Both have all indexes, words included.
The table of the replica is filled by the server itself. Processor seconds of client and server stand beside the clock:
on a machine that is busy, these are what counts.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from modalhash.engine import refresh
from modalhash.index import HammingIndex
from modalhash.store import PostgresStore, Record

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from postgres_server import PostgresServer, find_programs
from record import write

BATCH = 10_000
WORDS = [
    "red",
    "boat",
    "sea",
    "sky",
    "tree",
    "green",
    "house",
    "dog",
    "cat",
    "mountain",
    "snow",
    "river",
    "bridge",
    "car",
    "street",
    "night",
]


def make_records(start: int, n: int, *, full: bool) -> list[Record]:
    draw = random.Random(start)
    codes = np.random.default_rng(start).integers(0, 256, (n, 8), dtype=np.uint8)
    records = []
    for number, code in enumerate(codes, start):
        more: dict[str, Any] = {"labels": tuple(draw.sample(WORDS, 2))}
        if full:
            more |= {"text": " ".join(draw.choices(WORDS, k=8)), "extra": {"year": 2000 + number % 20}}
            more["refinement"] = draw.randbytes(128)
        records.append(Record(f"item-{number}", "text", code.tobytes(), **more))
    return records


def server_seconds(server: PostgresServer) -> float:
    """Processor seconds of the server's processes that are alive."""
    root = int((server.folder / "data" / "postmaster.pid").read_text().split()[0])
    total = 0
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == root:
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def add_all(server: PostgresServer, store: PostgresStore, n: int, *, full: bool) -> dict[str, Any]:
    clock = client = server_used = 0.0
    best = 0.0
    for first in range(0, n, BATCH):
        batch = make_records(first, BATCH, full=full)
        start, before, own = time.perf_counter(), time.process_time(), server_seconds(server)
        store.add(batch)
        seconds = time.perf_counter() - start
        clock, best = clock + seconds, max(best, BATCH / seconds)
        client += time.process_time() - before
        server_used += server_seconds(server) - own
    return {
        "what": f"add, {'full records' if full else 'codes and labels'}",
        "records": n,
        "records_per_second": round(n / clock),
        "of_the_best_batch": round(best),
        "client_cpu_us_per_record": round(1e6 * client / n, 1),
        "server_cpu_us_per_record": round(1e6 * server_used / n, 1),
    }


def fill(server: PostgresServer, schema: str, n: int) -> None:
    """Fill a table with codes and vectors in one statement."""
    server.execute(
        f"""
        INSERT INTO {schema}.modality VALUES (1, 'text');
        INSERT INTO {schema}.item
            (number, modality, id, code, kind, labels, folded_labels, refinement, checksum, searched, n_words)
        SELECT n, 1, 'item-' || n, decode(substr(md5(n::text), 1, 16), 'hex'), 'hashed', '{{}}', '{{}}',
            decode(repeat('7f', 128), 'hex'), 0, '', 0
        FROM generate_series(1, {n}) AS n;
        UPDATE {schema}.counter SET items = {n}, items_there = {n}
        """
    )


def replicate(store: PostgresStore) -> list[dict[str, Any]]:
    index = HammingIndex(64)
    start, before = time.perf_counter(), time.process_time()
    reached = refresh(index, store)
    seconds, used = time.perf_counter() - start, time.process_time() - before
    rows = [{"what": "replica from zero", "records": len(index), "seconds": round(seconds, 2), "cpu": round(used, 2)}]
    start, before = time.perf_counter(), time.process_time()
    n = sum(len(numbers) for numbers, *_ in store.refinements())
    seconds, used = time.perf_counter() - start, time.process_time() - before
    rows.append({"what": "refinement vectors", "records": n, "seconds": round(seconds, 2), "cpu": round(used, 2)})
    times = []
    for _ in range(2000):
        start = time.perf_counter()
        refresh(index, store, reached)
        times.append(time.perf_counter() - start)
    rows.append({"what": "follow, nothing new", "median_ms": round(1e3 * float(np.median(times)), 3)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--replica", type=int, default=1_000_000)
    args = parser.parse_args()
    server = PostgresServer(*find_programs(), durable=True)
    rows: list[dict[str, Any]] = []
    try:
        for full in (False, True):
            with PostgresStore(server.url, schema="full" if full else "codes", n_bits=64) as store:
                rows.append(add_all(server, store, args.records, full=full))
                print(rows[-1], flush=True)
        with PostgresStore(server.url, schema="replica", n_bits=64) as store:
            fill(server, "replica", args.replica)
            rows += replicate(store)
        for row in rows[2:]:
            print(row)
    finally:
        server.close()
    write("postgres_speed", rows)


if __name__ == "__main__":
    main()
