"""Several services as one: the hits of a single engine, and no short answer where a service is down, slow or another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from typer.testing import CliRunner

from little_world import make_world
from modalhash import Engine
from modalhash.cli import app
from modalhash.engine import split_engine
from modalhash.index import ShardError
from modalhash.serve.client import ServiceError, ShardedClient, merge_hits

for package in ("starlette", "uvicorn", "python_multipart", "PIL", "prometheus_client", "cachetools"):
    pytest.importorskip(package, reason=f"{package} is not installed (extra serve)")

N_SHARDS = 3
pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="processes are not stopped like this here")


class Served:
    """A shard of an engine, served by a process of its own."""

    def __init__(self, folder):
        command = "import sys; from modalhash.cli import app; app(sys.argv[1:])"
        self.process = subprocess.Popen(
            [sys.executable, "-c", command, "serve", str(folder), "--port", "0", "--quiet"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "NUMBA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )

    def wait(self):
        self.url = self.process.stdout.readline().strip().rstrip("/")
        assert self.url.startswith("http://127.0.0.1:")

    def end(self, *signals):
        for one in (*signals, signal.SIGKILL):
            self.process.send_signal(one)
        self.process.wait(20)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """An engine, its shards, and a service for each of them."""
    folder = tmp_path_factory.mktemp("shards")
    make_world(folder, n=40)
    with Engine.train(folder / "items.csv", folder / "engine", n_bits=16) as engine:
        engine.add([{"text": "a lonely ball", "labels": ["lonely"], "id": "last"}])
        shards = [folder / f"shard-{number}" for number in range(N_SHARDS)]
        assert split_engine(engine, shards) == [27, 27, 27]
        served = [Served(shard) for shard in shards]
        for one in served:
            one.wait()
        yield engine, served
        for one in served:
            one.end(signal.SIGCONT)


@pytest.fixture
def urls(world):
    return [served.url for served in world[1]]


def found(hits):
    return [(hit["modality"], hit["id"], hit["distance"], hit["rank"]) for hit in hits]


def expected(engine, **search):
    return [(hit.modality, hit.id, hit.distance, hit.rank) for hit in engine.search(hybrid=False, **search)]


@contextmanager
def answering(reply):
    """A fake service: ``reply(handler)`` writes the answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            reply(self)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def replying(status, content):
    body = content if isinstance(content, bytes) else json.dumps(content).encode()

    def reply(handler):
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answering(reply)


@pytest.mark.slow
@pytest.mark.parametrize(
    "search",
    [
        {"text": "a red ball", "k": 30},
        {"text": "a red ball", "k": 200, "want": "image"},
        {"text": "a blue box", "k": 7, "want": ["text"]},
        {"text": "a green box", "radius": 4},
        {"text": "a green box", "k": 9, "labels": ["red"]},
        {"text": "a green box", "k": 9, "where": "label = circle and not label = green", "kind": "learned"},
    ],
)
def test_codes_find_what_one_engine_finds(world, urls, search):
    """Most of these codes are equal: without ties in the same order the answers would differ."""
    with ShardedClient(urls) as client:
        answer = client.search(**search, refine=False)
    assert found(answer.hits) == expected(world[0], **search, refine=False)
    assert len(answer.hits) > 3
    assert [answer.missing, answer.partial] == [(), False]
    assert {hit["shard"] for hit in answer.hits} <= set(urls)


def test_refined_hits_are_the_best_of_all(world, urls):
    """So few items that one engine orders all of them too."""
    for want in ("image", "text"):
        search = {"text": "a red ball", "want": want, "k": 15}
        with ShardedClient(urls) as client:
            answer = client.search(**search)
        hits = world[0].search(**search, hybrid=False)
        assert [hit["score"] for hit in answer.hits] == pytest.approx([hit.score for hit in hits])
        assert found(answer.hits) == expected(world[0], **search)
        assert answer.searched == {"image": 40, "text": 41}[want]


def test_near_duplicates_of_better_hits_of_one_service_are_left_out(world, urls):
    search = {"text": "a red ball", "want": "text", "k": 20}
    with ShardedClient(urls) as client:
        plain, unique = client.search(**search).hits, client.search(**search, unique=True).hits
    for url in urls:
        texts = [hit["text"] for hit in unique if hit["shard"] == url]
        assert len(set(texts)) == len(texts)
    assert len({(hit["shard"], hit["text"]) for hit in plain}) < len(plain)


