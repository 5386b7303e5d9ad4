"""Features in tables, in files and in memory; and errors that name the row of the user's file."""

from __future__ import annotations

import numpy as np
import pytest

from modalhash import AMSH
from modalhash.data import Dataset, ReadError, TableFormat, holds_features, read, unpaired, write_npz

pd = pytest.importorskip("pandas", reason="pandas is not installed (extra test-all)")
pl = pytest.importorskip("polars", reason="polars is not installed (extra test-all)")

N = 30
DRAW = np.random.default_rng(0)
CLASSES = DRAW.integers(0, 3, N)
IMAGE = DRAW.normal(size=(N, 4)) + 3 * np.eye(4)[CLASSES]
TEXT = DRAW.normal(size=(N, 3)) + 3 * np.eye(3)[CLASSES]
NAMES = np.array(["cat", "cow", "dog"])[CLASSES]
SPLIT = ["train"] * 20 + ["test"] * 10


def numbered(image=IMAGE):
    columns = {f"image_{at}": image[:, at] for at in range(4)} | {f"text {at}": TEXT[:, at] for at in range(3)}
    return pd.DataFrame({"id": [f"item {row}" for row in range(N)], **columns, "label": NAMES, "split": SPLIT})


def vectors():
    return pl.DataFrame({"image_embedding": IMAGE, "text": TEXT.tolist(), "labels": [[name] for name in NAMES]})


def check(data):
    np.testing.assert_allclose(data.features["image"], IMAGE, atol=1e-12)
    np.testing.assert_allclose(data.features["text"], TEXT, atol=1e-12)
    assert data.class_names == ("cat", "cow", "dog")
    assert data.labels["text"].argmax(axis=1).tolist() == CLASSES.tolist()
    return data


WRITERS = {
    "a.csv": lambda frame, path: frame.to_csv(path, index=False),
    "de.csv": lambda frame, path: frame.to_csv(path, index=False, sep=";", decimal=",", encoding="utf-16"),
    "a.xlsx": lambda frame, path: frame.to_excel(path, index=False),
    "a.parquet": lambda frame, path: frame.to_parquet(path),
    "a.feather": lambda frame, path: frame.to_feather(path),
}
FIRST = {
    "a.csv": ("line", 2),
    "de.csv": ("line", 2),
    "a.xlsx": ("line", 2),
    "a.parquet": ("row", 1),
    "a.feather": ("row", 1),
}
"""What a row is called, and the number of the first."""


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.slow
def test_numbered_columns(tmp_path, name):
    WRITERS[name](numbered(), tmp_path / name)
    assert holds_features(tmp_path / name)
    data = check(read(tmp_path / name))
    assert data.ids["image"][2] == "item 2"
    assert len(data.split.query["image"]) == 10


@pytest.mark.parametrize("name", WRITERS)
def test_a_missing_number_is_named_by_file_row_and_column_after_a_split(tmp_path, name):
    image = IMAGE.copy()
    image[1, 3] = image[25, 2] = np.nan
    WRITERS[name](numbered(image), tmp_path / name)
    parts = unpaired(read(tmp_path / name), seed=0).parts()
    unit, first = FIRST[name]
    with pytest.raises(ValueError, match=rf"'image': .*{name}, {unit} {1 + first}\b.*, column 'image_3' is NaN"):
        AMSH(n_bits=8).fit(parts.training.features, parts.training.labels)
    WRITERS[name](numbered(), tmp_path / name)
    good = read(tmp_path / name).parts().training
    model = AMSH(n_bits=8, n_anchors=10).fit(good.features, good.labels)
    with pytest.raises(ValueError, match=rf"{name}, {unit} {25 + first}\b.*, column 'image_2' is NaN"):
        model.transform(parts.query.features)


def test_variables_of_arrays_that_were_put_together(tmp_path):
    test = IMAGE[20:].copy()
    test[2, 1] = np.inf
    labels = np.eye(3)[CLASSES]
    np.savez(
        tmp_path / "a.npz",
        I_tr=IMAGE[:20],
        T_tr=TEXT[:20],
        L_tr=labels[:20],
        I_te=test,
        T_te=TEXT[20:],
        L_te=labels[20:],
    )
    parts = read(tmp_path / "a.npz").parts()
    model = AMSH(n_bits=8, n_anchors=10).fit(parts.training.features, parts.training.labels)
    with pytest.raises(ValueError, match=r"a\.npz, variable 'I_te', row 3 \(counted from 1\), feature 1 is NaN or inf"):
        model.transform(parts.query.features)


