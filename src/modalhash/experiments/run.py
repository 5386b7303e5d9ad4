"""Running cells: plan what is missing, measure it in processes of its own, say how far it is.

Every result is written when it comes, so a run that was stopped goes on where it was. A worker process that dies costs
the cell it was at and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from statistics import median
from typing import Any

from modalhash.experiments.cells import Cell, cells_of, unique
from modalhash.experiments.config import Grid
from modalhash.experiments.environment import THREADS
from modalhash.experiments.inputs import Input, describe
from modalhash.experiments.results import Results


@dataclass
class Plan:
    """Cells to measure, and what cannot be."""

    cells: list[Cell] = field(default_factory=list)
    by_grid: dict[str, list[Cell]] = field(default_factory=dict)
    inputs: dict[str, Input] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    """Data set → how to get it."""
    broken: dict[str, str] = field(default_factory=dict)
    """Data set → why it could not be read."""

    def look(self, source: Input, root: Path | None) -> bool:
        """Load a data set once, for its digest; note what is wrong where that fails."""
        name = source.name
        if name in self.facts:
            return True
        if name in self.absent or name in self.broken:
            return False
        if not source.present(root):
            self.absent[name] = source.how_to_get()
            return False
        try:
            self.facts[name] = describe(source, root)
        except Exception as error:  # a strange file must not keep the others from running
            self.broken[name] = f"{type(error).__name__}: {error}"
            return False
        self.inputs[name] = source
        return True


def make_plan(
    grids: Sequence[Grid],
    *,
    root: Path | None = None,
    quick: bool = False,
    datasets: Sequence[str] = (),
    seeds: int | None = None,
) -> Plan:
    """List every cell of the grids on the data that are here, each once."""
    order = list(dict.fromkeys(name for grid in grids for name in grid.datasets))
    if unknown := [name for name in datasets if name not in order]:
        raise ValueError(f"no data set is called {', '.join(unknown)}; there are {', '.join(order)}")
    plan = Plan()
    for grid in grids:
        cells: list[Cell] = []
        for name, source in grid.inputs.items():
            if (datasets and name not in datasets) or grid.part(name, quick=quick) is None:
                continue
            if plan.look(source, root):
                found = cells_of(grid, name, plan.facts[name]["digest"], quick=quick)
                cells += [cell for cell in found.values() if seeds is None or cell.seed < seeds]
        plan.by_grid[grid.name] = unique(cells, order)
    plan.cells = unique((cell for cells in plan.by_grid.values() for cell in cells), order)
    return plan


def record(plan: Plan, results: Results) -> None:
    """Let the results know the data sets, so that a report needs nothing else."""
    for facts in plan.facts.values():
        results.write_dataset(facts)


@dataclass(frozen=True)
class Event:
    """A cell is done, or has begun (``result`` is None)."""

    cell: Cell
    result: dict[str, Any] | None
    done: int
    failed: int
    total: int
    seconds_left: float


def run_cells(
    plan: Plan,
    results: Results,
    *,
    root: Path | None = None,
    jobs: int = 2,
    retry: bool = False,
    notify: Callable[[Event], None] | None = None,
) -> int:
    """Measure the cells that the results do not have. Returns how many failed.

    An interruption ends the processes and is raised again; the cells they were at are measured by the next run.
    """
    missing = [cell for cell in plan.cells if not results.done(cell, retry=retry)]
    clock = _Clock(Estimates(results, plan.facts), missing, jobs)
    queue = list(reversed(missing))
    workers: list[Worker] = []
    done = failed = 0

    def report(cell: Cell, result: dict[str, Any] | None) -> None:
        if notify is not None:
            notify(Event(cell, result, done, failed, len(missing), clock.left(queue, workers)))

    try:
        while queue or any(worker.cell for worker in workers):
            while queue and (idle := _idle(workers, jobs, plan.inputs, root)) is not None:
                cell = queue.pop()
                idle.give(cell)
                report(cell, None)
            for worker, cell in _ready(workers):
                result = {"error": f"took longer than {cell.limit_seconds:g} s"} if worker.late else worker.take()
                if not worker.process.is_alive() or worker.cell is not None:
                    worker.stop()
                    workers.remove(worker)
                results.write(cell, result)
                done, failed = done + 1, failed + ("error" in result)
                clock.learn(cell, result)
                report(cell, result)
    finally:
        for worker in workers:
            worker.stop()
    return failed


def _idle(workers: list[Worker], jobs: int, inputs: Mapping[str, Input], root: Path | None) -> Worker | None:
    for worker in workers:
        if worker.cell is None:
            return worker
    if len(workers) < jobs:
        workers.append(Worker(inputs, root))
        return workers[-1]
    return None


def _ready(workers: list[Worker]) -> list[tuple[Worker, Cell]]:
    """Return workers with a result, dead ones and late ones, with their cells; wait for a second at most."""
    busy = {worker.connection: (worker, worker.cell) for worker in workers if worker.cell is not None}
    ready = [busy[connection] for connection in wait(list(busy), timeout=1.0) if isinstance(connection, Connection)]
    return ready + [entry for entry in busy.values() if entry[0].late and entry not in ready]


# Processes


class Worker:
    """A process that measures one cell at a time, with one BLAS thread; the data of its last cell stay in memory."""

    def __init__(self, inputs: Mapping[str, Input], root: Path | None) -> None:
        context = get_context("spawn")  # a forked BLAS may hang, and would have its threads already
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, dict(inputs), root), daemon=True)
        with _one_thread():
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
        """Return the result of the cell given; that the process died is a result, too."""
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
def _one_thread() -> Iterator[None]:
    """Set the environment variables that a process started now will see."""
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


def _serve(connection: Connection, inputs: Mapping[str, Input], root: Path | None) -> None:
    """Measure the cells that come until no more come."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle: it ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from modalhash.experiments.environment import describe_environment
    from modalhash.experiments.measure import Loader, measure

    environment = None
    load = Loader(inputs, root)
    while True:
        try:
            cell = Cell(**json.loads(connection.recv_bytes()))
        except EOFError:
            return
        start = time.time()
        try:
            result = measure(cell, load)
        except Exception as error:  # a failed cell is a result; hours of others must not be lost for it
            trace = traceback.format_exc().splitlines()[-8:]
            result = {"error": f"{type(error).__name__}: {error}", "traceback": trace}
        environment = environment or describe_environment()  # after the first fit, when the BLAS is loaded
        result |= {"environment": environment, "started": round(start), "took": round(time.time() - start, 3)}
        connection.send_bytes(json.dumps(result).encode())


