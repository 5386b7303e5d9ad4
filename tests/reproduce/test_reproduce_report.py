"""The report is a function of the results folder, needs no other file, and never mixes whose numbers are whose."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from fabricated_results import fabricate, fabricate_part

from modalhash.reproduce import tables
from modalhash.reproduce.compare import against_ours
from modalhash.reproduce.config import load_all
from modalhash.reproduce.document import Claims, Entry, Grid
from modalhash.reproduce.gather import Gathered
from modalhash.reproduce.report import build, write, write_report
from modalhash.reproduce.store import Store

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return fabricate(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def found(store):
    return Gathered(store, load_all())


@pytest.fixture(scope="module")
def report(found):
    return build(found)


@pytest.fixture(scope="module")
def written(report, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write(report, folder)
    return folder


def test_the_page_needs_no_other_file(written):
    html = (written / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<(script|link|img|iframe)\b", html)
    assert not re.search(r"(?:src|url\()\s*=?[\"']?https?:", html)
    ids = re.findall(r'\sid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    for reference in re.findall(r"href=\"#([^\"]+)\"|url\(#([^)]+)\)", html):
        assert (reference[0] or reference[1]) in ids
    for name in load_all():
        assert f'<section id="{name}">' in html
    text = (written / "report.md").read_text(encoding="utf-8")
    for link in re.findall(r"\]\((figures/[^)]+)\)", text):
        assert (written / link).is_file()


def test_the_same_results_give_the_same_bytes(tmp_path):
    store = fabricate(tmp_path / "results", ("wiki",), seeds=1)
    for path in (store.folder / "cells" / "wiki").glob("*-128-*"):
        path.unlink()  # a part of the results is enough
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        write_report(store, load_all(), folder)
    first, second = ({p.relative_to(f): p.read_bytes() for p in f.rglob("*") if p.is_file()} for f in folders)
    assert first == second
    assert "one seed" in first[next(path for path in first if path.name == "report.md")].decode()


def grid(found, name, dataset) -> Grid:
    study = found.studies[name][dataset]
    return tables.comparison(study, against_ours(study))


def test_published_numbers_stand_beside_the_papers_data_with_differences(found):
    table = grid(found, "table2", "mirflickr25k")
    titles = [title for title, _ in table.groups]
    assert titles[-2:] == ["published", "learned less published"]
    rows = dict(table.sections[0][1])
    assert [entry.text for entry in rows["AMSH"][-8:-4]] == ["0.7455", "0.7516", "0.7572", "0.7591"]
    measured = found.studies["table2"]["mirflickr25k"].mean("AMSH", 16, "I2T")
    assert rows["AMSH"][-4].text == f"{measured - 0.7455:+.4f}".replace("-", "−")


def test_other_data_are_headed_as_such_and_nothing_is_subtracted(found):
    table = grid(found, "table2", "iapr-tc12")
    assert table.groups[-1][0] == "published on IAPR TC-12 — other data"
    assert not any("less published" in title for title, _ in table.groups)
    assert any("differences would mean nothing" in note for note in table.notes)
    assert not any("published" in title for title, _ in grid(found, "table2", "wiki").groups)


def test_it_says_where_seeds_differ(found):
    study = found.studies["table2"]["wiki"]
    assert tables.seeds_of(study) == "2 seeds"
    fewer = {key: result for key, result in study.results.items() if key[1] != "BATCH" or key[3] == 0}
    assert tables.seeds_of(replace(study, results=fewer)) == "1 to 2 seeds"


def test_re_implementations_and_winners_are_marked(found):
    rows = dict(grid(found, "table3", "wiki").sections[0][1])
    assert {"EDMH †", "FMH †", "UCMH †", "RUCMH †", "GSPH", "AMSH"} <= set(rows)
    assert all(entry.bold and not entry.mark for entry in rows["AMSH"])
    assert all(entry.mark == "▼" for entry in rows["GSPH"])
    assert all(entry.below.startswith("±") for entry in rows["GSPH"])


def test_twins_have_times_and_no_quality(found):
    study = found.studies["table4"]["mirflickr25k-twin"]
    assert study.databases == []
    assert not any("mirflickr25k-twin" in found.studies[name] for name in ("table2", "table3", "table5"))


def test_claims_get_verdicts_by_rule(report):
    claims = {
        (group.title, claim.statement): {finding.dataset: finding for finding in claim.findings}
        for section in report.sections
        if section.key == "claims"
        for group in section.blocks
        if isinstance(group, Claims)
        for claim in group.claims
    }
    beaten = claims["Paired data", "AMSH beats BATCH"]
    assert beaten["Wiki"].verdict == "confirmed"
    assert beaten["Wiki"].evidence.startswith("learned 8/8 (+8 −0)")
    same = claims["Unpaired data", "AMSH without pairs is almost the same as with pairs"]
    assert {finding.verdict for finding in same.values()} <= {"confirmed", "not confirmed"}
    assert claims["Convergence", "After 15 iterations it reaches a stable state"]["Wiki"].verdict == "confirmed"
    deep = claims["Deep methods", "AMSH with CNN features beats DCMH from image to text"]
    assert [finding.verdict for finding in deep.values()] == ["not testable"]


def test_it_says_in_short_whom_amsh_beats(written):
    text = (written / "report.md").read_text(encoding="utf-8")
    (line,) = (line for line in text.splitlines() if line.startswith("- **Wiki**: AMSH beats "))
    beaten, *others = line.removesuffix(".").split("AMSH beats ")[1].split("; not everywhere ")
    names = {*beaten.split(", "), *(others[0].split(", ") if others else ())}
    assert names == {
        *("CMFH", "FSH", "CRE", "DCH", "SMFH", "SCRATCH", "SRLCH", "BATCH"),
        *("SAPMH", "UCMH", "RUCMH", "GSPH", "EDMH", "FMH"),
    }


def test_failures_and_absent_data_are_named(written):
    text = (written / "report.md").read_text(encoding="utf-8")
    assert "UCMH on Wiki: ValueError: it would not (1 cells)" in text
    assert "**NUS-WIDE** (`nuswide10`). Get the official files" in text
    assert "optimistic" in text
    assert "picked partly on test queries" in text


@pytest.mark.filterwarnings("error")
def test_a_part_of_the_plan_is_reported_as_a_part(tmp_path):
    fabricate_part(tmp_path / "results", "iaprtc12", "table2", 64)
    store = fabricate_part(tmp_path / "results", "mirflickr25k", "table2", 16)
    write_report(store, load_all(), tmp_path)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "On IAPR TC-12 only the default values were measured." in text
    assert not list((tmp_path / "figures").glob("sensitivity*"))
    drops = [line for line in text.splitlines() if "mAP drops drastically from MIRFlickr-25K" in line]
    assert drops  # no length was measured on both, so nothing can be said
    assert all("**not testable**" in line for line in drops)


def test_without_results_it_says_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError, match="run `modalhash reproduce` first"):
        write_report(Store(tmp_path), load_all(), tmp_path / "report")


def test_a_table_with_a_wrong_row_is_refused():
    with pytest.raises(ValueError, match="2 cells for 1 columns"):
        Grid("1", "c", "s", ["a"], [("", [("row", [Entry(), Entry()])])])
