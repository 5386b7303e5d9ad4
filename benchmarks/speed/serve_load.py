"""Many clients at once against the service, with one worker and with two, and the same engine called in process.

    python benchmarks/speed/serve_load.py                # 1,000,000 codes, 64 clients; less than 3 minutes
    python benchmarks/speed/serve_load.py --quick        # 100,000 codes; less than 40 s, nothing is written

An engine with random codes of 64 bits is made in a temporary folder and served by `modalhash serve`, once by itself and
once with `--workers 2`, with the access log in a file. The clients are another process: each keeps its connection and
sends the next search when the last one is answered, words and items in turn. The same searches are made in this
process, 64 at a time. The three take turns, so that a busy minute of the machine falls on all alike; medians count.

Then requests come at half the rate that was reached, at moments that do not wait for answers: the time of an answer
counts from the moment at which its request was due. This is done several times in turn too, and the median of the runs
counts; the note has all of them. Half of the clients begin with words and half with an item: if all did alike, turns of
nothing but words, which cost several times as much, would alternate with turns of items.

Clients and service share the cores, and in process there are no clients. So each row also has the processor time of a
search, and says what the clients took.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from modalhash import Engine
from modalhash.engine.storage.folder import ITEMS
from modalhash.store import Record, SqliteStore
from record import write
from speed_rows import row, show

N_BITS, BATCH, K, AT_ONCE = 64, 50_000, 20, 64
WORKERS = (1, 2)
WORDS = [
    a + b for a in ("red", "blue", "old", "wet", "far", "low", "hot", "new") for b in ("boat", "tree", "cat", "road")
]
HEAD = "POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: "
WARM_UP_SECONDS = 1.0


def make_engine(folder: Path, n_items: int) -> None:
    """A small trained engine to which items with random codes are added."""
    draw = random.Random(0)
    lines = []
    for number in range(400):
        words = draw.sample(WORDS, 4)
        lines.append({"id": str(number), "text": " ".join(words), "labels": words[:2]})
    Engine.train(lines, folder, n_bits=N_BITS, parameters={"n_anchors": 200}).close()
    rng = np.random.default_rng(0)
    with SqliteStore(folder / ITEMS, n_bits=N_BITS) as store:
        for start in range(0, n_items, BATCH):
            codes = rng.integers(0, 256, (min(BATCH, n_items - start), N_BITS // 8), dtype=np.uint8)
            store.add(
                Record(f"item-{start + row}", "text", code.tobytes(), text=f"text of {row}", labels=(WORDS[row % 32],))
                for row, code in enumerate(codes)
            )


def bodies(n_items: int, n: int, seed: int) -> list[dict[str, Any]]:
    """Searches: words, and items, in turn."""
    draw = random.Random(seed)
    texts = ({"text": " ".join(draw.sample(WORDS, 3)), "k": K} for _ in range(n // 2))
    ids = ({"id": f"item-{draw.randrange(n_items)}", "modality": "text", "k": K} for _ in range(n // 2))
    return [body for pair in zip(texts, ids, strict=True) for body in pair]


def requests_of(n_items: int, seed: int) -> list[bytes]:
    """The bytes of a client's requests."""
    contents = [json.dumps(body).encode() for body in bodies(n_items, 400, seed)]
    contents = contents[seed % 2 :] + contents[: seed % 2]  # half of the clients begin with an item
    return [f"{HEAD}{len(content)}\r\n\r\n".encode() + content for content in contents]


# -- clients


class Client(asyncio.Protocol):
    """One client on one connection, with one request at a time.

    Without an interval the next request goes out when the last answer is whole. With one, requests are due at fixed
    moments, and one that is late because the last answer is, counts from when it was due.
    """

    def __init__(self, requests: list[bytes], until: float, interval: float | None, offset: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.requests, self.until, self.interval = requests, until, interval
        self.due = time.perf_counter() + offset
        self.place = self.needed = 0
        self.buffer = b""
        self.seconds: list[float] = []
        self.errors = 0
        self.done = self.loop.create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.next()

    def next(self) -> None:
        now = time.perf_counter()
        if self.interval is not None and self.due > now:
            self.loop.call_later(self.due - now, self.send)
        else:
            self.send()

    def send(self) -> None:
        now = time.perf_counter()
        if now >= self.until:
            self.finish()
            return
        self.since = now if self.interval is None else min(now, self.due)
        self.due += self.interval or 0.0
        self.transport.write(self.requests[self.place % len(self.requests)])
        self.place += 1

    def data_received(self, data: bytes) -> None:
        self.buffer = self.buffer + data if self.buffer else data
        if not self.needed:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self.buffer[: end + 2].lower()
            start = head.index(b"content-length:") + 15
            self.needed = end + 4 + int(head[start : head.index(b"\r", start)])
            self.errors += self.buffer[9:12] != b"200"
        if len(self.buffer) < self.needed:
            return
        self.seconds.append(time.perf_counter() - self.since)
        self.buffer, self.needed = b"", 0
        self.next()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.errors += 1
            self.done.set_result(None)

    def finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)
        self.transport.close()


