from __future__ import annotations

import json
from importlib import import_module

import numpy as np
import pytest
from typer.testing import CliRunner

from modalhash.cli import app
from modalhash.data import Dataset, Split
from modalhash.evaluation import Protocol
from shared_data import shared_data

pytestmark = pytest.mark.filterwarnings("ignore:.*anchors asked for", "ignore:.*have no label")

command = import_module("modalhash.cli.evaluate")  # the package's attribute of that name is the function


def toy(split=True):
    rng = np.random.default_rng(0)
    classes = rng.integers(4, size=160)
    labels = np.eye(4, dtype=bool)[classes]
    features = {
        name: rng.standard_normal((4, width))[classes] * 2 + rng.standard_normal((160, width))
        for name, width in (("image", 8), ("text", 6))
    }
    ids = np.arange(160)
    parts = [dict.fromkeys(features, some) for some in (ids[:120], ids[120:])]
    return Dataset(features, dict.fromkeys(features, labels), name="toy", split=Split(*parts) if split else None)


@pytest.fixture
def run(monkeypatch):
    def invoke(*options, dataset=None):
        monkeypatch.setattr(command, "open_dataset", lambda name, root=None: dataset or toy())
        return CliRunner().invoke(app, ["evaluate", "toy", "--bits", "8", *options], env={"COLUMNS": "150"})

    return invoke


def test_prints_the_three_databases_side_by_side(run):
    result = run("--seeds", "2")
    assert result.exit_code == 0, result.output
    for text in ("learned", "hashed", "unseen", "chance", "image→text", "text→image", "±", "ties=expected"):
        assert text in result.stdout
    assert "8 bits, seed 1: fitted in" in result.stderr


def test_json_holds_every_run(run):
    content = json.loads(run("--seeds", "2", "--json").stdout)
    assert len(content["runs"]) == 2 * 2 * 3
    by_database = {run["database"]: run for run in content["runs"]}
    assert (by_database["learned"]["n_items"], by_database["unseen"]["n_items"]) == (120, 39)
    learned = [
        run["map"] for run in content["runs"] if (run["database"], run["direction"]) == ("learned", "image→text")
    ]
    assert content["rows"][0]["learned"]["mean"] == pytest.approx(np.mean(learned))
    assert content["rows"][0]["learned"]["mean"] > 2 * content["rows"][0]["chance"]


@pytest.mark.parametrize(("flag", "start"), [("--markdown", "**amsh on toy"), ("--latex", r"\begin{table}")])
def test_output_file(run, tmp_path, flag, start):
    path = tmp_path / "table"
    result = run("--seeds", "1", flag, "--output", str(path))
    assert result.exit_code == 0
    assert result.stdout == ""
    assert path.read_text(encoding="utf-8").startswith(start)


@pytest.mark.parametrize("scenario", list(command.Scenario))
def test_every_scenario(run, scenario):
    result = run("--seeds", "1", "--scenario", scenario, "--markdown")
    assert result.exit_code == 0, result.output
    assert f"amsh on toy, {scenario}" in result.stdout


def test_data_without_a_split(run):
    result = run("--seeds", "1", "--markdown", "--test-share", "0.25", dataset=toy(split=False))
    assert "0.25 of the items were drawn as queries" in result.stdout
    assert "40 queries, 120 items" in result.stdout


def test_cutoff_deeper_than_the_unseen_database(run):
    result = run("--seeds", "1", "--markdown", "--protocol", "amsh mAP@100")
    assert "unseen: not measured; fewer items than the cut-off of 100" in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--bits", "8,x"], "bits is '8,x'"),
        (["--method", "nonsense"], "unknown method 'nonsense'"),
        (["--protocol", "nonsense"], "is not understood"),
        (["--protocol", "mAP@1000"], "the cut-off is 1000"),
        (["--json", "--latex"], "take one of"),
        (["--modalities", "smell"], "no modality 'smell'"),
        (["--scenario", "nonsense"], "nonsense"),
    ],
)
def test_bad_options(run, options, message):
    result = run("--seeds", "1", *options)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())


