"""Tokens with roles: who may do what, from a file that changes while the service runs; cookies; the audit log."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta

import pytest

from modalhash.serve import Settings, make_token, monitoring, read_tokens, rotate, write_tokens
from modalhash.serve.auth import CookieKeys, Cookies, Role, Tokens, parse_tokens

NOW = datetime.now(UTC)


@pytest.fixture
def held(tmp_path):
    """A token file with one token for each role, and the tokens by role."""
    made = {role: make_token(f"{role}-er", role) for role in ("read", "write", "admin")}
    write_tokens(tmp_path / "tokens.txt", [token for _, token in made.values()])
    return tmp_path / "tokens.txt", {role: secret for role, (secret, _) in made.items()}


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def test_roles_and_what_they_may_do(make_client, held):
    path, secrets = held
    client = make_client(writable=True, token_file=path)
    allowed = {
        role: [
            client.request(method, url, json=body, headers=bearer(token)).status_code < 300
            for method, url, body in (
                ("GET", "/engine", None),
                ("POST", "/search", {"text": "red"}),
                ("GET", "/metrics", None),
                ("POST", "/items", {"text": f"a red ball by {role}", "id": role}),
                ("DELETE", f"/items/{role}", None),
                ("GET", "/audit", None),
            )
        ]
        for role, token in secrets.items()
    }
    assert allowed == {
        "read": [True, True, True, False, False, False],
        "write": [True, True, True, True, True, False],
        "admin": [True, True, True, True, True, True],
    }
    refused = client.post("/items", json={"text": "x"}, headers=bearer(secrets["read"]))
    assert refused.status_code == 403
    assert refused.json()["error"] == "the token of 'read-er' has the role 'read'; this needs 'write'"
    writable = {
        role: client.get("/engine", headers=bearer(token)).json()["writable"] for role, token in secrets.items()
    }
    assert writable == {"read": False, "write": True, "admin": True}


def test_the_one_token_may_do_everything_and_nobody_nothing_of_an_admin(make_client):
    assert make_client(token="correct-horse").get("/audit", headers=bearer("correct-horse")).status_code == 200
    answer = make_client().get("/audit")
    assert (answer.status_code, "--tokens" in answer.json()["error"]) == (403, True)


def test_changes_are_noted_with_who_made_them(make_client, held, engine):
    path, secrets = held
    client = make_client(writable=True, token_file=path)
    write, admin = bearer(secrets["write"]), bearer(secrets["admin"])
    client.post("/items", json={"text": "a red ball", "id": "new"}, headers=write)
    client.post("/items", json={"text": "a red ball", "id": "new"}, headers=write)
    client.delete("/items/new", headers=admin)
    client.delete("/items/new", headers=admin)
    client.post("/items", json={"text": "x"}, headers=bearer(secrets["read"]))
    lines = client.get("/audit", headers=admin).json()["lines"]
    assert [(line["what"], line["state"], line["who"]) for line in lines] == [
        ("add", "begun", "write-er"), ("add", "done", "write-er"),
        ("add", "begun", "write-er"), ("add", "failed", "write-er"),
        ("remove", "begun", "admin-er"), ("remove", "done", "admin-er"),
        ("remove", "begun", "admin-er"), ("remove", "failed", "admin-er"),
    ]  # fmt: skip
    assert lines[0]["ids"] == ["new"]
    assert {line["address"] for line in lines} == {"testclient"}
    assert len(client.get("/audit?limit=3", headers=admin).json()["lines"]) == 3
    assert (engine.path.parent / "engine.audit.jsonl").exists()


def test_a_change_that_cannot_be_noted_is_not_made(make_client, engine, monkeypatch):
    client = make_client(writable=True)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("modalhash.engine.storage.audit.os.fsync", full)
    assert client.post("/items", json={"text": "a red ball"}).status_code == 507
    assert client.delete("/items/photos/0.png").status_code == 507
    assert len(engine) == 120


def test_a_writable_service_needs_a_log_that_can_be_written(make_client, engine):
    engine.path.with_name("engine.audit.jsonl").mkdir()
    with pytest.raises(OSError, match="audit"):
        make_client(writable=True)
    assert make_client().get("/engine").status_code == 200


# -- the file


def test_tokens_are_rotated_without_a_restart(make_client, held):
    path, secrets = held
    client = make_client(token_file=path)
    old = secrets["write"]
    assert client.get("/engine", headers=bearer(old)).status_code == 200
    fresh, tokens = rotate(read_tokens(path), "write-er", overlap_days=1)
    write_tokens(path, tokens)
    assert [client.get("/engine", headers=bearer(one)).status_code for one in (old, fresh)] == [200, 200], (
        "both, for a day"
    )
    newest, tokens = rotate(read_tokens(path), "write-er", overlap_days=0)
    write_tokens(path, tokens)
    statuses = [client.get("/engine", headers=bearer(one)).status_code for one in (old, fresh, newest)]
    assert statuses == [401, 401, 200]
    assert {token.role for token in read_tokens(path) if token.name == "write-er"} == {Role.write}
    path.unlink()
    assert client.get("/engine", headers=bearer(newest)).status_code == 401, "without the file no token is valid"
    write_tokens(path, tokens)
    assert client.get("/engine", headers=bearer(newest)).status_code == 200


def test_the_file_holds_no_token_and_its_digests_let_nobody_in(make_client, held):
    path, secrets = held
    text = path.read_text()
    assert not any(secret in text for secret in secrets.values())
    client = make_client(token_file=path)
    for token in read_tokens(path):
        for guess in (token.digest, token.digest.removeprefix("sha256:")):
            assert client.get("/engine", headers=bearer(guess)).status_code == 401
            assert client.get("/engine", headers={"Cookie": f"modalhash=9999999999.{guess}"}).status_code == 401


def test_a_token_ends(tmp_path):
    secret, token = make_token("alice", "read", days=1)
    assert token.is_valid(NOW + timedelta(hours=23))
    assert not token.is_valid(NOW + timedelta(hours=25))
    ended = f"{token.name} read {token.digest} {(NOW - timedelta(seconds=1)).isoformat()}\n"
    (tmp_path / "tokens.txt").write_text(ended)
    assert Tokens(None, tmp_path / "tokens.txt").find(secret) is None


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("alice", "1 words"),
        ("alice read", "2 words"),
        ("alice boss sha256:" + "0" * 64, "unknown role 'boss'"),
        ("alice read correct-horse", "expected sha256:"),
        ("alice read sha256:" + "0" * 63, "expected sha256:"),
        ("al/ice read sha256:" + "0" * 64, "invalid name 'al/ice'"),
        ("alice read sha256:" + "0" * 64 + " tomorrow", "tomorrow"),
    ],
)
def test_lines_that_are_no_tokens(tmp_path, monkeypatch, line, problem):
    path = tmp_path / "tokens.txt"
    secret, token = make_token("bob", "read")
    path.write_text(f"# a comment\n\n{token.line()}")
    tokens = Tokens(None, path)
    events = []
    monkeypatch.setattr("modalhash.serve.auth.log_event", events.append)
    path.write_text(f"{token.line()}{line}\n")
    os.utime(path, ns=(1, 1))
    assert tokens.find(secret).name == "bob", "the others hold"
    assert len(events) == 1
    assert "line 2" in events[0]
    assert problem in events[0]
    with pytest.raises(ValueError, match="line 2"):
        Tokens(None, path)


def test_a_time_without_a_zone_is_utc():
    (token,), _ = parse_tokens("alice read sha256:" + "0" * 64 + " 2030-01-31")
    assert token.until == datetime(2030, 1, 31, tzinfo=UTC)


def test_a_name_or_role_that_is_none():
    for name, role, message in (
        ("a b", "read", "invalid token name"),
        ("", "read", "invalid token name"),
        ("alice", "boss", "unknown role"),
    ):
        with pytest.raises(ValueError, match=message):
            make_token(name, role)
    with pytest.raises(ValueError, match="no valid token of 'x'"):
        rotate([], "x", overlap_days=0)
    assert Settings(token_file="tokens.txt").needs_token


# -- cookies


def test_a_cookie_expires_and_ends_with_its_token(make_client, held, monkeypatch):
    path, secrets = held
    client = make_client(token_file=path, cookie_seconds=100)
    assert client.get(f"/?token={secrets['read']}").status_code == 303
    # sent by hand: a client that looks at the clock itself would forget the cookie while the clock is ahead
    kept = {"cookie": "; ".join(f"{name}={value}" for name, value in client.cookies.items())}
    client.cookies.clear()
    assert client.get("/engine").status_code == 401
    assert client.get("/engine", headers=kept).status_code == 200
    assert client.get("/audit", headers=kept).status_code == 403, "with the role of its token"
    with monkeypatch.context() as patch:
        later = time.time() + 200
        patch.setattr("modalhash.serve.auth.time.time", lambda: later)
        assert client.get("/engine", headers=kept).status_code == 401, "also if the browser ignores Max-Age"
    assert client.get("/engine", headers=kept).status_code == 200
    write_tokens(path, [token for token in read_tokens(path) if token.name != "read-er"])
    assert client.get("/engine", headers=kept).status_code == 401


@pytest.mark.parametrize("value", [b"", b".", b"x.y", b"9999999999.", b"\xff.\xff", b"1" * 5000])
def test_cookies_that_are_none(value):
    cookies = Cookies(60, CookieKeys(os.urandom(32), None))
    _, token = make_token("alice", "read")
    assert cookies.find(value, [token]) is None
    good = cookies.make(token).encode()
    assert cookies.find(good, [token]) == token
    assert cookies.find(b"9" + good, [token]) is None, "it cannot be prolonged"
    assert Cookies(60, CookieKeys(os.urandom(32), None)).find(good, [token]) is None


def test_the_access_log_names_the_token(make_client, held, capsys):
    import json

    path, secrets = held
    make_client(token_file=path, quiet=False).get("/engine", headers=bearer(secrets["read"]))
    monitoring.flush_logs()
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (line["who"], line["address"]) == ("read-er", "testclient")


def test_cookies_are_valid_on_every_machine_with_the_secrets(tmp_path, make_client):
    path = tmp_path / "secrets"
    path.write_text("# of all machines\n" + "a" * 32 + "\n")
    one, two = (make_client(token="a-long-token", cookie_secret_file=path) for _ in range(2))
    other = make_client(token="a-long-token")

    def sent(client, cookie):
        client.cookies.clear()
        return client.get("/engine", headers={"Cookie": f"modalhash={cookie}"}).status_code

    def cookie_of(client):
        return client.get("/?token=a-long-token").cookies["modalhash"]

    old = cookie_of(one)
    assert [sent(two, old), sent(other, old), sent(two, old[:-1])] == [200, 401, 401]
    path.write_text("b" * 40 + "\n" + "a" * 32 + "\n")
    new = cookie_of(two)
    assert [sent(one, old), sent(one, new)] == [200, 200], "while both secrets are there"
    path.write_text("b" * 40)
    assert [sent(one, old), sent(one, new)] == [401, 200]
    path.unlink()
    assert sent(one, new) == 200, "the last secrets remain"


@pytest.mark.parametrize("text", ["", "# nothing\n", "too short\n" + "a" * 32])
def test_secrets_that_are_none(tmp_path, make_client, text):
    (tmp_path / "secrets").write_text(text)
    with pytest.raises(ValueError, match="expected secrets of at least 32 characters, one per line"):
        make_client(token="a-long-token", cookie_secret_file=tmp_path / "secrets")