def test_a_picture_and_where_hits_are(world, urls):
    picture = world[0].path.parent / "photos" / "3.png"
    with ShardedClient(urls) as client:
        answer = client.search(image=picture.read_bytes(), want=["image"], labels=["red"], k=5, refine=False)
    assert found(answer.hits) == expected(world[0], image=picture, want="image", labels="red", k=5, refine=False)
    assert all(hit["media"].startswith(f"{hit['shard']}/media/photos%2F") for hit in answer.hits)


def test_a_label_that_one_service_has_is_no_error_of_the_others(world, urls):
    with ShardedClient(urls) as client:
        answer = client.search(text="a ball", labels=["lonely"])
        assert [hit["id"] for hit in answer.hits] == ["last"]
        for where in ("not label = lonely", "label = lonely or label = red", "label = lonely and label = red"):
            answer = client.search(text="a ball", where=where, refine=False, k=100)
            assert found(answer.hits) == expected(world[0], text="a ball", where=where, refine=False, k=100)
            assert answer.searched == 81
        with pytest.raises(ValueError, match="no item has the label 'lonley'"):
            client.search(text="a ball", labels=["lonley"])
        with pytest.raises(ValueError, match="radius"):
            client.search(text="a ball", radius=-1)
        with pytest.raises(TypeError, match="expected either text or image"):
            client.search()


@pytest.mark.slow
def test_a_service_that_does_not_answer(world, urls):
    """It is stopped, so that the connection is made and nothing comes."""
    engine, served = world
    held = {(hit.modality, hit.id) for hit in engine.search(text="a red ball", k=200, hybrid=False)}
    with ShardedClient(urls, timeout=5) as client:
        gone = {
            (hit["modality"], hit["id"])
            for hit in client.search(text="a red ball", k=200).hits
            if hit["shard"] == urls[1]
        }
    served[1].process.send_signal(signal.SIGSTOP)
    try:
        with ShardedClient(urls, timeout=0.5) as client, pytest.raises(ShardError) as raised:
            client.search(text="a red ball")
        assert raised.value.reasons == {urls[1]: "no answer within 0.5 s"}
        with ShardedClient(urls, timeout=0.5, missing="partial") as client:
            answer = client.search(text="a red ball", k=200)
        assert [answer.missing, answer.partial] == [(urls[1],), True]
        assert {(hit["modality"], hit["id"]) for hit in answer.hits} == held - gone
        options = [part for url in urls for part in ("--at", url)]
        run = CliRunner().invoke(app, ["ask", "a red ball", "-k", "3", "--timeout", "0.5", "--partial", *options])
        assert run.exit_code == 1
        assert f"no answer from {urls[1]}" in run.output
        run = CliRunner().invoke(app, ["ask", "a red ball", "--timeout", "0.5", *options])
        assert run.exit_code == 2
        assert "1 of 3 shards did not answer" in run.output
    finally:
        served[1].process.send_signal(signal.SIGCONT)


def test_the_command(world, urls):
    options = [part for url in urls for part in ("--at", url)]
    run = CliRunner().invoke(app, ["ask", "a red ball", "--no-refine", "-k", "6", "--json", *options])
    assert run.exit_code == 0
    assert found(json.loads(run.stdout)["hits"]) == expected(world[0], text="a red ball", k=6, refine=False)
    run = CliRunner().invoke(app, ["ask", "a lonely ball", "--label", "lonely", *options])
    assert run.stdout.split("\t")[1:5] == ["text", "last", "a lonely ball", "lonely"]
    assert CliRunner().invoke(app, ["ask", "a"]).exit_code == 2
    assert CliRunner().invoke(app, ["ask", *options]).exit_code == 2


def test_another_model_is_refused(urls):
    answer = {"model": "another", "hits": [], "searched": 5, "message": None}
    with (
        replying(200, answer) as url,
        ShardedClient([*urls, url], missing="partial") as client,
        pytest.raises(ServiceError, match=rf"{url} has another model \(another\) than {urls[0]}"),
    ):
        client.search(text="a red ball")


@pytest.mark.parametrize(
    ("status", "content", "message"),
    [
        (200, b"<html>", "is not a modalhash service"),
        (200, {"hits": [3]}, "returned an answer that this version does not understand"),
        (401, {"error": "a token is needed"}, "status 401: a token is needed"),
        (404, {"error": "no such route"}, "status 404"),
    ],
)
def test_what_is_no_service_is_an_error_even_where_partial_answers_are_allowed(urls, status, content, message):
    with (
        replying(status, content) as url,
        ShardedClient([urls[0], url], missing="partial") as client,
        pytest.raises(ServiceError, match=message),
    ):
        client.search(text="a red ball")


