"""The audit log: changes of an engine, with user and time, one JSON object per line in a file next to it.

If the items are in a database that machines share, the lines of all machines are there too.

A line with the ``state`` ``begun`` is written before a change, and one with the same ``change`` and the state ``done``
or ``failed`` after it. A change that cannot be logged is not made. If the second line is missing, the process was
killed or the disk was full.
"""

from __future__ import annotations

import getpass
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any

from modalhash.store import StoreError

if TYPE_CHECKING:
    from modalhash.store import AuditTable

MAX_IDS = 1000
"""Number of ids that a line lists; ``n`` is their total number."""
_TAIL_BYTES = 2**20


class AuditLog:
    """An append-only log; several processes may write to it concurrently.

    ``path`` is created if it is missing. It is opened for every line, so that it can be moved away to be archived.
    ``table`` returns where the lines of all machines are, if the items are in a database, for every line.
    """

    def __init__(self, path: str | Path, table: Callable[[], AuditTable | None] = lambda: None) -> None:
        self.path, self._table = Path(path), table

    @classmethod
    def of_engine(cls, engine: str | Path, table: Callable[[], AuditTable | None] = lambda: None) -> AuditLog:
        """Return the log of an engine, ``<engine>.audit.jsonl`` next to its folder, which outlives a retraining."""
        folder = Path(engine).absolute()
        return cls(folder.with_name(f"{folder.name}.audit.jsonl"), table)

    @contextmanager
    def change(
        self, what: str, who: Mapping[str, Any], *, creates: bool = False, **details: Any
    ) -> Iterator[dict[str, Any]]:
        """Log a change that the block makes; what the block puts into the dict is logged with its end.

        Parameters
        ----------
        what : the kind of change, such as ``add``
        who : the user, by :func:`command_line_user`, or the client of a service
        creates : whether the change creates the engine; then there is one line, at the end, if it succeeds
        **details : what is changed

        Examples
        --------
        >>> import tempfile
        >>> log = AuditLog(tempfile.mkdtemp() + "/engine.audit.jsonl")
        >>> with log.change("remove", {"who": "alice"}, ids=["boat"]) as result:
        ...     result["removed"] = 1
        >>> [(line["state"], line["who"]) for line in log.tail(10)]
        [('begun', 'alice'), ('done', 'alice')]
        """
        fields = {"change": secrets.token_hex(8), "what": what, **who}
        result: dict[str, Any] = {}
        if creates:
            yield result
            self._end({**fields, "state": "done", **details, **result})
            return
        begun = {**fields, "state": "begun", **details}
        self._append(begun, sync=True)
        try:
            self._share(begun)
            yield result
        except BaseException as error:
            self._end({**fields, "state": "failed", "error": type(error).__name__, **result})
            raise
        self._end({**fields, "state": "done", **result})

    def check(self) -> None:
        """Raise ``OSError`` if lines cannot be appended."""
        os.close(self._open())

    def tail(self, n: int) -> list[dict[str, Any]]:
        """Return the last ``n`` lines, oldest first; lines that are not JSON objects are skipped.

        If the items are in a database, these are the lines of all machines.
        """
        if (table := self._table()) is not None:
            return table.tail(n)
        try:
            with self.path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                lines = file.read().splitlines()
        except FileNotFoundError:
            return []
        found: list[dict[str, Any]] = []
        for line in reversed(lines):
            if len(found) == n:
                break
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):  # cut off by a full disk or by _TAIL_BYTES
                continue
            if isinstance(value, dict):
                found.append(value)
        return found[::-1]

    def _open(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)

    def _end(self, fields: Mapping[str, Any]) -> None:
        """Log the end of a change, which was made and must not be reported as failed."""
        with suppress(OSError):
            self._append(fields)
        with suppress(OSError, StoreError, ValueError):
            self._share(fields)

    def _share(self, fields: Mapping[str, Any]) -> None:
        if (table := self._table()) is not None:
            moment = datetime.now(UTC).isoformat(timespec="milliseconds")
            table.append(json.dumps({"time": moment, "machine": gethostname(), **fields}))

    def _append(self, fields: Mapping[str, Any], *, sync: bool = False) -> None:
        line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **fields}) + "\n"
        handle = self._open()
        try:
            end = os.lseek(handle, 0, os.SEEK_END)
            if end and _last_byte(handle, end) != b"\n":  # a line was cut off by a full disk
                line = f"\n{line}"
            data = line.encode()
            while data:
                data = data[os.write(handle, data) :]
            if sync:
                os.fsync(handle)
        finally:
            os.close(handle)


def command_line_user() -> dict[str, Any]:
    """Return the user of this process by the system's account, not by environment variables."""
    try:
        import pwd

        uid = os.getuid()
    except ImportError:  # Windows
        return {"who": getpass.getuser(), "by": "command line"}
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:  # a container's user may have no name
        name = str(uid)
    return {"who": name, "uid": uid, "by": "command line"}


def ids_summary(ids: list[str]) -> dict[str, Any]:
    """Return ids as details of a change: their number and the first of them."""
    return {"n": len(ids), "ids": ids[:MAX_IDS]}


def _last_byte(handle: int, end: int) -> bytes:
    os.lseek(handle, end - 1, os.SEEK_SET)
    return os.read(handle, 1)
