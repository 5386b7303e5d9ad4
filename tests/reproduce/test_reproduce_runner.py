"""A run resumes, survives failures and dying processes, and stops when told to."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import replace

import pytest
from fabricated_results import little_root

from modalhash import __version__
from modalhash.reproduce.cells import Cell, cells_of
from modalhash.reproduce.config import load_all
from modalhash.reproduce.estimate import Estimates, spoken
from modalhash.reproduce.measure import measure
from modalhash.reproduce.runner import run
from modalhash.reproduce.sources import SOURCES, describe
from modalhash.reproduce.store import Store
from modalhash.reproduce.workers import Worker


@pytest.fixture
def root(tmp_path):
    return little_root(tmp_path / "data")


@pytest.fixture
def cells(root) -> dict[str, Cell]:
    digest = describe(SOURCES["wiki"], root)["digest"]
    found = cells_of(load_all()["table2"], "wiki", digest, version=__version__)
    return {label: replace(found["", label, 16, 0], bits=8) for label in ("AMSH", "BATCH", "CMFH")}


def test_a_cell_keeps_all_that_tables_and_figures_want(root, cells):
    found = json.loads(json.dumps(measure(cells["AMSH"], root), allow_nan=False))
    assert set(found["databases"]) == {"learned", "hashed", "unseen"}
    one = found["databases"]["learned"]["I2T"]
    assert 0 < one["chance"] < one["map"] <= 1
    assert len(one["average_precision"]) == one["n_queries"] == 17
    assert len(one["curve"]) == 51
    assert len(found["objective"]["codes"]) == 15
    assert "fewer items than anchors" in found["warnings"][0]
    assert sum(found["seconds"]["stages"].values()) == pytest.approx(found["seconds"]["cpu"], abs=0.1)
    again = measure(cells["AMSH"], root)
    assert again["databases"] == found["databases"]


def test_without_pairs_amsh_is_the_same(root, cells):
    with_pairs = measure(cells["AMSH"], root)["databases"]["learned"]["I2T"]["map"]
    without = measure(replace(cells["AMSH"], scenario="unpaired"), root)["databases"]["learned"]["I2T"]["map"]
    assert without == pytest.approx(with_pairs, abs=1e-6)


def test_a_run_records_failures_and_resumes(tmp_path, root, cells):
    store = Store(tmp_path / "results")
    bad = replace(cells["CMFH"], bits=10**6)  # more bits than items
    late = replace(cells["BATCH"], seed=1, limit_seconds=0.0)
    events = []
    plan = [bad, *cells.values(), late]
    assert run(plan, store, root=root, jobs=2, notify=events.append) == 2
    assert "error" in store.read(bad)
    assert "longer than 0 s" in store.read(late)["error"]
    assert store.read(cells["AMSH"])["environment"]["threads"] == 1
    assert [event.done for event in events if event.result is not None] == [1, 2, 3, 4, 5]
    assert all(event.seconds_left >= 0 and event.total == 5 for event in events)
    assert not multiprocessing.active_children()
    before = (store.folder / "cells" / cells["AMSH"].path).read_bytes()
    assert run(plan, store, root=root, jobs=1, notify=events.append) == 0
    assert len(events) == 10  # nothing was left to do
    assert (store.folder / "cells" / cells["AMSH"].path).read_bytes() == before
    assert run([late], store, root=root, jobs=1, retry=True) == 1  # but a failure may be tried again
    assert Estimates(store)(cells["AMSH"]) == store.read(cells["AMSH"])["took"]


def test_an_interruption_ends_the_processes(tmp_path, root, cells):
    store = Store(tmp_path / "results")

    def interrupt(event):
        if event.result is None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(list(cells.values()), store, root=root, jobs=2, notify=interrupt)
    assert not multiprocessing.active_children()
    assert not list(store.everything())


def test_a_process_that_dies_is_a_result(root, cells):
    worker = Worker(root)
    worker.process.kill()
    worker.process.join()
    worker.cell = cells["AMSH"]
    assert "the process died (signal 9)" in worker.take()["error"]
    worker.stop()


@pytest.mark.parametrize(("seconds", "text"), [(5, "5 s"), (300, "5 min"), (12000, "3 h 20 min")])
def test_times_are_spoken(seconds, text):
    assert spoken(seconds) == text
