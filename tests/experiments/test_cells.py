"""A cell is known by all that its numbers depend on, the code included, and by nothing else."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from little_grids import little_grid

from modalhash.experiments import cells_of, code_digest, provenance
from modalhash.experiments.cells import resolved, unique
from modalhash.experiments.provenance import MEASURING, source_digest
from modalhash.methods import registry


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
    return source_digest([registry.get(method).__module__, MEASURING], read)


def comment(text: str) -> str:
    return text.replace('"""', '"""Reworded: ', 1) + "\n# a remark\n"


def number(text: str) -> str:
    return text + "\nTOLERANCE = 1e-7\n"


def test_a_comment_keeps_the_digest():
    assert digest("amsh") == code_digest("amsh")
    assert digest("amsh", changed("modalhash.core.linalg", comment)) == digest("amsh")
    assert digest("amsh", changed("modalhash.methods.amsh.estimator", comment)) == digest("amsh")


def test_a_number_changes_the_methods_that_use_it_and_no_others():
    read = changed("modalhash.core.linalg", number)
    assert digest("amsh", read) != digest("amsh")
    assert digest("batch", read) != digest("batch")
    assert digest("chance", read) == digest("chance"), "random codes need no linear algebra"
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
