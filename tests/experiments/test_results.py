"""Results can be packed and read back as rows of tables; reports test rows against one of them and draw curves."""

from __future__ import annotations

import json
import lzma
from dataclasses import replace

import numpy as np
import pytest
from little_grids import GRID, little_grid

from modalhash.evaluation import holm, randomisation_test
from modalhash.experiments import (
    Results,
    curve_figure,
    make_plan,
    pack,
    quality_tables,
    read_studies,
    record,
    seconds_table,
    unpack,
)


def entry(value: float) -> dict:
    return {"map": value, "chance": 0.2, "n_queries": 2, "n_items": 3, "average_precision": [value, None], "curve": [1]}


def result_of(cell) -> dict:
    value = {"amsh": 0.6, "gsph": 0.5, "chance": 0.2}[cell.method] + cell.seed / 10
    return {
        "seconds": {"fit": 1.0, "cpu": 1.5, "stages": {}},
        "queries": "same",
        "started": 5,
        "databases": {kind: {"image→text": entry(value), "text→image": entry(value)} for kind in ("learned", "unseen")},
    }


@pytest.fixture
def grid(tmp_path):
    return little_grid(tmp_path)


@pytest.fixture
def plan(grid):
    return make_plan([grid])


@pytest.fixture
def results(tmp_path, plan):
    found = Results(tmp_path / "results")
    record(plan, found)
    for cell in plan.cells:
        found.write(cell, result_of(cell))
    return found


@pytest.mark.slow
def test_a_folder_keeps_and_refuses(tmp_path, plan):
    results, cell = Results(tmp_path / "results"), plan.cells[0]
    assert results.read(cell) is None
    assert not results.done(cell)
    results.write(cell, {"error": "no"})
    assert results.done(cell)
    assert not results.done(cell, retry=True)
    results.write(cell, {"seconds": 1})
    assert results.done(cell, retry=True)
    assert results.read(cell)["configuration"]["parameters"]["n_anchors"] == 60
    assert [path.name for path in (results.path / "cells" / "little").iterdir()] == [cell.path.partition("/")[2]]
    (results.path / "cells" / cell.path).write_text('{"format": 0}')
    with pytest.raises(ValueError, match="another folder of results"):
        results.read(cell)


def test_a_cell_without_single_queries_is_not_done_for_who_wants_them(tmp_path, plan):
    results, cell = Results(tmp_path / "results"), plan.cells[0]
    results.write(replace(cell, per_query=False), {"seconds": 1})
    assert results.done(replace(cell, per_query=False))
    assert not results.done(cell)
    results.write(cell, {"seconds": 1})
    assert results.done(replace(cell, per_query=False))


def test_rows_have_mean_and_deviation(grid, results):
    (study,) = read_studies(results, grid).values()
    assert study.rows == [("AMSH", "unpaired"), ("GSPH", "unpaired"), ("Chance", "unpaired")]
    assert study.databases == ["learned", "unseen"]
    spread = study.spread("AMSH", 8, "image→text", "learned")
    assert str(spread) == "0.6500 ± 0.0707"
    text = quality_tables(study)[0].to_markdown()
    assert "| AMSH | 0.6500 ± 0.0707 |" in text
    assert "mAP@all" in text
    assert "1.50" in seconds_table(study).to_markdown()


def test_packing_and_unpacking_give_the_same_files(tmp_path, results):
    content = pack(results.path)
    assert content == pack(results.path)
    unpack(content, tmp_path / "again")
    first, second = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.json")}
        for folder in (results.path, tmp_path / "again")
    )
    assert first == second
    with pytest.raises(FileNotFoundError, match="no results"):
        pack(tmp_path / "nothing")


