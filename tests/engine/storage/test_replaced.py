"""Another engine takes the place of an open one: whoever writes notices before a write is acknowledged."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from modalhash import Engine
from modalhash.core import files as _files
from modalhash.engine import EngineError, EngineReplacedError, searching
from modalhash.engine.searching import ONE_PIXEL_GIF
from modalhash.engine.storage.folder import CONFIG, ITEMS, MEDIA, read_parts

LOCKS = pytest.mark.skipif(os.name == "nt", reason="no locks there")


@pytest.fixture(scope="module")
def other(tmp_path_factory, world):
    """An engine of other items, to be put in the place of another."""
    folder = tmp_path_factory.mktemp("other") / "engine"
    Engine.train(world / "items.csv", folder, n_bits=8).close()
    return folder


def put(source, target):
    """Let a copy of one engine take the place of another."""
    with _files.replace_folder(target, carry=(MEDIA,)) as fresh:
        shutil.copytree(source, fresh, dirs_exist_ok=True)


@pytest.mark.slow
@pytest.mark.parametrize("change", ["add", "remove", "add between"])
def test_a_change_to_an_engine_that_was_replaced_is_not_acknowledged(engine, other, change, monkeypatch):
    if change == "add between":  # replaced after the item was encoded, before it is stored
        add = type(engine.store).add
        monkeypatch.setattr(type(engine.store), "add", lambda *a, **k: (put(other, engine.path), add(*a, **k))[1])
    else:
        put(other, engine.path)
        assert engine.replaced
    with pytest.raises(EngineReplacedError, match=r"now has another engine.* open it again and repeat"):
        engine.remove(["t0"]) if change == "remove" else engine.add([{"id": "new", "text": "a red ball"}])
    monkeypatch.undo()
    assert engine.search(text="a red ball", k=3), "what is open goes on answering"
    with engine.reopen() as new:
        assert [new.n_bits, new.replaced] == [8, False]
        assert new.generation != engine.generation
        assert new.add([{"id": "new", "text": "a red ball"}]).added == 1
    with Engine.open(engine.path) as again:
        assert again.get("new").text == "a red ball"


def test_a_picture_that_was_not_acknowledged_is_not_left_behind(engine, other, monkeypatch):
    add = type(engine.store).add
    monkeypatch.setattr(type(engine.store), "add", lambda *a, **k: (put(other, engine.path), add(*a, **k))[1])
    with pytest.raises(EngineReplacedError):
        engine.add([{"id": "new", "data": ONE_PIXEL_GIF}], keep=True)
    assert list((engine.path / MEDIA).iterdir()) == []


def test_an_engine_that_is_replaced_while_a_picture_is_written_says_so(engine, other, monkeypatch):
    def vanish(path, data):
        put(other, engine.path)
        raise FileNotFoundError(f"{path} is in a folder that is no more")

    monkeypatch.setattr("modalhash.engine.storage.folder.write_atomically", vanish)
    with pytest.raises(EngineReplacedError):
        engine.add([{"id": "new", "data": ONE_PIXEL_GIF}], keep=True)


def test_a_picture_that_cannot_be_written_for_another_reason_is_that_error(engine, monkeypatch):
    def vanish(path, data):
        raise FileNotFoundError("gone")

    monkeypatch.setattr("modalhash.engine.storage.folder.write_atomically", vanish)
    with pytest.raises(FileNotFoundError, match="gone"):
        engine.add([{"id": "new", "data": ONE_PIXEL_GIF}], keep=True)


def test_an_engine_that_was_moved_away_takes_no_changes(engine):
    engine.path.rename(engine.path.with_name("elsewhere"))
    with pytest.raises(EngineReplacedError, match="is gone"):
        engine.add([{"id": "new", "text": "a red ball"}])
    with pytest.raises(EngineError, match="does not exist"):
        engine.reopen()


@pytest.mark.skipif(os.name == "nt", reason="an open file cannot be replaced there")
@pytest.mark.parametrize("what", ["all", "items"])
def test_a_copy_of_the_engine_in_its_place_is_another_one(engine, world, what):
    """The generation is the same, but what is written into the old file is not in the new one."""
    if what == "all":
        put(world / "engine", engine.path)
    else:
        shutil.copy(world / "engine" / ITEMS, engine.path / "copy")
        (engine.path / "copy").replace(engine.path / ITEMS)
    with pytest.raises(EngineReplacedError):
        engine.add([{"id": "new", "text": "a red ball"}])


def test_an_engine_that_was_touched_or_copied_in_place_is_the_same(engine):
    config = engine.path / CONFIG
    config.write_bytes(config.read_bytes())
    os.utime(config, ns=(1, 1))
    assert not engine.replaced
    assert engine.add([{"id": "new", "text": "a red ball"}]).added == 1


def test_an_engine_that_is_replaced_while_it_is_opened_is_opened_whole(engine, other, monkeypatch):
    """Parts of the old one with items of the new one would be an engine that never was."""
    replaced = []

    def then_replace(folder, **options):
        parts = read_parts(folder, **options)
        if not replaced:
            replaced.append(put(other, engine.path))
        return parts

    monkeypatch.setattr(searching, "read_parts", then_replace)
    with Engine.open(engine.path) as opened:
        assert [opened.n_bits, opened.store.n_bits, opened.replaced] == [8, 8, False]


@LOCKS
def test_what_a_killed_replacement_left_is_swept_at_the_next_start_with_a_warning(engine, world):
    engine.close()
    left = engine.path.with_name(".engine.abcdefgh.mh-part")
    shutil.copytree(world / "engine", left / "new")
    with pytest.warns(UserWarning, match="was killed; its leftovers .* were removed"), Engine.open(engine.path):
        assert not left.exists()


@LOCKS
def test_an_engine_that_was_moved_away_when_the_process_was_killed_is_put_back_with_a_warning(engine):
    engine.close()
    left = engine.path.with_name(".engine.abcdefgh.mh-part")
    left.mkdir()
    engine.path.rename(left / "old")
    with pytest.warns(UserWarning, match="put back") as caught, Engine.open(engine.path) as opened:
        assert len(opened) == 120
    assert len(caught) == 1
    assert not left.exists()


@pytest.mark.slow
def test_a_replaced_engine_is_there_at_every_moment(engine, other):
    """A process that opens it again and again while it is replaced never finds it missing or torn."""
    code = (
        "import sys, threading\nfrom modalhash import Engine\n"
        "stop = threading.Event()\n"
        "threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()\n"
        "print('ready', flush=True)\nn = 0\n"
        "while not stop.is_set() or n < 3:\n"
        "    with Engine.open(sys.argv[1]) as engine:\n"
        "        assert engine.store.n_bits == engine.n_bits\n"
        "    n += 1\n"
        "print(n)\n"
    )
    reader = subprocess.Popen(
        [sys.executable, "-c", code, str(engine.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    reader.stdout.readline()
    for _ in range(6):
        put(other, engine.path)
    out, _ = reader.communicate()
    assert reader.returncode == 0
    assert int(out) >= 3
