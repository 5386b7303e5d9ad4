"""A data set keeps its items, labels and split; only the features of one modality are others."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest
from typer.testing import CliRunner

from modalhash.cli import app
from modalhash.data import Dataset, Split, read, write_npz
from modalhash.encoders import ItemError, encode_dataset, encode_items, get_encoder

pillow = pytest.importorskip("PIL.Image", reason="needs the extra images")
NAMES = [f"{number:02d}/photo.png" for number in range(6)]


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for name in NAMES:
        path = tmp_path / "pictures" / name
        path.parent.mkdir(parents=True)
        pillow.fromarray(rng.integers(256, size=(16, 16, 3), dtype=np.uint8)).save(path)
    return tmp_path / "pictures"


@pytest.fixture
def dataset():
    labels = np.eye(2, dtype=bool)[[0, 1, 0, 1, 0, 1]]
    ids = np.array([f"p{number}" for number in range(6)])
    texts = np.array(["red boat", "blue boat", "red house", "old house", "onlyqueries here", "onlyqueries there"])
    both = ("image", "text")
    return Dataset(
        dict.fromkeys(both, np.zeros((6, 2))),
        dict.fromkeys(both, labels),
        dict.fromkeys(both, ids),
        name="tiny",
        provenance={"notes": ["image: nought", "text: nought", "made up"]},
        raw={"image": np.array(NAMES), "text": texts},
        split=Split(dict.fromkeys(both, ids[:4]), dict.fromkeys(both, ids[4:])),
    )


def zipped(folder, path):
    with zipfile.ZipFile(path, "w") as archive:
        for name in NAMES:
            archive.write(folder / name, name)
    return path


def test_a_folder_and_an_archive_give_what_the_encoder_gives(dataset, folder, tmp_path):
    expected = encode_items(get_encoder("image"), [folder / name for name in NAMES]).features
    for files in (folder, zipped(folder, tmp_path / "pictures.zip")):
        made = encode_dataset(dataset, "image", get_encoder("image"), files=files)
        assert np.array_equal(made.features["image"], expected)
        assert np.array_equal(made.features["text"], dataset.features["text"])
        assert np.array_equal(made.ids["image"], dataset.ids["image"])
        assert made.split is dataset.split
        *others, own = made.provenance["notes"]
        assert others == ["text: nought", "made up"]
        assert own.startswith("image: encoder image, digest ")


def test_an_encoder_learns_from_training_items_only(dataset):
    encoder = get_encoder("tfidf", min_df=1)
    made = encode_dataset(dataset, "text", encoder)
    assert made.features["text"].shape == (6, encoder.dim)
    alone = get_encoder("tfidf", min_df=1).fit(dataset.raw["text"].tolist()[:4])
    assert encoder.digest == alone.digest


def test_mistakes_are_named(dataset, folder, tmp_path):
    with pytest.raises(ValueError, match="no raw items of 'sound' to encode; it has: image, text"):
        encode_dataset(dataset, "sound", get_encoder("image"))
    with pytest.raises(ValueError, match="expected a folder or an archive"):
        encode_dataset(dataset, "image", get_encoder("image"), files=tmp_path / "nothing.zip")
    archive = zipped(folder, tmp_path / "pictures.zip")
    (folder / NAMES[3]).unlink()
    with pytest.raises(ItemError, match=r"03/photo\.png: no such file"):
        encode_dataset(dataset, "image", get_encoder("image"), files=folder)
    names = dataset.raw["image"].copy()
    for name, message in (("../secret", "not inside this folder"), ("99/photo.png", "no such file")):
        names[0] = name
        other = Dataset({}, raw={"image": names}, name="tiny")
        with pytest.raises(ValueError, match=message):
            encode_dataset(other, "image", get_encoder("image"), files=folder)
    with pytest.raises(ValueError, match=r"1 files are missing, e\.g\. '99/photo\.png'"):
        encode_dataset(other, "image", get_encoder("image"), files=archive)


@pytest.mark.slow
def test_the_command_writes_what_every_command_reads(dataset, folder, tmp_path):
    source, out = write_npz(dataset, tmp_path / "tiny.npz"), tmp_path / "out" / "tiny.npz"
    done = CliRunner().invoke(app, ["datasets", "encode", str(source), str(out), "--files", str(folder)])
    assert done.exit_code == 0, done.output
    made = read(out)
    assert made.features["image"].shape == (6, get_encoder("image").dim)
    assert made.split.query["text"].tolist() == ["p4", "p5"]
    done = CliRunner().invoke(app, ["datasets", "encode", str(source), str(out), "--files", str(tmp_path / "gone")])
    assert done.exit_code == 2
    assert "expected a folder or an archive" in done.output
    done = CliRunner().invoke(app, ["datasets", "encode", "nosuch", "out.mat"])
    assert "out.mat: expected a name that ends in .npz" in done.output  # before anything is read or encoded
    assert read(out).features["image"].shape == made.features["image"].shape
