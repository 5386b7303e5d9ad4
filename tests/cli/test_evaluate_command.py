from __future__ import annotations

import csv
import json
import re
import shlex
import sys
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from modalhash.cli import app
from modalhash.cli.common import file_mapping
from modalhash.cli.options import ScenarioName
from modalhash.data import Dataset, Split
from shared_data import shared_data

pytestmark = pytest.mark.filterwarnings("ignore:.*anchors asked for", "ignore:.*have no label")


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
        monkeypatch.setattr(
            "modalhash.cli.options.open_dataset", lambda name, root=None, mapping=None: dataset or toy()
        )
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


@pytest.mark.parametrize("scenario", list(ScenarioName))
def test_every_scenario(run, scenario):
    result = run("--seeds", "1", "--scenario", scenario, "--markdown")
    assert result.exit_code == 0, result.output
    assert f"amsh on toy (data: not stated), {scenario}" in result.stdout


@pytest.mark.slow
def test_data_without_a_split(run):
    result = run("--seeds", "1", "--markdown", "--test-share", "0.25", dataset=toy(split=False))
    assert "each seed drew its own queries" in result.stdout
    assert "40 queries, 120 items" in result.stdout
    own = replace(toy(split=False), split_sizes={"query": 10, "training": 100})
    assert "10 queries, 100 items" in run("--seeds", "1", "--markdown", dataset=own).stdout


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
        (["--method", "amsh,"], "expected names separated by commas"),
        (["--method", "amsh,amsh"], "amsh is given twice"),
        (["--method", "amsh,edmh", "--param", "ridge=1"], "which method? Write e.g. --param amsh.ridge="),
        (["--param", "edmh.ridge=1"], "'edmh' is not among the methods amsh"),
        (["--param", "rigde=1"], "amsh has no parameter 'rigde'; did you mean 'ridge'?"),
        (["--param", "n_bits=1"], "n_bits is set by the code lengths (--bits)"),
        (["--method", "chance,amsh", "--param", "amsh.ridge=-1"], "toy: amsh: ridge is -1"),
        (["--against", "edmh"], "the reference 'edmh' is not among the methods amsh"),
        (
            ["--scenario", "unpaired", "--method", "chance,batch"],
            "batch learns from pairs, which the scenario 'unpaired' removes",
        ),
        (["--json", "--latex"], "use only one of"),
        (["--modalities", "smell"], "no modality 'smell'"),
        (["--scenario", "nonsense"], "nonsense"),
    ],
)
def test_bad_options(run, options, message):
    result = run("--seeds", "1", *options)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.slow
def test_several_methods_are_one_table_with_tests_against_the_first(run, tmp_path):
    options = ("--method", "chance,edmh,seedless_method:FixedCodes", "--seeds", "2", "--out", str(tmp_path / "out"))
    result = run(*options, "--param", "edmh.ridge=0.5")
    assert result.exit_code == 0, result.output
    assert "edmh: ridge=0.5" in result.stdout
    assert "corrected by Holm for the 12 tests" in " ".join(result.stdout.split())
    assert "unpaired" in result.stdout
    content = json.loads((tmp_path / "out" / "toy.json").read_text(encoding="utf-8"))
    assert [row["method"] for row in content["rows"]] == ["chance", "edmh", "seedless_method:FixedCodes"] * 2
    better = [row["learned"] for row in content["rows"] if row["method"] == "edmh"]
    assert [cell["arrow"] for cell in better] == ["↑", "↑"]
    assert all(cell["p_holm"] < 0.05 for cell in better)
    assert len(content["runs"][0]["average_precision"]) == content["runs"][0]["n_queries"] == 40
    with (tmp_path / "out" / "toy.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 3 * 2 * 3
    one = next(line for line in lines if (line["method"], line["database"]) == ("edmh", "learned"))
    assert (one["reference"], one["bits"], one["seeds"]) == ("chance", "8", "2")
    assert float(one["p_holm"]) >= float(one["p"]) > 0
    assert r"$\uparrow$" in (tmp_path / "out" / "toy.tex").read_text(encoding="utf-8")
    again = run(*options)
    assert again.exit_code == 2
    assert "--overwrite" in again.stderr
    assert "fitted" not in again.stderr, "refused before anything is fitted"


@pytest.mark.slow
def test_it_begins_with_the_number_of_fits_and_the_time(run):
    result = run("--method", "chance,edmh", "--bits", "8,16", "--seeds", "3")
    assert result.exit_code == 0, result.output
    assert re.match(r"12 fits, about \d+ s \(chance .* s, edmh .* s a fit\)\n", result.stderr)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "start"), [("c.svg", b"<?xml"), ("c.png", b"\x89PNG"), ("new/c.PDF", b"%PDF")])
