"""A method outside the package, as typed: found in the current folder, trained, saved, opened only with trust."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from little_world import make_world
from modalhash.data import generate, write_npz

pytestmark = pytest.mark.slow

SOURCE = Path(__file__).parents[1] / "toy_method.py"


def run(folder, *arguments, path=""):
    """Run a command in a process of its own, so that ``mine`` is only found if the command looks in the folder."""
    code = "import sys; sys.path.remove(''); from modalhash.cli import main; main()"  # as the installed script does
    path = os.pathsep.join(filter(None, [str(path), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True, text=True, check=False, cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "160"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (folder / "mine.py").write_text(SOURCE.read_text(encoding="utf-8"), encoding="utf-8")
    write_npz(generate(n_items=120, n_queries=30, seed=0).dataset(), folder / "toy.npz")
    make_world(folder)
    done = run(
        folder,
        "train",
        "items.csv",
        "-o",
        "engine",
        "--bits",
        "16",
        "--method",
        "mine:ClassCodes",
        "--param",
        "ridge=0.5",
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_evaluate(folder):
    done = run(folder, "evaluate", "toy.npz", "--method", "mine:ClassCodes", "--bits", "8", "--seeds", "1", "--json")
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert {one["method"] for one in content["runs"]} == {"mine:ClassCodes"}
    assert content["rows"][0]["learned"]["mean"] > 2 * content["rows"][0]["chance"]


def test_an_engine_is_opened_only_with_trust(folder):
    refused = run(folder, "search", "engine", "a red ball")
    assert refused.returncode == 2
    assert "was written by the method 'mine:ClassCodes', which is not part of modalhash" in refused.stderr
    assert "--trust" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    done = run(folder, "search", "engine", "a red ball", "--want", "image", "-k", "3", "--trust")
    assert done.returncode == 0, done.stderr
    assert [line.split("\t")[4] for line in done.stdout.splitlines()] == ["red; circle"] * 3
    facts = json.loads(run(folder, "info", "engine", "--json", "--trust").stdout)
    assert facts["method"] == "mine:ClassCodes"


def test_an_entry_point_is_listed_and_used_by_its_name(folder, tmp_path):
    package = tmp_path / "theirs-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        "[modalhash.methods]\nclass-codes = theirs:ClassCodes\namsh = theirs:ClassCodes\nbroken = theirs:Nothing\n"
    )
    (tmp_path / "theirs.py").write_text(SOURCE.read_text(encoding="utf-8"), encoding="utf-8")
    listed = run(folder, "methods", "--json", path=tmp_path)
    engine = tmp_path / "engine"
    trained = run(folder, "train", "items.csv", "-o", engine, "--bits", "16", "--method", "class-codes", path=tmp_path)
    searched = run(folder, "search", engine, "a red ball", "--want", "image", "-k", "1", path=tmp_path)
    rows = {row["name"]: row for row in json.loads(listed.stdout)}
    assert rows["class-codes"]["path"] == "theirs:ClassCodes"
    assert rows["amsh"]["path"].startswith("modalhash.")
    assert "broken" not in rows
    assert "warning: the method 'amsh' of theirs is skipped" in listed.stderr
    assert "warning: the method 'broken' (theirs:Nothing) is skipped" in listed.stderr
    assert trained.returncode == 0, trained.stderr
    assert json.loads((engine / "model" / "config.json").read_text())["method"] == "class-codes"
    assert searched.returncode == 0, searched.stderr
    assert "red; circle" in searched.stdout


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("nowhere:Mine", "error: method 'nowhere:Mine': there is no module 'nowhere' to import"),
        ("mine:Other", "error: method 'mine:Other': the module 'mine' has no 'Other'"),
        ("mine:np", "error: method 'mine:np' is a module; expected a class"),
        ("json:JSONDecoder", "error: method 'json:JSONDecoder': the class lacks supervised"),
    ],
)
def test_a_mistake_is_one_line(folder, method, message):
    for command in (("evaluate", "toy.npz", "--method", method), ("train", "items.csv", "-o", "x", "--method", method)):
        done = run(folder, *command)
        assert done.returncode == 2
        assert done.stderr.startswith(message)
        assert len(done.stderr.splitlines()) == 1
