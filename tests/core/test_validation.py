from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from scipy import sparse

from broken_sparse import BROKEN, whole
from modalhash import AMSH, RLH, TrainingItems
from modalhash.core import validation
from modalhash.core.typing import PerModality
from modalhash.data import Dataset
from modalhash.encoders import Precomputed, encode_items
from modalhash.engine.search.query import encode_features


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2GB", 2_000_000_000), ("512 MiB", 512 * 2**20), ("1.5k", 1500), ("7", 7), (123, 123), (None, None)],
)
def test_memory_is_read_from_text(text, expected):
    assert validation.check_memory(text) == expected


@pytest.mark.parametrize("value", ["", "GB", "2 parsecs", 0, -1, 2.5])
def test_other_memory_is_refused(value):
    with pytest.raises((ValueError, TypeError), match="memory_limit is"):
        validation.check_memory(value)


X = {"image": np.ones((4, 2)), "text": np.ones((3, 5))}


def test_pairs():
    assert validation.check_pairs(None, X) is None
    aligned = validation.check_pairs("aligned", {"a": np.ones((3, 1)), "b": np.ones((3, 1))})
    np.testing.assert_array_equal(aligned, [[0, 0], [1, 1], [2, 2]])
    np.testing.assert_array_equal(validation.check_pairs([[3, 0]], X), [[3, 0]])


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ("aligned", "'image': 4, 'text': 3"),
        (np.ones((2, 3), dtype=int), r"shape \(2, 3\); expected integers of shape"),
        (np.ones((2, 2)), "array of float64"),
        ([[0, 3]], "row numbers of 'text' go from 3 to 3; it has 3 items"),
        ([[-1, 0]], "row numbers of 'image'"),
        ([[0, 0], [0, 1]], "an item of 'image' occurs in more than one pair"),
    ],
)
def test_wrong_pairs_are_refused(pairs, message):
    with pytest.raises(ValueError, match=message):
        validation.check_pairs(pairs, X)


def test_float32_stays_and_everything_else_becomes_float64():
    for dtype in (np.float16, np.int8, bool, np.float64):
        assert validation.check_features({"a": np.ones((2, 2), dtype=dtype)})["a"].dtype == np.float64
    single = np.ones((2, 2), dtype=np.float32)
    assert validation.check_features({"a": single})["a"] is single
    doubled = sparse.coo_array(([1.0, 1.0], ([0, 0], [0, 0])), shape=(2, 2))
    clean = validation.check_features({"a": doubled})["a"]
    assert clean.format == "csr"
    assert clean.data.tolist() == [2.0]


def test_nan_is_found_in_sparse_and_late_rows():
    values = np.zeros((2_000_000, 1))
    values[1_999_999] = np.nan
    with pytest.raises(ValueError, match="row 1999999, feature 0"):
        validation.check_features({"a": values})
    with pytest.raises(ValueError, match="row 1, feature 2"):
        validation.check_features({"a": sparse.csr_array(np.array([[1.0, 0, 0], [0, 3, np.inf]]))})


def test_equal_items_are_noticed_in_any_form():
    equal = np.tile([0.0, 2.0], (5, 1))
    for convert in (np.asarray, sparse.csr_array):
        with pytest.raises(ValueError, match="'a': all 5 items are equal"):
            validation.check_varied({"a": convert(equal)})
        other = equal.copy()
        other[4, 0] = 1
        validation.check_varied({"a": convert(other)})


@pytest.mark.parametrize("kind", ["csr", "csc", "bsr", "coo", "lil", "dok", "dia"])
def test_whole_sparse_matrices_pass_and_are_not_touched(kind):
    matrix = whole(kind)
    before = matrix.toarray()
    validation.check_sparse(matrix, "x")
    assert matrix.format == kind
    np.testing.assert_array_equal(matrix.toarray(), before)


def test_room_that_scipy_keeps_for_more_values_is_fine():
    matrix = whole()
    matrix.data, matrix.indices = np.append(matrix.data, 0), np.append(matrix.indices, 10**6)
    validation.check_sparse(matrix, "x")


@pytest.mark.parametrize("name", BROKEN)
def test_broken_sparse_matrices_are_refused(name):
    with pytest.raises(ValueError, match=r"^x: a broken sparse matrix: .*(pointers|indices|index).*Rebuild it"):
        validation.check_sparse(BROKEN[name](), "x")


def test_sparse_arrays_of_one_dimension_are_refused():
    with pytest.raises(ValueError, match=r"^x: got a sparse array of shape \(3,\)"):
        validation.check_sparse(sparse.coo_array(np.ones(3)), "x")


FITTED = AMSH(n_bits=4, n_anchors=5, random_state=0).fit({"a": whole()}, {"a": whole().toarray()})
ENTRANCES = {
    "fit, features": lambda bad: AMSH(n_bits=4).fit({"a": bad}, {"a": whole().toarray()}),
    "fit, labels": lambda bad: AMSH(n_bits=4).fit({"a": whole()}, {"a": bad}),
    "fit of rlh, labels": lambda bad: RLH(n_bits=4).fit({"a": whole()}, {"a": bad}),
    "transform": lambda bad: FITTED.transform({"a": bad}),
    "decision_function": lambda bad: FITTED.decision_function({"a": bad}),
    "Items, features": lambda bad: TrainingItems({"a": bad}),
    "Items, labels": lambda bad: TrainingItems({"a": whole()}, {"a": bad}),
    "Dataset, features": lambda bad: Dataset({"a": bad}),
    "Dataset, labels": lambda bad: Dataset({"a": whole()}, {"a": bad}),
    "encode_items": lambda bad: encode_items(Precomputed(dim=6), bad),
    "Precomputed.fit": lambda bad: Precomputed().fit(bad),
    "Precomputed.encode": lambda bad: Precomputed(dim=6).encode(bad),
    "query": lambda bad: encode_features(FITTED, Precomputed(), "a", bad, asymmetric=False),
}


@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize("name", ["csr, column too large", "csr, column negative", "csc, pointers beyond the end"])
def test_every_entrance_checks_sparse_matrices(entrance, name):
    with pytest.raises(ValueError, match="a broken sparse matrix"):
        ENTRANCES[entrance](BROKEN[name]())


@pytest.mark.parametrize(
    ("hint", "good", "bad"),
    [
        (validation.Count, [1, np.int64(7)], [0, 2.5, True, None]),
        (validation.Positive | None, [0.1, None], [0, -1, np.inf, "much"]),
        (validation.Share, [0, 1], [1.01, -0.1]),
        (validation.NonNegative | Literal["auto"], ["auto", 0.0], ["large", -1, None]),
        (Literal["rbf", None], ["rbf", None], ["linear", 1]),
        (PerModality[Literal["rbf", None]], ["rbf", None, {"image": None}], ["linear", {"image": "linear"}]),
        (PerModality[validation.Count] | None, [None, 3, {"image": 1}], [0, {"image": 0}]),
        (str, ["anything", 7], []),
    ],
)
def test_a_declared_type_says_which_values_are_valid(hint, good, bad):
    for value in good:
        validation.check_type(hint, value, "alpha")
    for value in bad:
        with pytest.raises((ValueError, TypeError), match=r"^alpha is"):
            validation.check_type(hint, value, "alpha")
