"""``python -m reproduction``."""

from __future__ import annotations

import pytest
from fabricated_results import fabricate, little_root
from typer.testing import CliRunner

from reproduction.__main__ import app


def call(*words: object):
    return CliRunner().invoke(app, list(map(str, words)))


def test_list_names_every_experiment():
    done = call("--list")
    assert done.exit_code == 0
    assert all(name in done.output for name in ("table2-curves", "sensitivity", "Table VI"))


@pytest.mark.slow
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
    assert "204 cells (shared ones once), 204 to measure" in " ".join(done.output.split())
    assert "absent: mirflickr25k" in done.output
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
def test_report_only(tmp_path):
    pytest.importorskip("matplotlib")
    store = fabricate(tmp_path / "results", ("wiki",), seeds=1)
    done = call("--report-only", "--results", store.path, "--report", tmp_path / "out")
    assert done.exit_code == 0
    assert (tmp_path / "out" / "report.md").is_file()


def test_an_unknown_name_is_refused():
    assert "table9" in str(call("table9", "--dry-run").exception)


@pytest.mark.slow
def test_a_report_can_be_made_from_packed_results(tmp_path):
    pytest.importorskip("matplotlib")
    from modalhash.experiments import pack

    store = fabricate(tmp_path / "results", ("wiki",), seeds=1)
    (tmp_path / "all.json.xz").write_bytes(pack(store.path))
    done = call("--from", tmp_path / "all.json.xz", "--report", tmp_path / "out")
    assert done.exit_code == 0
    assert (tmp_path / "out" / "report.md").is_file()
