"""The log: one JSON object a line, on the error output. Neither tokens nor what people search for are in it."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

LONGEST = 200
"""Characters of a path that are shown."""
Write = Callable[[str], None]


class Log:
    """Writes lines; a quiet one writes mistakes of the service alone."""

    def __init__(self, *, quiet: bool = False, write: Write | None = None) -> None:
        self.quiet = quiet
        self._write = write or _to_stderr

    def request(self, number: int, method: str, path: str, status: int, seconds: float, size: int) -> None:
        """A request that is done."""
        if not self.quiet:
            path = path if len(path) <= LONGEST else f"{path[:LONGEST]}…"
            line = {"request": number, "method": method, "path": path, "status": status}
            self._line({**line, "ms": round(1000 * seconds, 2), "bytes": size})

    def mistake(self, number: int, error: BaseException) -> None:
        """An error of ours: where it happened. Its message is left out, because it may quote the request."""
        where = "".join(traceback.format_tb(error.__traceback__)).rstrip()
        self._line({"request": number, "error": type(error).__name__, "where": where})

    def event(self, text: str) -> None:
        """Something that is no request."""
        if not self.quiet:
            self._line({"event": text})

    def _line(self, values: dict[str, Any]) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._write(json.dumps({"time": now, **values}) + "\n")


class FromUvicorn(logging.Handler):
    """What uvicorn has to say, in the same form."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.event(f"uvicorn: {record.getMessage().strip()}")


def _to_stderr(line: str) -> None:
    sys.stderr.write(line)
    sys.stderr.flush()
