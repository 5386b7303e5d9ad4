"""A little engine for the tests of this folder: trained once per module, and a copy for tests that change it."""

from __future__ import annotations

import shutil

import pytest

from command_line import run
from little_world import make_world


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with photos, items.csv and an engine trained on them."""
    folder = tmp_path_factory.mktemp("world")
    make_world(folder)
    done = run("train", folder / "items.csv", "-o", folder / "engine", "--bits", "16")
    assert done.exit_code == 0, done.output
    assert "60 image, 60 text; 5 labels (encode" in done.stderr
    assert "16 bits: 6 label sets, " in done.stderr
    assert "modalhash search" in done.stderr
    return folder


@pytest.fixture
def engine(world, tmp_path):
    """A copy of its own, which a test may change."""
    shutil.copytree(world / "engine", tmp_path / "engine")
    return tmp_path / "engine"
