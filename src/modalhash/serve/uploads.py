"""Request bodies: counted while they arrive, held in memory only, and read within a time limit.

Where bodies of one address take too many places or too many bytes, the slowest of them is dropped, so that a client
that sends a byte now and then does not keep others out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from modalhash.serve.errors import HTTPError, busy_error, field_error, too_many_error
from modalhash.serve.seats import AddressCounter, LocalCounter
from modalhash.serve.settings import MAX_LABELS, MAX_TEXT_LENGTH, Limits

Model = TypeVar("Model", bound=BaseModel)
LIST_FIELDS = ("want", "labels")
"""Fields of a form that may be repeated."""
CHARSETS = ("utf-8", "utf8", "us-ascii")
"""Character sets of a form. Python knows others, some of which are no encodings of text and fail in their own ways."""
SLOW_SECONDS = 1.0
"""A body that takes longer may be dropped for another one; most take milliseconds."""


class BodyBudget:
    """Counts the bodies that are arriving, by address, and the bytes of all that are in memory."""

    def __init__(self, limits: Limits, tally: AddressCounter | None = None) -> None:
        self.limits = limits
        self._tally = LocalCounter() if tally is None else tally
        self.used = 0
        self._arriving: dict[str, set[BodyReader]] = {}

    @contextmanager
    def reader(self, address: str) -> Iterator[BodyReader]:
        """Provide a reader for a request from an address; the bytes it has read are released at the end."""
        reader = BodyReader(self, address)
        try:
            yield reader
        finally:
            reader.release()

    def drop_slowest(self) -> bool:
        """Drop a slow body, of the address that has most, to make place for a request; return whether there was one."""
        most_first = sorted(self._arriving.values(), key=len, reverse=True)
        return any(_drop_slowest(readers, SLOW_SECONDS) for readers in most_first)

    @contextmanager
    def arriving(self, reader: BodyReader) -> Iterator[None]:
        """Count a body while it arrives; raise if its address has too many and none of them is slow."""
        own = self._arriving.get(reader.address, set())
        n_arriving = self._tally.total(reader.address)
        if n_arriving >= self.limits.bodies_per_address and not _drop_slowest(own, SLOW_SECONDS):
            raise too_many_error(f"{n_arriving} bodies are arriving")
        self._arriving.setdefault(reader.address, set()).add(reader)
        self._tally.add(reader.address, 1)
        try:
            yield
        finally:
            self.forget(reader)

    def forget(self, reader: BodyReader) -> None:
        """Count a body as arriving no longer."""
        own = self._arriving.get(reader.address, set())
        if reader in own:
            own.remove(reader)
            self._tally.add(reader.address, -1)
        if not own:
            self._arriving.pop(reader.address, None)

    def take(self, reader: BodyReader, n_bytes: int) -> None:
        """Count bytes of a body; if there are too many of all, bodies of the address that holds most are dropped."""
        reader.used += n_bytes
        self.used += n_bytes
        while self.used > self.limits.all_bytes:
            bytes_by_address = {one: sum(body.used for body in bodies) for one, bodies in self._arriving.items()}
            address = max(bytes_by_address, key=bytes_by_address.__getitem__, default=reader.address)
            if address == reader.address or not _drop_slowest(self._arriving[address], 0.0):
                raise busy_error("too many uploads at once")


class BodyReader:
    """Reads the body of one request."""

    def __init__(self, budget: BodyBudget, address: str) -> None:
        self.budget, self.address, self.used = budget, address, 0
        self.dropped = False
        self._timeout: asyncio.Timeout | None = None
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        """The time since the body began."""
        return time.monotonic() - self._start

    def release(self) -> None:
        """Give back the bytes that were counted."""
        self.budget.used -= self.used
        self.used = 0

    def drop(self) -> None:
        """Stop reading: the request is answered at once, and its place and its bytes are free."""
        self.dropped = True
        self.budget.forget(self)
        self.release()
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time())

    async def read(self, request: Request, model: type[Model]) -> tuple[Model, bytes | None]:
        """Return the fields of the request, and the file if it is a form with one."""
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
                message = (
                    f"the body had not arrived after {self.seconds:.1f} s, and its place was needed; send it faster"
                )
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
        _check_charset(request)
        max_bytes = limits.bytes + limits.json_bytes
        parser = MultiPartParser(
            request.headers,
            self._chunks(request, max_bytes),
            max_files=1,
            max_fields=MAX_LABELS + 30,
            max_part_size=4 * MAX_TEXT_LENGTH,
        )
        parser.spool_max_size = max_bytes + 1  # never to a disk
        try:
            form = await parser.parse()
        except MultiPartException as error:
            raise HTTPError(422, f"the form cannot be read: {error.message}") from None
        except FormParserError as error:  # which older versions of starlette let through
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
        """Iterate over the body as it arrives; a declared length is believed only to refuse early."""
        length = request.headers.get("content-length", "")
        if length.isdecimal() and (len(length) > 18 or int(length) > max_bytes):
            raise _too_large(max_bytes)
        async for chunk in request.stream():
            if self.used + len(chunk) > max_bytes:
                raise _too_large(max_bytes)
            self.budget.take(self, len(chunk))
            yield chunk


def _drop_slowest(readers: Iterable[BodyReader], min_seconds: float) -> bool:
    """Drop the body that brings least per second, if one takes that long already; return whether there was one."""
    slow = [reader for reader in readers if reader.seconds >= min_seconds]
    if not slow:
        return False
    min(slow, key=lambda reader: reader.used / max(reader.seconds, 1e-6)).drop()
    return True


def _check_charset(request: Request) -> None:
    charset = parse_options_header(request.headers["content-type"])[1].get(b"charset", b"utf-8").decode("latin-1")
    if charset.lower() not in CHARSETS:
        raise HTTPError(415, f"the form has the charset {charset[:80]!r}; expected utf-8")


def _too_large(max_bytes: int) -> HTTPError:
    return HTTPError(413, f"the body is larger than {max_bytes:,} bytes; send less, or a smaller picture")
