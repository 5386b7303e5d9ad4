"""An engine on Milvus answers as one in memory does, also while Milvus is behind, away, empty or wrong."""

from __future__ import annotations

import time

import numpy as np
import pytest

from little_world import make_world
from milvus_server import milvus  # noqa: F401  (a fixture)
from modalhash import Engine
from modalhash.engine import EngineError
from modalhash.engine.storage import milvus_follower as module
from modalhash.index import IndexUnavailableError, Milvus, MilvusCollection
from modalhash.serve import Settings, make_app
from postgres_server import postgres  # noqa: F401

pytestmark = pytest.mark.slow
SEARCHES = (
    {"text": "a red ball", "k": 30},
    {"text": "a red ball", "k": 30, "refine": False},
    {"text": "a blue box", "want": "image", "k": 5},
    {"text": "a ball", "where": "label = red and not label = circle", "k": 7},
    {"text": "a green box", "radius": 4, "refine": False},
)


@pytest.fixture
def folder(tmp_path, postgres, milvus, monkeypatch):  # noqa: F811
    monkeypatch.setenv("MODALHASH_MILVUS_URI", milvus.uri)
    monkeypatch.setattr(module, "POLL_SECONDS", 0.05)
    make_world(tmp_path, n=40)
    Engine.train(tmp_path / "items.csv", tmp_path / "engine", n_bits=16, store=postgres.url).close()
    yield tmp_path / "engine"
    server = Milvus(milvus.uri)
    for name in server.call("list_collections"):
        server.call("drop_collection", name)


@pytest.fixture
def engines(folder, postgres):  # noqa: F811
    """The same engine in memory and on Milvus, which has all items."""
    with (
        Engine.open(folder, database=postgres.url) as plain,
        Engine.open(folder, backend="milvus", database=postgres.url) as engine,
    ):
        caught_up(engine)
        yield plain, engine


def caught_up(engine, seconds=60):
    """Wait until Milvus has everything that the store has."""
    follower, end = engine._follower, time.monotonic() + seconds
    while not all(part.state and part.state[1:3] == tuple(engine.store.revision()) for part in follower.parts):
        assert time.monotonic() < end, follower.problem or [part.state for part in follower.parts]
        time.sleep(0.05)


def same(plain, engine):
    for search in SEARCHES:
        hits, expected = engine.search(**search), plain.search(**search)
        assert hits == expected, search
    assert engine.sizes() == plain.sizes()


def in_memory(engine):
    return len(engine.index._recent)


def test_an_engine_on_milvus_answers_as_one_in_memory(engines):
    plain, engine = engines
    same(plain, engine)
    assert in_memory(engine) == 0
    engine._follower.close()  # so that changes stay in memory
    assert engine.add([{"text": "a lonely ball", "labels": ["lonely"], "id": "last"}]).added == 1
    same(plain, engine)
    assert in_memory(engine) == 1
    plain.remove([plain.search(text="a red ball", want="text", k=1)[0].id])
    same(plain, engine)
    first = plain.search(text="a blue box", want="image", k=1)[0].id
    plain.relabel([{"id": first, "modality": "image", "labels": ["red"]}])
    same(plain, engine)


def test_of_items_equally_near_in_meaning_those_added_first_are_found(milvus, rng):  # noqa: F811
    """Vectors in Milvus, of which some were removed, and in memory are found as all of them in memory."""
    collection, plain = MilvusCollection(Milvus(milvus.uri), "meanings", 4, {}, "IP"), module.VectorTable(8)
    vectors, groups, ids = rng.integers(-1, 2, (900, 8), np.int8), rng.integers(0, 3, 900), np.arange(1, 901)
    state = collection.create()
    collection.write(state.name, ids[:700], vectors[:700, 2:6], groups[:700])
    state = collection.record(state._replace(items=600))  # the others are just being written
    stored = module.StoredVectors(None, 8, collection, state, compiled=True)
    plain.add(ids, vectors, group=groups)
    stored.add(ids[600:], vectors[600:], group=groups[600:])
    for table in (plain, stored):
        table.remove(ids[3:800:7])
    for k in (1, 10, 100, 500):
        for wanted in (None, [0, 2]):
            found, expected = (table.nearest(vectors[0], 2, 6, wanted, k) for table in (stored, plain))
            np.testing.assert_array_equal(found[0], expected[0])
            np.testing.assert_array_equal(found[1], expected[1])
    collection.drop(state.name)


def test_milvus_follows_all_changes(engines):
    plain, engine = engines
    for step in range(3):
        plain.add([{"text": f"a red ball {n}", "labels": ["red"], "id": f"{step}-{n}"} for n in range(20)])
        plain.remove([f"{step}-{n}" for n in range(0, 20, 2)])
        same(plain, engine)
        caught_up(engine)
        same(plain, engine)
        assert in_memory(engine) == 0
    (codes, *_) = engine._follower.parts
    assert codes.collection.count(codes.state.name) == len(plain)