async def load(port: int, clients: int, seconds: float, n_items: int, rate: float | None) -> dict[str, Any]:
    """All clients for some seconds: how many searches, how long each took, errors, and what the clients cost."""
    loop, draw = asyncio.get_running_loop(), random.Random(0)
    requests = [requests_of(n_items, seed) for seed in range(clients)]
    interval = None if not rate else clients / rate
    processor, start = time.process_time(), time.perf_counter()
    running = []
    for own in requests:
        offset = draw.random() * (interval or 0.0)
        make = lambda own=own, offset=offset: Client(own, start + seconds, interval, offset)  # noqa: E731
        running.append((await loop.create_connection(make, "127.0.0.1", port))[1])
    for client in running:
        await client.done
    times = [one for client in running for one in client.seconds]
    return {
        "seconds": times,
        "errors": sum(client.errors for client in running),
        "clients_processor": time.process_time() - processor,
    }


# -- the sides


class Service:
    """`modalhash serve` as a process, or as several."""

    def __init__(self, folder: Path, n_workers: int, log: Path) -> None:
        command = [sys.executable, "-c", "from modalhash.cli import main; main()", "serve", str(folder), "--port", "0"]
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, "--workers", str(n_workers)], stdout=output, stderr=subprocess.STDOUT
            )

    def wait_until_ready(self) -> None:
        while b"http://" not in (text := self.log.read_bytes()):
            if self.process.poll() is not None:
                raise RuntimeError(text.decode())
            time.sleep(0.05)
        self.port = int(text.splitlines()[0].decode().rstrip("/").rpartition(":")[2])

    def processor_seconds(self) -> float:
        """Processor time of all its processes so far."""
        return sum(_ticks(pid) for pid in self.pids()) / os.sysconf("SC_CLK_TCK")

    def pids(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [self.process.pid, *map(int, children.read_text().split())]

    def peak_megabytes(self) -> float:
        """Memory at its peak, of all processes; what they share counts for each."""
        texts = (Path(f"/proc/{pid}/status").read_text() for pid in self.pids())
        return sum(int(text.partition("VmHWM:")[2].split()[0]) for text in texts) / 1024

    def stop(self) -> None:
        self.process.terminate()
        self.exit_code = self.process.wait(90)

    def measure(self, args: argparse.Namespace, seconds: float, rate: float | None = None) -> dict[str, Any]:
        """Let the clients search; with a rate, at that many requests a second."""
        options = ["--load", self.port, "--items", args.items, "--clients", args.clients, "--seconds", seconds]
        before = self.processor_seconds()
        command = [sys.executable, __file__, *map(str, options), "--rate", str(rate or 0.0)]
        found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        times = np.array(found["seconds"])
        return {
            "searches_per_second": len(times) / seconds,
            "processor_ms": 1000 * (self.processor_seconds() - before) / len(times),
            "clients_ms": 1000 * found["clients_processor"] / len(times),
            "errors": found["errors"],
            "searches": len(times),
            "median_s": float(np.median(times)),
            "p99_s": float(np.quantile(times, 0.99)),
        }


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


class InProcess:
    """The same searches without HTTP, as many at once as there are clients."""

    def __init__(self, engine: Engine, n_items: int) -> None:
        self.engine = engine
        some = bodies(n_items, 4096, seed=1)
        self.texts = [body["text"] for body in some if "text" in body]
        self.ids = [body["id"] for body in some if "id" in body]
        self.place = 0

    def search(self) -> None:
        half, place = AT_ONCE // 2, self.place % (len(self.texts) - AT_ONCE)
        self.engine.search_many(text=self.texts[place : place + half], k=K)
        self.engine.search_many(id=self.ids[place : place + half], modality="text", k=K)
        self.place += half

    def measure(self, seconds: float) -> dict[str, Any]:
        start, processor, n = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - start < seconds:
            self.search()
            n += AT_ONCE
        took, processor = time.perf_counter() - start, time.process_time() - processor
        return {"searches_per_second": n / took, "processor_ms": 1000 * processor / n}


# -- rows


def medians(runs: list[dict[str, Any]], name: str) -> float:
    return median(run[name] for run in runs)


def rows_of(
    n_workers: int,
    runs: list[dict[str, Any]],
    alone: list[dict[str, Any]],
    half: list[dict[str, Any]],
    service: Service,
) -> list[dict[str, Any]]:
    """The rows of the service with so many workers."""
    name = f"{n_workers} worker{'s' if n_workers > 1 else ''}"
    rate, theirs = medians(runs, "searches_per_second"), medians(alone, "searches_per_second")
    spread = ", ".join(f"{run['searches_per_second']:,.0f}" for run in runs)
    cost, own_cost = medians(runs, "processor_ms"), medians(alone, "processor_ms")
    note = (
        f"{rate:,.0f} against {theirs:,.0f} searches a second ({spread}); processor time of a search {cost:.2f} "
        f"against {own_cost:.2f} ms, {own_cost / cost:.0%}; the clients took {medians(runs, 'clients_ms'):.2f} ms; "
        f"{service.peak_megabytes():,.0f} MB"
    )
    errors = sum(run["errors"] for run in [*runs, *half])
    searches = sum(run["searches"] for run in [*runs, *half])
    within = ", ".join(f"{1000 * run['p99_s']:.0f}" for run in half)
    paced = (
        f"{medians(half, 'searches_per_second'):,.0f} searches a second, median {1000 * medians(half, 'median_s'):.1f} "
        f"ms; 99 of 100 within {within} ms in {len(half)} runs; processor time of a search "
        f"{medians(half, 'processor_ms'):.2f} ms"
    )
    return [
        row(
            f"service-{n_workers}",
            f"a search of 64 clients, {name}",
            against="in process, 64 at a time",
            ours=1000 / rate,
            theirs=1000 / theirs,
            mark=">= 0.6 x",
            unit="ms",
            note=note,
        ),
        row(
            f"service-{n_workers}-p99",
            f"99 of 100 answers at half load, {name}",
            against="-",
            ours=medians(half, "p99_s"),
            theirs=None,
            mark="<= 0.02 s",
            note=paced,
        ),
        row(
            f"service-{n_workers}-errors",
            f"errors of the service, {name}",
            against="-",
            ours=errors,
            theirs=None,
            mark="<= 0",
            unit="",
            note=f"of {searches:,} searches",
        ),
    ]


def measure(folder: Path, scratch: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """All rows."""
    with ExitStack() as opened:
        services = {}
        for n_workers in WORKERS:
            services[n_workers] = Service(folder, n_workers, scratch / f"log-{n_workers}.jsonl")
            opened.callback(services[n_workers].stop)
        for service in services.values():
            service.wait_until_ready()
        alone = InProcess(opened.enter_context(Engine.open(folder)), args.items)
        sides: dict[int, Callable[[float], dict[str, Any]]] = {0: alone.measure}
        for n_workers, service in services.items():
            sides[n_workers] = lambda seconds, service=service: service.measure(args, seconds)
        for side in sides.values():
            side(WARM_UP_SECONDS)
        runs: dict[int, list[dict[str, Any]]] = {name: [] for name in sides}
        for _ in range(args.rounds):
            for name, side in sides.items():
                runs[name].append(side(args.seconds))
        half: dict[int, list[dict[str, Any]]] = {n_workers: [] for n_workers in services}
        for _ in range(args.rounds):
            for n_workers, service in services.items():
                rate = medians(runs[n_workers], "searches_per_second") / 2
                half[n_workers].append(service.measure(args, args.seconds, rate))
        rows = []
        for n_workers, service in services.items():
            for one in rows_of(n_workers, runs[n_workers], runs[0], half[n_workers], service):
                show(one)
                rows.append(one)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, help="of one run of one side")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="fewer codes, shorter runs")
    parser.add_argument("--engine", type=Path, help="its folder, to be used again; made if it is not there")
    parser.add_argument("--output", default="serve_load")
    parser.add_argument("--load", type=int, metavar="PORT", help=argparse.SUPPRESS)
    parser.add_argument("--rate", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.load:
        import uvloop

        print(json.dumps(uvloop.run(load(args.load, args.clients, args.seconds, args.items, args.rate))))
        return
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # the services end with this process
    args.items = args.items or (100_000 if args.quick else 1_000_000)
    args.seconds = args.seconds or (1.5 if args.quick else 5.0)
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.engine or Path(scratch) / "engine"
        if not folder.exists():
            start = time.perf_counter()
            make_engine(folder, args.items)
            print(f"{args.items:,} codes of {N_BITS} bits made in {time.perf_counter() - start:.0f} s", flush=True)
        rows = measure(folder, Path(scratch), args)
    if not args.quick:
        write(args.output, rows)
    sys.exit(any(one["ours"] for one in rows if one["row"].endswith("-errors")))


if __name__ == "__main__":
    main()
