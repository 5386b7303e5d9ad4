"""Which data are the paper's is read from what they hold, not from their names."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fabricated_results import little_root

from modalhash.data import Dataset
from modalhash.reproduce.sources import SOURCES, describe, digest_of, with_split


def pairs(n=50, seed=0) -> Dataset:
    rng = np.random.default_rng(seed)
    labels = np.eye(5, dtype=bool)[rng.integers(5, size=n)]
    features = {"image": rng.random((n, 4)), "text": rng.random((n, 3))}
    return Dataset(features, {"image": labels, "text": labels}, name="pairs")


def test_a_file_under_the_papers_name_need_not_be_the_papers(tmp_path):
    root = little_root(tmp_path, "mirflickr25k")
    source = SOURCES["mirflickr25k"]
    assert source.present(root)
    facts = describe(source, root)
    assert not facts["same"]
    assert facts["differs"] == ["total 335 instead of 16,738"]
    small = replace(source, facts={**source.facts, "total": 335})
    assert describe(small, root)["same"]


def test_the_papers_iapr_file_is_found_in_either_folder(tmp_path):
    source, keywords = SOURCES["iaprtc12"], SOURCES["iapr-tc12"]
    assert not source.present(tmp_path)
    for place in ("iaprtc12/any.mat", "iapr-tc12/IAPRTC-12.mat"):
        path = tmp_path / place
        path.parent.mkdir()
        path.write_bytes(b"")
        assert source.present(tmp_path)
        assert not keywords.present(tmp_path)  # the keywords are another file
        path.unlink()


def test_a_split_is_drawn_by_the_papers_counts():
    source = replace(SOURCES["mirflickr25k"], queries=8)
    first, again, other = (with_split(pairs(), source, seed) for seed in (0, 0, 1))
    assert len(first.split.query["image"]) == 8
    assert len(first.split.training["text"]) == 42
    assert np.array_equal(first.split.query["image"], first.split.query["text"])
    assert np.array_equal(first.split.query["image"], again.split.query["image"])
    assert not np.array_equal(first.split.query["image"], other.split.query["image"])
    some = with_split(pairs(), replace(source, training=20), 0)
    assert len(some.split.training["image"]) == 20
    assert len(some.split.database["image"]) == 42
    assert with_split(first, source, 5) is first


def test_a_digest_follows_the_content():
    assert digest_of(pairs()) == digest_of(pairs())
    assert digest_of(pairs()) != digest_of(pairs(seed=1))
    shuffled = pairs().select({name: np.arange(50)[::-1] for name in ("image", "text")})
    assert digest_of(shuffled) != digest_of(pairs())


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if source.twin])
def test_twins_are_described_without_being_drawn(name):
    facts = describe(SOURCES[name], None)
    assert facts["facts"].items() >= SOURCES[SOURCES[name].quotes].facts.items()
    assert not facts["same"]
    assert len(facts["digest"]) == 64
