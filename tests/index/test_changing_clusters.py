"""Tables that are built concurrently with searches: hits during and after a build, whatever happens meanwhile."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from slow_search import finish_builds, same

from modalhash.core.codes import pack
from modalhash.index import HammingIndex, clusters, layout as _layout

N = 6000


class Gate:
    """Makes tables, but only while it is open."""

    def __init__(self, make):
        self._make, self._open, self._began = make, threading.Event(), threading.Event()
        self._open.set()
        self.failure = None
        self.n_made = self.n_now = self.most_at_once = 0

    def __call__(self, *args, **options):
        self.n_made += 1
        self.n_now += 1
        self.most_at_once = max(self.most_at_once, self.n_now)
        self._began.set()
        try:
            assert self._open.wait(60)
            if self.failure is not None:
                raise self.failure
            return self._make(*args, **options)
        finally:
            self.n_now -= 1

    def close(self):
        self._open.clear()
        self._began.clear()

    def open(self):
        self._open.set()

    def wait_for_a_build(self):
        assert self._began.wait(60)


class Pair:
    """Two indexes with the same items: a scan says what the one with tables should find."""

    def __init__(self, gate, rng):
        self.plain, self.fast, self.gate = HammingIndex(64), HammingIndex(64), gate
        self._rng = rng
        self._centres = rng.random((100, 64)) < 0.5
        self._seen = np.zeros((1, 8), np.uint8)

    def add(self, ids, *, equal=False, **options):
        """Add codes around centres, or all equal."""
        bits = self._centres[self._rng.integers(0, 100, len(ids))] ^ (self._rng.random((len(ids), 64)) < 0.05)
        codes = pack(bits[:1].repeat(len(ids), axis=0) if equal else bits)
        self._seen = np.concatenate([self._seen, codes])
        for index in (self.plain, self.fast):
            index.add(ids, codes, **options)

    def remove(self, ids):
        for index in (self.plain, self.fast):
            index.remove(ids)

    def build(self):
        return self.fast.build_clusters()

    def drop(self):
        return self.fast.build_clusters(drop=True)

    @property
    def tables(self):
        """By group, those that searches use."""
        return {group: built.tables for group, built in self.fast._clusters._tables.items()}

    def search(self):
        """Search both for codes that are there or were, the first and the last ones among them; compare."""
        queries = np.concatenate([self._seen[:9], self._seen[9:-120:97], self._seen[-120:]])
        same(self.plain.search(queries, k=20), self.fast.search(queries, k=20))

    def finish(self):
        finish_builds(self.fast)

    def search_and_finish(self):
        self.search()
        self.finish()

    def start_a_build(self):
        """Let a search begin to build tables, and go no further."""
        self.gate.close()
        self.search()
        self.gate.wait_for_a_build()


@pytest.fixture
def pair(monkeypatch, rng):
    """Two indexes of 6,000 items, of which one has tables; 400 changes are much."""
    monkeypatch.setattr(clusters, "MIN_CHANGES_FOR_REBUILD", 100)
    monkeypatch.setattr(clusters, "MIN_ROWS", N)
    monkeypatch.setattr(clusters.ShellTables, "pays", True)
    gate = Gate(clusters.ShellTables)
    monkeypatch.setattr(clusters, "ShellTables", gate)
    pair = Pair(gate, rng)
    pair.add(np.arange(N) * 2)
    assert pair.build() > 0
    yield pair
    gate.open()
    pair.finish()
    assert gate.most_at_once == 1


def test_searches_and_changes_go_on_while_tables_are_built(pair):
    before = pair.tables[0]
    pair.add(np.arange(400) + 2 * N)
    pair.start_a_build()
    pair.add(np.arange(50) + 3 * N)
    pair.search()
    pair.add(np.arange(50) * 2 + 1)  # between others
    pair.remove([0, 2 * N + 3, 3 * N + 1])  # from the old tables, since, and since the build began
    pair.add([6, 2 * N + 5, 3 * N + 5], replace=True)
    pair.search()
    assert pair.tables == {0: before}
    pair.gate.open()
    pair.finish()
    after = pair.tables[0]
    assert after is not before
    assert after.source.n == N + 400, "as it was when the build began"
    pair.search()
    pair.add([0, 2, 3 * N + 1], replace=True)
    pair.search()
    assert pair.tables == {0: after}
    assert pair.gate.n_made == 2


def test_no_thread_stays(pair):
    pair.add(np.arange(400) + 2 * N)
    pair.start_a_build()
    thread = pair.fast._builder._thread
    assert thread.daemon
    pair.gate.open()
    pair.finish()
    thread.join(60)
    assert not thread.is_alive()
    assert pair.fast._builder._thread is None


def test_more_changes_during_a_build_than_it_takes_start_another(pair):
    pair.add(np.arange(400) + 2 * N)
    pair.start_a_build()
    for start in range(400, 1600):  # one by one
        pair.add([start + 2 * N])
    pair.search()
    assert pair.gate.n_made == 2, "the first, and the one in progress"
    pair.gate.open()
    pair.finish()
    pair.search_and_finish()
    assert pair.gate.n_made == 3
    assert pair.tables[0].source.n == N + 1600
    pair.search()


def test_a_group_that_shrinks_is_scanned(pair, monkeypatch):
    """Also if it does so during a build, whose result is then not used."""
    monkeypatch.setattr("modalhash.index.clusters.worth_trying", lambda n, n_bits: n >= N)
    pair.add(np.arange(400) + 2 * N)
    pair.start_a_build()
    pair.remove(np.arange(500) * 2)
    pair.search()
    assert not pair.tables
    pair.gate.open()
    pair.finish()
    pair.search()
    assert not pair.tables


def test_tables_dropped_during_a_build_stay_dropped(pair):
    pair.add(np.arange(400) + 2 * N)
    pair.start_a_build()
    assert pair.drop() == 0
    pair.search()
    pair.gate.open()
    pair.finish()
    assert not pair.tables
    pair.search()
    assert pair.gate.n_made == 2


@pytest.mark.parametrize("dropped", [False, True])
def test_tables_built_on_request_are_not_overtaken(pair, dropped):
    pair.add(np.arange(400) + 2 * N)
    pair.start_a_build()
    if dropped:
        pair.drop()
    with ThreadPoolExecutor(1) as pool:
        request = pool.submit(pair.build)
        pair.add(np.arange(30) + 3 * N)
        pair.search()
        pair.gate.open()
        assert request.result(60) > 0
    assert pair.tables[0].source.n == N + 430
    assert pair.gate.n_made == 3
    pair.finish()
    assert pair.tables[0].source.n == N + 430
    pair.search()


def test_codes_that_come_to_be_held_once_during_a_build_are_scanned(pair, monkeypatch):
    monkeypatch.setattr(_layout, "MIN_NUMBERED", 2 * N)
    monkeypatch.setattr(_layout, "ITEMS_PER_CODE", 2)
    pair.add(np.arange(400) + 2 * N)
    pair.start_a_build()
    pair.add(np.arange(N + 1000) + 3 * N, equal=True)
    pair.search()
    assert isinstance(pair.fast._groups[0].tables()[0], _layout.DistinctCodes)
    assert not pair.tables
    pair.gate.open()
    pair.finish()
    assert not pair.tables
    pair.search()


def test_a_build_that_fails_costs_a_warning_and_leaves_the_scan(pair):
    pair.add(np.arange(400) + 2 * N)
    pair.gate.failure = MemoryError("no room")
    with pytest.warns(RuntimeWarning, match=r"group 0 could not be rebuilt \(MemoryError\('no room'\)\)"):
        pair.search_and_finish()
    pair.add(np.arange(400) + 3 * N)
    pair.search_and_finish()
    assert pair.gate.n_made == 2
    assert not pair.tables
    pair.gate.failure = None
    pair.add(np.arange(N) + 4 * N)
    pair.search_and_finish()
    assert pair.tables[0].source.n == 2 * N + 800, "tried again when the group had doubled"
    pair.search()


def test_after_a_build_that_failed_tables_can_be_asked_for(pair):
    pair.add(np.arange(400) + 2 * N)
    pair.gate.failure = ValueError("broken")
    with pytest.warns(RuntimeWarning, match="broken"):
        pair.search_and_finish()
    pair.gate.failure = None
    assert pair.build() > 0
    pair.search()
    assert pair.tables[0].source.n == N + 400


def test_groups_are_built_one_after_the_other(pair):
    pair.add(np.arange(N) + 3 * N, group=1)
    pair.add(np.arange(400) + 2 * N, group=0)
    pair.start_a_build()
    pair.add(np.arange(10) + 5 * N, group=[0, 1] * 5)
    pair.search()
    assert set(pair.tables) == {0}
    pair.gate.open()
    pair.finish()
    assert pair.tables[0].source.n == N + 400
    assert set(pair.tables) == {0}, "the other one waits for a search"
    pair.search_and_finish()
    assert pair.tables[1].source.n == N + 5
    pair.add([5 * N, 5 * N + 1], group=[1, 0], replace=True)  # from each group to the other
    pair.search()
    assert pair.gate.n_made == 3


def test_without_a_thread_to_be_had_searches_use_the_old_tables(pair, monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    pair.add(np.arange(400) + 2 * N)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        pair.search_and_finish()
    assert pair.tables[0].source.n == N
    pair.add(np.arange(5) + 3 * N)
    pair.search_and_finish()
    assert pair.tables[0].source.n == N + 405
    pair.search()


@pytest.mark.slow
def test_a_process_ends_while_tables_are_built():
    script = """
import threading
import numpy as np
from modalhash.index import HammingIndex, clusters

began = threading.Event()
clusters.MIN_ROWS = 1
index = HammingIndex(64)
index.build_clusters()
clusters.ShellTables = lambda *args, **options: began.set() or threading.Event().wait()
index.add([1], np.zeros((1, 8), np.uint8))
assert index.search(np.zeros((1, 8), np.uint8), k=1).ids.tolist() == [[1]]
assert began.wait(60)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")
