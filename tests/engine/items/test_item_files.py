"""Files of items: relative to the engine where they lie in it or beside it, so that both can be moved together."""

from __future__ import annotations

import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from modalhash import Engine
from modalhash.engine import backup_engine, restore_engine
from modalhash.engine.items.item import HOME, ItemFiles
from modalhash.engine.storage.folder import read_config, write_config

FOLDER = Path("/data/mine/engine")


@pytest.mark.parametrize(
    ("file", "uri"),
    [
        ("/data/mine/photos/red/1.jpg", "../photos/red/1.jpg"),
        ("/data/mine/1.jpg", "../1.jpg"),
        ("/data/mine/engine/photos/1.jpg", "photos/1.jpg"),
        ("/data/mine/photos.zip!/red//1.jpg", "../photos.zip!/red//1.jpg"),
        ("/data/photos/1.jpg", "/data/photos/1.jpg"),
        ("/data/photos.tar!/1.jpg", "/data/photos.tar!/1.jpg"),
        ("/data/mine/x/../photos/1.jpg", "/data/mine/x/../photos/1.jpg"),
        ("/data/mine/engine/media/1.jpg", "/data/mine/engine/media/1.jpg"),
        ("media/0123.jpg", "media/0123.jpg"),
    ],
)
def test_what_is_stored_of_a_file_leads_back_to_it(file, uri):
    files = ItemFiles(FOLDER)
    assert files.uri(file) == uri
    assert str(files.find(uri)) == (file if uri != file or file.startswith("/") else f"{FOLDER}/{file}")
    assert ItemFiles(FOLDER, relative=False).uri(file) == file
    assert files.whole(uri) == file


def test_an_engine_in_the_root_has_no_neighbours():
    assert ItemFiles(Path("/engine")).uri("/home/me/1.jpg") == "/home/me/1.jpg"
    assert ItemFiles(Path("/engine")).uri("/engine/1.jpg") == "1.jpg"


@pytest.mark.parametrize(
    "uri", ["../../1.jpg", "../photos/../../1.jpg", "photos/../../1.jpg", "s3://bucket/1.jpg", "../../p.zip!/1.jpg"]
)
def test_nothing_leads_further_up_than_beside_the_engine(uri):
    assert ItemFiles(FOLDER, Path("/data/before/engine")).find(uri) is None


@pytest.fixture
def mine(world, tmp_path):
    """A folder with photos, a zip of them, and an engine that has both."""
    mine = tmp_path / "mine"
    shutil.copytree(world, mine, ignore=shutil.ignore_patterns("engine"))
    shutil.copytree(world / "engine", mine / "engine")
    write_config(mine / "engine", {**read_config(mine / "engine"), HOME: str(mine / "engine")})
    with zipfile.ZipFile(mine / "more.zip", "w") as archive:
        archive.write(world / "photos" / "0.png", "red/0.png")
    with Engine.open(mine / "engine") as engine:
        engine.add([mine / "photos", mine / "more.zip"], replace=True)
    return mine


def paths(engine):
    return [str(engine.path_of(record)) for record in engine.items() if record.uri is not None]


@pytest.mark.slow
def test_an_engine_and_its_photos_are_moved_together(mine, tmp_path):
    with Engine.open(mine / "engine") as engine:
        stored = sorted(record.uri for record in engine.items() if record.id in ("photos/1.png", "more.zip/red/0.png"))
        assert stored == ["../more.zip!/red/0.png", "../photos/1.png"]
    moved = tmp_path / "elsewhere" / "moved"
    moved.parent.mkdir()
    shutil.move(mine, moved)
    with Engine.open(moved / "engine") as engine:
        photo, packed = engine.get("photos/1.png"), engine.get("more.zip/red/0.png")
        assert photo.uri == str(moved / "photos" / "1.png")
        assert packed.uri == f"{moved}/more.zip!/red/0.png"
        for hit in (photo, packed):
            assert engine.search(id=hit.id, modality="image", asymmetric=True, k=1)
            assert engine.search(image=hit.uri, want="image", k=1)[0].distance == 0
        lines = {line["id"]: line for line in engine.export()}
        assert lines["more.zip/red/0.png"]["path"] == packed.uri
        (same,) = engine.duplicates(where='id in ("more.zip/red/0.png", "photos/0.png")')
        assert same.exact
        assert {item.uri for item in same.items} == {str(moved / "photos" / "0.png"), packed.uri}
        again = engine.add([{**lines["more.zip/red/0.png"], "id": "again"}])
        assert (again.added, engine.records(["again"])[0].uri) == (1, "../more.zip!/red/0.png")


def test_an_engine_that_is_copied_or_restored_alone_finds_its_photos_where_they_were(mine, tmp_path):
    backup_engine(mine / "engine", tmp_path / "backup.tar")
    restore_engine(tmp_path / "backup.tar", tmp_path / "far" / "away" / "engine")
    with Engine.open(tmp_path / "far" / "away" / "engine") as engine:
        assert engine.path_of(engine.get("photos/1.png")) == mine / "photos" / "1.png"


@pytest.mark.slow
def test_an_engine_that_was_moved_alone_finds_its_photos_after_it_is_retrained(mine, tmp_path):
    shutil.move(mine / "engine", tmp_path / "far")
    with Engine.open(tmp_path / "far") as engine:
        photos = [record.id for record in engine.items() if record.modality == "image"]
        engine.relabel(
            [{"id": id, "modality": "image", "labels": ["red" if n % 2 else "blue"]} for n, id in enumerate(photos)]
        )
    with Engine.open(tmp_path / "far") as engine, engine.retrain() as new:
        stored = {record.id: record.uri for record in new.items()}
        assert stored["photos/1.png"] == "../mine/photos/1.png", "beside its new place"
        assert stored["more.zip/red/0.png"] == "../mine/more.zip!/red/0.png"
        assert all(Path(path.partition("!")[0]).exists() for path in paths(new))


def test_engines_of_before_have_whole_paths(mine, tmp_path):
    """What an earlier version stored is found as long as it is there, also from a folder that has been moved."""
    with Engine.open(mine / "engine") as engine:
        numbers = engine.store.row_ids([("image", "photos/2.png")])
        (record,) = engine.store.records(list(numbers.values())).values()
        engine.store.add([replace(record, uri=str(mine / "photos" / "2.png"))], replace=True)
    shutil.move(mine / "engine", tmp_path / "engine")
    with Engine.open(tmp_path / "engine") as engine:
        assert engine.path_of(engine.get("photos/2.png")) == mine / "photos" / "2.png"


def test_a_photo_that_is_gone_says_where_it_was_looked_for(mine):
    (mine / "photos" / "3.png").unlink()
    (mine / "more.zip").unlink()
    with Engine.open(mine / "engine") as engine:
        with pytest.raises(ValueError, match=rf"{mine}/photos/3\.png: no such file"):
            engine.search(id="photos/3.png", asymmetric=True)
        with pytest.raises(ValueError, match=rf"{mine}/more\.zip!/red/0\.png: no such archive"):
            engine.search(id="more.zip/red/0.png", asymmetric=True)
