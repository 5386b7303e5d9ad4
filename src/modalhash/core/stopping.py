"""Stop long work for a request whose time is over, or whose client is gone."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar


class StoppedError(Exception):
    """The work was stopped because its time is over, or because no client waits for it."""


should_stop: ContextVar[Callable[[], bool]] = ContextVar("should_stop", default=bool)
"""Whether the work of the current context should stop, which reads of a store and decoders of pictures ask often; by
default never, because ``bool()`` is false."""


def check_not_stopped() -> None:
    if should_stop.get()():
        raise StoppedError("it took too long")
