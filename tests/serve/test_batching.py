"""Queued jobs run in one batch, a single job starts immediately, and a bad job does not fail others."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from modalhash.serve.searcher import MicroBatcher, QueueFullError


class Work:
    """Doubles numbers; holds the first call until it is let go."""

    def __init__(self):
        self.calls = []
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self, jobs):
        self.calls.append(list(jobs))
        self.begun.set()
        assert self.go.wait(10)
        return [ValueError(f"{job} is odd") if job % 2 else 2 * job for job in jobs]


@pytest.fixture
def pool():
    with ThreadPoolExecutor(1) as executor:
        yield executor


async def started(batcher, work, jobs):
    """The first job is being done, the others wait."""
    tasks = [asyncio.create_task(batcher(jobs[0]))]
    await asyncio.to_thread(work.begun.wait, 10)
    tasks += [asyncio.create_task(batcher(job)) for job in jobs[1:]]
    await asyncio.sleep(0)  # one turn of the loop: all of them are in the queue
    return tasks


def test_what_waits_goes_together(pool):
    work, sizes = Work(), []

    async def main():
        batcher = MicroBatcher(work, pool, max_batch=4, on_batch=lambda jobs, results: sizes.append(len(jobs)))
        tasks = await started(batcher, work, [0, 2, 4, 6, 8, 10])
        work.go.set()
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == [0, 4, 8, 12, 16, 20]
    assert work.calls == [[0], [2, 4, 6, 8], [10]]
    assert sizes == [1, 4, 1]


def test_a_bad_job_fails_alone(pool):
    work = Work()
    work.go.set()

    async def main():
        batcher = MicroBatcher(work, pool)
        return await asyncio.gather(*map(batcher, [2, 3, 4]), return_exceptions=True)

    two, three, four = asyncio.run(main())
    assert (two, four) == (4, 8)
    assert isinstance(three, ValueError)
    assert work.calls == [[2, 3, 4]]


def test_a_call_that_fails_tells_all_and_the_next_one_works(pool):
    calls = []

    def work(jobs):
        calls.append(jobs)
        if len(calls) == 1:
            raise RuntimeError("broken")
        return jobs

    async def main():
        batcher = MicroBatcher(work, pool)
        failed = await asyncio.gather(*map(batcher, [1, 2]), return_exceptions=True)
        return failed, await batcher(3)

    failed, third = asyncio.run(main())
    assert [str(error) for error in failed] == ["broken", "broken"]
    assert third == 3


def test_too_many_are_refused(pool):
    work = Work()

    async def main():
        batcher = MicroBatcher(work, pool, max_waiting=2)
        tasks = await started(batcher, work, [0, 2, 4])
        with pytest.raises(QueueFullError, match="waiting"):
            await batcher(6)
        work.go.set()
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == [0, 4, 8]


def test_who_goes_away_is_not_worked_for(pool):
    work = Work()

    async def main():
        batcher = MicroBatcher(work, pool)
        first, second, third = await started(batcher, work, [0, 2, 4])
        second.cancel()
        await asyncio.sleep(0)
        work.go.set()
        return await first, await third

    assert asyncio.run(main()) == (0, 8)
    assert work.calls == [[0], [4]]


def test_what_is_quick_is_done_in_the_event_loop(pool):
    """Results of a batch go out before the next one is begun, and all batches are done, whichever way they went."""
    threads, events = {}, []

    def work(jobs):
        events.append(("work", list(jobs)))
        threads.update(dict.fromkeys(jobs, threading.current_thread()))
        return [ValueError("bad") if job == 5 else 10 * job for job in jobs]

    async def main():
        batcher = MicroBatcher(work, pool, max_batch=2, is_quick=lambda jobs: max(jobs) < 9)

        async def one(job):
            try:
                result = await batcher(job)
            except ValueError:
                result = None
            events.append(("answered", job))
            return result

        return await asyncio.gather(*map(one, [1, 2, 3, 4, 9, 5]))

    assert asyncio.run(main()) == [10, 20, 30, 40, 90, None]
    here = threading.main_thread()
    assert {job for job, thread in threads.items() if thread is here} == {1, 2, 3, 4}
    assert events[:4] == [("work", [1, 2]), ("answered", 1), ("answered", 2), ("work", [3, 4])]
    assert [jobs for event, jobs in events if event == "work"] == [[1, 2], [3, 4], [9, 5]]


def test_a_quick_batch_that_fails_tells_all_and_the_next_one_works(pool):
    def work(jobs):
        if 1 in jobs:
            raise RuntimeError("broken")
        return jobs

    async def main():
        batcher = MicroBatcher(work, pool, is_quick=lambda jobs: True)
        failed = await asyncio.gather(*map(batcher, [1, 2]), return_exceptions=True)
        return failed, await batcher(3)

    failed, third = asyncio.run(main())
    assert [str(error) for error in failed] == ["broken", "broken"]
    assert third == 3
