from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import settings
from numba.core.event import install_recorder

from dask_cluster import dask_cluster  # noqa: F401  (a fixture for all)
from modalhash.encoders import encoder as quality

os.environ["MODALHASH_QUIET"] = "1"  # lines of progress come by the clock; for processes that tests start, too
settings.register_profile("fixed", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("fixed")
quality.PACKAGES = (*quality.PACKAGES, "none_of_this_name")  # so that encoders which need no network are the default


@pytest.fixture
def rng():
    return np.random.default_rng(20230)


@pytest.fixture
def until():
    """Waits for something that another thread does."""

    def wait(condition, seconds=20):
        end, pause = time.monotonic() + seconds, threading.Event()
        while not condition():
            assert time.monotonic() < end, "it did not happen"
            pause.wait(0.001)

    return wait


@pytest.fixture
def few_steps(monkeypatch):
    """Let RLH take few gradient steps, for tests in which the quality of codes does not matter."""
    from modalhash.methods import rlh

    def learn_codes(problem, n_bits, schedule, *rest, learn=rlh.learn_codes):
        return learn(problem, n_bits, replace(schedule, steps=20), *rest)

    def learn_own_codes(problem, model, steps, *rest, learn=rlh.learn_own_codes):
        return learn(problem, model, min(steps, 20), *rest)

    monkeypatch.setattr(rlh, "learn_codes", learn_codes)
    monkeypatch.setattr(rlh, "learn_own_codes", learn_own_codes)


SLOW = 2.0
"""Seconds of an idle core from which a test has to be marked slow."""
LOOP = 0.07
"""Seconds that an idle core needs for :func:`_loop`."""


def _processor_seconds() -> float:
    """Return the processor time of this process and of the processes that it has waited for."""
    return sum(os.times()[:4])


def _loop() -> float:
    """Return the seconds that a fixed piece of work takes now."""
    begin = time.perf_counter()
    sum(number * number for number in range(2_000_000))
    return time.perf_counter() - begin


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Fail a test that is slow and not marked so, unless it compiled a kernel or imported a library for the first time.

    Seconds are divided by how much longer than on an idle core a fixed piece of work takes right after the test,
    because machines differ and are shared.
    """
    wall, processor, n_modules = time.perf_counter(), _processor_seconds(), len(sys.modules)
    with install_recorder("numba:compile") as compiled:
        result = yield
    # the first is too high on a busy machine, the second if a process ends that earlier tests used
    seconds = min(time.perf_counter() - wall, _processor_seconds() - processor)
    if seconds <= SLOW or any(map(item.get_closest_marker, ("slow", "campaign"))):
        return result
    seconds /= max(1.0, _loop() / LOOP)
    if seconds > SLOW and not compiled.buffer and len(sys.modules) < n_modules + 200:
        pytest.fail(f"took {seconds:.1f} s; a test over {SLOW:g} s has to be marked slow")
    return result
