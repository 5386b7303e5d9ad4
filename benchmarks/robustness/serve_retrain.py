"""Many clients of the service while the engine is trained anew beneath them, again and again.

    python benchmarks/robustness/serve_retrain.py                       # 64 clients for ten minutes
    python benchmarks/robustness/serve_retrain.py --seconds 25 --clients 16
    python benchmarks/robustness/serve_retrain.py --by retrain          # ``modalhash retrain`` instead of ``train``

`modalhash serve --writable` serves a small engine. Each client, at an address of its own, searches by text, by item and
with filters, reads items and thumbnails, adds texts and pictures, and removes what it added. Meanwhile another process
runs ``modalhash train --overwrite`` in a loop, every tenth time ``modalhash restore --overwrite``. What is promised:

- an acknowledged item is in the store of an engine that had not been replaced when the item was sent: never in a dead
  one. The files of replaced engines are kept as hard links, and read in the end;
- an acknowledged removal holds in an engine that was in place before and after it;
- no error but these: 404 for an item of an engine that was replaced since, and 503 with ``Retry-After``;
- memory, open files and threads of the service do not grow with the number of replacements;
- with ``--by retrain`` nothing that was acknowledged is lost: it is in the last engine, however many came between.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "speed"))

from modalhash import Engine
from modalhash.engine import backup_engine, verify_engine
from modalhash.store import SqliteStore
from record import write

COLOURS = {"red": (200, 30, 30), "green": (30, 160, 40), "blue": (30, 40, 200)}
THINGS = ("ball", "box", "boat", "house", "tree")
PROMISED = {404, 503}
MODALHASH = (sys.executable, "-c", "from modalhash.cli import main; main()")
SAMPLE_SECONDS = 2.0
KEEP_SECONDS = 0.01
KEEPER_LATE = 0.5
"""Seconds by which the keeper may be late on a busy machine."""


# -- the engine, trained anew


def make_manifest(folder: Path, name: str, seed: int, n: int = 120) -> Path:
    """Pictures and texts with labels in common."""
    from PIL import Image

    draw, lines = random.Random(seed), []
    (folder / name).mkdir()
    for number in range(n):
        colour, thing = draw.choice(list(COLOURS)), draw.choice(THINGS)
        path = folder / name / f"{number}.png"
        noise = Image.effect_noise((32, 32), 40).convert("RGB")
        Image.blend(noise, Image.new("RGB", noise.size, COLOURS[colour]), 0.7).save(path)
        lines.append({"id": f"picture/{number}", "path": str(path), "labels": [colour]})
        text = f"a {colour} {thing} number {number}"
        lines.append({"id": f"text/{number}", "text": text, "labels": [colour, thing]})
    manifest = folder / f"{name}.jsonl"
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return manifest


class Trainer(threading.Thread):
    """Replaces the engine again and again, by commands of their own processes."""

    def __init__(self, engine: Path, manifests: list[Path], backup: Path, by: str) -> None:
        super().__init__()
        self.engine, self.manifests, self.backup, self.by = engine, manifests, backup, by
        self.stop, self.done, self.failures = threading.Event(), Counter[str](), list[str]()

    def run(self) -> None:
        while not self.stop.is_set():
            n = sum(self.done.values())
            what = self.by if self.by == "retrain" else "restore" if n % 10 == 9 or n == 2 else "train"
            if what == "retrain":
                command = ["retrain", str(self.engine), "--workers", "1"]
            elif what == "restore":
                command = ["restore", str(self.backup), str(self.engine), "--overwrite"]
            else:
                command = ["train", str(self.manifests[n % 2]), "-o", str(self.engine), "--overwrite", "--workers", "1"]
            result = subprocess.run([*MODALHASH, *command], capture_output=True, text=True, check=False)
            self.done[what] += 1
            if result.returncode:
                self.failures.append(f"{what}: {result.stderr.strip()[-300:]}")


@dataclass
class Generation:
    """An engine that was in place for a while; times as the keeper saw them."""

    folder: Path
    begin: float
    end: float = float("inf")


class Keeper(threading.Thread):
    """Gives the stores of all engines that come and go second names, so that they can be read in the end."""

    def __init__(self, engine: Path, folder: Path) -> None:
        super().__init__()
        self.engine, self.folder = engine, folder
        self.stop, self.generations = threading.Event(), list[Generation]()
        self._links: dict[str, int] = {}
        self._open: list[sqlite3.Connection] = []

    def run(self) -> None:
        while not self.stop.wait(KEEP_SECONDS):
            self.look()

    def look(self) -> None:
        """Note whether another engine is in place, and link its files.

        A connection of its own keeps SQLite from deleting the log when the service closes its last one, and from
        beginning another, which would be without a second name for a moment.
        """
        items = self.engine / "items.sqlite"
        with suppress(OSError, sqlite3.Error):
            number = items.stat().st_ino
            if number != self._links.get("items.sqlite"):
                now = time.monotonic()
                if self.generations:
                    self.generations[-1].end = now
                folder = self.folder / str(len(self.generations))
                folder.mkdir()
                os.link(items, folder / "items.sqlite")
                if (folder / "items.sqlite").stat().st_ino != number:
                    raise RuntimeError("two replacements at once; look more often")
                self._open.append(sqlite3.connect(f"file:{items}?mode=ro", uri=True, check_same_thread=False))
                self._open[-1].execute("SELECT count(*) FROM item").fetchone()
                self.generations.append(Generation(folder, now))
                self._links = {"items.sqlite": number}
            log = self.engine / "items.sqlite-wal"
            written = log.stat().st_ino
            if written != self._links.get("log") and items.stat().st_ino == self._links["items.sqlite"]:
                kept = self.generations[-1].folder / "items.sqlite-wal"
                os.link(log, kept.with_suffix(".new"))
                os.replace(kept.with_suffix(".new"), kept)
                self._links["log"] = written


# -- the service


class Service:
    """`modalhash serve` as a process, with what it uses over time."""

    def __init__(self, engine: Path, log: Path) -> None:
        self.log = log
        command = [*MODALHASH, "serve", str(engine), "--port", "0", "--writable", "--quiet"]
        with log.open("wb") as file:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().strip().rstrip("/").rpartition(":")[2])

    def sample(self) -> dict[str, float]:
        folder = Path(f"/proc/{self.process.pid}")
        status = (folder / "status").read_text()
        kilobytes, threads = (int(status.partition(f"{name}:")[2].split()[0]) for name in ("VmRSS", "Threads"))
        return {"MB": kilobytes / 1024, "threads": threads, "files": len(os.listdir(folder / "fd"))}

    def close(self) -> int:
        self.process.terminate()
        return self.process.wait(60)


# -- clients


@dataclass
class Ledger:
    """What clients were told."""

    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    added: dict[str, tuple[float, float]] = field(default_factory=dict)
    """When each item was sent, and when it was acknowledged."""
    removed: dict[str, tuple[float, float]] = field(default_factory=dict)
    not_found: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Removals answered with 404: of items of earlier engines, or removed from one just before it was replaced."""
    unpromised: list[str] = field(default_factory=list)


