"""Grid files: what they may say, and that mistakes are named with the file before anything is fitted."""

from __future__ import annotations

import pytest
from little_grids import GRID, little_grid, write_grid

from modalhash.experiments import Scenario, cells_of, load_grid


def test_a_grid_is_rows_times_bits_times_seeds(tmp_path):
    grid = little_grid(tmp_path)
    assert grid.name == "little"
    assert len(cells_of(grid, "little", "d")) == 3 * 2 * 2
    assert {row.scenario for row in grid.rows} == {"unpaired"}


def test_a_slow_row_may_have_fewer_seeds(tmp_path):
    grid = little_grid(tmp_path, GRID + "seeds = 1\n")  # of the last row
    seeds = {}
    for point in cells_of(grid, "little", "d"):
        seeds.setdefault(point.label, set()).add(point.seed)
    assert seeds == {"AMSH": {0, 1}, "GSPH": {0, 1}, "Chance": {0}}
    with pytest.raises(ValueError, match="Chance: 3 seeds; a row has at most the 2 of the grid"):
        little_grid(tmp_path, GRID + "seeds = 3\n")


def test_rows_are_run_in_every_scenario(tmp_path):
    several = GRID.replace('scenario = "unpaired"', 'scenarios = ["unpaired", "semi_paired:0.5", "paired"]')
    grid = little_grid(tmp_path, several + 'scenarios = ["paired"]\n')
    assert [(row.label, row.scenario) for row in grid.rows] == [
        ("AMSH", "unpaired"), ("AMSH", "semi_paired:0.5"), ("AMSH", "paired"),
        ("GSPH", "unpaired"), ("GSPH", "semi_paired:0.5"), ("GSPH", "paired"), ("Chance", "paired"),
    ]  # fmt: skip


def test_a_sweep_is_a_row_per_combination(tmp_path):
    one = GRID[: GRID.index('[[rows]]\nlabel = "GSPH"')]
    sweep = (
        one
        + '[[sweeps]]\nname = "both"\ntitle = "t"\nsymbols = {intra = "λ", inter = "β"}\n'
        + ("values = {intra = [0.1, 1], inter = [0.1, 1, 10]}\n")
    )
    grid = little_grid(tmp_path, sweep)
    assert [row.label for row in grid.rows[:2]] == ["λ=0.1, β=0.1", "λ=0.1, β=1"]
    assert len(grid.rows) == 6
    assert grid.rows[5].parameters == {"n_anchors": 60, "code_iter": 3, "function_iter": 3, "intra": 1, "inter": 10}
    with pytest.raises(ValueError, match="vary the parameters of one row"):
        little_grid(tmp_path, GRID + sweep[sweep.index("[[sweeps]]") :])


def test_quick_is_a_part(tmp_path):
    assert len(cells_of(little_grid(tmp_path), "little", "d", quick=True)) == 3 * 2, "one seed unless the file says"
    part = little_grid(tmp_path, GRID + '[quick]\nlittle = {bits = [8], seeds = 2, rows = ["AMSH"]}\n')
    assert len(cells_of(part, "little", "d", quick=True)) == 2
    nothing = little_grid(tmp_path, GRID + "[quick]\n")
    assert not cells_of(nothing, "little", "d", quick=True)


def test_none_is_written_as_text(tmp_path):
    grid = little_grid(tmp_path, GRID.replace("n_anchors = 60", 'kernel = "none"'))
    assert grid.rows[0].parameters["kernel"] is None


def test_a_file_stands_beside_the_grid(tmp_path):
    grid = little_grid(tmp_path, GRID.replace("generated = {n_items = 120, n_queries = 17}", 'file = "mine.npz"'))
    assert list(grid.inputs["little"].files) == [str(tmp_path / "mine.npz")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("colour = 1\n" + GRID, "unknown key.*colour"),
        (GRID.replace('"amsh"', '"amhs"'), "AMSH: unknown method 'amhs'"),
        (GRID.replace('"amsh"', '"no.such.module:Class"'), "AMSH: "),
        (GRID.replace('"unpaired"', '"impaired"'), "scenario"),
        (GRID.replace('"unpaired"', '"noisy_labels:0.1+paired"'), "one pairing, first"),
        (GRID.replace('"unpaired"', '"paired:0.5"'), "takes no number"),
        (GRID + "[quick]\nlittle = { bits = [32] }\n", "do not add"),
        (GRID + '[quick]\nlittle = { rows = ["BATCH"] }\n', "no row has the label BATCH"),
        (GRID + "[quick]\nmfeat = { bits = [16] }\n", "not among the data sets"),
        (GRID + GRID[GRID.index("[[rows]]") :], "same label"),
        (GRID.replace('name = "little"', 'name = "little", colour = 1'), "data set: unknown key.*colour"),
        (GRID + "[", "TOMLDecodeError"),
        ("a = " + "[" * 5000, "RecursionError"),
    ],
)
def test_mistakes_are_named_with_the_file(tmp_path, text, message):
    path = write_grid(tmp_path, text)
    with pytest.raises(ValueError, match=message) as error:
        load_grid(path)
    assert str(path) in str(error.value)


def test_scenarios_are_read():
    assert Scenario.parse("unpaired").steps == (("unpaired", None),)
    assert Scenario.parse("missing_labels:0.2").steps == (("paired", None), ("missing_labels", 0.2))


@pytest.mark.parametrize(
    "wrong", ["quick = 3", "full = [1]", "rows = 3", "sweeps = [1]", "datasets = 3", "bits = [{}]"]
)
def test_a_value_of_another_kind_is_named_with_the_file(tmp_path, wrong):
    path = tmp_path / "grid.toml"
    key = wrong.split()[0]
    lines = {"datasets": 'datasets = ["wiki"]', "bits": "bits = [16]", key: wrong}
    path.write_text("\n".join(lines.values()) + "\n[full.wiki]\nbits = [{}]\n" * (key == "bits"))
    with pytest.raises(ValueError, match=r"grid\.toml: "):
        load_grid(path)


def test_a_number_beyond_all_bounds_is_named_with_the_file(tmp_path):
    path = tmp_path / "grid.toml"
    number = "9" * 400
    path.write_text(
        'datasets = ["wiki"]\nbits = [16]\n[[rows]]\nlabel = "A"\nmethod = "amsh"\n'
        f'[[sweeps]]\nname = "s"\ntitle = "t"\nvalues = {{intra = [{number}]}}\nsymbols = {{intra = "λ"}}\n'
    )
    with pytest.raises(ValueError, match=r"grid\.toml: OverflowError"):
        load_grid(path)
