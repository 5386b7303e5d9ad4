"""A folder is replaced as a whole, or left as it was."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import sys

import pytest

from modalhash.core import files as _files
from modalhash.core.files import abandoned_folders, recover_folder, replace_folder, scratch_folders, sweep


def contents(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def old(tmp_path):
    folder = tmp_path / "folder"
    (folder / "media").mkdir(parents=True)
    (folder / "a").write_text("old")
    (folder / "media" / "photo").write_text("only copy")
    return folder


def test_a_new_folder_appears_when_the_block_ends(tmp_path):
    target = tmp_path / "above" / "folder"
    with replace_folder(target) as fresh:
        (fresh / "deep").mkdir()
        (fresh / "deep" / "a").write_text("new")
        assert not target.exists()
    assert contents(target) == {"deep/a": "new"}
    assert [path.name for path in target.parent.iterdir()] == ["folder"]
    (tmp_path / "plain").mkdir()
    assert target.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_the_old_one_is_replaced_but_for_what_is_carried(old):
    with replace_folder(old, carry=("media", "nothing")) as fresh:
        (fresh / "b").write_text("new")
        assert contents(old)["a"] == "old"
    assert contents(old) == {"b": "new", "media/photo": "only copy"}
    with replace_folder(old) as fresh:
        (fresh / "c").write_text("newer")
    assert contents(old) == {"c": "newer"}
    assert [path.name for path in old.parent.iterdir()] == ["folder"]


def test_a_block_that_fails_changes_nothing(old):
    before = contents(old)

    def stopped():
        with replace_folder(old, carry=("media",)) as fresh:
            (fresh / "b").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert contents(old) == before
    assert [path.name for path in old.parent.iterdir()] == ["folder"]


@pytest.fixture
def without_exchange(monkeypatch):
    """A file system that cannot exchange two names."""
    monkeypatch.setattr(_files, "_exchange_call", lambda: None)


@pytest.mark.parametrize("failing", [1, 2])
def test_a_rename_that_fails_changes_nothing(old, monkeypatch, without_exchange, failing):
    """The first moves the old folder away, the second the new folder to its name."""
    before, rename, calls = contents(old), os.rename, []

    def fails_once(*args):
        calls.append(args)
        if len(calls) == failing:
            raise OSError(28, "No space left on device")
        rename(*args)

    monkeypatch.setattr(os, "rename", fails_once)
    with pytest.raises(OSError, match="No space left"), replace_folder(old, carry=("media",)) as fresh:
        (fresh / "b").write_text("new")
    assert contents(old) == before
    assert [path.name for path in old.parent.iterdir()] == ["folder"]


def test_without_an_exchange_it_is_replaced_all_the_same(old, without_exchange):
    with replace_folder(old, carry=("media",)) as fresh:
        (fresh / "b").write_text("new")
    assert contents(old) == {"b": "new", "media/photo": "only copy"}
    assert [path.name for path in old.parent.iterdir()] == ["folder"]


def test_an_exchange_that_the_file_system_refuses_is_done_with_renames(old, monkeypatch):
    def refuse(one, other):
        ctypes.set_errno(errno.EINVAL)
        return -1

    monkeypatch.setattr(_files, "_exchange_call", lambda: refuse)
    with replace_folder(old) as fresh:
        (fresh / "b").write_text("new")
    assert contents(old) == {"b": "new"}


KILLED = """
import os, signal, sys
from modalhash.core import files as _files

if sys.argv[2] == "without exchange":
    _files._exchange_call = lambda: None
left = int(sys.argv[3])
def counted(module, name):
    act = getattr(module, name)
    def step(*args, **kwargs):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return act(*args, **kwargs)
    setattr(module, name, step)
os.fsync = lambda handle: None  # a kill is no power cut
for name in ("rename", "mkdir", "link", "fsync", "rmdir", "unlink"):
    counted(os, name)
counted(_files, "_exchange")
with _files.replace_folder(sys.argv[1], carry=("media",)) as fresh:
    (fresh / "b").write_text("new")
