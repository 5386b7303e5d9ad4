"""Frames in the place of arrays: features and labels of every method."""

from __future__ import annotations

import re
import sys

import numpy as np
import pyarrow as pa
import pytest

from modalhash import AMSH, TrainingItems, evaluate, load
from modalhash.core.frames import Frame, is_frame
from modalhash.core.imports import MissingExtraError, install_line
from modalhash.core.validation import check_features, check_labels
from modalhash.evaluation import Protocol

datasets = pytest.importorskip("datasets", reason="datasets is not installed (extra test-all)")
pd = pytest.importorskip("pandas", reason="pandas is not installed (extra test-all)")
pl = pytest.importorskip("polars", reason="polars is not installed (extra test-all)")

VALUES = np.random.default_rng(0).normal(size=(5, 3))
COLUMNS = {name: VALUES[:, at] for at, name in enumerate("abc")}
PANDAS = pd.DataFrame(COLUMNS)

FEATURES = {
    "pandas": PANDAS,
    "pandas, nullable": PANDAS.astype("Float64"),
    "pandas, sparse": PANDAS.astype(pd.SparseDtype(float, 0.0)),
    "pandas, sparse around NaN": PANDAS.astype(pd.SparseDtype(float)),
    "pandas, a column of arrays": pd.DataFrame({"e": list(VALUES)}),
    "pandas, a series of lists": pd.Series(VALUES.tolist()),
    "pandas, numbered columns": pd.DataFrame(VALUES),
    "polars": pl.DataFrame(COLUMNS),
    "polars, lists": pl.DataFrame({"e": VALUES.tolist()}),
    "polars, arrays": pl.DataFrame({"e": VALUES}),
    "polars, a series": pl.Series("e", VALUES.tolist()),
    "polars, lists and numbers": pl.DataFrame({"e": VALUES[:, :2], "c": VALUES[:, 2]}),
    "arrow": pa.table(COLUMNS),
    "arrow, a batch": pa.table(COLUMNS).to_batches()[0],
    "arrow, lists": pa.table({"e": pa.array(VALUES.tolist())}),
    "hugging face": datasets.Dataset.from_dict({"e": VALUES.tolist()}),
}


@pytest.mark.parametrize("frame", FEATURES.values(), ids=FEATURES)
def test_features(frame):
    found = check_features({"x": frame})["x"]
    np.testing.assert_array_equal(found.toarray() if hasattr(found, "toarray") else found, VALUES)


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame])
def test_float32_stays_and_integers_and_truth_values_are_numbers(make):
    single = make({"a": np.ones(3, dtype=np.float32), "b": np.zeros(3, dtype=np.float32)})
    assert check_features({"x": single})["x"].dtype == np.float32
    mixed = make({"a": [1, 2, 3], "b": [True, False, True]})
    assert check_features({"x": mixed})["x"].tolist() == [[1, 1], [2, 0], [3, 1]]


def with_nan():
    frame = PANDAS.copy()
    frame.iloc[2, 1] = np.nan
    return frame


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (with_nan(), r"'x': row 2 \(counted from 0\), column 'b' is NaN or infinite"),
        (with_nan().set_index(pd.Index(list("vwxyz"))), r"row 2 \(counted from 0; index 'x'\), column 'b'"),
        (pl.DataFrame({"a": [1, None]}), r"row 1 \(counted from 0\), column 'a' is NaN"),
        (pd.DataFrame({"a": pd.array([1, None], dtype="Int64")}), r"row 1 .*column 'a' is NaN"),
        (pl.DataFrame({"e": [[1.0, 2.0], [1.0, None]]}), r"row 1 .*column 'e\[1\]' is NaN"),
        (pl.DataFrame({"e": [[1.0, 2.0], [1.0]]}), r"row 1 .*column 'e' has 1 numbers, row 0 has 2"),
        (pl.DataFrame({"e": [[1.0, 2.0], None]}), r"row 1 .*column 'e' is empty; expected a list of numbers"),
        (
            pd.DataFrame({"a": [1.0], "name": ["b"]}),
            r"column 'name' of a pandas DataFrame holds texts; .*frame\[\['a'\]\]",
        ),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "two columns are called 'a'; rename one"),
        (pl.LazyFrame({"a": [1.0]}), r"'x' is a polars LazyFrame, which holds no rows yet; pass its \.collect\(\)"),
        (pd.Series([1.0, 2.0]), "one column of numbers"),
        (pd.DataFrame(), "a pandas DataFrame without columns"),
        (
            pl.DataFrame({"day": pl.date_range(pl.date(2024, 1, 1), pl.date(2024, 1, 2), eager=True)}),
            "holds no numbers",
        ),
    ],
)
def test_errors_name_row_and_column(frame, message):
    with pytest.raises((TypeError, ValueError), match=message):
        check_features({"x": frame})


def labels_of(image, text):
    items = {"image": np.eye(len(image)), "text": np.eye(len(text))}
    return check_labels({"image": image, "text": text}, items, unlabelled="allow")


@pytest.mark.filterwarnings("ignore:.*have no label")
@pytest.mark.parametrize(
    ("image", "text"),
    [
        (pd.Series(["a", None, "a;b"]), pl.Series([["c"], [], ["b", "a"]])),
        (pd.Series(["a", None, "a|b"], dtype="object"), pd.DataFrame({"y": ["c", np.nan, "a; b"]})),
        (pd.Series([["a"], None, {"b", "a"}]), pa.table({"y": [["c"], None, ["a", "b"]]})),
    ],
)
def test_names_are_spread_over_the_classes_of_all_modalities(image, text):
    found = labels_of(image, text)
    assert found["image"].astype(int).tolist() == [[1, 0, 0], [0, 0, 0], [1, 1, 0]]
    assert found["text"].astype(int).tolist() == [[0, 0, 1], [0, 0, 0], [1, 1, 0]]