def test_a_collection_that_is_dropped_is_filled_again(engines):
    plain, engine = engines
    for part in engine._follower.parts:
        part.collection.drop(part.state.name)
    same(plain, engine)
    caught_up(engine)
    same(plain, engine)
    assert in_memory(engine) == 0


def test_half_a_batch_and_lost_items_are_mended_by_the_next_leader(engines, folder, postgres):  # noqa: F811
    plain, engine = engines
    engine.close()
    (codes, *_) = engine._follower.parts
    collection, state = codes.collection, codes.state
    collection.write(state.name, np.array([81]), np.zeros((1, 2), np.uint8), np.array([1]))  # was not recorded
    plain.add([{"text": "a red ball in the rain", "labels": ["red"], "id": "rain"}])
    with Engine.open(folder, backend="milvus", database=postgres.url) as again:
        caught_up(again)
        same(plain, again)
        assert again._follower.parts[0].state.name == state.name
    collection.delete(state.name, np.array([3]))
    with Engine.open(folder, backend="milvus", database=postgres.url) as again:
        end = time.monotonic() + 60
        while not (now := again._follower.parts[0].state) or now.name == state.name:
            assert time.monotonic() < end
            time.sleep(0.05)
        caught_up(again)
        same(plain, again)


def test_one_process_leads_and_the_next_takes_over(engines, folder, postgres, monkeypatch):  # noqa: F811
    monkeypatch.setattr(module, "LOCK_SECONDS", 0.1)
    plain, engine = engines
    with Engine.open(folder, backend="milvus", database=postgres.url) as other:
        with engine.store.follower_lock() as check:
            assert check is None, "one of them has the lock"
        engine.close()
        plain.add([{"text": "a red ball in the rain", "labels": ["red"], "id": "rain"}])
        same(plain, other)
        caught_up(other)
        same(plain, other)


def test_a_reader_waits_for_others(folder, postgres):  # noqa: F811
    with (
        Engine.open(folder, database=postgres.url) as plain,
        Engine.open(folder, backend="milvus", database=postgres.url, read_only=True) as reader,
    ):
        same(plain, reader)
        assert reader._follower.parts[0].state is None
        with Engine.open(folder, backend="milvus", database=postgres.url) as engine:
            caught_up(engine)
            caught_up(reader)
        same(plain, reader)
        assert in_memory(reader) == 0


def test_too_much_to_hold_in_memory_is_an_error(folder, postgres, monkeypatch):  # noqa: F811
    monkeypatch.setattr(module, "MAX_RECENT", 50)
    with Engine.open(folder, backend="milvus", database=postgres.url, read_only=True) as reader:
        with pytest.raises(IndexUnavailableError, match="lacks 80 of 80 items"):
            reader.search(text="a red ball")
        with Engine.open(folder, backend="milvus", database=postgres.url) as engine:
            caught_up(engine)
            caught_up(reader)
        assert reader.search(text="a red ball")


def test_a_retrained_engine_has_collections_of_its_own(engines, folder, postgres):  # noqa: F811
    _, engine = engines
    old = {part.state.name for part in engine._follower.parts}
    with engine.retrain(n_bits=32) as again, Engine.open(folder, database=postgres.url) as new:
        caught_up(again)
        same(new, again)
        assert not old & {part.state.name for part in again._follower.parts}


def test_items_in_sqlite_cannot_be_followed(tmp_path, milvus, monkeypatch):  # noqa: F811
    monkeypatch.setenv("MODALHASH_MILVUS_URI", milvus.uri)
    make_world(tmp_path, n=40)
    Engine.train(tmp_path / "items.csv", tmp_path / "engine", n_bits=16).close()
    with pytest.raises(EngineError, match="needs an engine whose items are in PostgreSQL"):
        Engine.open(tmp_path / "engine", backend="milvus")


def test_the_service_says_that_milvus_is_away_and_recovers(engines, milvus):  # noqa: F811
    from starlette.testclient import TestClient

    plain, engine = engines
    settings = Settings(writable=True, quiet=True)
    with TestClient(make_app(engine, settings), base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        body = {"text": "a red ball", "k": 5}
        assert client.post("/search", json=body).status_code == 200
        milvus.kill()
        answer = client.post("/search", json=body)
        assert answer.status_code == 503
        assert "Milvus at http://127.0.0.1" in answer.json()["error"]
        assert answer.headers["retry-after"]
        stored = plain.search(text="a red ball", want="text", k=1)[0].id
        assert client.delete(f"/items/{stored}").status_code == 200, "changes need PostgreSQL only"
        assert client.post("/items", json={"id": "new", "text": "a green zebra"}).status_code == 201
        milvus.start()
        caught_up(engine)
        answer = client.post("/search", json={"text": "zebra", "want": "text"})
        assert "new" in [hit["id"] for hit in answer.json()["hits"]]
        same(plain, engine)
