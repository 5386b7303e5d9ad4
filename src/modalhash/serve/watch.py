"""Around every request: the door, the bounds of how many and how long, headers, log and metrics."""

from __future__ import annotations

import asyncio
import time
from itertools import count

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from modalhash.serve.errors import Refusal, busy, refused, reply
from modalhash.serve.http import HEADERS, OPEN, Door
from modalhash.serve.log import Log
from modalhash.serve.monitoring import Metrics
from modalhash.serve.settings import Limits

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
CLIENT_GONE = 499
"""In the log: nobody was there to take the answer."""


class Watch:
    """ASGI middleware; whatever happens inside, one answer goes out and one line into the log."""

    def __init__(self, app: ASGIApp, *, door: Door, limits: Limits, log: Log, metrics: Metrics) -> None:
        self.app, self.door, self.limits, self.log, self.metrics = app, door, limits, log, metrics
        self._numbers = count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = Exchange(next(self._numbers), send)
        self.metrics.under_way += 1
        try:
            await self._answer(exchange, scope, receive)
        finally:
            self.metrics.under_way -= 1
            self._note(exchange, scope)

    async def _answer(self, exchange: Exchange, scope: Scope, receive: Receive) -> None:
        try:
            answer: ASGIApp | None = self.door.check(scope)
            if answer is None and self.metrics.under_way > self.limits.requests and scope["path"] not in OPEN:
                raise busy(f"{self.limits.requests} requests are under way")
            async with asyncio.timeout(self.limits.request_seconds):
                await (answer or self.app)(scope, receive, exchange.send)
            return
        except Refusal as error:
            answer = refused(error)
        except ClientDisconnect:
            return
        except TimeoutError:
            answer = refused(busy(f"no answer in {self.limits.request_seconds:g} s"))
        except Exception as error:
            self.log.mistake(exchange.number, error)
            answer = mistake(exchange.number)
        if (
            exchange.status
        ):  # too late for another answer: the connection is closed, so that nobody takes half for whole
            raise ConnectionError("an answer could not be completed")
        await answer(scope, receive, exchange.send)

    def _note(self, exchange: Exchange, scope: Scope) -> None:
        seconds = time.perf_counter() - exchange.start
        status = exchange.status or CLIENT_GONE
        route = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in METHODS else "other"
        self.metrics.request(route, method, status, seconds)
        self.log.request(exchange.number, scope["method"], scope["path"], status, seconds, exchange.size)


class Exchange:
    """One request's answer on its way out."""

    def __init__(self, number: int, send: Send) -> None:
        self.number, self._send = number, send
        self.start = time.perf_counter()
        self.status = self.size = 0

    async def send(self, message: Message) -> None:
        """Pass a message on, with the headers that every answer has."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message["headers"], *HEADERS]
        elif message["type"] == "http.response.body":
            self.size += len(message.get("body", b""))
        await self._send(message)


def mistake(number: int) -> Response:
    """The answer where the service itself failed."""
    text = f"the service made a mistake; its log has more under request {number}"
    return reply({"error": text, "status": 500, "request": number}, 500)
