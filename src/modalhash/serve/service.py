"""State shared by all routes: request bodies in memory, the engine, its threads, metrics and caches.

If the engine in the folder is replaced, the new one is opened while the old one still answers. A request uses one
engine from start to end, and the last request of an old engine closes it. If the uploads of an address use too many
slots or bytes, the slowest is dropped, so that slow clients do not block others.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from modalhash.core.progress import should_stop
from modalhash.engine import Engine, EngineReplacedError, Query, SearchOptions
from modalhash.serve.auth import client_of
from modalhash.serve.errors import HTTPError, busy_error, field_error, not_ready_error, too_many_error
from modalhash.serve.limits import MAX_LABELS, MAX_TEXT_LENGTH, Limits, Settings
from modalhash.serve.media import Thumbnails
from modalhash.serve.monitoring import LOGGER, Metrics
from modalhash.serve.pools import FairPool
from modalhash.serve.schemas import LIST_FIELDS
from modalhash.serve.searcher import Answer, Searcher, may_take_long
from modalhash.serve.worker_state import ProcessState
from modalhash.store import PostgresStore, StoreError, StoreReplacedError, StoreUnavailableError

Model = TypeVar("Model", bound=BaseModel)
CHARSETS = ("utf-8", "utf8", "us-ascii")
"""Accepted character sets of a form; some of Python's other codecs are not text encodings."""
SLOW_SECONDS = 1.0
"""Age after which an upload may be dropped for another; most take milliseconds."""


