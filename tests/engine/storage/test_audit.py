"""The audit log: two lines for a change, none lost, none invented."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys

import pytest

from modalhash.engine.storage.audit import MAX_IDS, AuditLog, command_line_user, ids_summary

WHO = {"who": "alice"}


@pytest.fixture
def log(tmp_path):
    return AuditLog.of_engine(tmp_path / "engine")


def test_it_lies_beside_the_engine(log, tmp_path):
    assert log.path == tmp_path / "engine.audit.jsonl"
    assert log.tail(10) == []


def test_a_change_has_a_line_before_and_one_after(log):
    with log.change("add", WHO, ids=["a"]) as result:
        (begun,) = log.tail(10)
        assert (begun["state"], begun["ids"]) == ("begun", ["a"])
        result["added"] = 1
    _, done = log.tail(10)
    assert (done["state"], done["added"], done["who"], done["what"]) == ("done", 1, "alice", "add")
    assert done["change"] == begun["change"]
    assert done["time"].endswith("+00:00")


def test_a_change_that_fails_is_noted_as_such(log):
    with pytest.raises(KeyError), log.change("remove", WHO):
        raise KeyError("x")
    assert [(line["state"], line.get("error")) for line in log.tail(10)] == [("begun", None), ("failed", "KeyError")]


def test_what_makes_an_engine_is_noted_once_it_is_made(log):
    with pytest.raises(ValueError, match="nothing"), log.change("train", WHO, creates=True):
        raise ValueError("nothing")
    assert not log.path.exists()
    with log.change("train", WHO, creates=True, sources=["items.csv"]):
        pass
    assert [(line["state"], line["sources"]) for line in log.tail(10)] == [("done", ["items.csv"])]


def test_what_cannot_be_noted_is_not_done(log, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"), log.change("add", WHO):
        pytest.fail("the change was made")


def test_what_was_done_is_not_an_error_if_its_end_cannot_be_noted(log, monkeypatch):
    with log.change("add", WHO):
        monkeypatch.setattr(log, "path", log.path / "nosuch")
    monkeypatch.undo()
    assert [line["state"] for line in log.tail(10)] == ["begun"]


def test_a_line_that_was_cut_off_spoils_no_other(log):
    log.path.write_text('{"time": "2026')
    with log.change("add", WHO):
        pass
    assert [line["state"] for line in log.tail(10)] == ["begun", "done"]
    assert [line["state"] for line in log.tail(1)] == ["done"]


def test_processes_do_not_cut_each_others_lines(log):
    code = f"from modalhash.engine.storage.audit import AuditLog\nfor n in range(100):\n with AuditLog({str(log.path)!r}).change('add', {{}}, ids=['x' * 500]): pass"
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    assert [one.wait(60) for one in running] == [0, 0, 0]
    lines = [json.loads(line) for line in log.path.read_text().splitlines() if line]
    assert len(lines) == 600
    assert len({line["change"] for line in lines}) == 300


@pytest.mark.skipif(sys.platform == "win32", reason="there the name comes from the environment")
def test_the_user_is_not_what_a_variable_says(monkeypatch):
    for name in ("USER", "LOGNAME", "USERNAME"):
        monkeypatch.setenv(name, "somebody-else")
    user = command_line_user()
    assert user["uid"] == os.getuid()
    assert user["who"] != "somebody-else"


def test_many_ids_are_counted_and_the_first_listed():
    ids = [str(n) for n in range(MAX_IDS + 5)]
    assert ids_summary(ids) == {"n": MAX_IDS + 5, "ids": ids[:MAX_IDS]}


def test_a_line_of_somebody_else_is_left_out_however_deep(tmp_path):
    log = AuditLog(tmp_path / "log")
    log.path.write_bytes(b"[" * 100_000 + b'\n{"state": "done"}\n' + b"9" * 5000 + b"\n")
    assert log.tail(10) == [{"state": "done"}]
