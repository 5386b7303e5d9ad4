"""Grid files: mistakes are named with the file before any fit, and a cell is known by all its numbers depend on."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from little_grids import GRID, little_grid, write_grid

from modalhash.experiments import Scenario, cells_of, code_digest, load_grid, provenance
from modalhash.experiments.config import resolved, unique
from modalhash.experiments.provenance import MEASURING, source_digest
from modalhash.methods import registry


@pytest.mark.slow
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
        (GRID + "[quick]\nlittle = { bits = [32] }\n", "cannot add"),
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


@pytest.fixture
def cells(tmp_path):
    return list(cells_of(little_grid(tmp_path), "little", "d" * 64).values())


@pytest.mark.parametrize(
    "change",
    [{"digest": "e" * 64}, {"scenario": "paired"}, {"parameters": "{}"}, {"bits": 9}, {"seed": 9}, {"code": "2"},
     {"protocol": "mAP@50"}, {"features": "labels"}, {"intra": True}],
    ids=str,
)  # fmt: skip
def test_the_key_changes_with_what_a_result_depends_on(cells, change):
    assert replace(cells[0], **change).key != cells[0].key


@pytest.mark.parametrize("change", [{"limit_seconds": 1.0}, {"per_query": False}], ids=str)
def test_the_key_does_not_change_with_what_numbers_do_not_depend_on(cells, change):
    assert replace(cells[0], **change).key == cells[0].key


def test_cells_are_measured_once_with_all_that_anyone_wants(cells):
    without = [replace(cell, per_query=False) for cell in cells]
    assert len(unique([*without, *cells])) == len(cells)
    assert all(cell.per_query for cell in unique([*without, *cells]))


def test_an_unknown_parameter_is_named():
    with pytest.raises(ValueError, match="amsh has no parameter colour"):
        resolved("amsh", '{"colour": 1}')


def changed(module: str, change):
    """Return a reader of sources that finds one module changed."""

    def read(name: str):
        source = provenance._read(name)
        return source if source is None or name != module else (change(source[0]), source[1])

    return read


@cache  # of the sources as they are, which many tests compare with; a changed reader is another one each time
def digest(method: str, read=None) -> str:
    return source_digest([registry.method(method).__module__, MEASURING], read)


def comment(text: str) -> str:
    return text.replace('"""', '"""Reworded: ', 1) + "\n# a remark\n"


def number(text: str) -> str:
    return text + "\nTOLERANCE = 1e-7\n"


def test_a_comment_keeps_the_digest():
    assert digest("amsh") == code_digest("amsh")
    assert digest("amsh", changed("modalhash.core.linalg", comment)) == digest("amsh")
    assert digest("amsh", changed("modalhash.methods.amsh", comment)) == digest("amsh")


def test_a_number_changes_the_methods_that_use_it_and_no_others():
    read = changed("modalhash.core.linalg", number)
    assert digest("amsh", read) != digest("amsh")
    assert digest("batch", read) != digest("batch")
    read = changed("modalhash.methods.amsh.codes", number)
    assert digest("amsh", read) != digest("amsh")
    assert digest("batch", read) == digest("batch")


@pytest.mark.parametrize("module", ["modalhash.evaluation.measures", "modalhash.data.scenarios",
                                    "modalhash.experiments.measure", "modalhash.core.bit_kernels", "modalhash.methods.base"])  # fmt: skip
def test_what_measures_counts_for_every_method(module):
    read = changed(module, number)
    assert all(digest(method, read) != digest(method) for method in ("amsh", "chance"))


@pytest.mark.parametrize("module", ["modalhash.cli.experiment", "modalhash.evaluation.figures", "modalhash.core.progress",
                                    "modalhash.evaluation.trec", "modalhash.methods.registry"])  # fmt: skip
def test_what_only_shows_does_not_count(module):
    assert digest("amsh", changed(module, number)) == digest("amsh")


def test_a_method_outside_the_package_counts_with_its_own_package(tmp_path, monkeypatch):
    package = tmp_path / "outside"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "steps.py").write_text("STEP = 1\n")
    (package / "mine.py").write_text("from outside.steps import STEP\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    first = source_digest(["outside.mine"], changed("", str))
    assert source_digest(["outside.mine"], changed("outside.steps", number)) != first
    assert source_digest(["outside.mine"], changed("outside.steps", comment)) == first
    with pytest.raises(ValueError, match=r"no source of outside\.yours"):
        source_digest(["outside.yours"])
