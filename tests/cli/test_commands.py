from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from modalhash import __version__
from modalhash.cli import app
from modalhash.methods.registry import METHODS


def run(*arguments):
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})


def test_help_names_every_command_and_where_to_start():
    shown = run("--help")
    assert shown.exit_code == 0
    for word in ("demo", "methods", "datasets", "evaluate", "Start with"):
        assert word in shown.output
    assert run("--version").output == f"modalhash {__version__}\n"


def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "modalhash", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"modalhash {__version__}\n"


def test_methods_is_the_registry():
    shown = run("methods").output
    for method in METHODS.values():
        assert method.name in shown
        assert method.reimplementation == ("re-implementation" in method.equations)
    listed = json.loads(run("methods", "--json").output)
    assert [entry["name"] for entry in listed] == list(METHODS)
    by_name = {entry["name"]: entry for entry in listed}
    assert by_name["amsh"]["parameters"]["ridge"] == 0.01
    assert by_name["amsh"]["takes_dask_arrays"]
    assert by_name["batch"]["max_modalities"] == 2
    assert {name for name, entry in by_name.items() if entry["extra"] == "torch"} == {"ucch", "dcmh", "prdh", "aadah"}
    for entry in listed:
        assert entry["space"].keys() <= entry["parameters"].keys()


def test_the_page_of_methods_is_up_to_date():
    page = Path(__file__).parents[2] / "docs" / "methods.md"
    assert page.read_text(encoding="utf-8") == run("methods", "--markdown").output, (
        "modalhash methods --markdown > docs/methods.md"
    )


def test_the_method_of_your_own_on_that_page_is_the_one_that_keeps_the_contract():
    toy = Path(__file__).parents[1] / "toy_method.py"
    assert toy.read_text(encoding="utf-8") in run("methods", "--markdown").output


@pytest.mark.slow
def test_the_demo_learns_something():
    shown = run("demo", "--data", "generated", "--bits", "16")
    assert shown.exit_code == 0, shown.output
    row = next(line for line in shown.output.splitlines() if "image→text" in line)
    learned, hashed, unseen, chance = (float(cell) for cell in row.split("│")[2:6])
    assert min(learned, hashed, unseen) > 2 * chance


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("demo", "--data", "generated", "--bits", "0"), "error: n_bits is 0; expected 'auto' or an integer ≥ 1"),
        (("evaluate", "nosuch"), "nosuch"),
        (("evaluate", "wiki", "--method", "nosuch"), "unknown method 'nosuch'"),
    ],
)
def test_a_mistake_is_one_clear_message_and_exit_code_2(arguments, message):
    code = "from modalhash.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
