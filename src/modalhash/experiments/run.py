"""Run cells: plan the missing ones, estimate their time and measure them in worker processes.

Every result is written when it arrives, so an interrupted run can be resumed. A worker that dies loses only its current
cell.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from math import log
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from statistics import median
from typing import Any

from threadpoolctl import threadpool_limits

from modalhash.experiments.config import Cell, Grid, cells_of, unique
from modalhash.experiments.measure import Loader, measure, parts_under, prepare
from modalhash.experiments.provenance import THREADS, Input, describe
from modalhash.experiments.results import Results
from modalhash.experiments.timing import describe_work, growth_of, nearest_to_mean, time_small_fits


@dataclass
class Plan:
    """Cells to measure, and data sets that are missing or unreadable."""

    cells: list[Cell] = field(default_factory=list)
    by_grid: dict[str, list[Cell]] = field(default_factory=dict)
    inputs: dict[str, Input] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    """Data set → how to get it."""
    broken: dict[str, str] = field(default_factory=dict)
    """Data set → why it could not be read."""

    def look(self, source: Input, root: Path | None) -> bool:
        """Load a data set once for its digest; record the problem if that fails."""
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
        except Exception as error:  # a bad file must not prevent the others from running
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
    """List every cell of the grids on the available data, each once."""
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
    """Write the data sets to the results, so that reports need nothing else."""
    for facts in plan.facts.values():
        results.write_dataset(facts)


@dataclass(frozen=True)
class Event:
    """A cell has finished, or has started if ``result`` is not set."""

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
    estimates: Estimates | None = None,
) -> int:
    """Measure the cells missing in the results, and return how many failed.

    An interrupt stops the workers and is raised again; their cells are measured by the next run. The remaining time is
    estimated from ``estimates`` (by default from the results) and the cells measured so far.
    """
    missing = [cell for cell in plan.cells if not results.done(cell, retry=retry)]
    estimates = Estimates(results, plan.facts) if estimates is None else estimates
    queue = list(reversed(missing))
    workers: list[CellWorker] = []
    done = failed = 0

    def report(cell: Cell, result: dict[str, Any] | None) -> None:
        if notify is not None:
            notify(Event(cell, result, done, failed, len(missing), _seconds_left(estimates, queue, workers) / jobs))

    try:
        while queue or any(worker.cell for worker in workers):
            while queue and (idle := _idle(workers, jobs, plan.inputs, root)) is not None:
                cell = queue.pop()
                idle.give(cell)
                report(cell, None)
            for worker, cell in _ready(workers):
                warm = worker.warm
                result = {"error": f"took longer than {cell.limit_seconds:g} s"} if worker.late else worker.take()
                if not worker.process.is_alive() or worker.cell is not None:
                    worker.stop()
                    workers.remove(worker)
                results.write(cell, result)
                done, failed = done + 1, failed + ("error" in result)
                if warm:
                    estimates.learn(cell, result)
                report(cell, result)
    finally:
        for worker in workers:
            worker.stop()
    return failed


def _idle(workers: list[CellWorker], jobs: int, inputs: Mapping[str, Input], root: Path | None) -> CellWorker | None:
    for worker in workers:
        if worker.cell is None:
            return worker
    if len(workers) < jobs:
        workers.append(CellWorker(inputs, root))
        return workers[-1]
    return None


def _ready(workers: list[CellWorker]) -> list[tuple[CellWorker, Cell]]:
    """Return workers that have a result, died or are late, with their cells; wait for up to one second."""
    busy = {worker.connection: (worker, worker.cell) for worker in workers if worker.cell is not None}
    ready = [busy[connection] for connection in wait(list(busy), timeout=1.0) if isinstance(connection, Connection)]
    return ready + [entry for entry in busy.values() if entry[0].late and entry not in ready]


class CellWorker:
    """A process that measures one cell at a time with one BLAS thread; the data of its last cell stay in memory."""

    def __init__(self, inputs: Mapping[str, Input], root: Path | None) -> None:
        context = get_context("spawn")  # a forked BLAS may hang, and already has its threads
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, dict(inputs), root), daemon=True)
        with _one_thread():
            self.process.start()
        other.close()
        self.cell: Cell | None = None
        self.since = 0.0
        self.warm = False
        """Whether it has measured a cell; the time of the first one includes loading libraries."""

    def give(self, cell: Cell) -> None:
        self.cell, self.since = cell, time.perf_counter()
        self.connection.send_bytes(json.dumps({"cell": asdict(cell)}).encode())

    def time(self, cell: Cell, n_fits: int, n_methods: int) -> float | None:
        """Return the seconds of a cell estimated from small fits; raise TimeoutError if there is no answer."""
        message = {"cell": asdict(cell), "n_fits": n_fits, "n_methods": n_methods}
        self.connection.send_bytes(json.dumps(message).encode())
        if not self.connection.poll(LONGEST_TIMING):
            raise TimeoutError(f"{cell.method}: no small fit within {LONGEST_TIMING:g} s")
        seconds: float | None = json.loads(self.connection.recv_bytes())
        return seconds

    @property
    def late(self) -> bool:
        limit = self.cell.limit_seconds if self.cell else None
        return limit is not None and time.perf_counter() - self.since > limit

    def take(self) -> dict[str, Any]:
        try:
            result: dict[str, Any] = json.loads(self.connection.recv_bytes())
        except (EOFError, ConnectionError):
            self.process.join()
            code = self.process.exitcode
            reason = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
            result = {"error": f"the process died ({reason}); out of memory is the usual cause"}
        self.cell, self.warm = None, True
        return result

    def stop(self) -> None:
        self.process.terminate()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.connection.close()


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Set the environment variables of processes started in the block."""
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
    """Measure the received cells, or time small fits of them, until the connection closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from modalhash.experiments.provenance import describe_environment

    environment = None
    load = Loader(inputs, root)
    while True:
        try:
            message = json.loads(connection.recv_bytes())
        except EOFError:
            return
        cell = Cell(**message.pop("cell"))
        if message:
            connection.send_bytes(json.dumps(_time_cell(load, cell, **message)).encode())
            continue
        start = time.time()
        try:
            result = measure(cell, load)
        except Exception as error:  # a failed cell is a result and must not end the run
            trace = traceback.format_exc().splitlines()[-8:]
            result = {"error": f"{type(error).__name__}: {error}", "traceback": trace}
        environment = environment or describe_environment()  # after the first fit, when the BLAS is loaded
        result |= {"environment": environment, "started": round(start), "took": round(time.time() - start, 3)}
        connection.send_bytes(json.dumps(result).encode())


def _end_with_parent() -> None:
    """Exit if the parent process dies."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


