"""Every experiment file is whole: known methods and parameters, the paper's numbers, words where it is silent."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from modalhash.reproduce.cells import resolved
from modalhash.reproduce.config import folder, load, load_all
from modalhash.reproduce.sources import SOURCES

PAPER = Path(__file__).resolve().parents[3] / "shared" / "paper" / "published.csv"
NAMES = {"mirflickr25k-cnn": "mirflickr25k", "nuswide21-cnn": "nuswide10"}  # Table VI, as the list has them
FILES = sorted(folder().glob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_is_whole(path):
    experiment = load(path)
    assert experiment.id == path.stem
    assert set(experiment.datasets) <= set(SOURCES)
    for row in experiment.rows:
        if not row.quoted:
            resolved(row.method, json.dumps(row.parameters))  # raises for a parameter that the constructor lacks
    for part in (*experiment.quick.values(), *experiment.full.values()):
        assert set(part.rows or ()) <= {row.label for row in experiment.rows}
    assert experiment.kind == "statistics" or (experiment.bits and experiment.seeds and experiment.rows)


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
        assert SOURCES[dataset].facts.items() <= published.items()
        assert SOURCES[dataset].queries == published["query"]
        assert published["total"] == published["query"] + published["training"]


def test_the_order_is_the_papers():
    assert list(load_all()) == [
        "table1", "table2", "table2-curves", "table3", "table3-curves", "sensitivity", "table4", "convergence",
        "table5", "table6",
    ]  # fmt: skip


GOOD = """
id = "x"
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
        (GOOD + "[quick]\nwiki = { bits = [32] }\n", "do not add"),
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


def test_an_unknown_parameter_is_named():
    with pytest.raises(ValueError, match="amsh has no parameter colour"):
        resolved("amsh", '{"colour": 1}')
