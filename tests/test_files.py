"""Atomic writes: the old file or the whole new one, on the disk before the call returns."""

from __future__ import annotations

import os
import stat

import pytest

from modalhash._files import sha256_of, write_atomically


def test_it_writes_bytes_and_what_a_function_writes(tmp_path):
    path = tmp_path / "new" / "file"
    write_atomically(path, b"one")
    assert path.read_bytes() == b"one"
    write_atomically(path, lambda file: file.writelines([b"two", b"three"]))
    assert path.read_bytes() == b"twothree"
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(file):
        file.write(b"half")
        raise KeyError("no more")

    with pytest.raises(KeyError):
        write_atomically(path, fail)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.name == "nt", reason="folders cannot be synced there")
def test_the_file_is_synced_before_it_gets_its_name_and_the_folder_after(tmp_path, monkeypatch):
    path, seen = tmp_path / "file", []
    fsync = os.fsync

    def watched(handle):
        seen.append(("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file", path.exists()))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", watched)
    write_atomically(path, b"one", sync=False)
    assert seen == []
    path.unlink()
    write_atomically(path, b"one")
    assert seen == [("file", False), ("folder", True)]


@pytest.mark.skipif(os.name == "nt", reason="no such modes there")
def test_others_may_read_it_as_the_mask_says(tmp_path):
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "file", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_one_digest_for_several_files(tmp_path):
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode())
    one, two = sha256_of([tmp_path / "a"]), sha256_of([tmp_path / "a", tmp_path / "b"])
    assert one != two
    assert two == sha256_of([tmp_path / "a", tmp_path / "b"]) != sha256_of([tmp_path / "b", tmp_path / "a"])
