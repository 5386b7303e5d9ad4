"""Options are declared once: keywords, documentation and checks follow."""

from __future__ import annotations

import json
import os
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


NEW = 'depth: Annotated[int, Option("How ``deep``.", at_least=2)] = 3'
PRINT_WHAT_IS_NEW = """
import inspect, json, sys
sys.path[:0] = ["tests", "."]
import freeze
import modalhash
from modalhash import Engine
from modalhash.engine import SearchOptions, TrainSettings, check_sources

def message(call, *arguments):
    try:
        call(*arguments, depth=1)
    except ValueError as error:
        return str(error)

tables = {of: freeze.option_table(of) for of in ("modalhash train", "modalhash search", "POST /search")}
found = {
    "lines": [line for table in tables.values() for line in table.splitlines() if "depth" in line],
    "commands": [line for line in freeze.commands() if "--depth" in line],
    "helps": ["depth : How ``deep``." in inspect.getdoc(one) for one in (TrainSettings, SearchOptions)],
    "messages": [message(Engine.train, [], "engine"), message(check_sources, []), message(SearchOptions)],
}
print(json.dumps(found))
"""


@pytest.mark.slow
def test_a_new_option_is_one_line(tmp_path):
    """Add an option for training and one for searching to a copy of the package: they are everywhere."""
    pytest.importorskip("starlette", reason="the HTTP API needs the extra serve")
    package = Path(modalhash.__file__).parent
    shutil.copytree(package, tmp_path / "modalhash", ignore=shutil.ignore_patterns("__pycache__"))
    settings = tmp_path / "modalhash" / "engine" / "settings.py"
    text = settings.read_text("utf-8")
    for after in ("    store: StorePlace = None\n", "    labels: Annotated[tuple[str, ...]"):
        assert text.count(after) == 1
        text = text.replace(after, f"    {NEW}\n{after}")
    settings.write_text(text, "utf-8")
    done = subprocess.run(
        [sys.executable, "-c", PRINT_WHAT_IS_NEW], cwd=Path(__file__).parents[2], env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["lines"] == ["| `--depth` | 3 | How `deep`. |"] * 2 + ["| `depth` | 3 | How `deep`. |"]
    assert found["commands"] == [f"modalhash {name} --depth = 3" for name in ("check", "search", "train")]
    assert found["helps"] == [True, True]
    assert found["messages"] == ["depth is 1; expected an integer ≥ 2"] * 3
