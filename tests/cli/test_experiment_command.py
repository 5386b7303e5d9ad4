"""``modalhash experiment``: run, list, report, pack."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from modalhash.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "experiments.md"


def call(*words: object):
    return CliRunner().invoke(app, ["experiment", *map(str, words)])


def complaint(*words: object) -> str:
    """What the command says when it refuses; words are what counts, not how they get to the terminal."""
    done = call(*words)
    assert done.exit_code
    return f"{done.output} {done.exception}"


@pytest.fixture(scope="module")
def example(tmp_path_factory) -> Path:
    """The grid of the documentation, in a folder of its own."""
    folder = tmp_path_factory.mktemp("grid")
    text = PAGE.read_text(encoding="utf-8").partition("```toml\n")[2].partition("```")[0]
    (folder / "example.toml").write_text(text, encoding="utf-8")
    return folder / "example.toml"


@pytest.mark.slow
def test_the_example_of_the_documentation_runs(example, tmp_path):
    results = example.parent / "results"
    dry = call("run", example, "--results", results, "--dry-run")
    assert dry.exit_code == 0
    assert "12 cells" in dry.output
    assert re.search(r"12 fits, about \d+ s \(amsh .* s, edmh .* s a fit\)", dry.output)
    assert not results.exists()
    assert "no results of" in complaint("report", example, "--results", results)
    done = call("run", example, "--results", results)
    assert done.exit_code == 0, done.output
    assert "0 to measure" in call("run", example, "--results", results, "--dry-run").output
    assert "12 done, 0 failed, 0 to do" in call("list", example, "--results", results).output
    report = call("report", example, "--results", results)
    assert "| AMSH | " in report.output
    assert "±" in report.output
    assert "worse than AMSH: p < 0.05" in report.output
    assert "worse than EDMH: p < 0.05" in call("report", example, "--results", results, "--against", "EDMH").output
    assert "no row has the label 'Mine'; there are AMSH, EDMH" in complaint(
        "report", example, "--results", results, "--against", "Mine"
    )
    latex = call("report", example, "--results", results, "--latex", "--output", tmp_path / "t.tex")
    assert latex.exit_code == 0
    assert r"\toprule" in (tmp_path / "t.tex").read_text(encoding="utf-8")
    packed = tmp_path / "all.json.xz"
    assert call("pack", results, packed).exit_code == 0
    assert call("report", example, "--results", packed).output == report.output
    assert call("unpack", packed, tmp_path / "again").exit_code == 0
    assert call("report", example, "--results", tmp_path / "again").output == report.output


@pytest.mark.slow
@pytest.mark.parametrize(("flag", "kind", "shown"), [([], "svg", "]({})"), (["--latex"], "pdf", "\\textwidth]{{{}}}")])
def test_a_report_shows_its_curves(example, tmp_path, flag, kind, shown):
    pytest.importorskip("matplotlib")
    results = example.parent / "results"
    assert call("run", example, "--results", results).exit_code == 0
    report, figures = tmp_path / "report", tmp_path / "figures"
    done = call("report", example, "--results", results, "--curves", figures, "--output", report, *flag)
    assert done.exit_code == 0, done.output
    assert (figures / f"example-drawn.{kind}").stat().st_size > 1000
    assert shown.format(f"figures/example-drawn.{kind}") in report.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_report_of_results_without_curves_says_so(example, tmp_path):
    pytest.importorskip("matplotlib")
    results, packed = example.parent / "results", tmp_path / "small.json.xz"
    assert call("run", example, "--results", results).exit_code == 0
    assert call("pack", "--no-per-query", results, packed).exit_code == 0
    done = call("report", example, "--results", packed, "--curves", tmp_path / "figures")
    assert done.exit_code == 0, done.output
    assert "drawn: no curves were saved" in done.stderr
    assert "Not tested: EDMH; the results of AMSH have no average precision per query" in done.stdout


def test_help_teaches_with_an_example():
    text = call("--help").output
    assert "[[rows]]" in text
    assert "modalhash experiment run grid.toml" in text
    assert "limit_seconds" in call("keys").output


def test_a_wrong_name_for_a_packed_file_is_refused(tmp_path):
    assert "json.xz" in complaint("pack", tmp_path, tmp_path / "x.zip")
