"""Time-outs for slow clients, limits and JSON errors of HTTP connections, and which of them stay open.

uvicorn waits indefinitely for request headers, keeps reading a body after the response was sent, and takes the fields
after a chunked body, its trailers, for headers. Here such a connection is closed after a time-out, or earlier if its
slot is needed, and trailers are ignored. This is the only module that derives from uvicorn's protocol class, which is
not a public interface.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable
from typing import ClassVar, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from modalhash.serve.auth import TrustedProxies, client_key
from modalhash.serve.http import ABORT, ON_DISCONNECT, SECURITY_HEADERS, TWO_LENGTHS
from modalhash.serve.limits import Limits, Settings

LINGER_SECONDS = 2.0
"""Time for a refused client to read the response before the connection is closed."""


class Connection(Protocol):
    """What the table needs to know of a connection."""

    @property
    def idle_since(self) -> float | None:
        """Time since when no request is in flight; None while one is."""

    def drop(self) -> None:
        """Close the connection."""


class ConnectionTable:
    """Decide which connections stay open.

    If a slot is needed, the connection that is idle for longest is closed: of the same address if it has too many,
    otherwise of the address with the most connections.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._by_address: dict[str, set[Connection]] = {}
        self._addresses: dict[Connection, str] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    def admit(self, connection: Connection, address: str, *, limited: bool = True) -> bool:
        """Add a connection; return False if there is no free slot.

        ``limited=False`` is for proxies, whose connections serve many clients.
        """
        own = self._by_address.get(address, set())
        if limited and len(own) >= self._limits.connections_per_address and not self._drop_idlest(own):
            return False
        if len(self) >= self._limits.connections:
            most_first = sorted(self._by_address.values(), key=len, reverse=True)
            if not any(self._drop_idlest(connections) for connections in most_first):
                return False
        self._addresses[connection] = address
        self._by_address.setdefault(address, set()).add(connection)
        return True

    def release(self, connection: Connection) -> None:
        address = self._addresses.pop(connection, None)
        if address is not None:
            self._by_address[address].remove(connection)
            if not self._by_address[address]:
                del self._by_address[address]

    def _drop_idlest(self, connections: Iterable[Connection]) -> bool:
        """Close the connection that is idle for longest; return whether there was one."""
        silent = [(since, one) for one in connections if (since := one.idle_since) is not None]
        if not silent:
            return False
        victim = min(silent, key=lambda pair: pair[0])[1]
        self.release(victim)
        victim.drop()
        return True


class MalformedRequestError(Exception):
    """Invalid headers that uvicorn's parser accepts."""


class TimedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP connection, with time-outs, size limits and JSON errors."""

    limits: ClassVar[Limits]
    table: ClassVar[ConnectionTable]
    trusted: ClassVar[TrustedProxies]
    is_retiring: ClassVar[bool] = False
    """Whether connections close after their next response, because this worker was replaced."""
    _timer: asyncio.TimerHandle | None = None
    _idle_since: float = 0.0
    _unused_bytes: int = 0
    """Bytes received since the last headers or content: of headers, trailers, chunk sizes and empty lines."""
    _in_head: bool = False
    _in_body: bool = False
    _is_refused: bool = False
    """Whether further input is ignored."""
    _is_ending: bool = False
    """Whether the connection is closed, and waits for its client to read the rest."""

    @classmethod
    def for_settings(cls, settings: Settings) -> type[TimedProtocol]:
        """Return the protocol class of one service; its connections share limits and a table."""
        members = {
            "limits": settings.limits,
            "table": ConnectionTable(settings.limits),
            "trusted": TrustedProxies(settings.trusted_proxies),
        }
        return type("Protocol", (cls,), members)

    @property
    def idle_since(self) -> float | None:
        """Loop time since when no request is in flight; None while one is."""
        return self._idle_since if self.cycle is None or self.cycle.response_complete else None

    def drop(self) -> None:
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        peer = self.client[0] if self.client else ""
        if not self.table.admit(self, client_key(peer), limited=peer not in self.trusted):
            transport.abort()
            return
        self._start_timer(self.limits.header_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self.table.release(self)
        if self.cycle is not None and callable(disconnect := self.cycle.scope.get(ON_DISCONNECT)):
            disconnect()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._unused_bytes += len(data)
        super().data_received(data)
        if self._is_refused:
            return
        if self._unused_bytes > self.limits.head_bytes:
            self.send_400_response("The request headers or trailers are too large.")
            return
        self._update_timer()

    def on_message_begin(self) -> None:
        self._in_head = True
        self._stop_timer()  # of the time before the request
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # not a trailer
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body, self._unused_bytes = False, True, 0
        n_hosts = sum(name == b"host" for name, _ in self.headers)
        if n_hosts > 1 or (not n_hosts and self.parser.get_http_version() == "1.1"):
            raise MalformedRequestError(f"{n_hosts} Host headers; expected one")
        super().on_headers_complete()
        self.cycle.scope[ABORT] = self.transport.abort  # type: ignore[literal-required]
        # the parser stops after a request that offers to upgrade the protocol
        if self.is_retiring or self.parser.should_upgrade():
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._unused_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body, self._unused_bytes = False, 0
        self._stop_timer()  # of a body that was not needed
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._idle_since = self.loop.time()
        self._update_timer()

    def _unsupported_upgrade_warning(self) -> None:
        """Ignore offers to upgrade the protocol."""

    def send_400_response(self, msg: str) -> None:
        """Respond to invalid HTTP or too large headers."""
        reason = str(sys.exception())  # the parser's errors differ only in their message
        if "Content-Length overflow" in reason:
            self._send_error(413, "the body is too large; send less, or a smaller picture")
        elif "Content-Length" in reason and "Transfer-Encoding" in reason:
            self._send_error(400, TWO_LENGTHS)
        else:
            self._send_error(400, f"{msg} The limit for headers is {self.limits.head_bytes:,} bytes.")

    def _update_timer(self) -> None:
        """Run the timer while the server waits for the client, whatever the client has sent."""
        if self._in_body and self.idle_since is not None:
            self._start_timer(LINGER_SECONDS)
        elif self._in_head or self.idle_since is not None:
            self._start_timer(self.limits.header_seconds)
        else:
            self._stop_timer()

    def _start_timer(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(seconds, self._time_out)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        self._timer = None
        is_closing = self.transport.is_closing()
        if self._is_ending or (self._in_body and not is_closing):
            self.transport.abort()
        elif is_closing or (self.cycle is not None and not self._in_head):
            self._close()
        else:
            self._send_error(408, "the request headers did not arrive in time; send them faster")

    def _close(self) -> None:
        """Close the connection after what the client has not read yet, for which it has the time of a request."""
        self._is_ending = True
        self.transport.close()
        self._start_timer(self.limits.request_seconds)

    def _send_error(self, status: int, message: str) -> None:
        """Respond with an error, and close the connection."""
        self._is_refused = True
        self._stop_timer()
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if cycle.response_started or not cycle.more_body:  # the error is in what followed this request
                cycle.keep_alive = False
                return
            cycle.disconnected = True
            cycle.message_event.set()
        body = json.dumps({"error": message, "status": status}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
            *SECURITY_HEADERS,
        ]
        head = b"".join(b"%s: %s\r\n" % header for header in headers)
        self.transport.write(STATUS_LINE[status] + head + b"\r\n" + body)
        self._close()
