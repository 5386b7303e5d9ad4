"""Signals that ask a command to stop: it cleans up behind it, as after Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = ("SIGTERM", "SIGHUP")
"""Of a service manager, a batch system or ``kill``; and of a terminal that is closed, where there is such a signal."""
SIGNALLED = 128
"""Exit codes above it are this and the signal, as in a shell: 143 for SIGTERM, 130 for Ctrl-C."""


class Terminated(SystemExit):
    """A signal asked the command to stop. No handler of errors takes it for one; what is open closes."""

    def __init__(self, number: int) -> None:
        super().__init__(SIGNALLED + number)
        self.name = signal.Signals(number).name


@contextmanager
def clean_stops() -> Iterator[None]:
    """Raise :class:`Terminated` in the block when a signal asks to stop; one that the parent ignores stays ignored.

    Further ones are ignored: they would end the cleaning up halfway.
    """
    numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    own = [number for number, handler in before.items() if handler is signal.SIG_DFL]

    def stop(number: int, frame: FrameType | None) -> None:
        for each in own:
            signal.signal(each, signal.SIG_IGN)
        raise Terminated(number)

    for number in own:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in own:
            signal.signal(number, signal.SIG_DFL)
