"""Which data are the paper's is read from what they say they are, not from their names or counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fabricated_results import little_root

from modalhash.experiments.provenance import describe
from reproduction.paper_data import SOURCES
from shared_data import shared_data


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "same"),
    [("original", True), ("recomputed features", True), ("substitute", False), ("generated", False), (None, False)],
)
def test_a_file_under_the_papers_name_need_not_be_the_papers(tmp_path, kind, same):
    root = little_root(tmp_path, "mirflickr25k", kind=None)
    source = SOURCES["mirflickr25k"]
    assert source.input.present(root)
    if kind is not None:
        (root / "mirflickr25k" / "provenance.json").write_text(json.dumps({"kind": kind}))
    facts = describe(source.input, root)
    assert facts["kind"] == (kind or "not stated")
    assert source.same(facts) == same
    assert source.differs(facts) == ["total 335 instead of 16,738", "query 17 instead of 836",
                                     "training 318 instead of 15,902"]  # fmt: skip


def test_counts_do_not_make_data_the_papers():
    source = SOURCES["mirflickr25k"]
    facts = {"items": 16738, "queries": 836, "training": 15902, "features": {"image": 150, "text": 500}, "classes": 24}
    assert source.differs(facts) == []
    assert not source.same(facts)
    assert not SOURCES["wiki"].same({**facts, "kind": "original"}), "the paper does not have this data set"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "differences"),
    [
        ("mirflickr25k", []),
        ("mirflickr25k-cnn", ["image 1,280 instead of 4,096"]),
        (
            "iapr-tc12-255",
            ["total 19,995 instead of 20,000", "training 17,995 instead of 18,000", "text 2,928 instead of 2,912"],
        ),
    ],
)
def test_the_prepared_files_are_the_papers_with_recomputed_features(name, differences):
    source = SOURCES[name]
    facts = describe(source.input, shared_data("mirflickr" if "mir" in name else "iapr-tc12-paper").parent)
    assert source.same(facts)
    assert source.differs(facts) == differences


def test_another_data_set_of_the_same_photographs_is_not_the_papers(tmp_path):
    (tmp_path / "iapr-tc12").mkdir()
    (tmp_path / "iapr-tc12" / "iapr-tc12.npz").write_bytes(b"")
    assert not SOURCES["iapr-tc12-255"].input.present(tmp_path)
    (tmp_path / "iapr-tc12-255").mkdir()
    (tmp_path / "iapr-tc12-255" / "any.mat").write_bytes(b"")
    assert SOURCES["iapr-tc12-255"].input.present(tmp_path)


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if source.twin])
def test_twins_have_the_sizes_of_the_papers_data(name):
    source = SOURCES[name]
    facts = describe(source.input, Path("nowhere"))
    assert source.statistics(facts).items() >= SOURCES[source.quotes].table1.items()
    assert not source.same(facts)
