"""The process that reads foreign formats, so that a damaged file can crash or hang nothing else.

It gets one request a line, as JSON, and answers each on its output: a line of JSON, then the bytes of the arrays that
the line describes. Where the system can fork, every request is read by a fork of this process, which has the libraries
loaded already: it costs a few milliseconds and inherits nothing from the files before. A fork that dies takes this
process with it, and the exit code says of what; :mod:`modalhash.data.formats.sandbox` starts another.

Imports are few on purpose: the first file waits for them.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from select import select
from typing import IO, Any

import numpy as np

from modalhash.core.imports import MissingExtraError
from modalhash.core.typing import Array
from modalhash.data.formats.variables import Budget, SparseParts, TooLargeError, Value, damaged
from modalhash.data.read_error import ReadError

IDLE_SECONDS = 20
"""After which a process that has nothing to do ends."""
TAKEN = b"taken\n"
"""Sent when a request has arrived and everything is loaded: the time for it begins."""
SIGNALLED = 128
"""Exit codes above it are this and the signal that ended the reading, as in a shell."""
SPARE_MEMORY, WORKING_COPIES = 256 * 2**20, 3
"""What the libraries need for themselves, and how often a variable is in memory while it is read."""


def main() -> None:
    """Answer requests until there are no more."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not end up among the replies
    forks = hasattr(os, "fork")
    while True:
        if forks and not select([sys.stdin], [], [], IDLE_SECONDS)[0]:
            return
        line = sys.stdin.buffer.readline()
        if not line:
            return
        request = json.loads(line)
        with suppress(ImportError):  # the answer says what is missing
            import_module(f"modalhash.data.formats.{request['format']}").prepare()
        replies.write(TAKEN)
        replies.flush()
        if forks:
            _fork(request, replies)
        else:
            answer(request, replies)


def _fork(request: dict[str, Any], replies: IO[bytes]) -> None:
    child = os.fork()
    if not child:
        try:
            _limit(request)
            answer(request, replies)
        except BaseException:
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        os._exit(SIGNALLED - code if code < 0 else code)


def _limit(request: dict[str, Any]) -> None:
    """Bound memory and processor time, and forbid to write files; where a system cannot, time alone is bounded."""
    try:
        import resource
    except ImportError:
        return
    own = 0
    with suppress(OSError), open("/proc/self/statm", encoding="ascii") as file:
        own = int(file.read().split()[0]) * resource.getpagesize()
    limits = {
        resource.RLIMIT_CPU: int(request["seconds"]) + 2,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
    }
    if own:
        limits[resource.RLIMIT_AS] = own + WORKING_COPIES * request["memory"] + SPARE_MEMORY
    for which, limit in limits.items():
        with suppress(OSError, ValueError):
            hard = resource.getrlimit(which)[1]
            limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            resource.setrlimit(which, (limit, hard))


def answer(request: dict[str, Any], replies: IO[bytes]) -> None:
    """Read what a request names and write it, or why it cannot be read."""
    path, name, budget = Path(request["path"]), request["variable"], Budget(request["memory"])
    what, arrays, options = "a file of arrays", list[Array](), request.get("options", {})
    reply: dict[str, Any]
    try:
        reader = import_module(f"modalhash.data.formats.{request['format']}")
        what = reader.WHAT
        if name is None:
            reply = {"variables": [_entry(one, arrays) for one in reader.variables(path, budget, **options)]}
        else:
            reply = {"value": _described(reader.load(path, name, budget, **options), arrays)}
    except Exception as error:  # libraries raise whatever the broken bytes lead to
        reply, arrays = _failure(error, path, what, name), []
    replies.write(json.dumps(reply).encode() + b"\n")
    for array in arrays:
        replies.write(array.data.cast("B") if array.size else b"")
    replies.flush()


def _failure(error: Exception, path: Path, what: str, name: str | None) -> dict[str, Any]:
    """Return the reply that says why a file cannot be read."""
    if isinstance(error, TooLargeError):
        return {"too large": error.n_bytes, "variable": error.variable}
    if isinstance(error, MemoryError):
        return {"too large": None, "variable": name}
    if isinstance(error, MissingExtraError):
        return {"missing": str(error), "package": error.name}
    problem = error if isinstance(error, ReadError) else damaged(path, what, error, name)
    return {"reason": problem.reason, "variable": problem.variable}


def _entry(one: Any, arrays: list[Array]) -> dict[str, Any]:
    value = None if one.value is None else _described(one.value, arrays)
    return {"name": one.name, "shape": [int(size) for size in one.shape], "kind": one.kind, "value": value}


def _described(value: Value, arrays: list[Array]) -> dict[str, Any]:
    """Return the description of a value whose arrays are added to those that will be sent."""
    if isinstance(value, SparseParts):
        parts = [_described(part, arrays) for part in (value.data, value.indices, value.pointers)]
        return {"sparse": value.layout, "shape": [int(size) for size in value.shape], "parts": parts}
    if value.dtype.kind == "O":
        texts = [text.encode("utf-8", "surrogatepass") for text in value.ravel().tolist()]
        lengths = np.array([len(text) for text in texts], dtype=np.int64)
        arrays += [lengths, np.frombuffer(b"".join(texts), dtype=np.uint8)]
        return {"texts": list(value.shape), "bytes": int(lengths.sum())}
    order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
    arrays.append(np.ascontiguousarray(value.T if order == "F" else value).reshape(-1))
    return {"numbers": value.dtype.str, "shape": list(value.shape), "order": order}


if __name__ == "__main__":
    main()
