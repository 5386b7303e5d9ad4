"""Bodies: too large, too many or too slow ones are refused early."""

from __future__ import annotations

import socket
import sys
from contextlib import ExitStack

import pytest
from serve_tools import ask, body_of, status_of

only_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")
JSON_HEAD = b"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


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


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{", "application/json", 422),
        (b'"a"', "application/json", 422),
        (b"[" * 50_000, "application/json", 422),
        (b'{"text": "\\ud800"}', "application/json", 422),
        (b'{"text": "\xff\xfe"}', "application/json", 422),
        (b'{"text": "red", "k": NaN}', "application/json", 422),
        (b'{"text": "red"}', "text/plain", 415),
        (b'{"text": "red"}', "", 415),
        (b"text=red", "application/x-www-form-urlencoded", 415),
        (b"nothing", "multipart/form-data", 422),
        (b"nothing", "multipart/form-data; boundary=x", 422),
        (b"--x\r\n\r\n", "multipart/form-data; boundary=x", 422),
        (b'--x\r\nContent-Disposition: form-data; name="want"\r\n\r\nimage\r\n--x--\r\n', "multipart/form-data; boundary=x", 422),
    ],
)  # fmt: skip
def test_bodies_that_are_none(client, content, kind, status):
    answer = client.post("/search", content=content, headers={"Content-Type": kind} if kind else {})
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]


def start_bodies(opened, server, n, sent=b"{", length=100):
    """Connections with a body each of which a part was sent."""
    head = JSON_HEAD + f"Content-Length: {length}\r\n\r\n".encode()
    connections = [opened.enter_context(socket.create_connection(("127.0.0.1", server.port), 20)) for _ in range(n)]
    for connection in connections:
        connection.sendall(head + sent)
    return connections


@only_linux
@pytest.mark.parametrize("limits", [{"bodies_per_address": 4}, {"requests_per_address": 4}, {"requests": 8}])
def test_slow_bodies_of_one_address_keep_nobody_out(serve, until, monkeypatch, limits):
    monkeypatch.setattr("modalhash.serve.service.SLOW_SECONDS", 0.0)
    with serve(limits={"requests": 8, **limits}) as server, ExitStack() as opened:
        start_bodies(opened, server, 8)
        metrics = server.config.app.state.service.metrics
        until(lambda: metrics.requests_in_flight == min(limits.values()))
        for _ in range(3):
            assert ask(server.port, {"text": "red"}, source="127.0.0.2")[0] == 200


def test_the_slowest_body_is_dropped_first(serve, until, monkeypatch):
    monkeypatch.setattr("modalhash.serve.service.SLOW_SECONDS", 0.0)
    with serve(limits={"bodies_per_address": 2}) as server, ExitStack() as opened:
        (slow,) = start_bodies(opened, server, 1, b"{")
        (quick,) = start_bodies(opened, server, 1, b" " * 900, 1000)
        budget = server.config.app.state.service.body_budget
        until(lambda: budget.used == 901)
        assert ask(server.port, {"text": "red"})[0] == 200
        answer = slow.recv(65536)
        assert status_of(answer) == 408
        assert b"to free its slot" in answer
        quick.sendall(b'{"text": "red"}'.rjust(100))
        assert status_of(quick.recv(65536)) == 200


def test_bodies_that_are_not_slow_are_not_dropped(serve, until):
    with serve(limits={"bodies_per_address": 2}) as server, ExitStack() as opened:
        arriving = start_bodies(opened, server, 2, b" " * 50)
        until(lambda: server.config.app.state.service.body_budget.used == 100)
        status, headers, body = ask(server.port, {"text": "red"})
        assert (status, headers["retry-after"]) == (429, "1")
        assert "2 uploads in progress" in body["error"]
        for connection in arriving:
            connection.sendall(b'{"text": "red"}'.rjust(50))
            assert status_of(connection.recv(65536)) == 200


@only_linux
def test_bytes_of_one_address_keep_nobody_out(serve, until):
    with serve(limits={"all_bytes": 1000}) as server, ExitStack() as opened:
        start_bodies(opened, server, 3, b" " * 330, 400)
        budget = server.config.app.state.service.body_budget
        until(lambda: budget.used == 990)
        assert ask(server.port, {"text": "red"})[0] == 503, "of the same address"
        assert ask(server.port, {"text": "red"}, source="127.0.0.2")[0] == 200
        until(lambda: budget.used == 660)
