"""Every experiment file is whole: known methods and parameters, the paper's numbers, words where it is silent."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from modalhash.data import NAMED
from modalhash.experiments import cells_of
from modalhash.experiments.config import resolved
from reproduction.paper_data import SOURCES
from reproduction.published import FOLDER, choose, load, load_all

PAPER = Path(__file__).resolve().parents[3] / "shared" / "paper" / "published.csv"
NAMES = {"mirflickr25k-cnn": "mirflickr25k", "nuswide21-cnn": "nuswide10", "iapr-tc12-255": "iaprtc12"}  # in the list
FILES = sorted(FOLDER.glob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_is_whole(path):
    experiment = load(path)
    assert experiment.id == path.stem
    assert set(experiment.datasets) <= set(SOURCES)
    for row in experiment.grid.rows:
        resolved(row.method, json.dumps(row.parameters))  # raises for a parameter that the constructor lacks
    assert experiment.kind == "statistics" or (experiment.grid.bits and experiment.grid.rows)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_says_where_the_paper_is_silent(path):
    text = path.read_text(encoding="utf-8").lower()
    assert text.startswith("# ")
    assert "is silent" in text or "does not say" in text


def test_every_published_number_is_there_once_and_right():
    if not PAPER.is_file():
        pytest.skip(f"the paper's numbers are not here: {PAPER}")
    with PAPER.open(encoding="utf-8") as file:
        expected = {
            (row["table"], row["dataset"], row["task"] or "seconds", row["method"], int(row["bits"])): float(
                row["value"]
            )
            for row in csv.DictReader(file)
        }
    found = {}
    for experiment in load_all().values():
        for dataset, tasks in experiment.published.items():
            for task, labels in tasks.items() if experiment.published_table else ():
                for label, values in labels.items():
                    for bits, value in zip(experiment.published_bits, values, strict=True):
                        key = experiment.published_table, NAMES.get(dataset, dataset), task, label, bits
                        assert key not in found
                        found[key] = value
    assert len(found) == 684
    assert found == expected


def test_table_one_is_what_sources_recognise():
    for dataset, tasks in load_all()["table1"].published.items():
        published = {name: values[0] for name, values in tasks["statistics"].items()}
        assert SOURCES[dataset].table1 == published
        assert NAMED[dataset].split_sizes == {"query": published["query"]}
        assert published["total"] == published["query"] + published["training"]


def test_the_order_is_the_papers():
    assert list(load_all()) == [
        "table1", "table2", "table2-curves", "table3", "table3-curves", "sensitivity", "table4", "convergence",
        "table5", "table6", "extended",
    ]  # fmt: skip


GOOD = """
title = "t"
paper = "Table 0"
kind = "comparison"
datasets = ["wiki"]
bits = [16]
seeds = 2
[[rows]]
label = "AMSH"
method = "amsh"
"""


@pytest.mark.parametrize(
    ("addition", "message"),
    [
        ("colour = 1\n" + GOOD, "unknown key.*colour"),
        (GOOD.replace('"amsh"', '"amhs"'), "unknown method 'amhs'"),
        (GOOD.replace("comparison", "comparisons"), "kind"),
        (GOOD + "[quick]\nwiki = { bits = [32] }\n", "cannot add"),
        (GOOD + "[quick]\nmfeat = { bits = [16] }\n", "not among the data sets"),
        (GOOD + "[published]\nbits = [16]\n[published.wiki.I2T]\nBATCH = [0.1]\n", "no row has this label"),
        (GOOD + "[published]\nbits = [16]\n[published.wiki.I2T]\nAMSH = [0.1, 0.2]\n", "2 values for 1 bits"),
        (GOOD + GOOD[GOOD.index("[[rows]]") :], "same label"),
        (GOOD + "[", "TOMLDecodeError"),
    ],
)
def test_mistakes_are_named_with_the_file(tmp_path, addition, message):
    path = tmp_path / "x.toml"
    path.write_text(addition, encoding="utf-8")
    with pytest.raises(ValueError, match=message) as error:
        load(path)
    assert str(path) in str(error.value)


def table(name, dataset="wiki", **options):
    return cells_of(load_all()[name].grid, dataset, "d" * 64, **options)


@pytest.mark.slow
def test_tables_share_their_fits():
    tables = ("table2", "table2-curves", "table5", "convergence", "table4")
    keys = {
        cell.key
        for name in tables
        for point, cell in table(name).items()
        if point[0] == "AMSH" and point[3:] == (64, 0)
    }
    assert len(keys) == 1
    assert not keys & {cell.key for cell in table("table3").values()}, "another scenario"
    assert {cell.key for cell in table("table2-curves").values()} <= {cell.key for cell in table("table2").values()}
    assert keys & {cell.key for cell in table("sensitivity").values()}


@pytest.mark.slow
def test_quick_is_a_part_of_the_full_run():
    for experiment in load_all().values():
        for dataset in experiment.datasets:
            quick, full = (cells_of(experiment.grid, dataset, "d", quick=quick) for quick in (True, False))
            assert {cell.key for cell in quick.values()} <= {cell.key for cell in full.values()}
    assert {point.seed for point in table("table6", "mirflickr25k-cnn", quick=True)} == {0}


def test_quoted_rows_are_not_run():
    run = {point.label for point in table("table6", "mirflickr25k-cnn")}
    assert run == {"AMSH_cnn", "RLH", *(f"{name} on frozen features" for name in ("DCMH", "PRDH", "AADAH"))}
    assert load_all()["table6"].row("DCMH").quoted


def test_choose_names_what_there_is():
    assert list(choose(load_all(), ["table3", "table2"])) == ["table2", "table3"]
    with pytest.raises(ValueError, match=r"table9.*there are table1"):
        choose(load_all(), ["table9"])
