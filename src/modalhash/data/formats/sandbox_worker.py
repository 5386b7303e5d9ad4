"""The process that reads binary formats, so that a damaged file cannot crash or block the caller.

It receives one JSON request per line and replies with a line of JSON and the bytes of the arrays that it describes. On
systems with fork, a fork reads each request, with the libraries loaded and no state of earlier files. If a fork dies,
this process exits with a code that tells the signal. The module imports little, because the first file waits for it.
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
from modalhash.data.formats.variables import Budget, ReadError, SparseParts, TooLargeError, Value, damaged

IDLE_SECONDS = 20  # idle time after which the process ends
TAKEN = b"taken\n"  # sent when a request has arrived and its libraries are loaded; its time limit starts here
SIGNALLED = 128  # exit codes above it are this plus the signal that ended the fork, as in a shell
SPARE_MEMORY, WORKING_COPIES = 256 * 2**20, 3
"""Memory of the libraries in bytes, and copies of a variable that exist while it is read."""


def main() -> None:
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with the replies
    forks = hasattr(os, "fork")
    while True:
        if forks and not select([sys.stdin], [], [], IDLE_SECONDS)[0]:
            return
        line = sys.stdin.buffer.readline()
        if not line:
            return
        request = json.loads(line)
        with suppress(ImportError):  # the reply reports the missing package
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
    """Limit memory, processor time and file writes as far as the system supports it."""
    try:
        import resource
    except ImportError:
        return
    own = 0
    with suppress(OSError), open("/proc/self/statm", encoding="ascii") as file:
        own = int(file.read().split()[0]) * resource.getpagesize()
    limits = {resource.RLIMIT_CPU: int(request["seconds"]) + 2, resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: 0}
    if own:
        limits[resource.RLIMIT_AS] = own + WORKING_COPIES * request["memory"] + SPARE_MEMORY
    for which, limit in limits.items():
        with suppress(OSError, ValueError):
            hard = resource.getrlimit(which)[1]
            limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            resource.setrlimit(which, (limit, hard))


def answer(request: dict[str, Any], replies: IO[bytes]) -> None:
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
    except Exception as error:  # damaged bytes can raise anything
        reply, arrays = _failure(error, path, what, name), []
    replies.write(json.dumps(reply).encode() + b"\n")
    for array in arrays:
        replies.write(array.data.cast("B") if array.size else b"")
    replies.flush()


def _failure(error: Exception, path: Path, what: str, name: str | None) -> dict[str, Any]:
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
