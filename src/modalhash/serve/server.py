"""Run the service with uvicorn, with time-outs, JSON errors and a clean shutdown.

uvicorn waits indefinitely for request headers, and keeps reading a body after the response was sent. Here such a
connection is closed after a time-out, or earlier if its slot is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import json
import logging
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import ClassVar

import uvicorn
from threadpoolctl import threadpool_limits
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from modalhash.engine import Engine
from modalhash.serve.app import make_app
from modalhash.serve.auth import TrustedProxies, client_key
from modalhash.serve.http import SECURITY_HEADERS, TWO_LENGTHS
from modalhash.serve.limits import Limits, Settings
from modalhash.serve.monitoring import ERROR_HANDLER, log_event
from modalhash.serve.worker_state import ALL_ADDRESSES, AddressCounter, LocalCounter, ProcessState


class ConnectionTable:
    """Decide which connections stay open.

    If a slot is needed, the connection that is idle for longest is closed: of the same address if it has too many,
    otherwise of the address with the most connections. ``tally`` counts the connections of all workers; a worker can
    only close its own.
    """

    def __init__(self, limits: Limits, tally: AddressCounter | None = None) -> None:
        self._limits = limits
        self._tally = LocalCounter() if tally is None else tally
        self._by_address: dict[str, set[TimedProtocol]] = {}
        self._addresses: dict[TimedProtocol, str] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    def admit(self, connection: TimedProtocol, address: str, *, limited: bool = True) -> bool:
        """Add a connection; return False if there is no free slot.

        ``limited=False`` is for proxies, whose connections serve many clients.
        """
        own = self._by_address.get(address, set())
        n_own = self._tally.total(address)
        if limited and n_own >= self._limits.connections_per_address and not self._drop_idlest(own):
            return False
        if self._tally.total(ALL_ADDRESSES) >= self._limits.connections:
            most_first = sorted(self._by_address.values(), key=len, reverse=True)
            if not any(self._drop_idlest(connections) for connections in most_first):
                return False
        self._addresses[connection] = address
        self._by_address.setdefault(address, set()).add(connection)
        self._count(address, 1)
        return True

    def release(self, connection: TimedProtocol) -> None:
        address = self._addresses.pop(connection, None)
        if address is not None:
            self._count(address, -1)
            self._by_address[address].remove(connection)
            if not self._by_address[address]:
                del self._by_address[address]

    def _count(self, address: str, n: int) -> None:
        self._tally.add(address, n)
        self._tally.add(ALL_ADDRESSES, n)

    def _drop_idlest(self, connections: Iterable[TimedProtocol]) -> bool:
        """Close the connection that is idle for longest; return whether there was one."""
        silent = [(since, one) for one in connections if (since := one.idle_since) is not None]
        if not silent:
            return False
        victim = min(silent, key=lambda pair: pair[0])[1]
        self.release(victim)
        victim.drop()
        return True


SWITCH_INTERVAL = 0.0005
"""Seconds after which a busy thread yields the GIL. With Python's default of 5 ms, each response would wait several
times that for the search threads."""
BLAS_THREADS = 1
"""Matrix products of a few queries are small. More threads are not faster and take twice the processor time, because
idle BLAS threads spin."""
LINGER_SECONDS = 2.0
"""Time for a refused client to read the response before the connection is closed."""
ACCEPT_RETRY_SECONDS = 1.0
ACCEPT_WAIT_SECONDS = 0.002
"""Time for which a worker leaves a new connection to a worker that has fewer."""
RETIRE = "retire"
"""Message to a worker that was replaced."""
RETIRE_POLL_SECONDS = 0.05
SPARE_FILES = 256
"""Open files in addition to connections: store, pictures, log."""


def check_exposure(settings: Settings, *, without_token: bool) -> None:
    """Raise if other machines can reach the service without a token, unless ``without_token`` allows it."""
    if not settings.needs_token and not settings.is_local and not without_token:
        raise ValueError(
            f"other machines can reach the service at {settings.host}, but there is no token. Set MODALHASH_TOKEN, "
            "give a file of tokens (--tokens), or use --without-token to allow access without one"
        )


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise ValueError if the host or port cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ValueError(f"port {port} is in use; choose another one (--port), or 0 for any free port") from None
        raise ValueError(f"cannot listen at {host}, port {port}: {error.strerror or error}") from None


def page_url(sock: socket.socket) -> str:
    """Return the URL of the page for a browser on this machine."""
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


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
    _head_bytes: int = 0
    """Bytes received of incomplete headers."""
    _in_head: bool = False
    _in_body: bool = False
    _is_refused: bool = False
    """Whether further input is ignored."""

    @classmethod
    def for_settings(cls, settings: Settings, seat: ProcessState) -> type[TimedProtocol]:
        """Return the protocol class of one service; its connections share limits and a table."""
        members = {
            "limits": settings.limits,
            "table": ConnectionTable(settings.limits, seat.tally("connections")),
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
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        super().data_received(data)
        if self._is_refused:
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.head_bytes:
                self.send_400_response("The request headers are too large.")
                return
        self._update_timer()

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body = False, True
        n_hosts = sum(name == b"host" for name, _ in self.headers)
        if n_hosts > 1 or (not n_hosts and self.parser.get_http_version() == "1.1"):
            raise MalformedRequestError(f"{n_hosts} Host headers; expected one")
        super().on_headers_complete()
        # the parser stops after a request that offers to upgrade the protocol
        if self.is_retiring or self.parser.should_upgrade():
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        self._in_body = False
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
        """Run the timer while the server waits for the client."""
        if self._in_head:
            self._start_timer(self.limits.header_seconds)
        elif self._in_body and self.cycle is not None and self.cycle.response_complete:
            self._start_timer(LINGER_SECONDS)
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
        if self.transport.is_closing():
            return
        if self._in_body:
            self.transport.abort()
        else:
            self._send_error(408, "the request headers did not arrive in time; send them faster")

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
        self.transport.close()


class Acceptor:
    """Accept connections from a shared socket, one per iteration of the event loop.

    asyncio's server accepts all pending connections, so one worker could get all of them. Here a worker that has more
    connections than another waits a moment, because connections stay at their worker and share its time.
    """

    def __init__(self, sock: socket.socket, make_protocol: Callable[[], asyncio.Protocol], seat: ProcessState) -> None:
        self._sock, self._make_protocol, self._seat = sock, make_protocol, seat
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[object]] = set()
        self._is_closed = self._has_waited = False
        sock.setblocking(False)
        self._listen()

    def is_serving(self) -> bool:
        return not self._is_closed

    def close(self) -> None:
        """Stop accepting connections."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.remove_reader(self._sock.fileno())

    async def wait_closed(self) -> None:
        """Wait until accepted connections are set up."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _listen(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._sock.fileno(), self._accept)

    def _accept(self) -> None:
        if not self._has_waited and self._seat.has_more_connections(len(self._tasks)):
            self._has_waited = True
            self._listen_later(ACCEPT_WAIT_SECONDS)
            return
        self._has_waited = False
        try:
            connection, _ = self._sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):  # another worker accepted it, or it closed
            return
        except OSError:  # too many open files; retry later so that the loop does not spin
            self._listen_later(ACCEPT_RETRY_SECONDS)
            return
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task: asyncio.Task[object] = self._loop.create_task(self._set_up(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _listen_later(self, seconds: float) -> None:
        self._loop.remove_reader(self._sock.fileno())
        self._loop.call_later(seconds, self._listen)

    async def _set_up(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the client has disconnected
            await self._loop.connect_accepted_socket(self._make_protocol, connection)


class Server(uvicorn.Server):
    """uvicorn's server, which calls ``on_ready`` when it listens and exits normally at a signal."""

    def __init__(
        self,
        config: uvicorn.Config,
        on_ready: Callable[[], None],
        seat: ProcessState,
        control: Connection | None = None,
    ) -> None:
        super().__init__(config)
        self._on_ready, self._seat, self._control = on_ready, seat, control

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._control is None:
            await super().startup(sockets)
        else:
            await super().startup([])
            self.servers = [Acceptor(sock, self._make_protocol, self._seat) for sock in sockets or ()]  # type: ignore[misc]
            asyncio.get_running_loop().add_reader(self._control.fileno(), self._on_control, self._control)
        if self.started:
            self._on_ready()

    def _make_protocol(self) -> asyncio.Protocol:
        protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            _loop=asyncio.get_running_loop(),
        )
        assert isinstance(protocol, asyncio.Protocol)
        return protocol

    def _on_control(self, control: Connection) -> None:
        """Handle a message of the supervisor; exit if the supervisor is gone."""
        try:
            retire = control.recv() == RETIRE
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(control.fileno())
            self.should_exit = True
            return
        if retire:
            self._retiring = asyncio.get_running_loop().create_task(self._retire())

    async def _retire(self) -> None:
        """Stop accepting, close connections after their next response, and exit when none is left.

        Idle connections close at their usual time-out, so no client loses a request.
        """
        for server in self.servers:
            server.close()
        protocol = self.config.http_protocol_class
        assert isinstance(protocol, type)
        assert issubclass(protocol, TimedProtocol)
        protocol.is_retiring = True
        limits = protocol.limits
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limits.header_seconds + limits.body_seconds + limits.request_seconds):
                while self.server_state.connections and not self.should_exit:
                    await asyncio.sleep(RETIRE_POLL_SECONDS)
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals as uvicorn does, without raising them again at the end."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {sign: signal.signal(sign, self.handle_exit) for sign in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sign, handler in before.items():
                signal.signal(sign, handler)


