"""Counters for Prometheus, written by hand: its text format is a line per number."""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Histogram:
    """How many values were up to each bound."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.total = bounds, 0.0
        self._counts = [0] * (len(bounds) + 1)

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str, labels: str) -> Iterator[str]:
        """The lines of one histogram."""
        *below, everything = accumulate(self._counts)
        for bound, count in zip(self.bounds, below, strict=True):
            yield f'{name}_bucket{{{labels},le="{bound:g}"}} {count}'
        yield f'{name}_bucket{{{labels},le="+Inf"}} {everything}'
        yield f"{name}_sum{{{labels}}} {self.total:.6f}"
        yield f"{name}_count{{{labels}}} {everything}"


class Metrics:
    """What the service has done since it started. Only the event loop's thread writes here."""

    def __init__(self) -> None:
        self.started = time.time()
        self.under_way = 0
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.seconds: dict[str, Histogram] = {}
        self.searches: Counter[str] = Counter()
        self.batches: dict[str, Histogram] = {}

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """A request that is done."""
        self.requests[route, method, status] += 1
        self.seconds.setdefault(route, Histogram(SECONDS)).add(seconds)

    def batch(self, stage: str, size: int) -> None:
        """A call that did several jobs at once."""
        self.batches.setdefault(stage, Histogram(SIZES)).add(size)

    def text(self, items: Mapping[str, int]) -> str:
        """Everything in Prometheus's text format."""
        return "\n".join([*self._requests(), *self._searches(), *self._state(items), ""])

    def _requests(self) -> Iterator[str]:
        yield from _about("modalhash_requests_total", "counter", "Requests that were answered.")
        for (route, method, status), n in sorted(self.requests.items()):
            yield f'modalhash_requests_total{{route="{route}",method="{method}",status="{status}"}} {n}'
        yield from _about("modalhash_request_seconds", "histogram", "Time from the head of a request to its answer.")
        for route, histogram in sorted(self.seconds.items()):
            yield from histogram.lines("modalhash_request_seconds", f'route="{route}"')

    def _searches(self) -> Iterator[str]:
        yield from _about("modalhash_searches_total", "counter", "Searches by what was searched for.")
        for kind, n in sorted(self.searches.items()):
            yield f'modalhash_searches_total{{by="{kind}"}} {n}'
        yield from _about("modalhash_batch_size", "histogram", "Jobs that were done together, by stage.")
        for stage, histogram in sorted(self.batches.items()):
            yield from histogram.lines("modalhash_batch_size", f'stage="{stage}"')

    def _state(self, items: Mapping[str, int]) -> Iterator[str]:
        yield from _about("modalhash_items", "gauge", "Items in the engine.")
        for modality, n in items.items():
            yield f'modalhash_items{{modality="{_escaped(modality)}"}} {n}'
        yield from _about("modalhash_requests_under_way", "gauge", "Requests that are not answered yet.")
        yield f"modalhash_requests_under_way {self.under_way}"
        yield from _about("modalhash_uptime_seconds", "gauge", "Time since the service started.")
        yield f"modalhash_uptime_seconds {time.time() - self.started:.1f}"
        if (size := resident_bytes()) is not None:
            yield from _about("process_resident_memory_bytes", "gauge", "Memory of the process.")
            yield f"process_resident_memory_bytes {size}"


def resident_bytes() -> int | None:
    """Memory that this process takes, where the system tells."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None


def _about(name: str, kind: str, what: str) -> Iterator[str]:
    yield f"# HELP {name} {what}"
    yield f"# TYPE {name} {kind}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
