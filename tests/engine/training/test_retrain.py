"""An engine trained anew from its own items, while it is in use."""

from __future__ import annotations

import shutil
import threading
from contextlib import contextmanager

import numpy as np
import pytest

from modalhash import Engine
from modalhash.data import Dataset, generate
from modalhash.engine import EngineError, EngineReplacedError, ProblemCode, verify_engine
from modalhash.engine.searching import ONE_PIXEL_GIF
from modalhash.engine.storage.folder import MEDIA
from modalhash.engine.training.train import parameters_of
from modalhash.methods.rlh import RLH
from modalhash.store import Record, SqliteStore, StoreError

NEW = [
    {"id": f"new/{n}", "text": f"a purple elephant {verb} slowly", "labels": ["purple", "animal"]}
    for n, verb in enumerate(("walks", "sleeps", "eats", "drinks"))
]


@pytest.fixture
def grown(engine):
    """An engine to which items were added that its model knows nothing of."""
    engine.add([*NEW, {"id": "bare", "text": "a small red box"}])
    engine.add([{"id": "kept", "data": ONE_PIXEL_GIF, "labels": ["red"]}], keep=True)
    return engine


def meanwhile(act, stage="store: text"):
    """Return a callback that acts once, when the items of the old engine were read and learned from."""
    done = []

    def callback(progress):
        if progress.stage == stage and not done:
            done.append(True)
            act()

    return callback


@pytest.mark.slow
def test_what_was_added_takes_part(grown):
    old = {one.key: one for one in grown.items()}
    assert "purple" not in grown.config["class_names"]
    with grown.retrain() as new:
        assert [grown.replaced, new.replaced, new.n_bits, len(new)] == [True, False, 16, len(old)]
        assert {"purple", "animal"} <= set(new.config["class_names"])
        assert new.config["trained_on"] == {"image": 61, "text": 64}
        records = {one.key: one for one in new.items()}
        for key, record in records.items():
            before = old[key]
            assert (record.labels, record.text, record.extra) == (before.labels, before.text, before.extra)
            if key != ("image", "kept"):  # a picture that it saved itself moves with it
                assert new.path_of(record) == grown.path_of(before)
        assert [records["text", id].kind for id in ("new/0", "bare")] == ["learned", "hashed"]
        assert new.encoders["text"].known(["elephant"])[0] == 1, "the vocabulary was learned anew"
        assert grown.encoders["text"].known(["elephant"])[0] < 1, "the old engine is as it was"
        assert new.path_of(new.get("kept")).read_bytes() == ONE_PIXEL_GIF
        assert {hit.id for hit in new.search(text="elephant", k=4)} == {one["id"] for one in NEW}
        assert grown.search(text="a red ball", k=3), "who has the old one open goes on searching"
        with pytest.raises(EngineReplacedError):
            grown.add([{"text": "too late"}])
        with pytest.raises(EngineReplacedError):
            grown.relabel([{"id": "bare", "labels": []}])
    assert verify_engine(grown.path) == []


@pytest.mark.slow
def test_the_same_items_give_the_same_engine_and_settings_change_what_they_say(engine):
    first = {one.key: (one.code, one.kind, one.refinement) for one in engine.items()}
    with engine.retrain() as same:
        assert same.config["model"] == engine.config["model"]
        assert {one.key: (one.code, one.kind, one.refinement) for one in same.items()} == first
        with same.retrain(n_bits=8, method="amsh", encoders={"text": "hashing"}, codes="hashed") as other:
            assert [other.n_bits, other.config["method"], other.config["codes"]] == [8, "amsh", "hashed"]
            assert other.encoders["text"].name == "hashing"
            assert {one.kind for one in other.items()} == {"hashed"}


def test_more_items_may_have_more_anchors():
    data = generate(n_items=40, seed=0)
    model = RLH(8, n_anchors={"image": 40, "text": 20}, steps=20, ridge=0.5, random_state=7).fit(data.X, data.Y)
    found = parameters_of(model, {"image": 40, "text": 40})
    assert found["n_anchors"] == {"image": 1500, "text": 20}
    assert (found["ridge"], found["random_state"], "n_bits" in found) == (0.5, 7, False)


