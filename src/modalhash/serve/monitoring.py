"""What an operator sees of the service: a log of JSON lines, and metrics for Prometheus.

Neither holds tokens, query strings or the contents of queries.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
import traceback
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, ProcessCollector, generate_latest

LOGGER = logging.getLogger("modalhash.serve")
ACCESS_LOGGER = LOGGER.getChild("access")
MAX_LOGGED_PATH = 200
SECONDS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


# -- log


class JSONFormatter(logging.Formatter):
    """Formats a record as one JSON object: its ``fields``, or for records of other libraries their message."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = getattr(record, "fields", None)
        if fields is None:
            fields = {"event": f"{record.name.partition('.')[0]}: {record.getMessage().strip()}"}
        return json.dumps({"time": moment, **fields})


class StderrHandler(logging.Handler):
    """Writes to the error output; a line that cannot be written is dropped, because the service has to go on.

    The standard handler reports its errors on the error output, which fails once more where that is closed.
    """

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()


def make_handler() -> logging.Handler:
    """Return a handler that writes JSON lines to the error output."""
    handler = StderrHandler()
    handler.setFormatter(JSONFormatter())
    return handler


def configure_logging() -> None:
    """Log to the error output, unless the program has given the logger ``modalhash.serve`` a handler of its own."""
    if not LOGGER.handlers:
        LOGGER.addHandler(make_handler())
        LOGGER.setLevel(logging.INFO)
        LOGGER.propagate = False


def log_request(number: int, method: str, path: str, status: int, seconds: float, size: int) -> None:
    """Log a request that is finished."""
    path = path if len(path) <= MAX_LOGGED_PATH else f"{path[:MAX_LOGGED_PATH]}…"
    fields = {"request": number, "method": method, "path": path, "status": status}
    fields |= {"ms": round(1000 * seconds, 2), "bytes": size}
    ACCESS_LOGGER.info("%s %r %d", method, path, status, extra={"fields": fields})


def log_exception(number: int, error: BaseException) -> None:
    """Log where an unexpected error happened. Its message is left out, because it may quote the request."""
    name = type(error).__name__
    where = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    fields = {"request": number, "error": name, "where": where}
    LOGGER.error("%s in request %d\n%s", name, number, where, extra={"fields": fields})


# -- metrics


class _Registry(CollectorRegistry):
    """Leaves out ``_created`` samples; the client's own switch for that is one for the whole process."""

    def collect(self) -> Iterable[Metric]:
        for metric in super().collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


class Metrics:
    """What one service has done since it started; each has a registry of its own."""

    def __init__(self) -> None:
        self.registry = _Registry()
        self.requests_under_way = 0
        """Only the event loop's thread changes it."""
        self._requests = Counter(
            "modalhash_requests_total",
            "Requests that were answered.",
            ["route", "method", "status"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "modalhash_request_seconds",
            "Time from the head of a request to its answer.",
            ["route"],
            buckets=SECONDS_BUCKETS,
            registry=self.registry,
        )
        self._searches = Counter(
            "modalhash_searches_total", "Searches by what was searched for.", ["by"], registry=self.registry
        )
        self._batches = Histogram(
            "modalhash_batch_size",
            "Jobs that were done together, by stage.",
            ["stage"],
            buckets=SIZE_BUCKETS,
            registry=self.registry,
        )
        self._items = Gauge("modalhash_items", "Items in the engine.", ["modality"], registry=self.registry)
        under_way = Gauge("modalhash_requests_under_way", "Requests that are not answered yet.", registry=self.registry)
        under_way.set_function(lambda: self.requests_under_way)
        started = time.monotonic()
        uptime = Gauge("modalhash_uptime_seconds", "Time since the service started.", registry=self.registry)
        uptime.set_function(lambda: time.monotonic() - started)
        ProcessCollector(registry=self.registry)  # process_resident_memory_bytes and the like

    def count_request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request that is finished."""
        self._requests.labels(route, method, status).inc()
        self._seconds.labels(route).observe(seconds)

    def count_search(self, by: str) -> None:
        """Count a search by text, id or image."""
        self._searches.labels(by).inc()

    def count_batch(self, stage: str, size: int) -> None:
        """Count a call that did several jobs at once."""
        self._batches.labels(stage).observe(size)

    def text(self, items: Mapping[str, int]) -> bytes:
        """Return all metrics in Prometheus's text format, with these numbers of items by modality."""
        for modality, n in items.items():
            self._items.labels(modality).set(n)
        return generate_latest(self.registry)
