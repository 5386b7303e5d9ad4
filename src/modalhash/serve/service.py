"""What all routes share: the engine, the threads that use it, the settings, and what is counted and cached.

If another engine takes the place of the one that is served, the service follows: the new one is opened while the old
one goes on answering. A request has one engine from its beginning to its end, and the last request of an old engine
closes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import Any, Literal, TypeVar

from starlette.types import ASGIApp, Receive, Scope, Send

from modalhash.audit import AuditLog
from modalhash.engine import Engine, EngineReplacedError
from modalhash.serve.errors import busy_error
from modalhash.serve.media import Thumbnails
from modalhash.serve.monitoring import LOGGER, Metrics
from modalhash.serve.searcher import Searcher
from modalhash.serve.seats import ProcessState
from modalhash.serve.settings import Settings
from modalhash.serve.uploads import BodyBudget
from modalhash.store import StoreError

Value = TypeVar("Value")
Pool = Literal["items", "pictures", "changes", "duplicates", "follow"]
RETRY_SECONDS = 5.0
"""The time after which an engine that could not be opened is tried again."""
MAX_REPLACEMENTS = 3
"""How often a change follows to another engine before it gives up."""


class ServedEngine:
    """An engine with the threads that search it, and the number of requests that are using it."""

    def __init__(self, engine: Engine, settings: Settings, metrics: Metrics, *, is_own: bool) -> None:
        self.engine = engine
        self.is_own = is_own
        self.searcher = Searcher(engine, settings.limits, metrics.count_batch)
        self.n_requests = 0
        self.is_retired = False

    def close(self) -> None:
        """End the threads when their work is done; close the engine unless it is the caller's, and still in place."""
        self.searcher.close()
        if self.is_own or self.is_retired:
            self.engine.close()


_leased: ContextVar[ServedEngine | None] = ContextVar("leased", default=None)