@pytest.mark.parametrize("frame", [numbered(), pl.from_pandas(numbered()), vectors(), vectors().to_arrow()], ids=type)
def test_tables_in_memory(frame):
    check(read(frame))


def test_a_row_of_a_frame_counts_from_0():
    image = IMAGE.copy()
    image[21, 0] = np.nan
    parts = read(numbered(image), name="mine").parts()
    with pytest.raises(ValueError, match=r"the table 'mine', row 21 \(counted from 0\), column 'image_0' is NaN"):
        AMSH(n_bits=8).fit(parts.query.features, parts.query.labels)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_vectors(tmp_path, name):
    (vectors().write_parquet if name == "a.parquet" else vectors().write_ipc)(tmp_path / name)
    data = check(read(tmp_path / name, text="text", image="image_embedding"))
    assert data.ids["image"][:2].tolist() == [1, 2]
    check(read(write_npz(data, tmp_path / "again.npz")))


def test_named_columns_patterns_and_texts(tmp_path):
    frame = numbered().assign(caption=[f"a {name}" for name in NAMES], cat=NAMES == "cat", dog=NAMES == "dog")
    frame.to_csv(tmp_path / "a.csv", index=False)
    for source in (frame, tmp_path / "a.csv"):
        data = read(source, image=["image_1", "image_0"], words="text*", text="caption", labels="label")
        assert data.sizes == {"image": N, "words": N, "text": N}
        np.testing.assert_allclose(data.features["image"], IMAGE[:, [1, 0]])
        assert data.raw["text"][0] == f"a {NAMES[0]}"
    data = read(frame, image="image_*", labels=["dog", "cat"])
    assert data.class_names == ("dog", "cat")
    assert (data.labels["image"][:, 1] == (NAMES == "cat")).all()


@pytest.mark.parametrize(
    ("change", "mapping", "message"),
    [
        ({"image_2": ["0.5", "abc"]}, {}, r"a\.csv, line 3: column 'image_2' is 'abc'; expected a number"),
        ({}, {"image": "img_*"}, r"image='img_\*': no such column; there are id, image_0"),
        ({}, {"image": ["image_0", "x"]}, "image='x': no such column"),
        (
            {},
            {"image": "image_*", "labels": ["image_0", "image_1"]},
            "column 'image_0' is .*; expected a label: 0 or 1",
        ),
        ({"split": ["train", "dev"]}, {}, r"a\.csv, line 3: split is 'dev'"),
        ({"id": ["a", ""]}, {}, r"a\.csv, line 3: column 'id' is empty"),
        ({"split": ["train", ""]}, {}, r"a\.csv, line 3: the row has no split"),
    ],
)
def test_errors_name_line_and_column(tmp_path, change, mapping, message):
    frame = numbered().head(2).assign(**change)
    frame.to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(ReadError, match=message):
        read(tmp_path / "a.csv", **mapping)


def test_decimal_commas_and_points_in_one_column_are_an_error(tmp_path):
    (tmp_path / "a.csv").write_text("x_0;x_1\n0,5;1\n0.5;2\n")
    with pytest.raises(
        ReadError, match=r"line 3: column 'x_0' is '0\.5'; expected a number; other cells have a decimal"
    ):
        read(tmp_path / "a.csv")


def test_a_table_that_names_texts_holds_no_features(tmp_path):
    (tmp_path / "a.csv").write_text("text,size_0,size_1\na,1,2\n")
    assert not holds_features(tmp_path / "a.csv")
    assert holds_features(tmp_path / "a.csv", {"image": "size_*"})
    assert read(tmp_path / "a.csv", table=TableFormat(separator=",")).raw["text"].tolist() == ["a"]


def test_a_frame_of_texts_is_a_manifest():
    frame = pd.DataFrame({"text": ["a", "b"], "label": ["x", None]})
    data = read(frame)
    assert isinstance(data, Dataset)
    assert data.raw["text"].tolist() == ["a", "b"]
    assert data.labels["text"].tolist() == [[True], [False]]
    with pytest.raises(ReadError, match=r"the table 'frame': row 1 \(counted from 0\): neither 'path' nor 'text'"):
        read(pd.DataFrame({"text": ["a", None]}))
