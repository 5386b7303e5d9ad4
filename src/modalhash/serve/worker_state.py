"""Counters shared by the workers of a service.

Limits apply to the whole service, so its workers count in a memory-mapped file. Each worker writes its own row and
reads all rows, so no lock is needed. The supervisor clears the row of a worker that has ended.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import NamedTuple, TypeAlias

from modalhash.serve.auth import WrongTokens

N_BUCKETS, N_HASHES = 4096, 2
"""Each address is counted in N_HASHES buckets, of which the minimum is used, as in a count-min sketch."""
TALLIES = ("connections", "requests", "bodies", "wrong tokens", "windows")
_PID, _IN_FLIGHT, _NUMBER, _N_FIELDS = 0, 1, 2, 3
_ROW = _N_FIELDS + len(TALLIES) * N_HASHES * N_BUCKETS
_CHANGED = 0
_N_COMMON = 1
_BYTES = 8
ALL_ADDRESSES = ""
"""Address that counts all addresses together."""


class LocalCounter:
    """Count by address in this process."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, address: str, n: int) -> None:
        self._counts[address] += n
        if not self._counts[address]:
            del self._counts[address]

    def total(self, address: str) -> int:
        return self._counts[address]


class ProcessState:
    """State of a process of the service; this class is for a single process."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.cookie_key = secrets.token_bytes(32)
        self.metrics_folder: Path | None = None
        """Prometheus folder shared by several workers."""
        self._numbers = count(1)

    def next_number(self) -> int:
        """Return the next request number, unique within the service."""
        return next(self._numbers)

    def pids(self) -> list[int]:
        return [os.getpid()]

    def all_in_flight(self, own: int) -> int:
        """Record the number of requests in flight in this process; return that of the service."""
        return own

    def tally(self, name: str) -> AddressCounter:
        """Return the counter ``name`` shared by all workers."""
        return LocalCounter()

    def has_more_connections(self, waiting: int) -> bool:
        """Return whether this worker has more connections than another, with ``waiting`` not yet counted."""
        return False

    def wrong_tokens(self, limit: int, seconds: float) -> WrongTokenCount:
        return WrongTokens(limit, seconds)

    def note_change(self, generation: str | None) -> None:
        """Record which engine a change was made in, before it is acknowledged."""

    def is_changed_elsewhere(self, generation: str | None) -> bool:
        """Return whether the last change was made in another engine."""
        return False


class SharedCounters:
    """Memory-mapped counters of all workers, in a file made by :meth:`create`."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self.values = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
        self.n_rows = (len(self.values) - _N_COMMON) // _ROW

    @classmethod
    def create(cls, path: Path, n_rows: int) -> SharedCounters:
        with path.open("xb") as file:
            file.truncate(_BYTES * (_N_COMMON + n_rows * _ROW))
        return cls(path)

    def field(self, row: int, field: int) -> int:
        """Return the offset of a field of a worker."""
        return _N_COMMON + row * _ROW + field

    def cell(self, row: int, tally: int, bucket: int) -> int:
        """Return the offset of a counter of a worker."""
        return self.field(row, _N_FIELDS + tally * N_HASHES * N_BUCKETS + bucket)

    def clear(self, row: int) -> None:
        """Clear the counters of a worker, except its last request number, so that numbers stay unique."""
        number = self.values[self.field(row, _NUMBER)]
        start = self.field(row, 0)
        self.values[start : start + _ROW] = memoryview(bytes(_BYTES * _ROW)).cast("q")
        self.values[self.field(row, _NUMBER)] = number


class SharedCounter:
    """Count by address in :class:`SharedCounters`."""

    def __init__(self, board: SharedCounters, row: int, tally: int, buckets: Callable[[str], tuple[int, ...]]) -> None:
        self._board, self._row, self._tally, self._buckets = board, row, tally, buckets

    def add(self, address: str, n: int) -> None:
        for bucket in self._buckets(address):
            self._board.values[self._board.cell(self._row, self._tally, bucket)] += n

    def total(self, address: str) -> int:
        board, values = self._board, self._board.values
        return min(
            sum(values[board.cell(row, self._tally, bucket)] for row in range(board.n_rows))
            for bucket in self._buckets(address)
        )


