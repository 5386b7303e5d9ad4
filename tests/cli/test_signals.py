"""SIGTERM is like Ctrl-C: a command cleans up, says so, and leaves nothing running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from modalhash import cli
from modalhash.cli.common import Terminated, clean_stops

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="no such signals")]

ENCODER = """
import signal
from modalhash.encoders import TfidfEncoder

class Stopped(TfidfEncoder):
    name = "stopped"

    def encode(self, batch):
        signal.raise_signal(signal.SIGTERM)
        return super().encode(batch)
"""
METHOD = """
import os, threading
from pathlib import Path
from modalhash.methods.base import CrossModalHasher

class Stops(CrossModalHasher):
    \"\"\"Sends its worker's parent a signal, and would not end by itself.\"\"\"

    def __init__(self, n_bits=64, *, number=9, random_state=None):
        self.n_bits = n_bits
        self.number, self.random_state = number, random_state

    def _fit(self, data, report):
        if os.environ["FAIL_FIRST"] and not Path("timed").exists():
            Path("timed").touch()
            raise ValueError("the small fit that tells the time fails")
        os.kill(os.getppid(), self.number)
        threading.Event().wait()
"""


def test_a_signal_ends_the_block_once_with_what_it_has_open_closed():
    steps = []

    def work():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)  # impatient: what is being cleaned up is not left halfway
            steps.append("cleaned up")

    with pytest.raises(Terminated) as stopped, clean_stops():
        work()
    assert steps == ["cleaned up"]
    assert (stopped.value.code, stopped.value.name) == (143, "SIGTERM")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_signal_that_the_parent_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with clean_stops():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_training_that_is_told_to_stop_leaves_nothing(tmp_path, monkeypatch, capsys):
    (tmp_path / "stopped_encoder.py").write_text(ENCODER)
    (tmp_path / "items.csv").write_text("text,labels\n" + "a red ball,red\na blue box,blue\n" * 20)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = sorted(tmp_path.iterdir())
    arguments = ["train", "items.csv", "-o", "engine", "--bits", "8", "--encoder", "text=stopped_encoder:Stopped"]
    monkeypatch.setattr(sys, "argv", ["modalhash", *arguments])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 143
    assert capsys.readouterr().err.endswith("stopped by SIGTERM\n")
    assert [path for path in sorted(tmp_path.iterdir()) if path.name != "__pycache__"] == before


@pytest.mark.parametrize("timed", [False, True], ids=["in a small fit", "in a cell"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)])
def test_the_workers_of_an_experiment_end_with_it(tmp_path, number, code, timed):
    """They hold its output, so that it is not over before they are."""
    (tmp_path / "stops_method.py").write_text(METHOD)
    (tmp_path / "grid.toml").write_text(
        'title = "Stopped"\nbits = [8]\nseeds = 1\nscenario = "unpaired"\n'
        'datasets = [{name = "drawn", generated = {n_items = 40, n_queries = 10}}]\n'
        f'[[rows]]\nlabel = "Stops"\nmethod = "stops_method:Stops"\nparameters = {{number = {int(number)}}}\n'
    )
    command = [sys.executable, "-m", "modalhash", "experiment", "run", "grid.toml", "--jobs", "1"]
    environment = os.environ | {"FAIL_FIRST": "yes" if timed else ""}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == code, done.stderr
    assert ("The same command continues" in done.stdout) == (code == 143)
    found = {path.parent.name for path in (tmp_path / "results").glob("**/*.json")}
    assert found == ({"datasets"} if timed else set()), "no cell was measured"
