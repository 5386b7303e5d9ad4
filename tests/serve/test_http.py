"""Who may come in, and what every answer carries."""

from __future__ import annotations

import pytest

from modalhash.serve import Settings
from modalhash.serve.http import POLICY, cookie_of
from modalhash.serve.server import check_reach

TOKEN = "correct-horse"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def guarded(make_client):
    return make_client(token=TOKEN)


@pytest.mark.parametrize(
    "address", ["/", "/engine", "/nosuch", "/static/nosuch.js", "/docs", "/openapi.json", "/metrics"]
)
def test_headers_on_every_answer(client, address):
    headers = client.get(address).headers
    assert headers["content-security-policy"] == POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert not [name for name in headers if name.startswith("access-control")]
    assert "server" not in headers


@pytest.mark.parametrize("address", ["/engine", "/search", "/items/x", "/media/x", "/metrics", "/docs", "/openapi.json", "/nosuch"])  # fmt: skip
def test_without_the_token_nothing_is_told(guarded, address):
    for method in ("GET", "POST", "DELETE"):
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": f"Basic {TOKEN}"},
            {"Cookie": "modalhash=x"},
        ):
            answer = guarded.request(method, address, headers=headers)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert "Authorization: Bearer" in answer.json()["error"]


def test_the_page_itself_needs_no_token_and_asks_for_it(guarded):
    for address in ("/", "/?q=red", "/static/page.js", "/static/style.css"):
        assert guarded.get(address).status_code == 200
        assert guarded.get(address, headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert guarded.post(address).status_code == 401
    assert guarded.get("/static/../engine").status_code == 401


def test_with_the_token_all_is_open(guarded):
    assert guarded.get("/healthz").json() == {"status": "ok"}
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
    assert cookie_of(TOKEN) in cookie
    for part in ("HttpOnly", "SameSite=strict", "Path=/"):
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
    for method, address, body in (
        ("POST", "/search", {"text": "red"}), ("POST", "/items", {"text": "red"}), ("DELETE", "/items/photos/0.png", None),
    ):  # fmt: skip
        answer = client.request(method, address, json=body, headers=headers)
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


@pytest.mark.parametrize("token", ["short", "with a space in it", "", "naïve-token"])
def test_tokens_that_are_none(token):
    with pytest.raises(ValueError, match="token_urlsafe"):
        Settings(token=token)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.0.7", "::", "example.org"])
def test_other_machines_need_a_token(host):
    with pytest.raises(ValueError, match="MODALHASH_TOKEN"):
        check_reach(Settings(host=host), without_token=False)
    check_reach(Settings(host=host), without_token=True)
    check_reach(Settings(host=host, token=TOKEN), without_token=False)
    for own in ("127.0.0.1", "localhost", "::1", "127.1.2.3"):
        check_reach(Settings(host=own), without_token=False)


@pytest.mark.parametrize(
    "name", ["..%2fapp.py", "%2e%2e%2fapp.py", "..%5capp.py", "nosuch.js", "page.js%00", "../app.py", "__init__.py"]
)
def test_only_files_of_the_page(client, name):
    for folder in ("static", "docs"):
        answer = client.get(f"/{folder}/{name}")
        assert answer.status_code == 404
        assert "import" not in answer.text
