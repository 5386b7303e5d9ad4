"""Read binary files (MATLAB, HDF5, NumPy, Excel, Parquet, Arrow) in a separate process, within limits.

The libraries that read these formats crash or hang on some damaged files and trust the sizes that a file declares. Here
a crash, a hang or a decompression bomb becomes a :class:`~modalhash.data.ReadError` with the file's name. Replies of
the process are checked like the file itself: sizes before memory is allocated, types against a list, and the indices of
a sparse matrix before they are used. Nothing is unpickled.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from io import BufferedReader, BufferedWriter
from math import prod
from pathlib import Path
from typing import Any, cast

import numpy as np
import scipy

from modalhash.core.imports import MissingExtraError
from modalhash.core.typing import Array
from modalhash.core.validation import check_memory, check_number, check_sparse
from modalhash.data.formats.sandbox_worker import SIGNALLED, TAKEN
from modalhash.data.formats.variables import OBJECTS, ReadError, Variable, text_array

MEMORY_VARIABLE, SECONDS_VARIABLE = "MODALHASH_READ_MEMORY", "MODALHASH_READ_SECONDS"
LEAST_MEMORY, MEMORY_PER_BYTE = 512 * 10**6, 16
"""Default memory limit: 500 MB or 16 times the file's size, whichever is more. Features compress to a half or a third,
0/1 labels and tags to a tenth; a large file that grows more may be a bomb, or a dense matrix of zeros."""
LEAST_SECONDS, BYTES_PER_SECOND = 60.0, 4 * 10**6
_HEADER_BYTES = 2**28
_LOADABLE = ("numbers", "sparse", "texts")
_PROGRAM = ("-m", "modalhash.data.formats.sandbox_worker")
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Reading needs no BLAS, and its threads would count against the address space limit."""
_NO_PLUGINS = {"HDF5_PLUGIN_PRELOAD": "::"}
"""Keeps HDF5 from loading filter plugins, whose names come from the file."""


@dataclass(frozen=True)
class ReadLimits:
    """Limits on the memory and time to read one file.

    Parameters
    ----------
    memory
        bytes that the values of a file may take, or a text such as ``"2GB"``. None means ``$MODALHASH_READ_MEMORY``, or
        if that is not set, 500 MB or 16 times the file's size, whichever is more
    seconds
        for one variable of the file. None means ``$MODALHASH_READ_SECONDS``, or if that is not set, one minute plus one
        second per 4 MB of the file

    Examples
    --------
    >>> ReadLimits(memory="2GB").memory_for(1_500_000)
    2000000000
    """

    memory: int | str | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        check_memory(self.memory, "memory")
        if self.seconds is not None:
            check_number(self.seconds, "seconds", positive=True)

    def memory_for(self, file_bytes: int) -> int:
        given = self.memory if self.memory is not None else os.environ.get(MEMORY_VARIABLE) or None
        limit = check_memory(given, "memory" if self.memory is not None else MEMORY_VARIABLE)
        return limit if limit is not None else max(LEAST_MEMORY, MEMORY_PER_BYTE * file_bytes)

    def seconds_for(self, file_bytes: int) -> float:
        if self.seconds is not None:
            return float(self.seconds)
        if text := os.environ.get(SECONDS_VARIABLE):
            try:
                return check_number(float(text), SECONDS_VARIABLE, positive=True)
            except ValueError:
                raise ValueError(f"{SECONDS_VARIABLE} is {text!r}; expected a number of seconds above 0") from None
        return LEAST_SECONDS + file_bytes / BYTES_PER_SECOND

    def check(self, n_bytes: int, file: Path, what: str, *, line: int | None = None) -> None:
        size = file.stat().st_size
        if n_bytes > (limit := self.memory_for(size)):
            raise too_large(file, what, n_bytes, limit, line=line)