def test_a_packed_file_is_read_like_the_folder(tmp_path, grid, results):
    path = tmp_path / "all.json.xz"
    path.write_bytes(pack(results.path))
    packed = Results(path)
    assert packed.datasets() == results.datasets()
    tables = [
        [table.to_markdown() for study in read_studies(source, grid).values() for table in quality_tables(study)]
        for source in (results, packed)
    ]
    assert tables[0] == tables[1]
    with pytest.raises(ValueError, match="read-only"):
        packed.write_dataset({"name": "x"})
    path.write_bytes(b"something else")
    with pytest.raises(ValueError, match="not packed results"):
        Results(path)


def test_a_packed_file_writes_nowhere_else(tmp_path):
    with pytest.raises(ValueError, match="expected cells/ and datasets/"):
        unpack(lzma.compress(b"../outside.json\t{}"), tmp_path / "here")
    with pytest.raises(ValueError, match="expected cells/ and datasets/"):
        unpack(lzma.compress(b"cells/../../outside.json\t{}"), tmp_path / "here")
    with pytest.raises(ValueError, match="expected cells/ and datasets/"):
        unpack(lzma.compress(b"datasets/a.json\t{}\ncells/../x.json\t{}"), tmp_path / "here")
    assert not (tmp_path / "here").exists(), "nothing, where one file is none"


@pytest.mark.parametrize(
    "text",
    [
        b"\xff",
        b"cells/a/b.json\t{",
        b"cells/a/b.json\t" + b"[" * 100_000,
        b'datasets/a.json\t{"format": 2}',
        b"datasets/a.json\t7",
    ],
)
def test_packed_results_that_are_none(tmp_path, text):
    (tmp_path / "a.json.xz").write_bytes(lzma.compress(text))
    with pytest.raises(ValueError, match=r"a\.json\.xz"):
        Results(tmp_path / "a.json.xz")
    for content in (b"", b"no", lzma.compress(b"cells/a/b.json\t{}")[:-9]):
        with pytest.raises(ValueError, match="not packed results"):
            unpack(content, tmp_path / "here")


def test_a_file_of_results_that_is_damaged_is_named(tmp_path):
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "a.json").write_bytes(b'{"format": 2, "name": "\xff')
    with pytest.raises(ValueError, match=r"a\.json: damaged"):
        Results(tmp_path).datasets()


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("datasets/a.json", {"configuration": {"parameters": {}}}, "does not name its data set"),
        ("cells/a/b.json", {"name": "wiki"}, "not a cell"),
        ("cells/a/b.json", {"configuration": {"parameters": {}}}, "no 'dataset'"),
    ],
)
def test_a_result_in_the_place_of_another_kind_is_refused(tmp_path, name, content, why):
    text = json.dumps({"format": 2, **content})
    (tmp_path / "a.json.xz").write_bytes(lzma.compress(f"{name}\t{text}".encode()))
    with pytest.raises(ValueError, match=why):
        Results(tmp_path / "a.json.xz")
    path = tmp_path / "folder" / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    results = Results(tmp_path / "folder")
    with pytest.raises(ValueError, match=why):
        list(results.everything() if name.startswith("cells") else results.datasets())


def test_a_report_shows_what_other_code_measured_and_a_run_does_not_take_it(tmp_path, grid, plan):
    results = Results(tmp_path / "results")
    record(plan, results)
    cell = plan.cells[0]
    given = next(row.parameters for row in grid.rows if row.method == cell.method)
    results.write(replace(cell, code="old"), {**result_of(cell), "started": 1})
    results.write(replace(cell, code="newer"), {**result_of(cell), "started": 2})
    assert not results.done(cell)
    assert results.find(cell, given)["started"] == 2


def test_parameters_that_the_method_did_not_have_yet_do_not_count_unless_they_are_set(tmp_path, grid, plan):
    results = Results(tmp_path / "results")
    cell = next(cell for cell in plan.cells if cell.method == "amsh")
    known = json.loads(cell.parameters)
    del known["margins"]
    results.write(replace(cell, code="old", parameters=json.dumps(known)), result_of(cell))
    assert results.find(cell, {"n_anchors": 60}) is not None
    assert Results(results.path).find(cell, {"margins": True}) is None
    other = replace(cell, parameters=json.dumps({**json.loads(cell.parameters), "n_anchors": 61}))
    assert results.find(other, {"n_anchors": 61}) is None