@pytest.mark.filterwarnings("ignore:.*have no label")
@pytest.mark.parametrize(
    "column",
    [
        pd.Series(["x", "y", None], dtype="category"),
        pl.Series(["x", "y", None], dtype=pl.Categorical),
        pl.Series(["x", "y", None], dtype=pl.Enum(["x", "y"])),
        pd.Series([0, 1, np.nan]),
        pl.Series([0, 1, None]),
        datasets.Dataset.from_dict(
            {"y": [0, 1, -1]}, features=datasets.Features({"y": datasets.ClassLabel(names=["x", "y"])})
        ),
    ],
    ids=["pandas category", "polars category", "enum", "floats of pandas", "integers", "ClassLabel"],
)
def test_one_label_or_none(column):
    assert labels_of(column, column)["image"].astype(int).tolist() == [[1, 0], [0, 1], [0, 0]]


def test_lists_of_class_labels():
    features = datasets.Features({"y": datasets.List(datasets.ClassLabel(names=["cat", "dog"]))})
    data = datasets.Dataset.from_dict({"y": [[0, 1], [1]]}, features=features)
    assert labels_of(data, pd.Series(["dog", "cow"]))["image"].astype(int).tolist() == [[1, 0, 1], [0, 0, 1]]


def test_columns_of_0_and_1_are_joined_by_name():
    image = pd.DataFrame({"a": [0, 1], "b": [1, 1]})
    text = pl.DataFrame({"b": [True, False], "a": [False, True]})
    assert labels_of(image, text)["text"].astype(int).tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize(
    ("image", "text", "message"),
    [
        (pd.DataFrame({"a": [0], "b": [1]}), pd.DataFrame({"a": [0], "c": [1]}), "only one has 'b', 'c'"),
        (pd.DataFrame({"a": [0], "b": [2]}), pd.DataFrame({"a": [0], "b": [1]}), r"'image'.*row 0 .*column 'b' is 2"),
        (pd.DataFrame({"a": [0], "b": [None]}), pd.DataFrame({"a": [0], "b": [1]}), "'b' holds no numbers"),
        (pd.Series(["a"]), np.ones((1, 1)), "are frames, and those of 'text' an array"),
        (pd.Series(["a"]), pd.DataFrame({"a": [0], "b": [1]}), "columns of 0 and 1, and those of 'image' names"),
        (pd.Series([0.5]), pd.Series(["a"]), r"'image': row 0 \(counted from 0\).*labels are 0\.5"),
        (pd.DataFrame({"n": ["a"], "m": [1]}), pd.Series(["a"]), "'n' holds no numbers; expected one column of names"),
    ],
)
def test_labels_that_do_not_fit(image, text, message):
    with pytest.raises((TypeError, ValueError), match=message):
        labels_of(image, text)


def little_frames(n=40):
    draw = np.random.default_rng(1)
    classes = draw.integers(0, 3, n)
    image, text = draw.normal(size=(n, 6)) + 3 * np.eye(6)[classes], draw.normal(size=(n, 4)) + 3 * np.eye(4)[classes]
    names = pl.Series("class", np.array(["cat", "cow", "dog"])[classes])
    return {"image": image, "text": text}, {"image": np.eye(3)[classes], "text": np.eye(3)[classes]}, names


def test_a_fit_on_frames_is_the_fit_on_their_arrays():
    X, Y, names = little_frames()
    frames = {"image": pd.DataFrame(X["image"]), "text": pl.DataFrame({"e": X["text"]})}
    labels = {"image": names, "text": names.to_pandas()}
    one = AMSH(n_bits=8, random_state=0, n_anchors=20).fit(X, Y)
    other = AMSH(n_bits=8, random_state=0, n_anchors=20).fit(frames, labels)
    for name in X:
        np.testing.assert_array_equal(one.codes_[name], other.codes_[name])
        np.testing.assert_array_equal(one.transform(X)[name], other.transform(frames)[name])
    found = [
        evaluate(one, (a, b), (a, b), protocol=Protocol(database="unseen")).map for a, b in ((X, Y), (frames, labels))
    ]
    assert found[0] == found[1]
    assert len(TrainingItems(frames, labels)) == 80


def test_columns_are_those_of_the_fit(tmp_path):
    X, Y, _ = little_frames()
    frame = pl.DataFrame(X["image"], schema=list("abcdef"))
    model = AMSH(n_bits=8, n_anchors=20).fit({"image": frame, "text": X["text"]}, Y)
    assert model.feature_names_in_ == {"image": list("abcdef")}
    model.save(tmp_path)
    model = load(tmp_path)
    np.testing.assert_array_equal(
        model.transform({"image": X["image"]})["image"], model.transform({"image": frame})["image"]
    )
    with pytest.raises(ValueError, match=r"are in another order than in fit.*frame.model.feature_names_in_"):
        model.transform({"image": frame.select(list("bacdef"))})
    with pytest.raises(ValueError, match="are not those of fit: 'g' is in one only"):
        model.transform({"image": frame.rename({"f": "g"}).to_pandas()})
    model.fit(X, Y)
    assert not hasattr(model, "feature_names_in_")


def test_nothing_is_imported_for_who_has_no_frames():
    assert is_frame(pd.DataFrame())
    assert not any(is_frame(value) for value in (None, {}, [], "a", np.eye(2), pd))


def test_without_narwhals_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "narwhals", None)
    with pytest.raises(
        MissingExtraError, match="reading a pandas DataFrame needs .*" + re.escape(install_line("tables"))
    ):
        Frame(PANDAS, "X")
