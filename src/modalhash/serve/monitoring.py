"""Access log and error log as JSON lines, and metrics for Prometheus.

They contain no tokens, query strings or contents of queries. A thread writes the log, so that a blocked reader drops
lines but does not block the service.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from logging.handlers import QueueHandler, QueueListener
from pathlib import Path
from queue import Full, Queue
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

LOGGER = logging.getLogger("modalhash.serve")
ACCESS_LOGGER = LOGGER.getChild("access")
MAX_LOGGED_PATH = 200
MAX_WAITING_LINES = 4096
"""Maximum number of queued log lines; further ones are dropped."""
PAUSE_SECONDS = 0.05
FLUSH_SECONDS = 1.0
"""Maximum time to wait for the last lines when the service ends."""
SECONDS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FIRST_OF_PROCESSES = ("process_start_time_seconds", "process_max_fds")
"""Metrics of which the minimum over processes is reported; others are summed."""
METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class JSONFormatter(logging.Formatter):
    """Format a record as one JSON object: its ``fields``, or the message for records of other libraries."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", None)
        if fields is None:
            fields = {"event": f"{record.name.partition('.')[0]}: {record.getMessage().strip()}"}
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        return json.dumps({"time": moment, **fields})


class OutputListener(QueueListener):
    """Write lines to stdout or stderr; nothing happens if it is closed.

    ``output`` is an attribute of :mod:`sys`, looked up for every line. A line is one write of the system and bypasses
    the stream: pipes take up to 4,096 bytes atomically, so lines of several workers do not mix, and a thread that is
    blocked within the stream's buffer would keep the process from ending. So would the lock of a handler.
    """

    queue: Queue[logging.LogRecord]

    def __init__(self, queue: Queue[logging.LogRecord], output: str) -> None:
        super().__init__(queue)
        self._output, self._formatter = output, JSONFormatter()

    def dequeue(self, block: bool) -> logging.LogRecord:
        """Return the next line, and let lines gather before that, because waking for each costs 4 % of a search."""
        if self.queue.empty():
            time.sleep(PAUSE_SECONDS)
        return self.queue.get(block)

    def handle(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):
            self._write(self._formatter.format(record) + "\n")

    def _write(self, line: str) -> None:
        stream = getattr(sys, self._output)
        try:
            descriptor = stream.fileno()
        except OSError:  # not a file, for example in a notebook
            stream.write(line)
            stream.flush()
            return
        data = line.encode()
        while data:
            data = data[os.write(descriptor, data) :]


class BackgroundHandler(QueueHandler):
    """Write to stdout or stderr in a thread, so that logging never blocks.

    If the queue is full, lines are dropped; their number is logged as soon as there is room again.
    """

    queue: Queue[logging.LogRecord]

    def __init__(self, output: str) -> None:
        super().__init__(Queue(MAX_WAITING_LINES))
        self._listener = OutputListener(self.queue, output)
        self._is_started = False
        self._n_dropped = 0

    def start(self) -> None:
        """Start the thread unless it runs."""
        if not self._is_started:
            self._listener.start()
            self._is_started = True

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Return the record as it is, because it stays in this process."""
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            if self._n_dropped:
                self.queue.put_nowait(_event_record(f"{self._n_dropped} lines were dropped"))
                self._n_dropped = 0
            self.queue.put_nowait(record)
        except Full:
            self._n_dropped += 1

    def flush(self) -> None:
        """Wait until all lines are written, at most ``FLUSH_SECONDS``."""
        with self.queue.all_tasks_done:
            self.queue.all_tasks_done.wait_for(lambda: not self.queue.unfinished_tasks, FLUSH_SECONDS)


ACCESS_HANDLER = BackgroundHandler("stdout")
ERROR_HANDLER = BackgroundHandler("stderr")


def configure_logging() -> None:
    """Log requests to stdout and errors to stderr, unless the logger ``modalhash.serve`` has a handler."""
    ACCESS_HANDLER.start()
    ERROR_HANDLER.start()
    ACCESS_LOGGER.propagate = bool(LOGGER.handlers) and ERROR_HANDLER not in LOGGER.handlers
    if ACCESS_LOGGER.propagate:
        ACCESS_LOGGER.removeHandler(ACCESS_HANDLER)
    else:
        ACCESS_LOGGER.addHandler(ACCESS_HANDLER)
        LOGGER.addHandler(ERROR_HANDLER)
        LOGGER.setLevel(logging.INFO)
        LOGGER.propagate = False
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # its warnings quote bodies


def flush_logs() -> None:
    ACCESS_HANDLER.flush()
    ERROR_HANDLER.flush()


def _event_record(event: str) -> logging.LogRecord:
    return logging.makeLogRecord({"name": LOGGER.name, "fields": {"event": event}})


def log_event(event: str) -> None:
    """Log an event that needs the operator's attention."""
    LOGGER.warning("%s", event, extra={"fields": {"event": event}})


