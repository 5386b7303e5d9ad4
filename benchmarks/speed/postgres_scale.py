"""Many items on PostgreSQL: load, a retraining, replicas with and without their snapshot, memory, and two services.

    python benchmarks/speed/postgres_scale.py                          # a million by the store, 10 million in all
    python benchmarks/speed/postgres_scale.py --stored 20000 --items 200000

An engine is trained on generated texts. ``--stored`` items are encoded and written as any client's, then
the engine is retrained. The others are copies of them under other ids, written by the server in one statement, with the
indexes of labels and words rebuilt after it: what such a number of items takes to load was then not measured, and is
extrapolated from the first in the page. Searches are by text, by 32 clients, to two services on one machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from postgres_server import PostgresServer, find_programs
from record import write

TOPICS = {f"topic{number}": [f"word{number}x{place}" for place in range(12)] for number in range(60)}
COPIED = (
    "modality, code, kind, text, uri, labels, integer_labels, folded_labels, extra, refinement, checksum, searched, "
    "n_words"
)
TRAINED = 4000
CLIENTS = 32
SECONDS = 20


def items(first: int, n: int) -> Iterator[dict[str, Any]]:
    """Yield texts of eight words about one or two topics, with these as labels."""
    for number in range(first, first + n):
        draw = random.Random(number)
        topics = draw.sample(sorted(TOPICS), draw.choice((1, 1, 2)))
        words = [draw.choice(TOPICS[draw.choice(topics)]) for _ in range(8)]
        yield {"id": f"text-{number}", "modality": "text", "text": " ".join(words), "labels": topics}


def timed(rows: list[dict[str, Any]], what: str, n: int, work: Callable[[], Any]) -> Any:
    """Add a row with the seconds of some work, on the clock and of this process's processors."""
    start, before = time.perf_counter(), time.process_time()
    value = work()
    seconds, cpu = time.perf_counter() - start, time.process_time() - before
    rows.append({"what": what, "items": n, "seconds": round(seconds, 2), "cpu": round(cpu, 2)})
    print(rows[-1], flush=True)
    return value


def multiply(server: PostgresServer, schema: str, n: int) -> None:
    """Copy the items of a schema under other ids until there are n."""
    (stored,) = server.execute(f"SELECT max(number) FROM {schema}.item")[0]
    server.execute(f"DROP INDEX {schema}.item_words; DROP INDEX {schema}.item_labels")
    for copy in range(1, -(-n // stored)):
        last = min(stored, n - copy * stored)
        server.execute(
            f"INSERT INTO {schema}.item (number, id, {COPIED}) "
            f"SELECT number + {copy * stored}, id || '-{copy}', {COPIED} "
            f"FROM {schema}.item WHERE number <= {last}"
        )
    server.execute(f"CREATE INDEX item_labels ON {schema}.item USING gin (folded_labels)")
    server.execute(f"CREATE INDEX item_words ON {schema}.item USING gin (words)")
    server.execute(
        f"UPDATE {schema}.counter SET items = (SELECT max(number) FROM {schema}.item), "
        f"items_there = (SELECT count(*) FROM {schema}.item); "
        f"UPDATE {schema}.label SET items = items * {n // stored}; ANALYZE {schema}.item"
    )


def opened(folder: Path, url: str) -> tuple[float, float, float]:
    """Open an engine in a process; return seconds until its first search, processor seconds and gigabytes."""
    code = (
        "import resource, sys, time; start = time.perf_counter()\n"
        "from modalhash.engine import Engine\n"
        "with Engine.open(sys.argv[1], database=sys.argv[2]) as engine:\n"
        "    engine.search(text='word1x1 word1x2', k=10)\n"
        "    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "    print(time.perf_counter() - start, time.process_time(), peak)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder), url], capture_output=True, text=True, check=True)
    seconds, cpu, kilobytes = map(float, done.stdout.split())
    return seconds, cpu, kilobytes / 1e6


