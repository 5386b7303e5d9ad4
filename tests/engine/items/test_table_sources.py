"""Frames, Hugging Face data sets and table files as sources of an engine."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from modalhash import Engine
from modalhash.data import TableFormat

datasets = pytest.importorskip("datasets", reason="datasets is not installed (extra test-all)")
pd = pytest.importorskip("pandas", reason="pandas is not installed (extra test-all)")
pl = pytest.importorskip("polars", reason="polars is not installed (extra test-all)")


def texts_of(world):
    frame = pd.read_csv(world / "items.csv")
    return frame[frame.text.notna()][["text", "labels"]]


def photos_of(world):
    frame = pd.read_csv(world / "items.csv")
    return frame[frame.path.notna()].assign(path=[str(world / path) for path in frame.path.dropna()])


def found_labels(engine):
    return {hit.labels[0] for hit in engine.search(text="a red ball rolls", want="text", k=3)}


@pytest.mark.slow
@pytest.mark.parametrize("convert", [lambda frame: frame, pl.from_pandas, datasets.Dataset.from_pandas])
def test_training_on_a_frame(world, tmp_path, convert):
    source = convert(texts_of(world).reset_index(drop=True))
    with Engine.train(source, tmp_path / "engine", n_bits=8, method="amsh") as engine:
        assert len(engine) == 60
        assert engine.problems == ()
        assert found_labels(engine) == {"red"}


def test_several_frames_with_lists_of_labels(world, tmp_path):
    texts = texts_of(world).assign(labels=lambda frame: frame.labels.str.split(";"))
    source = [texts, pl.from_pandas(photos_of(world)[["path", "labels"]])]
    with Engine.train(source, tmp_path / "engine", n_bits=8, method="amsh") as engine:
        assert {name: facts["items"]["learned"] for name, facts in engine.info()["modalities"].items()} == {
            "image": 60,
            "text": 60,
        }


def test_pictures_of_hugging_face(world, tmp_path, engine):
    photos = photos_of(world).head(12)
    names = sorted(photos.labels.unique())
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=names)})
    rows = {"image": photos.path.tolist(), "label": [names.index(one) for one in photos.labels]}
    named = datasets.Dataset.from_dict(rows, features=features)
    assert engine.add(named, replace=True).added == 12
    assert engine.get(photos.path.iloc[0]).labels == (photos.labels.iloc[0],)  # a class name is one label as it is
    rows["image"] = [{"bytes": (world / path).read_bytes(), "path": None} for path in photos.path]
    held = datasets.Dataset.from_dict(rows, features=features)
    assert engine.add(held, keep=True).added == 12
    pl.DataFrame(held.with_format("arrow")[:]).write_parquet(tmp_path / "held.parquet")
    assert engine.add(tmp_path / "held.parquet").added == 12


def test_open_pictures_and_equal_ones_are_items_of_their_own(world, engine):
    photos = [Image.open(path) for path in photos_of(world).path.head(3)]
    before = len(engine)
    assert engine.add(pd.DataFrame({"image": [*photos, photos[0]]})).added == 4
    assert len(engine) == before + 4
    content = io.BytesIO()
    photos[0].save(content, "PNG")
    assert engine.add(pl.DataFrame({"image": [content.getvalue()]}), replace=True).replaced == 1


def test_problems_name_the_rows_of_a_frame(engine):
    problems = []
    frame = pd.DataFrame({"caption": ["a red ball", None, " "], "id": ["x", "y", "z"]}, index=[10, 20, 30])
    assert engine.add(frame, fields={"text": "caption"}, on_problem=problems.append).added == 1
    assert [str(problem) for problem in problems] == [
        "y: row 1 (counted from 0; index 20): nothing in 'caption'; the fields are caption, id",
        "z: row 2 (counted from 0; index 30): the text is empty",
    ]
    with pytest.raises(ValueError, match="the source: the columns are caption, id; expected path or text"):
        engine.add(frame)
    with pytest.raises(TypeError, match="is a DatasetDict; pass one of its parts: 'train'"):
        engine.add(datasets.DatasetDict({"train": datasets.Dataset.from_dict({"text": ["a"]})}))


def features(missing=False):
    draw = np.random.default_rng(0)
    classes = draw.integers(0, 3, 40)
    columns = {f"image_{at}": draw.normal(size=40) + 3 * (classes == at) for at in range(4)}
    columns |= {f"text_{at}": draw.normal(size=40) + 3 * (classes == at) for at in range(3)}
    frame = pd.DataFrame({**columns, "labels": np.array(["cat", "cow", "dog"])[classes]})
    if missing:
        frame.loc[1, "image_2"] = np.nan
    return frame


def test_an_engine_of_features_in_a_table(tmp_path):
    features().to_csv(tmp_path / "a.csv", index=False, sep=";", decimal=",")
    with Engine.train(tmp_path / "a.csv", tmp_path / "engine", n_bits=8, method="amsh") as engine:
        assert engine.modalities == ("image", "text")
        assert len(engine) == 80
        more = features().assign(id=[f"more {row}" for row in range(40)])
        assert engine.add(more).added == 80
        assert engine.get("more 7", modality="image").labels == (more.labels[7],)


def test_a_missing_number_is_a_problem_with_its_line_and_column(tmp_path):
    features(missing=True).to_excel(tmp_path / "a.xlsx", index=False)
    problems = []
    with Engine.train(
        tmp_path / "a.xlsx", tmp_path / "engine", n_bits=8, method="amsh", on_problem=problems.append
    ) as engine:
        assert len(engine) == 79
    assert [str(one) for one in problems] == ["a.xlsx, line 3: 3: column 'image_2' is nan; expected a finite number"]


def test_encoding_a_table(engine, tmp_path):
    (tmp_path / "a.csv").write_bytes("text;label\nein grüner Ball;green\n".encode("latin-1"))
    done = engine.encode_to(tmp_path / "a.csv", tmp_path / "codes", table=TableFormat("latin-1"))
    assert (done.inputs, done.n_problems) == (1, 0)
    engine.add(list(map(str, (tmp_path / "codes").glob("*.parquet"))))
    assert engine.get("a.csv:2").text == "ein grüner Ball"
    assert engine.get("a.csv:2").labels == ("green",)


def test_files_of_codes_and_tables_are_told_apart(engine, tmp_path):
    pl.DataFrame({"text": ["a red ball"], "labels": [["red"]]}).write_parquet(tmp_path / "items.parquet")
    assert engine.add(tmp_path / "items.parquet").added == 1
    assert engine.get("items.parquet:1").labels == ("red",)
    engine.encode_to(tmp_path / "items.parquet", tmp_path / "codes")
    (codes,) = (tmp_path / "codes").glob("*.parquet")
    with pytest.raises(ValueError, match="codes that `modalhash encode` wrote"):
        Engine.train(codes, tmp_path / "other")
    assert engine.add(codes, replace=True).added == 1