class Service:
    """An engine and the state that is needed to serve it; the engine is the caller's to close."""

    def __init__(self, engine: Engine, settings: Settings, seat: ProcessState | None = None) -> None:
        self.settings, self.limits = settings, settings.limits
        self.seat = seat or ProcessState()
        self.metrics = Metrics(
            started=self.seat.started,
            pids=self.seat.pids,
            all_under_way=self.seat.all_under_way,
            folder=self.seat.metrics_folder,
        )
        self.audit = AuditLog.of_engine(engine.path)
        if settings.writable:
            self.audit.check()  # what cannot be noted cannot be changed: better known at the start
        self.body_budget = BodyBudget(self.limits, self.seat.tally("bodies"))
        self._served = ServedEngine(engine, settings, self.metrics, is_own=False)
        self._lock, self._opening = threading.Lock(), threading.Lock()
        self._follow_after = 0.0
        self.thumbnails = Thumbnails(max_bytes=self.limits.thumbnails, max_pixels=self.limits.pixels)
        self._executors: dict[Pool, ThreadPoolExecutor] = {
            "items": ThreadPoolExecutor(2, thread_name_prefix="items"),
            "pictures": ThreadPoolExecutor(self.limits.pictures, thread_name_prefix="pictures"),
            "changes": ThreadPoolExecutor(1, thread_name_prefix="changes"),  # one change after the other
            "duplicates": ThreadPoolExecutor(1, thread_name_prefix="duplicates"),  # later ones find its result
            "follow": ThreadPoolExecutor(1, thread_name_prefix="follow"),
        }

    @property
    def engine(self) -> Engine:
        """The engine of the request that asks, or else the newest one."""
        return (_leased.get() or self._served).engine

    @property
    def searcher(self) -> Searcher:
        """The searches of that engine."""
        return (_leased.get() or self._served).searcher

    @contextlib.contextmanager
    def current_engine(self) -> Iterator[None]:
        """Give whoever is in this block the newest engine, the same one until the end; it stays open so long."""
        with self._lock:
            served = self._served
            served.n_requests += 1
        token = _leased.set(served)
        try:
            yield
        finally:
            _leased.reset(token)
            with self._lock:
                served.n_requests -= 1
            self._close_unused(served)

    async def in_thread(self, pool: Pool, work: Callable[..., Value], *arguments: Any) -> Value:
        """Return the result of ``work``, which runs off the event loop.

        A change is made in the newest engine, and once more if another one took its place before it was done.
        """
        run: Callable[..., Value] = self._change if pool == "changes" else copy_context().run
        return await asyncio.get_running_loop().run_in_executor(self._executors[pool], run, work, *arguments)

    def _change(self, work: Callable[..., Value], *arguments: Any) -> Value:
        for _ in range(MAX_REPLACEMENTS):
            with self.current_engine():
                try:
                    result = work(*arguments)
                    self.seat.note_change(self.engine.generation)
                    return result
                except EngineReplacedError:
                    pass
            try:
                self.open_replacement()
            except (ValueError, OSError, StoreError) as error:
                self._log("engine_not_followed", str(error))
                raise busy_error("the engine was replaced, and the new one cannot be opened; see the log") from error
        raise busy_error("the engine is being replaced again and again")

    @property
    def is_stale(self) -> bool:
        """Whether another worker has made a change in an engine that took the place of the one that is served here.

        That change may be acknowledged, so no search may be answered without it.
        """
        engine = self._served.engine
        return self.seat.is_changed_elsewhere(engine.generation) and engine.replaced

    async def wait_for_replacement(self) -> None:
        """Wait until the engine that is in place is served."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._executors["follow"], self.open_replacement)
        except (ValueError, OSError, StoreError) as error:
            self._log("engine_not_followed", str(error))
            raise busy_error("the engine was replaced, and the new one cannot be opened; see the log") from error

    def follow_if_replaced(self) -> None:
        """Begin to open the engine that took the place of the one that is served, if there is one; returns at once."""
        if not self._served.engine.replaced or time.monotonic() < self._follow_after or self._opening.locked():
            return
        self._follow_after = time.monotonic() + RETRY_SECONDS
        self._executors["follow"].submit(self._try_to_follow)

    def open_replacement(self) -> None:
        """Serve the engine that took the place of the one that is served; raises if that cannot be opened."""
        with self._opening:
            old = self._served
            if not old.engine.replaced:
                return
            engine = old.engine.reopen()
            try:
                engine.warm_up()
            except BaseException:
                engine.close()
                raise
            new = ServedEngine(engine, self.settings, self.metrics, is_own=True)
            with self._lock:
                self._served, old.is_retired = new, True
            self._follow_after = 0.0
            self._close_unused(old)
        self._log("engine_followed", f"generation {engine.generation}, {len(engine)} items")

    def _try_to_follow(self) -> None:
        try:
            self.open_replacement()
        except Exception as error:  # the old one goes on answering, and a later request tries again
            self._log("engine_not_followed", str(error))

    def _close_unused(self, served: ServedEngine) -> None:
        """Close an engine that was replaced when nobody uses it any more, off the event loop."""
        with self._lock:
            if not served.is_retired or served.n_requests:
                return
            served.n_requests = -1  # once
        threading.Thread(target=served.close, name="close").start()

    @staticmethod
    def _log(event: str, message: str) -> None:
        LOGGER.warning(event, extra={"fields": {"event": event, "message": message}})

    def warm_up(self) -> None:
        """Load and compile what the first searches would have to wait for."""
        self.engine.warm_up()

    def close(self) -> None:
        """End the threads when their work is done, and close the engine if the service opened it itself."""
        for executor in self._executors.values():
            executor.shutdown(wait=True, cancel_futures=True)
        self._served.close()


class LeaseMiddleware:
    """ASGI middleware that gives every request one engine, and looks whether another took its place."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if self.service.is_stale:
            await self.service.wait_for_replacement()
        self.service.follow_if_replaced()
        with self.service.current_engine():
            await self.app(scope, receive, send)