class Client:
    """One client on one connection: the next request goes out some time after the last answer."""

    def __init__(self, number: int, port: int, ledger: Ledger, pictures: list[bytes]) -> None:
        self.number, self.port, self.ledger, self.pictures = number, port, ledger, pictures
        self.draw = random.Random(number)
        self.own: list[str] = []
        self.n = 0

    async def run(self, until: float) -> None:
        address = f"127.0.1.{self.number + 1}"
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0))
        choices = (self.search, self.search_item, self.search_filtered, self.read, self.thumbnail, self.add)
        choices = (*choices, self.upload, self.remove, self.facts)
        while time.monotonic() < until:
            (choice,) = self.draw.choices(choices, (30, 12, 10, 10, 8, 12, 6, 8, 4))
            try:
                await choice()
            except (OSError, asyncio.IncompleteReadError) as error:
                self.ledger.answers[choice.__name__, 0] += 1
                self.ledger.unpromised.append(f"{choice.__name__}: {error!r}")
                self.writer.close()
                self.reader, self.writer = await asyncio.open_connection(
                    "127.0.0.1", self.port, local_addr=(address, 0)
                )
            await asyncio.sleep(self.draw.random() * 0.5)
        self.writer.close()

    async def ask(self, what: str, method: str, path: str, body: bytes = b"", kind: str = "application/json") -> int:
        """Send a request, note its answer and return its status."""
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: {kind}\r\n"
        begin = time.monotonic()
        self.writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
        content = await self.reader.readexactly(int(headers["content-length"]))
        status = int(lines[0].split()[1])
        self.ledger.answers[what, status] += 1
        self.ledger.seconds.append(time.monotonic() - begin)
        is_promised = status < 300 or (status in PROMISED and (status != 503 or "retry-after" in headers))
        if not is_promised or (status == 404 and what in ("search", "search_filtered", "add", "upload", "facts")):
            self.ledger.unpromised.append(f"{what}: {status} {content[:200].decode(errors='replace')}")
        return status

    def words(self) -> str:
        return f"a {self.draw.choice(list(COLOURS))} {self.draw.choice(THINGS)}"

    async def post_search(self, what: str, **body: Any) -> None:
        await self.ask(what, "POST", "/search", json.dumps(body).encode())

    async def search(self) -> None:
        await self.post_search("search", text=self.words(), k=10)

    async def search_item(self) -> None:
        id = self.draw.choice(self.own or ["text/1"])
        await self.post_search("search_item", id=id, k=10)

    async def search_filtered(self) -> None:
        await self.post_search("search_filtered", text=self.words(), k=10, where=f"label = {self.draw.choice(THINGS)}")

    async def read(self) -> None:
        await self.ask("read", "GET", f"/items/{quote(self.draw.choice(self.own or ['text/2']))}")

    async def thumbnail(self) -> None:
        await self.ask("thumbnail", "GET", f"/media/picture/{self.draw.randrange(100)}?size=96")

    async def facts(self) -> None:
        await self.ask("facts", "GET", "/engine")

    async def add(self) -> None:
        id = self.new_id("text")
        await self.store("add", id, json.dumps({"id": id, "text": self.words()}).encode(), "application/json")

    async def upload(self) -> None:
        id = self.new_id("picture")
        data = self.draw.choice(self.pictures)
        parts = (
            b'--limit\r\nContent-Disposition: form-data; name="id"\r\n\r\n' + id.encode(),
            b'--limit\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n' + data,
            b"--limit--\r\n",
        )
        await self.store("upload", id, b"\r\n".join(parts), "multipart/form-data; boundary=limit")

    async def store(self, what: str, id: str, body: bytes, kind: str) -> None:
        begin = time.monotonic()
        if await self.ask(what, "POST", "/items", body, kind) == 201:
            self.ledger.added[id] = begin, time.monotonic()
            self.own = [*self.own[-20:], id]

    async def remove(self) -> None:
        if self.own:
            id, begin = self.own.pop(), time.monotonic()
            status = await self.ask("remove", "DELETE", f"/items/{quote(id)}")
            noted = {200: self.ledger.removed, 404: self.ledger.not_found}.get(status)
            if noted is not None:
                noted[id] = begin, time.monotonic()

    def new_id(self, kind: str) -> str:
        self.n += 1
        return f"new/{kind}/{self.number}/{self.n}"


