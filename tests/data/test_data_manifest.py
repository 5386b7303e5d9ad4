"""Manifests: one line per item."""

from __future__ import annotations

import json

import pytest

from modalhash.data import read


def jsonl(path, *lines):
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    return path


def test_pairs(tmp_path):
    path = jsonl(
        tmp_path / "a.jsonl",
        {"id": "x", "path": "x.jpg", "text": "ein Haus", "labels": ["house"]},
        {"id": "y", "path": "y.jpg", "text": "ein Hund", "labels": ["dog", "pet"]},
    )
    data = read(path)
    assert data.paired
    assert data.raw["image"].tolist() == ["x.jpg", "y.jpg"]
    assert data.raw["text"].tolist() == ["ein Haus", "ein Hund"]
    assert data.class_names == ("dog", "house", "pet")
    assert data.labels["text"].tolist() == [[False, True, False], [True, False, True]]
    assert not data.features


def test_items_of_modalities_with_a_split(tmp_path):
    path = jsonl(
        tmp_path / "a.jsonl",
        {"id": 1, "modality": "sound", "path": "1.wav", "labels": ["a"], "split": "train"},
        {"id": 2, "modality": "sound", "path": "2.wav", "labels": ["b"], "split": "test"},
        {"id": 1, "modality": "text", "text": "one", "labels": ["a"], "split": "train"},
        {"id": 3, "modality": "text", "text": "three", "labels": [], "split": "test"},
    )
    data = read(path, name="mine")
    assert data.name == "mine"
    assert data.sizes == {"sound": 2, "text": 2}
    assert not data.paired
    assert data.split.query["text"].tolist() == [3]


@pytest.mark.parametrize(("suffix", "mark"), [(".csv", ","), (".tsv", "\t")])
def test_tables(tmp_path, suffix, mark):
    path = tmp_path / f"a{suffix}"
    rows = [("id", "text", "labels"), ("a", "häuser", "x;y"), ("b", "two", "y|z"), ("c", "three", "")]
    path.write_text("\n".join(mark.join(row) for row in rows), encoding="utf-8-sig")
    data = read(path)
    assert data.labels["text"].astype(int).tolist() == [[1, 1, 0], [0, 1, 1], [0, 0, 0]]
    assert data.raw["text"][0] == "häuser"


def test_other_field_names(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", {"key": "a", "file": "a.png", "caption": "ah", "tags": ["x"]})
    data = read(path, image="file", text="caption", labels="tags", id="key")
    assert data.ids["image"].tolist() == ["a"]
    assert data.raw["text"].tolist() == ["ah"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"id": 1, "text": "a"}\n{"id": 2, "te', r"line 2: not JSON"),
        ("[1]", "expected an object"),
        ("", "no items"),
        ('{"id": 1, "caption": "a"}', r"neither 'path' nor 'text'; the fields are id, caption.*text=\"caption\""),
        ('{"id": 1, "text": "a"}\n{"id": 1, "text": "b"}', "duplicate id"),
        ('{"id": 1, "text": "a", "labels": {"x": 1}}', "expected a list of names"),
        ('{"id": 1, "text": "a", "split": "dev"}', "split is 'dev'"),
        ('{"id": 1, "text": "a", "split": "train"}\n{"id": 2, "text": "b"}', "all or none"),
        ('{"id": 1, "text": "a", "path": "b", "modality": "x"}', "both 'path' and 'text'"),
    ],
)
def test_refuses(tmp_path, content, message):
    path = tmp_path / "a.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        read(path)


def test_refuses_a_short_line_in_a_table(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,text,labels\n1,a,x\n2,b\n")
    with pytest.raises(ValueError, match="line 3: not 3 columns"):
        read(path)
