"""The check of the lock file notices what does not fit."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("packaging", reason="packaging is not installed")
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def problems():
    spec = importlib.util.spec_from_file_location("check_lock", ROOT / ".ci" / "check_lock.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.problems


PYPROJECT = """
[project]
name = "modalhash"
dependencies = ["numpy>=2"]
[project.optional-dependencies]
serve = ["h11>=0.16"]
other = ["unrelated"]
dev = ["modalhash[serve]"]
"""
LOCK = (
    "h11==0.16.0\n    # via\n    #   modalhash (pyproject.toml)\nnumpy==2.4.6\n    # via modalhash (pyproject.toml)\n"
)


def test_the_lock_of_this_repository_fits(problems):
    assert problems((ROOT / "pyproject.toml").read_text(), (ROOT / "constraints-dev.txt").read_text()) == []
    assert problems(PYPROJECT, LOCK) == []


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("h11==0.16.0", "h11==0.14.0", "0.14.0 is pinned, but h11>=0.16 wanted"),
        ("h11==0.16.0", "hyper==1", "h11>=0.16 is not pinned"),
        ("h11==0.16.0", "h11>=0.16", "is not a pin"),
        ("h11==0.16.0", "h11 @ https://index.example/h11.whl", "has an address"),
        ("h11==0.16.0", "--find-links /srv/wheels\nh11==0.16.0", "has an address or a path"),
        ("numpy==2.4.6", "numpy==2.4.6\nscipy==1.17.1\n    # via modalhash (pyproject.toml)", "scipy is pinned for"),
    ],
)
def test_a_lock_that_does_not_fit_is_noticed(problems, before, after, problem):
    assert any(problem in one for one in problems(PYPROJECT, LOCK.replace(before, after)))
