"""How much and how long: too much is refused early, slow clients are not waited for, and the service goes on."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import pytest

JSON_HEAD = b"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


def status_of(answer: bytes) -> int:
    return int(answer.split()[1]) if answer else 0


def body_of(answer: bytes) -> dict:
    return json.loads(answer.partition(b"\r\n\r\n")[2])


def ask(port, body=None, method="POST", path="/search"):
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), json.load(answer)


def test_bodies_that_are_too_large(make_client):
    client = make_client(limits={"bytes": 20_000, "json_bytes": 1000})
    assert client.post("/search", json={"text": "x" * 1000}).status_code == 413
    assert client.post("/search", files={"image": ("a.png", bytes(20_001))}).status_code == 413
    assert client.post("/search", files={"image": ("a.png", bytes(20_000))}).status_code == 415
    assert client.post("/search", files={"image": ("a.png", bytes(50_000))}).status_code == 413

    def chunks():
        for _ in range(100):
            yield b" " * 100

    answer = client.post("/search", content=chunks(), headers={"Content-Type": "application/json"})
    assert "larger than 1,000 bytes" in answer.json()["error"]


def test_a_length_is_believed_only_to_refuse(serve, talk):
    with serve() as server:
        answer = talk(server.port, JSON_HEAD + b"Content-Length: 99999999999999999999\r\nConnection: close\r\n\r\n")
        assert status_of(answer) == 413
        answer = talk(server.port, JSON_HEAD + b"Content-Length: -1\r\n\r\n")
        assert status_of(answer) == 400
        assert body_of(answer)["status"] == 400


def test_too_many_uploads_at_once(make_client):
    client = make_client(limits={"all_bytes": 5000})
    answer = client.post("/search", files={"image": ("a.png", bytes(6000))})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert client.post("/search", json={"text": "red"}).status_code == 200, "what was taken is given back"


def test_a_body_that_trickles_in(serve, talk):
    with serve(limits={"body_seconds": 0.3}) as server:
        answer = talk(server.port, JSON_HEAD + b"Content-Length: 100\r\n\r\n{")
        assert status_of(answer) == 408
        assert "did not arrive" in body_of(answer)["error"]
        assert ask(server.port, {"text": "red"})[0] == 200


@pytest.mark.parametrize("head", [b"", b"GET /engine HT", b"GET /engine HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "])
def test_a_head_that_trickles_in(serve, talk, head):
    with serve(limits={"header_seconds": 0.3}) as server:
        answer = talk(server.port, head)
        assert status_of(answer) == 408
        again = talk(server.port, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"GET /engine HT")
        assert status_of(again) == 200
        assert b" 408 " in again, "a second head on the same connection"


def test_a_body_that_nobody_wants_is_not_read_for_ever(serve, talk, monkeypatch):
    monkeypatch.setattr("modalhash.serve.protocol.LINGER", 0.3)
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


def test_a_large_head(client):
    answer = client.get("/engine", headers={"X": "x" * 20_000})
    assert (answer.status_code, answer.json()["status"]) == (431, 431)
    assert client.get("/engine?" + "x" * 20_000).status_code == 431


def test_many_connections(serve, talk, until):
    import socket

    with serve(limits={"connections": 5}) as server:
        idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(5)]
        until(lambda: len(server.server_state.connections) == 5)
        assert talk(server.port, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") == b""
        for connection in idle:
            connection.close()
        until(lambda: not server.server_state.connections)
        assert ask(server.port, {"text": "red"})[0] == 200


class Held:
    """An engine whose searches wait until they are let go."""

    def __init__(self, engine):
        self.begun, self.go, answer = threading.Event(), threading.Event(), engine.answer

        def held(asks):
            self.begun.set()
            assert self.go.wait(20)
            return answer(asks)

        engine.answer = held


def test_more_requests_than_allowed(serve, engine, until):
    with serve(limits={"requests": 2}) as server, ThreadPoolExecutor(2) as pool:
        held = Held(engine)
        waiting = [pool.submit(ask, server.port, {"text": "red"}) for _ in range(2)]
        metrics = server.config.app.state.service.metrics
        until(lambda: metrics.under_way == 2)
        status, headers, body = ask(server.port, {"text": "red"})
        assert (status, headers["retry-after"]) == (503, "1")
        assert "busy" in body["error"]
        assert ask(server.port, method="GET", path="/healthz")[0] == 200
        held.go.set()
        assert [one.result()[0] for one in waiting] == [200, 200]


def test_a_request_that_takes_too_long(serve, engine):
    with serve(limits={"request_seconds": 0.3}) as server:
        held = Held(engine)
        status, _, body = ask(server.port, {"text": "red"})
        assert status == 503
        assert "no answer in 0.3 s" in body["error"]
        held.go.set()
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