async def run_clients(service: Service, n: int, seconds: float, ledger: Ledger, pictures: list[bytes]) -> list[Any]:
    """Run all clients at once, and note meanwhile what the service uses."""
    begin, samples = time.monotonic(), []
    clients = [Client(number, service.port, ledger, pictures).run(begin + seconds) for number in range(n)]
    running = asyncio.gather(*clients)
    while not running.done():
        samples.append({"seconds": round(time.monotonic() - begin, 1), **service.sample()})
        await asyncio.wait([running], timeout=SAMPLE_SECONDS)
    await running
    return samples


# -- what is left


def check(ledger: Ledger, generations: list[Generation]) -> list[str]:
    """Compare what was acknowledged with the stores of all engines there were; return what is missing."""
    stored: list[set[str]] = []
    for generation in generations:
        with SqliteStore(generation.folder / "items.sqlite") as store:
            stored.append({record.id for record in store.scan()})
    wrong = []
    for id, (sent, acknowledged) in ledger.added.items():
        alive = [n for n, one in enumerate(generations) if one.begin <= acknowledged and one.end >= sent]
        if id not in ledger.removed and not any(id in stored[n] for n in alive):
            if id in ledger.not_found and was_replaced(*ledger.not_found[id], generations):
                continue  # removed from the engine that was just replaced, and not found in the new one
            dead = [n for n, ids in enumerate(stored) if id in ids]
            wrong.append(f"{id} was acknowledged and is {f'in the dead engine {dead[0]}' if dead else 'nowhere'}")
    for id, (sent, acknowledged) in ledger.removed.items():
        throughout = [n for n, one in enumerate(generations) if one.begin <= sent and one.end >= acknowledged]
        wrong += [f"{id} was removed and is there" for n in throughout if id in stored[n]]
    return wrong