def too_large(
    file: Path, what: str, n_bytes: int | None, limit: int, *, line: int | None = None, variable: str | None = None
) -> ReadError:
    """Return the error for a file that needs too much memory, with the ways to allow it."""
    wanted = "2GB" if n_bytes is None else f"{max(1, -(-n_bytes * 5 // 4 // 10**6))}MB"
    needs = "more than" if n_bytes is None else f"{megabytes(n_bytes)}, more than"
    return ReadError(
        file,
        f"{what} would take {needs} the limit of {megabytes(limit)} for this file of "
        f"{megabytes(file.stat().st_size)}. If you trust it, allow it: read(…, limits=ReadLimits(memory='{wanted}')), "
        f"--read-memory {wanted}, or {MEMORY_VARIABLE}={wanted}",
        line,
        variable,
    )


def too_slow(file: Path, seconds: float, variable: str | None = None) -> ReadError:
    return ReadError(
        file,
        f"not read in {seconds:g} s, because it is damaged or large. If you trust it, allow more time: "
        f"read(…, limits=ReadLimits(seconds={10 * seconds:g})), --read-seconds {10 * seconds:g}, "
        f"or {SECONDS_VARIABLE}={10 * seconds:g}",
        variable=variable,
    )


def megabytes(n_bytes: int) -> str:
    """Format a number of bytes.

    Examples
    --------
    >>> megabytes(1_600_000_000), megabytes(1_500_000), megabytes(800)
    ('1,600 MB', '1.5 MB', '800 bytes')
    """
    if n_bytes < 10**5:
        return f"{n_bytes:,} bytes"
    return f"{n_bytes / 10**6:,.1f} MB" if n_bytes < 10**8 else f"{n_bytes / 10**6:,.0f} MB"


def variables(path: Path, format: str, limits: ReadLimits) -> list[Variable]:
    """List the variables of a file; values load on demand. ``format`` is a module of this package."""
    file = ForeignFile(path.absolute(), path, format, limits)
    return file.variables()


@dataclass
class ForeignFile:
    """A file and the memory that its variables have used."""

    absolute: Path
    path: Path  # the path as given by the caller, for messages
    format: str
    limits: ReadLimits
    taken: dict[str, int] = field(default_factory=dict)
    """Bytes by variable; the memory limit applies to their sum."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the format's reader, such as the sheet of an Excel file."""

    def variables(self) -> list[Variable]:
        return self._ask(None, self._listed)

    def load(self, name: str) -> Any:
        return self._ask(name, lambda reply: reply.value(reply.content["value"], name))

    def _ask(self, name: str | None, receive: Callable[[_Reply], Any]) -> Any:
        size = self.path.stat().st_size
        memory = self.limits.memory_for(size)
        left = memory - sum(n_bytes for own, n_bytes in self.taken.items() if own != name)
        seconds = self.limits.seconds_for(size)
        request = {
            "path": str(self.absolute), "format": self.format, "variable": name,
            "memory": max(left, 0), "seconds": seconds, "options": self.options,
        }  # fmt: skip
        try:
            taken = _ReaderProcess.for_request(request)
        except _EndedError:
            raise OSError(f"{self.path}: the process to read it could not be started ({sys.executable})") from None
        with taken as worker:
            try:
                worker.in_sync = False
                reply = _Reply(worker, self.path, memory, left)
                worker.in_sync = not reply.content.keys() & {"variables", "value"}  # no arrays follow
                if "too large" in reply.content:
                    wanted = reply.content["too large"]
                    total = None if wanted is None else wanted + memory - left
                    variable = reply.content.get("variable")
                    raise too_large(self.path, "what it holds", total, memory, variable=variable)
                if "missing" in reply.content:
                    raise MissingExtraError(f"{self.path}: {reply.content['missing']}", name=reply.content["package"])
                if "reason" in reply.content:
                    raise ReadError(self.path, str(reply.content["reason"]), variable=reply.content.get("variable"))
                result = receive(reply)
                worker.in_sync = True
            except ReadError:
                raise
            except _EndedError:
                if worker.timed_out:
                    raise too_slow(self.path, seconds, name) from None
                raise ReadError(self.path, worker.death(), variable=name) from None
            except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
                reason = f"the process that reads it sent an invalid reply ({type(error).__name__}: {error})"
                raise ReadError(self.path, reason, variable=name) from error
        self.taken[name or ""] = reply.received
        return result

    def _listed(self, reply: _Reply) -> list[Variable]:
        listed = []
        for entry in reply.content["variables"]:
            name, kind, shape = str(entry["name"]), str(entry["kind"]), _checked_shape(entry["shape"])
            listed.append(Variable(name, shape, kind, self._loader(reply, entry, name, kind), self.path))
        return listed

    def _loader(self, reply: _Reply, entry: dict[str, Any], name: str, kind: str) -> Callable[[], Any]:
        if entry["value"] is not None:
            value = reply.value(entry["value"], name)
            return lambda: value
        if kind in _LOADABLE:
            return lambda: self.load(name)

        def refuse() -> Any:
            what = kind if kind != OBJECTS else "an object array; objects are never loaded"
            raise ReadError(self.path, f"{what}; expected numbers or texts", variable=name)

        return refuse


