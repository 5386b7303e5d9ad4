"""The pages of the comparisons are those of the committed results."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

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


def test_every_cell_of_the_comparison_was_measured(quality):
    studies, significance = quality.read_comparison(ROOT / "benchmarks" / "results")
    assert list(studies) == ["mirflickr25k", "iapr-tc12-255", "wiki", "mfeat", "openmoji"]
    for name, study in studies.items():
        assert len(study.results) == len(study.cells)
        assert {row.label for row in quality.present(study)} - set(significance[name]["AMSH"]) == {"AMSH"}


def test_the_tables_of_rlh_are_those_of_the_results(quality):
    page = (ROOT / "docs" / "measurements" / "rlh.md").read_text(encoding="utf-8")
    assert quality.rlh_page(page, ROOT / "benchmarks" / "results") == page, "run benchmarks/quality/comparison_pages.py"


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
