"""The speed table says what the result files say, missed marks included."""

from __future__ import annotations

import json
import re
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
    top, _, sections = page.partition("## Training")
    assert "1 of 3 marks were missed" in top
    assert "| a fit | the floor | 3.2 s | 2 s | 1.6 | ≤ 1.5 × | **no** |" in top.replace(table.NO_BREAK, " ")
    assert "- a fit: one core only" in top
    assert "| a fit |" in sections, "in its section as well"
    assert "| a search |" not in top
    assert "| a search | FAISS | 1 s | 3 s | 3 | ≥ 2.5 × | yes |" in page.replace(table.NO_BREAK, " ")
    assert f"| 1{table.NO_BREAK}s | 3{table.NO_BREAK}s |" in page
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


def test_a_page_without_missed_marks_says_so(results, table):
    (results / "training_speed.json").unlink()
    assert "None: all 1 were reached." in table.as_page(table.load(results))


def test_the_page_is_that_of_the_results(table):
    found = table.load()
    table.check(found)
    assert table.PAGE.read_text(encoding="utf-8") == table.as_page(found), "run benchmarks/speed/speed_table.py"


def test_figures_that_the_page_shows_are_there(table):
    shown = re.findall(r"\(images/(.*?)\)", table.PAGE.read_text(encoding="utf-8"))
    assert shown == list(table.figures.captions(table.load()))
    assert all((table.FIGURES / name).exists() for name in shown)


@pytest.mark.slow
def test_figures_are_made_of_rows(table):
    def line(name: str, **values: object) -> dict[str, object]:
        return {"row": name, "measure": name, "reach": ">= 2 x", "ours": 1.0, "theirs": 4.0, "ratio": 4.0, **values}

    rows = {
        "search_speed": [
            line("top100-64-1"),
            line("top100-16-1", ratio=9.0),
            line("top100-64-alone-1"),
            line("top100-64-2"),
        ],
        "growth_faiss": [line("growth-10-flat-alone"), line("growth-10-HNSW-alone", theirs=None, ratio=None)],
        "training_speed": [line("fit"), line("memory", reach="<= 4", ratio=None)],
    }
    found = {name: {"rows": own} for name, own in rows.items()}
    assert table.figures.by_length(found) == {"together": [(16, 9), (64, 4)], "one by one": [(64, 4)]}
    assert table.figures.by_size(found) == {"HammingIndex (exact)": [(10, 1)], "FAISS flat": [(10, 4)]}
    assert table.figures.of_training(found) == [("fit", 4, 2)]
    drawn = table.figures.draw(found)
    assert list(drawn) == list(table.figures.captions(found)) == list(table.figures.DRAWN)
    assert drawn == table.figures.draw(found), "the same bytes for the same results"
    assert table.figures.draw({}) == {}


def test_medians_and_their_spread(table):
    from speed_rows import Run, middle, ratio_spread, spread

    ours, theirs = ([Run(seconds, 0) for seconds in some] for some in ((1, 9, 2), (2, 9, 6)))
    assert middle(ours) == 2
    assert spread(ours) == "1 to 9 s in 3 runs"
    assert ratio_spread(ours, theirs) == "median of 3 in turn; ratios of single turns 1 to 3"


@pytest.fixture
def runner(table):
    return import_module("run")


def test_budgets_fit_into_the_whole(runner):
    assert sum(script.seconds for script in runner.SCRIPTS) <= runner.TOTAL
    assert sum(script.quick_seconds for script in runner.SCRIPTS) <= runner.QUICK_TOTAL
    assert all((BENCHMARKS / f"{script.name}.py").exists() for script in runner.SCRIPTS)


@pytest.mark.slow
def test_a_script_that_fails_or_takes_too_long_does_not_stop_the_others(runner, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(runner, "HERE", tmp_path)
    (tmp_path / "broken.py").write_text("raise SystemExit(3)")
    (tmp_path / "endless.py").write_text("while True: pass")
    (tmp_path / "good.py").write_text(
        f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r})\n"
        "from speed_rows import row, show\n"
        "show(row('good', 'a thing', against='b', ours=1.0, theirs=3.0, mark='-'))"
    )
    scripts = tuple(
        runner.Script(name, budget, budget) for name, budget in (("broken", 30), ("endless", 1), ("good", 30))
    )
    problems = runner.run_all(scripts, quick=True, rows_file=tmp_path / "rows")
    assert [problem.partition(";")[0] for problem in problems] == ["broken: ended with 3", "endless: not done in 1 s"]
    assert [line["ratio"] for line in runner.rows_in(tmp_path / "rows")] == [3.0]
    assert "good (3 of 3): at most 30 s" in capfd.readouterr().out


@pytest.fixture
def history(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("history")


def measured(date, *rows):
    machine = {"processor": "p", "cores": 2, "date": date, "commit": "abc"}
    return {"search_speed": {"environment": machine, "rows": list(rows)}}


def test_history_names_what_became_slower(tmp_path, history):
    from speed_rows import row

    path = tmp_path / "history.jsonl"
    for day, seconds, ratio in ((1, 1.0, 4.0), (2, 1.0, 4.2), (3, 1.1, 3.0)):
        alone = row("import", "import", against="", ours=seconds, theirs=None, mark="-")
        faster = row("search", "a search", against="FAISS", ours=1.0, theirs=ratio, mark=">= 2 x")
        floor = row("fit", "a fit", against="floor", ours=1.2, theirs=1.0, mark="<= 1.5 x")
        history.add(measured(f"2026-01-0{day}", alone, faster, floor), path)
        history.add(measured(f"2026-01-0{day}", alone, faster, floor), path)
    assert len(history.read(path)) == 3, "a result is added once"
    (found,) = history.slower(history.read(path))
    assert found.startswith("search_speed: search has 3 where 4.1 was usual: 27% slower"), "10 % of seconds are noise"


def test_history_compares_a_processor_with_itself(tmp_path, history):
    old = {"benchmark": "b", "date": "1", "commit": "a", "processor": "fast", "rows": {"x": 9.0}}
    assert history.slower([old, {**old, "date": "2", "processor": "slow", "rows": {"x": 1.0}}]) == []


def test_the_history_has_what_the_result_files_have(table, history):
    known = {(one["benchmark"], one["date"]) for one in history.read()}
    assert {
        (name, content["environment"]["date"])
        for name, content in table.load().items()
        if "date" in content["environment"]
    } <= known