def log_request(
    number: int, method: str, path: str, status: int, seconds: float, size: int, address: str, who: str | None
) -> None:
    """Log a finished request, with its address and the name of its token."""
    path = path if len(path) <= MAX_LOGGED_PATH else f"{path[:MAX_LOGGED_PATH]}…"
    fields = {"request": number, "method": method, "path": path, "status": status}
    fields |= {"ms": round(1000 * seconds, 2), "bytes": size, "address": address}
    if who is not None:
        fields["who"] = who
    if ACCESS_LOGGER.isEnabledFor(logging.INFO):
        # created directly, because the logger would search the stack for the caller
        record = logging.LogRecord(
            ACCESS_LOGGER.name, logging.INFO, __file__, 0, "%s %r %d", (method, path, status), None
        )
        record.fields = fields
        ACCESS_LOGGER.handle(record)


def log_exception(number: int, error: BaseException) -> None:
    """Log where an unexpected error happened, without its message, because it may quote the request."""
    name = type(error).__name__
    where = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    fields = {"request": number, "error": name, "where": where}
    LOGGER.error("%s in request %d\n%s", name, number, where, extra={"fields": fields})


class _Registry(CollectorRegistry):
    """Drop ``_created`` samples; the client library's own switch applies to the whole process."""

    def collect(self) -> Iterable[Metric]:
        for metric in super().collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


class _State(Collector):
    """Collect gauges, and process metrics of all workers."""

    def __init__(self, started: float, pids: Callable[[], Sequence[int]]) -> None:
        self._started, self._pids = started, pids
        self.items: Mapping[str, int] = {}

    def collect(self) -> Iterable[Metric]:
        items = GaugeMetricFamily("modalhash_items", "Items in the engine.", labels=["modality"])
        for modality, n in self.items.items():
            items.add_metric([modality], n)
        yield items
        uptime = time.monotonic() - self._started
        yield GaugeMetricFamily("modalhash_uptime_seconds", "Time since the service started.", value=uptime)
        yield from self._processes()

    def _processes(self) -> Iterable[Metric]:
        found: dict[str, list[Metric]] = {}
        for pid in self._pids():
            for metric in ProcessCollector(pid=partial(int, pid), registry=None).collect():
                found.setdefault(metric.name, []).append(metric)
        for name, metrics in found.items():
            values = [metric.samples[0].value for metric in metrics]
            value = min(values) if name in FIRST_OF_PROCESSES else sum(values)
            metrics[0].samples = [metrics[0].samples[0]._replace(value=value)]
            yield metrics[0]


class Metrics:
    """Metrics of one service, with its own registry.

    Parameters
    ----------
    started : float, optional
        When the service started, by :func:`time.monotonic`.
    pids : callable, optional
        Returns the process ids of the service.
    folder : Path, optional
        Folder shared by several workers; the client library's environment variable must be set before its import.
    """

    def __init__(
        self,
        *,
        started: float | None = None,
        pids: Callable[[], Sequence[int]] = lambda: [os.getpid()],
        folder: Path | None = None,
    ) -> None:
        self.registry = _Registry()
        self.requests_in_flight = 0
        """Requests in flight in this process; changed only by the event loop's thread."""
        self._folder = folder
        self._state = _State(time.monotonic() if started is None else started, pids)
        self._in_flight = Gauge(
            "modalhash_requests_under_way", "Requests in flight.", registry=self.registry, multiprocess_mode="livesum"
        )
        self._requests = Counter(
            "modalhash_requests_total",
            "Requests that were answered.",
            ["route", "method", "status"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "modalhash_request_seconds",
            "Time from the headers of a request to its response.",
            ["route"],
            buckets=SECONDS_BUCKETS,
            registry=self.registry,
        )
        self._searches = Counter(
            "modalhash_searches_total", "Searches by kind of query.", ["by"], registry=self.registry
        )
        self._batches = Histogram(
            "modalhash_batch_size",
            "Jobs per batch, by stage.",
            ["stage"],
            buckets=SIZE_BUCKETS,
            registry=self.registry,
        )

        self._children: dict[tuple[Any, ...], Any] = {}

    def _labelled(self, metric: Any, *values: Any) -> Any:
        """Return the child of a metric for these labels, cached because the client library is slow."""
        child = self._children.get((metric, *values))
        if child is None:
            child = self._children[metric, *values] = metric.labels(*values)
        return child

    def count_in_flight(self, n: int) -> None:
        self.requests_in_flight += n
        self._in_flight.set(self.requests_in_flight)

    def count_request(self, route: str, method: str, status: int, seconds: float) -> None:
        self._labelled(self._requests, route, method, status).inc()
        self._labelled(self._seconds, route).observe(seconds)

    def count_search(self, by: str) -> None:
        """Count a search by text, id or image."""
        self._labelled(self._searches, by).inc()

    def count_batch(self, stage: str, size: int) -> None:
        self._labelled(self._batches, stage).observe(size)

    def text(self, items: Mapping[str, int]) -> bytes:
        """Return all metrics in Prometheus's text format, with the number of items by modality."""
        self._state.items = items
        counted = self.registry
        if self._folder is not None:
            counted = _Registry()
            MultiProcessCollector(counted, str(self._folder))  # type: ignore[no-untyped-call]
        state = _Registry()
        state.register(self._state)
        return bytes(generate_latest(counted) + generate_latest(state))
