"""Searches of many clients share a batch, and each is answered as if it were alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from serve_tools import Held, ask


def test_searches_of_many_clients_share_a_scan(serve, engine, until):
    """While one search is under way others come; they are answered by one call, each as if it were alone."""
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
        batcher = server.config.app.state.service.searcher.search
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
