"""Converters on miniature trees in the official layouts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import official_trees as trees
import pytest
from scipy import sparse

from modalhash.data import ReadError, convert, load_dataset, read, write_npz
from modalhash.data.sets import iapr255, nuswide
from shared_data import shared_data

pytestmark = pytest.mark.filterwarnings("ignore:.*published count")


def test_mirflickr(tmp_path):
    source = trees.mirflickr(tmp_path / "source")
    out = tmp_path / "data" / "mirflickr25k" / "features.npz"
    with pytest.warns(UserWarning, match="images: got 12, the published count is 25,000"):
        paper = convert("mirflickr25k", source, out)
    kept = [k for k in range(1, 13) if k % 4 and k % 5]
    data = load_dataset("mirflickr25k:full", tmp_path / "data")
    assert data.ids["image"].tolist() == kept
    assert data.class_names == tuple(trees.MIR_LABELS)
    np.testing.assert_array_equal(data.labels["image"].argmax(axis=1), [k % 3 for k in kept])
    assert isinstance(data.features["text"], sparse.csr_array)
    expected = [[k % 3 == 0, k % 3 == 1, k % 3 == 2, k % 2 == 1] for k in kept]
    np.testing.assert_array_equal(data.features["text"].toarray(), expected)
    assert any("20,015" in note for note in data.provenance["notes"])
    assert (data.kind, data.split, data.split_sizes) == ("recomputed features", None, {"query": 2000})
    assert data.features["image"].shape == (7, 512)
    two_tags = [k for k in kept if k % 2]
    for same in (paper, load_dataset("mirflickr25k", tmp_path / "data")):
        assert same.ids["text"].tolist() == two_tags
        assert same.features["image"].shape == (len(two_tags), 150)
        assert same.components == {"text": 500}
        assert same.raw["image"][0] == "im1.jpg"


def test_mirflickr_takes_the_edge_histograms_of_the_distribution(tmp_path):
    data = convert("mirflickr25k", trees.mirflickr(tmp_path / "source", edges=True))
    np.testing.assert_allclose(data.features["image"][:, 0], data.ids["image"])  # image k has the edges of file k−1
    assert data.kind == "original"
    assert any("unverified" in note for note in data.provenance["notes"])


def test_mirflickr_without_pictures(tmp_path):
    source = trees.mirflickr(tmp_path / "source", edges=True, pictures=False)
    convert("mirflickr25k", source, tmp_path / "mirflickr" / "features.npz")
    assert load_dataset("mirflickr25k", tmp_path).kind == "original"
    with pytest.raises(ReadError, match=r"features\.npz: no variable 'gist'"):
        load_dataset("mirflickr25k:full", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"neither im1\.jpg nor features_edgehistogram"):
        convert("mirflickr25k", trees.mirflickr(tmp_path / "other", pictures=False))


def test_network_features_of_a_conversion(tmp_path):
    """``modalhash datasets encode`` writes ``cnn.npz`` from the pictures."""
    folder = tmp_path / "mirflickr25k"
    convert("mirflickr25k", trees.mirflickr(tmp_path / "source"), folder / "features.npz")
    full = load_dataset("mirflickr25k:full", tmp_path)
    made = replace(full, features={**full.features, "image": np.eye(7, 5)})
    write_npz(made.select({name: np.arange(7)[::-1] for name in made.modalities}), folder / "cnn.npz")
    np.testing.assert_array_equal(load_dataset("mirflickr25k:cnn", tmp_path).features["image"], np.eye(7, 5))
    write_npz(made.select({name: np.arange(3) for name in made.modalities}), folder / "cnn.npz")
    with pytest.raises(ReadError, match=r"cnn\.npz: image__ids: 4 of 7 ids are not in"):
        load_dataset("mirflickr25k:cnn", tmp_path)


@pytest.mark.parametrize("halves", [False, True])
def test_nuswide(tmp_path, halves):
    source = trees.nuswide(tmp_path / "source", halves=halves)
    data = convert("nuswide10", source, tmp_path / "nus.npz")
    kept = [k for k in range(30) if k % 10]
    assert data.ids["text"].tolist() == kept
    assert data.class_names == ("sky", "water", "lake", "actor")
    np.testing.assert_array_equal(data.labels["text"][:, 1], [k % 2 == 0 for k in kept])
    np.testing.assert_array_equal(data.labels["text"][:, 2], [k % 3 == 0 for k in kept])
    np.testing.assert_array_equal(data.features["image"][:, 2], [k * 2 % 7 for k in kept])
    text = data.features["text"].toarray()
    assert text.shape == (27, 1000)
    assert text[kept.index(3)].sum() == 0  # a row without tags is a member
    assert np.flatnonzero(text[kept.index(5)]).tolist() == [5, 999]
    assert data.raw["image"][0] == "actor/0001_1000.jpg"
    assert read(tmp_path / "nus.npz").features["text"].nnz == data.features["text"].nnz


def test_nuswide_selection_and_untagged(tmp_path):
    source = trees.nuswide(tmp_path)
    assert convert("nuswide21", source).name == "nuswide21"
    assert nuswide.convert(source, n_concepts=2).class_names == ("sky", "water")


def test_nuswide_bad_label_is_reported(tmp_path):
    source = trees.nuswide(tmp_path, halves=True, bad_label=True)
    with pytest.warns(UserWarning, match=r"Labels_lake_Train\.txt, line 1: the label is '-1130179'"):
        convert("nuswide10", source)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("Groundtruth/AllLabels/Labels_sky.txt", "1\n0\n", "2 lines for 30 images"),
        ("NUS_WID_Tags/AllTags1k.txt", "0 1 0\n" * 30, "line 1: 3 digits; expected 1000"),
        ("NUS_WID_Tags/AllTags1k.txt", ("0 " * 1000 + "\n") * 20, "20 lines for 30 images; the file is truncated"),
        ("NUS_WID_Low_Level_Features/Low_Level_Features/BoW_int.dat", "1 2 x\n" * 30, "line 2: could not convert"),
        ("ImageList/TrainImagelist.txt", "unknown\\1.jpg\n", r"not in Imagelist\.txt, e\.g\. 'unknown/1\.jpg'"),
    ],
)
def test_nuswide_broken_files(tmp_path, file, content, message):
    source = trees.nuswide(tmp_path / "source")
    trees.write(source / file, content)
    with pytest.raises(ValueError, match=message):
        convert("nuswide10", source, tmp_path / "out.npz")
    assert not (tmp_path / "out.npz").exists()


def test_iapr(tmp_path):
    source = trees.iapr(tmp_path / "source")
    with pytest.warns(UserWarning, match="classes: got 3, the published count is 255"):
        data = convert("iapr-tc12-255", source, tmp_path / "iapr-tc12-255" / "features.npz")
    numbers = [*range(1, 11), 1000]
    assert data.ids["text"].tolist() == numbers
    assert data.class_names == ("sky", "man", "label 3")  # one name of the list is blank
    np.testing.assert_array_equal(data.labels["text"][:, 1], [k % 3 == 1 for k in numbers])
    assert data.labels["text"][:, 0].all()
    assert data.raw["image"][[0, -1]].tolist() == ["00/1.jpg", "01/1000.jpg"]
    assert data.features["image"].shape == (11, 512)
    with np.load(tmp_path / "iapr-tc12-255" / "features.npz") as file:
        assert file["words"].tolist() == ["café"[:3], "number", "really", "sun"]
        assert file["ehd"].shape == (11, 150)
    back = load_dataset("iapr-tc12-255", tmp_path)
    np.testing.assert_array_equal(back.features["text"].toarray(), np.ones((11, 4)))
    np.testing.assert_array_equal(back.features["image"], data.features["image"])
    assert (back.kind, back.split_sizes) == ("recomputed features", {"query": 2000})


@pytest.mark.slow
def test_the_words_are_those_of_the_prepared_file():
    """Every description of the collection gives the counts in the prepared file."""
    captions = read(shared_data("iapr-tc12") / "items.jsonl", image="image", text="caption_en")
    with np.load(shared_data("iapr-tc12-paper") / "features.npz") as file:
        words, ids = file["words"].tolist(), file["image_id"].tolist()
        counts, columns, starts = file["text_counts"], file["text_indices"], file["text_indptr"]
    made, matrix = iapr255.bag_of_words(captions.raw["text"].tolist())
    assert len(set(made) - set(words)) == 0
    assert len(made) > 0.97 * len(words)  # the file has descriptions of 374 more photographs
    row_of = {number: row for row, number in enumerate(ids)}
    for row, name in enumerate(captions.raw["image"].tolist()[:2000]):
        own = row_of[int(name.split("/")[1].removesuffix(".jpg"))]
        part = slice(starts[own], starts[own + 1])
        stored = {words[column]: n for column, n in zip(columns[part], counts[part], strict=True)}
        found = matrix[[row]].tocoo()
        mine = {made[column]: n for column, n in zip(found.coords[1], found.data, strict=True)}
        assert mine == {word: n for word, n in stored.items() if word in made}


def test_wiki(tmp_path):
    source = trees.wiki(tmp_path)
    with pytest.warns(UserWarning, match="training items: got 20, the published count is 2,173"):
        data = convert("wiki", source, tmp_path / "wiki.npz")
    assert data.class_names[0] == "art"
    np.testing.assert_array_equal(data.labels["image"].argmax(axis=1), [k % 10 for k in [*range(20), *range(10)]])
    training, query, _ = read(tmp_path / "wiki.npz").parts()
    assert training.ids["image"][0] == "trainset0-1.2"
    assert query.raw["image"][0] == "testsetimage0"
    np.testing.assert_array_equal(query.features["text"], data.features["text"][20:])


def test_wiki_refuses_a_class_from_zero_and_other_lengths(tmp_path):
    trees.wiki(tmp_path)
    trees.write(tmp_path / "testset_txt_img_cat.list", "a\tb\t0\n")
    with pytest.raises(ValueError, match=r"line 1.*a class 1\.\.10"):
        convert("wiki", tmp_path)
    trees.write(tmp_path / "testset_txt_img_cat.list", "a\tb\t1\n")
    with pytest.raises(ValueError, match=r"\[20, 1\] lines for \[20, 10\] rows"):
        convert("wiki", tmp_path)


def test_refuses(tmp_path):
    with pytest.raises(ValueError, match="no converter for 'coco'; there are wiki, iapr-tc12-255"):
        convert("coco", tmp_path)
    with pytest.raises(FileNotFoundError, match="no such folder"):
        convert("wiki", tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"raw_features\.mat does not exist"):
        convert("wiki", tmp_path)
    with pytest.raises(ValueError, match=r"ends in \.npz"):
        convert("wiki", tmp_path, tmp_path / "out.mat")
    with pytest.raises(TypeError, match="no option 'colour'; it has none"):
        convert("nuswide10", tmp_path, colour=1)


def _thin(path):
    from PIL import Image

    Image.new("1", (70_000, 8)).save(path, "PNG")


def _large(path):
    from little_world import huge_png

    path.write_bytes(huge_png(9000))


def _program(path):
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n")


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (_thin, "a side may have at most 65,500"),
        (_large, "more than the limit of 64,000,000"),
        (_program, "are programs"),
    ],
)
def test_pictures_of_official_files_are_bounded(tmp_path, write, reason):
    from modalhash.data.sets._official import features_of_files

    write(tmp_path / "im1.jpg")
    with pytest.raises(ReadError, match=rf"im1\.jpg: .*{reason}"):
        features_of_files([tmp_path / "im1.jpg"])


def test_a_picture_of_official_files_that_takes_too_long(tmp_path, monkeypatch):
    from PIL import Image

    from modalhash.data.sets._official import features_of_files

    Image.effect_noise((300, 300), 90).convert("RGB").save(tmp_path / "im1.jpg", progressive=True)
    assert features_of_files([tmp_path / "im1.jpg"])["gist"].any()
    monkeypatch.setattr("modalhash.core.pictures.MAX_SECONDS", -1.0)
    with pytest.raises(ReadError, match=r"im1\.jpg: .*not decoded in"):
        features_of_files([tmp_path / "im1.jpg"])
