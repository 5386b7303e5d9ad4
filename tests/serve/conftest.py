"""A small engine, and a service for it: in this process, or in a thread where a real connection is needed."""

from __future__ import annotations

import shutil
import socket
import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest

from little_world import make_world

for package in ("starlette", "uvicorn", "python_multipart", "PIL", "prometheus_client", "cachetools", "httpx"):
    pytest.importorskip(package, reason=f"{package} is not installed (extras serve, test)")

BASE = "http://127.0.0.1"


@pytest.fixture(scope="session")
def little_engine(tmp_path_factory):
    """The folder of an engine that no test changes."""
    from modalhash import Engine

    folder = tmp_path_factory.mktemp("served")
    make_world(folder)
    Engine.train(folder / "items.csv", folder / "engine", n_bits=32).close()
    return folder / "engine"


@pytest.fixture
def engine(little_engine, tmp_path):
    """A copy of its own, which a test may change."""
    from modalhash import Engine

    shutil.copytree(little_engine, tmp_path / "engine")
    with Engine.open(tmp_path / "engine") as opened:
        yield opened


@pytest.fixture
def make_client(engine):
    """Clients of a service in this process, with settings of the test's choice."""
    from starlette.testclient import TestClient

    from modalhash.serve import Limits, Settings, make_app

    opened = []

    def make(*, base=BASE, limits=None, **settings):
        limits = replace(Limits(), **(limits or {}))
        app = make_app(engine, Settings(**{"quiet": True, **settings}, limits=limits))
        client = TestClient(app, base_url=base, raise_server_exceptions=False, follow_redirects=False)
        opened.append(client.__enter__())
        return client

    yield make
    for client in opened:
        client.__exit__(None, None, None)


@pytest.fixture
def client(make_client):
    """A client of a service that only reads."""
    return make_client()


@pytest.fixture
def serve(engine):
    """A service in a thread, on a port of its own."""
    from modalhash.serve import Limits, Settings, bind
    from modalhash.serve.server import make_server

    @contextmanager
    def start(*, limits=None, **settings):
        ready = threading.Event()
        limits = replace(Limits(), **(limits or {}))
        chosen = Settings(**{"quiet": True, **settings}, limits=limits)
        with bind("127.0.0.1", 0) as sock:
            server = make_server(engine, chosen, ready.set)
            server.port = sock.getsockname()[1]
            thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
            thread.start()
            assert ready.wait(30)
            try:
                yield server
            finally:
                server.should_exit = True
                thread.join(30)
                assert not thread.is_alive()

    return start


@pytest.fixture
def talk():
    """Bytes as they are to a port, and all that comes back until the connection is closed."""

    def send(port, *parts, timeout=30):
        with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
            answer = b""
            try:
                for part in parts:
                    connection.sendall(part)
                while more := connection.recv(65536):
                    answer += more
            except (ConnectionResetError, BrokenPipeError):
                pass
            return answer

    return send
