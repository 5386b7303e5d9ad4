"""An engine that learns from new items alone, while it is in use."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from little_world import make_world
from modalhash import Engine
from modalhash.engine import EngineError, verify_engine
from modalhash.engine.searching import ONE_PIXEL_GIF

NEW = [
    {"id": f"new/{n}", "text": f"a purple elephant {verb} slowly", "labels": ["purple", "red"][: 1 + n % 2]}
    for n, verb in enumerate(("walks", "sleeps", "eats", "drinks"))
]
UNLABELLED = {"id": "bare", "text": "a small red box"}


@pytest.fixture(scope="module")
def online_world(tmp_path_factory):
    """A folder with photos, items.csv and a LEMON engine trained on them."""
    folder = tmp_path_factory.mktemp("online")
    make_world(folder)
    with Engine.train(folder / "items.csv", folder / "engine", n_bits=16, method="lemon"):
        return folder


@pytest.fixture
def grown(online_world, tmp_path):
    """A LEMON engine to which items were added."""
    shutil.copytree(online_world / "engine", tmp_path / "online")
    with Engine.open(tmp_path / "online") as engine:
        engine.add([*NEW, UNLABELLED])
        engine.add([{"id": "kept", "data": ONE_PIXEL_GIF, "labels": ["red"]}], keep=True)
        yield engine


def test_new_items_are_learned_from_and_codes_stay(grown):
    before = {one.key: one for one in grown.items()}
    with grown.retrain(online=True) as new:
        after = {one.key: one for one in new.items()}
        assert [grown.replaced, list(after)] == [True, list(before)], "in the order in which they were added"
        assert new.config["class_names"] == [*grown.config["class_names"], "purple"]
        trained_on = {name: n + {"image": 1, "text": 4}[name] for name, n in grown.config["trained_on"].items()}
        assert new.config["trained_on"] == trained_on
        for key, old in before.items():
            assert (after[key].labels, after[key].text) == (old.labels, old.text)
            assert new.path_of(after[key]) == grown.path_of(old) or key == ("image", "kept")  # which moves with it
            if old.kind == "learned":
                assert (after[key].code, after[key].refinement) == (old.code, old.refinement)
        taught = [("text", one["id"]) for one in NEW] + [("image", "kept")]
        assert {after[key].kind for key in taught} == {"learned"}
        assert after["text", "new/0"].code == after["text", "new/2"].code != after["text", "new/1"].code
        assert after["text", "bare"].kind == "hashed"
        hashed = new.model.transform({"text": new.encoders["text"].encode([UNLABELLED["text"]])})["text"][0]
        assert after["text", "bare"].code == hashed.tobytes()
        assert np.any(new.model.functions_["text"] != grown.model.functions_["text"])
        assert new.path_of(new.get("kept")).read_bytes() == ONE_PIXEL_GIF
        assert {hit.id for hit in new.search(text="a purple elephant", k=4)} == {one["id"] for one in NEW}
        assert grown.search(text="a red ball", k=3), "the open one still searches"
    assert verify_engine(grown.path) == []


def test_chunks_continue_across_calls_and_a_full_retraining_follows(grown):
    with grown.retrain(online=True) as once:
        learned = {one.key: one.code for one in once.items() if one.kind == "learned"}
        once.add([{"id": "late", "text": "a purple box", "labels": ["purple"]}])
        with once.retrain(online=True) as twice:
            assert twice.model.state_["chunks"] == once.model.state_["chunks"] + 1
            codes = {one.key: one.code for one in twice.items()}
            assert codes.items() >= learned.items()
            assert codes["text", "late"] == learned["text", "new/0"], "the class has its code from the chunk before"
            assert twice.relabel([{"id": "late", "labels": ["purple", "red"]}]).learned == 1
            with twice.retrain() as full:
                assert full.config["trained_on"] == twice.config["trained_on"]


def test_changes_meanwhile_are_in_the_new_engine(grown):
    done = []

    def add(progress):
        if progress.stage == "learn" and not done:
            done.append(True)
            with Engine.open(grown.path) as other:
                other.add([{"id": "meanwhile", "text": "a purple ball", "labels": ["purple"]}])
                other.remove(["bare"])

    with grown.retrain(online=True, callback=add) as new:
        assert new.get("meanwhile").kind == "hashed"
        assert ("text", "bare") not in new.store


def test_only_items_that_are_encoded_must_be_readable(grown, online_world, tmp_path):
    photo = tmp_path / "lost.png"
    shutil.copy(online_world / "photos" / "0.png", photo)
    grown.add([{"id": "lost", "path": str(photo), "labels": ["red"]}])
    photo.unlink()
    with pytest.raises(EngineError, match=r"1 of 127 items can no longer be read.*lost\.png"):
        grown.retrain(online=True, on_problem=lambda problem: None)
    with grown.retrain(online=True, drop_missing=True, on_problem=lambda problem: None) as new:
        assert ("image", "lost") not in new.store
        shutil.move(online_world / "photos", tmp_path / "away")
        try:
            with new.retrain(online=True) as again:
                assert len(again) == len(new)
        finally:
            shutil.move(tmp_path / "away", online_world / "photos")


def test_what_cannot_be_learned_online_is_refused(engine, grown):
    with pytest.raises(EngineError, match=r"rlh cannot learn from new items alone.*--method lemon"):
        engine.retrain(online=True)
    with pytest.raises(ValueError, match="got n_bits; omit one of the two"):
        grown.retrain(online=True, n_bits=8)
    with (
        grown.retrain(codes="hashed") as hashed,
        pytest.raises(EngineError, match="all codes of this engine are hashed"),
    ):
        hashed.retrain(online=True)


def test_words_that_only_name_late_labels_are_unknown_to_photos(online_world, tmp_path):
    """Words are found by directions that a full training learns; without one, any photo would be as near."""
    photos = [
        {"path": str(path), "labels": ["red" if number % 2 else "blue"]}
        for number, path in enumerate(sorted((online_world / "photos").glob("*.png")))
    ]
    with Engine.train(photos, tmp_path / "engine", n_bits=16, method="lemon", quality="fast") as engine:
        engine.add([photos[0] | {"id": "late", "labels": ["striped"]}])
        with engine.retrain(online=True) as new:
            assert "striped" in new.config["class_names"]
            assert [query.known for query in new.words.read(["red", "striped"])] == [1, 0]