class BodyBudget:
    """Count uploads in progress by address, and the bytes of all bodies in memory."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.used = 0
        self._arriving: dict[str, set[BodyReader]] = {}

    @contextmanager
    def reader(self, address: str) -> Iterator[BodyReader]:
        """Provide a reader for a request; its bytes are released at the end."""
        reader = BodyReader(self, address)
        try:
            yield reader
        finally:
            reader.release()

    def drop_slowest(self) -> bool:
        """Drop a slow upload, of the address with the most; return whether one was dropped."""
        most_first = sorted(self._arriving.values(), key=len, reverse=True)
        return any(_drop_slowest(readers, SLOW_SECONDS) for readers in most_first)

    @contextmanager
    def arriving(self, reader: BodyReader) -> Iterator[None]:
        """Count an upload while it is in progress; raise if its address has too many and none is slow."""
        own = self._arriving.get(reader.address, set())
        if len(own) >= self.limits.bodies_per_address and not _drop_slowest(own, SLOW_SECONDS):
            raise too_many_error(f"{len(own)} uploads in progress")
        self._arriving.setdefault(reader.address, set()).add(reader)
        try:
            yield
        finally:
            self.forget(reader)

    def forget(self, reader: BodyReader) -> None:
        own = self._arriving.get(reader.address, set())
        if reader in own:
            own.remove(reader)
        if not own:
            self._arriving.pop(reader.address, None)

    def take(self, reader: BodyReader, n_bytes: int) -> None:
        """Count bytes of a body; if all bodies exceed the limit, drop uploads of the largest address."""
        reader.used += n_bytes
        self.used += n_bytes
        while self.used > self.limits.all_bytes:
            bytes_by_address = {one: sum(body.used for body in bodies) for one, bodies in self._arriving.items()}
            address = max(bytes_by_address, key=bytes_by_address.__getitem__, default=reader.address)
            if address == reader.address or not _drop_slowest(self._arriving[address], 0.0):
                raise busy_error("too many concurrent uploads")


class BodyReader:
    """Read the body of one request."""

    def __init__(self, budget: BodyBudget, address: str) -> None:
        self.budget, self.address, self.used = budget, address, 0
        self.dropped = False
        self._timeout: asyncio.Timeout | None = None
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def release(self) -> None:
        self.budget.used -= self.used
        self.used = 0

    def drop(self) -> None:
        """Stop reading, answer the request immediately, and release its slot and bytes."""
        self.dropped = True
        self.budget.forget(self)
        self.release()
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time())

    async def read(self, request: Request, model: type[Model]) -> tuple[Model, bytes | None]:
        """Return the fields of the request, and the uploaded file, if any."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        seconds = self.budget.limits.body_seconds
        try:
            async with asyncio.timeout(seconds) as self._timeout:
                with self.budget.arriving(self):
                    if kind == "application/json":
                        return await self._json(request, model), None
                    if kind == "multipart/form-data":
                        return await self._form(request, model)
        except TimeoutError:
            message = f"the body did not arrive in {seconds:g} s; send it faster"
            if self.dropped:
                message = f"the body was dropped after {self.seconds:.1f} s to free its slot; send it faster"
            raise HTTPError(408, message, {"Connection": "close"}) from None
        raise HTTPError(
            415, f"the content type is {kind or 'missing'!r}; expected application/json or multipart/form-data"
        )

    async def _json(self, request: Request, model: type[Model]) -> Model:
        parts = [chunk async for chunk in self._chunks(request, self.budget.limits.json_bytes)]
        try:
            return model.model_validate_json(b"".join(parts), strict=True)
        except ValidationError as error:
            raise field_error(error) from None

    async def _form(self, request: Request, model: type[Model]) -> tuple[Model, bytes | None]:
        limits = self.budget.limits
        charset = parse_options_header(request.headers["content-type"])[1].get(b"charset", b"utf-8").decode("latin-1")
        if charset.lower() not in CHARSETS:
            raise HTTPError(415, f"the form has the charset {charset[:80]!r}; expected utf-8")
        max_bytes = limits.bytes + limits.json_bytes
        parser = MultiPartParser(
            request.headers,
            self._chunks(request, max_bytes),
            max_files=1,
            max_fields=MAX_LABELS + 30,
            max_part_size=4 * MAX_TEXT_LENGTH,
        )
        parser.spool_max_size = max_bytes + 1  # never spool to disk
        try:
            form = await parser.parse()
        except MultiPartException as error:
            raise HTTPError(422, f"the form cannot be read: {error.message}") from None
        except FormParserError as error:  # not caught by older versions of Starlette
            raise HTTPError(422, f"the form cannot be read: {error}") from None
        file: bytes | None = None
        fields: dict[str, Any] = {}
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                if name != "image":
                    raise HTTPError(422, f"the form has a file {name[:80]!r}; expected one file, 'image'")
                file = await value.read()
            elif name == "image":
                raise HTTPError(422, "image: a text; expected a file (curl -F image=@photo.jpg)")
            elif name in LIST_FIELDS:
                fields.setdefault(name, []).append(value)
            elif name in fields:
                raise HTTPError(422, f"{name[:80]}: given twice; expected once")
            else:
                fields[name] = value
        await form.close()
        if file is not None and len(file) > limits.bytes:
            raise _too_large(limits.bytes)
        try:
            return model.model_validate(fields), file
        except ValidationError as error:
            raise field_error(error) from None

    async def _chunks(self, request: Request, max_bytes: int) -> AsyncGenerator[bytes, None]:
        """Iterate over the body as it arrives; a declared length is used only to refuse early."""
        length = request.headers.get("content-length", "")
        if length.isdecimal() and (len(length) > 18 or int(length) > max_bytes):
            raise _too_large(max_bytes)
        async for chunk in request.stream():
            if self.used + len(chunk) > max_bytes:
                raise _too_large(max_bytes)
            self.budget.take(self, len(chunk))
            yield chunk


def _drop_slowest(readers: Iterable[BodyReader], min_seconds: float) -> bool:
    """Drop the slowest upload older than ``min_seconds``; return whether one was dropped."""
    slow = [reader for reader in readers if reader.seconds >= min_seconds]
    if not slow:
        return False
    min(slow, key=lambda reader: reader.used / max(reader.seconds, 1e-6)).drop()
    return True


def _too_large(max_bytes: int) -> HTTPError:
    return HTTPError(413, f"the body is larger than {max_bytes:,} bytes; send less, or a smaller picture")


Value = TypeVar("Value")
Pool = Literal["items", "scans", "pictures", "changes", "duplicates", "ready"]
"""Threads by what they do; ``scans`` are for what may read all items."""
POLL_SECONDS = 1.0
"""Time between looks for an engine that another machine put into the database."""
LOCK_SECONDS = 2.0
"""Time that a change waits for one of another machine."""
STATEMENT_SECONDS = 15.0
"""Time after the end of a request after which PostgreSQL cancels its statement, if the service did not."""
READY_SECONDS = 2.0
"""Time in which a ready service has its index at the revision of the store."""
RETRY_SECONDS = 5.0
"""Time after which opening a replaced engine is retried."""
MAX_REPLACEMENTS = 3
"""Number of times a change is retried because the engine was replaced."""
OPEN_ROUTES = ("/livez", "/readyz", "/healthz")
"""Routes that need no token and no engine, and are exempt from load limits."""


