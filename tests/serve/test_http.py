"""Access control, headers of every response, and how many requests for how long."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from serve_tools import Held, ask

from modalhash.serve.http import POLICY

TOKEN = "correct-horse"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def guarded(make_client):
    return make_client(token=TOKEN)


@pytest.mark.parametrize("url", ["/", "/engine", "/nosuch", "/static/nosuch.js", "/docs", "/openapi.json", "/metrics"])
def test_headers_on_every_response(client, url):
    headers = client.get(url).headers
    assert headers["content-security-policy"] == POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert not [name for name in headers if name.startswith("access-control")]
    assert "server" not in headers


@pytest.mark.slow
@pytest.mark.parametrize("url", ["/engine", "/search", "/items/x", "/media/x", "/metrics", "/docs", "/openapi.json", "/nosuch"])  # fmt: skip
def test_without_the_token_nothing_is_answered(guarded, url):
    for method in ("GET", "POST", "DELETE"):
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": f"Basic {TOKEN}"},
            {"Cookie": "modalhash=x"},
        ):
            answer = guarded.request(method, url, headers=headers)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert "Authorization: Bearer" in answer.json()["error"]


def test_the_page_itself_needs_no_token_and_asks_for_it(guarded):
    for url in ("/", "/?q=red", "/static/page.js", "/static/style.css"):
        assert guarded.get(url).status_code == 200
        assert guarded.get(url, headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert guarded.post(url).status_code == 401
    assert guarded.get("/static/../engine").status_code == 401


def test_with_the_token_all_is_open(guarded):
    for route in ("/livez", "/readyz", "/healthz"):
        assert guarded.get(route).json() == {"status": "ok"}
    assert guarded.get("/engine", headers=BEARER).status_code == 200
    assert guarded.post("/search", json={"text": "red"}, headers=BEARER).status_code == 200
    assert guarded.get("/engine", headers={"Authorization": f"bearer {TOKEN}"}).status_code == 200


def test_the_page_gets_a_cookie(guarded):
    assert guarded.get("/?token=wrong").status_code == 401
    answer = guarded.get(f"/?q=red+ball&token={TOKEN}&want=image")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/?q=red+ball&want=image"
    cookie = answer.headers["set-cookie"]
    assert TOKEN not in cookie
    for part in ("HttpOnly", "SameSite=strict", "Path=/", "Max-Age=43200"):
        assert part in cookie
    assert "Secure" not in cookie
    assert guarded.get("/engine").status_code == 200, "the client has the cookie now"
    assert guarded.post("/search", json={"text": "red"}).status_code == 200
    assert guarded.post("/search", json={"text": "red"}, headers={"Origin": "http://127.0.0.1"}).status_code == 200
    assert guarded.post("/search", json={"text": "red"}, headers={"Origin": "http://evil.example"}).status_code == 403


def test_the_cookie_is_secure_behind_https(guarded):
    answer = guarded.get(f"/?token={TOKEN}", headers={"X-Forwarded-Proto": "https"})
    assert "Secure" in answer.headers["set-cookie"]
    assert answer.headers["location"] == "/"


def test_a_token_only_leads_to_the_page(guarded):
    assert guarded.get(f"/engine?token={TOKEN}").status_code == 401
    assert guarded.get(f"http://127.0.0.1//evil.example/?token={TOKEN}").status_code == 401, "leads nowhere else"


@pytest.mark.parametrize("headers", [
    {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:81"}, {"Origin": "http://127.0.0.1.evil.example"},
    {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": ""},
])  # fmt: skip
def test_pages_of_other_sites_cannot_use_it(make_client, headers):
    client = make_client(writable=True)
    for method, url, body in (
        ("POST", "/search", {"text": "red"}), ("POST", "/items", {"text": "red"}), ("DELETE", "/items/photos/0.png", None),
    ):  # fmt: skip
        answer = client.request(method, url, json=body, headers=headers)
        assert answer.status_code == 403
        assert "another site" in answer.json()["error"]
    assert client.get("/items/photos/0.png", headers=headers).status_code == 200


def test_its_own_page_can(client):
    same = {"Origin": "http://127.0.0.1", "Sec-Fetch-Site": "same-origin"}
    assert client.post("/search", json={"text": "red"}, headers=same).status_code == 200


def test_a_token_in_the_header_comes_from_no_page(guarded):
    headers = {**BEARER, "Origin": "http://evil.example"}
    assert guarded.post("/search", json={"text": "red"}, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200), ("127.0.0.1:8000", 200), ("localhost:1", 200), ("LOCALHOST", 200), ("[::1]:8000", 200),
        ("evil.example", 403), ("evil.example:8000", 403), ("127.0.0.1.evil.example", 403), ("", 403), ("127.0.0.1:x", 403),
        ("[::1", 403), ("localhost.", 403),
    ],
)  # fmt: skip
def test_names_it_answers_to(client, host, status):
    assert client.get("/engine", headers={"Host": host}).status_code == status


def test_more_names(make_client):
    proxied = make_client(hosts=("Search.example.org",))
    assert proxied.get("/engine", headers={"Host": "search.example.org"}).status_code == 200
    assert "--allow-host" in proxied.get("/engine", headers={"Host": "other.example"}).json()["error"]
    away = make_client(host="0.0.0.0", token=TOKEN)
    assert away.get("/engine", headers={"Host": "192.168.0.7:8000", **BEARER}).status_code == 200


def test_a_large_head(client):
    answer = client.get("/engine", headers={"X": "x" * 20_000})
    assert (answer.status_code, answer.json()["status"]) == (431, 431)
    assert client.get("/engine?" + "x" * 20_000).status_code == 431


def test_more_requests_than_allowed(serve, engine, until):
    with serve(limits={"requests": 2}) as server, ThreadPoolExecutor(2) as pool:
        held = Held(engine)
        waiting = [pool.submit(ask, server.port, {"text": "red"}) for _ in range(2)]
        metrics = server.config.app.state.service.metrics
        until(lambda: metrics.requests_in_flight == 2)
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
