"""A report tests its rows against one of them, says where it cannot, and draws curves."""

from __future__ import annotations

import numpy as np
import pytest
from little_grids import GRID, little_grid

from modalhash.evaluation import holm, randomisation_test
from modalhash.experiments import Results, curve_figure, make_plan, quality_tables, read_studies, record

LEVELS = {"amsh": 0.6, "gsph": 0.3, "chance": 0.6}


def precisions(cell) -> list[float | None]:
    """Forty queries and one that does not count; those of chance are as good as those of AMSH."""
    rng = np.random.default_rng([cell.seed, cell.bits, *cell.method.encode()])
    return [*np.clip(rng.normal(LEVELS[cell.method], 0.1, 40), 0, 1).round(4).tolist(), None]


def result_of(cell, *, queries: str = "same", kept: bool = True) -> dict:
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


def study_of(folder, text=GRID, result=result_of):
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
        ({"queries": "others"}, "Not tested: GSPH; no seed asked the same queries as AMSH"),
    ],
)
def test_a_row_that_cannot_be_tested_says_why(tmp_path, spoiled, note):
    study = study_of(tmp_path, result=lambda cell: result_of(cell, **(spoiled if cell.method == "gsph" else {})))
    assert arrows(study) == {"AMSH": {""}, "GSPH": {""}, "Chance": {""}}
    notes = quality_tables(study)[0].notes
    assert "for the 12 tests" in notes[-2]
    assert notes[-1].startswith(note)


def test_a_row_is_tested_against_that_of_its_scenario(tmp_path):
    text = GRID.replace('scenario = "unpaired"', 'scenarios = ["unpaired", "paired"]')

    def result(cell):
        return result_of(cell, queries=cell.scenario)  # so that only rows of one scenario can be compared

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
    without = study_of(tmp_path / "other", result=lambda cell: result_of(cell, kept=False))
    assert curve_figure(without) is None
