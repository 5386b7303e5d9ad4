"""Data sets of a grid: loaded, split, and known by their content."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from modalhash.data import RECIPES, Dataset, twin, with_split, write_npz
from modalhash.experiments import Input
from modalhash.experiments.inputs import describe, digest_of


def pairs(n=50, seed=0) -> Dataset:
    rng = np.random.default_rng(seed)
    labels = np.eye(5, dtype=bool)[rng.integers(5, size=n)]
    features = {"image": rng.random((n, 4)), "text": rng.random((n, 3))}
    return Dataset(features, {"image": labels, "text": labels}, name="pairs")


def test_a_split_is_drawn_by_counts():
    source = Input("pairs", queries=8)
    first, again, other = (with_split(pairs(), source.name, seed=seed, queries=source.queries) for seed in (0, 0, 1))
    assert len(first.split.query["image"]) == 8
    assert len(first.split.training["text"]) == 42
    assert np.array_equal(first.split.query["image"], first.split.query["text"])
    assert np.array_equal(first.split.query["image"], again.split.query["image"])
    assert not np.array_equal(first.split.query["image"], other.split.query["image"])
    some = with_split(pairs(), source.name, seed=0, queries=source.queries, training=20)
    assert len(some.split.training["image"]) == 20
    assert len(some.split.database["image"]) == 42
    assert with_split(first, source.name, seed=5) is first


def test_a_digest_follows_the_content():
    assert digest_of(pairs()) == digest_of(pairs())
    assert digest_of(pairs()) != digest_of(pairs(seed=1))
    shuffled = pairs().select({name: np.arange(50)[::-1] for name in ("image", "text")})
    assert digest_of(shuffled) != digest_of(pairs())


def test_files_are_read_and_described(tmp_path):
    write_npz(twin("mirflickr25k", scale=0.02), tmp_path / "mine.npz")
    source = Input("mine", files=[str(tmp_path / "mine.npz")])
    assert source.present(None)
    facts = describe(source, None)
    assert facts["items"] == facts["training"] + facts["queries"] == 335
    assert facts["features"] == {"image": 150, "text": 500}
    one = describe(replace(source, modalities=("text",)), None)
    assert one["features"] == {"text": 500}
    assert one["digest"] != facts["digest"]


def test_what_is_absent_says_how_to_get_it(tmp_path):
    assert not Input("wiki", catalog="wiki").present(tmp_path)
    assert "convert wiki" in Input("wiki", catalog="wiki").how_to_get()
    assert "No data set is called 'wikki'" in Input("wikki", catalog="wikki").how_to_get()
    assert "no /a/b.npz" in Input("x", files=["/a/b.npz"]).how_to_get()


@pytest.mark.parametrize("name", RECIPES)
def test_twins_are_described_without_being_drawn(name):
    facts = describe(Input(f"{name}-twin", twin=name), None)
    assert facts["training"] == RECIPES[name].n_training
    assert not facts["measured"]
    assert len(facts["digest"]) == 64
