"""The first searches of a process: what they load, that they find the same, and that nothing is compiled twice."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import modalhash
from modalhash import Engine

SEARCH = """
import json, sys, warnings
from modalhash import Engine
folder, how = sys.argv[1:]
with Engine.open(folder, read_only=True, compiled=None if how == "once" else True) as engine:
    if how == "warm up":
        engine.warm_up()
    known = next(record.id for record in engine.items() if record.modality == "text")
    answers = [
        [(hit.modality, hit.id, hit.distance, hit.score, hit.confidence) for hit in engine.search(**query)]
        for query in (
            {"text": "red", "k": 30}, {"text": "blue boat", "want": "image", "k": 5}, {"text": "sea", "radius": 20},
            {"id": known, "modality": "text", "k": 7}, {"text": "red", "k": 4, "labels": ["red"]},
            {"text": "a small red ball", "k": 200, "asymmetric": True}, {"text": "red", "refine": False},
        )
    ]
compiled = {}
if "numba" in sys.modules:
    from numba.core.dispatcher import Dispatcher
    for name, module in list(sys.modules.items()):
        for kernel in vars(module).values() if name.startswith("modalhash") else ():
            if isinstance(kernel, Dispatcher) and kernel.stats.cache_misses:
                compiled[kernel.py_func.__name__] = str(kernel.stats.cache_misses)
print(json.dumps({"answers": answers, "compiled": compiled, "numba": "numba" in sys.modules}))
"""


def fresh(folder, how, **variables):
    done = subprocess.run(
        [sys.executable, "-c", SEARCH, str(folder), how],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | variables,
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def folder(world):
    return world / "engine"


@pytest.mark.slow
def test_a_process_with_one_search_loads_only_what_it_needs(folder):
    found = fresh(folder, "once")
    assert not found["numba"]
    assert found["answers"] == fresh(folder, "kernels")["answers"]
    assert all(found["answers"])


@pytest.mark.slow
@pytest.mark.parametrize("command", ["search FOLDER red", "info FOLDER"])
def test_a_command_that_searches_once_does_not_load_numba(folder, command):
    arguments = command.replace("FOLDER", str(folder)).split()
    code = "import sys; from modalhash.cli import app; app(sys.argv[1:], standalone_mode=False); assert 'numba' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout


@pytest.mark.slow
def test_nothing_is_compiled_that_another_process_has_compiled(folder):
    first = fresh(folder, "warm up")  # compiles, unless this was done before
    second = fresh(folder, "warm up")
    assert second["numba"]
    assert second["compiled"] == {}
    assert second["answers"] == first["answers"]
    assert fresh(folder, "kernels")["compiled"] == {}


MERGE = """
import numpy as np
from modalhash.index.kernels.compiled import merge_ordered
one, two = (np.array([1, 5]), np.array([0, 2], np.int32)), (np.array([5, 7]), np.array([2, 2], np.int32))
print(merge_ordered(*one, *two)[0].tolist(), sum(merge_ordered.stats.cache_misses.values()))
"""


@pytest.fixture
def unwritable_package(tmp_path):
    """A copy of the package whose cache folders cannot be made, also not by root: files are in their place."""
    source = Path(modalhash.__file__).parent
    shutil.copytree(source, tmp_path / "modalhash", ignore=shutil.ignore_patterns("__pycache__", "static"))
    for package in (tmp_path / "modalhash", tmp_path / "modalhash" / "index" / "kernels"):
        (package / "__pycache__").write_bytes(b"")
    return tmp_path


def merge_with(package, cache):
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {"PYTHONPATH": str(package), "XDG_CACHE_HOME": str(cache), "HOME": str(cache)}
    return subprocess.run([sys.executable, "-c", MERGE], capture_output=True, text=True, check=True, env=environment)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems have the user's cache folder elsewhere")
def test_kernels_are_cached_for_the_user_where_the_package_cannot_be_written(unwritable_package, tmp_path):
    cache = tmp_path / "cache"
    first, second = (merge_with(unwritable_package, cache) for _ in range(2))
    assert (first.stdout, second.stdout) == ("[1, 5, 7] 1\n", "[1, 5, 7] 0\n")
    assert list(cache.rglob("*.nbc"))
    assert "NUMBA_CACHE_DIR" not in first.stderr


@pytest.mark.slow
def test_without_any_cache_folder_kernels_work_and_a_warning_says_what_to_do(unwritable_package, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    found = merge_with(unwritable_package, tmp_path / "file" / "cache")
    assert found.stdout.startswith("[1, 5, 7]")
    assert "set NUMBA_CACHE_DIR to a writable folder" in found.stderr
    assert found.stderr.count("RuntimeWarning") == 1


@pytest.mark.slow
def test_warm_up_answers_as_before(folder):
    with Engine.open(folder, read_only=True) as engine:
        before = engine.search(text="red", k=5)
        engine.warm_up()
        assert engine.search(text="red", k=5) == before