def test_a_method_that_needs_pairs_says_so(monkeypatch):
    from modalhash.methods.amsh import AMSH

    class NeedsPairs(AMSH):
        needs_pairs = True

    monkeypatch.setattr(command.registry, "get", lambda name: NeedsPairs)
    with pytest.raises(ValueError, match="learns from pairs, and the scenario 'unpaired' leaves none"):
        command.study(toy(), "x", [8], "unpaired", [0], Protocol())
    assert command.study(toy(), "x", [8], "paired", [0], Protocol())


def test_wiki(monkeypatch):
    folder = shared_data("wiki")
    result = CliRunner().invoke(
        app, ["evaluate", "wiki", "--bits", "16", "--seeds", "1", "--json", "--root", str(folder.parent)]
    )
    assert result.exit_code == 0, result.output
    rows = {row["direction"]: row for row in json.loads(result.stdout)["rows"]}
    row = rows["text→image"]
    # the same model: what a paper reports, the same items hashed, items never seen
    assert (
        row["learned"]["mean"]
        > 0.6
        > row["hashed"]["mean"]
        > 0.3
        > row["unseen"]["mean"]
        > 1.3 * row["chance (unseen)"]
    )


def _bad_arrays(name):
    rng = np.random.default_rng(0)
    arrays = {}
    for part, n in (("tr", 40), ("te", 9)):
        arrays |= {
            f"I_{part}": rng.random((n, 7)),
            f"T_{part}": rng.random((n, 5)),
            f"L_{part}": np.eye(3)[np.arange(n) % 3],
        }
    if name == "nan.npz":
        arrays["I_tr"][3, 2] = np.nan
    elif name == "huge.npz":
        arrays["I_tr"] *= 1e300
    elif name == "equal.npz":
        arrays["I_tr"] *= 0
    elif name == "complex.npz":
        arrays["I_tr"] = arrays["I_tr"] + 1j
    elif name == "sevens.npz":
        arrays["L_tr"] *= 7
    elif name == "rows.npz":
        arrays["L_tr"] = arrays["L_tr"][:7]
    elif name == "unlabelled.npz":
        del arrays["L_tr"], arrays["L_te"]
    elif name == "object.npz":
        arrays = {"I_tr": np.array([{}], dtype=object)}
    return arrays


BAD_FILES = {
    **dict.fromkeys(
        ["nan.npz", "huge.npz", "equal.npz", "complex.npz", "sevens.npz", "rows.npz", "unlabelled.npz", "object.npz"]
    ),
    "empty.mat": b"",
    "page.mat": b"<html>404</html>" * 40,
    "header.npy": b"\x93NUMPY\x01\x00\xff\xff{",
    "nonsense.h5": b"\x89HDF\r\n\x1a\n" + b"\xff" * 90,
    "what.xyz": b"hello",
    "columns.csv": b"id,text\n1\n",
    "latin.csv": b"id,text\n1,\xe9\n",
    "texts.csv": b"id,text,labels\n1,a,x\n2,b,y\n",
    "cut.jsonl": b'{"id": 1, "te',
    "deep.jsonl": b"[" * 5000,
    "nothing.jsonl": b"",
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_one_line_with_its_name(tmp_path, name):
    path = tmp_path / name
    if BAD_FILES[name] is None:
        np.savez(path, **_bad_arrays(name))
    else:
        path.write_bytes(BAD_FILES[name])
    result = CliRunner().invoke(app, ["evaluate", str(path), "--bits", "8", "--seeds", "1"])
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit), "no traceback"
    assert result.stdout == ""
    line, *warnings = result.stderr.splitlines()
    assert all(warning.startswith(f"warning: {path}: not in UTF-8") for warning in warnings), "an encoding was guessed"
    assert line.startswith(f"error: {path}")
    assert len(line) > len(f"error: {path}: ")