class SharedWrongTokens:
    """Count wrong tokens in :class:`SharedCounters`, in windows as :class:`~modalhash.serve.auth.WrongTokens` does."""

    def __init__(
        self,
        board: SharedCounters,
        row: int,
        buckets: Callable[[str], tuple[int, ...]],
        limit: int,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._board, self._row, self._buckets = board, row, buckets
        self._limit, self._milliseconds = limit, round(1000 * seconds)
        self._clock = clock
        self._counts, self._ends = TALLIES.index("wrong tokens"), TALLIES.index("windows")

    def add(self, address: str) -> None:
        board, now = self._board, self._now()
        for bucket in self._buckets(address):
            own, end = board.cell(self._row, self._counts, bucket), board.cell(self._row, self._ends, bucket)
            if board.values[end] <= now:
                others = [board.values[board.cell(row, self._ends, bucket)] for row in range(board.n_rows)]
                begun = [one for one in others if one > now]  # workers share a window
                board.values[own], board.values[end] = 0, min(begun, default=now + self._milliseconds)
            board.values[own] += 1

    def locked_seconds(self, address: str) -> float:
        board, values, now = self._board, self._board.values, self._now()
        left = []
        for bucket in self._buckets(address):
            rows = range(board.n_rows)
            open_rows = [row for row in rows if values[board.cell(row, self._ends, bucket)] > now]
            if sum(values[board.cell(row, self._counts, bucket)] for row in open_rows) < self._limit:
                return 0.0
            left.append(max(values[board.cell(row, self._ends, bucket)] for row in open_rows) - now)
        return min(left) / 1000

    def _now(self) -> int:
        return round(1000 * self._clock())


AddressCounter: TypeAlias = LocalCounter | SharedCounter
WrongTokenCount: TypeAlias = WrongTokens | SharedWrongTokens


class WorkerArguments(NamedTuple):
    """Arguments with which a worker starts."""

    board: Path
    row: int
    key: bytes
    """Secret key of the service. It signs cookies and hashes addresses, so that clients cannot predict buckets."""
    started: float
    metrics_folder: Path


class WorkerState(ProcessState):
    """State of one of several workers."""

    def __init__(self, place: WorkerArguments) -> None:
        super().__init__()
        self.started, self.metrics_folder = place.started, place.metrics_folder
        self.cookie_key = hashlib.blake2b(b"cookies", key=place.key).digest()
        self._board, self._row = SharedCounters(place.board), place.row
        self._board.values[self._board.field(self._row, _PID)] = os.getpid()

        @lru_cache(4096)
        def buckets(address: str) -> tuple[int, ...]:
            digest = hashlib.blake2b(address.encode("utf-8", "surrogatepass"), key=place.key, digest_size=8).digest()
            return tuple(n * N_BUCKETS + int.from_bytes(digest[4 * n : 4 * n + 4]) % N_BUCKETS for n in range(N_HASHES))

        self._buckets = buckets

    def next_number(self) -> int:
        place = self._board.field(self._row, _NUMBER)
        self._board.values[place] += 1
        return (self._board.values[place] - 1) * self._board.n_rows + self._row + 1

    def pids(self) -> list[int]:
        found = (self._board.values[self._board.field(row, _PID)] for row in range(self._board.n_rows))
        return [pid for pid in found if pid]

    def all_in_flight(self, own: int) -> int:
        board = self._board
        board.values[board.field(self._row, _IN_FLIGHT)] = own
        return sum(board.values[board.field(row, _IN_FLIGHT)] for row in range(board.n_rows))

    def tally(self, name: str) -> AddressCounter:
        return SharedCounter(self._board, self._row, TALLIES.index(name), self._buckets)

    def has_more_connections(self, waiting: int) -> bool:
        board, tally, buckets = self._board, TALLIES.index("connections"), self._buckets(ALL_ADDRESSES)
        others = [row for row in range(board.n_rows) if row != self._row and board.values[board.field(row, _PID)]]
        own, *theirs = (
            min(board.values[board.cell(row, tally, bucket)] for bucket in buckets) for row in (self._row, *others)
        )
        return any(own + waiting > n for n in theirs)

    def wrong_tokens(self, limit: int, seconds: float) -> WrongTokenCount:
        return SharedWrongTokens(self._board, self._row, self._buckets, limit, seconds)

    def note_change(self, generation: str | None) -> None:
        self._board.values[_CHANGED] = _fingerprint(generation)

    def is_changed_elsewhere(self, generation: str | None) -> bool:
        return self._board.values[_CHANGED] not in (0, _fingerprint(generation))


@lru_cache(16)
def _fingerprint(generation: str | None) -> int:
    """Return a non-zero hash of a generation."""
    digest = hashlib.blake2b(str(generation).encode(), digest_size=7).digest()
    return int.from_bytes(digest) + 1