LONGEST_TIMING = 60.0
"""Time limit in seconds for small fits of a method, which take a few seconds unless it hangs."""
BASE_BITS = 64
"""The time of a fit with b bits is proportional to b + 64."""


class Estimates:
    """Expected seconds of a cell, including its evaluation, from the times of cells of the same method.

    The nearest ones count: on the same data set if possible, then by size, then by code length. Their median is scaled
    by the growth that the registry states for the method.
    """

    def __init__(self, results: Results, facts: Mapping[str, Mapping[str, Any]]) -> None:
        self._items = {name: int(one["training"]) for name, one in {**results.datasets(), **facts}.items()}
        self._seen: dict[str, dict[tuple[str, int], list[float]]] = {}
        self._guesses: dict[str, tuple[tuple[str, int], float]] = {}
        for result in results.everything():
            made = result["configuration"]
            if made["dataset"] in self._items:
                self._add(made["method"], made["dataset"], made["bits"], result)

    def learn(self, cell: Cell, result: Mapping[str, Any]) -> None:
        self._add(cell.method, cell.dataset, cell.bits, result)

    def _add(self, method: str, dataset: str, bits: int, result: Mapping[str, Any]) -> None:
        if "took" in result and "error" not in result:
            self._seen.setdefault(method, {}).setdefault((dataset, bits), []).append(result["took"])

    def time_small_fits(
        self, cells: Sequence[Cell], inputs: Mapping[str, Input], root: Path | None, *, apart: bool = True
    ) -> None:
        """Fit samples with the methods of these cells without known times, each on the smallest of its data sets.

        BLAS uses one thread, as in the workers. ``apart`` fits in a separate process, so that a method that crashes or
        hangs loses only its estimate.
        """
        waiting: dict[str, dict[str, list[Cell]]] = {}
        for cell in sorted(cells, key=lambda cell: self._items[cell.dataset]):
            if cell.method not in self._seen:
                waiting.setdefault(cell.method, {}).setdefault(cell.dataset, []).append(cell)
        with contextlib.closing(_Timer(inputs, root)) as timer:
            load = Loader(inputs, root)
            time_cell = timer if apart else partial(_time_cell, load)
            for method, by_dataset in waiting.items():
                n_fits = sum(map(len, by_dataset.values()))
                for dataset, own in by_dataset.items():  # the method may fail on some
                    bits = nearest_to_mean([cell.bits for cell in own])
                    chosen = next(cell for cell in own if cell.bits == bits)
                    seconds = time_cell(chosen, n_fits, len(waiting))
                    if seconds is not None:
                        self._guesses[method] = (dataset, bits), seconds
                        break

    def __call__(self, cell: Cell) -> float | None:
        """Return the expected seconds; None if no cell of the method was timed."""
        times = self._seen.get(cell.method, {})
        if cell.method in self._guesses and not any(dataset == cell.dataset for dataset, _ in times):
            place, seconds = self._guesses[cell.method]
            times = {**times, place: [seconds]}
        if not times:
            return None
        items = self._items[cell.dataset]

        def distance(place: tuple[str, int]) -> tuple[bool, float, float]:
            dataset, bits = place
            return dataset != cell.dataset, abs(log(self._items[dataset] / items)), abs(log(bits / cell.bits))

        dataset, bits = nearest = min(times, key=distance)
        growth = (items / self._items[dataset]) ** growth_of(cell.method)
        return median(times[nearest]) * growth * (cell.bits + BASE_BITS) / (bits + BASE_BITS)


