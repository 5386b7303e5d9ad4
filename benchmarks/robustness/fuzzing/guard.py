"""What no input may cause: a file written or read elsewhere, a program or a connection, an object unpickled."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import modalhash

FORBIDDEN = {
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "socket.connect",
    "pickle.find_class",
}
CHANGES = {
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.truncate",
    "shutil.rmtree",
}  # fmt: skip


class Guard:
    """Notes what happens outside of a folder, by Python's audit events; it cannot be taken away again.

    Parameters
    ----------
    folder
        in which everything may be read and written
    given
        in which everything may be read: pictures of an engine
    """

    def __init__(self, folder: Path, given: Path) -> None:
        self.on = False
        self.violations: list[str] = []
        self._writable = os.path.realpath(folder)
        roots = [
            given, sys.prefix, sys.base_prefix, sys.exec_prefix, Path(modalhash.__file__).parents[1], "/proc", "/sys",
            "/usr", "/dev/null", "/dev/urandom",
        ]  # fmt: skip
        self._readable = tuple(os.path.realpath(root) for root in roots)
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open":
            path, mode, flags = arguments
            if isinstance(path, int):
                return
            writes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)) if flags else "w" in (mode or "")
            self._check(path, writes, "written" if writes else "read")
        elif event in CHANGES:
            self._check(arguments[0], True, event)
        elif event in FORBIDDEN and not _is_numba():
            self.violations.append(event)

    def _check(self, path: Any, writes: bool, what: str) -> None:
        self.on = False  # what is done here is no input's doing
        try:
            real = os.path.realpath(os.fsdecode(path) if not isinstance(path, int) else f"/proc/self/fd/{path}")
        except ValueError:  # a NUL in it: it will not be opened
            return
        finally:
            self.on = True
        if not real.startswith((self._writable, *(() if writes else self._readable))):
            self.violations.append(f"{what}: {real[:200]}")


def _is_numba() -> bool:
    """Return whether numba asks, which unpickles what it compiled itself."""
    frame = sys._getframe(2)
    while frame is not None and "/numba/" not in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None
