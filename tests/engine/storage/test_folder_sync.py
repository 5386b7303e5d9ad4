"""An engine follows a folder of photos: by size and time first, and by content where these differ."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from PIL import Image

from modalhash import Engine
from modalhash.engine import EmptyFolderError, EngineError, Synced, backup_engine, restore_engine
from modalhash.engine.storage.folder import SYNCED
from postgres_server import postgres  # noqa: F401


@pytest.fixture
def place(world, tmp_path):
    """A folder with the engine and its photos, which a test may change."""
    shutil.copytree(world / "photos", tmp_path / "photos")
    shutil.copytree(world / "engine", tmp_path / "engine")
    return tmp_path


@pytest.fixture
def engine(place):
    """The engine, whose 60 photos were synced once."""
    with Engine.open(place / "engine") as opened:
        assert opened.sync(place / "photos").unchanged == 60
        yield opened


def paint(path: Path, colour: str = "red") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40, 40), colour).save(path)
    return path


def age(path: Path, seconds: int = 60) -> None:
    """Give a file another time, whatever the resolution of the disk's clock."""
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + seconds * 10**9))


def forbid(monkeypatch, *names: str) -> None:
    def refuse(*args, **kwargs):
        raise AssertionError("nothing was to be read or encoded")

    for name in names:
        monkeypatch.setattr(name, refuse)


def test_the_first_time_nothing_is_encoded_and_the_second_time_nothing_is_read(place, monkeypatch):
    forbid(monkeypatch, "modalhash.engine.engine.Engine.add")
    with Engine.open(place / "engine") as engine:
        done = engine.sync(place / "photos")
        assert str(done) == "0 added, 0 changed, 0 gone, 60 as before"
        assert not done
        written = (place / "engine" / SYNCED).stat()
        forbid(
            monkeypatch,
            "modalhash.engine.storage.folder_sync.sha256_of",
            "modalhash.engine.storage.folder_sync.write_atomically",
        )
        assert engine.sync(place / "photos") == done
        assert (place / "engine" / SYNCED).stat() == written


def test_new_changed_touched_and_gone_photos(engine, place):
    photos = place / "photos"
    before = {name: engine.get(f"photos/{name}.png") for name in (1, 2)}
    paint(photos / "boats" / "red" / "new.png")
    paint(photos / "1.png", "blue")
    age(photos / "1.png")
    age(photos / "2.png")
    (photos / "3.png").unlink()
    n_texts = engine.store.count("text")
    done = engine.sync(photos)
    assert done == Synced(("photos/boats/red/new.png",), ("photos/1.png",), (), ("photos/3.png",), unchanged=58)
    assert str(done) == "1 added, 1 changed, 1 gone, 58 as before"
    assert engine.get("photos/boats/red/new.png").labels == ("boats", "red")
    changed = engine.get("photos/1.png")
    assert (changed.labels, changed.kind, before[1].kind) == (before[1].labels, "hashed", "learned")
    assert engine.get("photos/2.png") == before[2]  # its time is another, its content is not
    assert len(engine) == 120
    assert engine.store.count("text") == n_texts
    assert str(engine.sync(photos)) == "0 added, 0 changed, 0 gone, 60 as before"


def test_a_touched_photo_is_read_once(engine, place, monkeypatch):
    age(place / "photos" / "7.png")
    forbid(monkeypatch, "modalhash.engine.engine.Engine.add")
    assert not engine.sync(place / "photos")
    forbid(monkeypatch, "modalhash.engine.storage.folder_sync.sha256_of")
    assert not engine.sync(place / "photos")


def test_a_photo_of_the_same_size_and_time_is_taken_to_be_the_same(engine, place):
    path = place / "photos" / "7.png"
    data, status = path.read_bytes(), path.stat()
    path.write_bytes(data[:-1] + b"\0")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not engine.sync(place / "photos")


def test_a_renamed_photo_keeps_its_code_and_its_own_labels(engine, place, monkeypatch):
    photos, before = place / "photos", engine.get("photos/5.png")
    (photos / "boats").mkdir()
    (photos / "5.png").rename(photos / "boats" / "five.png")
    forbid(monkeypatch, "modalhash.engine.engine.Engine.add")
    done = engine.sync(photos)
    assert str(done) == "0 added, 0 changed, 1 moved, 0 gone, 59 as before"
    after = engine.get("photos/boats/five.png")
    assert (after.code, after.kind, after.labels) == (before.code, before.kind, before.labels)
    assert after.uri == str(photos / "boats" / "five.png")
    with pytest.raises(KeyError):
        engine.get("photos/5.png")
    assert not engine.sync(photos)


def test_a_photo_that_moves_to_a_folder_of_another_label_gets_that(engine, place):
    photos = place / "photos"
    paint(photos / "boats" / "x.png")
    engine.sync(photos)
    (photos / "cars").mkdir()
    (photos / "boats" / "x.png").rename(photos / "cars" / "x.png")
    done = engine.sync(photos)
    assert (done.added, done.moved, done.gone) == (("photos/cars/x.png",), (), ("photos/boats/x.png",))
    assert engine.get("photos/cars/x.png").labels == ("cars",)


