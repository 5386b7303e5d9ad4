"""Three services on one PostgreSQL, each with its own folder, through what happens in production.

    python benchmarks/robustness/three_services.py
    python benchmarks/robustness/three_services.py --rounds 1 --seconds 2

Two clients of each service add, remove and search without a pause. Meanwhile, in turn: the engine is retrained on one
machine; a service is killed by SIGKILL and started again; the network between a service and the database is cut by a
proxy between them; the database is restarted with ``-m immediate``. What is promised: every acknowledged change is
there in the end, through every service; no answer is a 500, and every 503 has ``Retry-After``; after each disturbance
all services are ready again, and after a retraining they serve the new model. Requests whose connection was lost, or
whose answer says that the outcome is unknown, may have been done or not.
"""

from __future__ import annotations

import argparse
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
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "speed"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from postgres_faults import Serving

from modalhash.engine import Engine, clone_engine

MODALHASH = (sys.executable, "-c", "from modalhash.cli import main; main()")
PATIENCE = 120.0
"""Seconds after which a service does not recover."""


class Proxy:
    """A TCP port that leads to the socket of the database, until it is cut."""

    def __init__(self, target: Path) -> None:
        self._target, self._pairs, self.is_cut = target, list[socket.socket](), False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Drop all connections, and every new one."""
        self.is_cut = True
        for one in self._pairs:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.socket(socket.AF_UNIX)
            try:
                if self.is_cut:
                    raise OSError("cut")
                server.connect(str(self._target))
            except OSError:  # or the database is down
                client.close()
                continue
            self._pairs += [client, server]
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=_pump, args=(source, sink), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for one in (source, sink):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


class Machine:
    """A folder with the engine, a way to the database, and a service that may be killed."""

    def __init__(self, folder: Path, database: Path) -> None:
        self.folder, self.proxy = folder, Proxy(database)
        self.url = f"postgresql://postgres@127.0.0.1:{self.proxy.port}/postgres"

    def start(self) -> None:
        self.service = Serving(self.folder, self.url)

    def kill(self) -> None:
        self.service._process.kill()
        self.service._process.wait()

    def is_ready(self) -> bool:
        with suppress(OSError, HTTPException):
            return self.service.ask("GET", "/readyz")[0] == 200
        return False


class Ledger:
    """What clients were told."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.statuses, self.there, self.gone, self.unknown = Counter[str](), set[str](), set[str](), set[str]()
        self.failures: list[str] = []

    def note(self, kind: str, id: str, status: int, headers: dict[str, str], answer: Any) -> None:
        with self.lock:
            self.statuses[f"{kind} {status}"] += 1
            if status not in (200, 201, 503):
                self.failures.append(f"{kind} {id}: {status} {answer}")
            elif status == 503 and "retry-after" not in {name.lower() for name in headers}:
                self.failures.append(f"{kind} {id}: 503 without Retry-After")
            elif status == 503 and "check whether the change was made" in answer["error"]:
                self.unknown.add(id)
            elif kind == "add" and status == 201:
                self.there.add(id)
            elif kind == "remove" and status == 200:
                self.there.discard(id)
                self.gone.add(id)

    def lost(self, kind: str, id: str) -> None:
        with self.lock:
            self.statuses[f"{kind} connection lost"] += 1
            self.unknown.add(id)


def run_client(machine: Machine, name: str, ledger: Ledger, stop: threading.Event) -> None:
    """Add, remove and search until told to stop; an id whose fate is unknown is not used again."""
    draw, own, n = random.Random(name), list[str](), 0
    while not stop.is_set():
        n += 1
        kind, id = draw.choice(("add", "add", "search", "remove")), f"{name}-{n}"
        if kind == "remove" and not own:
            continue
        if kind == "remove":
            id = own.pop(draw.randrange(len(own)))
        request = {
            "add": ("POST", "/items", {"id": id, "text": f"a red ball {id}"}),
            "search": ("POST", "/search", {"text": "a red ball"}),
            "remove": ("DELETE", f"/items/{id}", None),
        }[kind]
        try:
            status, headers, answer = machine.service.ask(*request)
        except (OSError, HTTPException, ValueError):  # killed
            ledger.lost(kind, id)
            time.sleep(0.1)
            continue
        ledger.note(kind, id, status, headers, answer)
        if kind == "add" and status == 201:
            own.append(id)
        elif status == 503:
            time.sleep(0.05)
            if kind == "remove" and id not in ledger.unknown:
                own.append(id)


