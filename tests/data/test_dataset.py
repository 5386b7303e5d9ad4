"""Dataset and Split: what they hold, what they refuse."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import sparse

from modalhash.data import Dataset, Split


def small(n: int = 6, **changes) -> Dataset:
    labels = np.eye(3, dtype=np.uint8)[np.arange(n) % 3]
    content = {
        "features": {"image": np.arange(n * 2.0).reshape(n, 2), "text": sparse.csr_array(np.eye(n))},
        "labels": {"image": labels, "text": labels},
        "ids": {"image": np.array([f"i{k}" for k in range(n)]), "text": np.array([f"i{k}" for k in range(n)])},
        "name": "small",
    }
    return Dataset(**{**content, **changes})


def test_holds_what_it_is_given():
    data = small(raw={"text": [f"word {k}" for k in range(6)]}, provenance={"licence": "CC0"})
    assert data.modalities == ("image", "text")
    assert data.sizes == {"image": 6, "text": 6}
    assert data.labels["image"].dtype == bool
    assert isinstance(data.features["text"], sparse.csr_array)
    assert data.class_names == ("0", "1", "2")
    assert data.paired
    assert "CC0" in data.describe()
    assert repr(data) == "Dataset('small': image 6×2, text 6×6, 3 classes)"


def test_pairing_is_read_from_ids_not_from_lengths():
    data = small(ids={"image": np.arange(6), "text": np.arange(6)[::-1]})
    assert not data.paired
    assert data.take({"image": [0, 5], "text": [0, 5]}).paired


def test_ids_default_to_row_numbers():
    data = small(ids={})
    assert data.ids["image"].tolist() == list(range(6))


def test_take_follows_the_order_asked_for():
    part = small().take(["i4", "i1"])
    assert part.features["image"].tolist() == [[8, 9], [2, 3]]
    assert part.features["text"].toarray().argmax(axis=1).tolist() == [4, 1]
    assert part.labels["text"].argmax(axis=1).tolist() == [1, 1]


def test_rows_of_ids_in_the_order_asked_for():
    assert small().rows_of("text", ["i4", "i1"]).tolist() == [4, 1]
    assert small().rows_of("text", []).tolist() == []
    with pytest.raises(ValueError, match="no modality 'sound'"):
        small().rows_of("sound", ["i0"])


def test_select_rows_per_modality():
    part = small().select({"image": slice(0, 2), "text": np.array([5])})
    assert part.sizes == {"image": 2, "text": 1}


def test_only_keeps_the_split():
    split = Split({"image": ["i0"], "text": ["i0"]}, {"image": ["i1"], "text": ["i1"]})
    part = small(split=split).only("text")
    assert part.modalities == ("text",)
    assert part.parts().training.sizes == {"text": 1}


def test_raw_only_modality():
    data = Dataset({}, {"image": [[1, 0], [0, 1]]}, raw={"image": ["a.jpg", "b.jpg"]})
    assert data.sizes == {"image": 2}
    assert "raw" in repr(data)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"features": {"image": np.zeros((5, 2)), "text": np.zeros((6, 2))}}, ValueError, "6 rows of labels for 5"),
        ({"ids": {"image": list("aabcde"), "text": list("abcdef")}}, ValueError, "duplicate id.*'a'"),
        ({"ids": {"image": [0.5] * 6, "text": np.arange(6)}}, TypeError, "1-D array of int or str"),
        ({"ids": {"image": np.arange(6)}}, ValueError, "ids for 'image'"),
        ({"labels": {"image": np.full((6, 3), 2), "text": np.eye(3)[[0] * 6]}}, ValueError, "row 0, class 0 is 2"),
        ({"labels": {"image": np.zeros((6, 3)), "text": np.eye(3)[[0] * 6]}}, ValueError, "none of the 6 items"),
        ({"labels": {"image": np.eye(3)[[0] * 6]}}, ValueError, "labels for 'image'"),
        ({"labels": {"image": np.eye(6), "text": np.eye(3)[[0] * 6]}}, ValueError, "different numbers of classes"),
        ({"labels": {"image": np.ones(6), "text": np.ones(6)}}, ValueError, r"shape \(6,\)"),
        ({"class_names": ["a"]}, ValueError, "1 class names for 3"),
        ({"features": {"image": np.array([["a"]], dtype=object)}}, TypeError, "object array"),
        ({"features": {"image": np.array([["a"]])}}, TypeError, "real numbers"),
        ({"features": {"image": [[1.0]]}}, TypeError, "numpy array"),
        ({"features": np.zeros((6, 2))}, TypeError, "dict by modality"),
        ({"raw": {"image": ["a"]}}, ValueError, "1 raw items for 6 rows"),
        ({"raw": {"image": [None] * 6}}, TypeError, "expected a list of str"),
        ({"features": {}, "labels": {}, "ids": {}}, ValueError, "no modality"),
    ],
)
def test_refuses(changes, error, message):
    with pytest.raises(error, match=message):
        small(**changes)


def test_take_refuses_unknown_ids():
    with pytest.raises(ValueError, match=r"1 of 2 ids are not in the data set, e\.g\. 'zzz'"):
        small().take(["i0", "zzz"])
    with pytest.raises(TypeError, match="got ids of type int64"):
        small().take([1, 2])
    with pytest.raises(ValueError, match="no modality 'sound'"):
        small().take({"sound": ["i0"]})


def test_split_parts_and_default_database():
    split = Split({"image": ["i0", "i1"], "text": ["i2"]}, {"image": ["i5"], "text": ["i4"]})
    training, query, database = split.apply(small())
    assert training.sizes == {"image": 2, "text": 1}
    assert query.ids["text"].tolist() == ["i4"]
    assert database is training
    assert split.database_is_training


def test_split_refuses_a_query_in_the_database():
    with pytest.raises(ValueError, match=r"'image': 1 of 2 queries are also in the database, e\.g\. 3"):
        Split({"image": [1, 2, 3]}, {"image": [3, 4]})
    assert Split({"image": [1, 2, 3]}, {"image": [3, 4]}, disjoint=False).query["image"].tolist() == [3, 4]
    Split({"image": [3]}, {"image": [3]}, {"image": [1]})  # the database decides, not the training set


def test_split_refuses_other_modalities_and_duplicates():
    with pytest.raises(ValueError, match="query has the modalities 'text'"):
        Split({"image": [1]}, {"text": [2]})
    with pytest.raises(ValueError, match="duplicate"):
        Split({"image": [1, 1]}, {"image": [2]})


def test_data_set_without_a_split_says_so():
    with pytest.raises(ValueError, match="has no split"):
        small().parts()


@settings(deadline=None, max_examples=30)
@given(
    ids=st.lists(st.one_of(st.text(min_size=1, max_size=4)), min_size=3, max_size=12, unique=True).filter(
        lambda ids: len(set(np.array(ids).tolist())) == len(ids)  # numpy drops trailing null characters
    ),
    own_database=st.booleans(),
)
def test_split_survives_json(ids, own_database, tmp_path_factory):
    cut = len(ids) // 3
    database = {"text": ids[cut + 1 :]} if own_database else None
    split = Split({"text": ids[cut:]}, {"text": ids[:cut]}, database)
    path = tmp_path_factory.mktemp("split") / "split.json"
    split.save(path)
    back = Split.load(path)
    for part in ("training", "query", "database"):
        assert getattr(back, part)["text"].tolist() == getattr(split, part)["text"].tolist()
    assert back.database_is_training == split.database_is_training


def test_split_refuses_broken_files(tmp_path):
    path = tmp_path / "split.json"
    for content, message in [
        ('{"format": "modalhash-sp', "not a JSON file"),
        ("[]", "not a split"),
        ('{"format": "modalhash-split", "version": 9}', "version 9"),
        ('{"format": "modalhash-split", "version": 1, "query": {}}', "'training'"),
    ]:
        path.write_text(content)
        with pytest.raises(ValueError, match=message):
            Split.load(path)


def test_saved_split_is_plain_json(tmp_path):
    Split({"image": [1]}, {"image": [2]}).save(tmp_path / "s.json")
    assert json.loads((tmp_path / "s.json").read_text())["training"] == {"image": [1]}
    assert [path.name for path in tmp_path.iterdir()] == ["s.json"]
