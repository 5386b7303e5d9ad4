"""Which workers are started when others end, without processes."""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing import Pipe

import pytest

from modalhash.serve import Settings
from modalhash.serve.workers import Supervisor, _WorkerProcess


@dataclass
class Ended:
    pid: int = 0
    exitcode: int = -9

    def join(self):
        pass


def worker(**state):
    ours, theirs = Pipe()
    theirs.close()
    ours.close()
    return _WorkerProcess(Ended(), ours, slot=0, **state)


@pytest.fixture
def supervisor(tmp_path, monkeypatch):
    """A supervisor that serves; ``started`` has the slots for which it starts workers."""
    supervisor = Supervisor(2, lambda: None, Settings(), None, tmp_path, lambda: None)
    supervisor._was_ready, supervisor.started = True, []
    monkeypatch.setattr(supervisor, "_start", lambda slot, successor_of=None: supervisor.started.append(slot))
    return supervisor


def test_a_successor_that_ends_while_the_old_worker_retires_is_started_again(supervisor):
    old = worker(is_ready=True, is_leaving=True)
    new = worker(is_ready=True, successor_of=old)
    supervisor._workers = [old, new]
    supervisor._on_exit(new)
    assert supervisor.started == [0], "the old one cannot stay"
    supervisor._on_exit(old)
    assert supervisor.started == [0]


def test_a_successor_that_cannot_start_leaves_the_old_worker_in_place(supervisor):
    old = worker(is_ready=True)
    new = worker(successor_of=old)
    supervisor._workers = [old, new]
    supervisor._on_exit(new)
    assert supervisor.started == []
    assert supervisor._workers == [old]
    supervisor._on_exit(old)
    assert supervisor.started == [0]
