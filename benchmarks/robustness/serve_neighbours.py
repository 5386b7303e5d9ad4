"""Many clients next to a hostile one: how much longer their answers take.

    python benchmarks/robustness/serve_neighbours.py         # 64 clients; ten minutes with it, five without
    python benchmarks/robustness/serve_neighbours.py --turns 1 --clients 16

The clients are those of :mod:`serve_retrain`, each at an address of its own, and the engine has 100,000 items more. In
turns of 30 seconds without the hostile address and 60 with it, all attacks of one address from :mod:`serve_hostile`
run at once and start again when they are answered: slow bodies, silent connections, unread answers, filters of many
fields, pictures that take long to decode or claim to be huge, bodies and trailers without end, and searches as fast as
they are answered. The hostile process is one of lower priority on the same two cores, because elsewhere it would have
its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import serve_hostile
from serve_retrain import COLOURS, THINGS, Ledger, Service, check_last, make_manifest, run_clients, slope, write

from modalhash import Engine
from modalhash.engine import verify_engine
from modalhash.store import Record, SqliteStore

QUIET, HOSTILE, SETTLE, HOLD = 30.0, 60.0, 5.0, 5.0
N_BITS, MORE_ITEMS, BLOCK = 64, 100_000, 20_000
SEARCH = "POST /search HTTP/1.1\nHost: 127.0.0.1\nContent-Type: application/json\nConnection: close\n"


def make_engine(folder: Path) -> Path:
    """Train on pictures and texts, and add 100,000 texts with random codes."""
    manifest, engine = make_manifest(folder, "first", 0), folder / "engine"
    with manifest.open("a") as file:
        file.write(json.dumps({"id": "long", "text": "a red ball", "notes": "x" * 8_000_000, "labels": ["red"]}) + "\n")
    Engine.train(manifest, engine, n_bits=N_BITS).close()
    draw, rng = random.Random(0), np.random.default_rng(0)
    with SqliteStore(engine / "items.sqlite", n_bits=N_BITS) as store:
        for start in range(0, MORE_ITEMS, BLOCK):
            codes = rng.integers(0, 256, (BLOCK, N_BITS // 8), dtype=np.uint8)
            pairs = [(draw.choice(list(COLOURS)), draw.choice(THINGS)) for _ in codes]
            store.add(
                Record(
                    f"more/{start + row}", "text", code.tobytes(), text=f"a {colour} {thing}", labels=(colour, thing)
                )
                for row, (code, (colour, thing)) in enumerate(zip(codes, pairs, strict=True))
            )
    return engine


# -- the hostile process


def held(port: int, n: int, part: bytes) -> int:
    """Open connections, send a part of a request on each, and hold them for a while; return how many were taken."""
    taken = 0
    with ExitStack() as opened:
        for _ in range(n):
            with suppress(OSError):
                connection = opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
                connection.sendall(part)
                taken += 1
        time.sleep(HOLD)
    return taken


def search(port: int) -> int:
    body = b'{"text": "a red ball", "k": 1000}'
    return serve_hostile.talk(port, f"{SEARCH}Content-Length: {len(body)}\n\n", (body,))


def hostile(port: int, seconds: float) -> dict[str, Any]:
    """Run all attacks at once until the time is over; return what they were answered."""
    one = serve_hostile.attacks(port)
    slow = (
        b"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{"
    )
    loops: list[tuple[str, int, Callable[[], Any]]] = [
        ("256 slow bodies", 1, lambda: held(port, 256, slow)),
        ("512 silent connections", 1, lambda: held(port, 512, b"")),
        ("unread answers", 2, lambda: serve_hostile.unread(port, 50)["status"]),
        ("searches for 1,000 hits", 8, lambda: search(port)),
        ("a filter of 12 dotted fields", 8, one["a filter of 12 dotted fields"]),
        ("a filter of 200 dotted fields", 2, one["a filter of 200 dotted fields"]),
        ("a picture of endless passes", 4, one["a picture of endless passes"]),
        ("a picture of 400 megapixels", 2, one["a picture of 400 megapixels"]),
        ("1 GB, in chunks", 2, one["1 GB, in chunks"]),
        ("200 MB of trailers", 2, one["200 MB of trailers"]),
        ("a body that trickles in", 4, one["a body that trickles in"]),
    ]
    until, answers = time.monotonic() + seconds, Counter[str]()

    def run(name: str, attack: Callable[[], Any]) -> None:
        while time.monotonic() < until:
            try:
                answers[f"{name}: {attack()}"] += 1
            except OSError as error:
                answers[f"{name}: {type(error).__name__}"] += 1
                time.sleep(0.05)

    for name, n, attack in loops:
        for _ in range(n):
            threading.Thread(target=run, args=(name, attack), daemon=True).start()
    time.sleep(seconds)
    return {"answers": dict(sorted(answers.items())), "processor_seconds": round(time.process_time(), 1)}


# -- the clients


def processor_seconds(service: Service) -> float:
    fields = Path(f"/proc/{service.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Phase:
    """What clients were answered between two moments."""

    def __init__(self, ledger: Ledger, service: Service) -> None:
        self.ledger, self.service = ledger, service
        self.begin, self.answers, self.processor = (
            len(ledger.seconds),
            ledger.answers.copy(),
            processor_seconds(service),
        )

    def end(self, name: str) -> dict[str, Any]:
        seconds = self.ledger.seconds[self.begin :]
        answers = {f"{what} {status}": n for (what, status), n in sorted((self.ledger.answers - self.answers).items())}
        row = {"phase": name, "seconds": seconds, "answers": answers}
        row["processor"] = processor_seconds(self.service) - self.processor
        print(name, milliseconds(seconds), f"{row['processor']:.1f} s of processor", flush=True)
        return row


def milliseconds(seconds: list[float]) -> dict[str, float]:
    quantiles = np.quantile(seconds, (0.5, 0.9, 0.99, 1)) * 1000
    names = ("p50_ms", "p90_ms", "p99_ms", "longest_ms")
    return {name: round(float(value), 1) for name, value in zip(names, quantiles, strict=True)}


def attacked(port: int, seconds: float) -> dict[str, Any]:
    command = ["nice", "-n", "10", sys.executable, __file__, "--attack", str(port), "--seconds", str(seconds)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def joined(phases: list[dict[str, Any]], name: str) -> dict[str, Any]:
    own = [phase for phase in phases if phase["phase"] == name]
    seconds = [second for phase in own for second in phase["seconds"]]
    answers = sum((Counter(phase["answers"]) for phase in own), Counter[str]())
    return {
        "requests": len(seconds),
        **milliseconds(seconds),
        "p99_ms_of_each_turn": [milliseconds(phase["seconds"])["p99_ms"] for phase in own],
        "service_processor_seconds": round(sum(phase["processor"] for phase in own), 1),
        "answers": dict(sorted(answers.items())),
    }


def measure(folder: Path, n_clients: int, turns: int) -> dict[str, Any]:
    """Let clients work throughout, and the hostile process in turns."""
    engine = make_engine(folder)
    pictures = [path.read_bytes() for path in sorted((folder / "first").iterdir())[:20]]
    service, ledger = Service(engine, folder / "log.jsonl"), Ledger()
    samples: list[Any] = []
    total = SETTLE + turns * (QUIET + HOSTILE + SETTLE)
    clients = threading.Thread(
        target=lambda: samples.extend(asyncio.run(run_clients(service, n_clients, total, ledger, pictures)))
    )
    clients.start()
    time.sleep(SETTLE)
    phases, attacks, used = [], Counter[str](), 0.0
    for _ in range(turns):
        phase = Phase(ledger, service)
        time.sleep(QUIET)
        phases.append(phase.end("without"))
        phase = Phase(ledger, service)
        said = attacked(service.port, HOSTILE)
        phases.append(phase.end("with"))
        attacks.update(said["answers"])
        used += said["processor_seconds"]
        time.sleep(SETTLE)
    clients.join()
    code = service.close()
    without, beside = joined(phases, "without"), joined(phases, "with")
    return {
        "clients": n_clients,
        "turns": turns,
        "p99_ratio": round(beside["p99_ms"] / without["p99_ms"], 2),
        "without": without,
        "with": beside,
        "attacks": dict(sorted(attacks.items())),
        "hostile_processor_seconds": round(used, 1),
        "unpromised": ledger.unpromised[:20],
        "lost": check_last(ledger, engine),
        "exit_code": code,
        "MB_most": round(max(one["MB"] for one in samples)),
        "MB_per_minute": round(slope(samples, "MB"), 2),
        "findings": [str(finding) for finding in verify_engine(engine)],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/serve_neighbours.json")
    parser.add_argument("--attack", type=int, metavar="PORT", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=HOSTILE, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.attack:
        print(json.dumps(hostile(args.attack, args.seconds)), flush=True)
        os._exit(0)  # attacks that wait for an answer are dropped
    with tempfile.TemporaryDirectory() as folder:
        row = measure(Path(folder), args.clients, args.turns)
    if args.write:
        write("serve_neighbours", [row])
    print(json.dumps(row, indent=1))
    return 1 if row["unpromised"] or row["lost"] or row["findings"] or row["exit_code"] or row["p99_ratio"] > 2 else 0


if __name__ == "__main__":
    sys.exit(main())
