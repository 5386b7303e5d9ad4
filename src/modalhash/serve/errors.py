"""Errors as JSON responses, which say what is wrong and what to do, without a traceback."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from math import ceil

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from modalhash.core.progress import StoppedError
from modalhash.index import IndexUnavailableError
from modalhash.store import (
    StoreAccessError,
    StoreBusyError,
    StoreFullError,
    StoreMissingError,
    StoreReplacedError,
    StoreUnavailableError,
    StoreUncertainError,
)

RETRY_SECONDS = 1
DISK_FULL = "the disk of the service is full; nothing was changed"
UNAVAILABLE = "the database of the service cannot be reached; nothing was changed. Try again in a moment"
REPLACED = (
    "another machine has retrained the engine, and this one is loading the new engine; nothing was changed. Try again "
    "in a moment"
)
MISSING = "the items are not in the database: they were dropped, or it is another database; nothing was changed"
REFUSED = "the database refuses this service (its role, password or mode); nothing was changed. The operator has to act"
UNCERTAIN = (
    "the connection to the database was lost during the commit; check whether the change was made before retrying"
)
TOO_LONG = "this took too long and was stopped; use a simpler filter, or try again when the service has less to do"
DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)
ROUTING_ERRORS = {
    404: "no such route; the page is at /, all routes are described at /docs",
    405: "this route does not allow this method; see /docs",
}
"""Messages for errors raised by Starlette."""


class QueueFullError(Exception):
    """Too many jobs are waiting; try again later."""


class HTTPError(Exception):
    """Answer the request with this status; the message says what is wrong and what to do."""

    def __init__(
        self, status: int, message: str, headers: Mapping[str, str] | None = None, *, reason: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.headers, self.reason = status, message, headers, reason

    def response(self) -> Response:
        content = {"error": self.message, "status": self.status}
        if self.reason is not None:
            content["reason"] = self.reason
        return JSONResponse(content, self.status, {"Cache-Control": "no-store", **(self.headers or {})})


def busy_error(reason: str) -> HTTPError:
    message = f"the service is busy ({reason}); try again in a moment"
    return HTTPError(503, message, {"Retry-After": str(RETRY_SECONDS)})


def not_ready_error(reason: str) -> HTTPError:
    return HTTPError(503, f"the service is not ready: {reason}", {"Retry-After": str(RETRY_SECONDS)})


def too_many_error(reason: str, seconds: float = RETRY_SECONDS) -> HTTPError:
    message = f"too many requests from one address ({reason}); try again in {ceil(seconds)} s"
    return HTTPError(429, message, {"Retry-After": str(ceil(seconds)), "Connection": "close"})


def unknown_item_error(error: KeyError | ValueError) -> HTTPError:
    """Return the error for an unknown id (KeyError) or an ambiguous one (ValueError)."""
    if isinstance(error, KeyError):
        return HTTPError(404, f"{error.args[0]}; it may have been removed")
    return HTTPError(422, str(error).replace("modality=…", "'modality'"))


def field_error(error: ValidationError) -> HTTPError:
    """Return the error that names each invalid field."""
    messages = []
    for detail in error.errors()[:5]:
        field = ".".join(map(str, detail["loc"]))[:100]
        message = str(detail["msg"]).removeprefix("Value error, ")
        messages.append(f"{field}: {message}" if field else message)
    return HTTPError(422, "; ".join(messages))


def response_to(error: Exception) -> Response | None:
    """Return the response to a known error; None for an unexpected one."""
    if isinstance(error, HTTPError):
        return error.response()
    if isinstance(error, QueueFullError):
        return busy_error(str(error)).response()
    if isinstance(error, StoppedError):
        return HTTPError(503, TOO_LONG, {"Retry-After": str(RETRY_SECONDS)}).response()
    if isinstance(error, StoreFullError):
        return HTTPError(507, DISK_FULL).response()
    if isinstance(error, StoreBusyError):
        return busy_error("another process is writing").response()
    if isinstance(error, StoreReplacedError):
        return HTTPError(503, REPLACED, {"Retry-After": str(RETRY_SECONDS)}).response()
    if isinstance(error, StoreMissingError):
        return HTTPError(503, MISSING, {"Retry-After": str(RETRY_SECONDS)}).response()
    if isinstance(error, StoreAccessError):
        return HTTPError(503, REFUSED, {"Retry-After": str(RETRY_SECONDS)}).response()
    if isinstance(error, StoreUncertainError):
        return HTTPError(503, UNCERTAIN, {"Retry-After": str(RETRY_SECONDS)}).response()
    if isinstance(error, IndexUnavailableError):
        return HTTPError(503, f"{error}; try again in a moment", {"Retry-After": str(RETRY_SECONDS)}).response()
    if isinstance(error, StoreUnavailableError):
        return HTTPError(503, UNAVAILABLE, {"Retry-After": str(RETRY_SECONDS)}).response()
    if isinstance(error, OSError) and error.errno in DISK_FULL_ERRORS:
        return HTTPError(507, DISK_FULL).response()
    return None


async def routing_error(request: Request, error: Exception) -> Response:
    """Return the response to an error of Starlette's router."""
    assert isinstance(error, HTTPException)
    message = ROUTING_ERRORS.get(error.status_code, str(error.detail))
    return HTTPError(error.status_code, message, error.headers).response()
