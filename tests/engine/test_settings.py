"""Options are declared once: keywords, documentation and checks follow."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import modalhash
from modalhash import Engine
from modalhash.engine import (
    RetrainOverrides,
    check_sources,
)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"n_bits": 0}, ValueError, "n_bits is 0; expected 'auto' or an integer ≥ 1"),
        ({"n_bits": "many"}, ValueError, "n_bits is 'many'; expected 'auto' or an integer ≥ 1"),
        ({"n_bits": 2.5}, TypeError, "n_bits is 2.5; expected 'auto' or an integer ≥ 1"),
        ({"n_bits": None}, TypeError, "n_bits is None"),
        ({"workers": 0}, ValueError, "workers is 0; expected an integer ≥ 1"),
        ({"labels": "some"}, ValueError, "labels is 'some'; expected one of 'given', 'folders', 'names', 'none'"),
        ({"labels": None}, ValueError, "labels is None"),
        ({"quality": "good"}, ValueError, "quality is 'good'; expected one of 'fast', 'best'"),
        ({"searched_fields": "title"}, TypeError, "expected names of fields"),
        ({"nosuch": 1}, TypeError, "nosuch"),
    ],
)
def test_wrong_values_are_refused_before_any_work(tmp_path, given, error, message):
    with pytest.raises(error, match=message):
        Engine.train([], tmp_path / "engine", **given)
    with pytest.raises(error, match=message):
        check_sources([], **given)
    assert not list(tmp_path.iterdir())


def test_a_retraining_takes_what_it_can_change_and_none_is_unchanged():
    assert RetrainOverrides(labels=None, n_bits=None) == RetrainOverrides()
    with pytest.raises(ValueError, match="labels is 'some'"):
        RetrainOverrides(labels="some")
    with pytest.raises(TypeError, match="store"):
        RetrainOverrides(store="sqlite")


NEW = '    depth: Annotated[int, Option("How ``deep``.", at_least=2)] = 3'
ADDED = {
    "engine/settings.py": {
        "TrainSettings": NEW,
        "RetrainOverrides": "    depth: int | None = None",  # as declared for training
        "AddOptions": NEW,
        "SearchOptions": NEW,
    },
    "serve/limits.py": {"Settings": NEW},
}
"""One line for each class of options, by the file it is in."""
PRINT_WHAT_IS_NEW = """
import inspect, json, sys
sys.path[:0] = ["tests", "."]
import freeze
from modalhash import Engine
from modalhash.engine import AddOptions, RetrainOverrides, SearchOptions, TrainSettings, check_sources
from modalhash.engine.storage.folder import read_parts
from modalhash.engine.training.train import settings_again
from modalhash.serve import Settings

def message(call, *arguments, **given):
    try:
        call(*arguments, **given, depth=1)
    except ValueError as error:
        return str(error)

rows = [{"text": f"{word} {number}", "labels": [word]} for word in ("boat", "tree") for number in range(9)]
engine = Engine.train(rows, sys.argv[1], n_bits=8, quality="fast")
tables = {of: freeze.option_table(of) for of in (*(f"modalhash {one}" for one in COMMANDS), "POST /search")}
found = {
    "lines": [line for table in tables.values() for line in table.splitlines() if "depth" in line],
    "commands": [line for line in freeze.commands() if "--depth" in line],
    "helps": ["depth : How ``deep``." in inspect.getdoc(one) for one in CLASSES],
    "messages": [
        message(Engine.train, [], "engine"), message(check_sources, []), message(engine.retrain),
        message(engine.add, []), message(engine.search, text="boat"), message(Settings),
    ],
    "retrained": settings_again(read_parts(engine.path), RetrainOverrides(depth=5), database=None).depth,
}
print(json.dumps(found))
""".replace("COMMANDS", repr(("train", "retrain", "add", "search", "serve"))).replace(
    "CLASSES", "(TrainSettings, RetrainOverrides, AddOptions, SearchOptions, Settings)"
)


@pytest.mark.slow
def test_a_new_option_is_one_line(tmp_path):
    """Add an option to every class of options in a copy of the package: it is everywhere."""
    pytest.importorskip("starlette", reason="the HTTP API needs the extra serve")
    package = Path(modalhash.__file__).parent
    shutil.copytree(package, tmp_path / "modalhash", ignore=shutil.ignore_patterns("__pycache__"))
    for file, classes in ADDED.items():
        path = tmp_path / "modalhash" / file
        text = path.read_text("utf-8")
        for name, line in classes.items():
            head = re.search(rf'^class {name}\(.*\n    """.*"""\n\n', text, re.MULTILINE)
            text = f"{text[: head.end()]}{line}\n{text[head.end() :]}"
        path.write_text(text, "utf-8")
    done = subprocess.run(
        [sys.executable, "-c", PRINT_WHAT_IS_NEW, tmp_path / "engine"], cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    row = "| `--depth` | 3 | How `deep`. |"
    assert found["lines"] == [
        row,
        "| `--depth` | unchanged | How `deep`. |",
        *[row] * 3,
        "| `depth` | 3 | How `deep`. |",
    ]
    shown = {"add": " = 3", "check": " = 3", "retrain": "", "search": " = 3", "serve": " = 3", "train": " = 3"}
    assert sorted(found["commands"]) == [f"modalhash {name} --depth{default}" for name, default in shown.items()]
    assert found["helps"] == [True] * 5
    assert found["messages"] == ["depth is 1; expected an integer ≥ 2"] * 6
    assert found["retrained"] == 5
