"""Processes that measure cells: spawned, one BLAS thread each, and allowed to die without taking the run along."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from modalhash.reproduce.cells import Cell
from modalhash.reproduce.environment import THREADS


class Worker:
    """One process. It keeps the data set of its last cell in memory, so cells of one set should follow one another."""

    def __init__(self, root: Path | None) -> None:
        context = get_context("spawn")  # a forked BLAS may hang, and would have its threads already
        self.connection, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, root), daemon=True)
        with one_thread():
            self.process.start()
        other.close()
        self.cell: Cell | None = None
        self.since = 0.0

    def give(self, cell: Cell) -> None:
        """Start measuring a cell."""
        self.cell, self.since = cell, time.perf_counter()
        self.connection.send_bytes(json.dumps(asdict(cell)).encode())

    @property
    def late(self) -> bool:
        """Whether the cell takes longer than it may."""
        limit = self.cell.limit_seconds if self.cell else None
        return limit is not None and time.perf_counter() - self.since > limit

    def take(self) -> dict[str, Any]:
        """The result of the cell given; a process that died is a result, too."""
        try:
            result: dict[str, Any] = json.loads(self.connection.recv_bytes())
        except (EOFError, ConnectionError):
            self.process.join()
            code = self.process.exitcode
            reason = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
            result = {"error": f"the process died ({reason}); out of memory is the usual cause"}
        self.cell = None
        return result

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        self.process.terminate()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.connection.close()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Environment variables that a process started now will see."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def serve(connection: Connection, root: Path | None) -> None:
    """Measure what comes until nothing more comes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle: it ends this process
    from modalhash.reproduce.environment import describe_environment
    from modalhash.reproduce.measure import measure

    environment = None
    while True:
        try:
            cell = Cell(**json.loads(connection.recv_bytes()))
        except EOFError:
            return
        start = time.time()
        try:
            result = measure(cell, root)
        except Exception as error:  # a failed cell is a result; hours of others must not be lost for it
            trace = traceback.format_exc().splitlines()[-8:]
            result = {"error": f"{type(error).__name__}: {error}", "traceback": trace}
        environment = environment or describe_environment()  # after the first fit, when the BLAS is loaded
        result |= {"environment": environment, "started": round(start), "took": round(time.time() - start, 3)}
        connection.send_bytes(json.dumps(result).encode())
