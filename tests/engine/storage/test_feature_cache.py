from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from modalhash.encoders import get_encoder
from modalhash.engine.storage.folder import FEATURES
from modalhash.engine.storage.ingest import FeatureCache, encode_cached


class Counting:
    """An encoder of pictures that remembers what it encoded."""

    name, version, reads, dim, digest = "counting", 1, "image", 3, "a digest"

    def __init__(self):
        self.seen = []

    def encode(self, batch):
        self.seen += [Path(one).name for one in batch]
        if any(Path(one).read_bytes() == b"bad" for one in batch):
            raise ValueError("cannot be read")
        return np.array([[len(Path(one).read_bytes()), 1, 2] for one in batch], dtype=np.float32)


class Bytes(Counting):
    """The same for the bytes of pictures."""

    def encode(self, batch):
        return np.array([[len(one), 1, 2] for one in batch], dtype=np.float32)


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for name, data in (("a", b"1"), ("b", b"22"), ("c", b"bad"), ("d", b"4444")):
        (folder / name).write_bytes(data)
    return sorted(folder.iterdir())


def test_a_file_is_encoded_once_until_it_changes(files, tmp_path):
    encoder, cache = Counting(), FeatureCache(tmp_path)
    first = encode_cached(encoder, files, cache, cache, workers=1)
    assert first.ok_rows.tolist() == [0, 1, 3]
    assert [failure.row for failure in first.failures] == [2]
    encoder.seen.clear()
    again = encode_cached(encoder, files, cache, cache, workers=1)
    assert set(encoder.seen) == {"c"}
    assert np.array_equal(first.features, again.features)
    assert [failure.row for failure in again.failures] == [2]
    files[1].write_bytes(b"55555")
    os.utime(files[0], ns=(1, 1))
    encoder.seen.clear()
    changed = encode_cached(encoder, files, cache, cache, workers=1)
    assert set(encoder.seen) == {"a", "b", "c"}
    assert changed.features[:, 0].tolist() == [1, 5, 4]


def test_another_encoder_has_rows_of_its_own(files, tmp_path):
    cache = FeatureCache(tmp_path)
    encode_cached(Counting(), files[:1], cache, cache, workers=1)
    other = Counting()
    other.digest = "another"
    encode_cached(other, files[:1], cache, cache, workers=1)
    assert other.seen == ["a"]


def test_what_is_kept_elsewhere_is_what_the_new_engine_needs(files, tmp_path):
    old, new = FeatureCache(tmp_path / "old"), FeatureCache(tmp_path / "new")
    for folder in ("old", "new"):
        (tmp_path / folder).mkdir()
    encode_cached(Counting(), files[:2], None, old, workers=1)
    encoder = Counting()
    encode_cached(encoder, files[1:2], old, new, workers=1)
    assert encoder.seen == []
    encode_cached(encoder, files[:2], new, None, workers=1)
    assert encoder.seen == ["a"]


@pytest.mark.parametrize("damage", [b"", b"not a database at all, but long enough to look like one" * 9])
def test_a_damaged_cache_costs_time_and_nothing_else(files, tmp_path, damage):
    (tmp_path / FEATURES).write_bytes(damage)
    cache, encoder = FeatureCache(tmp_path), Counting()
    assert encode_cached(encoder, files[:1], cache, cache, workers=1).features.tolist() == [[1, 1, 2]]


def test_texts_and_bytes_are_not_kept(tmp_path):
    cache = FeatureCache(tmp_path)
    encode_cached(get_encoder("hashing", columns=16), ["a red boat"], cache, cache)
    encode_cached(Bytes(), [b"12"], cache, cache)
    assert not (tmp_path / FEATURES).exists()
