"""Two reports are compared number by number."""

from __future__ import annotations

from pathlib import Path

import pytest

from reproduction.compare import compare, read_tables

REPORT = """
**Table II. mAP, one seed.**

| method | learned: 16 | learned: 32 |
| --- | --- | --- |
| AMSH (image → text) | **0.7455 ±0.0100** | 0.7516 |
| BATCH (image → text) | 0.7406 ▼ | −0.0010 |

**Claims**

| the paper says | data | here | evidence |
| --- | --- | --- | --- |
| AMSH beats BATCH | Wiki | **holds** | learned 8/8 |
| AMSH beats BATCH | Mfeat | **does not hold** | learned 1/4 |

**Table IV. CPU seconds.**

| method | 16 |
| --- | --- |
| AMSH | 1.00 |
"""


def test_a_report_agrees_with_itself():
    found = compare(REPORT, REPORT)
    assert (found.cells, found.numbers, found.equal, found.largest, found.lines) == (8, 9, 9, 0.0, ())


def test_differences_are_found_and_named():
    found = compare(REPORT, REPORT.replace("0.7516", "0.7526").replace("| 1.00 |", "| 9.00 |"))
    assert found.largest == pytest.approx(0.001)
    assert found.lines == ("Table II. mAP, one seed. | AMSH (image → text) | learned: 32: 0.7516 → 0.7526",)
    assert compare(REPORT, REPORT.replace("−0.0010", "0.0010")).largest == pytest.approx(0.002)
    (line,) = compare(REPORT, REPORT.replace("does not hold", "holds")).lines
    assert "AMSH beats BATCH · Mfeat" in line


def test_what_is_missing_is_named():
    assert compare(REPORT, "").lines == (
        "only in the old report: Table II. mAP, one seed.",
        "only in the old report: Claims",
    )
    renamed = compare(REPORT, REPORT.replace("mAP, one seed", "mAP, 1 seed"))
    assert not renamed.lines, "a table is also known by its columns and rows"


def test_the_committed_report_can_be_read():
    path = Path(__file__).parents[2] / "docs" / "measurements" / "reproduction" / "report.md"
    assert len(list(read_tables(path.read_text(encoding="utf-8")))) > 20