def cut(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "5000")
    handler.end_headers()
    handler.wfile.write(b'{"hits": [')


@pytest.mark.parametrize(
    ("service", "reason"),
    [
        (lambda: replying(503, {"error": "busy"}), "status 503: busy"),
        (lambda: replying(429, {"error": "too much"}), "status 429"),
        (lambda: answering(cut), "the answer ended after 10 of 5000 bytes"),
        (lambda: answering(lambda handler: handler.connection.close()), ""),
    ],
)
def test_what_may_pass_counts_as_missing(urls, service, reason):
    with service() as url:
        with ShardedClient([urls[0], url]) as client, pytest.raises(ShardError) as raised:
            client.search(text="a red ball")
        assert reason in raised.value.reasons[url]
        with ShardedClient([urls[0], url], missing="partial") as client:
            assert client.search(text="a red ball").missing == (url,)


def test_services_that_are_named_wrongly():
    for urls, message in (
        (["localhost:8000"], "expected e.g. http"),
        (["http://a", "http://a/"], "given twice"),
        ([], "no shards"),
    ):
        with pytest.raises(ValueError, match=message):
            ShardedClient(urls)
    with pytest.raises(TypeError, match="expected a list"):
        ShardedClient("http://a")


def test_an_item_in_two_services_counts_once():
    hit = {"modality": "text", "id": "a", "distance": 2}
    other = {"modality": "image", "id": "a", "distance": 2}
    merged = merge_hits([[hit, other], [hit], []], 9)
    assert merged == [{**hit, "rank": 1}, {**other, "rank": 1}]


def test_scores_and_places_without_one_are_merged():
    def hits(*pairs):
        return [
            {
                "modality": "text",
                "id": f"{score}/{distance}",
                "distance": distance,
                **({"score": score} if score else {}),
            }
            for score, distance in pairs
        ]

    merged = merge_hits([hits((0.9, 5), (None, 3), (0.2, 1)), hits((0.9, 4), (0.5, 9))], 4)
    assert [(hit["id"], hit["rank"]) for hit in merged] == [("0.9/4", 1), ("0.9/5", 2), ("None/3", 3), ("0.5/9", 4)]


def found_items(engine):
    """All items, with where their files are: what is stored of that depends on where the engine is."""
    return [replace(record, uri=record.uri and str(engine.path_of(record))) for record in engine.items()]


def test_shards_of_an_engine(world, tmp_path):
    engine, _ = world
    run = CliRunner().invoke(app, ["split", str(engine.path), str(tmp_path / "a"), str(tmp_path / "b")])
    assert run.exit_code == 0
    assert "40 items" in run.output
    with Engine.open(tmp_path / "a") as first, Engine.open(tmp_path / "b") as second:
        assert [*found_items(first), *found_items(second)] == found_items(engine)
        assert first.model_digest == second.model_digest == engine.model_digest
        assert len({first.generation, second.generation, engine.generation}) == 3
        assert first.search(text="a red ball", k=1)[0].shared_labels
        with pytest.raises(FileExistsError):
            split_engine(first, [tmp_path / "b"])
        with pytest.raises(ValueError, match="distinct folders"):
            split_engine(first, [tmp_path / "c", tmp_path / "c"])
        saved = b"\x89PNG" + bytes(8)
        (first.path / "media").mkdir()
        (first.path / "media" / "x.png").write_bytes(saved)
        record = next(first.store.scan())
        first.store.add([type(record)("kept", "image", record.code, uri="media/x.png")])
        split_engine(first, [tmp_path / "d"])
    assert (tmp_path / "d" / "media" / "x.png").read_bytes() == saved


def test_a_service_that_is_killed_while_it_is_asked(world, urls):
    """The last test of this module: every answer is whole, or says what is missing."""
    engine, served = world
    whole = expected(engine, text="a red ball", k=60, refine=False)
    begun, wrong, seen = threading.Event(), [], set()

    def search():
        with ShardedClient(urls, timeout=10, missing="partial") as client:
            for _ in range(25):
                answer = client.search(text="a red ball", k=60, refine=False)
                seen.add(answer.partial)
                if answer.partial != (found(answer.hits) != whole) or answer.missing not in ((), (urls[2],)):
                    wrong.append(answer)
                begun.set()

    threads = [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert begun.wait(20)
    served[2].process.kill()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert True in seen
