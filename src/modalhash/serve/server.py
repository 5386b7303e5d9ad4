"""The service as a process: its socket, its signals, its end."""

from __future__ import annotations

import contextlib
import errno
import logging
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator

import uvicorn

from modalhash.engine import Engine
from modalhash.serve.app import make_app
from modalhash.serve.log import FromUvicorn
from modalhash.serve.protocol import with_limits
from modalhash.serve.settings import Settings

SWITCH = 0.0005
"""Seconds after which a busy thread makes way: by default 5 ms, for which each answer would wait several times."""


def check_reach(settings: Settings, *, without_token: bool) -> None:
    """Other machines may reach the service only with a token, or by a clear wish."""
    if settings.token is None and not settings.is_local and not without_token:
        raise ValueError(
            f"at {settings.host} other machines reach the service, and there is no token. Set MODALHASH_TOKEN, "
            "or say --without-token if everybody who reaches it may use it"
        )


def bind(host: str, port: int) -> socket.socket:
    """A socket at this address, or an error that says what is wrong with it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ValueError(f"port {port} is in use; give another one (--port), or 0 for any that is free") from None
        raise ValueError(f"cannot listen at {host}, port {port}: {error.strerror or error}") from None


def address(sock: socket.socket) -> str:
    """What to type into a browser."""
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


class Server(uvicorn.Server):
    """Stops at a signal when all that was asked is answered, and then ends well."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn, but without raising the signal once more: to be told to stop is no failure."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {sign: signal.signal(sign, self.handle_exit) for sign in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sign, handler in before.items():
                signal.signal(sign, handler)


def run(engine: Engine, settings: Settings, sock: socket.socket, *, on_ready: Callable[[], None]) -> None:
    """Serve until told to stop."""
    sys.setswitchinterval(SWITCH)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a long-lived process; and what is to be told goes to the client who asked
        make_server(engine, settings, on_ready).run(sockets=[sock])


def make_server(engine: Engine, settings: Settings, on_ready: Callable[[], None]) -> Server:
    """A server that is ready to run: what is slow the first time has been done once."""
    app = make_app(engine, settings)
    service = app.state.service
    service.warm_up()
    logger = logging.getLogger("uvicorn.error")
    logger.handlers, logger.propagate = [FromUvicorn(service.log)], False
    config = uvicorn.Config(
        app,
        http=with_limits(settings.limits),
        h11_max_incomplete_event_size=settings.limits.head_bytes,
        timeout_graceful_shutdown=int(settings.limits.request_seconds),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
    )
    return Server(config, on_ready)
