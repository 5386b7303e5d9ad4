"""Progress if stderr is not a terminal: a line every few seconds, or none with --quiet."""

from __future__ import annotations

import pytest

from modalhash.cli import common as _common
from modalhash.cli.common import EVERY, QUIET, ProgressLines
from modalhash.core.progress import Progress


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def lines():
    return []


def test_there_is_a_line_when_the_time_has_come_and_one_for_the_end_of_what_was_shown(clock, lines):
    show = ProgressLines(lines.append, clock=clock)
    for step in range(0, 20_001, 100):
        show(Progress("encode: image", step, 20_000, 0.0))
        clock.now += 0.125
    show(Progress("store: image", 1, 1, 0.0))
    assert [line.partition(" of ")[0] for line in lines] == [
        *(f"encode: image {step:,}" for step in (4000, 8000, 12_000, 16_000, 20_000))
    ]
    assert lines[0] == "encode: image 4,000 of 20,000 (20 %), about 20 s left"
    assert lines[-1] == "encode: image 20,000 of 20,000 (100 %)"


def test_short_work_says_nothing(clock, lines):
    show = ProgressLines(lines.append, clock=clock)
    clock.now += EVERY - 0.1
    for step in range(4):
        show(Progress("codes", step, 3, 0.0))
    assert lines == []


def test_the_end_is_not_foretold_from_a_step_or_two_nor_is_a_share_of_nothing(clock, lines):
    show = ProgressLines(lines.append, clock=clock)
    show(Progress("confidence", 0, 2, 0.0))
    clock.now += EVERY
    show(Progress("confidence", 1, 2, 0.0))
    clock.now += EVERY
    show(Progress("nothing", 0, 0, 0.0))
    assert lines == ["confidence 1 of 2 (50 %)", "nothing 0 of 0"]


def test_what_is_shown_depends_on_the_output_and_on_the_variable(monkeypatch, capsys):
    monkeypatch.delenv(QUIET)
    with _common.progress_bars() as callback:
        assert isinstance(callback, ProgressLines)
        callback._last -= EVERY
        callback(Progress("encode: text", 1, 2, 0.0))
    assert capsys.readouterr() == ("", "encode: text 1 of 2 (50 %)\n")
    monkeypatch.setenv(QUIET, "1")
    with _common.progress_bars() as callback:
        assert callback is None
