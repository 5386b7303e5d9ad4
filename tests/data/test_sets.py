"""Converters on miniature trees in the official layouts."""

from __future__ import annotations

import numpy as np
import official_trees as trees
import pytest
from scipy import sparse

from modalhash.data import ReadError, convert, read
from modalhash.data.sets import nuswide

pytestmark = pytest.mark.filterwarnings("ignore:.*published count")


def test_mirflickr(tmp_path):
    source = trees.mirflickr(tmp_path / "source")
    with pytest.warns(UserWarning, match="images: got 12, the published count is 25,000"):
        data = convert("mirflickr25k", source, tmp_path / "out" / "mir.npz", n_query=2)
    kept = [k for k in range(1, 13) if k % 4 and k % 5]
    assert data.ids["image"].tolist() == kept
    assert data.class_names == tuple(trees.MIR_LABELS)
    np.testing.assert_array_equal(data.labels["image"].argmax(axis=1), [k % 3 for k in kept])
    assert isinstance(data.features["text"], sparse.csr_array)
    np.testing.assert_array_equal(data.features["text"].toarray().argmax(axis=1), [k % 3 for k in kept])
    np.testing.assert_allclose(data.features["image"][:, 0], kept)  # image k has the edges of file k−1
    assert data.raw["text"][0] == "common1 rare1 straße"
    back = read(tmp_path / "out" / "mir.npz")
    assert back.sizes == data.sizes
    assert back.split.query["image"].tolist() == data.split.query["image"].tolist()
    assert any("20,015" in note for note in back.provenance["notes"])


def test_mirflickr_options(tmp_path):
    source = trees.mirflickr(tmp_path, edges=False)
    data = convert("mirflickr25k", source, keep_untagged=True, min_tag_count=1, n_query=1)
    assert data.ids["text"].tolist() == [k for k in range(1, 13) if k % 4]
    assert len(data.provenance["vocabulary"]) == 3 + 10 + 1
    assert "image" not in data.features
    assert data.raw["image"][0] == "im1.jpg"
    assert convert("mirflickr25k", source, text_width=2, n_query=1).features["text"].shape[1] == 2
    relevant = convert("mirflickr25k", source, labels="relevant", n_query=1, keep_untagged=True, image="paths", seed=1)
    assert relevant.class_names == ("sky",)


def test_mirflickr_pictures_even_grey_ones(tmp_path):
    data = convert("mirflickr25k", trees.mirflickr(tmp_path, edges=False, pictures=True), n_query=1)
    assert data.features["image"].shape == (7, 737)


@pytest.mark.parametrize("halves", [False, True])
def test_nuswide(tmp_path, halves):
    source = trees.nuswide(tmp_path / "source", halves=halves)
    data = convert("nuswide10", source, tmp_path / "nus.npz", n_query=3)
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
    two = convert("nuswide10", source, n_query=3, drop_untagged=True, image=None)
    assert 3 not in two.ids["text"]
    assert "image" not in two.features
    assert convert("nuswide21", source, n_query=3).name == "nuswide21"
    assert nuswide.convert(source, n_concepts=2, n_query=3).class_names == ("sky", "water")


def test_nuswide_bad_label_is_reported(tmp_path):
    source = trees.nuswide(tmp_path, halves=True, bad_label=True)
    with pytest.warns(UserWarning, match=r"Labels_lake_Train\.txt, line 1: the label is '-1130179'"):
        convert("nuswide10", source, n_query=3)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("Groundtruth/AllLabels/Labels_sky.txt", "1\n0\n", "2 lines for 30 images"),
        ("NUS_WID_Tags/AllTags1k.txt", "0 1 0\n" * 30, "line 1: 3 digits; expected 1000"),
        ("NUS_WID_Tags/AllTags1k.txt", ("0 " * 1000 + "\n") * 20, "20 lines for 30 images; the file is truncated"),
        ("NUS_WID_Low_Level_Features/Low_Level_Features/BoW_int.dat", "1 2 x\n" * 30, "line 2: could not convert"),
        ("ImageList/TrainImagelist.txt", "nobody\\1.jpg\n", r"not in Imagelist\.txt, e\.g\. 'nobody/1\.jpg'"),
    ],
)
def test_nuswide_broken_files(tmp_path, file, content, message):
    source = trees.nuswide(tmp_path / "source")
    trees.write(source / file, content)
    with pytest.raises(ValueError, match=message):
        convert("nuswide10", source, tmp_path / "out.npz", n_query=3)
    assert not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize("pictures", [False, True])
def test_iapr(tmp_path, pictures):
    source = trees.iapr(tmp_path / "source", pictures=pictures)
    with pytest.warns(UserWarning, match="classes: got 3, the published count is 255"):
        data = convert("iapr-tc12", source, tmp_path / "iapr.npz", n_query=2, min_count=2)
    assert data.ids["text"].tolist() == list(range(1, 12))
    assert data.class_names == ("sky", "man", "label 3")  # one name of the list is blank
    np.testing.assert_array_equal(data.labels["text"][:, 1], [k % 3 == 1 for k in range(1, 12)])
    assert data.labels["text"][:, 0].all()
    assert "café" in data.provenance["vocabulary"]
    assert data.raw["text"][0] == "Plaza a café number1 in the sun – really;"
    assert data.raw["image"][0] == "images/00/1.jpg"
    assert ("image" in data.features) == pictures
    assert read(tmp_path / "iapr.npz").class_names == data.class_names


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
    with pytest.raises(ValueError, match="no converter for 'coco'; there are wiki, iapr-tc12"):
        convert("coco", tmp_path)
    with pytest.raises(FileNotFoundError, match="no such folder"):
        convert("wiki", tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"raw_features\.mat is not there"):
        convert("wiki", tmp_path)
    with pytest.raises(ValueError, match=r"ends in \.npz"):
        convert("wiki", tmp_path, tmp_path / "out.mat")
    with pytest.raises(TypeError, match="no option 'colour'; it has image, drop_untagged"):
        convert("nuswide10", tmp_path, colour=1)
    with pytest.raises(ValueError, match="n_query is 99; there are 27 items"):
        convert("nuswide10", trees.nuswide(tmp_path), n_query=99)


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
        features_of_files([tmp_path / "im1.jpg"], 1)


def test_a_picture_of_official_files_that_takes_too_long(tmp_path, monkeypatch):
    from PIL import Image

    from modalhash.data.sets._official import features_of_files

    Image.effect_noise((300, 300), 90).convert("RGB").save(tmp_path / "im1.jpg", progressive=True)
    assert features_of_files([tmp_path / "im1.jpg"], 1).any()
    monkeypatch.setattr("modalhash._decoding.MAX_SECONDS", -1.0)
    with pytest.raises(ReadError, match=r"im1\.jpg: .*not decoded in"):
        features_of_files([tmp_path / "im1.jpg"], 1)
