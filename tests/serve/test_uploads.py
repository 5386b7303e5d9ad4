"""Bodies: too large, too many or too slow ones are refused early."""

from __future__ import annotations

import pytest
from serve_tools import ask, body_of, status_of

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
