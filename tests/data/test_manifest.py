"""Manifests: one line per item."""

from __future__ import annotations

import json
import re

import pytest

from modalhash.data import is_manifest, manifest_columns, manifest_lines, read


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


def both_ways(path):
    """What a reporting reader yields and reports; and that a strict one stops at the first problem."""
    problems = []
    lines = list(manifest_lines(path, lambda number, reason: problems.append((number, reason))))
    if problems:
        number, reason = problems[0]
        with pytest.raises(ValueError, match=f"^{re.escape(f'{path}, line {number}: {reason}')}$"):
            list(manifest_lines(path))
    else:
        assert list(manifest_lines(path)) == lines
    return lines, problems


def test_bad_lines_of_jsonl_are_reported_with_their_numbers(tmp_path):
    path = tmp_path / "a.jsonl"
    good = '{"id": 1, "text": "grün"}'.encode()
    deep = b'{"a": ' + b"[" * 200_000
    long = b'{"id": ' + b"9" * 5000 + b"}"
    path.write_bytes(b"\n".join([b"\xef\xbb\xbf" + good, b"", b"{", b"[1]", b'{"text": "gr\xfcn"}', deep, long, good]))
    lines, problems = both_ways(path)
    assert lines == [(1, {"id": 1, "text": "grün"}), (8, {"id": 1, "text": "grün"})]
    assert [number for number, _ in problems] == [3, 4, 5, 6, 7]
    reasons = [reason for _, reason in problems]
    assert reasons[0].startswith("not JSON (Expecting property name")
    assert reasons[1] == "list; expected an object with fields"
    assert reasons[2] == "not in UTF-8; save the file as UTF-8"
    assert manifest_columns(path) is None


def test_a_byte_order_mark_in_the_middle_is_ignored(tmp_path):
    path = tmp_path / "a.ndjson"
    path.write_bytes(b'\xef\xbb\xbf{"id": 1}\r\n\xef\xbb\xbf{"id": 2}\r\n')
    assert both_ways(path) == ([(1, {"id": 1}), (2, {"id": 2})], [])


@pytest.mark.parametrize(("suffix", "mark"), [(".csv", ","), (".TSV", "\t")])
def test_bad_rows_of_a_table_are_reported_with_their_numbers(tmp_path, suffix, mark):
    path = tmp_path / f"a{suffix}"
    rows = ["id,text", '1,"two\r\nlines, one row"', "", "2,short,long", "3", "4,gr\xfcn", "5,end"]
    path.write_bytes(b"\xef\xbb\xbf" + "\n".join(rows).replace(",", mark).encode("latin-1"))
    lines, problems = both_ways(path)
    assert [(number, line["id"]) for number, line in lines] == [(2, "1"), (8, "5")]
    assert lines[0][1]["text"].startswith("two\r\nlines")
    assert problems == [
        (5, "not 2 columns as in line 1; is a comma not within quotes?"),
        (6, "not 2 columns as in line 1; is a comma not within quotes?"),
        (7, "not in UTF-8; save the table as UTF-8"),
    ]
    assert manifest_columns(path) == ["id", "text"]


def test_a_row_of_several_lines_counts_from_its_first(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('text,labels\n"one\n\rtwo\nthree",x\nfour,y\n', newline="")
    assert [number for number, _ in both_ways(path)[0]] == [2, 6]
    assert read(path).ids["text"].tolist() == [2, 6]


def test_an_endless_quote_is_one_problem(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('id,text\n1,a\n2,"' + "b" * 140_000 + "\n")
    lines, problems = both_ways(path)
    assert [number for number, _ in lines] == [2]
    assert problems == [(3, "not readable as a table (field larger than field limit (131072))")]


def test_column_names_that_are_not_utf8(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"text,gr\xf6\xdfe\na,1\n")
    lines, problems = both_ways(path)
    assert problems == [(1, "the column names are not in UTF-8; save the table as UTF-8")]
    assert [line["text"] for _, line in lines] == ["a"]


def test_is_manifest():
    assert all(is_manifest(name) for name in ("a.jsonl", "a.NDJSON", "b/a.csv", "a.tsv"))
    assert not any(is_manifest(name) for name in ("a.json", "csv", "a.mat"))