def check_last(ledger: Ledger, engine: Path) -> list[str]:
    """Compare what was acknowledged with the last engine; return what is missing, or should be."""
    with SqliteStore(engine / "items.sqlite") as store:
        there = {record.id for record in store.scan()}
    gone = {*ledger.removed, *ledger.not_found}  # not found: removed, and asked for again in the engine that followed
    lost = [f"{id} was acknowledged and is not in the last engine" for id in ledger.added.keys() - gone - there]
    return lost + [f"{id} was removed and is in the last engine" for id in ledger.removed if id in there]


def was_replaced(sent: float, answered: float, generations: list[Generation]) -> bool:
    """Return whether an engine was replaced while a request was under way, as far as the keeper saw it in time."""
    return any(sent <= one.end <= answered + KEEPER_LATE for one in generations)


def slope(samples: list[dict[str, float]], name: str) -> float:
    """Return the change per minute, by least squares over the second half of the time."""
    late = [one for one in samples if one["seconds"] >= samples[-1]["seconds"] / 2]
    return float(np.polyfit([one["seconds"] / 60 for one in late], [one[name] for one in late], 1)[0])


def measure(folder: Path, n_clients: int, seconds: float, by: str = "train") -> dict[str, Any]:
    """Serve, search, add, remove and train for some seconds; return what happened."""
    manifests = [make_manifest(folder, name, seed) for seed, name in enumerate(("first", "second"))]
    engine = folder / "engine"
    Engine.train(manifests[0], engine).close()
    backup_engine(engine, folder / "backup.tar")
    pictures = [path.read_bytes() for path in sorted((folder / "second").iterdir())[:20]]
    (folder / "kept").mkdir()
    service, ledger = Service(engine, folder / "log.jsonl"), Ledger()
    keeper, trainer = Keeper(engine, folder / "kept"), Trainer(engine, manifests, folder / "backup.tar", by)
    keeper.look()
    keeper.start()
    trainer.start()
    try:
        samples = asyncio.run(run_clients(service, n_clients, seconds, ledger, pictures))
    finally:
        trainer.stop.set()
        trainer.join()
        keeper.stop.set()
        keeper.join()
        code = service.close()
    logged = [line for line in service.log.read_text().splitlines() if "engine_followed" not in line]
    wrong = check(ledger, keeper.generations) if by == "train" else check_last(ledger, engine)
    answers: dict[str, dict[str, int]] = {}
    for (what, status), n in sorted(ledger.answers.items()):
        answers.setdefault(what, {})[str(status)] = n
    return {
        "by": by,
        "clients": n_clients,
        "seconds": seconds,
        "requests": sum(ledger.answers.values()),
        "answers": answers,
        "unpromised": ledger.unpromised,
        "added": len(ledger.added),
        "removed": len(ledger.removed),
        "removals_not_found_while_an_engine_was_replaced": sum(
            id in ledger.added and was_replaced(*times, keeper.generations) for id, times in ledger.not_found.items()
        ),
        "wrong": wrong,
        "replacements": dict(trainer.done),
        "failed_replacements": trainer.failures,
        "generations": len(keeper.generations),
        "p50_ms": round(1000 * float(np.median(ledger.seconds)), 1),
        "p99_ms": round(1000 * float(np.quantile(ledger.seconds, 0.99)), 1),
        "longest_ms": round(1000 * max(ledger.seconds), 1),
        **{f"{name}_per_minute": round(slope(samples, name), 2) for name in ("MB", "threads", "files")},
        "exit_code": code,
        "logged": logged[:20],
        "findings": [str(finding) for finding in verify_engine(engine)],
        "samples": samples,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--by", choices=("train", "retrain"), default="train", help="what replaces the engine")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/serve_retrain.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        row = measure(Path(folder), args.clients, args.seconds, args.by)
    if args.write:
        write("serve_retrain" if args.by == "train" else "serve_retrain_in_place", [row])
    print(json.dumps({key: value for key, value in row.items() if key != "samples"}, indent=1))
    bad = (*row["unpromised"], *row["wrong"], *row["failed_replacements"], *row["findings"])
    return 1 if bad or row["exit_code"] else 0


if __name__ == "__main__":
    sys.exit(main())
