"""The tables of how search grows are those of the committed results."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def scale(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "speed"))
    return import_module("scale_page")


def test_the_pages_are_those_of_the_results(scale):
    for name in scale.PAGES:
        page = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert page == scale.filled(page), "run benchmarks/speed/scale_page.py"
        assert "<!-- filters: benchmarks/speed/scale_page.py -->\n\n|" in page


def test_a_table_that_was_changed_by_hand_is_noticed(scale):
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    for name in ("growth", "filters", "opening"):
        mark = f"<!-- {name}: benchmarks/speed/scale_page.py -->\n"
        assert scale.filled(page.replace(mark, f"{mark}| 1 |\n")) == page


def test_what_was_promised_of_labels_was_measured(scale):
    """One hundredth of ten million items within 0.3 s, right after a write."""
    (row,) = (
        row
        for row in scale.read("filter_speed")["rows"]
        if row["search"] == "label = topic 30" and row["items"] == 10_000_000
    )
    assert row["matching_ms"] <= 300
    assert row["first_ms"] <= 300
    assert 0.009 < row["passing"] / row["items"] < 0.012
