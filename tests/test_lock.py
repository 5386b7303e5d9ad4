"""The check of the lock file notices what does not fit."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("packaging", reason="packaging is not installed")
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def check_lock():
    spec = importlib.util.spec_from_file_location("check_lock", ROOT / ".ci" / "check_lock.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def problems(check_lock):
    return check_lock.problems


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


HASHED = f"h11==0.16.0 \\\n    --hash=sha256:{'0a' * 32} \\\n    --hash=sha256:{'1b' * 32}\nnumpy==2.4.6 \\\n    --hash=sha256:{'2c' * 32}\n"


def test_the_lock_with_hashes_of_this_repository_fits(check_lock):
    locks = ((ROOT / f"{name}-dev.txt").read_text() for name in ("constraints", "requirements"))
    assert check_lock.hash_problems(*locks) == []
    assert check_lock.hash_problems(f"{LOCK}torch==2.13.0\n    # via something\n", HASHED) == []


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        (f" \\\n    --hash=sha256:{'2c' * 32}", "", "has no hash"),
        ("2c2c", "2c", "has no hash"),
        ("numpy==2.4.6", "numpy==2.4.5", "numpy==2.4.6 is not verified"),
        ("numpy==2.4.6", "scipy==1.17.1", "scipy==1.17.1 is verified, but not pinned"),
    ],
)
def test_hashes_that_do_not_fit_are_noticed(check_lock, before, after, problem):
    assert any(problem in one for one in check_lock.hash_problems(LOCK, HASHED.replace(before, after)))
