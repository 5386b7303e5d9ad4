"""HTTP on a connection: uvicorn's, with time-outs where it has none and errors in JSON.

uvicorn waits for the head of a request for ever, and goes on reading a body after the answer was sent. Here a
connection that owes us the rest of a head, or still sends a body that nobody wants, is closed after some seconds.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from modalhash.serve.http import HEADERS
from modalhash.serve.settings import Limits

LINGER = 2.0
"""Seconds for a client to notice that it was refused, before the connection is cut."""


class Protocol(H11Protocol):
    """One connection."""

    limits: ClassVar[Limits] = Limits()
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            transport.abort()
            return
        self._wait(self.limits.header_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def _look(self) -> None:
        """Start or stop waiting, depending on who has the next word."""
        theirs, ours = self.conn.their_state, self.conn.our_state
        if ours is h11.DONE and theirs is h11.SEND_BODY:
            self._wait(LINGER)
        elif theirs is h11.IDLE and self.conn.trailing_data[0]:
            self._wait(self.limits.header_seconds)
        else:
            self._stop()

    def _wait(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(seconds, self._give_up)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self.conn.our_state is h11.IDLE:
            self.send_error(408, "the head of the request did not arrive in time; send it faster")
        else:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """What was sent is no HTTP, or too large a head."""
        self.send_error(400, f"{msg} Its head may have at most {self.limits.head_bytes:,} bytes.")

    def send_error(self, status: int, text: str) -> None:
        """An answer before there is a request, and the end of the connection."""
        body = json.dumps({"error": text, "status": status}).encode()
        headers: list[Any] = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
            *HEADERS,
        ]
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            for event in (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def with_limits(limits: Limits) -> type[Protocol]:
    """The protocol with limits of its own."""
    return type("Protocol", (Protocol,), {"limits": limits})