def wait_for(condition: Callable[[], bool]) -> float:
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() < begin + PATIENCE, "a service did not recover"
        time.sleep(0.05)
    return round(time.monotonic() - begin, 2)


def retrain(machine: Machine, machines: list[Machine], n_bits: int) -> dict[str, Any]:
    command = [*MODALHASH, "retrain", str(machine.folder), "--bits", str(n_bits), "--workers", "1"]
    environment = {**os.environ, "MODALHASH_DATABASE_URL": machine.url}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr
    follow = wait_for(lambda: all(one.service.ask("GET", "/engine")[2].get("n_bits") == n_bits for one in machines))
    return {"seconds_to_follow": follow}


def disturb(server: Any, machines: list[Machine], number: int, seconds: float) -> dict[str, dict[str, Any]]:
    """Do all four in turn; return how long the services took to recover from each."""
    one, two, three = machines[number % 3], machines[(number + 1) % 3], machines[(number + 2) % 3]
    found = {"retrain": retrain(one, machines, 16 if number % 2 else 24)}
    time.sleep(seconds)
    two.kill()
    two.start()
    found["kill -9"] = {"seconds_to_ready": wait_for(two.is_ready)}
    time.sleep(seconds)
    three.proxy.cut()
    time.sleep(seconds)
    not_ready = three.service.ask("GET", "/readyz")[0]
    three.proxy.is_cut = False
    found["cut network"] = {"readyz_meanwhile": not_ready, "seconds_to_ready": wait_for(three.is_ready)}
    server.stop("immediate")
    time.sleep(seconds)
    server.start()
    found["restart of the database"] = {"seconds_to_ready": wait_for(lambda: all(map(Machine.is_ready, machines)))}
    time.sleep(seconds)
    return found


def check(machines: list[Machine], ledger: Ledger) -> dict[str, int]:
    """Count acknowledged changes that are not so, through every service."""
    lost = returned = 0
    for id in sorted((ledger.there | ledger.gone) - ledger.unknown):
        statuses = [machine.service.ask("GET", f"/items/{id}")[0] for machine in machines]
        lost += id in ledger.there and statuses != [200] * len(machines)
        returned += id in ledger.gone and statuses != [404] * len(machines)
    return {"lost": lost, "returned": returned}


def measure(server: Any, folder: Path, *, rounds: int, seconds: float) -> dict[str, Any]:
    from little_world import make_world

    make_world(folder)
    Engine.train(folder / "items.csv", folder / "0", n_bits=16, store=server.url).close()
    machines = [Machine(folder / str(number), server.folder / ".s.PGSQL.5432") for number in range(3)]
    for machine in machines[1:]:
        clone_engine(machine.url, machine.folder)
    for machine in machines:
        machine.start()
    ledger, stop = Ledger(), threading.Event()
    names = [(machine, f"{place}-{turn}") for place, machine in enumerate(machines) for turn in range(2)]
    clients = [threading.Thread(target=run_client, args=(*each, ledger, stop)) for each in names]
    begin = time.monotonic()
    try:
        for client in clients:
            client.start()
        disturbances = [disturb(server, machines, number, seconds) for number in range(rounds)]
        stop.set()
        for client in clients:
            client.join()
        return {
            "seconds": round(time.monotonic() - begin),
            "added": sum(n for kind, n in ledger.statuses.items() if kind == "add 201"),
            "removed": len(ledger.gone),
            "unknown": len(ledger.unknown),
            **check(machines, ledger),
            "status_500": sum(n for kind, n in ledger.statuses.items() if kind.endswith(" 500")),
            "failures": ledger.failures,
            "answers": dict(sorted(ledger.statuses.items())),
            "disturbances": disturbances,
        }
    finally:
        stop.set()
        for machine in machines:
            machine.service.close()


def main() -> None:
    from postgres_server import PostgresServer, find_programs
    from record import write

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="pause between disturbances")
    args = parser.parse_args()
    server = PostgresServer(*find_programs(), durable=True)
    with tempfile.TemporaryDirectory() as folder:
        row = measure(server, Path(folder), rounds=args.rounds, seconds=args.seconds)
    server.close()
    print(json.dumps(row, indent=1))
    write("three_services", [row])


if __name__ == "__main__":
    main()
