"""The fuzz campaign finds what breaks a promise, its table is that of its results, and a short one finds nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from random import Random

import pytest

ROOT = Path(__file__).parents[1]
FUZZ = ROOT / "benchmarks" / "robustness"
PLANTED = """
import os, sys
from pathlib import Path
from fuzzing.guard import Guard
from fuzzing.target import BrokenPromise, Target
from fuzzing.worker import Trial
from modalhash.store import Filter, FilterError

class Planted(Target):
    name, promised, seconds = "planted", (FilterError,), 0.3

    def run(self, data):
        if data == b"slow":
            while True: pass
        if data == b"elsewhere":
            open(self.folder.parent / "other", "w").close()
        if data == b"program":
            os.system("true")
        if data == b"wrong":
            raise BrokenPromise("it is wrong")
        if data == b"large":
            raise MemoryError
        if data == b"silent":
            raise FilterError("")
        if data == b"key":
            raise KeyError(1)
        Filter.parse(data.decode())

own = Path(sys.argv[1]) / "own"
own.mkdir()
trial = Trial(Planted(own, own), Guard(own, own))
for data in sys.argv[2:]:
    print(data, *trial(data.encode()), sep="|")
"""


@pytest.fixture
def fuzzing(monkeypatch):
    pytest.importorskip("fcntl")
    monkeypatch.syspath_prepend(str(FUZZ))
    return lambda name: import_module(f"fuzzing.{name}")


def test_every_broken_promise_is_told(tmp_path):
    inputs = ["a = 1", "a =", "slow", "elsewhere", "program", "wrong", "large", "silent", "key", "b = 2"]
    env_path = f"import sys; sys.path.insert(0, {str(FUZZ)!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", env_path + PLANTED, str(tmp_path), *inputs], capture_output=True, text=True, check=True
    )
    found = [line.split("|") for line in done.stdout.splitlines()]
    outcomes = {data: (outcome, problem) for data, outcome, problem, _ in found}
    assert outcomes["a = 1"] == outcomes["b = 2"] == ("taken", "None")
    assert outcomes["a ="] == ("refused", "None")
    assert outcomes["slow"] == ("too slow", "Overtime")
    assert outcomes["elsewhere"] == ("elsewhere", f"written: {tmp_path / 'other'}")
    assert outcomes["program"] == ("elsewhere", "os.system")
    assert outcomes["wrong"] == ("broken", "it is wrong")
    assert outcomes["large"] == ("too large", "MemoryError")
    assert outcomes["silent"] == ("broken", "FilterError")
    assert outcomes["key"] == ("broken", "KeyError")
    arcs = {data: int(n) for data, _, _, n in found}
    assert arcs["a = 1"] > 20
    assert arcs["a ="] > 0, "another way through the parser"
    assert arcs["b = 2"] == 0, "the same way"


def test_mutants_are_many_the_same_every_time_and_of_the_format(fuzzing):
    mutator = fuzzing("mutation").Mutator([b"TOKEN"], is_json=True)
    corpus = [b'{"a": [1, 2, {"b": "text"}], "c": null}', b'{"n": 17}']
    made = [mutator(Random(number), corpus) for number in range(600)]
    assert made == [mutator(Random(number), corpus) for number in range(600)]
    assert len(set(made)) > 400
    assert any(b"TOKEN" in data for data in made)
    assert any(len(data) < 5 for data in made)
    assert any(b"\xff\xff\xff\xff" in data for data in made)
    is_json = [_is_json(data) for data in made]
    assert 100 < sum(is_json) < 550


def _is_json(data):
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def test_the_table_is_that_of_the_results(fuzzing):
    page = fuzzing("page")
    content = json.loads((ROOT / "benchmarks" / "results" / "fuzz.json").read_text())
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.with_table(text, content) == text, "run benchmarks/robustness/fuzz.py --write"
    assert content["still broken"] == content["before"]["still broken"] == []


@pytest.mark.campaign
def test_a_campaign_of_two_minutes_finds_nothing(tmp_path):
    pytest.importorskip("fcntl")
    command = [sys.executable, str(FUZZ / "fuzz.py"), "--inputs", "30000", "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    pieces = [json.loads(path.read_text()) for path in (tmp_path / "pieces").glob("*.json")]
    assert sum(sum(piece["outcomes"].values()) for piece in pieces) == 30_000
    taken = {piece["target"] for piece in pieces if piece["outcomes"].get("taken")}
    assert len(taken) > 24, "mutants are near enough to what is taken"
