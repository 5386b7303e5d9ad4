"""Addresses take turns: one with many jobs, or with long ones, leaves threads to others."""

from __future__ import annotations

import asyncio
import threading

import pytest

from modalhash.serve.pools import FairPool


@pytest.fixture
def pool():
    pool = FairPool(2, "test")
    yield pool
    pool.close()


def test_long_jobs_of_one_address_leave_a_thread_to_others(pool):
    go = threading.Event()

    async def work():
        long = [asyncio.create_task(pool.run("greedy", go.wait, 20)) for _ in range(5)]
        others = [await pool.run(address, lambda: "done") for address in ("one", "other")]
        assert not any(task.done() for task in long)
        go.set()
        return others, await asyncio.gather(*long)

    assert asyncio.run(work()) == (["done", "done"], [True] * 5)


def test_a_turn_lasts_as_long_as_the_work_even_if_the_request_is_over(pool):
    go, running = threading.Event(), []

    def hold():
        running.append(1)
        return go.wait(20)

    async def work():
        given_up = [asyncio.create_task(pool.run("greedy", hold)) for _ in range(3)]
        while not running:
            await asyncio.sleep(0)
        for task in given_up:
            task.cancel()
        await asyncio.gather(*given_up, return_exceptions=True)
        later = asyncio.create_task(pool.run("greedy", hold))
        assert await pool.run("other", len, "abc") == 3
        assert len(running) == 1, "of those that were given up, none began, and the later one waits"
        go.set()
        return await later

    assert asyncio.run(work())
    assert len(running) == 2


def test_a_failure_ends_the_turn(pool):
    async def work():
        for _ in range(3):
            with pytest.raises(ValueError, match="nothing"):
                await pool.run("one", failing)
        return await pool.run("one", len, "abc")

    def failing():
        raise ValueError("nothing")

    assert asyncio.run(work()) == 3


def test_a_closed_pool_refuses_all_jobs_of_an_address(pool):
    pool.close()

    async def work():
        for _ in range(3):
            with pytest.raises(RuntimeError, match="shutdown"):
                await pool.run("one", len, "abc")

    asyncio.run(work())