def test_curves_are_drawn_into_a_file(run, tmp_path, name, start):
    pytest.importorskip("matplotlib")
    result = run("--method", "chance,edmh", "--seeds", "2", "--curves", str(tmp_path / name))
    assert result.exit_code == 0, result.output
    content = (tmp_path / name).read_bytes()
    assert content.startswith(start)
    if name.endswith("svg"):
        text = content.decode()
        for words in (
            "on toy (data: not stated), unpaired",
            "chance",
            "edmh",
            "image → text, 8 bits",
            "text → image, 8 bits",
            "recall",
            "precision, learned",
            "precision, unseen",
            "Mean over 2 seed(s)",
            "40 queries, 120 items",
            "ties=expected",
        ):
            assert words in text  # fmt: skip


@pytest.mark.slow
def test_curves_come_with_the_other_files_unless_they_have_a_file_of_their_own(run, tmp_path):
    pytest.importorskip("matplotlib")
    assert run("--seeds", "1", "--out", str(tmp_path / "a")).exit_code == 0
    assert {path.name for path in (tmp_path / "a").iterdir()} == {"toy.json", "toy.csv", "toy.tex", "toy.svg"}
    kept = json.loads((tmp_path / "a" / "toy.json").read_text(encoding="utf-8"))["runs"][0]["curve"]
    assert len(kept) == 51
    assert run("--seeds", "1", "--out", str(tmp_path / "b"), "--curves", str(tmp_path / "c.png")).exit_code == 0
    assert {path.name for path in (tmp_path / "b").iterdir()} == {"toy.json", "toy.csv", "toy.tex"}
    assert (tmp_path / "c.png").is_file()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("c.gif", "expected a name that ends in .svg, .png, .pdf"),
        ("folder.svg", "is a folder; expected a file"),
        ("file/c.svg", "file"),
    ],
)
def test_curves_that_cannot_be_written_are_refused_before_anything_is_fitted(run, tmp_path, name, message):
    pytest.importorskip("matplotlib")
    (tmp_path / "folder.svg").mkdir()
    (tmp_path / "file").touch()
    result = run("--curves", str(tmp_path / name))
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert "fit" not in result.stderr.replace(str(tmp_path), "")


