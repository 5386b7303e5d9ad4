"""The golden engine and its backup: every later version must open, search, change and restore what this one wrote."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from golden.make import describe, find
from modalhash import Engine
from modalhash.engine import restore_engine, verify_engine

GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.fixture(params=["copied", "restored"])
def folder(request, tmp_path):
    if request.param == "copied":
        return Path(shutil.copytree(GOLDEN / "engine-1", tmp_path / "engine"))
    restore_engine(GOLDEN / "engine-1.tar.gz", tmp_path / "engine")
    return tmp_path / "engine"


@pytest.mark.parametrize("read_only", [True, False])
def test_format_1_is_read_for_ever(folder, read_only):
    expected = json.loads((GOLDEN / "engine-1.expected.json").read_text())
    with Engine.open(folder, read_only=read_only) as engine:
        assert (len(engine), engine.labels()) == (expected["items"], expected["labels"])
        assert [describe(engine.records([line["id"]])[0]) for line in expected["records"]] == expected["records"]
        for search in expected["searches"]:
            assert find(engine, search["query"]) == search["hits"], search["query"]
        assert engine.search(text="a red ball", want="image")[0].confidence > 0.5
    assert verify_engine(folder) == []


def test_an_engine_of_format_1_can_be_changed(folder):
    with Engine.open(folder) as engine:
        engine.add([{"id": "new", "text": "a blue box under the lighthouse", "labels": ["blue", "square"]}])
        engine.remove(["note"])
        assert find(engine, {"text": "a ball under the lighthouse", "k": 1})[0][:2] == ["text", "new"]
        assert engine.labels()["square"] == 101
    assert verify_engine(folder) == []