class _EndedError(Exception):
    """The process ended before its reply was complete."""


class _Reply:
    """A reply being received: a line that describes arrays, then their bytes."""

    def __init__(self, worker: _ReaderProcess, path: Path, memory: int, left: int) -> None:
        self._worker, self._path, self._memory, self._left = worker, path, memory, left
        self.received = 0
        line = worker.readline(_HEADER_BYTES)
        self.content: dict[str, Any] = json.loads(line)

    def value(self, described: dict[str, Any], name: str) -> Any:
        if "sparse" in described:
            return self._sparse(described, name)
        if "texts" in described:
            shape = _checked_shape(described["texts"])
            lengths = self._array(np.dtype(np.int64), (prod(shape),), name).tolist()
            content = self._array(np.dtype(np.uint8), (int(described["bytes"]),), name).tobytes()
            texts, start = [], 0
            for length in lengths:
                if length < 0:
                    raise TypeError("a text of negative length")
                texts.append(content[start : start + length].decode("utf-8", "surrogatepass"))
                start += length
            return text_array(texts, shape)
        try:
            dtype = np.dtype(str(described["numbers"]))
        except SyntaxError as error:  # raised by numpy for a comma
            raise TypeError(f"numbers of the type {described['numbers']!r}") from error
        if dtype.kind not in "biufc":
            raise TypeError(f"an array of {dtype}")
        shape = _checked_shape(described["shape"])
        flat = self._array(dtype, (prod(shape),), name)
        return flat.reshape(shape, order="F" if described["order"] == "F" else "C")

    def _sparse(self, described: dict[str, Any], name: str) -> scipy.sparse.csr_array:
        rows, columns = shape = _checked_shape(described["shape"])
        data, indices, pointers = (self.value(part, name) for part in described["parts"])
        self._check(8 * (rows + columns), name)  # row or column pointers are allocated by the conversion to CSR
        make = {"csr": scipy.sparse.csr_array, "csc": scipy.sparse.csc_array, "coo": scipy.sparse.coo_array}[
            described["sparse"]
        ]
        try:
            parts = (data, (pointers, indices)) if make is scipy.sparse.coo_array else (data, indices, pointers)
            matrix = make(parts, shape=shape)
            check_sparse(matrix, "values")
        except ValueError as error:
            raise ReadError(self._path, str(error), variable=name) from error
        return scipy.sparse.csr_array(matrix)

    def _array(self, dtype: Any, shape: tuple[int], name: str) -> Array:
        n_bytes = shape[0] * dtype.itemsize
        self._check(n_bytes, name)
        self._left -= n_bytes
        self.received += n_bytes
        array = np.empty(shape, dtype=dtype)
        self._worker.read_into(array.view(np.uint8).data)
        return array

    def _check(self, n_bytes: int, name: str) -> None:
        if n_bytes > self._left:
            total = self._memory - self._left + n_bytes
            raise too_large(self._path, "what it holds", total, self._memory, variable=name)


