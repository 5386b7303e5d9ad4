"""Several methods on one data set: tests over the right queries, and parameters from and into files."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from modalhash.data import generate
from modalhash.evaluation import Protocol, holm, randomisation_test
from modalhash.experiments import (
    MethodComparison,
    Point,
    check_parameters,
    compare_methods,
    read_parameters,
    write_parameters,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*anchors asked for")


def compared(*methods, drawn=False):
    """Return a comparison of methods, each given as a dict from seeds to average precisions."""
    found = {
        Point(name, "paired", "", 8, seed): {
            "queries": seed if drawn else 0,
            "databases": {"learned": {"a→b": {"map": np.mean(values), "chance": 0.1, "average_precision": values}}},
        }
        for name, seeds in zip("ab", methods, strict=False)
        for seed, values in seeds.items()
    }
    return MethodComparison("d", "paired", Protocol(), {"a": {}, "b": {}}, found, "a", drawn)


FIRST = {0: [0.2, 0.4, 0.6, 0.1], 1: [0.3, 0.2, 0.5, 0.1]}
SECOND = {0: [0.9, 0.8, 0.7, 0.6], 1: [0.5, 0.9, 0.8, 0.3]}


@pytest.mark.parametrize("drawn", [False, True])
def test_a_query_counts_once_where_the_seeds_ask_the_same(drawn):
    found = compared(FIRST, SECOND, drawn=drawn)
    join = np.concatenate if drawn else lambda arrays: np.mean(arrays, axis=0)
    first, second = (join([np.asarray(values[seed]) for seed in values]) for values in (FIRST, SECOND))
    (test,) = found.tests
    assert test.p == randomisation_test(second, first)  # all 2**n tosses are tried
    assert test.difference == pytest.approx(np.mean(second) - np.mean(first))
    assert test.p_holm == holm([test.p])[0]


def test_only_seeds_that_both_have_are_compared():
    found = compared(FIRST, {1: SECOND[1]})
    assert found.tests[0].difference == pytest.approx(np.mean(SECOND[1]) - np.mean(FIRST[1]), abs=1e-6)
    assert compared(FIRST).tests == []


def n_queries(found):
    return {result["databases"]["learned"]["image→text"]["n_queries"] for result in found.results.values()}


def test_it_says_what_the_data_are():
    data = generate(n_items=60, n_queries=15, seed=0).dataset()
    found = compare_methods(data, ["chance"], bits=[8], seeds=[0])
    assert found.table().title.startswith("chance on generated (data: generated), unpaired")
    assert json.loads(found.to_json())["kind"] == "generated"
    assert not found.drawn_split


def test_sizes_of_the_data_set_are_drawn():
    data = generate(n_items=60, n_queries=15, seed=0).dataset()
    unsplit = replace(data, split=None, split_sizes={"query": 7})
    found = compare_methods(unsplit, ["chance"], bits=[8], seeds=[0])
    assert n_queries(found) == {7}
    assert found.drawn_split
    share = compare_methods(unsplit, ["chance"], bits=[8], seeds=[0], test_share=0.4)
    assert n_queries(share) == {30}


def test_equal_methods_get_no_arrow():
    data = generate(n_items=60, n_queries=15, seed=0).dataset()
    found = compare_methods(
        data, {"edmh": {}, "modalhash.methods.edmh:EDMH": {}}, bits=[8], seeds=[0], scenario="unpaired"
    )
    assert {test.p for test in found.tests} == {1.0}
    assert not any(test.arrow for test in found.tests)


def test_bad_input():
    data = generate(n_items=60, n_queries=15, seed=0).dataset()
    with pytest.raises(ValueError, match="no method is named"):
        compare_methods(data, [])
    with pytest.raises(ValueError, match="named twice"):
        compare_methods(data, ["edmh", "edmh"])
    with pytest.raises(ValueError, match="scenario"):
        compare_methods(data, ["edmh"], scenario="odd")
    with pytest.raises(ValueError, match="random_state is set by the seeds"):
        check_parameters("edmh", {"random_state": 1})


@pytest.mark.parametrize("name", ["p.toml", "p.json"])
def test_parameters_come_back_from_their_file(tmp_path, name):
    given = {
        "rlh": {"ridge": 1e-05, "steps": 3, "kernel": None, "margins": False, "functions": 'a "b" ü'},
        "toy_method:ClassCodes": {"ridge": {"image": 1.0, "te xt": 2.5}},
    }
    write_parameters(tmp_path / name, given, notes=["how it\ncame about"])
    assert read_parameters(tmp_path / name) == given
    if name.endswith("toml"):
        assert (tmp_path / name).read_text(encoding="utf-8").startswith("# how it came about\n")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "ridge = 1", "expected a table per method"),
        ("a.toml", "[amsh\n", "not TOML"),
        ("a.json", "{", "not JSON"),
        ("a.toml", "[amsh]\nrigde = 1", "did you mean 'ridge'"),
        ("a.toml", "[odd]\nridge = 1", "unknown method 'odd'"),
    ],
)
def test_bad_files_are_named(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        read_parameters(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
