"""The speed table says what the result files say, missed marks included."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks" / "speed"


@pytest.fixture
def table(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("speed_table")


@pytest.fixture
def results(tmp_path, table):
    from speed_rows import row

    good = row("fast", "a search", against="FAISS", ours=1.0, theirs=3.0, mark=">= 2.5 x", note="best of 3")
    bad = row("slow", "a fit", against="the floor", ours=3.2, theirs=2.0, mark="<= 1.5 x", note="one core only")
    alone = row("start", "import", against="", ours=0.1, theirs=None, mark="<= 0.35 s")
    machine = {"processor": "p", "cores": 2, "python": "3.11", "versions": {"numpy": "2"}, "commit": "abc", "load": 0.5}
    for name, rows in {"search_speed": [good], "training_speed": [bad, alone], "other": [{"map": 0.5}]}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"environment": machine, "rows": rows}))
    (tmp_path / "list.json").write_text("[]")
    return tmp_path


def test_rows(results, table):
    found = table.load(results)
    assert list(found) == ["training_speed", "search_speed"], "in the order of the sections, others left out"
    (bad, alone), (good,) = (content["rows"] for content in found.values())
    assert (good["ratio"], good["met"]) == (3.0, True)
    assert (bad["ratio"], bad["met"]) == (1.6, False)
    assert (alone["ratio"], alone["met"]) == (None, True)
    assert all(set(line) == table.KEYS for line in (good, bad, alone))
    page, text = table.as_page(found), table.as_text(found)
    assert "Missed: a fit: one core only" in page
    assert "| a search | FAISS | 1 s | 3 s | 3 | ≥ 2.5 × | yes |" in page
    assert len({len(line) for line in text.splitlines()}) == 1


def test_no_id_twice(results, table):
    (results / "again.json").write_text((results / "search_speed.json").read_text())
    with pytest.raises(ValueError, match="same id: fast"):
        table.check(table.load(results))


@pytest.mark.parametrize(
    ("value", "mark", "met"),
    [(2.5, ">= 2.5 x", True), (2.4, ">= 2.5 x", False), (1.06, "<= 1.05", False), (9, "-", True)],
)
def test_marks(table, value, mark, met):
    from speed_rows import reached

    assert reached(value, mark) is met


def test_a_mark_that_nobody_can_read(table):
    from speed_rows import reached

    with pytest.raises(ValueError, match="mark is 'fast'"):
        reached(1, "fast")


def test_the_page_is_that_of_the_results(table):
    found = table.load()
    table.check(found)
    assert table.PAGE.read_text(encoding="utf-8") == table.as_page(found), "run benchmarks/speed/speed_table.py"
