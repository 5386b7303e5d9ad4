"""What the commands share: one line for an error, one grammar of options, one way to open things."""

from __future__ import annotations

import json
import sys
import warnings
from enum import Enum
from types import SimpleNamespace

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from modalhash.cli import common as _common
from modalhash.cli.common import Commands, key_any, key_values, open_dataset, problems_as_json
from modalhash.data import Dataset, write_npz
from modalhash.store import StoreBusyError


def invoke(work):
    """Run ``work`` as a command of a group."""
    app = typer.Typer(cls=Commands)
    app.command()(work)
    app.command("other")(lambda: None)
    return CliRunner().invoke(app, [work.__name__])


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("k is 0;\n   expected more"), "error: k is 0; expected more\n"),
        (TypeError("got a list; expected a dict"), "error: got a list; expected a dict\n"),
        (FileNotFoundError("a.csv: no such file"), "error: a.csv: no such file\n"),
        (PermissionError(13, "Permission denied", "a"), "error: [Errno 13] Permission denied: 'a'\n"),
        (ImportError("install the extra 'x'"), "error: install the extra 'x'\n"),
        (KeyError("no item has the id '7'"), "error: no item has the id '7'\n"),
        (StoreBusyError("another process is writing"), "error: another process is writing\n"),
    ],
)
def test_a_user_error_is_one_line_and_exit_code_2(error, line):
    def work():
        raise error

    done = invoke(work)
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", line)


@pytest.mark.parametrize(
    "error",
    [KeyError("modality"), KeyError(), AttributeError("x"), AssertionError(), RuntimeError("odd"), IndexError()],
)
def test_a_bug_keeps_its_traceback(error):
    def work():
        raise error

    done = invoke(work)
    assert done.exception is error
    assert done.stderr == ""


def test_exit_codes_and_usage_errors_pass():
    def work():
        raise typer.Exit(7)

    assert invoke(work).exit_code == 7

    def needs(value: int):
        pass

    done = invoke(needs)
    assert done.exit_code == 2
    assert "Missing argument" in done.stderr


def test_warnings_are_lines_once_each_and_only_ours():
    def work():
        for text in ("few items", "few items", "other"):
            warnings.warn(text, UserWarning, stacklevel=1)
        warnings.warn("from a library", DeprecationWarning, stacklevel=1)

    done = invoke(work)
    assert (done.exit_code, done.stderr) == (0, "warning: few items\nwarning: other\n")


def test_whoever_stops_reading_is_no_error():
    def work():
        raise BrokenPipeError(32, "Broken pipe")

    done = invoke(work)
    assert done.exit_code == 1
    assert "error" not in done.stderr


def test_key_values():
    assert key_values(None, "--field") == {}
    assert key_values(["text=caption", "image=a=b"], "--field") == {"text": "caption", "image": "a=b"}
    for bad in ("text", "=x", "text=", "="):
        with pytest.raises(ValueError, match=rf"^--field '{bad}': expected key=value$"):
            key_values([bad], "--field")
    with pytest.raises(ValueError, match="--field 'a=2': a is already '1'"):
        key_values(["a=1", "a=2"], "--field")


def test_values_are_what_they_look_like():
    texts = {
        "1": 1, "-3": -3, "1e-3": 0.001, ".5": 0.5, "true": True, "False": False, "none": None, "null": None,
        '{"image": 10}': {"image": 10}, "[1, 2]": [1, 2], "kmeans": "kmeans", "{": "{", "BoW_int": "BoW_int",
    }  # fmt: skip
    read = key_any([f"k{row}={text}" for row, text in enumerate(texts)], "--param")
    assert list(read.values()) == list(texts.values())
    assert [type(value) for value in read.values()] == [type(value) for value in texts.values()]


def test_a_data_set_is_a_file_a_name_or_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MODALHASH_DATA", raising=False)

    def put(path, n):
        write_npz(Dataset({"image": np.eye(n)}, name="x"), path)

    with pytest.raises(ValueError, match="no data set is called 'nosuch'; there are wiki"):
        open_dataset("nosuch")
    with pytest.raises(FileNotFoundError, match=r"nosuch\.mat: no such file"):
        open_dataset("nosuch.mat")
    with pytest.raises(FileNotFoundError, match=r"wiki: no wiki\.npz .* in data/wiki; set root"):
        open_dataset("wiki")
    put(tmp_path / "wiki" / "wiki.npz", 3)
    assert open_dataset("wiki").sizes == {"image": 3}
    put(tmp_path / "data" / "wiki" / "wiki.npz", 4)
    assert open_dataset("wiki").sizes == {"image": 4}
    assert open_dataset("wiki/wiki.npz").sizes == {"image": 3}


def test_modules_here_come_after_what_is_installed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    _common.import_from_here()
    _common.import_from_here()
    assert sys.path[-1] == str(tmp_path)
    assert sys.path.count(str(tmp_path)) == 1


def test_problems_as_json_hold_what_is_known():
    class Code(Enum):
        duplicate = "duplicate"

    problem = SimpleNamespace(reason="is there", line=3, source=None, code=Code.duplicate)
    assert json.loads(json.dumps(problems_as_json((problem,)))) == [
        {"reason": "is there", "line": 3, "code": "duplicate"}
    ]
