"""What a process of the service is given by its supervisor, and the folder in which workers learn of each other."""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from modalhash.core.files import write_atomically

REQUESTS_PER_WORKER = 10**9
"""Numbers of requests that a worker has for itself, so that numbers are unique within the service."""


@dataclass(frozen=True)
class ProcessState:
    """State of a process of the service; the default is for a single process."""

    worker: int = 0
    """Number of the worker, counted from the start of the service."""
    cookie_key: bytes = field(default_factory=partial(secrets.token_bytes, 32))
    started: float = field(default_factory=time.monotonic)
    """When the service started."""
    folder: Path | None = None
    """Folder of several workers."""

    @property
    def first_number(self) -> int:
        """The number of the first request."""
        return self.worker * REQUESTS_PER_WORKER + 1

    @property
    def metrics_folder(self) -> Path | None:
        return None if self.folder is None else self.folder / "metrics"

    def enter(self) -> None:
        """Let the other workers know this process; the supervisor calls :meth:`leave`."""
        if self.folder is not None:
            (self.folder / "workers").mkdir(exist_ok=True)
            (self.folder / "workers" / str(os.getpid())).touch()

    def leave(self, pid: int) -> None:
        if self.folder is not None:
            (self.folder / "workers" / str(pid)).unlink(missing_ok=True)

    def pids(self) -> list[int]:
        """Return the process ids of the service."""
        if self.folder is None:
            return [os.getpid()]
        return [int(path.name) for path in (self.folder / "workers").iterdir()]

    def note_change(self, generation: str | None) -> None:
        """Record which engine a change was made in, before it is acknowledged."""
        if self.folder is not None and self._changed() != str(generation):
            write_atomically(self.folder / "changed", str(generation).encode(), sync=False)

    def is_changed_elsewhere(self, generation: str | None) -> bool:
        """Return whether the last change was made in another engine."""
        return self._changed() not in (None, str(generation))

    def _changed(self) -> str | None:
        """Return the generation of the engine that was changed last, if any."""
        if self.folder is None:
            return None
        try:
            return (self.folder / "changed").read_text()
        except FileNotFoundError:
            return None
