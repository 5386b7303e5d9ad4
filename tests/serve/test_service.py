"""The served engine is replaced: the service switches to the new one without dropping requests."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from serve_tools import Held, ask

from little_world import make_world
from modalhash import Engine
from modalhash.core import files as _files
from modalhash.engine import EngineError
from modalhash.serve import Settings
from modalhash.serve.errors import HTTPError
from modalhash.serve.service import Service


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """An engine with other codes, to replace the served one."""
    folder = tmp_path_factory.mktemp("other")
    make_world(folder)
    Engine.train(folder / "items.csv", folder / "engine", n_bits=8).close()
    return folder / "engine"


def put(source, target):
    with _files.replace_folder(target, carry=("media",)) as fresh:
        shutil.copytree(source, fresh, dirs_exist_ok=True)


def wait_for(condition):
    """Ask until something is so; the threads of the service need a moment."""
    for _ in range(2000):
        if condition():
            return True
        threading.Event().wait(0.005)
    return False


@pytest.mark.slow
def test_searches_follow_to_the_new_engine(make_client, engine, other):
    client = make_client()
    assert client.post("/search", json={"text": "a red ball"}).json()["n_bits"] == 32
    put(other, engine.path)
    assert wait_for(lambda: client.get("/engine").json()["n_bits"] == 8)
    assert client.post("/search", json={"text": "a red ball"}).json()["n_bits"] == 8
    assert wait_for(lambda: engine.store._closed), "the old engine is closed after its last request"


def test_what_is_acknowledged_is_in_the_new_engine(make_client, engine, other):
    client = make_client(writable=True)
    assert client.post("/items", json={"id": "before", "text": "a red ball"}).status_code == 201
    put(other, engine.path)
    assert client.post("/items", json={"id": "after", "text": "a blue box"}).status_code == 201
    assert client.delete("/items/t1").status_code in (200, 404)
    with Engine.open(engine.path) as opened:
        assert [opened.n_bits, opened.get("after").text] == [8, "a blue box"]


def test_a_change_that_is_overtaken_is_made_in_the_new_engine(make_client, engine, other, monkeypatch):
    """The engine is replaced between the transaction and the answer."""
    client = make_client(writable=True)
    add, calls = type(engine.store).add, []

    def replaced(*args, **options):
        numbers = add(*args, **options)
        if not calls:
            calls.append(put(other, engine.path))
        return numbers

    monkeypatch.setattr(type(engine.store), "add", replaced)
    done = client.post("/items", json={"id": "new", "text": "a red ball"})
    assert done.status_code == 201
    with Engine.open(engine.path) as opened:
        assert [opened.n_bits, opened.get("new").text] == [8, "a red ball"]


def test_a_request_under_way_is_answered_by_the_engine_it_began_with(serve, engine, other):
    with serve() as server, ThreadPoolExecutor(1) as threads:
        held = Held(engine)
        slow = threads.submit(ask, server.port, {"text": "a red ball"})
        assert held.begun.wait(20)
        put(other, engine.path)
        assert wait_for(lambda: ask(server.port, method="GET", path="/engine")[2]["n_bits"] == 8)
        assert ask(server.port, {"text": "a red ball"})[2]["n_bits"] == 8
        held.go.set()
        status, _, answer = slow.result()
        assert [status, answer["n_bits"], len(answer["hits"]) > 0] == [200, 32, True]
        assert wait_for(lambda: engine.store._closed)


def test_an_engine_that_cannot_be_opened_leaves_the_old_one_answering(make_client, engine, other):
    client = make_client(writable=True)
    put(other, engine.path)
    (engine.path / "model" / "model.safetensors").write_bytes(b"damaged")
    for _ in range(3):
        assert client.post("/search", json={"text": "a red ball"}).json()["n_bits"] == 32
    refused = client.post("/items", json={"id": "new", "text": "a red ball"})
    assert refused.status_code == 503
    assert "the engine was replaced, and the new one cannot be opened" in refused.json()["error"]
    shutil.copy(other / "model" / "model.safetensors", engine.path / "model" / "model.safetensors")
    assert client.post("/items", json={"id": "new", "text": "a red ball"}).status_code == 201


def test_a_change_gives_up_after_some_replacements(engine, other):
    service = Service(engine, Settings())

    def overtaken():
        put(other, engine.path)
        service.engine.add([{"text": "a red ball"}])

    with pytest.raises(HTTPError, match="replaced repeatedly"):
        service._change(overtaken)
    service.close()


def test_a_service_closes_what_it_opened_and_leaves_the_callers_engine(engine, other):
    service = Service(engine, Settings())
    service.close()
    assert len(engine) == 120
    service = Service(engine, Settings())
    put(other, engine.path)
    service.open_replacement()
    opened = service.engine
    assert len(opened) == 120
    service.close()
    for closed in (opened, engine):
        assert wait_for(lambda closed=closed: closed.store._closed)


@pytest.mark.slow
def test_while_an_engine_is_replaced_nothing_that_was_acknowledged_is_lost(serve, engine, little_engine, other):
    """Writers and readers continue while the engine is replaced; what was acknowledged last is in the last engine."""
    stop, failures, acknowledged = threading.Event(), [], []

    def write(writer):
        number = 0
        while not stop.is_set():
            number += 1
            status, _, _ = ask(server.port, {"id": f"{writer}-{number}", "text": "a red ball"}, path="/items")
            (acknowledged if status == 201 else failures).append((f"{writer}-{number}", status))

    def read():
        while not stop.is_set():
            status, _, answer = ask(server.port, {"text": "a red ball", "k": 3})
            if status != 200 or len(answer["hits"]) != 3:
                failures.append(answer)

    with serve(writable=True) as server, ThreadPoolExecutor(4) as threads:
        jobs = [threads.submit(write, writer) for writer in "ab"] + [threads.submit(read) for _ in range(2)]
        for source in (other, little_engine, other):
            count = len(acknowledged)
            assert wait_for(lambda count=count: len(acknowledged) > count + 2)
            put(source, engine.path)
        last = len(acknowledged) + 2  # those in flight at the last replacement
        assert wait_for(lambda: len(acknowledged) > last + 6)
        stop.set()
        for job in jobs:
            job.result()
    assert failures == []
    with Engine.open(engine.path) as opened:
        assert opened.n_bits == 8
        for id, _ in acknowledged[last:]:
            assert opened.get(id)


def test_following_is_not_tried_by_two_at_once(engine, other, monkeypatch):
    service = Service(engine, Settings())
    put(other, engine.path)
    opened = []
    reopen = Engine.reopen
    monkeypatch.setattr(Engine, "reopen", lambda self: opened.append(self) or reopen(self))
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: service.open_replacement(), range(4)))
    assert len(opened) == 1
    shutil.rmtree(engine.path)
    with pytest.raises(EngineError, match="does not exist"):
        service.open_replacement()
    service.close()


@pytest.mark.slow
def test_an_engine_is_retrained_beneath_its_clients_and_everything_acknowledged_is_in_it(serve, engine):
    stop, failures, acknowledged = threading.Event(), [], []

    def write(writer):
        number = 0
        while not stop.is_set():
            number += 1
            status, _, _ = ask(server.port, {"id": f"{writer}-{number}", "text": "a red ball"}, path="/items")
            # 409: added to the old engine just before the new one took over with it, and tried once more there
            (acknowledged if status in (201, 409) else failures).append(f"{writer}-{number}")

    def read():
        while not stop.is_set():
            status, _, answer = ask(server.port, {"text": "a red ball", "k": 3})
            if status != 200 or len(answer["hits"]) != 3:
                failures.append(answer)

    with serve(writable=True) as server, ThreadPoolExecutor(3) as threads:
        jobs = [threads.submit(write, writer) for writer in "ab"] + [threads.submit(read)]
        assert wait_for(lambda: len(acknowledged) > 2)
        with Engine.open(engine.path) as trainer:
            trainer.retrain(n_bits=16).close()
        count = len(acknowledged)
        assert wait_for(lambda: len(acknowledged) > count + 2)
        assert wait_for(lambda: ask(server.port, {"text": "a red ball", "k": 3})[2]["n_bits"] == 16)
        stop.set()
        for job in jobs:
            job.result()
    assert failures == []
    with Engine.open(engine.path) as last:
        assert {record.id for record in last.items()} >= set(acknowledged)


def test_ready_within_a_bound_while_the_store_is_silent(make_client, engine, monkeypatch):
    monkeypatch.setattr("modalhash.serve.service.READY_SECONDS", 0.05)
    client, go, calls = make_client(), threading.Event(), []

    def silent():
        calls.append(1)
        assert go.wait(20)

    monkeypatch.setattr(engine, "refresh", silent)
    for _ in range(3):
        answer = client.get("/readyz")
        assert [answer.status_code, answer.headers["retry-after"]] == [503, "1"]
        assert "in 0.05 s" in answer.json()["error"]
    assert client.get("/livez").status_code == 200
    assert len(calls) == 1, "one check serves all requests"
    go.set()
    assert wait_for(lambda: client.get("/readyz").status_code == 200)
