"""Whatever a client sends, it is the client's mistake: no header, form or length makes a 500."""

from __future__ import annotations

import errno
import random

import pytest
from serve_tools import ask, body_of, picture, status_of

TOKEN = "correct-horse"
VALUES = [
    "http://[", "http://]", "//[::1", "http://[v1.x]", "http://127.0.0.1:99999999", "null", "\xff\xfe", "\x7f", "::::",
    "bytes=0-", "bytes=-", "bytes=9-1,2-", "a=b;c", 'W/"x"', "Thu, 99 Foo", "-1", "1e9", "9" * 400, "gzip", "*",
    "identity;q=nan", "modalhash=; modalhash=\xff", "Bearer", "Bearer ", "Basic !!!", "Bearer \xff", "100-continue",
    "websocket", "upgrade", "http://ex\u2100mple", "http://\u0130", "chunked", "gzip, chunked",
]  # fmt: skip
HEADERS = [
    "Origin", "Content-Type", "Range", "If-Range", "Host", "Cookie", "Authorization", "Expect", "Upgrade", "Connection",
    "If-Modified-Since", "If-None-Match", "Accept", "Accept-Encoding", "Sec-Fetch-Site", "X-Forwarded-For",
    "X-Forwarded-Proto", "Content-Encoding", "Content-Length", "Transfer-Encoding", "Referer", "Trailer",
]  # fmt: skip
FORM = "multipart/form-data; boundary=x"
CONTENT_TYPES = [
    *(f"{FORM}; charset={name}" for name in ("undefined", "rot13", "utf-7", "idna", "punycode", "hex", "utf-8\0", "")),
    *(f"multipart/form-data; boundary{rest}" for rest in ("*=utf-8''x", "=", '="x', "=\xff", "*0=x; boundary*1=y", "*=undefined''x")),
    "multipart/form-data;;;=", "application/json; charset=undefined", FORM, FORM,
]  # fmt: skip
DISPOSITIONS = [
    'form-data; name="text"', 'form-data; name="image"; filename="a.png"', "form-data", "form-data; name*=undefined''x",
    'form-data; name="\xff"', "form-data; name=\"image\"; filename*=utf-16''%ff", "attachment", '; name="text"',
    'form-data; name="text"; filename', 'form-data; name="text"; x*9999999999999999999=1', "form-data; name*='",
    'form-data; name="want"', 'form-data; name="k"',
]  # fmt: skip
ROUTES = [
    ("POST", "/search"), ("POST", "/search"), ("POST", "/items"), ("GET", "/engine"), ("GET", "/media/photos%2F0.png"),
    ("DELETE", "/items/nosuch"), ("GET", "/?token=%ff"), ("GET", f"/?token={TOKEN}&q=%ed%a0%80"),
    ("GET", "/duplicates?where=%ff"), ("PUT", "/items"), ("OPTIONS", "/search"), ("HEAD", "/docs"),
]  # fmt: skip


def draw_form(draw):
    form = bytearray()
    for _ in range(draw.randrange(4)):
        form += b"--x\r\nContent-Disposition: " + draw.choice(DISPOSITIONS).encode("latin-1") + b"\r\n"
        if draw.random() < 0.4:
            form += b"Content-Type: " + draw.choice(CONTENT_TYPES + VALUES).encode("utf-8") + b"\r\n"
        form += b"\r\n" + draw.choice([b"red", b"\xff\xfe", b"", b"\0", b"+AGE-", b"\\ud800", b"1e999"]) + b"\r\n"
    form += b"--x--\r\n"
    for _ in range(draw.choice([0, 0, 1, 3])):
        form[draw.randrange(len(form))] = draw.randrange(256)
    return bytes(form)


@pytest.mark.slow
def test_drawn_nonsense_is_never_a_server_error(make_client):
    client = make_client(writable=True, token=TOKEN, limits={"wrong_tokens": 10**6})
    draw = random.Random(17)
    statuses = set()
    for _ in range(600):
        method, url = draw.choice(ROUTES)
        headers = {"Authorization": f"Bearer {TOKEN}"} if draw.random() < 0.7 else {}
        body = b""
        if method == "POST":
            headers["Content-Type"] = draw.choice(CONTENT_TYPES)
            body = draw_form(draw) if draw.random() < 0.9 else b'{"text": "red"}'
        headers |= {draw.choice(HEADERS): draw.choice(VALUES) for _ in range(draw.randrange(3))}
        given = {name: value.encode("utf-8") for name, value in headers.items()}
        answer = client.request(method, url, headers=given, content=body)
        assert answer.status_code < 500, (method, url, headers, body)
        statuses.add(answer.status_code)
    assert statuses >= {200, 303, 400, 401, 403, 404, 405, 415, 422}, "the nonsense is of many kinds"


@pytest.mark.parametrize("origin", ["http://[", "http://]", "http://[::1", "//[", "http://ex\u2100mple"])
def test_an_origin_that_is_no_url_is_another_site(client, origin):
    answer = client.post("/search", json={"text": "red"}, headers={"Origin": origin.encode()})
    assert (answer.status_code, "another site" in answer.json()["error"]) == (403, True)


@pytest.mark.parametrize("charset", ["undefined", "rot13", "hex", "idna", "utf-16", "utf-8\0", "\xff"])
def test_a_charset_that_is_none(client, charset):
    body = b'--x\r\nContent-Disposition: form-data; name="text"\r\n\r\nred\r\n--x--\r\n'
    answer = client.post(
        "/search", content=body, headers={"Content-Type": f"{FORM}; charset={charset}".encode("latin-1")}
    )
    assert (answer.status_code, "expected utf-8" in answer.json()["error"]) == (415, True)
    for fine in ("UTF-8", '"utf-8"', "us-ascii"):
        answer = client.post("/search", content=body, headers={"Content-Type": f"{FORM}; charset={fine}"})
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("lengths", ["Content-Length: 4\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nContent-Length: 0"])  # fmt: skip
def test_a_body_of_two_lengths_is_refused_and_nothing_after_it_is_read(serve, talk, lengths):
    head = f"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{lengths}\r\n\r\n".encode()
    with serve() as server:
        answer = talk(server.port, head + b"0\r\n\r\nGET /engine HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert status_of(answer) == 400
        assert answer.count(b"HTTP/1.1 ") == 1
        assert "expected one of them" in body_of(answer)["error"]
        assert ask(server.port, {"text": "red"})[0] == 200


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_507_and_changes_nothing(make_client, engine, monkeypatch, code):
    client = make_client(writable=True)

    def full(*paths):
        raise OSError(code, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("modalhash.core.files.os.replace", full)
        answer = client.post("/items", files={"image": ("a.png", picture())})
    assert (answer.status_code, "disk" in answer.json()["error"]) == (507, True)
    assert len(engine) == 120
    assert not list((engine.path / "media").iterdir()), "nothing is left of it"
    assert client.post("/items", files={"image": ("a.png", picture())}).status_code == 201


def test_another_error_of_the_system_is_internal(make_client, monkeypatch):
    client = make_client(writable=True)

    def broken(*paths):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("modalhash.core.files.os.replace", broken)
    assert client.post("/items", files={"image": ("a.png", picture())}).status_code == 500
