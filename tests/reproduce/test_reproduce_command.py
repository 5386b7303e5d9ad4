"""``modalhash reproduce`` from the command line."""

from __future__ import annotations

import pytest
from fabricated_results import fabricate, little_root
from typer.testing import CliRunner

from modalhash.cli import app


def call(*words: object):
    return CliRunner().invoke(app, ["reproduce", *map(str, words)])


def test_list_names_every_experiment():
    done = call("--list")
    assert done.exit_code == 0
    assert all(name in done.output for name in ("table2-curves", "sensitivity", "Table VI"))


def test_dry_run_counts_and_writes_nothing(tmp_path):
    root = little_root(tmp_path / "data")
    done = call(
        "table2",
        "table5",
        "--quick",
        "--dry-run",
        "--root",
        root,
        "--datasets",
        "wiki,mirflickr25k",
        "--results",
        tmp_path / "results",
    )
    assert done.exit_code == 0
    assert "156 cells (shared ones once), 156 to measure" in " ".join(done.output.split())
    assert "absent: mirflickr25k" in done.output
    assert not (tmp_path / "results").exists()


def test_report_only(tmp_path):
    pytest.importorskip("matplotlib")
    store = fabricate(tmp_path / "results", ("wiki",), seeds=1)
    done = call("--report-only", "--results", store.folder, "--report", tmp_path / "out")
    assert done.exit_code == 0
    assert (tmp_path / "out" / "index.html").is_file()


def test_an_unknown_name_is_refused():
    assert "table9" in call("table9", "--dry-run").stderr
