"""Addresses that limits count by, and addresses that guess tokens."""

from __future__ import annotations

import pytest
from serve_tools import ask
from starlette.testclient import TestClient

from modalhash.serve import http
from modalhash.serve.auth import Client, TrustedProxies, WrongTokens, client_key

TOKEN = "correct-horse"


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::1"),
        ("testclient", "testclient"),
    ],
)
def test_what_limits_count_by(address, key):
    assert client_key(address) == key


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("192.0.2.1", ["203.0.113.9"], "192.0.2.1"),  # no proxy of ours: its word is not believed
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", ["1.2.3.4, 203.0.113.9"], "203.0.113.9"),  # what the client claims stands on the left
        ("10.0.0.1", ["1.2.3.4", "203.0.113.9, 10.0.0.2"], "203.0.113.9"),  # two proxies, two headers
        ("10.0.0.1", ["203.0.113.9, unknown"], "unknown"),
        ("10.0.0.1", ["203.0.113.9:4711"], "203.0.113.9"),
        ("10.0.0.1", ["2001:db8::5"], "2001:db8::/64"),
        ("10.0.0.1", ["10.0.0.2, 10.0.0.3"], "10.0.0.2"),
        ("10.0.0.1", ["\xff,,"], "10.0.0.1"),
    ],
)
def test_addresses_behind_a_proxy(make_client, monkeypatch, peer, forwarded, address):
    client = make_client(trusted_proxies=("10.0.0.7/8",))
    seen = []
    monkeypatch.setattr(http.AccessControl, "check", lambda self, scope, address: seen.append(address) or Client(""))
    proxied = TestClient(client.app, base_url=str(client.base_url), client=(peer, 1))
    proxied.get("/healthz", headers=[("x-forwarded-for", text.encode("latin-1")) for text in forwarded])
    assert seen == [address]


def test_a_proxy_that_is_none():
    with pytest.raises(ValueError, match="expected an address"):
        TrustedProxies(["proxy.example"])
    assert "" not in TrustedProxies(["10.0.0.0/8"])


def test_wrong_tokens_are_counted_in_a_window():
    now = [100.0]
    wrong = WrongTokens(2, 60, clock=lambda: now[0])
    wrong.add("a")
    assert wrong.locked_seconds("a") == 0
    now[0] += 50
    wrong.add("a")
    assert wrong.locked_seconds("a") == 10
    assert wrong.locked_seconds("b") == 0
    now[0] += 10
    assert wrong.locked_seconds("a") == 0
    wrong.add("a")
    assert wrong.locked_seconds("a") == 0, "a new window"


@pytest.mark.slow
def test_an_address_that_guesses_is_not_listened_to(make_client):
    client = make_client(token=TOKEN, limits={"wrong_tokens": 3}, trusted_proxies=("127.0.0.1",))
    right, wrong = ({"Authorization": f"Bearer {token}"} for token in (TOKEN, "wrong"))
    assert [client.get("/engine", headers=wrong).status_code for _ in range(2)] == [401, 401]
    assert client.get("/?token=wrong").status_code == 401
    for answer in (client.get("/engine", headers=right), client.get(f"/?token={TOKEN}")):
        assert answer.status_code == 429
        assert 0 < int(answer.headers["retry-after"]) <= 60
        assert "wrong tokens" in answer.json()["error"]
    assert client.get("/healthz").status_code == 200


def test_behind_a_proxy_each_client_has_its_own_count(serve):
    with serve(token=TOKEN, limits={"wrong_tokens": 1}, trusted_proxies=("127.0.0.1",)) as server:

        def status(token, address):
            headers = {"Authorization": f"Bearer {token}", "X_Forwarded_For": address}
            return ask(server.port, {"text": "red"}, **headers)[0]

        assert status("wrong", "203.0.113.9") == 401
        assert status(TOKEN, "203.0.113.9") == 429
        assert status(TOKEN, "203.0.113.8") == 200