def test_an_id_of_its_own_stays_when_the_photo_is_renamed(engine, place):
    photos = place / "photos"
    engine.add([{"id": "mine", "path": str(paint(photos / "x.png")), "title": "a boat"}])
    engine.sync(photos)
    (photos / "x.png").rename(photos / "y.png")
    assert engine.sync(photos).moved == ("mine",)
    assert engine.get("mine").uri == str(photos / "y.png")
    assert engine.get("mine").extra == {"title": "a boat"}


def test_only_items_of_the_folder_are_dropped(engine, place):
    other = paint(place / "elsewhere" / "x.png")
    hidden = paint(place / "photos" / ".hidden" / "x.png")
    engine.add([{"id": "other", "path": str(other)}, {"id": "hidden", "path": str(hidden)}])
    other.unlink()
    (place / "photos" / "1.png").unlink()
    done = engine.sync(place / "photos")
    assert (done.gone, done.added, done.unchanged) == (("photos/1.png",), (), 60)
    assert engine.get("other").id == "other"
    hidden.unlink()
    assert engine.sync(place / "photos").gone == ("hidden",)


def test_pictures_that_the_engine_saved_are_not_photos_of_the_folder(engine, place):
    data = paint(place / "x.png").read_bytes()
    engine.add([{"id": "saved", "data": data}], keep=True)
    (place / "x.png").unlink()
    assert str(engine.sync(place)) == "0 added, 0 changed, 0 gone, 60 as before"
    assert engine.path_of(engine.get("saved")).is_file()


def test_a_folder_that_is_missing_or_empty_is_refused(engine, place):
    photos = place / "photos"
    photos.rename(place / "away")
    with pytest.raises(EmptyFolderError, match=r"no such folder, and the engine has 60 items .*--allow-empty"):
        engine.sync(photos)
    photos.mkdir()
    with pytest.raises(EmptyFolderError, match=r"no pictures in it, and the engine has 60 items"):
        engine.sync(photos)
    assert engine.store.count("image") == 60
    with pytest.raises(FileNotFoundError, match="no such folder"):
        engine.sync(place / "fotos", allow_empty=True)
    with pytest.raises(NotADirectoryError, match="expected a folder"):
        engine.sync(place / "engine" / "config.json")
    assert len(engine.sync(photos, allow_empty=True).gone) == 60
    assert engine.store.count("image") == 0
    assert not engine.sync(photos)


def test_a_part_that_cannot_be_read_drops_nothing(engine, place, monkeypatch):
    photos = place / "photos"
    paint(photos / "sub" / "x.png")
    engine.sync(photos)
    listed = Path.iterdir

    def iterdir(path):
        if path.name == "sub":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    (photos / "1.png").unlink()
    with pytest.raises(PermissionError):
        engine.sync(photos)
    assert engine.store.count("image") == 61


def test_photos_that_cannot_be_read_are_told_and_tried_again(engine, place):
    photos, before = place / "photos", engine.get("photos/1.png")
    (photos / "bad.png").write_bytes(b"no picture")
    (photos / "1.png").write_bytes(b"half")
    told = []
    done = engine.sync(photos, on_problem=told.append)
    assert (done.added, done.changed, done.problems) == ((), (), tuple(told))
    assert {Path(problem.path).name for problem in told} == {"bad.png", "1.png"}
    assert "; 2 left out" in str(done)
    assert engine.get("photos/1.png") == before  # what was encoded of it is better than nothing
    with pytest.warns(UserWarning, match="2 items were left out"):
        assert len(engine.sync(photos).problems) == 2
    paint(photos / "bad.png")
    paint(photos / "1.png", "green")
    done = engine.sync(photos)
    assert (done.added, done.changed, done.problems) == (("photos/bad.png",), ("photos/1.png",), ())


def test_a_dry_run_changes_nothing(place):
    paint(place / "photos" / "new.png")
    (place / "photos" / "1.png").unlink()
    with Engine.open(place / "engine", read_only=True) as engine:
        done = engine.sync(place / "photos", dry_run=True)
        assert (done.added, done.gone, done.unchanged) == (("photos/new.png",), ("photos/1.png",), 59)
        assert len(engine) == 120
        assert not (place / "engine" / SYNCED).exists()
        with pytest.raises(EngineError, match="read-only"):
            engine.sync(place / "photos")


def test_an_id_that_another_file_has_is_told(engine, place):
    paint(place / "other" / "photos" / "1.png")
    paint(place / "other" / "photos" / "new.png")
    with pytest.warns(UserWarning, match="belongs to another item"):
        done = engine.sync(place / "other" / "photos")
    assert (done.added, [problem.id for problem in done.problems]) == (("photos/new.png",), ["photos/1.png"])
    assert engine.get("photos/1.png").uri == str(place / "photos" / "1.png")