def test_several_scenarios_are_told_apart(tmp_path):
    grid = little_grid(tmp_path, GRID.replace('scenario = "unpaired"', 'scenarios = ["unpaired", "paired"]'))
    plan = make_plan([grid])
    results = Results(tmp_path / "results")
    record(plan, results)
    for cell in plan.cells:
        better = {"databases": {"learned": {"image→text": entry(0.9)}}} if cell.scenario == "paired" else {}
        results.write(cell, result_of(cell) | better)
    (study,) = read_studies(results, grid).values()
    assert study.mean("AMSH", 8, "image→text", scenario="paired") == 0.9
    assert study.mean("AMSH", 8, "image→text", scenario="unpaired") == pytest.approx(0.65)
    assert "| AMSH | paired | 0.9000 ± 0.0000 |" in quality_tables(study)[0].to_markdown()


def test_packing_without_queries_leaves_the_numbers_as_they_are(tmp_path, grid, results):
    path = tmp_path / "small.json.xz"
    path.write_bytes(pack(results.path, per_query=False))
    assert path.stat().st_size < len(pack(results.path))
    (study,), (small,) = (list(read_studies(source, grid).values()) for source in (results, Results(path)))
    for whole, table in zip(quality_tables(study), quality_tables(small), strict=True):
        assert [[str(cell) for cell in row] for row in whole.rows] == [
            [str(cell) for cell in row] for row in table.rows
        ]
        assert "Not tested: GSPH, Chance; the results of AMSH have no average precision per query" in table.notes[-1]
    label, _ = small.rows[0]
    assert small.per_query(small.of(label, small.bits[0])[0], "learned", small.directions[0]) is None
    assert small.memory(label, small.bits[0]) is None or small.memory(label, small.bits[0]) > 1e6


LEVELS = {"amsh": 0.6, "gsph": 0.3, "chance": 0.6}


def precisions(cell) -> list[float | None]:
    """Forty queries and one that does not count; those of chance are as good as those of AMSH."""
    rng = np.random.default_rng([cell.seed, cell.bits, *cell.method.encode()])
    return [*np.clip(rng.normal(LEVELS[cell.method], 0.1, 40), 0, 1).round(4).tolist(), None]


def measured_result(cell, *, queries: str = "same", kept: bool = True) -> dict:
    each = precisions(cell)
    entry = {"map": float(np.mean(each[:-1])), "chance": 0.2, "n_queries": 41, "n_items": 120}
    if kept:
        entry |= {"average_precision": each, "curve": np.linspace(LEVELS[cell.method], 0.1, 51).tolist()}
    directions = {"image→text": entry, "text→image": entry}
    return {
        "seconds": {"fit": 1.0, "cpu": 1.5, "stages": {}},
        "queries": queries,
        "started": 5,
        "databases": dict.fromkeys(("learned", "hashed", "unseen"), directions),
    }


def study_of(folder, text=GRID, result=measured_result):
    grid = little_grid(folder, text)
    plan, results = make_plan([grid]), Results(folder / "results")
    record(plan, results)
    for cell in plan.cells:
        results.write(cell, result(cell))
    (study,) = read_studies(results, grid).values()
    return study


def arrows(study, against: str = "") -> dict[str, set[str]]:
    return {
        row[0]: {getattr(cell, "arrow", "") for cell in row[1:]}
        for table in quality_tables(study, against)
        for row in table.rows
    }


