"""The report is a function of the results, and never mixes whose numbers are whose."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from fabricated_results import fabricate, fabricate_part

from modalhash.experiments import Results, pack
from reproduction import figures
from reproduction.document import Claims, Entry, GroupedTable, write
from reproduction.published import load_all
from reproduction.report import build, write_report
from reproduction.study import Evidence
from reproduction.tables import quality
from reproduction.verdicts import against_ours

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return fabricate(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def found(store):
    return Evidence(store, load_all())


@pytest.fixture(scope="module")
def report(found):
    return build(found)


@pytest.fixture(scope="module")
def written(report, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write(report, folder)
    return folder


@pytest.mark.slow
def test_every_link_leads_to_a_file(written):
    for page in (written / "report.md", written / "more" / "figures.md"):
        text = page.read_text(encoding="utf-8")
        links = re.findall(r"\]\(([^)]+)\)", text)
        assert links
        assert all((page.parent / link).is_file() for link in links)
    assert "<script" not in text


def test_networks_are_drawn_by_epoch_where_there_are_any(found, written):
    table6, table2 = found.studies["table6"]["iapr-tc12-255-cnn"], found.studies["table2"]["wiki"]
    assert figures.epochs(table2) is None
    drawn = (written / "figures" / "epochs-table6-iapr-tc12-255-cnn.svg").read_text(encoding="utf-8")
    for label in ("DCMH on frozen features", "PRDH on frozen features †", "AADAH on frozen features †"):
        assert label in drawn
    assert table6.labels[0] == "AMSH_cnn"


def test_the_report_shows_a_handful_of_small_figures(report, written):
    names = {path.name for path in (written / "figures").glob("*.svg")}
    assert {figure.name for figure in report.figures if figure.main} == {name.removesuffix(".svg") for name in names}
    assert len(names) <= 7
    assert all(path.stat().st_size < 130_000 for path in (written / "figures").glob("*.svg"))
    others = {path.name for path in (written / "more" / "figures").glob("*.svg")}
    assert others
    assert not others & names


def test_every_experiment_has_its_chapter(written):
    text = (written / "report.md").read_text(encoding="utf-8")
    for experiment in load_all().values():
        assert f"\n## {experiment.paper}: {experiment.title}\n" in text


@pytest.mark.slow
def test_packed_results_give_the_same_report(tmp_path):
    store = fabricate_part(tmp_path / "results", "wiki", "table2", 16)
    packed = tmp_path / "all.json.xz"
    packed.write_bytes(pack(store.path))
    pages = []
    for source, folder in ((store, tmp_path / "a"), (Results(packed), tmp_path / "b")):
        write_report(source, load_all(), folder)
        pages.append((folder / "report.md").read_bytes())
    assert pages[0] == pages[1]


@pytest.mark.slow
def test_the_same_results_give_the_same_bytes(tmp_path):
    store = fabricate(tmp_path / "results", ("wiki",), seeds=1)
    for path in (store.path / "cells" / "wiki").glob("*-128-*"):
        path.unlink()  # a part of the results is enough
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        write_report(store, load_all(), folder)
    first, second = ({p.relative_to(f): p.read_bytes() for p in f.rglob("*") if p.is_file()} for f in folders)
    assert first == second
    assert "one seed" in first[next(path for path in first if path.name == "report.md")].decode()


def grid(found, name, dataset) -> GroupedTable:
    study = found.studies[name][dataset]
    return quality.comparison(study, against_ours(study))


def test_published_numbers_stand_beside_the_papers_data_with_differences(found):
    table = grid(found, "table2", "mirflickr25k")
    titles = [title for title, _ in table.groups]
    assert titles[-2:] == ["published", "measured less published"]
    rows = dict(table.sections[0][1])
    assert [entry.text for entry in rows["AMSH"][-8:-4]] == ["0.7455", "0.7516", "0.7572", "0.7591"]
    measured = found.studies["table2"]["mirflickr25k"].mean("AMSH", 16, "I2T")
    assert rows["AMSH"][-4].text == f"{measured - 0.7455:+.4f}".replace("-", "−")


def test_other_data_have_no_published_numbers(found):
    assert not any("published" in title for title, _ in grid(found, "table2", "wiki").groups)


def test_every_caption_says_what_the_data_are(found, report):
    blocks = [block for section in report.sections for block in section.blocks]
    tables = [block for block in blocks if isinstance(block, GroupedTable) and block.number.startswith("Table")]
    measured = [table for table in tables if "as published" not in table.number and table.number != "Table I"]
    about = [*(table.caption for table in measured if "AMSH against each row" not in table.caption
               and "differences" not in table.number),
             *(figure.caption for figure in report.figures)]  # fmt: skip
    assert len(about) > 10
    assert all("(data: " in caption for caption in about)
    assert any("MIRFlickr-25K (data: recomputed features)" in caption for caption in about)
    assert any("MIRFlickr-25K twin (data: twin)" in caption for caption in about)
    (counted,) = (
        rows for title, rows in next(t for t in tables if t.number == "Table I").sections if "counted" in title
    )
    assert {name: entries[-1].text for name, entries in counted}["MIRFlickr-25K"] == "recomputed features"


def test_data_that_do_not_say_what_they_are_are_other_data(tmp_path):
    store = fabricate_part(tmp_path, "mirflickr25k", "table2", 64)
    facts = {key: value for key, value in store.datasets()["mirflickr25k"].items() if key != "kind"}
    store.write_dataset(facts)
    study = Evidence(store, load_all()).studies["table2"]["mirflickr25k"]
    table = quality.comparison(study, against_ours(study))
    assert "MIRFlickr-25K (data: not stated)" in table.caption
    assert not any("less published" in title for title, _ in table.groups)
    assert any("does not say that it is the paper's" in note for note in table.notes)


def test_it_says_where_seeds_differ(found):
    study = found.studies["table2"]["wiki"]
    assert quality.seeds_of(study) == "2 seeds"
    fewer = {point: r for point, r in study.found.items() if point.label != "BATCH" or point.seed == 0}
    assert quality.seeds_of(replace(study, found=fewer)) == "1 to 2 seeds"


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
        for group in section.blocks
        if isinstance(group, Claims)
        for claim in group.claims
    }
    beaten = claims["Paired data", "AMSH beats BATCH"]
    assert beaten["Wiki"].verdict == "holds"
    assert beaten["Wiki"].evidence.startswith("learned 8/8 (+8 −0)")
    same = claims["Unpaired data", "AMSH without pairs is almost the same as with pairs"]
    assert {finding.verdict for finding in same.values()} <= {"holds", "does not hold"}
    assert claims["Convergence", "After 15 iterations it reaches a stable state"]["Wiki"].verdict == "holds"
    deep = claims["Deep methods", "AMSH with CNN features beats DCMH from image to text"]
    assert [finding.verdict for finding in deep.values()] == ["cannot be judged"]


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
    assert "**NUS-WIDE** (`nuswide10`). Get Groundtruth" in text
    assert "optimistic" in text
    assert "picked partly on test queries" in text


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_a_part_of_the_plan_is_reported_as_a_part(tmp_path):
    fabricate_part(tmp_path / "results", "iapr-tc12-255", "table2", 64)
    store = fabricate_part(tmp_path / "results", "mirflickr25k", "table2", 16)
    write_report(store, load_all(), tmp_path)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "On IAPR TC-12 only the default values were measured." in text
    assert not list(tmp_path.rglob("sensitivity*"))
    drops = [line for line in text.splitlines() if "mAP drops drastically from MIRFlickr-25K" in line]
    assert drops  # no length was measured on both, so nothing can be said
    assert all("**cannot be judged**" in line for line in drops)


def test_without_results_it_says_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError, match="run `python -m reproduction` first"):
        write_report(Results(tmp_path), load_all(), tmp_path / "report")


def test_a_table_with_a_wrong_row_is_refused():
    with pytest.raises(ValueError, match="2 cells for 1 columns"):
        GroupedTable("1", "c", "s", ["a"], [("", [("row", [Entry(), Entry()])])])
