"""Many items: same result in any batches and threads, bad ones reported and passed over."""

from __future__ import annotations

import numpy as np
import pytest
from pictures import as_bytes, scene
from scipy import sparse
from sklearn.exceptions import NotFittedError

from modalhash.encoders import (
    EncoderBase,
    HashingEncoder,
    ImageEncoder,
    ItemError,
    Precomputed,
    State,
    TfidfEncoder,
    encode_items,
)


class Numbers(EncoderBase):
    """Texts that are numbers."""

    name = "numbers"
    dim = 1
    state = State()
    parallel = True

    def encode(self, batch):
        return np.array([[float(text)] for text in batch], dtype=np.float32)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_bad_items_are_found_in_any_batches(workers, batch_size):
    items = [str(i) for i in range(23)]
    items[3] = items[4] = items[22] = "x"
    features, ok, failures = encode_items(Numbers(), items, batch_size=batch_size, workers=workers)
    assert ok.tolist() == [i for i in range(23) if i not in (3, 4, 22)]
    assert features[:, 0].tolist() == ok.tolist()
    assert [failure.row for failure in failures] == [3, 4, 22]
    assert str(failures[0]).startswith("x: could not convert")


def test_progress_and_names():
    steps = []
    where = [f"list.csv, line {i}" for i in range(2, 7)]
    done = encode_items(Numbers(), ["1", "2", "y", "4", "5"], where=where, batch_size=2, progress=steps.append)
    assert [(step.stage, step.step, step.total) for step in steps] == [("encode: numbers", n, 5) for n in (2, 4, 5)]
    assert done.failures[0].where == "list.csv, line 4"
    with pytest.raises(ValueError, match="5 items and 1 entries"):
        encode_items(Numbers(), ["1"] * 5, where=["a"])


@pytest.mark.parametrize("workers", [1, 3])
def test_strict_stops_at_the_first_in_order(workers):
    items = ["1", "2", "b", "3", "a"]
    with pytest.raises(ItemError, match="line 3: could not convert"):
        encode_items(
            Numbers(), items, where=[f"line {i + 1}" for i in range(5)], strict=True, batch_size=1, workers=workers
        )


def test_pictures_on_disk(tmp_path):
    good = as_bytes(scene(), "JPEG")
    (tmp_path / "a.jpg").write_bytes(good)
    (tmp_path / "cut.jpg").write_bytes(good[: len(good) // 2])
    (tmp_path / "empty.jpg").write_bytes(b"")
    items = [tmp_path / name for name in ("a.jpg", "cut.jpg", "empty.jpg", "gone.jpg", "a.jpg")]
    features, ok, failures = encode_items(ImageEncoder(), items, batch_size=2, workers=2)
    assert ok.tolist() == [0, 4]
    np.testing.assert_array_equal(features[0], features[1])
    assert [failure.where for failure in failures] == [str(item) for item in items[1:4]]
    assert failures[0].reason == "the file is truncated"
    assert failures[1].reason == "the file is empty (0 bytes)"
    assert failures[2].reason == "no such file"


def test_texts_as_csr():
    features, ok, failures = encode_items(HashingEncoder(columns=64), ["Boot", "", "Haus"], batch_size=1)
    assert sparse.issparse(features)
    assert (features.shape, features.dtype, ok.tolist()) == ((2, 64), np.float32, [0, 2])
    assert str(failures[0]) == "item 1: the text is empty"


def test_rows_of_arrays():
    values = np.random.default_rng(0).normal(size=(10, 3))
    values[4, 1] = np.nan
    encoder = Precomputed(dim=3)
    for items in (values, sparse.csr_array(values), list(values)):
        features, ok, failures = encode_items(encoder, items, batch_size=4)
        assert ok.tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 9]
        assert failures[0].where == "item 4"
        found = features.toarray() if sparse.issparse(features) else features
        np.testing.assert_array_equal(found, values[ok].astype(np.float32))


def test_nothing_and_nothing_good():
    assert encode_items(Numbers(), []).features.shape == (0, 1)
    features, ok, failures = encode_items(Numbers(), ["a", "b"])
    assert (features.shape, len(ok), len(failures)) == ((0, 1), 0, 2)
    assert features.dtype == np.float32


def test_faults_of_the_encoder_are_not_blamed_on_items(monkeypatch):
    with pytest.raises(NotFittedError, match="call fit"):
        encode_items(TfidfEncoder(), ["a"])
    monkeypatch.setattr(Numbers, "encode", lambda self, batch: np.zeros((len(batch), 2)))
    with pytest.raises(TypeError, match=r"returned float64 \(1, 2\); expected float32 \(1, 1\)"):
        encode_items(Numbers(), ["1"])
    monkeypatch.setattr(Numbers, "encode", lambda self, batch: {}["key"])
    with pytest.raises(KeyError):
        encode_items(Numbers(), ["1", "2"], batch_size=1, workers=2)


@pytest.mark.slow
@pytest.mark.parametrize("strict", [False, True])
def test_processes_give_the_same(monkeypatch, strict):
    monkeypatch.setattr("modalhash.encoders.encode.PROCESSES_FROM", 1)
    contents = [as_bytes(scene(60 + i, 90), "JPEG") for i in range(5)]
    contents[3] = b"no picture"
    if strict:
        with pytest.raises(ItemError, match="item 3: not a picture"):
            encode_items(ImageEncoder(), contents, batch_size=2, workers=2, strict=True)
        return
    features, ok, failures = encode_items(ImageEncoder(), contents, batch_size=2, workers=2)
    np.testing.assert_array_equal(features, ImageEncoder().encode([contents[row] for row in ok]))
    assert ok.tolist() == [0, 1, 2, 4]
    assert str(failures[0]) == "item 3: not a picture, or of a kind that Pillow cannot read"
