"""The real files: skipped where they are absent."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from modalhash.data import load_dataset, read
from shared_data import shared_data


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


def test_iapr_refuses_another_language():
    with pytest.raises(ValueError, match="'fr'; expected one of 'de', 'en'"):
        load_dataset("iapr-tc12", shared_data("iapr-tc12").parent, text="fr")


def test_manifest_of_captions():
    data = read(shared_data("iapr-tc12") / "items.jsonl", image="image", text="caption_en")
    assert data.sizes == {"image": 19626, "text": 19626}
    assert data.paired
    assert data.parts().query.sizes["text"] == 1962
