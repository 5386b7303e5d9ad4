"""Atomic writes: the old file or the whole new one, on the disk before the call returns."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys

import pytest

from modalhash.core.files import sha256_of, shared_lock, sweep, temporary_files, write_atomically


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


@pytest.mark.parametrize("sync", [True, False])
def test_a_file_is_whole_before_it_gets_its_name(tmp_path, monkeypatch, sync):
    seen, replace = [], os.replace

    def look(source, target):
        with open(source, "rb") as file:
            seen.append(file.read())
        replace(source, target)

    monkeypatch.setattr(os, "replace", look)
    write_atomically(tmp_path / "file", b"all", sync=sync)
    write_atomically(tmp_path / "file", lambda file: file.write(b"all of it"), sync=sync)
    assert seen == [b"all", b"all of it"]


@pytest.mark.skipif(os.name == "nt", reason="no such signals and locks there")
def test_what_a_killed_process_left_is_found_and_swept_and_what_is_being_written_is_not(tmp_path):
    code = "import os, signal, sys; from modalhash.core.files import write_atomically\n"
    code += "write_atomically(sys.argv[1], lambda file: os.kill(os.getpid(), signal.SIGKILL))"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "items.jsonl")], check=False)
    (left,) = temporary_files(tmp_path)

    def look(file):
        assert temporary_files(tmp_path) == [left]
        sweep(sorted(tmp_path.iterdir()))  # the leftover, and what is being written

    write_atomically(tmp_path / "other.jsonl", look)
    assert temporary_files(tmp_path) == []
    assert (tmp_path / "other.jsonl").exists()


@pytest.mark.skipif(os.name == "nt", reason="no locks there")
def test_a_lock_is_shared_or_held_alone(tmp_path):
    with shared_lock(tmp_path) as first, shared_lock(tmp_path) as second:
        assert first
        assert second
        with shared_lock(tmp_path, exclusive=True) as alone:
            assert not alone
    with shared_lock(tmp_path, exclusive=True) as alone:
        assert alone


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


@pytest.mark.skipif(sys.platform == "win32", reason="needs locks")
def test_a_temporary_folder_goes_at_its_end_or_with_the_next_one_if_its_process_was_killed(tmp_path):
    code = """
import os, signal
from modalhash.core.files import temporary_folder
with temporary_folder("modalhash-x") as folder:
    (folder / "file").touch()
    if not os.environ.get("ENDS"):
        os.kill(os.getpid(), signal.SIGKILL)
"""

    def run(**more):
        return subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path), **more}
        ).returncode

    (tmp_path / "other").mkdir()
    assert [run(), len(list(tmp_path.iterdir()))] == [-signal.SIGKILL, 2]
    assert [run(), len(list(tmp_path.iterdir()))] == [-signal.SIGKILL, 2], "that of the first is gone"
    assert [run(ENDS="1"), list(tmp_path.iterdir())] == [0, [tmp_path / "other"]]
