"""The real files: skipped where they are absent."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from modalhash.data import load_dataset, read, with_split
from shared_data import shared_data


@pytest.mark.slow
def test_wiki_reads_alike_from_every_file():
    folder = shared_data("wiki")
    npz, v73, v5 = (read(folder / name) for name in ("wiki.npz", "wiki-v73.mat", "wiki-v5.mat"))
    assert not v5.labels
    for name in ("image", "text"):
        np.testing.assert_array_equal(npz.features[name], v73.features[name])
        np.testing.assert_array_equal(npz.features[name], v5.features[name])
        np.testing.assert_array_equal(npz.labels[name], v73.labels[name])
    for data in (npz, v73, v5):
        assert data.parts().training.sizes == {"image": 2173, "text": 2173}
        assert data.parts().query.sizes == {"image": 693, "text": 693}


def test_named_wiki():
    data = load_dataset("wiki", shared_data("wiki").parent)
    assert data.features["image"].shape == (2866, 128)
    assert data.class_names[0] == "art"
    training = data.parts().training
    assert training.labels["text"].sum(axis=0).tolist() == [138, 272, 244, 248, 202, 178, 186, 144, 214, 347]


def test_six_views():
    folder = shared_data("mfeat")
    data = read(folder / "mfeat-six-views.mat")
    assert {name: values.shape[1] for name, values in data.features.items()} == {
        "view1": 240, "view2": 76, "view3": 216, "view4": 47, "view5": 64, "view6": 6,
    }  # fmt: skip
    assert data.labels["view1"].sum(axis=0).tolist() == [200] * 10
    named = load_dataset("mfeat", folder.parent)
    assert named.modalities == ("pix", "fou", "fac", "zer", "kar", "mor")
    assert named.parts().training.sizes["mor"] == 1500
    np.testing.assert_array_equal(named.features["pix"], data.features["view1"])


@pytest.mark.parametrize("text", ["de", "en"])
def test_iapr(text):
    data = load_dataset("iapr-tc12", shared_data("iapr-tc12").parent, text=text)
    assert data.features["image"].dtype == np.float32
    assert isinstance(data.features["text"], sparse.csr_array)
    assert data.features["text"].shape == (19626, 2912)
    assert data.parts().query.sizes == {"image": 1962, "text": 1962}
    assert len(data.class_names) == 291
    assert data.raw["image"][0].endswith(".jpg")
    assert any("not comparable" in note for note in data.provenance["notes"])
    assert data.kind == "substitute"
    assert data.name == ("iapr-tc12" if text == "de" else "iapr-tc12:en")


def test_iapr_refuses_another_language():
    with pytest.raises(ValueError, match="'fr'; expected one of 'de', 'en'"):
        load_dataset("iapr-tc12", shared_data("iapr-tc12").parent, text="fr")


@pytest.mark.parametrize(
    ("name", "image", "text", "parts", "classes"),
    [
        ("mirflickr25k", 150, 500, (15902, 836, 15902), 24),
        ("mirflickr25k:full", 512, 1386, (18015, 2000, 18015), 24),
        ("mirflickr25k:cnn", 1280, 1386, (10000, 2000, 18015), 24),
        ("iapr-tc12-255", 512, 2928, (17995, 2000, 17995), 255),
        ("iapr-tc12-255:cnn", 1280, 2928, (17995, 2000, 17995), 255),
    ],
)
def test_the_papers_data(name, image, text, parts, classes):
    folder = "mirflickr" if name.startswith("mir") else "iapr-tc12-paper"
    data = load_dataset(name, shared_data(folder).parent)
    assert data.name == name
    assert data.kind == "recomputed features"
    assert data.widths == {"image": image, "text": text}
    found = with_split(data, seed=0).parts()
    for part, n in zip(found, parts, strict=True):
        assert part.sizes == {"image": n, "text": n}
        assert {key: (values.shape, values.dtype) for key, values in part.features.items()} == {
            "image": ((n, image), np.float32),
            "text": ((n, text), np.float32),
        }
    assert len(data.class_names) == classes
    assert (found.training is found.database) == (parts[0] == parts[2])


def test_paper_rows_follow_from_the_number_of_tags():
    folder = shared_data("mirflickr")
    with np.load(folder / "features.npz") as file:
        stored = file["image_id"][file["paper_rows"]]
    np.testing.assert_array_equal(load_dataset("mirflickr25k", folder.parent).ids["text"], stored)


def test_usable_rows_have_a_word_and_a_label():
    folder = shared_data("iapr-tc12-paper")
    with np.load(folder / "features.npz") as file:
        stored, counts = file["image_id"][file["usable_rows"]], file["text_counts"]
    data = load_dataset("iapr-tc12-255", folder.parent)
    np.testing.assert_array_equal(data.ids["text"], stored)
    assert data.features["text"].data.max() == counts.max() > 1


def test_network_features_are_put_back_from_bytes():
    folder = shared_data("mirflickr")
    data = load_dataset("mirflickr25k", folder.parent, layout="cnn")
    with np.load(folder / "cnn.npz") as file:
        row = file["low"] + file["step"] * file["values"][3].astype(np.float32)
    np.testing.assert_array_equal(data.features["image"][3], row)


def test_manifest_of_captions():
    data = read(shared_data("iapr-tc12") / "items.jsonl", image="image", text="caption_en")
    assert data.sizes == {"image": 19626, "text": 19626}
    assert data.paired
    assert data.parts().query.sizes["text"] == 1962
