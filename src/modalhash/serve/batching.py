"""Work that is cheaper together: whatever waits when the worker is free goes in one call.

Nothing is delayed: a job that comes alone starts at once, and those that come meanwhile form the next call. Under
load the calls grow by themselves, up to a bound.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Generic, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")


class BusyError(Exception):
    """Too much is waiting; try again later."""


class Gatherer(Generic[Job, Result]):
    """Hands jobs to ``work`` in batches, one batch at a time, in a thread.

    Parameters
    ----------
    work : takes several jobs and returns as many results; an exception in place of a result is raised where that job
        is awaited. If it raises itself, all its jobs fail
    executor : whose thread does it
    most : jobs of one call
    waiting : jobs that may wait; further ones get a :class:`BusyError`
    on_batch : told the size of each call
    """

    def __init__(
        self,
        work: Callable[[list[Job]], Sequence[Result | Exception]],
        executor: Executor,
        *,
        most: int = 256,
        waiting: int = 1024,
        on_batch: Callable[[int], None] | None = None,
    ) -> None:
        self._work, self._executor = work, executor
        self._most, self._bound, self._on_batch = most, waiting, on_batch
        self._waiting: deque[tuple[Job, asyncio.Future[Result]]] = deque()
        self._running: asyncio.Task[None] | None = None

    async def __call__(self, job: Job) -> Result:
        """The result of one job."""
        if len(self._waiting) >= self._bound:
            raise BusyError(f"{len(self._waiting)} searches are waiting")
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((job, future))
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await future

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while batch := self._next():
                if self._on_batch is not None:
                    self._on_batch(len(batch))
                jobs = [job for job, _ in batch]
                try:
                    results = await loop.run_in_executor(self._executor, self._work, jobs)
                except Exception as error:
                    results = [error] * len(batch)
                for (_, future), result in zip(batch, results, strict=True):
                    if future.done():  # who asked went away
                        continue
                    if isinstance(result, Exception):
                        future.set_exception(result)
                    else:
                        future.set_result(result)
        finally:
            self._running = None

    def _next(self) -> list[tuple[Job, asyncio.Future[Result]]]:
        batch: list[tuple[Job, asyncio.Future[Result]]] = []
        while self._waiting and len(batch) < self._most:
            job = self._waiting.popleft()
            if not job[1].done():
                batch.append(job)
        return batch
