"""Scans in several threads: the same hits as in one, also after a fork."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from slow_search import brute_force, check, draw_codes

from modalhash.index import HammingIndex


@pytest.mark.parametrize("n_queries", [1, 3, 300])
def test_threads_change_nothing(rng, monkeypatch, n_queries):
    monkeypatch.setattr("modalhash.index.scan.MIN_BYTES_FOR_THREADS", 0)
    monkeypatch.setattr("modalhash.index.scan.QUERY_TILE", 37)
    codes, queries = draw_codes(rng, 3000, 24, 0.1), draw_codes(rng, n_queries, 24)
    groups = rng.integers(0, 2, 3000)
    alone, threads = HammingIndex(24, n_threads=1), HammingIndex(24, n_threads=3)
    for index in (alone, threads):
        index.add(np.arange(3000), codes, group=groups)
    for search in ({"k": 40}, {"k": 4000}, {"radius": 4}, {"k": 5, "group": 1}):
        left, right = alone.search(queries, **search), threads.search(queries, **search)
        np.testing.assert_array_equal(left.ids, right.ids)
        np.testing.assert_array_equal(left.distances, right.distances)
    check(threads.search(queries, k=40), brute_force(queries, np.arange(3000), codes), k=40)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_threads_of_its_own(rng, monkeypatch):
    monkeypatch.setattr("modalhash.index.scan.MIN_BYTES_FOR_THREADS", 0)
    codes = draw_codes(rng, 3000, 24)
    index = HammingIndex(24, n_threads=2)
    index.add(np.arange(3000), codes)
    index.search(codes[:50], k=1)
    child = os.fork()
    if not child:  # an answer, not a wait for threads that are only in the parent
        signal.alarm(20)
        os._exit(int((index.search(codes[:50], k=1).distances != 0).any()))
    assert os.waitpid(child, 0)[1] == 0
