"""Which data are the paper's is read from what they hold, not from their names."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fabricated_results import little_root

from modalhash.experiments.inputs import describe
from reproduction.paper_data import SOURCES


def test_a_file_under_the_papers_name_need_not_be_the_papers(tmp_path):
    root = little_root(tmp_path, "mirflickr25k")
    source = SOURCES["mirflickr25k"]
    assert source.input.present(root)
    facts = describe(source.input, root)
    assert not source.same(facts)
    assert source.differs(facts) == ["total 335 instead of 16,738"]
    assert replace(source, table1={**source.table1, "total": 335}).same(facts)


def test_the_papers_iapr_file_is_found_in_either_folder(tmp_path):
    source, keywords = SOURCES["iaprtc12"].input, SOURCES["iapr-tc12"].input
    assert not source.present(tmp_path)
    for name in ("iaprtc12/any.mat", "iapr-tc12/IAPRTC-12.mat"):
        path = tmp_path / name
        path.parent.mkdir()
        path.write_bytes(b"")
        assert source.present(tmp_path)
        assert not keywords.present(tmp_path), "the keywords are another file"
        path.unlink()


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if source.twin])
def test_twins_have_the_sizes_of_the_papers_data(name):
    source = SOURCES[name]
    facts = describe(source.input, None)
    assert source.statistics(facts).items() >= SOURCES[source.quotes].table1.items()
    assert not source.same(facts)
