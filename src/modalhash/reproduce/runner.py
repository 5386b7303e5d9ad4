"""Measure what is missing, in parallel, and say how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from modalhash.reproduce.cells import Cell
from modalhash.reproduce.estimate import Estimates
from modalhash.reproduce.store import Store
from modalhash.reproduce.workers import Worker


@dataclass(frozen=True)
class Event:
    """A cell is done, or has begun (``result`` is None)."""

    cell: Cell
    result: dict[str, Any] | None
    done: int
    failed: int
    total: int
    seconds_left: float


def run(
    cells: Sequence[Cell],
    store: Store,
    *,
    root: Path | None = None,
    jobs: int = 2,
    retry: bool = False,
    notify: Callable[[Event], None] | None = None,
) -> int:
    """Measure the cells that the store does not have. Returns how many failed.

    Every result is written when it comes, so a run that is stopped goes on where it was. An interruption ends the
    processes and is raised again; the cells they were at are measured by the next run.
    """
    missing = [cell for cell in cells if not store.done(cell, retry=retry)]
    estimates = Estimates(store)
    clock = _Clock(estimates, missing, jobs)
    queue = list(reversed(missing))
    workers: list[Worker] = []
    done = failed = 0

    def tell(cell: Cell, result: dict[str, Any] | None) -> None:
        if notify is not None:
            notify(Event(cell, result, done, failed, len(missing), clock.left(queue, workers)))

    try:
        while queue or any(worker.cell for worker in workers):
            while queue and (idle := _idle(workers, jobs, root)) is not None:
                idle.give(queue.pop())
                assert idle.cell is not None
                tell(idle.cell, None)
            for worker in _ready(workers):
                cell = worker.cell
                assert cell is not None
                result = {"error": f"took longer than {cell.limit_seconds:g} s"} if worker.late else worker.take()
                if not worker.process.is_alive() or worker.cell is not None:
                    worker.stop()
                    workers.remove(worker)
                store.write(cell, result)
                done, failed = done + 1, failed + ("error" in result)
                clock.learn(cell, result)
                tell(cell, result)
    finally:
        for worker in workers:
            worker.stop()
    return failed


def _idle(workers: list[Worker], jobs: int, root: Path | None) -> Worker | None:
    for worker in workers:
        if worker.cell is None:
            return worker
    if len(workers) < jobs:
        workers.append(Worker(root))
        return workers[-1]
    return None


def _ready(workers: list[Worker]) -> list[Worker]:
    """Workers with a result, dead ones and late ones; waits for a second at most."""
    busy = {worker.connection: worker for worker in workers if worker.cell is not None}
    ready = [busy[connection] for connection in wait(list(busy), timeout=1.0) if connection in busy]
    return ready + [worker for worker in busy.values() if worker.late and worker not in ready]


class _Clock:
    """Time left: estimates of what is left, corrected by how wrong they were so far."""

    def __init__(self, estimates: Estimates, cells: Sequence[Cell], jobs: int) -> None:
        self._expected = {cell.key: estimates(cell) for cell in cells}
        self._jobs = jobs
        self._foreseen = self._taken = 0.0

    def learn(self, cell: Cell, result: dict[str, Any]) -> None:
        if "took" in result:
            self._foreseen += self._expected[cell.key]
            self._taken += result["took"]

    def left(self, queue: Sequence[Cell], workers: Sequence[Worker]) -> float:
        now = time.perf_counter()
        waiting = sum(self._expected[cell.key] for cell in queue)
        running = sum(
            max(0.0, self._expected[worker.cell.key] - (now - worker.since)) for worker in workers if worker.cell
        )
        # a few cells say little: the correction grows with what was seen
        factor = (self._taken + 30) / (self._foreseen + 30)
        return (waiting + running) * factor / self._jobs
