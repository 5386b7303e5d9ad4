"""Clients keep working while the served engine is retrained: ``benchmarks/robustness/serve_retrain.py``, shortly."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

HARNESS = Path(__file__).parents[2] / "benchmarks" / "robustness"


@pytest.fixture
def harness(monkeypatch):
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("memory and open files of a process are read from /proc")
    monkeypatch.syspath_prepend(str(HARNESS))
    import serve_retrain

    return serve_retrain


def make_store(folder, *ids):
    from modalhash.store import Record, SqliteStore

    folder.mkdir()
    with SqliteStore(folder / "items.sqlite", n_bits=8) as store:
        store.add(Record(id, "text", b"\0") for id in ids)
    return folder


def test_what_is_missing_is_told(harness, tmp_path):
    first = harness.Generation(make_store(tmp_path / "0", "a", "late", "stays"), 0.0, 10.0)
    second = harness.Generation(make_store(tmp_path / "1", "b"), 10.0)
    times = {"a": (1.0, 2.0), "b": (9.0, 11.0), "late": (12.0, 13.0), "lost": (3.0, 4.0), "stays": (5.0, 6.0)}
    times |= {"went": (5.0, 6.0), "gone": (5.0, 6.0)}
    ledger = harness.Ledger(added=times, removed={"stays": (7.0, 8.0), "b": (9.5, 11.0)})
    ledger.not_found |= {"went": (9.9, 10.1), "gone": (7.0, 8.0)}  # while the engine was replaced, and not
    assert harness.check(ledger, [first, second]) == [
        "late was acknowledged and is in the dead engine 0",
        "lost was acknowledged and is nowhere",
        "gone was acknowledged and is nowhere",
        "stays was removed and is there",
    ]


def test_what_is_missing_in_the_last_engine_is_told(harness, tmp_path):
    last = make_store(tmp_path / "last", "a", "stays")
    times = dict.fromkeys(("a", "lost", "stays", "gone"), (1.0, 2.0))
    ledger = harness.Ledger(added=times, removed={"stays": (3.0, 4.0)}, not_found={"gone": (3.0, 4.0)})
    assert harness.check_last(ledger, last) == [
        "lost was acknowledged and is not in the last engine",
        "stays was removed and is in the last engine",
    ]


@pytest.mark.campaign
@pytest.mark.parametrize("by", ["train", "retrain"])
def test_clients_while_an_engine_is_trained_anew(harness, tmp_path, by):
    row = harness.measure(tmp_path, 16, 25, by)
    assert [row[name] for name in ("unpromised", "wrong", "failed_replacements", "findings")] == [[], [], [], []]
    assert row["exit_code"] == 0
    assert row["generations"] > 2
    assert sum(row["replacements"].values()) == row["generations"] - 1
    assert min(row["added"], row["removed"]) > 20
    assert "201" in row["answers"]["upload"]