@pytest.mark.slow
def test_what_others_change_meanwhile_is_in_the_new_engine(grown):
    images = [one for one in grown.items() if one.modality == "image" and set(one.labels) == {"red", "circle"}]

    def change():
        with Engine.open(grown.path) as other:
            other.add([{"id": "late", "text": "a purple elephant swims", "labels": ["purple"]}])
            other.add([{"id": "late picture", "data": ONE_PIXEL_GIF}], keep=True)
            other.add([{"id": "bare", "text": "something else", "year": 1999}], replace=True)
            other.remove(["new/3", images[0].id])
            other.relabel([{"id": images[1].id, "labels": ["blue", "square"]}])
            other.add([{"id": "gone again", "text": "not here"}])
            other.remove(["gone again"])

    with grown.retrain(callback=meanwhile(change)) as new:
        records = {one.key: one for one in new.items()}
        assert records["text", "late"].kind == "hashed"
        assert new.path_of(records["image", "late picture"]).read_bytes() == ONE_PIXEL_GIF
        assert (records["text", "bare"].text, records["text", "bare"].extra) == ("something else", {"year": 1999})
        assert not {("text", "new/3"), ("image", images[0].id), ("text", "gone again")} & records.keys()
        moved, peers = (
            records["image", images[1].id],
            [one for one in records.values() if set(one.labels) == {"blue", "square"}],
        )
        assert (moved.labels, moved.kind, {moved.code}) == (("blue", "square"), "learned", {one.code for one in peers})
        assert new.search(text="a purple elephant swims", want="text")[0].id == "late"
        assert new.add([{"id": "after", "text": "a red ball"}]).added == 1
    assert verify_engine(grown.path) == []


@pytest.mark.slow
def test_who_writes_at_the_last_moment_waits_and_is_told(grown, monkeypatch):
    lock_writes, outcome = SqliteStore.lock_writes, []

    def add():
        try:
            with Engine.open(grown.path) as other:
                ready.set()
                other.add([{"id": "at the last moment", "text": "a red ball"}])
            outcome.append("acknowledged")
        except EngineReplacedError:
            outcome.append("told")

    ready, thread = threading.Event(), threading.Thread(target=add)

    @contextmanager
    def watched(store):
        with lock_writes(store) as replace_by:
            thread.start()
            assert ready.wait(30)
            yield replace_by

    monkeypatch.setattr(SqliteStore, "lock_writes", watched)
    with grown.retrain() as new:
        thread.join()
        there = ("text", "at the last moment") in new.store
    assert outcome == ["acknowledged" if there else "told"]


@pytest.mark.slow
def test_an_engine_that_another_one_replaced_is_left_alone(world, engine):
    def replace():
        Engine.train(world / "items.csv", engine.path, n_bits=8, overwrite=True).close()

    with pytest.raises(EngineReplacedError):
        engine.retrain(callback=meanwhile(replace))
    with Engine.open(engine.path) as other:
        assert other.n_bits == 8
    assert [path.name for path in engine.path.parent.iterdir()] == ["engine"]


@pytest.mark.slow
def test_a_lock_that_was_lost_changes_nothing(grown, monkeypatch):
    """As where the connection to a database is cut: somebody writes after the last look."""
    lock_writes = SqliteStore.lock_writes

    @contextmanager
    def cut(store):
        with lock_writes(store):
            pass
        held.append(True)
        yield lambda schema: None

    held: list[bool] = []
    revision = SqliteStore.revision

    def moved(store):
        if held and store is grown.store:
            held.append(True)
            if len(held) == 3:  # once after the write lock was taken, and once before the folders change places
                store.add([Record("between", "text", b"\0\0")])
        return revision(store)

    monkeypatch.setattr(SqliteStore, "lock_writes", cut)
    monkeypatch.setattr(SqliteStore, "revision", moved)
    with pytest.raises(StoreError, match=r"the store was changed .* nothing was replaced"):
        grown.retrain()
    assert not grown.replaced
    assert [path.name for path in grown.path.parent.iterdir()] == ["engine"]


