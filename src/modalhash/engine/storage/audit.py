"""The audit log: who changed an engine, what and when, one JSON object per line in a file beside it.

Before a change there is a line whose ``state`` is ``begun``, after it one with the same ``change`` whose state is
``done`` or ``failed``. A change that cannot be noted is not made; where the second line is missing, the process was
killed or the disk was full, and nothing is known of the end.
"""

from __future__ import annotations

import getpass
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

MAX_IDS = 1000
"""Ids that a line lists; ``n`` has their number."""
_TAIL_BYTES = 2**20


class AuditLog:
    """Appends to an audit log; several processes may do so at once.

    Parameters
    ----------
    path : str or Path
        The file, made where it is missing. It is opened for every line, so that it can be moved away to be archived.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @classmethod
    def of_engine(cls, engine: str | Path) -> AuditLog:
        """Return the log of an engine: ``<engine>.audit.jsonl`` beside its folder, which outlives a new training."""
        folder = Path(engine).absolute()
        return cls(folder.with_name(f"{folder.name}.audit.jsonl"))

    @contextmanager
    def change(
        self, what: str, who: Mapping[str, Any], *, creates: bool = False, **details: Any
    ) -> Iterator[dict[str, Any]]:
        """Note a change that the block makes; what the block puts into the dict is noted with its end.

        Parameters
        ----------
        what : str
            The kind of change, such as ``add``.
        who : mapping
            Who makes it: :func:`command_line_user`, or the client of a service.
        creates : bool
            Whether there is no engine yet: then there is one line, at the end, and none if none was made.
        **details
            What is changed.

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
            self._append({**fields, "state": "done", **details, **result})
            return
        self._append({**fields, "state": "begun", **details}, sync=True)
        try:
            yield result
        except BaseException as error:
            with suppress(OSError):
                self._append({**fields, "state": "failed", "error": type(error).__name__, **result})
            raise
        with suppress(OSError):  # the change is made: it must not be reported as one that was not
            self._append({**fields, "state": "done", **result})

    def check(self) -> None:
        """Raise an ``OSError`` if lines cannot be appended."""
        os.close(self._open())

    def tail(self, n: int) -> list[dict[str, Any]]:
        """Return the last lines, at most ``n``, oldest first; what is no JSON object is left out."""
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
            except (ValueError, RecursionError):  # cut off by a full disk, where the tail begins, or of somebody else
                continue
            if isinstance(value, dict):
                found.append(value)
        return found[::-1]

    def _open(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)

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
    """Return who runs this process: the user by the system's account, not by variables that anybody can set."""
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