def _checked_shape(shape: Any) -> tuple[int, ...]:
    if not all(isinstance(size, int) and size >= 0 for size in shape) or len(shape) > 32:
        raise TypeError(f"the shape {shape!r}")
    return tuple(shape)


class _ReaderProcess:
    """A process that reads files, one request at a time; it is reused while it works correctly."""

    _idle: list[_ReaderProcess] = []  # noqa: RUF012 - shared by all instances, guarded by the lock
    _lock = threading.Lock()

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.timed_out, self.in_sync = False, True
        here = {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
        passed = {key: value for key, value in os.environ.items() if not key.startswith("HDF5_")}
        process = self._process = subprocess.Popen(
            [sys.executable, "-P", *_PROGRAM],  # -P: do not import from the current folder
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pipesize=2**20,  # fewer reads, where the system allows it
            env={**passed, **here, **_ONE_THREAD, **_NO_PLUGINS},
            start_new_session=True,  # so that its forks can be killed with it
        )
        self._requests, self._replies = cast(BufferedWriter, process.stdin), cast(BufferedReader, process.stdout)

    @classmethod
    def stop_idle(cls) -> None:
        """Stop the idle process if this process started it."""
        with cls._lock:
            waiting = [cls._idle.pop() for _ in range(len(cls._idle))]
        for worker in waiting:
            if worker.owner == os.getpid():
                worker.stop()

    @classmethod
    def for_request(cls, request: dict[str, Any]) -> _ReaderProcess:
        with cls._lock:
            worker = cls._idle.pop() if cls._idle else None
        if worker is not None and worker.owner == os.getpid():  # after a fork, the list has the parent's process
            with suppress(_EndedError):  # it ended after its idle time
                return worker._take(request)
        return cls()._take(request)

    def _take(self, request: dict[str, Any]) -> _ReaderProcess:
        try:
            self._requests.write(json.dumps(request).encode() + b"\n")
            self._requests.flush()
            self.readline(len(TAKEN))
        except (OSError, _EndedError):
            self.stop()
            raise _EndedError from None
        self._timer = threading.Timer(request["seconds"], self._end_in_time)
        self._timer.daemon = True
        self._timer.start()
        return self

    def __enter__(self) -> _ReaderProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._timer.cancel()
        if self.in_sync and (kind is None or issubclass(kind, ReadError | MissingExtraError)):
            with self._lock:
                if not self._idle:
                    self._idle.append(self)
                    return
        self.stop()

    def readline(self, limit: int) -> bytes:
        line = self._replies.readline(limit)
        if not line.endswith(b"\n"):
            self.in_sync = False
            raise _EndedError
        return line

    def read_into(self, target: memoryview) -> None:
        while len(target):
            n = self._replies.readinto(target)
            if not n:
                raise _EndedError
            target = target[n:]

    def death(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        code = self._process.returncode
        if code is not None and code > SIGNALLED:
            code = SIGNALLED - code
        if code is None or code >= 0:
            how = f"ended with exit code {code}"
        else:
            how = f"crashed ({signal.Signals(-code).name})" if -code in set(signal.Signals) else f"crashed ({code})"
        return f"the process that reads it {how}; the file is damaged or malicious. Get the file again"

    def _end_in_time(self) -> None:
        self.timed_out = True
        self._kill()

    def _kill(self) -> None:
        with suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()

    def stop(self) -> None:
        if self._process.poll() is None:
            self._kill()
        self._process.wait()
        for stream in (self._requests, self._replies):
            with suppress(OSError):
                stream.close()


atexit.register(_ReaderProcess.stop_idle)