@pytest.mark.slow
def test_items_that_cannot_be_read_any_more(grown, world, tmp_path):
    lost, broken = tmp_path / "lost.png", tmp_path / "broken.png"
    for path in (lost, broken):
        shutil.copy(world / "photos" / "0.png", path)
        grown.add([{"id": path.stem, "path": str(path), "labels": ["red"]}])
    lost.unlink()
    problems = []
    with pytest.raises(EngineError, match=r"1 of 128 items can no longer be read.*lost\.png: no such file.*--drop"):
        grown.retrain(on_problem=problems.append)
    assert [problem.code for problem in problems] == [ProblemCode.MISSING_FILE]
    assert not grown.replaced
    shutil.copy(broken, lost)
    broken.write_bytes(b"no picture")
    with pytest.raises(EngineError, match=r"nothing was changed: .*broken\.png.*--drop-missing"):
        grown.retrain(on_problem=problems.append)
    assert not grown.replaced
    lost.unlink()
    with grown.retrain(drop_missing=True, on_problem=lambda problem: None) as new:
        assert sorted(problem.id for problem in new.problems) == ["broken", "lost"]
        assert len(new) == 126
        assert not {("image", "lost"), ("image", "broken")} & {one.key for one in new.items()}


@pytest.mark.slow
def test_a_picture_that_goes_with_its_item_meanwhile_is_no_loss(grown):
    """The service deletes the picture of an item that is removed: before it is read, encoded, or followed."""
    grown.add([{"id": f"kept {n}", "data": ONE_PIXEL_GIF} for n in range(3)], keep=True)
    codes, content = type(grown.store).codes, grown._content_of

    def late_content(record):
        if record.id == "kept 0":
            grown.remove(["kept 0"])
        if record.id == "kept 2":  # the one before was read, and is not encoded yet
            grown.remove(["kept 1"])
        return content(record)

    def add_late(progress):
        if progress.stage == "store: text" and ("image", "new picture") not in grown.store:
            grown.add([{"id": "new picture", "data": ONE_PIXEL_GIF}], keep=True)
            (grown.path / grown.get("new picture").uri).unlink()
            following.append(True)

    def late_following(store, **options):
        yield from codes(store, **options)
        if following and options.get("since") is not None and store is grown.store:
            following.clear()
            store.remove([("image", "new picture")])

    following: list[bool] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grown, "_content_of", late_content)
        patch.setattr(type(grown.store), "codes", late_following)
        new = grown.retrain(callback=add_late)
    with new:
        kept = {one.id for one in new.items() if one.modality == "image"} & {
            "kept 0",
            "kept 1",
            "kept 2",
            "new picture",
        }
        assert (kept, new.problems) == ({"kept 2"}, ())


@pytest.mark.slow
def test_given_features_cannot_be_learned_from_again(tmp_path):
    data = generate(n_items=60, seed=0)
    names = [f"class {number}" for number in range(data.Y["image"].shape[1])]
    dataset = Dataset(data.X, data.Y, class_names=names, name="made up")
    with Engine.train(dataset, tmp_path / "engine", n_bits=8) as engine:
        with pytest.raises(EngineError, match="an engine does not store features, so it cannot be retrained"):
            engine.retrain()
        assert engine.relabel([{"id": "7", "labels": names[:3], "modality": "image"}]).learned == 1
        problems = engine.relabel([{"id": "7", "labels": [], "modality": "image"}], on_problem=print).problems
        assert "neither a text nor a file" in problems[0].reason


@pytest.mark.slow
def test_a_read_only_engine_is_not_retrained(engine):
    with Engine.open(engine.path, read_only=True) as reader, pytest.raises(EngineError, match="read-only"):
        reader.retrain()


@pytest.mark.slow
def test_codes_of_the_old_model_are_refused_by_the_new_one(engine, tmp_path):
    pytest.importorskip("pyarrow")
    pytest.importorskip("dask")
    source = tmp_path / "more.jsonl"
    source.write_text('{"id": "coded", "text": "a red ball"}\n')
    engine.encode_to(source, tmp_path / "codes", workers=1)
    engine.add(NEW)
    with engine.retrain() as new, pytest.raises(ValueError, match=r"another|other"):
        new.add(sorted(map(str, (tmp_path / "codes").glob("*.parquet"))))


@pytest.mark.slow
def test_pictures_that_nobody_has_are_swept(grown):
    def remove():
        with Engine.open(grown.path) as other:
            other.remove(["kept"])

    with grown.retrain(callback=meanwhile(remove)) as new:
        assert list((new.path / MEDIA).iterdir()) == []
        assert np.isin(["kept"], [one.id for one in new.items()]).sum() == 0
