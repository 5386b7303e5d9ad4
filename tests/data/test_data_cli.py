"""``modalhash datasets``."""

from __future__ import annotations

import json

import numpy as np
import official_trees as trees
import pytest
from data_files import parts
from scipy.io import savemat
from typer.testing import CliRunner

from modalhash.cli.listings import app
from modalhash.data import NAMED
from shared_data import shared_data


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("MODALHASH_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    return lambda *arguments: runner.invoke(app, [str(argument) for argument in arguments])


def test_list_says_what_is_here_and_how_to_get_the_rest(run, tmp_path):
    folder = tmp_path / "data" / "mirflickr25k"
    folder.mkdir(parents=True)
    savemat(folder / "mirflickr25k.mat", parts())
    result = run("list")
    assert result.exit_code == 0
    assert "nuswide10: Get Groundtruth, ConceptsList" in result.output
    assert "modalhash datasets convert nuswide10 SOURCE data/nuswide10/nuswide10.npz" in result.output
    assert "mirflickr25k: Get" not in result.output


def test_info_of_a_file(run, tmp_path):
    savemat(tmp_path / "a.mat", parts())
    result = run("info", "a.mat")
    assert result.exit_code == 0
    assert "paired, 3 classes" in result.output
    assert "40 / 9 / 40" in result.output


def test_info_of_a_named_data_set_that_is_not_here(run):
    result = run("info", "wiki")
    assert result.exit_code == 0
    for text in ("Rasiwasia", "2,173 training items", "one for each item", "svcl.ucsd.edu", "datasets convert wiki",
                 'load_dataset("wiki")', "no; looked for data/wiki/wiki.npz", "$MODALHASH_DATA"):  # fmt: skip
        assert text in result.output, text
    found = json.loads(run("info", "wiki", "--json").output)
    assert (found["here"], found["found"], found["converter"]) == (False, None, True)
    assert "contents" not in found


def test_info_of_a_named_data_set_that_is_here(run, tmp_path):
    folder = tmp_path / "data" / "nuswide21"
    folder.mkdir(parents=True)
    savemat(folder / "theirs.mat", parts())
    found = json.loads(run("info", "nuswide21", "--json").output)
    assert found["found"] == "data/nuswide21"
    assert found["contents"]["modalities"]["text"]["query"] == 9
    assert found["contents"]["paired"]
    savemat(folder / "NUSWIDE21.mat", parts())
    result = run("info", "nuswide21")
    assert "yes: data/nuswide21/NUSWIDE21.mat" in result.output
    assert "40 / 9 / 40" in result.output


@pytest.mark.slow
def test_info_of_the_papers_data_shows_table_1(run, tmp_path, monkeypatch):
    monkeypatch.setenv("MODALHASH_DATA", str(shared_data("iapr-tc12-paper").parent))
    shown = run("info", "iapr-tc12-255").output
    assert "data: recomputed features" in shown
    assert "no split: each seed draws 2,000 query items at random" in shown
    lines = [line.replace("│", " ").split() for line in shown.splitlines()]
    assert ["items", "19,995", "20,000", "-5"] in lines
    assert ["queries", "2,000", "2,000"] in lines
    assert ["text", "features", "2,928", "2,912", "+16"] in lines
    found = json.loads(run("info", "iapr-tc12-255", "--json").output)
    assert found["table_1"]["training"] == {"here": 17995, "paper": 18000}
    assert found["contents"]["kind"] == "recomputed features"
    assert "table_1" not in json.loads(run("info", "iapr-tc12-255:cnn", "--json").output)


def test_components_are_shown(run, tmp_path, monkeypatch):
    monkeypatch.setenv("MODALHASH_DATA", str(shared_data("mirflickr").parent))
    shown = run("info", "mirflickr25k").output
    assert "1386 → 500 components" in shown
    assert "mirflickr25k:full: 20,015 items" in shown
    found = json.loads(run("info", "mirflickr25k", "--json").output)
    assert all(values["here"] == values["paper"] for values in found["table_1"].values())
    assert found["contents"]["modalities"]["text"]["components"] == 500


def test_absent_data_say_in_three_lines_how_to_get_them(run, tmp_path):
    result = run("encode", "mirflickr25k", "out.npz")
    assert result.exit_code == 2
    first, get, convert = result.stderr.splitlines()
    assert first.startswith("error: mirflickr25k: no features.npz or mirflickr25k.npz or mirflickr25k.mat in data/")
    assert "mirflickr25k_annotations_v080.zip from https://press.liacs.nl/mirflickr/" in get
    assert convert.endswith("modalhash datasets convert mirflickr25k SOURCE data/mirflickr25k/features.npz")
    network = run("encode", "mirflickr25k:cnn", "out.npz").stderr.splitlines()
    assert "no features.npz and cnn.npz in" in network[0]
    assert "datasets encode mirflickr25k:full data/mirflickr25k/cnn.npz" in network[3]
    assert "there is mirflickr25k:paper, mirflickr25k:full" in run("encode", "mirflickr25k:cn", "out.npz").stderr


@pytest.mark.parametrize("name", NAMED)
def test_the_catalogue_is_complete(name):
    entry = NAMED[name]
    assert all((entry.items, entry.modalities, entry.classes, entry.where, entry.layout, entry.licence, entry.how))


def test_info_takes_a_mapping(run, tmp_path):
    np.savez(tmp_path / "a.npz", one=np.eye(6)[:, :4], two=np.ones((6, 3)), truth=np.eye(6))
    refused = run("info", "a.npz")
    assert refused.exit_code == 2
    assert "--map image=one --map text=two --map labels=truth" in refused.stderr
    result = run("info", "a.npz", "--map", "image=one", "--map", "text=two", "--map", "labels=truth")
    assert result.exit_code == 0, result.output
    assert "paired, 6 classes" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["info", "nowhere.mat"], "error: nowhere.mat: no such file"),
        (["convert", "coco", ".", "out.npz"], "error: there is no converter for 'coco'"),
        (["convert", "wiki", ".", "out.npz"], "error: .: raw_features.mat does not exist"),
        (["convert", "wiki", ".", "out.npz", "--option", "seed"], "expected key=value"),
        (["convert", "wiki", ".", "out.npz", "--option", "seed=1"], "no option 'seed'"),
    ],
)
def test_errors_are_one_line_and_exit_code_two(run, tmp_path, arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out.npz").exists()


def test_convert_and_look(run, tmp_path):
    trees.nuswide(tmp_path / "source")
    result = run("convert", "nuswide10", "source", "data/nuswide10/nuswide10.npz")
    assert result.exit_code == 0, result.stderr
    assert "warning: images: got 30, the published count is 269,648" in result.stderr
    assert "nuswide10: paired, 4 classes" in result.output
    assert run("info", "nuswide10").exit_code == 0


def test_a_bomb_is_one_line_that_names_the_option(run, tmp_path, monkeypatch):
    monkeypatch.setenv("MODALHASH_READ_MEMORY", "1MB")
    monkeypatch.setenv("MODALHASH_READ_SECONDS", "60")
    np.savez_compressed(tmp_path / "a.npz", XAll=np.zeros((9, 20_000)), LAll=np.eye(9))
    result = run("info", "a.npz")
    assert result.exit_code == 2
    assert (
        "error: a.npz, variable 'XAll': what it holds would take 1.4 MB, more than the limit of 1.0 MB" in result.output
    )
    assert "--read-memory 2MB" in result.output
    assert run("info", "a.npz", "--read-memory", "2MB").exit_code == 0
    result = run("info", "a.npz", "--read-seconds", "soon")
    assert result.exit_code == 2
    assert "MODALHASH_READ_SECONDS is 'soon'" in result.output
