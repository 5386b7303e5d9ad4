"""Micro-batching: jobs that wait while the worker is busy go into its next call together.

Nothing is delayed: a job that comes alone starts at once, and those that come meanwhile form the next batch. Under
load the batches grow by themselves, up to a bound. A batch that takes but some milliseconds is done in the event loop
itself: the way to a thread and back would cost more than it saves.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Generic, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")


class QueueFullError(Exception):
    """Too many jobs are waiting; try again later."""


class MicroBatcher(Generic[Job, Result]):
    """Calls ``work`` with batches of jobs, one batch at a time, in a thread or, where that is quick, in the event loop.

    Parameters
    ----------
    work : callable
        Takes a list of jobs and returns as many results. An exception among the results is raised where that job is
        awaited; if ``work`` itself raises, all jobs of the batch fail.
    executor : Executor
        Runs ``work``.
    max_batch : int
        The most jobs of one batch.
    max_waiting : int
        The number of jobs that may wait; further ones raise :class:`QueueFullError`.
    is_quick : callable, optional
        Tells whether a batch is done sooner than others notice that the event loop stands still; by default none is.
    on_batch : callable, optional
        Called with the size of each batch.
    """

    def __init__(
        self,
        work: Callable[[list[Job]], Sequence[Result | Exception]],
        executor: Executor,
        *,
        max_batch: int = 256,
        max_waiting: int = 1024,
        is_quick: Callable[[list[Job]], bool] = lambda jobs: False,
        on_batch: Callable[[int], None] | None = None,
    ) -> None:
        self._work, self._executor = work, executor
        self._max_batch, self._max_waiting, self._on_batch = max_batch, max_waiting, on_batch
        self._is_quick = is_quick
        self._queue: deque[tuple[Job, asyncio.Future[Result]]] = deque()
        self._busy = False
        """Whether a batch is under way. Only the event loop's thread changes this and the queue."""

    async def __call__(self, job: Job) -> Result:
        """Return the result of one job."""
        if len(self._queue) >= self._max_waiting:
            raise QueueFullError(f"{len(self._queue)} searches are waiting")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._queue.append((job, future))
        if not self._busy:
            self._busy = True
            loop.call_soon(self._start, loop)  # what else arrived in the same moment comes along
        return await future

    def _start(self, loop: asyncio.AbstractEventLoop, *, after_others: bool = False) -> None:
        """Begin the jobs that wait; ``after_others`` if somebody has a result by now and should get it first."""
        batch = self._next_batch()
        self._busy = bool(batch)
        if not batch:
            return
        if self._on_batch is not None:
            self._on_batch(len(batch))
        if self._is_quick([job for job, _ in batch]):
            if after_others:
                loop.call_soon(self._run_here, batch, loop)
            else:
                self._run_here(batch, loop)
            return
        try:
            self._executor.submit(self._run, batch, loop)
        except RuntimeError as error:  # the threads have ended: so does whoever waits
            self._finish(batch, [error] * len(batch), loop)

    def _run(self, batch: list[tuple[Job, asyncio.Future[Result]]], loop: asyncio.AbstractEventLoop) -> None:
        """Do a batch in the thread, and come back to the event loop once for all of it."""
        results = self._results(batch)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(self._finish, batch, results, loop)

    def _run_here(self, batch: list[tuple[Job, asyncio.Future[Result]]], loop: asyncio.AbstractEventLoop) -> None:
        """Do a batch in the event loop."""
        self._finish(batch, self._results(batch), loop)

    def _results(self, batch: list[tuple[Job, asyncio.Future[Result]]]) -> Sequence[Result | Exception]:
        try:
            results = self._work([job for job, _ in batch])
            if len(results) != len(batch):
                raise RuntimeError(f"{len(results)} results of {len(batch)} jobs")
        except Exception as error:
            return [error] * len(batch)
        return results

    def _finish(
        self,
        batch: list[tuple[Job, asyncio.Future[Result]]],
        results: Sequence[Result | Exception],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Give everybody of a batch their result, and begin the next one."""
        for (_, future), result in zip(batch, results, strict=True):
            if future.done():  # cancelled: the client has disconnected
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)
        self._start(loop, after_others=True)

    def _next_batch(self) -> list[tuple[Job, asyncio.Future[Result]]]:
        batch: list[tuple[Job, asyncio.Future[Result]]] = []
        while self._queue and len(batch) < self._max_batch:
            job = self._queue.popleft()
            if not job[1].done():
                batch.append(job)
        return batch
