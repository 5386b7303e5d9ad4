"""Encoders are found, saved and restored; what does not fit is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from pictures import as_bytes, scene
from scipy import sparse
from sklearn.exceptions import NotFittedError

from modalhash.core.files import DIGEST
from modalhash.encoders import (
    ENCODERS,
    Encoder,
    EncoderBase,
    HashingEncoder,
    ImageEncoder,
    ItemError,
    Precomputed,
    State,
    TfidfEncoder,
    get_encoder,
    load_encoder,
    save_encoder,
)
from modalhash.encoders.encoder import EncoderFileError, describe, mismatch

TEXTS = ["ein rotes Boot", "ein Haus an der Straße", "rote Häuser"]
MADE = {
    "image": (lambda: get_encoder("image", max_pixels=10**6), [as_bytes(scene())]),
    "tfidf": (lambda: get_encoder("tfidf", min_df=1).fit(TEXTS), TEXTS),
    "words": (lambda: get_encoder("tfidf", min_df=1, pieces=None).fit(TEXTS), TEXTS),
    "hashing": (lambda: get_encoder("hashing", columns=256), TEXTS),
    "precomputed": (lambda: get_encoder("precomputed", source="mine").fit(np.eye(3)), np.eye(3)),
}


class Lengths(EncoderBase):
    """One feature: the number of characters."""

    name = "lengths"
    dim = 1
    state = State()

    def encode(self, batch):
        return np.array([[len(text)] for text in batch], dtype=np.float32)


class NoEncoder:
    name = "none"


def values(rows) -> np.ndarray:
    return rows.toarray() if sparse.issparse(rows) else rows


@pytest.mark.parametrize("kind", MADE)
def test_saved_and_restored(kind, tmp_path):
    make, items = MADE[kind]
    encoder = make()
    assert isinstance(encoder, Encoder)
    save_encoder(encoder, tmp_path / "e")
    again = get_encoder(tmp_path / "e")
    assert type(again) is type(encoder)
    assert again.digest == encoder.digest
    assert again.state.config == encoder.state.config
    np.testing.assert_array_equal(values(again.encode(items)), values(encoder.encode(items)))
    assert describe(again) == {"name": encoder.name, "version": 1, "dim": encoder.dim, "digest": encoder.digest}
    json.dumps(dict(encoder.state.config))


def test_limits_are_no_part_of_the_digest():
    assert ImageEncoder(max_pixels=10).digest == ImageEncoder().digest
    assert HashingEncoder(columns=64).digest != HashingEncoder().digest
    assert Precomputed(dim=3, source="a").digest != Precomputed(dim=3, source="b").digest


def test_names_that_do_not_exist():
    with pytest.raises(ValueError, match="Did you mean 'tfidf'"):
        get_encoder("tf-idf")
    with pytest.raises(ValueError, match="no module 'nowhere_at_all'"):
        get_encoder("nowhere_at_all:Thing")
    with pytest.raises(ValueError, match="has no 'Thing'"):
        get_encoder("json:Thing")
    with pytest.raises(TypeError, match="expected a class"):
        get_encoder("json:dumps")
    with pytest.raises(TypeError, match="lacks version, reads, dim, state"):
        get_encoder(f"{__name__}:NoEncoder")
    with pytest.raises(TypeError, match="It takes columns, pieces"):
        get_encoder("hashing", column=3)


def test_own_class(tmp_path):
    encoder = get_encoder(f"{__name__}:Lengths")
    assert encoder.encode(["abc"]).tolist() == [[3]]
    save_encoder(encoder, tmp_path / "e")
    with pytest.raises(EncoderFileError, match="trust=True"):
        load_encoder(tmp_path / "e")
    assert type(load_encoder(tmp_path / "e", trust=True)) is Lengths


def test_damaged_folders(tmp_path):
    folder = tmp_path / "e"
    with pytest.raises(EncoderFileError, match="is missing"):
        load_encoder(folder)
    save_encoder(TfidfEncoder(min_df=1).fit(TEXTS), folder)
    config = folder / "encoder.json"
    whole = config.read_text(encoding="utf-8")
    config.write_text(whole.replace('"boot"', '"boat"', 1), encoding="utf-8")
    with pytest.raises(EncoderFileError, match="damaged or changed"):
        load_encoder(folder)
    whole = json.dumps({key: value for key, value in json.loads(whole).items() if key != DIGEST}, indent=1)
    for old, new, message in (
        ('"format": 1', '"format": 9', "reads up to 1"),
        ('"version": 1', '"version": 2', "version is 1, expected 2"),
        ('"boot"', '"boat"', "digest is"),
        ('"boot",', "", "incomplete"),
        ('"kind": "modalhash encoder"', '"kind": "x"', "not written by modalhash"),
        ('"config"', '"other"', "lacks config"),
        ("{", "", "not JSON"),
    ):
        assert old in whole
        config.write_text(whole.replace(old, new, 1), encoding="utf-8")
        with pytest.raises(EncoderFileError, match=message):
            load_encoder(folder)
    config.write_text(whole, encoding="utf-8")
    arrays = folder / "encoder.safetensors"
    arrays.write_bytes(arrays.read_bytes()[:-3])
    with pytest.raises(EncoderFileError, match="cannot be read"):
        load_encoder(folder)
    arrays.unlink()
    with pytest.raises(EncoderFileError, match="copy of the encoder is incomplete"):
        load_encoder(folder)


def test_mismatch_says_in_what():
    found = mismatch(HashingEncoder(columns=64), describe(HashingEncoder(columns=128)))
    assert found[0] == "dim is 64, expected 128"
    assert found[1].startswith("digest is ")
    assert not mismatch(ImageEncoder(), describe(ImageEncoder()))


def test_precomputed():
    with pytest.raises(NotFittedError, match="pass dim="):
        _ = Precomputed().dim
    encoder = Precomputed(dim=3)
    assert encoder.encode(np.eye(3, dtype=np.int64)).dtype == np.float32
    assert sparse.issparse(encoder.encode(sparse.eye_array(3, format="csr")))
    for bad, message in (
        ([[1, 2]], "expected"),
        ([[1, 2, np.nan]], "finite"),
        ([[1, 2, 1e300]], "finite"),
        ([["a", 1, 2]], "numbers"),
        ([[1], [1, 2, 3]], "numbers"),
    ):
        with pytest.raises(ItemError, match=message), np.errstate(over="ignore"):
            encoder.encode(bad)
    with pytest.raises(ValueError, match="have 2 features; expected 3"):
        encoder.fit(np.eye(2))


def test_all_names_lead_to_classes():
    from modalhash.encoders.encoder import encoder_class

    assert {encoder_class(name).name for name in ENCODERS} == set(ENCODERS) - {"text"}


def test_text_is_another_name_of_tfidf(tmp_path):
    encoder = get_encoder("text").fit(["a boat"])
    save_encoder(encoder, tmp_path)
    assert json.loads((tmp_path / "encoder.json").read_text(encoding="utf-8"))["encoder"] == encoder.name == "tfidf"
