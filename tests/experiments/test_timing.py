"""Estimates of time come from small fits that are bounded, and from results where there are some."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from little_grids import GRID, little_grid

from modalhash.data import generate
from modalhash.experiments import Estimates, Results, compare_methods, describe_plan, make_plan, spoken
from modalhash.experiments.comparison import make_model, prepared
from modalhash.experiments.run import _seconds_left
from modalhash.experiments.timing import describe_work, nearest_to_mean, time_small_fits, with_fewer_items
from modalhash.methods import registry
from slow_method import SlowCodes

SLOW, STEADY, UNEVEN, FAILING = (f"slow_method:{name}Codes" for name in ("Slow", "Steady", "Uneven", "Failing"))


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(SlowCodes, "now", 0.0)
    monkeypatch.setattr("modalhash.experiments.timing.clock", lambda: SlowCodes.now)


@pytest.fixture(scope="module")
def data():
    return generate(n_items=2048, n_queries=20, seed=0).dataset()


def expected(data, method, n_fits=3, n_methods=1):
    def prepare(sample):
        return make_model(registry.method(method), 8, 0, {}), *prepared(sample, "unpaired", 0)

    return time_small_fits(prepare, data, method=method, bits=8, n_fits=n_fits, n_methods=n_methods)


@pytest.mark.parametrize(
    ("n_fits", "n_methods", "spent"),
    [
        (1, 1, 1.28 + 6 * 0.512),  # the second sample is stopped after four seconds for both
        (1, 9, 8 * 0.128 + 2 * 0.512),  # after a second each, as there are many methods
        (1000, 1, 1.28 + 10 * 0.512),  # after six seconds, however long the work; the last step is not stopped
    ],
)
def test_a_slow_method_is_timed_by_small_fits_that_are_stopped(data, n_fits, n_methods, spent):
    assert expected(data, SLOW, n_fits, n_methods) == pytest.approx(20.48)
    assert SlowCodes.now == pytest.approx(spent, abs=1e-6)


def test_a_time_that_does_not_depend_on_the_items_is_not_multiplied_by_them(data):
    assert expected(data, STEADY, n_methods=2) == pytest.approx(1.5 * 2)  # halfway between constant and linear


def test_all_items_are_fitted_where_that_is_a_small_part_of_the_work(data):
    assert expected(data, UNEVEN, n_fits=1, n_methods=9) == pytest.approx(1.0), "a second is always there"
    assert expected(data, SLOW, n_fits=3) == pytest.approx(20.48)
    assert SlowCodes.now < 6


def test_a_small_data_set_is_fitted_once(data):
    assert expected(with_fewer_items(data, 0.1), SLOW) == pytest.approx(2.05)
    assert SlowCodes.now == pytest.approx(2.05)


def test_what_fails_has_no_time(data):
    assert expected(data, FAILING) is None


def test_the_growth_of_the_registry_bounds_the_one_that_is_seen(data, monkeypatch):
    monkeypatch.setattr("modalhash.experiments.timing.growth_of", lambda method: 2.0)
    assert expected(data, SLOW) == pytest.approx(5.12 * 4**1.5)


def test_a_sample_keeps_pairs_and_queries(data):
    sample = with_fewer_items(data, 0.25).parts()
    assert sample.training.sizes == {"image": 512, "text": 512}
    assert sample.training.paired
    assert sample.query.sizes == data.parts().query.sizes


def test_a_comparison_begins_with_the_number_of_fits_and_the_time(data):
    lines = []
    compare_methods(data, {"chance": {}, SLOW: {}}, bits=[8, 16], seeds=[0, 1], report=lines.append)
    assert lines[0] == f"8 fits, about 82 s (chance 0 s, {SLOW} 20 s a fit)"
    assert len(lines) == 1 + 8
    lines.clear()
    small = generate(n_items=100, n_queries=20, seed=0).dataset()
    with pytest.raises(ValueError, match="never"):
        compare_methods(small, [FAILING], bits=[8], seeds=[0], report=lines.append)
    assert lines == [], "the reason is the only line"


SLOW_GRID = f"""
datasets = [
  {{name = "large", generated = {{n_items = 4096, n_queries = 17}}}},
  {{name = "small", generated = {{n_items = 2048, n_queries = 17}}}},
]
bits = [8, 16]
scenario = "unpaired"

