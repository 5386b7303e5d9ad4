"""How far long work is, for whoever reads a log instead of a terminal: a line every few seconds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from modalhash.progress import Progress

QUIET = "MODALHASH_QUIET"
"""The environment variable that silences progress, unless it is empty or 0."""
EVERY = 5.0
"""Seconds from one line to the next."""
MIN_STEPS = 3
"""Steps that have to be seen of a stage before its end is foretold."""


def is_quiet() -> bool:
    """Return whether progress is not to be shown."""
    return os.environ.get(QUIET, "") not in ("", "0")


@dataclass
class _StageLines:
    began: float
    first: int
    """The step that was done when it began to be watched."""
    shown: bool = False


class ProgressLines:
    """A callback that writes a line when some seconds have passed since the last, and one for a stage's end.

    Work that takes less than that writes nothing, and so does a stage that begins and ends between two lines.

    Parameters
    ----------
    write : takes a line
    every : seconds from one line to the next
    clock : seconds, from any beginning

    Examples
    --------
    >>> seconds = iter([0, 0, 6, 12, 13])
    >>> show = ProgressLines(print, clock=lambda: next(seconds))
    >>> for step in (0, 300, 600, 1000):
    ...     show(Progress("encode: image", step, 1000, seconds=0.0))
    encode: image 300 of 1,000 (30 %), about 14 s left
    encode: image 600 of 1,000 (60 %), about 8 s left
    encode: image 1,000 of 1,000 (100 %)
    """

    def __init__(
        self, write: Callable[[str], None], *, every: float = EVERY, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write, self._every, self._clock = write, every, clock
        self._stages: dict[str, _StageLines] = {}
        self._last = clock()

    def __call__(self, progress: Progress) -> None:
        """Take note of a step."""
        now = self._clock()
        stage = self._stages.setdefault(progress.stage, _StageLines(now, progress.step))
        ended = progress.step >= progress.total
        if now - self._last < self._every and not (ended and stage.shown):
            return
        self._last, stage.shown = now, not ended
        share = f" ({progress.step / progress.total:.0%})".replace("%", " %") if progress.total else ""
        left = "" if ended else self._time_left(stage, progress, now)
        self._write(f"{progress.stage} {progress.step:,} of {progress.total:,}{share}{left}")

    def _time_left(self, stage: _StageLines, progress: Progress, now: float) -> str:
        done, seconds = progress.step - stage.first, now - stage.began
        if done < MIN_STEPS or seconds <= 0:
            return ""
        return f", about {describe_seconds((progress.total - progress.step) * seconds / done)} left"


def describe_seconds(seconds: float) -> str:
    """Write a time for a person.

    Examples
    --------
    >>> describe_seconds(42.3), describe_seconds(185), describe_seconds(9000)
    ('42 s', '3 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
