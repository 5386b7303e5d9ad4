"""Bodies of requests: counted while they arrive, in memory only, and not for longer than allowed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from modalhash.serve.errors import Refusal, busy, in_words
from modalhash.serve.settings import LONGEST_TEXT, MOST_LABELS, Limits

Model = TypeVar("Model", bound=BaseModel)
LISTS = ("want", "labels")
"""Fields of a form that may be repeated."""


class Intake:
    """Reads bodies, and knows how much of them is in memory."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.taken = 0

    @contextmanager
    def room(self) -> Iterator[Room]:
        """Room for one body, given back when the request is done."""
        room = Room(self)
        try:
            yield room
        finally:
            self.taken -= room.taken


class Room:
    """The body of one request."""

    def __init__(self, intake: Intake) -> None:
        self.intake, self.taken = intake, 0

    async def read(self, request: Request, json_model: type[Model]) -> tuple[Model, bytes | None]:
        """The fields of a request and its file, from JSON or from a form."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            async with asyncio.timeout(self.intake.limits.body_seconds):
                if kind == "application/json":
                    return await self._json(request, json_model), None
                if kind == "multipart/form-data":
                    return await self._form(request, json_model)
        except TimeoutError:
            seconds = self.intake.limits.body_seconds
            raise Refusal(
                408, f"the body did not arrive in {seconds:g} s; send it faster", Connection="close"
            ) from None
        raise Refusal(
            415, f"the content type is {kind or 'missing'!r}; expected application/json or multipart/form-data"
        )

    async def _json(self, request: Request, model: type[Model]) -> Model:
        parts = [chunk async for chunk in self._chunks(request, self.intake.limits.json_bytes)]
        try:
            return model.model_validate_json(b"".join(parts), strict=True)
        except ValidationError as error:
            raise Refusal(422, in_words(error)) from None

    async def _form(self, request: Request, model: type[Model]) -> tuple[Model, bytes | None]:
        limits = self.intake.limits
        parser = MultiPartParser(
            request.headers,
            self._chunks(request, limits.bytes + limits.json_bytes),
            max_files=1,
            max_fields=MOST_LABELS + 30,
            max_part_size=4 * LONGEST_TEXT,
        )
        parser.spool_max_size = limits.bytes + limits.json_bytes + 1  # never to a disk
        try:
            form = await parser.parse()
        except MultiPartException as error:
            raise Refusal(422, f"the form cannot be read: {error.message}") from None
        file: bytes | None = None
        fields: dict[str, Any] = {}
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                if name != "image":
                    raise Refusal(422, f"the form has a file {name[:80]!r}; expected one file, 'image'")
                file = await value.read()
            elif name == "image":
                raise Refusal(422, "image: a text; expected a file (curl -F image=@photo.jpg)")
            elif name in LISTS:
                fields.setdefault(name, []).append(value)
            elif name in fields:
                raise Refusal(422, f"{name[:80]}: given twice; expected once")
            else:
                fields[name] = value
        await form.close()
        if file is not None and len(file) > limits.bytes:
            raise too_large(limits.bytes)
        try:
            return model.model_validate(fields), file
        except ValidationError as error:
            raise Refusal(422, in_words(error)) from None

    async def _chunks(self, request: Request, most: int) -> AsyncGenerator[bytes, None]:
        length = request.headers.get("content-length", "")
        if length.isdecimal() and (len(length) > 18 or int(length) > most):
            raise too_large(most)
        got = 0
        async for chunk in request.stream():
            got += len(chunk)
            self.taken += len(chunk)
            self.intake.taken += len(chunk)
            if got > most:
                raise too_large(most)
            if self.intake.taken > self.intake.limits.all_bytes:
                raise busy("too many uploads at once")
            yield chunk


def too_large(most: int) -> Refusal:
    """More bytes than are taken."""
    return Refusal(413, f"the body is larger than {most:,} bytes; send less, or a smaller picture")
