"""Killed at a system call: a sample of what ``benchmarks/robustness/kills.py`` does at every one of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HARNESS = Path(__file__).parents[1] / "benchmarks" / "robustness"
SCRIPT = """
import json, os, sys

sys.path.insert(0, sys.argv[1])
import kills
from modalhash import Engine

def remove_one_by_one(place, acknowledge):
    with Engine.open(place.engine) as engine:
        engine.remove(["text/0"])
        engine.remove(["text/1"])

recorder = os.getpid()

def acknowledge_too_early(place, acknowledge):
    if os.getpid() != recorder:
        acknowledge()
    with Engine.open(place.engine) as engine:
        engine.remove(["text/0"])
    acknowledge()

bad = [kills.Operation(run.__name__, run) for run in (remove_one_by_one, acknowledge_too_early)]
wanted, every = sys.argv[2].split(","), int(sys.argv[3])
results = []
with kills.set_up() as place:
    for operation in [*kills.OPERATIONS, *bad]:
        if operation.name in wanted:
            kinds = ("kill",) if operation in bad else kills.KINDS
            results += kills.try_points(place, operation, every=every, kinds=kinds, say=lambda text: None)
print(json.dumps([vars(result) for result in results]))
"""


@pytest.fixture
def kills(monkeypatch):
    pytest.importorskip("resource", reason="no such limits here")
    monkeypatch.syspath_prepend(str(HARNESS))
    return import_module("kills")


@pytest.fixture
def tracing():
    if sys.platform != "linux" or shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    traced = subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True, check=False)
    if traced.returncode:
        pytest.skip("strace may not trace here")


def results_of(operations, every):
    command = [sys.executable, "-c", SCRIPT, str(HARNESS), ",".join(operations), str(every)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_sample_of_kills_leaves_the_old_or_the_new_engine_and_a_bad_operation_is_caught(tracing):
    """``remove`` withstands them; two removals that pass for one, and an early acknowledgement, do not."""
    by_operation = {}
    for result in results_of(["remove", "remove_one_by_one", "acknowledge_too_early"], 19):
        by_operation.setdefault(result["operation"], []).append(result)
    good, twice, early = by_operation.values()
    assert sum(result["points"] for result in good) > 12
    assert [result["failures"] for result in good] == [[]] * len(good)
    assert {outcome for result in good for outcome in result["outcomes"]} == {"old", "new"}
    assert sum(result["astray"] for result in good) == 0
    assert any("neither the old ones nor the new ones" in failure for one in twice for failure in one["failures"])
    assert any("acknowledged is not there" in failure for one in early for failure in one["failures"])


@pytest.mark.campaign
def test_a_sample_of_kills_at_every_operation(kills, tracing):
    names = {operation.name for operation in kills.OPERATIONS}
    results = results_of(names, 29)
    assert {result["operation"] for result in results} == names
    assert [failure for result in results for failure in result["failures"]] == []


def test_the_page_shows_the_results_of_the_last_full_run(kills):
    rows = json.loads((HARNESS.parent / "results" / "kills.json").read_text())["rows"]
    page = (HARNESS.parents[1] / "docs" / "measurements" / "robustness.md").read_text(encoding="utf-8")
    assert "\n".join(kills.table(rows)) in page
    assert {row["operation"] for row in rows} == {operation.name for operation in kills.OPERATIONS}
