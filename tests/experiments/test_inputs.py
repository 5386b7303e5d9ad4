"""Data sets of a grid: loaded, split, and known by their content."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from modalhash.core.linalg import PrincipalComponents
from modalhash.data import RECIPES, Dataset, twin, with_split, write_npz
from modalhash.experiments import Input, Results, make_grid, make_plan, record
from modalhash.experiments.measure import Loader
from modalhash.experiments.provenance import describe, digest_of
from shared_data import shared_data


def pairs(n=50, seed=0) -> Dataset:
    rng = np.random.default_rng(seed)
    labels = np.eye(5, dtype=bool)[rng.integers(5, size=n)]
    features = {"image": rng.random((n, 4)), "text": rng.random((n, 3))}
    return Dataset(features, {"image": labels, "text": labels}, name="pairs")


def test_a_split_is_drawn_by_counts():
    sized = replace(pairs(), split_sizes={"query": 8})
    first, again, other = (with_split(sized, seed=seed) for seed in (0, 0, 1))
    assert len(first.split.query["image"]) == 8
    assert len(first.split.training["text"]) == 42
    assert np.array_equal(first.split.query["image"], first.split.query["text"])
    assert np.array_equal(first.split.query["image"], again.split.query["image"])
    assert not np.array_equal(first.split.query["image"], other.split.query["image"])
    some = with_split(replace(pairs(), split_sizes={"query": 8, "training": 20}), seed=0)
    assert len(some.split.training["image"]) == 20
    assert len(some.split.database["image"]) == 42
    assert with_split(first, seed=5) is first
    assert len(with_split(sized, seed=0, share=0.5).split.query["image"]) == 25
    assert len(with_split(pairs(), seed=0).split.query["image"]) == 10
    with pytest.raises(ValueError, match="60 queries and 1 training items are requested; it has 50 items"):
        with_split(replace(pairs(), split_sizes={"query": 60}), seed=0)


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
    facts = describe(Input(f"{name}-twin", twin=name), Path("nowhere"))
    assert facts["training"] == RECIPES[name].n_training
    assert (facts["kind"], facts["labels"]) == ("twin", "drawn")
    assert not facts["measured"]
    assert len(facts["digest"]) == 64


def test_real_labels_make_another_twin(tmp_path):
    source = Input("nuswide10-twin", twin="nuswide10")
    drawn = describe(source, tmp_path)
    (tmp_path / "nuswide").mkdir()
    digests = set()
    for seed in (0, 1):
        labels = np.random.default_rng(seed).random((50, 12)) < 0.3
        np.savez(tmp_path / "nuswide" / "labels.npz", labels=labels, concepts=list(map(str, range(12))))
        facts = describe(source, tmp_path)
        assert facts["labels"] == "real"
        digests.add(facts["digest"])
    assert len(digests | {drawn["digest"]}) == 3


def test_a_variant_is_named_in_a_grid(tmp_path):
    root = shared_data("mirflickr").parent
    content = {
        "datasets": ["mirflickr25k", "mirflickr25k:full"],
        "bits": [8],
        "rows": [{"label": "a", "method": "amsh"}],
    }
    plan = make_plan([make_grid(content, tmp_path / "grid.toml")], root=root)
    facts = plan.facts["mirflickr25k:full"]
    assert facts["features"] == {"image": 512, "text": 1386}
    assert plan.facts["mirflickr25k"]["features"] == {"image": 150, "text": 500}
    assert (facts["items"], facts["queries"], facts["kind"]) == (20015, 2000, "recomputed features")
    results = Results(tmp_path / "results")
    record(plan, results)
    assert set(results.datasets()) == {"mirflickr25k", "mirflickr25k:full"}
    assert all(":" not in path.name for path in (tmp_path / "results").rglob("*"))


def test_sizes_of_a_grid_are_part_of_the_digest(tmp_path):
    write_npz(pairs(), tmp_path / "pairs.npz")
    source = Input("pairs", files=[str(tmp_path / "pairs.npz")])
    few, many = (describe(replace(source, queries=n), None) for n in (5, 10))
    assert (few["queries"], many["queries"]) == (5, 10)
    assert few["digest"] != many["digest"]


def test_cells_with_one_split_share_its_parts(monkeypatch, tmp_path):
    data = replace(pairs(), components={"image": 2})
    write_npz(data, tmp_path / "pairs.npz")
    fits = []
    fit = PrincipalComponents.fit
    monkeypatch.setattr(PrincipalComponents, "fit", lambda *given: fits.append(1) or fit(*given))
    load = Loader({"pairs": Input("pairs", files=[str(tmp_path / "pairs.npz")])}, None)
    first, again, other = (load("pairs", "paired", seed) for seed in (0, 0, 1))
    assert first is again
    assert len(fits) == 2
    assert other[0].training.features["image"].shape[1] == 2
