"""What workers count together, on one board in this process: each reads what the others wrote."""

from __future__ import annotations

from collections import Counter

import pytest

from modalhash.serve.worker_state import (
    ALL_ADDRESSES,
    LocalCounter,
    ProcessState,
    SharedCounters,
    SharedWrongTokens,
    WorkerArguments,
    WorkerState,
)

KEY = b"k" * 32


@pytest.fixture
def seats(tmp_path):
    """Three workers of one service."""
    path = tmp_path / "board"
    SharedCounters.create(path, 3)
    return [WorkerState(WorkerArguments(path, row, KEY, 0.0, tmp_path)) for row in range(3)]


def test_a_tally_is_that_of_all_workers(seats):
    tallies = [seat.tally("requests") for seat in seats] + [seats[0].tally("bodies")]
    reference = Counter()
    for n, address in enumerate(["192.0.2.1", "192.0.2.2", ALL_ADDRESSES, "2001:db8::/64", "192.0.2.1"] * 3):
        tallies[n % 3].add(address, 1 + n)
        reference[address] += 1 + n
    for tally in tallies[:3]:
        assert {address: tally.total(address) for address in reference} == reference
    assert tallies[3].total("192.0.2.1") == 0, "other things are counted apart"


def test_a_tally_is_never_below_the_truth(seats):
    """Where two addresses meet in a bucket, a count may be too high, so that a limit is kept in any case."""
    tally = seats[0].tally("connections")
    addresses = [f"10.0.{n // 256}.{n % 256}" for n in range(2000)]
    for address in addresses:
        tally.add(address, 1)
    counts = [tally.total(address) for address in addresses]
    assert min(counts) == 1
    assert counts.count(1) > 0.7 * len(counts)
    for address in addresses:
        tally.add(address, -1)
    assert {tally.total(address) for address in addresses} == {0}


def test_a_local_tally_counts_the_same():
    tally = LocalCounter()
    tally.add("a", 2)
    tally.add("a", -1)
    tally.add("b", 1)
    tally.add("b", -1)
    assert (tally.total("a"), tally.total("b"), tally.total("c")) == (1, 0, 0)


def test_what_a_worker_that_ended_had_under_way_is_forgotten(seats, tmp_path):
    board = SharedCounters(tmp_path / "board")
    for seat in seats:
        seat.tally("requests").add("192.0.2.1", 4)
        seat.all_in_flight(4)
    number = seats[1].next_number()
    board.clear(1)
    assert seats[0].tally("requests").total("192.0.2.1") == 8
    assert seats[0].all_in_flight(4) == 8
    again = WorkerState(WorkerArguments(tmp_path / "board", 1, KEY, 0.0, tmp_path))
    assert again.next_number() > number, "its successor continues the count"


def test_no_two_requests_have_the_same_number(seats):
    numbers = [seat.next_number() for seat in seats for _ in range(5)]
    assert len(set(numbers)) == 15
    assert min(numbers) == 1


def test_wrong_tokens_at_several_workers_lock_an_address_out_of_all(seats):
    now = [1000.0]
    counts = [
        SharedWrongTokens(seat._board, row, seat._buckets, 3, 60, clock=lambda: now[0])
        for row, seat in enumerate(seats)
    ]
    counts[0].add("192.0.2.1")
    now[0] += 20
    counts[1].add("192.0.2.1")
    assert counts[2].locked_seconds("192.0.2.1") == 0
    counts[2].add("192.0.2.1")
    assert [one.locked_seconds("192.0.2.1") for one in counts] == [40, 40, 40], "the window of the first"
    assert counts[0].locked_seconds("192.0.2.2") == 0
    now[0] += 40
    assert [one.locked_seconds("192.0.2.1") for one in counts] == [0, 0, 0]
    counts[1].add("192.0.2.1")
    assert counts[1].locked_seconds("192.0.2.1") == 0, "a new window begins with one"


def test_a_change_in_another_engine_is_known_to_all(seats):
    assert not seats[0].is_changed_elsewhere("old")
    seats[1].note_change("new")
    assert seats[0].is_changed_elsewhere("old")
    assert not seats[2].is_changed_elsewhere("new")


def test_workers_accept_each_others_cookies(seats):
    assert len({seat.cookie_key for seat in seats}) == 1
    assert KEY not in seats[0].cookie_key


def test_a_worker_knows_whether_another_has_fewer_connections(seats, tmp_path):
    tallies = [seat.tally("connections") for seat in seats]
    assert [seat.has_more_connections(0) for seat in seats] == [False, False, False]
    assert seats[0].has_more_connections(1), "one that is not counted yet is one more"
    for address, worker in (("192.0.2.1", 0), ("192.0.2.2", 0), ("192.0.2.1", 1)):
        tallies[worker].add(address, 1)
        tallies[worker].add(ALL_ADDRESSES, 1)
    assert [seat.has_more_connections(0) for seat in seats] == [True, True, False]
    SharedCounters(tmp_path / "board").clear(2)
    assert [seat.has_more_connections(0) for seat in seats[:2]] == [True, False], "a worker that ended has none to take"
    assert not ProcessState().has_more_connections(5), "a single process must accept them itself"
