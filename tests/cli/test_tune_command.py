"""``modalhash tune``: a parameters file that evaluate and train take."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from little_world import make_world
from modalhash.cli import app
from modalhash.core.imports import install_line
from modalhash.data import generate, write_npz
from modalhash.experiments import Tuning, read_parameters

pytest.importorskip("optuna")
METHOD = "seedless_method:FixedCodes"


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    write_npz(generate(n_items=90, n_queries=30, seed=0).dataset(), tmp_path / "toy.npz")
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.slow
def test_what_is_found_is_a_file_that_evaluate_and_train_take(run, tmp_path):
    options = ("tune", "toy.npz", "--method", METHOD, "--bits", 8, "-o", "p.toml", "--study", "s.journal")
    done = run(*options, "--budget", 4)
    assert done.exit_code == 0, done.output
    assert "searched: ridge log:0.001:1000.0" in done.stderr
    assert "12 fits, about " in done.stderr, "four trials of three folds"
    found = read_parameters(tmp_path / "p.toml")
    more = run(*options, "--budget", 5)
    assert more.exit_code == 0, "the study continues, and its file of parameters is replaced"
    assert "5 trials" in more.stderr
    measured = run(
        "evaluate", "toy.npz", "--method", METHOD, "--params", "p.toml", "--bits", 8, "--seeds", 1, "--markdown"
    )
    assert measured.exit_code == 0, measured.output
    if value := read_parameters(tmp_path / "p.toml")[METHOD].get("ridge"):
        assert f"ridge={value}" in measured.stdout
    assert set(found) == {METHOD}


@pytest.mark.slow
def test_train_takes_the_method_and_its_parameters_from_the_file(run, tmp_path):
    make_world(tmp_path)
    (tmp_path / "p.toml").write_text(f'["{METHOD}"]\nridge = 7.5\n')
    done = run("train", "items.csv", "-o", "engine", "--bits", 16, "--params", "p.toml", "--json")
    assert done.exit_code == 0, done.output
    config = (tmp_path / "engine" / "model" / "config.json").read_text()
    assert f'"{METHOD}"' in config
    assert "7.5" in config
    (tmp_path / "two.toml").write_text("[amsh]\nridge = 1\n[rlh]\nridge = 1\n")
    unclear = run("train", "items.csv", "-o", "other", "--params", "two.toml")
    assert unclear.exit_code == 2
    assert "--params has parameters of amsh, rlh; say which with --method" in unclear.stderr


@pytest.mark.slow
def test_an_interrupt_keeps_what_was_done(run, tmp_path, monkeypatch):
    score, seen = Tuning._score, []

    def interrupted(self, given):
        seen.append(given)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return score(self, given)

    monkeypatch.setattr(Tuning, "_score", interrupted)
    options = (
        "tune",
        "toy.npz",
        "--method",
        METHOD,
        "--bits",
        8,
        "--budget",
        4,
        "-o",
        "p.toml",
        "--study",
        "s.journal",
    )
    stopped = run(*options)
    assert stopped.exit_code == 130
    assert "the best so far is in p.toml, all trials in s.journal. The same command continues." in stopped.stderr
    assert read_parameters(tmp_path / "p.toml").keys() == {METHOD}
    assert "4 trials" in run(*options).stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("toy.npz", "--method", "amsh,rlh"), "one method at a time"),
        (("toy.npz", "--method", "nonsense"), "unknown method 'nonsense'"),
        (("toy.npz", "--method", "chance"), "chance names nothing to search"),
        (("toy.npz", "--method", "scm", "--space", "ridge=1:2"), "the space of ridge is '1:2': expected e.g. log:"),
        (("toy.npz", "--method", "scm", "--space", "rigde=log:1:2"), "did you mean 'ridge'"),
        (("toy.npz", "--method", "scm", "--param", "edmh.ridge=1"), "'edmh' is not among the methods scm"),
        (("nowhere.npz", "--method", "scm"), "nowhere.npz: no such file"),
        (("toy.npz", "--method", "scm", "-o", "mine.toml"), "not written by `modalhash tune`"),
        (("toy.npz", "--method", "scm", "-o", "mine.txt"), "expected a name that ends in .toml or .json"),
    ],
)
def test_mistakes_are_one_line_and_change_nothing(run, tmp_path, words, message):
    (tmp_path / "mine.toml").write_text("[scm]\nridge = 1\n")
    before = sorted(path.name for path in tmp_path.iterdir())
    done = run("tune", *words)
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_missing_extra_is_named(run, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "optuna", None)
    done = run("tune", "toy.npz", "--method", "scm")
    assert done.exit_code == 2
    assert install_line("tune") in done.stderr
