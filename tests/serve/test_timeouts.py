"""What follows headers or comes between requests: it is neither believed nor kept, and it stops no time-out."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest
from serve_tools import body_of, status_of

HEAD = b"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
BODY = b'{"text": "red"}'
LAST = b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)
TOKEN = "correct-horse"
QUIET = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def search(head=b"", trailers=b""):
    return HEAD + b"Connection: close\r\n" + head + b"\r\n" + LAST + trailers + b"\r\n"


@pytest.mark.parametrize("parts", [1, 2], ids=["together", "later"])
@pytest.mark.parametrize(
    ("head", "trailers", "status"),
    [
        (b"", b"X-Note: none\r\n", 401),
        (b"", b"Authorization: Bearer correct-horse\r\n", 401),
        (b"Authorization: Bearer wrong-horse\r\n", b"Authorization: Bearer correct-horse\r\n", 401),
        (b"Authorization: Bearer correct-horse\r\n", b"Host: evil.example\r\nOrigin: http://evil.example\r\n", 200),
        (b"Authorization: Bearer correct-horse\r\n", b"Expect: 100-continue\r\n", 200),
    ],
)
def test_trailers_are_no_headers(serve, talk, head, trailers, status, parts):
    request = search(head, trailers)
    cut = request.index(LAST) if parts == 2 else len(request)
    with serve(token=TOKEN) as server:
        assert status_of(talk(server.port, request[:cut], request[cut:])) == status


def test_a_host_in_a_trailer_is_none(serve, talk):
    with serve() as server:
        request = search(trailers=b"Host: 127.0.0.1\r\n").replace(b"Host: 127.0.0.1\r\n", b"", 1)
        assert status_of(talk(server.port, request)) == 400


def test_the_audit_log_has_no_address_of_a_trailer(serve, engine, talk):
    content = b'{"text": "a red ball", "id": "new"}'
    request = HEAD.replace(b"/search", b"/items") + b"X-Forwarded-For: 203.0.113.9\r\nConnection: close\r\n\r\n"
    request += b"%x\r\n%s\r\n0\r\nX-Forwarded-For: 198.51.100.66\r\n\r\n" % (len(content), content)
    with serve(writable=True, trusted_proxies=("127.0.0.1",)) as server:
        assert status_of(talk(server.port, request)) == 201
    (log,) = Path(engine.path).parent.glob("*.audit.jsonl")
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert "203.0.113.9" in str(entries)
    assert "198.51.100.66" not in str(entries)


@pytest.mark.parametrize("method", [b"POST /search", b"GET /healthz", b"GET /engine", b"POST /nosuch"])
@pytest.mark.parametrize(
    ("start", "part"),
    [
        (b"0\r\n", b"a:b\r\n" * 10_000),
        (b"0\r\nname", b"e" * 50_000),
        (b"0\r\nname: ", b"v" * 50_000),
        (b"1;", b"extension" * 5_000),
        (b"", b"0" * 50_000),
    ],
    ids=["trailers", "name", "value", "extension", "size"],
)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_belongs_to_no_content_has_a_bound(serve, method, start, part):
    def megabytes():
        return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024

    request = HEAD.replace(b"POST /search", method) + b"\r\n" + start
    with serve() as server, socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        before = megabytes()
        connection.sendall(request)
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            connection.sendall(part * (50_000_000 // len(part)))
        assert megabytes() - before < 100, "50 are of this test"


def test_chunks_of_a_byte_and_many_searches_on_a_connection_are_not_bounded(serve, talk):
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY + b" " * 30_000) + b"0\r\n\r\n"
    with serve() as server:
        parts = [chunks[start : start + 999] for start in range(0, len(chunks), 999)]
        assert status_of(talk(server.port, HEAD + b"Connection: close\r\n\r\n", *parts)) == 200
        requests = [QUIET] * 999 + [QUIET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")]
        assert talk(server.port, b"".join(requests)).count(b"HTTP/1.1 200 OK") == 1000


@pytest.mark.parametrize(
    "parts",
    [(b"\r\n",), (b"\r\n", b"\r\n"), (QUIET, b"\r\n"), (QUIET + b"\r\n",), (QUIET + b"\r\n", b"\r\n")],
    ids=["first", "twice", "after a request", "with it", "later too"],
)
def test_line_breaks_between_requests_stop_no_time_out(serve, talk, parts):
    with serve(limits={"header_seconds": 0.3}) as server:
        answer = talk(server.port, *parts)
        assert answer.count(b"HTTP/1.1 200 OK") == parts.count(QUIET) + parts.count(QUIET + b"\r\n")
        if parts[0] == b"\r\n":
            assert status_of(answer) == 408


def test_the_rest_of_a_body_that_was_not_needed_stops_no_time_out(serve):
    limits = {"header_seconds": 0.3}
    with serve(limits=limits) as server, socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(b"POST /nosuch HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4\r\n\r\n12")
        assert status_of(connection.recv(65536)) == 404
        connection.sendall(b"34")
        assert connection.recv(65536) == b"", "closed"


def test_endless_line_breaks_are_refused(serve, talk):
    with serve(limits={"head_bytes": 100}) as server:
        answer = talk(server.port, b"\r\n" * 51)
        assert status_of(answer) == 400
        assert "too large" in body_of(answer)["error"]
