"""Run the service with uvicorn, in one process or as a worker."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

import uvicorn
from threadpoolctl import threadpool_limits

from modalhash.engine import Engine
from modalhash.serve.app import make_app
from modalhash.serve.limits import Settings
from modalhash.serve.monitoring import ERROR_HANDLER, log_event
from modalhash.serve.timeouts import TimedProtocol
from modalhash.serve.worker_state import ProcessState

SWITCH_INTERVAL = 0.0005
"""Seconds after which a busy thread yields the GIL. With Python's default of 5 ms, each response would wait several
times that for the search threads."""
BLAS_THREADS = 1
"""Matrix products of a few queries are small. More threads are not faster and take twice the processor time, because
idle BLAS threads spin."""
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


class Server(uvicorn.Server):
    """uvicorn's server, which calls ``on_ready`` when it listens and exits normally at a signal."""

    def __init__(
        self,
        config: uvicorn.Config,
        on_ready: Callable[[], None],
        control: Connection | None = None,
    ) -> None:
        super().__init__(config)
        self._on_ready, self._control = on_ready, control

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._control is not None:
            asyncio.get_running_loop().add_reader(self._control.fileno(), self._on_control, self._control)
        if self.started:
            self._on_ready()

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
    app = make_app(engine, settings, seat=seat)
    app.state.service.warm_up()
    logger = logging.getLogger("uvicorn.error")
    logger.handlers, logger.propagate = [logging.NullHandler() if settings.quiet else ERROR_HANDLER], False
    logger.setLevel(logging.WARNING)
    config = uvicorn.Config(
        app,
        http=TimedProtocol.for_settings(settings),
        timeout_graceful_shutdown=int(settings.limits.request_seconds),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
    )
    return Server(config, on_ready, control)


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
