"""Prints of pictures, and the file that keeps them."""

from __future__ import annotations

import os
import zipfile

import numpy as np
import pytest

from modalhash.core.archives import ArchiveMember
from modalhash.engine.search import picture_prints
from modalhash.engine.search.picture_prints import FILE, PrintKeeper

pytest.importorskip("PIL.Image")


@pytest.fixture
def files(world):
    return sorted((world / "photos").glob("*.png"))[:3]


@pytest.fixture
def read(monkeypatch):
    """How many files were read, call by call."""
    calls = []
    original = picture_prints._read
    monkeypatch.setattr(picture_prints, "_read", lambda files: calls.append(len(files)) or original(files))
    return calls


@pytest.mark.slow
def test_files_are_read_once(tmp_path, files, read):
    keeper = PrintKeeper(tmp_path)
    first = keeper.prints(files)
    assert first["grey"].reshape(3, -1).std(axis=1).all()
    assert (keeper.prints(files) == first).all()
    assert (PrintKeeper(tmp_path).prints([*files, files[0]])[:3] == first).all()
    assert read == [3, 0, 0]


def test_a_changed_file_is_read_again(tmp_path, files, read):
    copy = tmp_path / "copy.png"
    copy.write_bytes(files[0].read_bytes())
    before = PrintKeeper(tmp_path).prints([copy])
    copy.write_bytes(files[1].read_bytes())
    os.utime(copy, (1, 1))
    assert (PrintKeeper(tmp_path).prints([copy])["grey"] != before["grey"]).any()
    assert read == [1, 1]


def test_what_cannot_be_read_is_zeros(tmp_path, files):
    (tmp_path / "broken.png").write_bytes(b"no picture")
    found = PrintKeeper(tmp_path).prints([None, tmp_path / "missing.png", tmp_path / "broken.png", files[0]])
    assert [bool(grey.any()) for grey in found["grey"]] == [False, False, False, True]


def test_files_in_archives(tmp_path, files):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(files[0], "0.png")
    keeper = PrintKeeper(None)
    inside, outside = keeper.prints([ArchiveMember(tmp_path / "a.zip", "0.png"), files[0]])
    assert (inside["grey"] == outside["grey"]).all()


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x93NUMPY\x01\x00"])
def test_a_damaged_file_is_made_again(tmp_path, files, content):
    (tmp_path / FILE).write_bytes(content)
    whole = PrintKeeper(tmp_path).prints(files)
    assert whole["grey"].any()
    assert len(np.load(tmp_path / FILE)) == 3


def test_nothing_is_written_without_a_folder(tmp_path, files, monkeypatch):
    monkeypatch.chdir(tmp_path)
    PrintKeeper(None).prints(files)
    assert list(tmp_path.iterdir()) == []


def test_prints_of_files_that_are_gone_are_forgotten(tmp_path, files):
    keeper = PrintKeeper(tmp_path)
    keeper.prints(files)
    new = tmp_path / "new.png"
    new.write_bytes(files[0].read_bytes())
    keeper.prints([new])
    assert len(np.load(tmp_path / FILE)) == 1
