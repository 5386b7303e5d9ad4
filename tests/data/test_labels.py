"""Labels as text and as a matrix."""

from __future__ import annotations

import numpy as np
import pytest

from modalhash.data import label_matrix, label_names, parse_labels


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (None, ()),
        ("", ()),
        (" ; |", ()),
        ("a;b|c", ("a", "b", "c")),
        (" a ; b ; a", ("a", "b")),
        (["a", " b", "a", ""], ("a", "b")),
        ((3, "x"), ("3", "x")),
        (7, ("7",)),
        (7.0, ("7",)),
        (float("nan"), ()),
        (["a", None], ("a",)),
    ],
)
def test_parse(value, names):
    assert parse_labels(value) == names


@pytest.mark.parametrize("value", [{"x": 1}, True, 0.5, float("inf"), [["a"]], [{"a": 1}]])
def test_parse_refuses(value):
    with pytest.raises(ValueError, match="expected a list of names"):
        parse_labels(value)


def test_matrix():
    rows = [("b", "a"), (), ("c", "c")]
    names = label_names(rows)
    assert names == ["a", "b", "c"]
    np.testing.assert_array_equal(label_matrix(rows, names), [[1, 1, 0], [0, 0, 0], [0, 0, 1]])
    assert label_matrix([], names).shape == (0, 3)
    assert label_matrix(rows, names).dtype == bool
    with pytest.raises(KeyError):
        label_matrix([["d"]], names)