def _end_with_parent() -> None:
    """End this process when the one that started it is gone, however that ended: nobody would take the result."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


# Time


_SECONDS = {
    "amsh": (1.3, 11.6), "batch": (0.4, 4.8), "cmfh": (0.1, 33.0), "cre": (0.5, 27.0), "dch": (0.1, 9.8),
    "fsh": (0.5, 63.5), "scratch": (1.4, 14.3), "smfh": (0.6, 48.8), "srlch": (0.2, 5.0), "edmh": (2.3, 20.0),
    "fmh": (1.1, 8.0), "gsph": (1.1, 10.0), "rucmh": (1.5, 20.0), "sapmh": (1.5, 15.0), "ucmh": (3.7, 25.0),
    "scm": (0.1, 5.4), "alech": (0.6, 5.8), "fcmh": (0.2, 9.4), "fddh": (0.3, 3.4),
    "seph": (1.0, 18.5), "sdmch": (2.0, 40.0), "tech": (0.4, 7.0),
}  # fmt: skip
"""CPU seconds of a fit with 64 bits on Wiki (2,173 items) and IAPR TC-12 (17,664), one thread of a 2.x GHz EPYC."""
_SMALL, _LARGE = 2173, 17664


class Estimates:
    """Expected seconds of a cell, its evaluation included: from results where there are any, else a rough guess."""

    def __init__(self, results: Results, facts: Mapping[str, Mapping[str, Any]]) -> None:
        seen: dict[tuple[str, str, int], list[float]] = defaultdict(list)
        for result in results.everything():
            if "took" in result and "error" not in result:
                made = result["configuration"]
                seen[made["method"], made["dataset"], made["bits"]].append(result["took"])
        self._seen = {key: median(values) for key, values in seen.items()}
        self._facts = facts

    def __call__(self, cell: Cell) -> float:
        known = self._seen.get((cell.method, cell.dataset, cell.bits))
        return known if known is not None else self._guess(cell)

    def _guess(self, cell: Cell) -> float:
        items = self._facts[cell.dataset]["training"]
        small, large = _SECONDS.get(cell.method, (1.0, 15.0))
        share = (items - _SMALL) / (_LARGE - _SMALL)  # linear in the items, beyond both ends too
        fit = max(0.2 * small, small + share * (large - small)) * (0.5 + cell.bits / 128)
        return fit + (0.3 + items / 6000 if cell.measured else items / 20000)


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


def spoken(seconds: float) -> str:
    """Return a duration for people, e.g. ``3 h 20 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
