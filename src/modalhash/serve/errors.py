"""Errors as JSON: what is wrong and what to do, never a trace."""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from modalhash.serve.batching import BusyError
from modalhash.store import StoreBusyError, StoreError, StoreFullError

AGAIN = 1
"""Seconds after which to try again."""


class Refusal(Exception):
    """A request that is not answered, and why."""

    def __init__(self, status: int, error: str, **headers: str) -> None:
        super().__init__(error)
        self.status, self.error = status, error
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def reply(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON in UTF-8, texts as they are."""
    body = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")
    return Response(body, status, {"Cache-Control": "no-store", **(headers or {})}, "application/json")


def refused(error: Refusal) -> Response:
    """The answer to a request that is refused."""
    return reply({"error": error.error, "status": error.status}, error.status, error.headers)


def busy(why: str) -> Refusal:
    """Too much at once."""
    return Refusal(503, f"the service is busy ({why}); try again in a moment", Retry_After=str(AGAIN))


def in_words(error: ValidationError | RequestValidationError) -> str:
    """Wrong fields in one sentence."""
    found = []
    for one in error.errors()[:5]:
        parts = one["loc"][isinstance(error, RequestValidationError) :]  # FastAPI puts "query" or "path" before
        place = ".".join(map(str, parts))[:100]
        message = str(one["msg"]).removeprefix("Value error, ")
        found.append(f"{place}: {message}" if place else message)
    return "; ".join(found)


STATES = {
    404: "there is nothing at this address; the page is at /, the description of all addresses at /docs",
    405: "this address does not take this method; see /docs",
}


def install(app: FastAPI) -> None:
    """Make all errors of an app JSON."""

    async def on_refusal(request: Request, error: Exception) -> Response:
        assert isinstance(error, Refusal)
        return refused(error)

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        text = STATES.get(error.status_code, str(error.detail))
        return reply({"error": text, "status": error.status_code}, error.status_code, dict(error.headers or {}))

    async def on_fields(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError | ValidationError)
        return refused(Refusal(422, in_words(error)))

    async def on_busy(request: Request, error: Exception) -> Response:
        return refused(busy(str(error)))

    async def on_store(request: Request, error: Exception) -> Response:
        if isinstance(error, StoreFullError):
            return refused(Refusal(507, "the disk of the service is full; nothing was changed"))
        if isinstance(error, StoreBusyError):
            return refused(busy("another process is writing"))
        raise error

    app.add_exception_handler(Refusal, on_refusal)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(RequestValidationError, on_fields)
    app.add_exception_handler(BusyError, on_busy)
    app.add_exception_handler(StoreError, on_store)