class ServedEngine:
    """An engine with its search threads, and the number of requests that use it."""

    def __init__(self, engine: Engine, settings: Settings, metrics: Metrics, *, is_own: bool) -> None:
        self.engine = engine
        if isinstance(engine.store, PostgresStore):  # others wait for this process
            engine.store.timeout = LOCK_SECONDS
            engine.store.limit_statements(settings.limits.request_seconds + STATEMENT_SECONDS)
        self.is_own = is_own
        self.searcher = Searcher(engine, settings.limits, metrics.count_batch)
        self.n_requests = 0
        self.is_retired = False

    def close(self) -> None:
        """End the threads; close the engine unless the caller owns it and it was not replaced."""
        self.searcher.close()
        if self.is_own or self.is_retired:
            self.engine.close()


_leased: ContextVar[ServedEngine | None] = ContextVar("leased", default=None)
_address: ContextVar[str] = ContextVar("address", default="")


class Service:
    """An engine and the state needed to serve it; the caller closes the engine."""

    def __init__(self, engine: Engine, settings: Settings, seat: ProcessState | None = None) -> None:
        self.settings, self.limits = settings, settings.limits
        self.seat = seat or ProcessState()
        self.metrics = Metrics(
            started=self.seat.started,
            pids=self.seat.pids,
            folder=self.seat.metrics_folder,
        )
        self.audit = engine.audit_log
        if settings.writable:
            self.audit.check()  # changes need a writable audit log; fail at the start
        self.body_budget = BodyBudget(self.limits)
        self._served = ServedEngine(engine, settings, self.metrics, is_own=False)
        self._lock, self._opening = threading.Lock(), threading.Lock()
        self._follow_after = 0.0
        self._ready_check: asyncio.Future[None] | None = None
        self.thumbnails = Thumbnails(max_bytes=self.limits.thumbnails, max_pixels=self.limits.pixels)
        self._pools: dict[Pool, FairPool] = {
            "items": FairPool(2, "items"),
            "scans": FairPool(self.limits.scans, "scans"),
            "pictures": FairPool(self.limits.pictures, "pictures"),
            "changes": FairPool(1, "changes"),  # sequential
            "duplicates": FairPool(1, "duplicates"),  # later requests reuse its result
            "ready": FairPool(1, "ready"),
        }
        self._follower = ThreadPoolExecutor(1, thread_name_prefix="follow")

    @property
    def engine(self) -> Engine:
        """The engine of the current request, or else the newest one."""
        return (_leased.get() or self._served).engine

    @property
    def searcher(self) -> Searcher:
        return (_leased.get() or self._served).searcher

    @contextlib.contextmanager
    def current_engine(self) -> Iterator[None]:
        """Use the newest engine for the whole block, and keep it open."""
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

    async def search(
        self, given: str | Query, options: SearchOptions | None, modality: str | None = None, *, by_id: bool = False
    ) -> Answer:
        """Search in a batch with others (:meth:`Searcher.search`), or in a thread if it may take long."""
        if options is not None and may_take_long(options):
            return await self.in_thread("scans", self.searcher.search_alone, (given, options, modality, by_id))
        return await self.searcher.search(given, options, modality, by_id=by_id)

    async def in_thread(self, pool: Pool, work: Callable[..., Value], *arguments: Any) -> Value:
        """Return the result of ``work``, run in a thread; a change is repeated if the engine was replaced meanwhile."""
        run: Callable[..., Value] = self._change if pool == "changes" else copy_context().run
        if pool == "duplicates":  # the result is for all clients
            work = partial(_to_the_end, work)
        return await self._pools[pool].run(_address.get(), run, work, *arguments)

    def _change(self, work: Callable[..., Value], *arguments: Any) -> Value:
        for _ in range(MAX_REPLACEMENTS):
            with self.current_engine():
                try:
                    result = work(*arguments)
                    self.seat.note_change(self.engine.generation)
                    return result
                except EngineReplacedError:
                    pass
                except StoreReplacedError:
                    if not self.engine.replaced:
                        self._follower.submit(self._fetch_replacement)
                        raise
            try:
                self.open_replacement()
            except (ValueError, OSError, StoreError) as error:
                self._log("engine_not_followed", str(error))
                raise busy_error("the engine was replaced, and the new one cannot be opened; see the log") from error
        raise busy_error("the engine is being replaced repeatedly")

    async def check_ready(self) -> None:
        """Raise the error of a service that is not ready; one check serves all requests that ask meanwhile."""
        if self._ready_check is None or self._ready_check.done():
            self._ready_check = asyncio.ensure_future(self.in_thread("ready", self._refresh_newest))
            self._ready_check.add_done_callback(lambda check: check.cancelled() or check.exception())
        done, _ = await asyncio.wait([self._ready_check], timeout=READY_SECONDS)
        if not done:
            raise not_ready_error(f"the store did not answer, or the index did not catch up, in {READY_SECONDS:g} s")
        error = self._ready_check.exception()
        if error is not None:
            self._log("not_ready", str(error))
            raise not_ready_error("the store cannot be used; see the log of the service") from error

    def _refresh_newest(self) -> None:
        with self.current_engine():
            self.engine.refresh()

    @property
    def is_stale(self) -> bool:
        """Whether another worker has changed a newer engine than the one served here.

        That change may be acknowledged, so every later search must see it.
        """
        engine = self._served.engine
        return engine.replaced and self.seat.is_changed_elsewhere(engine.generation)

    async def wait_for_replacement(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._follower, self.open_replacement)
        except (ValueError, OSError, StoreError) as error:
            self._log("engine_not_followed", str(error))
            raise busy_error("the engine was replaced, and the new one cannot be opened; see the log") from error

    def follow_if_replaced(self) -> None:
        """Start to open the replacement of the served engine, if any, without waiting for it."""
        if not self._served.engine.replaced or time.monotonic() < self._follow_after or self._opening.locked():
            return
        self._follow_after = time.monotonic() + RETRY_SECONDS
        self._follower.submit(self._try_to_follow)

    async def follow_machines(self) -> None:
        """Follow to engines that other machines put into the database of the items, until cancelled."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            await asyncio.get_running_loop().run_in_executor(self._follower, self._fetch_replacement)

    def _fetch_replacement(self) -> None:
        """Serve the replacement that another machine made, if any; searches use the old engine meanwhile."""
        if time.monotonic() < self._follow_after:
            return
        try:
            with self.current_engine():
                if not self.engine.fetch_replacement():
                    return
            self.open_replacement()
        except StoreUnavailableError:  # searches and /readyz tell
            pass
        except Exception as error:  # the old engine still answers
            self._follow_after = time.monotonic() + RETRY_SECONDS
            self._log("engine_not_followed", str(error))

    def open_replacement(self) -> None:
        """Serve the replacement of the served engine; raise if it cannot be opened."""
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
        except Exception as error:  # the old engine still answers, and a later request retries
            self._log("engine_not_followed", str(error))

    def _close_unused(self, served: ServedEngine) -> None:
        """Close a replaced engine in a thread after its last request."""
        with self._lock:
            if not served.is_retired or served.n_requests:
                return
            served.n_requests = -1  # so that it is closed once
        threading.Thread(target=served.close, name="close").start()

    @staticmethod
    def _log(event: str, message: str) -> None:
        LOGGER.warning(event, extra={"fields": {"event": event, "message": message}})

    def warm_up(self) -> None:
        """Load and compile what the first searches would wait for."""
        self.engine.warm_up()

    def close(self) -> None:
        """End the threads, and close the engine if the service opened it."""
        for pool in self._pools.values():
            pool.close()
        self._follower.shutdown(wait=True, cancel_futures=True)
        self._served.close()


def _to_the_end(work: Callable[..., Value], *arguments: Any) -> Value:
    """Return the result of ``work``, which does not stop if the request does."""
    should_stop.set(bool)
    return work(*arguments)


class LeaseMiddleware:
    """ASGI middleware that gives every request one engine, and checks whether it was replaced."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_ROUTES:
            await self.app(scope, receive, send)
            return
        if self.service.is_stale:
            await self.service.wait_for_replacement()
        self.service.follow_if_replaced()
        _address.set(client_of(scope).address)
        with self.service.current_engine():
            await self.app(scope, receive, send)
