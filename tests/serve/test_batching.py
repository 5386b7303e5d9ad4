"""Jobs that wait go together, alone they start at once, and one bad job spoils no other."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from modalhash.serve.batching import BusyError, Gatherer


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


async def started(gather, work, jobs):
    """The first job is being done, the others wait."""
    tasks = [asyncio.create_task(gather(jobs[0]))]
    await asyncio.to_thread(work.begun.wait, 10)
    tasks += [asyncio.create_task(gather(job)) for job in jobs[1:]]
    await asyncio.sleep(0)  # one turn of the loop: all of them are in the queue
    return tasks


def test_what_waits_goes_together(pool):
    work, sizes = Work(), []

    async def main():
        gather = Gatherer(work, pool, most=4, on_batch=sizes.append)
        tasks = await started(gather, work, [0, 2, 4, 6, 8, 10])
        work.go.set()
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == [0, 4, 8, 12, 16, 20]
    assert work.calls == [[0], [2, 4, 6, 8], [10]]
    assert sizes == [1, 4, 1]


def test_a_bad_job_fails_alone(pool):
    work = Work()
    work.go.set()

    async def main():
        gather = Gatherer(work, pool)
        return await asyncio.gather(*map(gather, [2, 3, 4]), return_exceptions=True)

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
        gather = Gatherer(work, pool)
        failed = await asyncio.gather(*map(gather, [1, 2]), return_exceptions=True)
        return failed, await gather(3)

    failed, third = asyncio.run(main())
    assert [str(error) for error in failed] == ["broken", "broken"]
    assert third == 3


def test_too_many_are_told_to_come_again(pool):
    work = Work()

    async def main():
        gather = Gatherer(work, pool, waiting=2)
        tasks = await started(gather, work, [0, 2, 4])
        with pytest.raises(BusyError, match="waiting"):
            await gather(6)
        work.go.set()
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == [0, 4, 8]


def test_who_goes_away_is_not_worked_for(pool):
    work = Work()

    async def main():
        gather = Gatherer(work, pool)
        first, second, third = await started(gather, work, [0, 2, 4])
        second.cancel()
        await asyncio.sleep(0)
        work.go.set()
        return await first, await third

    assert asyncio.run(main()) == (0, 8)
    assert work.calls == [[0], [4]]


def test_searches_of_many_clients_walk_together(serve, engine, until):
    """While one search is under way others come; they are answered by one call, each as if it were alone."""
    import json
    from http.client import HTTPConnection

    texts = ["a red ball", "...", "a blue box", "a green box today"]
    expected = [
        None if text == "..." else [hit.id for hit in engine.search(text=text, k=3 + n)] for n, text in enumerate(texts)
    ]
    begun, go, calls, answer = threading.Event(), threading.Event(), [], engine.answer

    def held(asks):
        calls.append(len(asks := list(asks)))
        begun.set()
        assert go.wait(10)
        return answer(asks)

    def ask(port, **body):
        connection = HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("POST", "/search", json.dumps(body), {"Content-Type": "application/json"})
        return json.load(connection.getresponse())

    with serve() as server, ThreadPoolExecutor(5) as pool:
        metrics = server.config.app.state.service.metrics
        engine.answer = held
        first = pool.submit(ask, server.port, text="red")
        assert begun.wait(10)
        others = [pool.submit(ask, server.port, text=text, k=3 + n) for n, text in enumerate(texts)]
        gatherer = server.config.app.state.service.searcher.answer
        until(lambda: len(gatherer._waiting) == 3)
        go.set()
        found = [other.result() for other in others]
        assert first.result()["hits"]
        assert calls == [1, 3]
        assert metrics.batches["search"].total == 4
    for n, ids in enumerate(expected):
        if ids is None:
            assert found[n]["status"] == 422
        else:
            assert [hit["id"] for hit in found[n]["hits"]] == ids
