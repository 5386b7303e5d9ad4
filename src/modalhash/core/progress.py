"""Progress reports of long-running work, and the request to stop it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """A completed step of long-running work."""

    stage: str
    """E.g. ``"codes"`` or ``"functions: image"``."""
    step: int
    total: int
    seconds: float
    """Since the start."""
    objective: float | None = None


Callback = Callable[[Progress], None]


class Reporter:
    """Calls the user's callback, if any."""

    def __init__(self, callback: Callback | None) -> None:
        self._callback = callback
        self._start = time.perf_counter()

    def __call__(self, stage: str, step: int, total: int, objective: float | None = None) -> None:
        if self._callback is not None:
            self._callback(Progress(stage, step, total, time.perf_counter() - self._start, objective))


def spoken(seconds: float) -> str:
    """Return a duration as text.

    Examples
    --------
    >>> spoken(42.3), spoken(185), spoken(12_000)
    ('42 s', '3 min', '3 h 20 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


class StoppedError(Exception):
    """The work was stopped because its time is over, or because no client waits for it."""


should_stop: ContextVar[Callable[[], bool]] = ContextVar("should_stop", default=bool)
"""Whether the work of the current context should stop, which reads of a store and decoders of pictures ask often; by
default never, because ``bool()`` is false."""


def check_not_stopped() -> None:
    if should_stop.get()():
        raise StoppedError("it took too long")