@contextmanager
def service(folder: Path, url: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "modalhash", "serve", str(folder), "--port", str(port), "--read-only"]
    environment = {**os.environ, "MODALHASH_DATABASE_URL": url}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while True:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5).close()
                    break
                except OSError:
                    if process.poll() is not None:
                        raise SystemExit(f"the service ended with {process.returncode}") from None
                    time.sleep(0.2)
            yield process
        finally:
            process.terminate()


def load(ports: list[int]) -> tuple[float, float, int]:
    """Let clients search for some seconds; return searches per second, the 99th percentile in ms, and failures."""
    taken: list[float] = []
    failures = 0
    end = time.perf_counter() + SECONDS

    def client(number: int) -> None:
        nonlocal failures
        draw = random.Random(number)
        while time.perf_counter() < end:
            words = " ".join(draw.choices(TOPICS[f"topic{draw.randrange(60)}"], k=3))
            body = json.dumps({"text": words, "k": 10}).encode()
            url = f"http://127.0.0.1:{ports[number % len(ports)]}/search"
            request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
            start = time.perf_counter()
            try:
                urllib.request.urlopen(request, timeout=30).read()
            except OSError:
                failures += 1
                continue
            taken.append(time.perf_counter() - start)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(taken) / SECONDS, 1000 * sorted(taken)[int(0.99 * len(taken))], failures


def resident(process: subprocess.Popen[bytes]) -> float:
    """Return the gigabytes that a process holds."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1e6


def measure(server: PostgresServer, folder: Path, stored: int, n: int) -> list[dict[str, Any]]:
    from modalhash.engine import Engine

    rows: list[dict[str, Any]] = []
    engine_folder = folder / "engine"
    engine = Engine.train(items(0, TRAINED), engine_folder, n_bits=64, encoders={"text": "tfidf"}, store=server.url)
    with engine:
        timed(rows, "encode and add", stored - TRAINED, lambda: engine.add(items(TRAINED, stored - TRAINED)))
    engine = timed(rows, "open for retraining", stored, lambda: Engine.open(engine_folder, database=server.url))
    with engine:
        timed(rows, "retrain", stored, lambda: engine.retrain())
    schema = json.loads((engine_folder / "config.json").read_text())["store"]["schema"]
    timed(rows, "copies by the server, indexes rebuilt", n - stored, lambda: multiply(server, schema, n))
    for what in ("replica start without snapshot", "replica start with snapshot"):
        seconds, cpu, gigabytes = opened(engine_folder, server.url)
        row = {
            "what": what,
            "items": n,
            "seconds": round(seconds, 2),
            "cpu": round(cpu, 2),
            "peak_gb": round(gigabytes, 2),
        }
        rows.append(row)
        print(rows[-1], flush=True)
    with service(engine_folder, server.url, 8711) as one, service(engine_folder, server.url, 8712) as two:
        for what, ports in (("searches, one service", [8711]), ("searches, two services", [8711, 8712])):
            per_second, worst, failures = load(ports)
            row = {"what": what, "items": n, "per_second": round(per_second), "p99_ms": round(worst, 1)}
            rows.append({**row, "failures": failures})
            print(rows[-1], flush=True)
        rows.append({"what": "memory of a service", "items": n, "gb": round((resident(one) + resident(two)) / 2, 2)})
        print(rows[-1], flush=True)
    (size,) = server.execute("SELECT pg_database_size('postgres')")[0]
    rows.append({"what": "database on disk", "items": n, "gb": round(size / 1e9, 1)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stored", type=int, default=1_000_000, help="items written by the store")
    parser.add_argument("--items", type=int, default=10_000_000, help="items in all")
    args = parser.parse_args()
    server = PostgresServer(*find_programs(), durable=True)
    try:
        with tempfile.TemporaryDirectory() as folder:
            rows = measure(server, Path(folder), args.stored, args.items)
    finally:
        server.close()
    write("postgres_scale", rows)


if __name__ == "__main__":
    main()
