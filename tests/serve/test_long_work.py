"""What takes long for one client: others do not wait for it, it has a bound, and it stops with its request."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from serve_tools import ask

from modalhash.core.progress import StoppedError, should_stop

TEXT = {"text": "a red ball"}
FILTERED = {**TEXT, "where": "year = 2005"}


@pytest.fixture
def endless(engine, monkeypatch):
    """Make searches with a filter run until they are stopped; return what they say when they begin and end."""
    said = {"begun": threading.Semaphore(0), "stopped": threading.Event()}
    answer = engine.answer

    def endlessly(queries, options=None):
        if options is None or all(one.filter is None for one in options):
            return answer(queries, options)
        said["begun"].release()
        pause, end = threading.Event(), time.monotonic() + 20
        while not should_stop.get()():
            assert time.monotonic() < end, "nothing stopped it"
            pause.wait(0.005)
        said["stopped"].set()
        raise StoppedError

    monkeypatch.setattr(engine, "answer", endlessly)
    return said


def send(port, body, source="127.0.0.1"):
    """Send a search, and return the open connection."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=20, source_address=(source, 0))
    content = json.dumps(body).encode()
    head = "POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return connection


def test_a_search_whose_client_is_gone_stops(serve, endless):
    with serve() as server:
        connection = send(server.port, FILTERED)
        assert endless["begun"].acquire(timeout=20)
        connection.close()
        assert endless["stopped"].wait(20)
        assert ask(server.port, TEXT)[0] == 200


def test_a_search_whose_time_is_over_stops(serve, endless):
    with serve(limits={"request_seconds": 0.3}) as server:
        status, _, answer = ask(server.port, FILTERED)
        assert (status, answer["status"]) == (503, 503)
        assert endless["stopped"].wait(20)


def test_filters_of_one_address_hold_up_neither_searches_nor_filters_of_others(serve, endless, engine, until):
    with serve() as server:
        greedy = [send(server.port, FILTERED) for _ in range(4)]
        assert endless["begun"].acquire(timeout=20)
        assert ask(server.port, TEXT)[0] == 200, "a search of the same address"
        assert ask(server.port, method="GET", path="/values?field=year", source="127.0.0.2")[0] == 200
        assert ask(server.port, method="GET", path="/items?where=year%20%3D%202005", source="127.0.0.2")[0] == 200
        assert not endless["stopped"].is_set()
        for connection in greedy:
            connection.close()
        until(lambda: server.config.app.state.service.metrics.requests_in_flight == 0)


@pytest.mark.parametrize(
    ("n", "field", "status"),
    [(200, "id", 200), (25, "year", 200), (26, "year", 422), (12, "a.b", 200), (13, "a.b", 422)],
)
def test_a_filter_has_a_bound(client, n, field, status):
    where = " or ".join(f"{field} = {number}" for number in range(n))
    answers = [client.post("/search", json={**TEXT, "where": where})]
    answers += [client.get(path, params={"where": where}) for path in ("/items", "/duplicates")]
    assert [answer.status_code for answer in answers] == 3 * [status]
    if status == 422:
        for answer in answers:
            assert answer.json()["error"].startswith("where: the filter costs 208; the limit is 200.")
            assert "Use fewer comparisons" in answer.json()["error"]


def test_two_threads_that_read_concurrently_find_what_one_finds(serve, engine, monkeypatch):
    colours, answer, both = ("red", "green", "blue"), engine.answer, threading.Barrier(2)
    filters = [f"label = {colour} or year > {year}" for colour in colours for year in (2001, 2005, 2009)]
    requests = [{"text": f"a {colour} ball", "where": where, "k": 50} for where in filters for colour in colours]
    alone = [engine.search(text=one["text"], k=50, where=one["where"]) for one in requests]

    def answer_together(queries, options=None):
        both.wait(20)
        return answer(queries, options)

    with serve() as server, ThreadPoolExecutor(2) as clients:

        def ask_all(source):
            return [ask(server.port, one, source=source) for one in requests]

        monkeypatch.setattr(engine, "answer", answer_together)
        together = list(clients.map(ask_all, ("127.0.0.1", "127.0.0.2")))
    expected = [[(hit.id, hit.distance, hit.rank) for hit in hits] for hits in alone]
    assert any(expected)
    for answers in together:
        assert [status for status, *_ in answers] == [200] * len(requests)
        found = [[(hit["id"], hit["distance"], hit["rank"]) for hit in body["hits"]] for *_, body in answers]
        assert found == expected
