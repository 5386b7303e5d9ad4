"""Which workers are started when others end, without processes: a slot is never vacant for good."""

from __future__ import annotations

import signal
import socket
from multiprocessing import Pipe, connection
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from modalhash.serve import Settings, workers
from modalhash.serve.server import RETIRE
from modalhash.serve.workers import FAILED, LAST_DELAY, READY, Supervisor, WorkerError, _WorkerProcess

SLOTS = 2


class FakeProcess:
    """A process that does what the test says; ``seen`` has what it was sent."""

    pid = None
    exitcode = None

    def __init__(self, control):
        self.control, self.seen, self.is_alive = control, [], True
        self.sentinel, self._life = Pipe(duplex=False)

    def ready(self):
        self.control.send((READY, ""))

    def fail(self):
        self.control.send((FAILED, "no engine"))
        self.die()

    def die(self):
        self.is_alive = False
        self._life.close()
        self.control.close()

    def is_retiring(self):
        while self.control.poll():
            self.seen.append(self.control.recv())
        return RETIRE in self.seen

    def join(self, *_):
        pass


class World:
    """A supervisor, its workers, and a clock."""

    def __init__(self, folder):
        self.now, self.all, self.refused = 0.0, [], 0
        self.signals, self.us = socket.socketpair()
        self.supervisor = Supervisor(SLOTS, lambda: None, Settings(), None, folder, lambda: None)
        self.supervisor._spawn = self.spawn

    def spawn(self, slot, successor_of):
        if self.refused:
            self.refused -= 1
            raise OSError("no process is free")
        ours, theirs = Pipe()
        worker = _WorkerProcess(FakeProcess(theirs), ours, slot, successor_of=successor_of)
        self.all.append(worker)
        return worker

    def step(self):
        self.supervisor._run_once(self.signals)

    def hang_up(self):
        self.us.send(bytes([signal.SIGHUP]))
        self.step()

    @property
    def alive(self):
        return [one for one in self.all if one.process.is_alive]

    def slots(self):
        """Slots of workers that stay, in order."""
        return sorted(one.slot for one in self.alive if not one.process.is_retiring())

    def recover(self):
        """Give every worker the time to start or to exit."""
        for _ in range(8):
            self.now += LAST_DELAY
            self.step()
            for one in self.alive:
                if one.process.is_retiring():
                    one.process.die()
                elif not one.is_ready:
                    one.process.ready()
            self.step()


@pytest.fixture
def world(tmp_path_factory, monkeypatch):
    made = []

    def make():
        world = World(tmp_path_factory.mktemp("supervisor"))
        made.append(world)
        monkeypatch.setattr(workers, "wait", lambda objects, seconds: connection.wait(objects, 0))
        monkeypatch.setattr(workers, "time", SimpleNamespace(monotonic=lambda: world.now))
        world.supervisor._fill_slots()
        for one in world.alive:
            one.process.ready()
        world.step()
        return world

    yield make
    for one in made:
        one.signals.close()
        one.us.close()


def test_all_are_replaced_one_at_a_time(world):
    world = world()
    before = world.alive
    world.hang_up()
    assert len(world.alive) == SLOTS + 1
    world.recover()
    assert world.slots() == [0, 1]
    assert not set(map(id, before)) & set(map(id, world.alive))
    assert len(world.all) == 2 * SLOTS


def test_a_successor_that_ends_while_the_old_worker_retires_is_started_again(world):
    world = world()
    world.hang_up()
    new = world.all[-1]
    new.process.ready()
    world.step()
    new.process.die()
    world.step()
    assert world.slots() == [0, 1], "the old one cannot stay"
    world.all[-1].process.fail()
    world.step()
    world.all[0].process.die()  # the old one, killed while it retires
    world.recover()
    assert world.slots() == [0, 1]


def test_a_successor_that_cannot_start_leaves_all_old_workers_in_place(world):
    world = world()
    before = world.alive
    world.hang_up()
    world.all[-1].process.fail()
    world.recover()
    assert world.alive == before
    before[0].process.die()
    world.recover()
    assert world.slots() == [0, 1]


def test_workers_that_end_while_their_successors_start_and_fail_twice_are_replaced(world):
    world = world()
    world.hang_up()
    for one in world.alive:
        one.process.die()
    world.step()
    for _ in range(2):
        world.now += LAST_DELAY
        world.step()
        for one in world.alive:
            one.process.fail()
        world.step()
        assert world.alive == []
        assert 0 < world.supervisor._seconds_to_wait() <= LAST_DELAY
    world.recover()
    assert world.slots() == [0, 1]


def test_a_signal_while_a_worker_starts_again_replaces_it_too(world):
    world = world()
    world.all[0].process.die()
    world.step()
    first = world.all[-1]
    world.hang_up()
    world.recover()
    assert world.slots() == [0, 1]
    assert first not in world.alive
    assert world.all[1] not in world.alive


def test_a_process_that_the_system_refuses_is_tried_again(world):
    world = world()
    world.refused = 3
    for one in world.alive:
        one.process.die()
    world.step()
    world.recover()
    assert world.slots() == [0, 1]
    world.refused = 1
    before = world.alive
    world.hang_up()
    world.recover()
    assert world.alive == before
    world.hang_up()
    world.recover()
    assert not [one for one in before if one in world.alive]


def test_the_first_workers_must_start(tmp_path, world):
    new = world()
    new.supervisor._was_ready = False
    new.all[0].process.fail()
    with pytest.raises(WorkerError, match="no engine"):
        new.step()
    new.refused = 1
    with pytest.raises(OSError, match="no process"):
        new.supervisor._start(0)


STEPS = st.tuples(st.sampled_from(["ready", "fail", "die", "hang up", "wait", "refuse"]), st.integers(0, 5))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=25))
def test_whatever_happens_all_slots_are_filled_in_the_end(world, steps):
    world = world()
    for what, number in steps:
        one = world.alive[number % len(world.alive)] if world.alive else None
        if what == "hang up":
            world.hang_up()
        elif what == "wait":
            world.now += number
        elif what == "refuse":
            world.refused = number
        elif one is not None and (what == "die" or not one.is_ready):
            getattr(one.process, what)()
        world.step()
        assert len(world.alive) <= 2 * SLOTS
        assert world.supervisor._workers or world.supervisor._seconds_to_wait() is not None
    world.refused = 0
    world.recover()
    assert world.slots() == [0, 1]
    assert sorted(one.slot for one in world.alive) == [0, 1]
    assert world.supervisor._to_replace == set()