def test_links_are_followed_to_their_files(engine, place):
    target = paint(place / "elsewhere" / "x.png")
    (place / "photos" / "link.png").symlink_to(target)
    (place / "photos" / "broken.png").symlink_to(place / "nothing.png")
    assert engine.sync(place / "photos").added == ("photos/link.png",)
    assert engine.get("photos/link.png").uri == str(target)
    assert not engine.sync(place / "photos")
    paint(target, "blue")
    age(target)
    assert engine.sync(place / "photos").changed == ("photos/link.png",)


@pytest.mark.slow
def test_what_is_remembered_outlives_retraining_and_a_backup(engine, place):
    with engine.retrain() as other:
        age(place / "photos" / "1.png")
        assert not other.sync(place / "photos")
        assert (place / "engine" / SYNCED).is_file()
    backup_engine(place / "engine", place / "engine.tar")
    paint(place / "photos" / "1.png", "blue")
    restore_engine(place / "engine.tar", place / "restored")
    with Engine.open(place / "restored") as restored:
        assert restored.sync(place / "photos").changed == ("photos/1.png",)


def test_what_is_remembered_moves_with_engine_and_photos(engine, place):
    engine.close()
    (place / "new").mkdir()
    for name in ("engine", "photos"):
        (place / name).rename(place / "new" / name)
    paint(place / "new" / "photos" / "1.png", "blue")
    with Engine.open(place / "new" / "engine") as moved:
        done = moved.sync(place / "new" / "photos")
    assert (done.changed, done.unchanged) == (("photos/1.png",), 59)


def test_two_folders_keep_their_memories(engine, place):
    first, second = place / "photos", place / "more"
    paint(second / "x.png")
    watching = engine.folder_sync(first)
    engine.sync(second)
    paint(first / "new.png")
    watching.apply(watching.look())
    age(second / "x.png")
    plan = engine.folder_sync(second).look()
    assert (list(plan.unknown), list(plan.states)) == ([], [str(second / "x.png")])


def test_a_damaged_memory_is_told(engine, place):
    (place / "engine" / SYNCED).write_text("{}")
    with pytest.raises(EngineError, match="Delete it"):
        engine.sync(place / "photos")
    (place / "engine" / SYNCED).unlink()
    assert engine.sync(place / "photos").unchanged == 60


def test_a_file_that_is_being_written_waits(engine, place):
    photos = place / "photos"
    data = paint(place / "x.png").read_bytes()
    watching = engine.folder_sync(photos, settle=True)

    def step():
        return watching.apply(watching.look(), on_problem=lambda problem: None)

    assert not step()
    (photos / "x.png").write_bytes(data[:50])
    done = step()
    assert (done.waiting, done.added, done.problems) == (1, (), ())
    (photos / "x.png").write_bytes(data)
    assert step().waiting == 1
    done = step()
    assert (done.waiting, done.added) == (0, ("photos/x.png",))
    paint(photos / "1.png", "blue")
    assert step().waiting == 1
    assert step().changed == ("photos/1.png",)


def test_a_watched_file_that_cannot_be_read_is_told_once(engine, place):
    photos = place / "photos"
    watching = engine.folder_sync(photos, settle=True)
    (photos / "bad.png").write_bytes(b"no picture")
    told = []
    for _ in range(4):
        watching.apply(watching.look(), on_problem=told.append)
    assert len(told) == 1
    paint(photos / "bad.png")
    watching.look()
    assert watching.apply(watching.look()).added == ("photos/bad.png",)


@pytest.mark.slow
def test_an_engine_of_texts_has_no_photos_to_follow(tmp_path):
    texts = [{"text": f"{word} number {n}", "labels": [word]} for n in range(20) for word in ("red", "blue")]
    paint(tmp_path / "photos" / "x.png")
    with (
        Engine.train(texts, tmp_path / "engine", n_bits=8) as engine,
        pytest.raises(ValueError, match="no encoder reads pictures"),
    ):
        engine.sync(tmp_path / "photos")


def test_an_engine_whose_items_are_in_a_database(place, postgres, monkeypatch, request):  # noqa: F811
    backup_engine(place / "engine", place / "engine.tar")
    restore_engine(place / "engine.tar", place / "shared", store=postgres.url)
    with Engine.open(place / "shared", database=postgres.url) as engine:
        request.addfinalizer(lambda: postgres.execute(f"DROP SCHEMA {engine.config['store']['schema']} CASCADE"))
        paint(place / "photos" / "new.png")
        (place / "photos" / "1.png").rename(place / "photos" / "one.png")
        done = engine.sync(place / "photos")
        assert (set(done.added), done.gone) == ({"photos/new.png", "photos/one.png"}, ("photos/1.png",))
        (place / "photos" / "2.png").rename(place / "photos" / "two.png")
        assert engine.sync(place / "photos").moved == ("photos/two.png",)
        forbid(monkeypatch, "modalhash.engine.storage.folder_sync.sha256_of")
        assert engine.sync(place / "photos").unchanged == 61