[[rows]]
label = "Slow"
method = "{SLOW}"

[[rows]]
label = "Failing"
method = "{FAILING}"
"""


def test_a_plan_is_timed_on_the_smallest_data_set(tmp_path):
    plan, results = make_plan([little_grid(tmp_path, SLOW_GRID)]), Results(tmp_path / "results")
    estimates = Estimates(results, plan.facts)
    cells = {(cell.method, cell.dataset, cell.bits): cell for cell in plan.cells}
    assert estimates(cells[SLOW, "small", 8]) is None
    estimates.time_small_fits(plan.cells, plan.inputs, None, apart=False)
    assert SlowCodes.now < 6
    assert estimates(cells[SLOW, "small", 8]) == pytest.approx(20.48)
    assert estimates(cells[SLOW, "large", 8]) == pytest.approx(2 * 20.48)
    assert estimates(cells[SLOW, "small", 16]) == pytest.approx(20.48 * 80 / 72)
    assert estimates(cells[FAILING, "small", 8]) is None
    text = describe_plan(plan.cells, estimates, jobs=2)
    assert text == f"8 fits, more than 65 s ({SLOW} 32 s a fit; {FAILING} unknown)"


def test_results_replace_small_fits(tmp_path):
    plan, results = make_plan([little_grid(tmp_path, SLOW_GRID)]), Results(tmp_path / "results")
    estimates = Estimates(results, plan.facts)
    cells = {(cell.method, cell.dataset, cell.bits): cell for cell in plan.cells}
    estimates.time_small_fits(plan.cells, plan.inputs, None, apart=False)
    estimates.learn(cells[SLOW, "large", 8], {"took": 90.0})
    estimates.learn(cells[SLOW, "large", 8], {"took": 9.0, "error": "stopped"})
    assert estimates(cells[SLOW, "large", 8]) == 90
    assert estimates(cells[SLOW, "large", 16]) == pytest.approx(90 * 80 / 72)
    assert estimates(cells[SLOW, "small", 8]) == pytest.approx(20.48), "nearer than a result on other data"
    for name, seconds in (("small", 30.0), ("large", 50.0)):
        results.write_dataset(plan.facts[name])
        results.write(cells[SLOW, name, 8], {"took": seconds})
    again = Estimates(results, plan.facts)
    before = SlowCodes.now
    again.time_small_fits([cell for cell in plan.cells if cell.method == SLOW], plan.inputs, None, apart=False)
    assert SlowCodes.now == before, "nothing is fitted for methods with results"
    assert again(cells[SLOW, "small", 8]) == 30


def test_the_time_left_is_that_of_what_waits_and_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("modalhash.experiments.run.time.perf_counter", lambda: 1000.0)
    plan = make_plan([little_grid(tmp_path, GRID)], seeds=1)
    estimates = Estimates(Results(tmp_path / "results"), plan.facts)
    first, *waiting = plan.cells
    worker = SimpleNamespace(cell=first, since=940.0)
    assert _seconds_left(estimates, waiting, [worker]) == 0, "nothing is known"
    for cell in plan.cells:
        if cell.method != "chance":
            estimates.learn(cell, {"took": 100.0})
    assert [cell.method for cell in waiting].count("chance") == 2
    assert _seconds_left(estimates, waiting, [worker]) == 5 * 100 + 40, "what is not known counts like the others"


@pytest.mark.parametrize(
    ("by_method", "text"),
    [
        ({"a": 1.234}, "3 fits, about 9 s (a 1.2 s a fit)"),
        ({"a": 100.0, "b": None}, "3 fits, more than 9 s (a 2 min a fit; b unknown)"),
        ({"b": None}, "3 fits, in an unknown time (b unknown)"),
    ],
)
def test_work_is_described(by_method, text):
    assert describe_work(3, 9.0, by_method) == text
    assert nearest_to_mean([8, 128]) in (8, 128)


@pytest.mark.parametrize(("seconds", "text"), [(5, "5 s"), (300, "5 min"), (12000, "3 h 20 min")])
def test_times_are_spoken(seconds, text):
    assert spoken(seconds) == text
