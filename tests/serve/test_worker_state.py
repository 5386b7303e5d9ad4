"""What workers of one service have in common: their numbers, a key, and the engine that was changed last."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from modalhash.serve import Limits
from modalhash.serve.worker_state import ProcessState
from modalhash.serve.workers import share_limits


@pytest.fixture
def seats(tmp_path):
    """Three workers of one service."""
    state = ProcessState(folder=tmp_path)
    return [replace(state, worker=number) for number in range(3)]


def test_no_two_requests_have_the_same_number(seats):
    assert [seat.first_number for seat in seats] == [1, 1_000_000_001, 2_000_000_001]


def test_workers_accept_each_others_cookies(seats):
    assert len({seat.cookie_key for seat in seats}) == 1
    assert ProcessState().cookie_key != ProcessState().cookie_key


def test_a_change_in_another_engine_is_known_to_all(seats):
    assert not seats[0].is_changed_elsewhere("old")
    seats[1].note_change("old")
    seats[1].note_change("new")
    assert seats[0].is_changed_elsewhere("old")
    assert not seats[2].is_changed_elsewhere("new")


def test_a_single_process_knows_no_other():
    alone = ProcessState()
    alone.note_change("new")
    assert not alone.is_changed_elsewhere("old")
    assert alone.pids() == [os.getpid()]


def test_a_worker_that_ended_is_forgotten(seats):
    seats[0].enter()
    assert seats[1].pids() == [os.getpid()]
    seats[2].leave(os.getpid())
    assert seats[1].pids() == []


def test_each_worker_has_its_share_of_the_limits():
    share = share_limits(Limits(wrong_tokens=5, connections=1000, bytes=1000), 2)
    assert (share.wrong_tokens, share.connections, share.bytes) == (3, 500, 1000)
    assert share_limits(Limits(), 1) == Limits()
