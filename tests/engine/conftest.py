"""A little engine for the tests of this folder: trained once per module, and a copy for tests that change it."""

from __future__ import annotations

import shutil

import pytest

from little_world import make_world
from modalhash import Engine


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with photos, items.csv and an engine trained on them."""
    folder = tmp_path_factory.mktemp("world")
    make_world(folder)
    with Engine.train(folder / "items.csv", folder / "engine", n_bits=16) as engine:
        assert len(engine) == 120
        assert engine.problems == ()
    return folder


@pytest.fixture
def engine(world, tmp_path):
    """A copy of its own, which a test may change."""
    shutil.copytree(world / "engine", tmp_path / "engine")
    with Engine.open(tmp_path / "engine") as opened:
        yield opened
