"""Serve an engine from several worker processes at one port, started and replaced by a supervisor.

Each worker opens the engine itself and follows the revision of the store, so every search sees earlier changes of all
workers. The supervisor restarts workers that end. At SIGHUP it replaces all of them, one at a time; the new worker
accepts connections before the old one stops.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from math import ceil
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

from prometheus_client.multiprocess import mark_process_dead

from modalhash.core.files import temporary_folder
from modalhash.engine import Engine
from modalhash.serve.limits import Limits, Settings
from modalhash.serve.monitoring import ERROR_HANDLER, LOGGER, configure_logging, log_event
from modalhash.serve.server import RETIRE, run
from modalhash.serve.worker_state import ProcessState

OpenEngine = Callable[[], Engine]
"""Opens the engine in a worker; must be picklable."""
SHARED_LIMITS = (
    "all_bytes",
    "thumbnails",
    "requests",
    "requests_per_address",
    "connections",
    "connections_per_address",
    "bodies_per_address",
    "unread_bytes",
    "wrong_tokens",
)
"""Limits of which each worker gets its share."""
READY, FAILED = "ready", "failed"
METRICS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
FIRST_DELAY, LAST_DELAY = 0.5, 30.0
"""Seconds before a worker that failed to start is restarted; the delay doubles each time."""
KILL_SECONDS = 10.0
"""Time for workers to exit, in addition to the time limit of a request."""


class WorkerError(ValueError):
    """A worker could not start; the message is that of the worker."""


def run_workers(
    n_workers: int,
    open_engine: OpenEngine,
    settings: Settings,
    sock: socket.socket,
    *,
    on_ready: Callable[[], None],
) -> None:
    """Serve an engine from several processes until a signal to stop.

    At SIGTERM or SIGINT, workers answer requests in flight and exit; at SIGHUP, they are replaced one at a time.

    Parameters
    ----------
    n_workers : int
        Number of worker processes.
    open_engine : callable
        Opens the engine in a worker.
    settings : Settings
        Settings of the service. A worker gets its share of the limits.
    sock : socket
        Listening socket, see :func:`~modalhash.serve.bind`.
    on_ready : callable
        Called once, when all workers accept connections.
    """
    with temporary_folder("modalhash-serve") as folder:
        Supervisor(n_workers, open_engine, settings, sock, folder, on_ready).run()


def _work(
    open_engine: OpenEngine, settings: Settings, sock: socket.socket, seat: ProcessState, control: Connection
) -> None:
    with suppress(OSError):  # the terminal's signals go to the supervisor, which forwards them
        os.setpgrp()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        seat.enter()
        engine = open_engine()
    except Exception as error:
        control.send((FAILED, " ".join(str(error).split()) or type(error).__name__))
        raise SystemExit(1) from None
    with engine:
        run(engine, settings, sock, on_ready=lambda: control.send((READY, "")), seat=seat, control=control)


def share_limits(limits: Limits, n_workers: int) -> Limits:
    """Return the limits of one worker: its share of all that is counted."""
    shares = {name: ceil(getattr(limits, name) / n_workers) for name in SHARED_LIMITS}
    shares["all_bytes"] = max(shares["all_bytes"], limits.bytes + limits.json_bytes)
    return replace(limits, **shares)


@dataclass(eq=False)
class _WorkerProcess:
    """A worker process, from its start to its exit."""

    process: BaseProcess
    control: Connection
    slot: int
    is_ready: bool = False
    is_leaving: bool = False
    successor_of: _WorkerProcess | None = None
    """Worker that it will replace; None once it is ready."""
    problem: str = ""


class Supervisor:
    """Start workers, replace those that end, and stop all at a signal."""

    def __init__(
        self,
        n_workers: int,
        open_engine: OpenEngine,
        settings: Settings,
        sock: socket.socket,
        folder: Path,
        on_ready: Callable[[], None],
    ) -> None:
        self._n, self._open_engine, self._sock, self._on_ready = n_workers, open_engine, sock, on_ready
        self._settings = replace(settings, limits=share_limits(settings.limits, n_workers))
        self._context = multiprocessing.get_context("spawn")
        self._metrics_folder = folder / "metrics"
        self._metrics_folder.mkdir()
        self._seat = ProcessState(folder=folder)
        """State of the next worker."""
        self._workers: list[_WorkerProcess] = []
        self._to_replace: set[int] = set()
        """Slots whose workers were there at the last SIGHUP."""
        self._retries: dict[int, float] = {}
        """Time before which a slot whose worker failed to start stays vacant."""
        self._failures: dict[int, int] = {}
        self._was_ready = False
        self._is_stopping = False
        self._kill_at = float("inf")

    def run(self) -> None:
        configure_logging()
        with _signals() as signals:
            try:
                self._fill_slots()
                while self._workers or not self._is_stopping:
                    self._run_once(signals)
            finally:
                for worker in self._workers:  # only after an error
                    worker.process.terminate()
                for worker in self._workers:
                    worker.process.join(KILL_SECONDS)
                ERROR_HANDLER.flush()

    def _run_once(self, signals: socket.socket) -> None:
        """Wait for an event and handle it; then start the workers that are missing or to be replaced."""
        channels = {worker.control: worker for worker in self._workers if not worker.control.closed}
        sentinels = {worker.process.sentinel: worker for worker in self._workers}
        happened = wait([signals, *channels, *sentinels], self._seconds_to_wait())
        for channel, worker in channels.items():
            if channel in happened:
                self._on_message(worker)
        for sentinel, worker in sentinels.items():
            if sentinel in happened:
                self._on_exit(worker)
        if signals in happened:
            for number in signals.recv(64):
                self._on_signal(number)
        if not self._is_stopping:
            self._fill_slots()
            self._replace_next()
        if time.monotonic() >= self._kill_at:
            for worker in self._workers:
                worker.process.kill()

    def _seconds_to_wait(self) -> float | None:
        moment = min([self._kill_at, *(self._retries[slot] for slot in self._vacant() if not self._is_stopping)])
        return None if moment == float("inf") else max(0.0, moment - time.monotonic())

    def _vacant(self) -> list[int]:
        """Return the slots without a worker that stays."""
        filled = {worker.slot for worker in self._workers if not worker.is_leaving}
        return [slot for slot in range(self._n) if slot not in filled]

    def _fill_slots(self) -> None:
        for slot in self._vacant():
            if time.monotonic() >= self._retries.get(slot, 0.0):
                self._start(slot)

    def _replace_next(self) -> None:
        """Start a successor for the next worker in ``_to_replace``, unless another replacement is in progress."""
        if any(one.is_leaving or one.successor_of for one in self._workers):
            return
        ready = {worker.slot: worker for worker in self._workers if worker.is_ready}
        if (slot := next((slot for slot in self._to_replace if slot in ready), None)) is not None:
            self._start(slot, successor_of=ready[slot])

    def _start(self, slot: int, successor_of: _WorkerProcess | None = None) -> None:
        self._to_replace.discard(slot)
        try:
            self._workers.append(self._spawn(slot, successor_of))
        except OSError as error:  # e.g. no memory for a process
            if not self._was_ready:
                raise
            log_event(f"worker {slot + 1} cannot be started: {error}")
            self._on_failure(slot, is_successor=successor_of is not None)

    def _spawn(self, slot: int, successor_of: _WorkerProcess | None) -> _WorkerProcess:
        control, their_end = self._context.Pipe()
        arguments = (self._open_engine, self._settings, self._sock, self._seat, their_end)
        process = self._context.Process(target=_work, args=arguments, name=f"worker {slot + 1}")
        with their_end, _environment(METRICS_VARIABLE, str(self._metrics_folder)):
            process.start()
        self._seat = replace(self._seat, worker=self._seat.worker + 1)
        return _WorkerProcess(process, control, slot, successor_of=successor_of)

    def _on_message(self, worker: _WorkerProcess) -> None:
        try:
            kind, text = worker.control.recv()
        except (EOFError, OSError):  # the worker has ended, as its sentinel shows too
            worker.control.close()
            return
        if kind == FAILED:
            worker.problem = text
            return
        worker.is_ready = True
        self._failures.pop(worker.slot, None)
        self._retries.pop(worker.slot, None)
        if worker.successor_of in self._workers:
            self._retire(worker.successor_of)
        worker.successor_of = None
        if not self._was_ready and sum(one.is_ready for one in self._workers) == self._n:
            self._was_ready = True
            self._on_ready()

    @staticmethod
    def _retire(worker: _WorkerProcess) -> None:
        """Let a worker close its connections one by one and exit."""
        worker.is_leaving = True
        with suppress(OSError):
            worker.control.send(RETIRE)

    def _on_exit(self, worker: _WorkerProcess) -> None:
        """Clean up after a worker that has ended, and restart or replace it."""
        if not worker.control.closed and worker.control.poll():
            self._on_message(worker)  # its error message, if any
        worker.process.join()
        worker.control.close()
        self._workers.remove(worker)
        if (pid := worker.process.pid) is not None:
            self._seat.leave(pid)
            mark_process_dead(pid, str(self._metrics_folder))  # type: ignore[no-untyped-call]
        if self._is_stopping:
            return
        if not self._was_ready:
            raise WorkerError(
                worker.problem or f"a worker exited with code {worker.process.exitcode} before it was ready"
            )
        _log("worker_replaced" if worker.is_leaving else "worker_ended", worker)
        if not worker.is_ready:
            self._on_failure(worker.slot, is_successor=worker.successor_of is not None)

    def _on_failure(self, slot: int, *, is_successor: bool) -> None:
        """Delay the next attempt to fill a slot; if a successor failed, replace no further workers."""
        if is_successor:
            self._to_replace.clear()
        failures = self._failures[slot] = self._failures.get(slot, 0) + 1
        self._retries[slot] = time.monotonic() + min(LAST_DELAY, FIRST_DELAY * 2 ** min(failures - 1, 10))

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGHUP:
            if self._was_ready:
                self._to_replace = set(range(self._n))
            return
        self._is_stopping = True
        self._kill_at = time.monotonic() + self._settings.limits.request_seconds + KILL_SECONDS
        for worker in self._workers:
            pid = worker.process.pid
            if pid is not None and worker.process.exitcode is None:
                os.kill(pid, number)


def _log(event: str, worker: _WorkerProcess) -> None:
    fields = {
        "event": event,
        "worker": worker.slot + 1,
        "pid": worker.process.pid,
        "exit_code": worker.process.exitcode,
    }
    if worker.problem:
        fields["message"] = worker.problem
    LOGGER.log(logging.INFO if worker.is_leaving else logging.WARNING, event, extra={"fields": fields})


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Set an environment variable for processes started in the block."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """Provide a socket from which signal numbers can be read."""

    def ignore(number: int, frame: FrameType | None) -> None:
        """Do nothing; Python writes the signal number to the socket."""

    reader, writer = socket.socketpair()
    with reader, writer:
        for end in (reader, writer):
            end.setblocking(False)
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        handlers = {number: signal.signal(number, ignore) for number in numbers}
        descriptor = signal.set_wakeup_fd(writer.fileno())
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(descriptor)
            for number, handler in handlers.items():
                signal.signal(number, handler)
