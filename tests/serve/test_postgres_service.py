"""The service on a database: what is posted to one is found through another, and a server that is away is a 503.

Short versions of ``benchmarks/robustness/postgres_faults.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from serve_tools import picture

from little_world import make_world
from modalhash import Engine
from modalhash.serve import Settings, make_app
from modalhash.store import PostgresStore, StoreUncertainError
from postgres_server import postgres, server_or_skip  # noqa: F401

pytestmark = pytest.mark.slow

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
    assert "save it where all of them can" in answer.json()["error"]


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


def test_an_unknown_end_is_said(clients, monkeypatch):
    one, _ = clients

    def lost(*_, **__):
        raise StoreUncertainError("whether the change happened is unknown")

    monkeypatch.setattr(PostgresStore, "add", lost)
    answer = one.post("/items", json={"id": "unknown", "text": "a red ball"})
    assert [answer.status_code, answer.headers["retry-after"]] == [503, "1"]
    assert "check whether the change was made" in answer.json()["error"]


def test_connections_cut_at_random(monkeypatch, postgres):  # noqa: F811
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "robustness"))
    from postgres_faults import cut_connections

    told = cut_connections(postgres, seconds=1.5)
    assert told["cuts"] > 0
    assert told["acknowledged"] > 0