def describe_plan(cells: Sequence[Cell], estimates: Estimates, jobs: int) -> str:
    """Return the number of fits and their time, e.g. ``12 fits, about 9 s (amsh 1.2 s a fit)``."""
    by_method: dict[str, list[float | None]] = {}
    for cell in cells:
        by_method.setdefault(cell.method, []).append(estimates(cell))
    known = {name: [one for one in seconds if one is not None] for name, seconds in by_method.items()}
    each = {name: sum(seconds) / len(seconds) if seconds else None for name, seconds in known.items()}
    return describe_work(len(cells), sum(map(sum, known.values())) / jobs, each)


def _seconds_left(estimates: Estimates, queue: Sequence[Cell], workers: Sequence[CellWorker]) -> float:
    """Return the remaining seconds; cells of methods without known times count like the others."""
    now = time.perf_counter()
    known = [seconds for cell in queue if (seconds := estimates(cell)) is not None]
    running = [max(0.0, (estimates(worker.cell) or 0.0) - (now - worker.since)) for worker in workers if worker.cell]
    return sum(known) * len(queue) / max(1, len(known)) + sum(running)


class _Timer:
    """Times small fits in a separate process, which is replaced if it dies or hangs."""

    def __init__(self, inputs: Mapping[str, Input], root: Path | None) -> None:
        self._inputs, self._root = inputs, root
        self._worker: CellWorker | None = None

    def __call__(self, cell: Cell, n_fits: int, n_methods: int) -> float | None:
        self._worker = self._worker or CellWorker(self._inputs, self._root)
        try:
            return self._worker.time(cell, n_fits, n_methods)
        except (EOFError, ConnectionError, TimeoutError):
            self.close()
            return None

    def close(self) -> None:
        if self._worker is not None:
            self._worker.stop()
            self._worker = None


def _time_cell(load: Loader, cell: Cell, n_fits: int, n_methods: int) -> float | None:
    with threadpool_limits(1):
        return time_small_fits(
            lambda dataset: prepare(cell, *parts_under(dataset, cell.scenario, cell.seed)),
            load.dataset(cell.dataset, cell.seed),
            method=cell.method,
            bits=cell.bits,
            n_fits=n_fits,
            n_methods=n_methods,
        )
