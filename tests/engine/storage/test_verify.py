"""An engine is sound, or what is wrong with it is found."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from modalhash import Engine
from modalhash.core.files import shared_lock
from modalhash.engine import EngineError, verify_engine
from modalhash.engine.searching import ONE_PIXEL_GIF
from modalhash.engine.storage.folder import CONFIG, ITEMS, MEDIA
from modalhash.store import StoreBusyError, StoreError, StoreFullError

LOCKS = pytest.mark.skipif(os.name == "nt", reason="no locks there")


@pytest.fixture
def folder(engine):
    """An engine with a saved picture, closed."""
    engine.add([{"id": "gif", "data": ONE_PIXEL_GIF}], keep=True)
    engine.close()
    return engine.path


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.slow
def test_a_sound_engine(folder):
    assert verify_engine(folder) == verify_engine(folder, repair=True) == []


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: flip(path / CONFIG, -30), "config.json"),
        (lambda path: flip(path / "model" / "model.safetensors", -1), "model.safetensors"),
        (lambda path: flip(path / "model" / CONFIG, 40), "config.json"),
        (lambda path: flip(path / "encoders" / "0" / "encoder.safetensors", -1), "encoder of 'image'"),
        (lambda path: flip(path / "refinement.safetensors", -1), "refinement.safetensors"),
        (lambda path: (path / ITEMS).write_bytes(b"no database" * 1000), "is not a store"),
        (lambda path: (path / ITEMS).unlink(), "does not exist"),
        (lambda path: flip(path / ITEMS, (path / ITEMS).read_bytes().index(b"a red ball")), "not as it was written"),
        (lambda path: next((path / MEDIA).iterdir()).unlink(), "picture of an item is missing"),
        (lambda path: shutil.rmtree(path), "does not exist"),
    ],
)
def test_damage_is_found_and_not_repaired(folder, spoil, message):
    spoil(folder)
    for repair in (False, True):
        found = verify_engine(folder, repair=repair)
        assert any(finding.kind == "damage" and message in str(finding) for finding in found)
        assert not any(finding.repaired for finding in found)


def leave_rubbish(folder):
    """What killed processes leave: a picture of no item, halves of files and folders, an engine and a backup."""
    rubbish = [
        folder / MEDIA / f"{'ab' * 16}.gif",
        folder / MEDIA / ".x.gif.abcdefgh.mh-part",
        folder / ".config.json.abcdefgh.mh-part",
        folder / ".model.abcdefgh.mh-part" / "new",
        folder / "encoders" / ".0.abcdefgh.mh-part" / "new",
        folder.parent / ".engine.abcdefgh.mh-part" / "new" / CONFIG,
        folder.parent / ".engine.tar.abcdefgh.mh-part" / "new" / ITEMS,
        folder.parent / ".items.jsonl.abcdefgh.mh-part",
    ]
    for path in rubbish:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    (folder / MEDIA / "notes.txt").write_text("of somebody")
    return rubbish


@LOCKS
def test_leftovers_are_found_and_repair_removes_them(folder):
    rubbish = leave_rubbish(folder)
    assert [finding.kind for finding in verify_engine(folder)] == ["leftover"] * 8
    assert all(path.exists() for path in rubbish)
    found = verify_engine(folder, repair=True)
    assert [(finding.kind, finding.repaired) for finding in found] == [("leftover", True)] * 8
    assert not any(path.exists() for path in rubbish)
    assert (folder / MEDIA / "notes.txt").exists()
    assert verify_engine(folder) == []


@LOCKS
@pytest.mark.filterwarnings("ignore:.*was killed")
def test_leftovers_are_swept_at_start_but_for_those_of_others(folder):
    *own, backup, export = leave_rubbish(folder)
    with Engine.open(folder, read_only=True):
        assert all(path.exists() for path in own)
    with Engine.open(folder) as engine:
        assert not any(path.exists() for path in own)
        assert engine.path_of(engine.get("gif")).exists()
    assert backup.exists()
    assert export.exists()


@LOCKS
@pytest.mark.parametrize("command", ["train", "open"])
def test_what_a_killed_training_left_is_swept_where_no_engine_is_yet(tmp_path, command):
    target = tmp_path / "engine"
    left = [tmp_path / f".{name}.mh-part" / "new" for name in ("engine.abcdefgh", "engine.bcdefghi", "other.abcdefgh")]
    for path in left:
        path.mkdir(parents=True)
        (path / ITEMS).write_bytes(b"half")

    def run():
        if command == "open":
            with pytest.raises(EngineError, match="does not exist"):
                Engine.open(target)
        else:
            with pytest.raises(ValueError, match="only one item"):
                Engine.train([{"text": "a", "modality": "text"}], target, n_bits=8)

    with pytest.warns(UserWarning, match=r"creating or replacing .* \(.engine.abcdefgh.* were removed"):
        run()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.abcdefgh.mh-part"]


@LOCKS
def test_pictures_are_not_swept_while_somebody_adds_some(folder):
    (picture, *_) = leave_rubbish(folder)
    with shared_lock(folder / MEDIA):
        verify_engine(folder, repair=True)
        assert picture.exists()


def test_a_picture_that_an_exported_manifest_names_by_its_whole_path_is_used(folder, tmp_path):
    with Engine.open(folder) as engine:
        (line,) = (line for line in engine.export() if line["id"] == "gif")
        engine.remove(["gif"])
        (folder / MEDIA / os.path.basename(line["path"])).write_bytes(ONE_PIXEL_GIF)
        (tmp_path / "again.jsonl").write_text(json.dumps(line) + "\n")
        assert engine.add(tmp_path / "again.jsonl").added == 1
    assert verify_engine(folder, repair=True) == []


@LOCKS
@pytest.mark.parametrize(
    ("error", "n_left"), [(StoreError("the disk failed"), 3), (StoreFullError("full"), 1), (StoreBusyError("busy"), 1)]
)
def test_pictures_stay_until_it_is_known_that_no_item_has_them(folder, monkeypatch, error, n_left):
    """A commit that fails on a failing disk may be found done when the store is opened again."""

    def fail(*args, **options):
        raise error

    media = folder / MEDIA
    with Engine.open(folder) as engine:
        monkeypatch.setattr(type(engine.store), "add", fail)
        for id in ("gif", "new"):
            with pytest.raises(type(error)):
                engine.add([{"id": id, "data": ONE_PIXEL_GIF}], keep=True, replace=True)
        monkeypatch.undo()
        assert len(list(media.iterdir())) == n_left
        assert engine.path_of(engine.get("gif")).exists()
    with Engine.open(folder) as engine:
        assert len(list(media.iterdir())) == 1
        assert engine.path_of(engine.get("gif")).exists()
