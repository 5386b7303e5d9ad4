from __future__ import annotations

import sys

import pytest

from modalhash._imports import MissingExtraError, require


def test_a_missing_extra_is_named_with_the_install_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtraError, match=r"reading v7.3 files needs .*'h5py'.*pip install 'modalhash\[data\]'"):
        require("h5py", extra="data", why="reading v7.3 files")


def test_a_broken_package_shows_its_own_error(tmp_path, monkeypatch):
    (tmp_path / "half_installed.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        require("half_installed", extra="data", why="testing")