def make_server(
    engine: Engine,
    settings: Settings,
    on_ready: Callable[[], None],
    seat: ProcessState | None = None,
    control: Connection | None = None,
) -> Server:
    """Return a server that is warmed up and ready to run."""
    seat = seat or ProcessState()
    app = make_app(engine, settings, seat=seat)
    app.state.service.warm_up()
    logger = logging.getLogger("uvicorn.error")
    logger.handlers, logger.propagate = [logging.NullHandler() if settings.quiet else ERROR_HANDLER], False
    logger.setLevel(logging.WARNING)
    config = uvicorn.Config(
        app,
        http=TimedProtocol.for_settings(settings, seat),
        timeout_graceful_shutdown=int(settings.limits.request_seconds),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
    )
    return Server(config, on_ready, seat, control)


def run(
    engine: Engine,
    settings: Settings,
    sock: socket.socket,
    *,
    on_ready: Callable[[], None],
    seat: ProcessState | None = None,
    control: Connection | None = None,
) -> None:
    """Serve an engine until SIGINT or SIGTERM; requests in flight are answered first.

    Parameters
    ----------
    engine : Engine
        Engine to serve.
    settings : Settings
        Settings of the service.
    sock : socket
        Listening socket, see :func:`bind`.
    on_ready : callable
        Called when connections are accepted.
    seat, control : optional
        State of a worker, and its connection to the supervisor.
    """
    sys.setswitchinterval(SWITCH_INTERVAL)
    _allow_open_files(settings.limits.connections + SPARE_FILES)
    if not logging.getLogger().handlers:  # log lines of other libraries must not block either
        logging.getLogger().addHandler(ERROR_HANDLER)
    with threadpool_limits(BLAS_THREADS, user_api="blas"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about a query are part of its response
        warnings.simplefilter("default", RuntimeWarning)  # failures of background threads, once each
        warnings.showwarning = _log_warning
        server = make_server(engine, settings, on_ready, seat, control)
        _spare_garbage_collection()
        server.run(sockets=[sock])


def _spare_garbage_collection() -> None:
    """Exempt existing objects from garbage collection.

    Nearly all are modules and compiled functions that stay. A full collection takes 0.1 s, in which no request is
    answered, and would happen every few thousand searches. Engines that are opened later are not exempt.
    """
    gc.collect()
    gc.freeze()


def _log_warning(message: Warning | str, *where: object, **more: object) -> None:
    log_event(str(message))


def _allow_open_files(n: int) -> None:
    """Raise the limit of open files to ``n`` if the system allows it; the default is often 1,024."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < n:
        wanted = n if hard == resource.RLIM_INFINITY else min(n, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
