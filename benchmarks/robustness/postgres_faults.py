"""PostgreSQL as the store, under faults: nothing acknowledged is lost, nothing happens twice, replicas equal the table.

    python benchmarks/robustness/postgres_faults.py
    python benchmarks/robustness/postgres_faults.py --seconds 5 --restarts 1

Four processes add and remove items, two follow, and connections are cut at random (``pg_terminate_backend``) all the
while. In the end the table is what the writers were told, and both replicas are the table. Then two services run on one
database: what is posted to one is found through the other at the next request; the server is restarted with
``-m immediate`` under a client that posts without a pause, which may get 503 meanwhile; what it got 201 for is there.
The server is one of its own, made by ``tests/postgres_server.py``, which waits for the disk as a real one does.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np

from modalhash.engine import Engine, refresh
from modalhash.index import HammingIndex
from modalhash.store import PostgresStore, Record, StoreUnavailableError, StoreUncertainError

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks" / "speed"), str(ROOT / "tests")]

N_BITS, SCHEMA = 64, "faults"
PATIENCE = 60.0
"""Seconds after which something hangs."""
CUT = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE application_name = 'modalhash' AND random() < .4
"""


# -- writers, replicas, cut connections


def write_items(url: str, writer: int, ready: Any, stop: Any, results: Any) -> None:
    """Add and remove items of one's own until told to stop; report what must be there, and what was met."""
    draw, there, told = random.Random(writer), {}, {"acknowledged": 0, "refused": 0, "uncertain": 0}
    with PostgresStore(url, schema=SCHEMA) as store:
        ready.release()
        while not stop.is_set():
            ids = [f"{writer}-{draw.randrange(2000)}" for _ in range(draw.choice([1, 5, 100]))]
            batch = {id: draw.randbytes(8) for id in ids}
            adding = draw.random() < 0.7
            after = {**there, **batch} if adding else {id: code for id, code in there.items() if id not in batch}
            try:
                if adding:
                    store.add((Record(id, "text", code) for id, code in batch.items()), replace=True)
                else:
                    store.remove([("text", id) for id in batch], missing="ignore")
                there, told["acknowledged"] = after, told["acknowledged"] + 1
            except StoreUncertainError:
                told["uncertain"] += 1
                there = _look(store, writer, there, after)
            except StoreUnavailableError:
                told["refused"] += 1
    results.put((there, told))


def _look(store: PostgresStore, writer: int, before: dict[str, bytes], after: dict[str, bytes]) -> dict[str, bytes]:
    """Return which of two states the items of a writer are in; nothing else may be."""
    while True:
        try:
            found = {one.id: one.code for one in store.scan() if one.id.startswith(f"{writer}-")}
        except StoreUnavailableError:
            continue
        assert found in (before, after), "a change happened by halves"
        return found


def follow(url: str, ready: Any, stop: Any, results: Any) -> None:
    """Follow the store until told to stop, and once more; report what the index holds."""
    index, reached, told = HammingIndex(N_BITS), None, {"refreshes": 0, "failed": 0}
    with PostgresStore(url, schema=SCHEMA, read_only=True) as store:
        ready.release()
        while True:
            last = stop.is_set()
            try:
                reached = refresh(index, store, reached)
                told["refreshes"] += 1
            except StoreUnavailableError:
                told["failed"] += 1
                continue
            if last:
                break
            time.sleep(0.005)
    numbers, codes = index.dump()
    results.put((numbers.tolist(), codes.tobytes(), told))


def cut_connections(server: Any, *, seconds: float, writers: int = 4, replicas: int = 2) -> dict[str, Any]:
    """Let writers and replicas work while their connections are cut; every promise is an assertion."""
    PostgresStore(server.url, schema=SCHEMA, n_bits=N_BITS).close()
    context = multiprocessing.get_context("spawn")
    ready, stops = context.Semaphore(0), [context.Event() for _ in range(2)]
    written, followed = context.Queue(), context.Queue()
    work = [(write_items, (server.url, number, ready, stops[0], written)) for number in range(writers)]
    work += [(follow, (server.url, ready, stops[1], followed)) for _ in range(replicas)]
    processes = [context.Process(target=target, args=arguments, daemon=True) for target, arguments in work]
    for process in processes:
        process.start()
    cuts, draw = 0, random.Random(0)
    for _ in processes:
        assert ready.acquire(timeout=PATIENCE)  # all are at work
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        cuts += server.execute(CUT)[0][0]
        time.sleep(draw.uniform(0.02, 0.2))
    stops[0].set()
    states = [written.get(timeout=PATIENCE) for _ in range(writers)]
    stops[1].set()
    replicas_found = [followed.get(timeout=PATIENCE) for _ in range(replicas)]
    for process in processes:
        process.join(PATIENCE)
        assert process.exitcode == 0
    expected = {id: code for there, _ in states for id, code in there.items()}
    with PostgresStore(server.url, schema=SCHEMA) as store:
        assert {record.id: record.code for record in store.scan()} == expected, "the table is not what was acknowledged"
        assert store.damage() == []
        numbers, _, codes = (np.concatenate(part) for part in zip(*store.codes(), strict=True))
        for own, own_codes, _ in replicas_found:
            assert own == numbers.tolist(), "a replica has other items than the table"
            assert own_codes == codes.tobytes(), "a replica has other codes than the table"
        revision = store.revision()
    server.execute("DROP SCHEMA faults CASCADE")
    sums = {key: sum(told[key] for _, told in states) for key in states[0][1]}
    more = {key: sum(one[2][key] for one in replicas_found) for key in replicas_found[0][2]}
    found = {"cuts": cuts, **sums, **more, "added": revision.items, "removed": revision.removals, "left": len(expected)}
    return {"what": "connections cut", "seconds": seconds, "writers": writers, "replicas": replicas, **found}


