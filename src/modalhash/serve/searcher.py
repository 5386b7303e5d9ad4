"""Batch concurrent searches, so that they are encoded together and share one scan of the index.

Encoding and scanning run in one thread, because the GIL makes a second one useless and each switch of threads adds
latency. A few searches that are expected to take milliseconds run in the event loop itself, which saves a fifth of the
processor time at moderate load. Long searches, and all searches while the engine changes, run in the thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from time import monotonic, process_time
from typing import Generic, TypeAlias, TypeVar

from modalhash.core.progress import should_stop
from modalhash.engine import (
    Engine,
    Hit,
    Query,
    SearchOptions,
    UnknownLabelError,
)
from modalhash.serve import telemetry
from modalhash.serve.errors import HTTPError, QueueFullError, unknown_item_error
from modalhash.serve.limits import Limits
from modalhash.store import Filter, FilterError

Task = TypeVar("Task")
Result = TypeVar("Result")


class MicroBatcher(Generic[Task, Result]):
    """Call ``work`` with batches of jobs, one batch at a time.

    A single job starts without delay; jobs that arrive meanwhile form the next batch.

    Parameters
    ----------
    work : callable
        Takes a list of jobs and returns one result for each. An exception among the results is raised where that job
        is awaited; if ``work`` itself raises, all jobs of the batch fail.
    executor : Executor
        Runs ``work``.
    max_batch : int
        Maximum number of jobs in a batch.
    max_waiting : int
        Maximum number of queued jobs; further ones raise :class:`QueueFullError`.
    is_quick : callable, optional
        Returns whether a batch is short enough to run in the event loop; by default none is.
    on_batch : callable, optional
        Called with the jobs and the results of each batch, in the event loop.
    """

    def __init__(
        self,
        work: Callable[[list[Task]], Sequence[Result | Exception]],
        executor: Executor,
        *,
        max_batch: int = 256,
        max_waiting: int = 1024,
        is_quick: Callable[[list[Task]], bool] = lambda jobs: False,
        on_batch: Callable[[list[Task], Sequence[Result | Exception]], None] = lambda jobs, results: None,
    ) -> None:
        self._work, self._executor = work, executor
        self._max_batch, self._max_waiting, self._on_batch = max_batch, max_waiting, on_batch
        self._is_quick = is_quick
        self._queue: deque[tuple[Task, asyncio.Future[Result]]] = deque()
        self._busy = False
        """Whether a batch is running. Only the event loop's thread changes this and the queue."""

    async def __call__(self, job: Task) -> Result:
        if len(self._queue) >= self._max_waiting:
            raise QueueFullError(f"{len(self._queue)} searches are waiting")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._queue.append((job, future))
        if not self._busy:
            self._busy = True
            loop.call_soon(self._start, loop)  # jobs that arrive in this iteration join the batch
        return await future

    def _start(self, loop: asyncio.AbstractEventLoop, *, after_others: bool = False) -> None:
        """Start the next batch; with ``after_others``, deliver finished results first."""
        batch = self._next_batch()
        self._busy = bool(batch)
        if not batch:
            return
        if self._is_quick([job for job, _ in batch]):
            if after_others:
                loop.call_soon(self._run_here, batch, loop)
            else:
                self._run_here(batch, loop)
            return
        try:
            self._executor.submit(self._run, batch, loop)
        except RuntimeError as error:  # the executor is shut down
            self._finish(batch, [error] * len(batch), loop)

    def _run(self, batch: list[tuple[Task, asyncio.Future[Result]]], loop: asyncio.AbstractEventLoop) -> None:
        """Run a batch in the thread, and return to the event loop once."""
        results = self._results(batch)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._finish, batch, results, loop)

    def _run_here(self, batch: list[tuple[Task, asyncio.Future[Result]]], loop: asyncio.AbstractEventLoop) -> None:
        self._finish(batch, self._results(batch), loop)

    def _results(self, batch: list[tuple[Task, asyncio.Future[Result]]]) -> Sequence[Result | Exception]:
        try:
            results = self._work([job for job, _ in batch])
            if len(results) != len(batch):
                raise RuntimeError(f"{len(results)} results of {len(batch)} jobs")
        except Exception as error:
            return [error] * len(batch)
        return results

    def _finish(
        self,
        batch: list[tuple[Task, asyncio.Future[Result]]],
        results: Sequence[Result | Exception],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Deliver the results of a batch, and start the next one."""
        self._on_batch([job for job, _ in batch], results)
        for (_, future), result in zip(batch, results, strict=True):
            if future.done():  # cancelled: the client has disconnected
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)
        self._start(loop, after_others=True)

    def _next_batch(self) -> list[tuple[Task, asyncio.Future[Result]]]:
        batch: list[tuple[Task, asyncio.Future[Result]]] = []
        while self._queue and len(batch) < self._max_batch:
            job = self._queue.popleft()
            if not job[1].done():
                batch.append(job)
        return batch


QUICK_SECONDS = 0.02
"""Maximum expected time of a batch in the event loop, which blocks other requests."""
QUICK_HITS, QUICK_CHARACTERS = 100, 1000
"""Maximum number of hits and text length of a search in the event loop."""
NEWEST_SHARE = 0.1
"""Weight of the newest batch in the moving average of search times."""


Job: TypeAlias = tuple[str | Query, SearchOptions | None, str | None, bool]
"""The arguments of :meth:`Searcher.search`."""
Answer: TypeAlias = tuple[Query, list[Hit], int]
"""A query, its hits, and the number of items searched."""


class Searcher:
    """Search an engine in batches."""

    def __init__(self, engine: Engine, limits: Limits, on_batch: Callable[[str, int], None]) -> None:
        self.engine = engine
        self._count_batch = on_batch
        self._limits = limits
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="search")
        self.batcher: MicroBatcher[Job, Answer] = MicroBatcher(
            self._search_batch,
            self._executor,
            max_batch=limits.batch,
            max_waiting=limits.requests,
            is_quick=self._is_quick,
            on_batch=self._on_batch,
        )
        self._expected_seconds: float | None = None
        """Processor time of a light search; None before the first."""

    async def search(
        self, given: str | Query, options: SearchOptions | None, modality: str | None = None, *, by_id: bool = False
    ) -> Answer:
        """Search by a text, the id of an item or an encoded query; without options, encode it only."""
        return await self.batcher((given, options, modality, by_id))

    def close(self) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)

    def check_modalities(self, *names: str) -> None:
        try:
            self.engine.check_modalities(names)
        except ValueError as error:
            raise HTTPError(422, str(error)) from None

    def check_filter(self, where: Filter | str) -> Filter:
        """Return a parsed filter; raise FilterError for an invalid one, or one that costs too much."""
        parsed = Filter.of(where)
        cost = sum(_cost(comparison.field) for comparison in parsed.comparisons())
        if cost > self._limits.filter_cost:
            raise FilterError(
                f"the filter costs {cost:,}; the limit is {self._limits.filter_cost:,}. A comparison of an id costs 1, "
                "of a label 2, of any other field 8, or 16 if it has dots. Use fewer comparisons, or several requests"
            )
        return self.engine.check_filter(parsed)

    def check_options(self, options: SearchOptions, check_labels: bool = True) -> None:
        """Raise for an unknown label, kind or modality; the message starts with the field."""
        field = "where"
        try:
            if options.where is not None:
                self.check_filter(options.where)
            field = "labels"
            self.engine.check_options(options)
        except UnknownLabelError as error:
            if check_labels:
                raise HTTPError(422, f"{field}: {error}", reason="unknown_label") from None
        except FilterError as error:
            raise HTTPError(422, f"{field}: {error}") from None
        except ValueError as error:
            raise HTTPError(422, str(error)) from None

    def modality_for(self, reads: str, name: str | None) -> str:
        """Return the modality for a new query: ``name``, or the default for what it ``reads`` ("text" or "image")."""
        plural = "texts" if reads == "text" else "pictures"
        able = [modality for modality, own in self.engine.reads.items() if own == reads]
        if name is not None:
            if name not in self.engine.reads:
                self.check_modalities(name)
            if name not in able:
                expected = f"expected {' or '.join(map(repr, able))}" if able else "no modality does; search by id"
                raise HTTPError(422, f"modality: {name!r} does not accept {plural}; {expected}")
            return name
        if not able:
            raise HTTPError(422, f"this engine cannot encode {plural}: it was trained on given features. Search by id")
        return reads if reads in able else able[0]

    def encode_picture(self, data: bytes, modality: str) -> Query:
        try:
            return self.engine.prepare(image=[data], modality=modality, asymmetric=True)[0]
        except ValueError as error:
            raise HTTPError(415, f"image: {error}") from None

    def encode_item_content(self, id: str, modality: str | None) -> Query:
        """Return a stored item as a query, with projections computed from its content."""
        try:
            return self.engine.prepare(id=[id], modality=modality, asymmetric=True)[0]
        except ValueError:  # its message may contain a local path
            message = f"the content of {id!r} cannot be read, which 'asymmetric' needs; search without it"
            raise HTTPError(422, message) from None

    def _on_batch(self, jobs: list[Job], results: Sequence[Answer | Exception]) -> None:
        """Count the queries that were encoded together, and those that were searched together."""
        searched = [
            options is not None and not isinstance(result, Exception)
            for (_, options, *_), result in zip(jobs, results, strict=True)
        ]
        for stage, n in (("prepare", sum(isinstance(given, str) for given, *_ in jobs)), ("search", sum(searched))):
            if n:
                self._count_batch(stage, n)

    def _is_quick(self, jobs: list[Job]) -> bool:
        """Return whether a batch is small and light enough for the event loop."""
        expected = self._expected_seconds
        if expected is None or len(jobs) * expected > QUICK_SECONDS or not all(map(_is_light, jobs)):
            return False
        try:
            return self.engine.is_at_rest
        except Exception:  # the searches will raise and report it
            return False

    def search_alone(self, job: Job) -> Answer:
        """Return the answer to one search, in the caller's thread and context."""
        (result,) = results = self._search_jobs([job])
        self._on_batch([job], results)
        if isinstance(result, Exception):
            raise result
        return result

    def _search_batch(self, jobs: list[Job]) -> list[Answer | Exception]:
        start = process_time()  # wall-clock time is longer in the thread, which would keep searches there
        end = monotonic() + self._limits.request_seconds
        token = should_stop.set(lambda: monotonic() > end)
        try:
            results = self._search_jobs(jobs)
        finally:
            should_stop.reset(token)
        if all(map(_is_light, jobs)):
            each = (process_time() - start) / len(jobs)
            expected = each if self._expected_seconds is None else self._expected_seconds
            self._expected_seconds = (1 - NEWEST_SHARE) * expected + NEWEST_SHARE * each
        return results

    def _search_jobs(self, jobs: list[Job]) -> list[Answer | Exception]:
        encoded = self._encode(jobs)
        results: list[Answer | Exception] = [one if isinstance(one, Exception) else (one, [], 0) for one in encoded]
        asked = {
            row: (query, options)
            for row, (query, (_, options, *_)) in enumerate(zip(encoded, jobs, strict=True))
            if options is not None and not isinstance(query, Exception)
        }
        if asked:
            queries, options = zip(*asked.values(), strict=True)
            for row, found in zip(asked, self._answer(queries, options), strict=True):
                results[row] = found
        return results

    def _answer(self, queries: Sequence[Query], options: Sequence[SearchOptions]) -> Sequence[Answer | Exception]:
        """Return the result of each query, or the same exception for all."""
        try:
            with telemetry.span({"name": "search", "batch": len(queries)}):
                answers = self.engine.answer(queries, options)
            sizes = self.engine.sizes()
        except Exception as error:
            return [error] * len(queries)
        searched = (sum(sizes[name] for name in own.want or sizes) for own in options)
        return list(zip(queries, answers, searched, strict=True))

    def _encode(self, jobs: list[Job]) -> list[Query | Exception]:
        """Return the query of each job; those of one kind are encoded together."""
        groups: dict[tuple[str | None, bool], list[int]] = {}
        queries: dict[int, Query | Exception] = {}
        for row, (given, _, modality, by_id) in enumerate(jobs):
            if isinstance(given, str):
                groups.setdefault((modality, by_id), []).append(row)
            else:
                queries[row] = given
        for (modality, by_id), rows in groups.items():
            contents = [str(jobs[row][0]) for row in rows]
            with telemetry.span({"name": "prepare", "batch": len(rows)}):
                encoded = self._encode_items(contents, modality) if by_id else self._encode_texts(contents, modality)
            queries.update(zip(rows, encoded, strict=True))
        return [queries[row] for row in range(len(jobs))]

    def _encode_texts(self, texts: list[str], modality: str | None) -> Sequence[Query | Exception]:
        try:
            return self.engine.prepare(text=texts, modality=modality, asymmetric=True)
        except ValueError as error:
            if len(texts) == 1:
                return [HTTPError(422, f"text: {error}")]
            return [self._encode_texts([text], modality)[0] for text in texts]  # so that only the bad one fails

    def _encode_items(self, ids: list[str], modality: str | None) -> Sequence[Query | Exception]:
        try:
            return self.engine.prepare(id=ids, modality=modality)
        except (KeyError, ValueError) as error:
            if len(ids) == 1:
                return [unknown_item_error(error)]
            return [self._encode_items([id], modality)[0] for id in ids]


def may_take_long(options: SearchOptions) -> bool:
    """Return whether a search may read all items, so that others must not wait for it."""
    return options.filter is not None or options.radius is not None


def _cost(field: str) -> int:
    """Return the cost of comparing a field with a value, by what takes time in a store."""
    if field == "label":
        return 2
    return 1 if field in ("id", "modality", "kind", "text", "uri") else 16 if "." in field else 8


def _is_light(job: Job) -> bool:
    """Return whether a search has the usual size, so that its time is predictable."""
    given, options, *_ = job
    if isinstance(given, str) and len(given) > QUICK_CHARACTERS:
        return False
    return options is None or (options.k <= QUICK_HITS and options.shortlist is None and not may_take_long(options))
