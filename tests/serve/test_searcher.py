"""Searches of many clients share a batch, and each is answered as if it were alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
from serve_tools import Held, ask

from modalhash.engine import SearchOptions
from modalhash.serve.limits import Limits
from modalhash.serve.searcher import Searcher


def test_searches_of_many_clients_share_a_scan(serve, engine, until):
    """Searches that arrive during another are answered by one call, each with its own result."""
    texts = ["a red ball", "...", "a blue box", "a green box today"]
    expected = [
        None if text == "..." else [hit.id for hit in engine.search(text=text, k=3 + n)] for n, text in enumerate(texts)
    ]
    with serve() as server, ThreadPoolExecutor(5) as pool:
        metrics = server.config.app.state.service.metrics
        held = Held(engine)
        first = pool.submit(ask, server.port, {"text": "red"})
        assert held.begun.wait(10)
        others = [pool.submit(ask, server.port, {"text": text, "k": 3 + n}) for n, text in enumerate(texts)]
        batcher = server.config.app.state.service.searcher.batcher
        until(lambda: len(batcher._queue) == 4)
        held.go.set()
        found = [other.result()[2] for other in others]
        assert first.result()[2]["hits"]
        assert held.calls == [1, 3]
        assert metrics.registry.get_sample_value("modalhash_batch_size_sum", {"stage": "search"}) == 4
    for n, ids in enumerate(expected):
        if ids is None:
            assert found[n]["status"] == 422
        else:
            assert [hit["id"] for hit in found[n]["hits"]] == ids


@pytest.fixture
def searches(engine, monkeypatch):
    """The threads in which the engine answers."""
    threads = []
    answer = engine.answer

    def noting(*asked):
        threads.append(threading.current_thread().name.partition("_")[0])
        return answer(*asked)

    monkeypatch.setattr(engine, "answer", noting)
    return threads


def test_light_searches_are_made_in_the_event_loop_once_one_was_quick(serve, searches):
    with serve() as server:
        searches.clear()  # of those by which it warmed up
        server.config.app.state.service.searcher._expected_seconds = 0.001
        found = [ask(server.port, body) for body in ({"text": "a red ball"}, {"text": "a red ball", "k": 101})]
        assert [status for status, *_ in found] == [200, 200]
        assert searches[0] != "search"
        assert searches[1] == "search", "one that asks for much goes to the thread"


@pytest.mark.parametrize("reason", ["slow", "unknown", "changing", "behind", "failing"])
def test_searches_that_may_take_long_do_not_hold_up_the_event_loop(serve, engine, searches, monkeypatch, reason):
    with serve() as server:
        service = server.config.app.state.service
        service.searcher._expected_seconds = {"slow": 0.1, "unknown": None}.get(reason, 0.001)
        if reason == "changing":
            monkeypatch.setattr(type(engine.store), "revision_if_ready", lambda store: None)
        elif reason == "behind":
            monkeypatch.setattr(
                type(engine.store), "revision_if_ready", lambda store: store.revision()._replace(items=0)
            )
        elif reason == "failing":

            def fail(store):
                raise OSError("the disk")

            monkeypatch.setattr(type(engine.store), "revision_if_ready", fail)
        searches.clear()
        assert ask(server.port, {"text": "a red ball"})[0] == 200
        assert searches == ["search"]


def test_a_search_counts_by_its_processor_time_wherever_it_is_made(engine, monkeypatch):
    """On the clock it takes longer in the thread, and would be left there long after a burst."""
    ticks = count(0.0, 0.004)
    monkeypatch.setattr("modalhash.serve.searcher.process_time", lambda: next(ticks))
    searcher = Searcher(engine, Limits(), lambda stage, size: None)
    jobs = [(text, SearchOptions(k=3), "text", False) for text in ("a red ball", "a blue box")]
    results = searcher._search_batch(jobs)
    searcher.close()
    assert [len(hits) for _, hits, _ in results] == [3, 3]
    assert searcher._expected_seconds == pytest.approx(0.002)
    assert searcher._is_quick(10 * jobs[:1])
    assert not searcher._is_quick(11 * jobs[:1])


def test_an_engine_is_at_rest_until_another_process_changes_it(engine):
    engine.refresh()
    assert engine.is_at_rest
    with engine._lock:
        assert not engine.is_at_rest
    with type(engine).open(engine.path) as other:
        other.add([{"id": "new", "text": "a red ball", "labels": ["red"]}])
    assert not engine.is_at_rest
    engine.refresh()
    assert engine.is_at_rest