# -- two services, and a server that is restarted


class Serving:
    """``modalhash serve`` in a process of its own."""

    def __init__(self, engine: Path, url: str) -> None:
        start = "from modalhash.cli import main; main()"
        command = [sys.executable, "-c", start, "serve", str(engine), "--port", "0", "--writable", "--quiet"]
        environment = {**os.environ, "MODALHASH_DATABASE_URL": url}
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self._process.stdout is not None
        self._port = int(self._process.stdout.readline().strip().rstrip("/").rpartition(":")[2])

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, str], Any]:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=60)
        headers = {"Content-Type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        found = answer.status, dict(answer.getheaders()), json.loads(answer.read())
        connection.close()
        return found

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)


def serve_two(server: Any, folder: Path, *, posts: int, restarts: int) -> list[dict[str, Any]]:
    """Train an engine, serve it twice, post to one and find through the other, and restart the server."""
    from little_world import make_world

    make_world(folder)
    Engine.train(folder / "items.csv", folder / "engine", n_bits=16, store=server.url).close()
    services = [Serving(folder / "engine", server.url) for _ in range(2)]
    try:
        rows = [_post_and_find(services, posts)]
        rows += [_restart(server, services, number) for number in range(restarts)]
    finally:
        for service in services:
            service.close()
    return rows


def _post_and_find(services: list[Serving], posts: int) -> dict[str, Any]:
    seconds = []
    for number in range(posts):
        here, there = services[number % 2], services[1 - number % 2]
        text = f"a red ball number{number}"
        status, _, answer = here.ask("POST", "/items", {"id": f"post-{number}", "text": text})
        assert status == 201, answer
        start = time.perf_counter()
        status, _, answer = there.ask("POST", "/search", {"text": text, "want": "text", "k": 10})
        seconds.append(time.perf_counter() - start)
        assert status == 200, answer
        assert f"post-{number}" in [hit["id"] for hit in answer["hits"]], "not found through the other service"
    for number in range(posts):
        assert services[0].ask("DELETE", f"/items/post-{number}")[0] == 200
        status, _, answer = services[1].ask("POST", "/search", {"id": f"post-{number}"})
        assert status == 404, "removed through the other service"
    milliseconds = round(1e3 * float(np.median(seconds)), 2)
    return {"what": "two services", "posts": posts, "found": posts, "search_ms": milliseconds}


def _restart(server: Any, services: list[Serving], number: int) -> dict[str, Any]:
    """Restart the server under a client that posts without a pause, and one that searches."""
    acknowledged, unknown, statuses, failures = [], [], {"search": [], "post": []}, []
    stop = threading.Event()

    def client(kind: str, service: Serving) -> None:
        n = 0
        try:
            while not stop.is_set():
                n += 1
                id = f"restart-{number}-{n}"
                path, body = ("/items", {"id": id, "text": f"a blue ball number{n}"}) if kind == "post" else (
                    "/search", {"text": "a red ball"})  # fmt: skip
                status, headers, answer = service.ask("POST", path, body)
                statuses[kind].append((time.monotonic(), status))
                assert status in (200, 201, 503), answer
                if status == 503:
                    assert headers.get("Retry-After") or headers.get("retry-after"), "no Retry-After"
                    time.sleep(0.05)
                    if kind == "post" and "check whether the change was made" in answer["error"]:
                        unknown.append(id)
                elif kind == "post":
                    acknowledged.append(id)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=client, args=pair) for pair in zip(("post", "search"), services, strict=True)]
    for thread in threads:
        thread.start()
    time.sleep(1.0)
    server.stop("immediate")
    time.sleep(1.0)
    server.start()
    ready = time.monotonic()
    recovered = {}
    while len(recovered) < 2 and time.monotonic() < ready + 30 and not failures:
        for kind, seen in statuses.items():
            for moment, status in list(seen):
                if moment > ready and status < 300:
                    recovered.setdefault(kind, moment - ready)
        time.sleep(0.01)
    time.sleep(0.5)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures, failures
    found = 0
    for id in acknowledged:
        status, _, _ = services[1].ask("GET", f"/items/{id}")
        found += status == 200
    assert found == len(acknowledged), f"{len(acknowledged) - found} acknowledged items are lost"
    refused = {kind: sum(status == 503 for _, status in seen) for kind, seen in statuses.items()}
    assert refused["search"], "a search was answered without the database"
    return {
        "what": "restart -m immediate",
        "acknowledged": len(acknowledged),
        "lost": len(acknowledged) - found,
        "unknown": len(unknown),
        "refused_with_503": refused,
        "seconds_to_recover": {kind: round(value, 2) for kind, value in recovered.items()},
    }


def main() -> None:
    from postgres_server import PostgresServer, find_programs
    from record import write

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--posts", type=int, default=50)
    parser.add_argument("--restarts", type=int, default=3)
    args = parser.parse_args()
    server = PostgresServer(*find_programs(), durable=True)
    with tempfile.TemporaryDirectory() as folder:
        rows = [cut_connections(server, seconds=args.seconds)]
        print(json.dumps(rows[0]))
        rows += serve_two(server, Path(folder), posts=args.posts, restarts=args.restarts)
        for row in rows[1:]:
            print(json.dumps(row))
    server.close()
    write("postgres_faults", rows)


if __name__ == "__main__":
    main()
