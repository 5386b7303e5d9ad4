"""Which connections stay open where there are too many."""

from __future__ import annotations

from dataclasses import dataclass, field

from modalhash.serve import Limits
from modalhash.serve.timeouts import ConnectionTable


@dataclass(eq=False)
class Fake:
    idle_since: float | None
    dropped: bool = field(default=False)

    def drop(self):
        self.dropped = True


def table(connections, per_address):
    return ConnectionTable(Limits(connections=connections, connections_per_address=per_address))


def test_the_longest_silent_one_makes_place():
    held = table(10, 3)
    busy, old, young = Fake(None), Fake(1.0), Fake(2.0)
    assert all(held.admit(one, "a") for one in (busy, young, old))
    assert held.admit(Fake(3.0), "a")
    assert [one.dropped for one in (busy, old, young)] == [False, True, False]
    assert len(held) == 3


def test_where_all_are_busy_the_new_one_waits_outside():
    held = table(10, 2)
    busy = [Fake(None), Fake(None)]
    assert all(held.admit(one, "a") for one in busy)
    assert not held.admit(Fake(1.0), "a")
    assert held.admit(Fake(1.0), "b")
    held.release(busy[0])
    assert held.admit(Fake(2.0), "a")


def test_of_all_the_address_with_most_makes_place():
    held = table(4, 3)
    alone, crowd = Fake(1.0), [Fake(5.0), Fake(6.0), Fake(None)]
    assert held.admit(alone, "a")
    assert all(held.admit(one, "b") for one in crowd)
    assert held.admit(Fake(9.0), "c")
    assert [one.dropped for one in crowd] == [True, False, False]
    assert not alone.dropped


def test_a_proxy_has_no_limit_of_its_own():
    held = table(4, 1)
    assert all(held.admit(Fake(None), "proxy", limited=False) for _ in range(4))
    assert not held.admit(Fake(None), "proxy", limited=False)


def test_closed_connections_are_forgotten():
    held = table(4, 2)
    for _ in range(10):
        one = Fake(None)
        assert held.admit(one, "a")
        held.release(one)
        held.release(one)
    assert len(held) == 0