print("done")
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="no such signals and locks there")
@pytest.mark.parametrize("how", ["exchange", "without exchange"])
def test_killed_anywhere_the_old_folder_or_the_new_one_is_there(old, how):
    before, after = contents(old), {"b": "new", "media/photo": "only copy"}
    outcomes = set()
    for step in range(40):
        arguments = [sys.executable, "-c", KILLED, str(old), how, str(step)]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        was_there, recovered = old.exists(), recover_folder(old)
        assert was_there is not recovered
        assert was_there or how == "without exchange"
        assert contents(old) in (before, after)
        sweep(scratch_folders(old))
        assert [path.name for path in old.parent.iterdir()] == ["folder"]
        outcomes.add((contents(old) == after, recovered))
        if done.returncode == 0:
            break
        if contents(old) == after:
            before = after
    else:
        pytest.fail("the replacement never ended")
    assert (True, False) in outcomes
    assert (False, True) in outcomes or how == "exchange"


@pytest.mark.skipif(os.name == "nt", reason="no locks there")
def test_what_somebody_is_filling_is_no_leftover(old):
    with replace_folder(old) as fresh:
        (fresh / "b").write_text("new")
        assert scratch_folders(old) == []
        sweep([fresh.parent])
        assert fresh.exists()
    assert contents(old) == {"b": "new"}


def test_a_folder_with_a_name_that_begins_alike_is_left_alone(old):
    for name in (".folder.old", ".folder.settings", ".folder.settings.mh-part", ".folders.abcdefgh.mh-part"):
        (old.parent / name / "mine").mkdir(parents=True)
    left = old.parent / ".folder.abcdefgh.mh-part"
    (left / "new").mkdir(parents=True)
    assert scratch_folders(old) == ([left] if os.name != "nt" else [])


def test_everything_is_on_the_disk_before_the_name_changes(old, monkeypatch):
    synced, fsync = [], os.fsync

    def spy(handle):
        synced.append(os.readlink(f"/proc/self/fd/{handle}") if os.path.isdir("/proc/self/fd") else str(handle))
        assert (old / "a").exists() or len(synced) > 2
        fsync(handle)

    monkeypatch.setattr(os, "fsync", spy)
    with replace_folder(old) as fresh:
        (fresh / "b").write_text("new")
    assert len(synced) == 3  # the file, the new folder, the folder that holds its name


@pytest.mark.skipif(os.name == "nt", reason="no locks there")
def test_what_was_abandoned_in_a_folder_is_found_whatever_it_was_to_be(old):
    """Of a backup, of another folder; but not what may be the only copy, what somebody holds, or is somebody's own."""
    parent = old.parent
    for name in ("folder", "folder.tar", "never made"):
        (parent / f".{name}.abcdefgh.mh-part" / "new").mkdir(parents=True)
    for name in ("folder", "moved away"):
        (parent / f".{name}.ijklmnop.mh-part" / "old").mkdir(parents=True)
    (parent / ".folder.qrstuvwx.mh-part" / "mine").mkdir(parents=True)
    (parent / ".folder.abcdefgh.mh-part2").mkdir()
    (parent / ".folder.file.abcdefgh.mh-part").touch()
    with _files.scratch_folder(old) as held:
        found = abandoned_folders(parent)
    assert [path.name for path in found] == [
        ".folder.abcdefgh.mh-part",
        ".folder.ijklmnop.mh-part",
        ".folder.tar.abcdefgh.mh-part",
        ".never made.abcdefgh.mh-part",
    ]
    assert held not in found
    assert abandoned_folders(parent / "nowhere") == []


def test_what_is_carried_already_needs_no_second_link(old, tmp_path, monkeypatch):
    _files.link_tree(old / "media", tmp_path / "carried")

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    _files.link_tree(old / "media", tmp_path / "carried")
    assert contents(tmp_path / "carried") == {"photo": "only copy"}
