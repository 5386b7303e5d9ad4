"""The pages of the comparisons are those of the committed results."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def quality(monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "quality"))
    return import_module("comparison_pages")


def test_the_pages_are_those_of_the_results(quality):
    for name, content in quality.pages(ROOT / "benchmarks" / "results").items():
        if name.endswith(".md"):  # another matplotlib may draw other bytes
            assert (ROOT / "docs" / name).read_bytes() == content, "run benchmarks/quality/comparison_pages.py"
        else:
            assert content.startswith(b"<?xml")


@pytest.mark.parametrize("name", ["paired", "unpaired", "pair_shares", "six_modalities"])
def test_every_row_of_the_grids_was_measured(quality, name):
    for study in quality.read(ROOT / "benchmarks" / "results", name).values():
        assert len(study.results) == len(study.cells)


def test_the_page_of_rlh_is_that_of_its_results(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "quality"))
    page = import_module("rlh_page")
    copy = tmp_path / "rlh.md"
    copy.write_bytes((ROOT / "docs" / "measurements" / "rlh.md").read_bytes())
    monkeypatch.setattr(page, "PAGE", copy)
    monkeypatch.setattr("sys.argv", ["rlh_page.py"])
    page.main()
    assert copy.read_bytes() == (ROOT / "docs" / "measurements" / "rlh.md").read_bytes(), (
        "run benchmarks/quality/rlh_page.py"
    )


def test_the_page_of_wrong_labels_is_that_of_its_results(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "quality"))
    page = import_module("noisy_labels_page").page()
    assert (ROOT / "docs" / "measurements" / "noisy-labels.md").read_text(encoding="utf-8") == page, (
        "run noisy_labels_page.py"
    )


def test_the_deep_methods_choices_are_those_measured(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "quality"))
    choices = import_module("deep_choices")
    table = choices.summary(json.loads(choices.RESULTS.read_text(encoding="utf-8")))
    assert f"\n\n{table}\n\n" in (ROOT / "docs" / "measurements" / "deep.md").read_text(encoding="utf-8"), (
        "run deep_choices.py"
    )