def test_arrows_mark_what_differs_from_the_first_row(tmp_path):
    study = study_of(tmp_path)
    assert arrows(study) == {"AMSH": {""}, "GSPH": {"↓"}, "Chance": {""}}
    assert arrows(study, "GSPH") == {"AMSH": {"↑"}, "GSPH": {""}, "Chance": {"↑"}}
    table = quality_tables(study)[0]
    assert " ↓ |" in table.to_markdown()
    assert "worse than AMSH: p < 0.05" in table.notes[-1]
    assert "corrected by Holm for the 24 tests of this data set" in table.notes[-1]
    with pytest.raises(ValueError, match="no row has the label 'AMHS'; there are AMSH, GSPH, Chance"):
        quality_tables(study, "AMHS")


def test_a_query_counts_once_with_its_mean_over_the_seeds(tmp_path):
    study = study_of(tmp_path)
    tests = study.tests("AMSH")
    cells = {(point.label, point.bits, point.seed): cell for point, cell in study.cells.items()}
    first, second = (
        np.mean([precisions(cells[label, 8, seed])[:-1] for seed in (0, 1)], axis=0) for label in ("Chance", "AMSH")
    )
    found = tests[("Chance", "unpaired", ""), 8, "image→text", "learned"]
    assert found.difference == pytest.approx(float(np.mean(first - second)))
    assert found.p == pytest.approx(randomisation_test(first, second), abs=0.02)
    assert sorted(holm([test.p for test in tests.values()])) == sorted(test.p_holm for test in tests.values())


@pytest.mark.parametrize(
    ("spoiled", "note"),
    [
        ({"kept": False}, "Not tested: GSPH; the results of GSPH have no average precision per query"),
        ({"queries": "others"}, "Not tested: GSPH; no seed has the same queries as AMSH"),
    ],
)
def test_a_row_that_cannot_be_tested_says_why(tmp_path, spoiled, note):
    study = study_of(tmp_path, result=lambda cell: measured_result(cell, **(spoiled if cell.method == "gsph" else {})))
    assert arrows(study) == {"AMSH": {""}, "GSPH": {""}, "Chance": {""}}
    notes = quality_tables(study)[0].notes
    assert "for the 12 tests" in notes[-2]
    assert notes[-1].startswith(note)


def test_a_row_is_tested_against_that_of_its_scenario(tmp_path):
    text = GRID.replace('scenario = "unpaired"', 'scenarios = ["unpaired", "paired"]')

    def result(cell):
        return measured_result(cell, queries=cell.scenario)  # so that only rows of one scenario can be compared

    study = study_of(tmp_path, text, result)
    assert {row for row, *_ in study.tests("AMSH")} == {
        (label, scenario, "") for label in ("GSPH", "Chance") for scenario in ("unpaired", "paired")
    }
    assert "worse than AMSH in the same scenario" in quality_tables(study)[0].notes[-1]


def test_points_of_a_sweep_are_tested_within_it(tmp_path):
    rows = GRID[: GRID.index('[[rows]]\nlabel = "GSPH"')]
    sweep = '[[sweeps]]\nname = "s"\ntitle = "S"\nsymbols = {ridge = "r"}\nvalues = {ridge = [0.1, 1]}\n'
    study = study_of(tmp_path, rows + sweep)
    assert {row for row, *_ in study.tests("r=0.1")} == {("r=1", "unpaired", "s")}
    assert curve_figure(study) is None, "curves of many points show nothing"


@pytest.mark.slow
def test_curves_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    study = study_of(tmp_path)
    text = curve_figure(study, "GSPH").decode()
    for words in (
        "Precision over recall on little",
        "GSPH",
        "Chance",
        "image → text, 8 bits",
        "text → image, 16 bits",
        "precision, learned",
        "precision, unseen",
        "2 seeds. The thick line is GSPH",
        "ties=expected",
    ):
        assert words in text  # fmt: skip
    assert "hashed" not in text
    assert curve_figure(study, "GSPH").decode() == text, "the same results give the same file"
    assert curve_figure(study, kind="png").startswith(b"\x89PNG")
    (tmp_path / "other").mkdir()
    without = study_of(tmp_path / "other", result=lambda cell: measured_result(cell, kept=False))
    assert curve_figure(without) is None
