"""Which arcs of modalhash's own code an input ran through: pairs of lines that follow each other in one function."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import modalhash

SOURCE = str(Path(modalhash.__file__).parent)


class Arcs:
    """Collects arcs while :meth:`start` … :meth:`stop`; threads that are started later are followed too."""

    def __init__(self) -> None:
        self.seen: set[tuple[CodeType, int, int]] = set()
        self._new: set[tuple[CodeType, int, int]] = set()
        self._own: dict[CodeType, bool] = {}

    def follow_threads(self) -> None:
        """Follow threads, from now on and as long as they live."""
        threading.settrace(self._called)

    def start(self) -> None:
        self._new = set()
        sys.settrace(self._called)

    def stop(self) -> int:
        """Return the number of arcs that no input before ran through."""
        sys.settrace(None)
        fresh = self._new - self.seen
        self.seen |= fresh
        return len(fresh)

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        own = self._own.get(code)
        if own is None:
            own = self._own[code] = code.co_filename.startswith(SOURCE)
        if not own:
            return None
        last = 0

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal last
            if event == "line":
                self._new.add((code, last, frame.f_lineno))
                last = frame.f_lineno
            return line

        return line
