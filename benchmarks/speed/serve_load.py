"""Many clients at once against the service, and the same engine called in process.

    python benchmarks/speed/serve_load.py                                  # 1,000,000 codes, 64 clients, 30 s
    python benchmarks/speed/serve_load.py --items 100000 --clients 8 --seconds 5

An engine with random codes of 64 bits is made in a temporary folder and served by `modalhash serve`, a process of its
own. The clients are another process: each keeps its connection and sends the next search when the last one is
answered, words and items in turn. Then the same searches are made in this process, one by one and 64 at a time.
Client and server share the cores: the service alone would be faster.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from modalhash import Engine
from modalhash.engine.folder import ITEMS
from modalhash.store import Record, SqliteStore
from record import write

N_BITS, BATCH, K = 64, 50_000, 20
WORDS = [
    a + b for a in ("red", "blue", "old", "wet", "far", "low", "hot", "new") for b in ("boat", "tree", "cat", "road")
]


def make_engine(folder: Path, n_items: int) -> None:
    """A small trained engine whose items are replaced by random codes."""
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


# -- clients


class Client(asyncio.Protocol):
    """One client on one connection: the next request goes out when the last answer is whole."""

    def __init__(self, requests: list[bytes], until: float, done: asyncio.Event) -> None:
        self.requests, self.until, self.done = requests, until, done
        self.place, self.buffer, self.seconds, self.statuses = 0, b"", [], []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.send()

    def send(self) -> None:
        self.sent = time.perf_counter()
        if self.sent >= self.until:
            self.transport.close()
            self.done.set()
            return
        self.transport.write(self.requests[self.place % len(self.requests)])
        self.place += 1

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, found, body = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        if len(body) < length:
            return
        self.seconds.append(time.perf_counter() - self.sent)
        self.statuses.append(int(head[9:12]))
        self.buffer = b""
        self.send()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.is_set():
            self.statuses.append(0)
            self.done.set()


async def load(port: int, clients: int, seconds: float, n_items: int) -> dict[str, Any]:
    """All clients for some seconds; errors and times."""
    loop = asyncio.get_running_loop()
    until = time.perf_counter() + seconds
    running = []
    for number in range(clients):
        requests = []
        for body in bodies(n_items, 400, seed=number):
            content = json.dumps(body).encode()
            head = "POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: "
            requests.append(f"{head}{len(content)}\r\n\r\n".encode() + content)
        done = asyncio.Event()
        _, client = await loop.create_connection(lambda r=requests, d=done: Client(r, until, d), "127.0.0.1", port)
        running.append(client)
    for client in running:
        await client.done.wait()
    times = np.array([one for client in running for one in client.seconds])
    statuses = [status for client in running for status in client.statuses]
    return {
        "searches": len(times),
        "errors": sum(status != 200 for status in statuses),
        "searches_per_second": round(len(times) / seconds, 1),
        "median_ms": round(1000 * float(np.median(times)), 2),
        "p99_ms": round(1000 * float(np.quantile(times, 0.99)), 2),
        "longest_ms": round(1000 * float(times.max()), 2),
    }


# -- the two sides


def over_http(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Start the service and the clients, each as a process."""
    command = [sys.executable, "-c", "from modalhash.cli import main; main()", "serve", str(folder), "--port", "0"]
    with (folder.parent / "log.jsonl").open("wb") as log:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            port = int(address.rstrip("/").rpartition(":")[2])
            print(f"serving at {address}", flush=True)
            options = ["--load", str(port), "--items", str(args.items), "--clients", str(args.clients)]
            clients = subprocess.run(
                [sys.executable, __file__, *options, "--seconds", str(args.seconds)], stdout=subprocess.PIPE, check=True
            )
            memory = Path(f"/proc/{server.pid}/status")
            peak = memory.read_text().partition("VmHWM:")[2].split()[0] if memory.exists() else "0"
            sizes = batch_sizes(port)
        finally:
            server.terminate()
            code = server.wait(60)
    return {**json.loads(clients.stdout), **sizes, "peak_MB": round(int(peak) / 1024), "exit_code": code}


def batch_sizes(port: int) -> dict[str, float]:
    """How many searches walked over the index together, on average."""
    from urllib.request import urlopen

    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = dict(line.rpartition(" ")[::2] for line in answer.read().decode().splitlines() if line[0] != "#")
    total, n = (float(lines[f'modalhash_batch_size_{what}{{stage="search"}}']) for what in ("sum", "count"))
    return {"searches_per_walk": round(total / max(n, 1), 1)}


def in_process(folder: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """The same searches without HTTP: the engine's, and of the index alone, one by one and 64 at a time."""
    rows = []
    with Engine.open(folder) as engine:
        texts = [body["text"] for body in bodies(args.items, 4096, seed=1) if "text" in body]
        codes = engine.prepare(text=texts).codes
        calls = {
            "engine": lambda some: engine.search_many(text=[texts[i % len(texts)] for i in some], k=K),
            "index": lambda some: engine.index.search(codes[[i % len(codes) for i in some]], k=K),
        }
        for name, call in calls.items():
            for size in (1, 64):
                call(range(size))
                start, n = time.perf_counter(), 0
                while time.perf_counter() - start < args.seconds / 6:
                    call(range(n, n + size))
                    n += size
                rate = n / (time.perf_counter() - start)
                rows.append({"in_process": name, "at_once": size, "searches_per_second": round(rate, 1)})
                print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--output", default="serve_load")
    parser.add_argument("--load", type=int, metavar="PORT", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.load:
        print(json.dumps(asyncio.run(load(args.load, args.clients, args.seconds, args.items))))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "engine"
        start = time.perf_counter()
        make_engine(folder, args.items)
        print(f"{args.items:,} codes of {N_BITS} bits made in {time.perf_counter() - start:.0f} s", flush=True)
        served = {"items": args.items, "clients": args.clients, "seconds": args.seconds, **over_http(folder, args)}
        print(served, flush=True)
        rows = in_process(folder, args)
    best = max(row["searches_per_second"] for row in rows if row["in_process"] == "engine")
    served["of_in_process"] = round(served["searches_per_second"] / best, 3)
    print(f"{served['errors']} errors; {served['of_in_process']:.0%} of the engine's own rate")
    write(args.output, [served, *rows])
    sys.exit(bool(served["errors"] or served["exit_code"]))


if __name__ == "__main__":
    main()
