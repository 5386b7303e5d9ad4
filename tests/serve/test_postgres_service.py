"""The service on a database: what is posted to one is found through another, and a server that is away is a 503.

Short versions of ``benchmarks/robustness/postgres_faults.py`` and ``three_services.py``.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from serve_tools import picture

from little_world import make_world
from modalhash import Engine
from modalhash.engine import AuditLog, backup_engine, clone_engine, restore_engine
from modalhash.serve import Limits, Settings, make_app
from modalhash.store import PostgresStore, StoreUnavailableError, StoreUncertainError
from postgres_server import postgres, server_or_skip  # noqa: F401

pytestmark = pytest.mark.slow

SLOW = "pg_sleep(50) IS NULL"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    server, folder = server_or_skip(), tmp_path_factory.mktemp("world")
    make_world(folder)
    Engine.train(folder / "items.csv", folder / "engine", n_bits=16, store=server.url).close()
    return folder


@pytest.fixture
def clients(folder, postgres):  # noqa: F811
    """Two services on one database, and a server of the database that may be stopped."""
    from starlette.testclient import TestClient

    settings = Settings(writable=True, quiet=True)
    with (
        Engine.open(folder / "engine", database=postgres.url) as one,
        Engine.open(folder / "engine", database=postgres.url) as two,
        TestClient(make_app(one, settings), base_url="http://127.0.0.1", raise_server_exceptions=False) as first,
        TestClient(make_app(two, settings), base_url="http://127.0.0.1", raise_server_exceptions=False) as second,
    ):
        yield first, second


def found(client, text):
    return [hit["id"] for hit in client.post("/search", json={"text": text, "want": "text"}).json()["hits"]]


def test_two_services_on_one_database(clients):
    one, two = clients
    assert one.post("/items", json={"id": "new", "text": "a green zebra"}).status_code == 201
    assert "new" in found(two, "zebra"), "at the next request"
    assert two.delete("/items/new").status_code == 200
    assert "new" not in found(one, "zebra")


def test_pictures_are_refused_with_the_reason(clients):
    answer = clients[0].post("/items", files={"image": ("a.png", picture())})
    assert answer.status_code == 422
    assert "set MODALHASH_MEDIA_URL" in answer.json()["error"]


@pytest.mark.parametrize("where", ["file", "memory"])
def test_pictures_at_a_url_are_those_of_all_machines(folder, postgres, tmp_path, monkeypatch, where):  # noqa: F811
    from starlette.testclient import TestClient

    saved = picture()
    monkeypatch.setenv("MODALHASH_MEDIA_URL", f"file://{tmp_path}/media" if where == "file" else "memory://media")
    monkeypatch.setenv("MODALHASH_DATABASE_URL", postgres.url)
    machines = [tmp_path / "one", tmp_path / "two"]
    with ExitStack() as opened:
        clients = []
        for machine in machines:
            clone_engine("postgresql", machine, schema=schema_of(folder / "engine"))
            app = make_app(opened.enter_context(Engine.open(machine)), Settings(writable=True, quiet=True))
            clients.append(opened.enter_context(TestClient(app, base_url="http://127.0.0.1")))
        one, two = clients
        assert one.post("/items", files={"image": ("a.png", saved)}, data={"id": "saved"}).status_code == 201
        assert two.get("/media/saved").content == saved
        assert two.get("/media/saved?size=32").headers["content-type"] == "image/webp"
        assert one.get("/media/saved").content == saved
        backup_engine(machines[1], tmp_path / "b.tar")
        restore_engine(tmp_path / "b.tar", tmp_path / "file", store="sqlite")
        assert [path.read_bytes() for path in (tmp_path / "file" / "media").iterdir()] == [saved]
        assert two.delete("/items/saved").status_code == 200
        assert one.get("/media/saved").status_code == 404
        monkeypatch.setattr(
            "modalhash.engine.items.urls.write_whole", lambda *_: (_ for _ in ()).throw(OSError("gone"))
        )
        answer = one.post("/items", files={"image": ("a.png", saved)}, data={"id": "lost"})
        assert [answer.status_code, two.get("/items/lost").status_code] == [503, 404]
    if where == "file":
        assert list((tmp_path / "media").iterdir()) == []


def test_a_server_that_is_away(clients, postgres):  # noqa: F811
    one, two = clients
    assert one.post("/items", json={"id": "before", "text": "a yellow zebra"}).status_code == 201
    postgres.stop("immediate")
    try:
        requests = [
            lambda: one.post("/search", json={"text": "a red ball"}),
            lambda: one.post("/items", json={"id": "during", "text": "a red ball"}),
            lambda: two.get("/items/before"),
            lambda: two.delete("/items/before"),
            lambda: two.get("/engine"),
        ]
        for request in requests:
            answer = request()
            assert [answer.status_code, answer.headers["retry-after"]] == [503, "1"], answer.text
            assert "nothing was changed" in answer.json()["error"]
        assert one.get("/livez").status_code == 200
        for route in ("/readyz", "/healthz"):
            answer = one.get(route)
            assert [answer.status_code, answer.headers["retry-after"]] == [503, "1"]
            assert "not ready" in answer.json()["error"]
    finally:
        postgres.start()
    assert one.get("/readyz").status_code == 200
    assert "before" in found(two, "zebra")
    assert two.get("/items/during").status_code == 404
    assert one.post("/items", json={"id": "after", "text": "a yellow zebra"}).status_code == 201
    assert set(found(two, "yellow zebra")) >= {"before", "after"}


def test_a_statement_whose_request_is_over_is_cancelled(folder, postgres, monkeypatch, until):  # noqa: F811
    from starlette.testclient import TestClient

    monkeypatch.setattr("modalhash.store.conditions.PostgresDialect.condition", lambda *_: (SLOW, []))
    settings = Settings(quiet=True, limits=Limits(request_seconds=0.3))
    running = f"SELECT pid FROM pg_stat_activity WHERE state = 'active' AND strpos(query, '{SLOW}') > 0 AND pid <> %s"
    with (
        Engine.open(folder / "engine", database=postgres.url) as engine,
        TestClient(make_app(engine, settings), base_url="http://127.0.0.1") as client,
    ):
        answer = client.get("/items", params={"where": "year = 2005"})
        assert [answer.status_code, answer.headers["retry-after"]] == [503, "1"]
        with psycopg.connect(postgres.url, autocommit=True) as other:
            own = [other.info.backend_pid]
            until(lambda: not other.execute(running, own).fetchall())
        assert engine.store._rows("SHOW statement_timeout") == [("15300ms",)]


def schema_of(folder):
    return json.loads((folder / "config.json").read_text())["store"]["schema"]


@pytest.fixture
def machine(folder, postgres, tmp_path, monkeypatch):  # noqa: F811
    """A service on another machine, and what it is asked to wait for before it fetches a new engine."""
    from starlette.testclient import TestClient

    monkeypatch.setattr("modalhash.serve.service.POLL_SECONDS", 0.01)
    monkeypatch.setenv("MODALHASH_DATABASE_URL", postgres.url)
    clone_engine("postgresql", tmp_path / "engine", schema=schema_of(folder / "engine"))
    go, fetch = threading.Event(), Engine.fetch_replacement
    monkeypatch.setattr(Engine, "fetch_replacement", lambda engine: go.is_set() and fetch(engine))
    with (
        Engine.open(tmp_path / "engine") as engine,
        TestClient(
            make_app(engine, Settings(writable=True, quiet=True)),
            base_url="http://127.0.0.1",
            raise_server_exceptions=False,
        ) as client,
    ):
        yield client, go


def test_a_retraining_on_another_machine_is_followed(folder, postgres, machine, until):  # noqa: F811
    client, go = machine
    assert client.post("/items", json={"id": "earlier", "text": "a purple zebra"}).status_code == 201
    before = client.get("/engine").json()["model"]
    with Engine.open(folder / "engine", database=postgres.url) as engine:
        engine.retrain(n_bits=24).close()
    for answer in (
        client.post("/items", json={"id": "late", "text": "a purple zebra"}),
        client.patch("/items/earlier", json={"labels": ["red"]}),
        client.delete("/items/earlier"),
    ):
        assert [answer.status_code, answer.headers["retry-after"]] == [503, "1"], answer.text
        assert "another machine has retrained the engine" in answer.json()["error"]
    assert "earlier" in found(client, "zebra"), "searches go on with the old one"
    assert client.get("/engine").json()["model"] == before
    assert client.get("/readyz").status_code == 200
    go.set()
    until(lambda: client.app.state.service.engine.n_bits == 24, seconds=120)
    assert client.get("/engine").json()["n_bits"] == 24
    assert client.post("/items", json={"id": "late", "text": "a purple zebra"}).status_code == 201
    lines = AuditLog.of_engine(client.app.state.service.engine.path).tail(2)
    assert [[line["change"], line["state"]] for line in lines] == [
        [line["change"], line["state"]] for line in client.app.state.service.audit.tail(2)
    ]
    assert set(found(client, "zebra")) >= {"earlier", "late"}


def test_a_schema_that_is_gone_and_a_lock(folder, postgres, machine):  # noqa: F811
    client, _ = machine
    schema = schema_of(folder / "engine")
    requests = [
        lambda: client.post("/search", json={"text": "a red ball"}),
        lambda: client.post("/items", json={"id": "during", "text": "a red ball"}),
        lambda: client.get("/readyz"),
    ]

    def check(reason):
        for request in requests:
            begin = time.monotonic()
            answer = request()
            assert [answer.status_code, answer.headers["retry-after"]] == [503, "1"], answer.text
            assert reason in answer.json()["error"] or "not ready" in answer.json()["error"]
            assert time.monotonic() - begin < 5

    with psycopg.connect(postgres.url) as other:
        other.execute(f"LOCK TABLE {schema}.counter IN ACCESS EXCLUSIVE MODE")
        check("another process is writing")
    assert [request().status_code for request in requests] == [200, 201, 200]
    postgres.execute(f"ALTER SCHEMA {schema} RENAME TO moved")
    check("they were dropped, or it is another database")
    postgres.execute(f"ALTER SCHEMA moved RENAME TO {schema}")
    assert client.post("/search", json={"text": "a red ball"}).status_code == 200


def test_an_unknown_end_is_said(clients, monkeypatch):
    one, _ = clients

    def lost(*_, **__):
        raise StoreUncertainError("whether the change happened is unknown")

    monkeypatch.setattr(PostgresStore, "add", lost)
    answer = one.post("/items", json={"id": "unknown", "text": "a red ball"})
    assert [answer.status_code, answer.headers["retry-after"]] == [503, "1"]
    assert "check whether the change was made" in answer.json()["error"]


@pytest.mark.parametrize(
    ("change", "request_of", "answered"),
    [
        ("add", lambda client: client.post("/items", json={"id": "made", "text": "a pink zebra"}), 503),
        ("update", lambda client: client.patch("/items/made", json={"labels": ["red"]}), 503),
        ("remove", lambda client: client.delete("/items/made"), 200),
    ],
)
def test_a_change_that_cannot_be_read_back_is_not_said_to_have_failed(
    clients, monkeypatch, change, request_of, answered
):
    one, two = clients
    if change != "add" and two.get("/items/made").status_code == 404:
        assert two.post("/items", json={"id": "made", "text": "a pink zebra"}).status_code == 201
    make = getattr(PostgresStore, change)

    def lost(*_, **__):
        raise StoreUnavailableError("the server is away")

    def changed(*arguments, **options):
        done = make(*arguments, **options)
        for read in ("revision", "records", "row_ids"):
            monkeypatch.setattr(PostgresStore, read, lost)
        return done

    with monkeypatch.context() as only_here:
        only_here.setattr(PostgresStore, change, changed)
        answer = request_of(one)
    monkeypatch.undo()
    assert answer.status_code == answered, answer.text
    if answered == 503:
        assert "check whether the change was made" in answer.json()["error"]
    found_now = two.get("/items/made")
    assert [found_now.status_code, found_now.json().get("labels")] == {
        "add": [200, []],
        "update": [200, ["red"]],
        "remove": [404, None],
    }[change]


def test_an_item_that_is_removed_at_once(clients, monkeypatch):
    one, two = clients
    add = PostgresStore.add

    def added(store, *arguments, **options):
        numbers = add(store, *arguments, **options)
        monkeypatch.undo()
        assert two.delete("/items/brief").status_code == 200
        return numbers

    monkeypatch.setattr(PostgresStore, "add", added)
    answer = one.post("/items", json={"id": "brief", "text": "a pink zebra"})
    assert [answer.status_code, answer.json()["error"]] == [409, "'brief' was added, and removed by another client"]


def test_connections_cut_at_random(monkeypatch, postgres):  # noqa: F811
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "robustness"))
    from postgres_faults import cut_connections

    told = cut_connections(postgres, seconds=1.5)
    assert told["cuts"] > 0
    assert told["acknowledged"] > 0


@pytest.mark.campaign
def test_three_services(monkeypatch, postgres, tmp_path):  # noqa: F811
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "robustness"))
    from three_services import measure

    row = measure(postgres, tmp_path, rounds=1, seconds=1.0)
    assert [row[name] for name in ("lost", "returned", "status_500", "failures")] == [0, 0, 0, []]
    assert min(row["added"], row["removed"]) > 20