def test_without_matplotlib_the_extra_is_named(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("--curves", str(tmp_path / "c.svg"))
    assert result.exit_code == 2
    assert "drawing curves needs the package 'matplotlib'" in result.stderr
    assert "Install the extra 'plot'" in result.stderr
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run("--seeds", "1", "--out", str(tmp_path / "a")).exit_code == 0
    assert not (tmp_path / "a" / "toy.svg").exists()


def test_pairs_are_kept_where_a_method_needs_them(run):
    result = run("--method", "chance,batch", "--seeds", "1", "--markdown", "--against", "batch")
    assert result.exit_code == 0, result.output
    assert "chance, batch on toy (data: not stated), paired" in result.stdout
    assert "worse than batch" in result.stdout


def test_parameters_of_a_file(run, tmp_path):
    (tmp_path / "p.toml").write_text("[edmh]\nridge = 0.25\nmax_iter = 3\n\n[batch]\nridge = 1\n", encoding="utf-8")
    options = ("--method", "edmh", "--seeds", "1", "--markdown", "--params", str(tmp_path / "p.toml"))
    assert "edmh: ridge=0.25, max_iter=3" in run(*options).stdout
    assert "edmh: ridge=0.5, max_iter=3" in run(*options, "--param", "ridge=0.5").stdout
    result = run("--params", str(tmp_path / "p.toml"))
    assert result.exit_code == 2
    assert "has parameters of edmh, batch; expected amsh" in result.stderr


@pytest.mark.slow
def test_what_was_measured_before_an_error_is_kept(run, tmp_path, monkeypatch):
    from modalhash.methods.edmh import EDMH

    fit = EDMH.fit

    def fail_at_the_second(self, *given, **named):
        if self.random_state == 1:
            raise KeyboardInterrupt
        return fit(self, *given, **named)

    monkeypatch.setattr(EDMH, "fit", fail_at_the_second)
    result = run("--method", "chance,edmh", "--seeds", "3", "--out", str(tmp_path))
    assert result.exit_code == 130
    assert "stopped before all was measured; the results so far are in" in result.stderr
    runs = json.loads((tmp_path / "toy.json").read_text(encoding="utf-8"))["runs"]
    assert {(one["method"], one["seed"]) for one in runs} == {("chance", 0), ("edmh", 0), ("chance", 1)}


def odd_arrays():
    data = toy()
    return {"feat_a": data.features["image"], "feat_b": data.features["text"], "truth": data.labels["image"]}


@pytest.mark.slow
def test_an_unknown_layout_shows_the_command_that_reads_it(tmp_path):
    path = tmp_path / "an odd.npz"
    np.savez(path, **odd_arrays())
    options = ["evaluate", str(path), "--method", "edmh", "--bits", "8", "--seeds", "1"]
    result = CliRunner().invoke(app, options, prog_name="modalhash")
    assert result.exit_code == 2
    line = result.stderr.splitlines()[-1].strip()
    assert line.endswith("--map image=feat_a --map text=feat_b --map labels=truth")
    again = CliRunner().invoke(app, [*shlex.split(line)[1:], "--json"])
    assert shlex.split(line)[0] == "modalhash"
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["rows"][0]["learned"]["mean"] > 0.9


def test_a_file_whose_labels_are_not_recognised_shows_it_too(tmp_path):
    path = tmp_path / "a.npz"
    data = toy()
    np.savez(path, I_tr=data.features["image"][:120], I_te=data.features["image"][120:],
             T_tr=data.features["text"][:120], T_te=data.features["text"][120:],
             Q_tr=data.labels["text"][:120], Q_te=data.labels["text"][120:])  # fmt: skip
    result = CliRunner().invoke(app, ["evaluate", str(path), "--bits", "8"], prog_name="modalhash")
    assert result.exit_code == 2
    assert "has no labels" in result.stderr
    assert result.stderr.splitlines()[-1].endswith("--map image=I --map text=T --map labels=Q")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["image"], "expected key=value"),
        (["labels.image=a", "labels=b"], "labels are already given by modality"),
        (["labels=b", "labels.image=a"], "labels are already given for all modalities"),
        (["image=[1"], "not JSON"),
    ],
)
def test_bad_mappings(texts, message):
    with pytest.raises(ValueError, match=message):
        file_mapping(texts)


def test_mappings_are_what_read_takes():
    given = file_mapping(["image=I", "labels.image=a", "labels.text=b", 'text=["x","y"]'])
    assert given == {"image": "I", "labels": {"image": "a", "text": "b"}, "text": ["x", "y"]}


@pytest.mark.slow
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
    line, *others = result.stderr.splitlines()
    warnings = [other for other in others if not other.startswith("  ")]  # what is indented says what to do
    assert all(warning.startswith(f"warning: {path}: not in UTF-8") for warning in warnings), "an encoding was guessed"
    assert line.startswith(f"error: {path}")
    assert len(line) > len(f"error: {path}: ")
