"""Answers have a bound, and so has what one address has not read of them."""

from __future__ import annotations

import socket
from contextlib import ExitStack, contextmanager

import pytest
from serve_tools import ask

from modalhash.serve import schemas
from modalhash.serve.http import PIECE
from modalhash.serve.limits import MAX_EXTRA_BYTES, MAX_SHOWN_LABELS
from modalhash.serve.timeouts import TimedProtocol

LARGE = 24 * 2**20
"""Bytes of an answer, more than the system takes for a client that does not read."""
ITEM = "/items?modality=text&limit=1"


@pytest.fixture
def large(monkeypatch):
    """Make lists of items large."""
    monkeypatch.setattr(schemas, "MAX_ANSWER_BYTES", 2 * LARGE)
    monkeypatch.setattr("modalhash.serve.routes_items._newest", lambda *_: {"items": ["x" * LARGE]})


@contextmanager
def unread(port, source="127.0.0.1"):
    """Ask for a list, and read the first bytes of the answer alone."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(20)
        connection.bind((source, 0))
        connection.connect(("127.0.0.1", port))
        connection.sendall(f"GET {ITEM} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        assert connection.recv(12) == b"HTTP/1.1 200"
        yield connection


def read_on(connection):
    """Return the number of bytes that come until the connection is closed, or until the answer is complete."""
    n_bytes = 0
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**22)
    try:
        while n_bytes < LARGE and (more := connection.recv(2**20)):
            n_bytes += len(more)
    except ConnectionResetError:
        pass
    return n_bytes


def test_answers_that_one_address_does_not_read_are_bounded(serve, large, until):
    with serve(limits={"unread_bytes": 2 * LARGE}) as server, ExitStack() as opened:
        first, _ = (opened.enter_context(unread(server.port)) for _ in range(2))
        status, headers, answer = ask(server.port, method="GET", path=ITEM)
        assert (status, headers["retry-after"]) == (429, "1")
        assert "bytes of earlier answers" in answer["error"]
        assert ask(server.port, {"text": "a red ball"})[0] == 200, "small answers"
        assert ask(server.port, method="GET", path=ITEM, source="127.0.0.2")[0] == 200, "another address"
        assert read_on(first) >= LARGE
        until(lambda: ask(server.port, method="GET", path=ITEM)[0] == 200)


def test_a_client_that_reads_nothing_is_closed(serve, large, until):
    with serve(limits={"request_seconds": 0.3, "unread_bytes": LARGE + PIECE}) as server:
        connections = server.config.http_protocol_class.table
        with unread(server.port) as connection:
            until(lambda: len(connections) == 0)
            assert read_on(connection) < LARGE
        assert server.config.app.state.service.metrics.requests_in_flight == 0


def test_a_closed_connection_whose_client_does_not_read_the_rest_ends(serve, monkeypatch, until):
    """All that is left fits into the buffer of the connection, so the request is over for the service."""

    def connection_made(self, transport, make=TimedProtocol.connection_made):
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        make(self, transport)

    monkeypatch.setattr(TimedProtocol, "connection_made", connection_made)
    monkeypatch.setattr("modalhash.serve.routes_items._newest", lambda *_: {"items": ["x" * (PIECE - 200)]})
    with serve(limits={"request_seconds": 0.3, "header_seconds": 0.3}) as server:
        connections = server.config.http_protocol_class.table
        with unread(server.port):
            until(lambda: len(connections) == 0)


def test_an_answer_in_pieces_is_whole(serve, large):
    with serve() as server:
        status, headers, answer = ask(server.port, method="GET", path=ITEM)
    assert (status, len(answer["items"][0])) == (200, LARGE)
    assert int(headers["content-length"]) == LARGE + len('{"items":[""]}')


def test_a_list_has_a_bound(client, monkeypatch):
    monkeypatch.setattr(schemas, "MAX_ANSWER_BYTES", 300)
    for answer in (
        client.get("/items"),
        client.post("/search", json={"text": "a red ball"}),
    ):
        assert answer.status_code == 422
        assert "the limit is 300. Ask for fewer items" in answer.json()["error"]
    assert client.get("/items", params={"limit": 1, "modality": "text"}).status_code == 200


def test_labels_and_other_fields_of_items_in_lists_are_cut(client, engine):
    labels = [f"label {n}" for n in range(MAX_SHOWN_LABELS + 1)]
    extra = {"notes": "x" * MAX_EXTRA_BYTES, "year": 2005, "count": 10**30}
    engine.add([{"id": "large", "text": "a red ball", "labels": labels, **extra}])
    query = client.post("/search", json={"id": "large", "want": "text"}).json()["query"]
    hits = client.post("/search", json={"text": "a red ball", "want": "text", "k": 200}).json()["hits"]
    listed = client.get("/items", params={"modality": "text", "limit": 200}).json()["items"]
    for items in (hits, listed, [query]):
        (one,) = [item for item in items if "labels_truncated" in item or "extra_truncated" in item]
        assert one["labels"] == labels[:MAX_SHOWN_LABELS]
        assert one["extra"] == {"year": 2005, "count": 10**30}
    whole = client.get("/items/large").json()
    assert (whole["labels"], whole["extra"]) == (labels, extra)
