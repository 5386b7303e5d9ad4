"""Request bodies: counted while they arrive, held in memory only, and read within a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from modalhash.serve.errors import HTTPError, busy_error, field_error
from modalhash.serve.settings import MAX_LABELS, MAX_TEXT_LENGTH, Limits

Model = TypeVar("Model", bound=BaseModel)
LIST_FIELDS = ("want", "labels")
"""Fields of a form that may be repeated."""


class BodyBudget:
    """Counts the bytes of all bodies that are in memory."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.used = 0

    @contextmanager
    def reader(self) -> Iterator[BodyReader]:
        """Provide a reader for one request; the bytes it has read are released at the end."""
        reader = BodyReader(self)
        try:
            yield reader
        finally:
            self.used -= reader.used


class BodyReader:
    """Reads the body of one request."""

    def __init__(self, budget: BodyBudget) -> None:
        self.budget, self.used = budget, 0

    async def read(self, request: Request, model: type[Model]) -> tuple[Model, bytes | None]:
        """Return the fields of the request, and the file if it is a form with one."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        seconds = self.budget.limits.body_seconds
        try:
            async with asyncio.timeout(seconds):
                if kind == "application/json":
                    return await self._json(request, model), None
                if kind == "multipart/form-data":
                    return await self._form(request, model)
        except TimeoutError:
            message = f"the body did not arrive in {seconds:g} s; send it faster"
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
            self.used += len(chunk)
            self.budget.used += len(chunk)
            if self.used > max_bytes:
                raise _too_large(max_bytes)
            if self.budget.used > self.budget.limits.all_bytes:
                raise busy_error("too many uploads at once")
            yield chunk


def _too_large(max_bytes: int) -> HTTPError:
    return HTTPError(413, f"the body is larger than {max_bytes:,} bytes; send less, or a smaller picture")
