from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from modalhash.core.codes import unpack_signs
from modalhash.methods import itq
from modalhash.methods.itq import ITQ
from shared_space import TOPICS, vectors

TRAINING = {"image": vectors(range(400), "image"), "text": vectors(range(300, 800), "text")}
NEW = np.arange(1000, 1200)


def codes_of(model):
    return model.transform({name: vectors(NEW, name) for name in ("image", "text")})


def distances(first, second):
    return np.bitwise_count(first[:, None] ^ second[None]).sum(axis=2)


def test_the_objective_never_rises_and_ends_where_codes_rest():
    for space in ("own", "shared"):
        model = ITQ(16, space=space, random_state=0).fit(TRAINING)
        assert list(model.objective_) == (["image", "text"] if space == "own" else ["shared"])
        for trace in model.objective_.values():
            assert np.all(np.diff(trace) <= 1e-9 * trace[0])
            assert trace[-1] < 0.97 * trace[0]


def test_in_a_shared_space_a_picture_finds_the_text_of_its_own_thing():
    codes = codes_of(ITQ(64, space="shared", random_state=0).fit(TRAINING))
    near = distances(codes["image"], codes["text"])
    first = near.argmin(axis=1)
    assert (first == np.arange(len(NEW))).mean() > 0.6  # chance: 1 in 200
    assert (NEW[first] % TOPICS == NEW % TOPICS).mean() > 0.95  # chance: 1 in 20
    within = distances(codes["image"], codes["image"])
    same = NEW[:, None] % TOPICS == NEW % TOPICS
    assert abs(near[same].mean() - within[same & ~np.eye(len(NEW), dtype=bool)].mean()) < 4, "no modality is farther"


def test_codes_of_spaces_of_their_own_say_nothing_across_modalities():
    codes = codes_of(ITQ(64, random_state=0).fit(TRAINING))
    first = distances(codes["image"], codes["text"]).argmin(axis=1)
    assert (NEW[first] % TOPICS == NEW % TOPICS).mean() < 0.3
    within = distances(codes["image"], codes["image"]) + 64 * np.eye(len(NEW), dtype=int)
    assert (NEW[within.argmin(axis=1)] % TOPICS == NEW % TOPICS).mean() > 0.95


def test_the_gap_between_modalities_is_in_no_bit():
    codes = codes_of(ITQ(32, space="shared", random_state=0).fit(TRAINING))
    means = {name: unpack_signs(values, 32).mean(axis=0) for name, values in codes.items()}
    assert np.abs(means["image"] - means["text"]).max() < 0.5
    assert np.abs(means["image"]).max() < 0.6


def test_many_features_give_the_same_codes_without_a_covariance_matrix(monkeypatch):
    rng = np.random.default_rng(0)
    X = sparse.random_array((200, 300), density=0.05, rng=rng, format="csr")
    expected = ITQ(12, random_state=0).fit({"text": X})
    monkeypatch.setattr(itq, "MAX_DENSE", 100)
    model = ITQ(12, random_state=0).fit({"text": X})
    assert np.bitwise_count(model.codes_["text"] ^ expected.codes_["text"]).mean() < 0.1
    np.testing.assert_allclose(model.objective_["text"][-1], expected.objective_["text"][-1], rtol=1e-3)


def test_one_space_takes_equal_widths_and_is_never_guessed():
    narrow = TRAINING | {"text": TRAINING["text"][:, :8]}
    with pytest.raises(ValueError, match=r"'image' has 32, 'text' has 8 features.*space='own'"):
        ITQ(8, space="shared").fit(narrow)
    model = ITQ(8, random_state=0).fit(TRAINING)
    assert not np.array_equal(model.functions_["image"], model.functions_["text"])


def test_more_bits_than_features_are_signs_in_a_frame():
    model = ITQ(48, space="shared", random_state=0).fit(TRAINING)
    assert model.functions_["image"].shape == (32, 48)
    codes = codes_of(model)
    first = distances(codes["image"], codes["text"]).argmin(axis=1)
    assert (NEW[first] % TOPICS == NEW % TOPICS).mean() > 0.95
