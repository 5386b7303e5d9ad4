"""Connections: slow clients are not waited for, what is no HTTP gets an error, and stopping ends well."""

from __future__ import annotations

import gc
import socket
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from serve_tools import Held, ask, body_of, status_of

from modalhash.serve import Settings, check_exposure, server as server_module

only_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")
JSON_HEAD = b"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize("head", [b"", b"GET /engine HT", b"GET /engine HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "])
def test_a_head_that_trickles_in(serve, talk, head):
    with serve(limits={"header_seconds": 0.3}) as server:
        answer = talk(server.port, head)
        assert status_of(answer) == 408
        again = talk(server.port, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"GET /engine HT")
        assert status_of(again) == 200
        assert b" 408 " in again, "a second head on the same connection"


def test_a_body_that_nobody_wants_is_not_read_for_ever(serve, talk, monkeypatch):
    monkeypatch.setattr("modalhash.serve.timeouts.LINGER_SECONDS", 0.3)
    with serve() as server:
        head = b"POST /nosuch HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n"
        assert status_of(talk(server.port, head)) == 404


@pytest.mark.parametrize(
    "request_",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /engine HTTP/9\r\n\r\n",
        b"GET /engine HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 400_000 + b"\r\n\r\n",
        b"GET /engine HTTP/1.1\r\n\r\n",
        JSON_HEAD + b"Transfer-Encoding: chunked\r\n\r\nnothex\r\n",
    ],
    ids=["tls", "version", "large", "no host", "chunks"],
)
def test_what_is_no_request(serve, talk, request_):
    with serve() as server:
        answer = talk(server.port, request_)
        assert status_of(answer) == 400
        assert b"content-security-policy" in answer
        assert body_of(answer)["status"] == 400
        assert ask(server.port, {"text": "red"})[0] == 200


@only_linux
@pytest.mark.parametrize("limits", [{"connections": 60, "connections_per_address": 8}, {"connections": 60}])
def test_silent_connections_of_one_address_keep_nobody_out(serve, until, limits):
    with serve(limits=limits) as server, ExitStack() as opened:
        for _ in range(80):
            opened.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        n_left = limits.get("connections_per_address", 60)
        until(lambda: len(server.server_state.connections) == n_left)
        assert ask(server.port, {"text": "red"}, source="127.0.0.2")[0] == 200
        assert ask(server.port, {"text": "red"})[0] == 200, "a silent one of its own address is closed for it"


def test_requests_under_way_are_not_dropped_for_connections(serve, engine, talk, until):
    with serve(limits={"connections_per_address": 2}) as server, ThreadPoolExecutor(2) as pool:
        held = Held(engine)
        waiting = [pool.submit(ask, server.port, {"text": "red"}) for _ in range(2)]
        until(lambda: server.config.app.state.service.metrics.requests_in_flight == 2)
        assert talk(server.port, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") == b""
        held.go.set()
        assert [one.result()[0] for one in waiting] == [200, 200]
        until(lambda: not server.config.http_protocol_class.table)
        assert ask(server.port, {"text": "red"})[0] == 200


def test_a_trusted_proxy_may_have_many_connections(serve, talk, until):
    with serve(limits={"connections_per_address": 1}, trusted_proxies=("127.0.0.1",)) as server, ExitStack() as opened:
        for _ in range(5):
            opened.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        until(lambda: len(server.server_state.connections) == 5)
        assert ask(server.port, {"text": "red"})[0] == 200


def test_stopping_answers_what_is_under_way(serve, engine, until):
    with serve() as server, ThreadPoolExecutor(1) as pool:
        held = Held(engine)
        waiting = pool.submit(ask, server.port, {"text": "a red ball"})
        assert held.begun.wait(10)
        server.should_exit = True
        until(lambda: not any(listener.is_serving() for listener in server.servers))
        with pytest.raises(OSError, match="refused"):
            ask(server.port, {"text": "red"})
        held.go.set()
        status, _, body = waiting.result()
        assert status == 200
        assert body["hits"]


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.0.7", "::", "example.org"])
def test_other_machines_need_a_token(host):
    with pytest.raises(ValueError, match="MODALHASH_TOKEN"):
        check_exposure(Settings(host=host), without_token=False)
    check_exposure(Settings(host=host), without_token=True)
    check_exposure(Settings(host=host, token="correct-horse"), without_token=False)
    for own in ("127.0.0.1", "localhost", "::1", "127.1.2.3"):
        check_exposure(Settings(host=own), without_token=False)


def test_warm_up_compiles_what_refined_searches_need(engine, monkeypatch):
    from modalhash.serve import Settings
    from modalhash.serve.service import Service

    asked = []
    answer = engine.answer
    monkeypatch.setattr(engine, "answer", lambda *given: asked.extend(given[0]) or answer(*given))
    service = Service(engine, Settings())
    service.warm_up()
    service.close()
    assert {query.modality for query in asked if query.vector is not None} == set(engine.modalities)


@pytest.mark.slow
def test_a_service_logs_what_threads_warn_of_and_spares_garbage_collection_what_stays(engine, monkeypatch):
    events = []

    class Server:
        def run(self, sockets):
            events.append(gc.get_freeze_count() > 10_000)
            for _ in range(2):
                warnings.warn("tables could not be built", RuntimeWarning, stacklevel=1)
            warnings.warn("no item has these words", UserWarning, stacklevel=1)

    monkeypatch.setattr(server_module, "make_server", lambda *arguments: Server())
    monkeypatch.setattr(server_module, "log_event", events.append)
    before = sys.getswitchinterval()
    try:
        server_module.run(engine, Settings(), None, on_ready=lambda: None)
    finally:
        sys.setswitchinterval(before)
        gc.unfreeze()
    assert events == [True, "tables could not be built"]
