"""A folder is replaced as a whole, or left as it was."""

from __future__ import annotations

import os

import pytest

from modalhash._files import replace_folder


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


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_rename_that_fails_changes_nothing(old, monkeypatch, failing):
    """The first moves the old folder away, the second what is carried, the third the new folder to its name."""
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
