"""A run resumes, survives failures and dying processes, and stops when it is interrupted."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from little_grids import GRID, little_grid

from modalhash.data import generate
from modalhash.experiments import Estimates, Results, make_plan, record, run_cells
from modalhash.experiments.config import Scenario
from modalhash.experiments.measure import Loader, PeakMemory, apply_scenario, measure
from modalhash.experiments.run import CellWorker


@pytest.fixture
def plan(tmp_path):
    return make_plan([little_grid(tmp_path)])


@pytest.fixture
def cells(plan):
    """The first cell of each method."""
    return {method: next(cell for cell in plan.cells if cell.method == method) for method in ("amsh", "gsph", "chance")}


def test_a_cell_keeps_all_that_tables_and_figures_want(plan, cells):
    load = Loader(plan.inputs, None)
    found = json.loads(json.dumps(measure(cells["amsh"], load), allow_nan=False))
    assert set(found["databases"]) == {"learned", "hashed", "unseen"}
    one = found["databases"]["learned"]["image→text"]
    assert 0 < one["chance"] < one["map"] <= 1
    assert len(one["average_precision"]) == one["n_queries"] == 17
    assert len(one["curve"]) == 51
    assert len(found["objective"]["codes"]) == 3
    assert sum(found["seconds"]["stages"].values()) == pytest.approx(found["seconds"]["cpu"], abs=0.1)
    if Path("/proc/self/clear_refs").exists():
        assert 0 < found["memory"]["before"] <= found["memory"]["peak"]
    again = measure(cells["amsh"], load)
    assert again["databases"] == found["databases"]
    short = measure(replace(cells["amsh"], per_query=False), load)["databases"]["learned"]["image→text"]
    assert short["map"] == one["map"]
    assert "average_precision" not in short


def test_each_modality_may_be_searched_by_itself(plan, cells):
    found = measure(replace(cells["chance"], intra=True), Loader(plan.inputs, None))
    assert set(found["databases"]["learned"]) == {"image→image", "image→text", "text→image", "text→text"}


def test_a_method_without_a_seed_is_measured(tmp_path):
    rows = '[[rows]]\nlabel = "Fixed"\nmethod = "seedless_method:FixedCodes"\nparameters = {ridge = 2.0}\n'
    plan = make_plan([little_grid(tmp_path, GRID[: GRID.index("[[rows]]")] + rows)])
    assert {cell.parameters for cell in plan.cells} == {'{"ridge": 2.0}'}
    load = Loader(plan.inputs, None)
    first, second = (measure(replace(plan.cells[0], seed=0, bits=bits), load)["databases"] for bits in (8, 8))
    assert first == second
    assert first["learned"]["image→text"]["map"] > 2 * first["learned"]["image→text"]["chance"]


@pytest.mark.parametrize("scenario", ["paired", "semi_paired:0.5", "unequal:0.2", "unpaired+noisy_labels:0.1"])
def test_scenarios(tmp_path, scenario):
    plan = make_plan([little_grid(tmp_path, GRID.replace('"unpaired"', f'"{scenario}"'))])
    load = Loader(plan.inputs, None)
    for method in ("amsh", "gsph"):
        cell = next(cell for cell in plan.cells if cell.method == method)
        assert measure(cell, load)["databases"]["learned"]["text→image"]["map"] > 0.2


@pytest.mark.parametrize("pairing", ["paired", "semi_paired:0.5"])
def test_wrong_labels_are_those_of_the_pair(pairing):
    """A method that learns from pairs takes one label row per pair."""
    generated = generate(n_items=80, n_queries=20).dataset()
    generated = replace(generated, labels=dict.fromkeys(generated.labels, generated.labels["image"]))
    data, pairs = apply_scenario(Scenario.parse(f"{pairing}+noisy_labels:0.5"), generated, 0)
    training = data.parts().training
    rows = np.repeat(np.arange(80)[:, None], 2, axis=1) if pairing == "paired" else pairs
    labels = training.labels["image"][rows[:, 0]]
    np.testing.assert_array_equal(labels, training.labels["text"][rows[:, 1]])
    assert np.any(labels != training.relevance["image"][rows[:, 0]])


def test_labels_as_features_are_the_upper_bound(plan, cells):
    cell = replace(cells["chance"], method="label-oracle", parameters="{}", bits=16)
    load = Loader(plan.inputs, None)
    real, oracle = (
        measure(replace(cell, features=features), load)["databases"]["unseen"]["image→text"]["map"]
        for features in ("own", "labels")
    )
    assert oracle > real


@pytest.mark.slow
def test_a_run_records_failures_and_resumes(tmp_path, plan, cells):
    results = Results(tmp_path / "results")
    bad = replace(cells["gsph"], parameters='{"no_such_parameter": 1}')
    late = replace(cells["chance"], seed=1, limit_seconds=0.0)
    some = replace(plan, cells=[bad, *cells.values(), late])
    events = []
    assert run_cells(some, results, jobs=2, notify=events.append) == 2
    assert "error" in results.read(bad)
    assert "longer than 0 s" in results.read(late)["error"]
    assert results.read(cells["amsh"])["environment"]["threads"] == 1
    assert [event.done for event in events if event.result is not None] == [1, 2, 3, 4, 5]
    assert all(event.seconds_left >= 0 and event.total == 5 for event in events)
    assert not multiprocessing.active_children()
    before = (results.path / "cells" / cells["amsh"].path).read_bytes()
    assert run_cells(some, results, jobs=1, notify=events.append) == 0
    assert len(events) == 10, "nothing was left to do"
    assert (results.path / "cells" / cells["amsh"].path).read_bytes() == before
    assert run_cells(replace(plan, cells=[late]), results, jobs=1, retry=True) == 1, "a failure may be tried again"
    assert Estimates(results, plan.facts)(cells["amsh"]) == pytest.approx(results.read(cells["amsh"])["took"])


def test_an_interruption_ends_the_processes(tmp_path, plan):
    results = Results(tmp_path / "results")

    def interrupt(event):
        if event.result is None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_cells(plan, results, jobs=2, notify=interrupt)
    assert not multiprocessing.active_children()
    assert not list(results.everything())


def test_a_process_that_dies_is_a_result(plan, cells):
    worker = CellWorker(plan.inputs, None)
    worker.process.kill()
    worker.process.join()
    worker.cell = cells["amsh"]
    assert "the process died (signal 9)" in worker.take()["error"]
    worker.stop()


@pytest.mark.slow
def test_a_plan_names_absent_and_unreadable_data(tmp_path):
    (tmp_path / "wiki").mkdir()
    (tmp_path / "wiki" / "wiki.npz").write_bytes(b"not a file of arrays")
    grid = little_grid(tmp_path, GRID.replace("datasets = [", 'datasets = ["wiki", "mirflickr25k", '))
    plan = make_plan([grid], root=tmp_path)
    assert {cell.dataset for cell in plan.cells} == {"little"}
    assert "convert mirflickr25k" in plan.absent["mirflickr25k"]
    assert "wiki.npz" in plan.broken["wiki"]
    with pytest.raises(ValueError, match="no data set is called wikki"):
        make_plan([grid], root=tmp_path, datasets=["wikki"])


def test_grids_share_their_cells(tmp_path, plan):
    grid = little_grid(tmp_path)
    both = make_plan([grid, replace(grid, name="other", bits=[8])])
    assert len(both.cells) == len(plan.cells)
    assert len(both.by_grid["other"]) == len(plan.cells) / 2
    assert len(make_plan([grid], seeds=1).cells) == len(plan.cells) / 2
    record(both, Results(tmp_path / "r"))
    assert Results(tmp_path / "r").datasets()["little"]["training"] == 120


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells the peak of a process")
def test_the_peak_of_memory_is_that_of_what_came_after():
    first = np.ones(60_000_000, dtype=np.uint8)
    del first
    memory = PeakMemory()
    second = np.ones(20_000_000, dtype=np.uint8)
    del second
    found = memory.bytes()
    assert 15e6 < found["peak"] - found["before"] < 45e6
