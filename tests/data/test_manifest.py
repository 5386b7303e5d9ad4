"""Manifests: one line per item."""

from __future__ import annotations

import json
import pickle
import re
import tracemalloc

import numpy as np
import pytest

from modalhash.data import ReadError, ReadLimits, is_manifest, manifest_columns, manifest_lines, read, write_npz


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
    assert reasons[2].startswith("not in UTF-8; save the file as UTF-8, or name its encoding: --encoding")
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
    quoted = f"is a text with {mark!r} in it not within quotes?"
    assert problems == [
        (5, f"not 2 columns as in line 1 but 3; {quoted}"),
        (6, f"not 2 columns as in line 1 but 1; {quoted}"),
        (7, "not in UTF-8; save the table as UTF-8, or name its encoding: --encoding (table=TableFormat(encoding=…))"),
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


def test_column_names_that_are_not_in_the_encoding_are_an_error(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbftext,gr\xf6\xdfe\na,1\n")  # the mark says UTF-8
    with pytest.raises(ReadError, match=r"line 1: the column names are not in UTF-8"):
        manifest_columns(path)


def test_is_manifest():
    assert all(is_manifest(name) for name in ("a.jsonl", "a.NDJSON", "b/a.csv", "a.tsv", "a.xlsx", "a.parquet"))
    assert not any(is_manifest(name) for name in ("a.json", "csv", "a.mat"))


@pytest.mark.slow
def test_a_long_text_does_not_widen_the_others(tmp_path):
    """Padded to the longest, these 300 kB would take 800 MB."""
    path = tmp_path / "a.jsonl"
    path.write_text(
        "\n".join(json.dumps({"text": "a" * (200_000 if k == 0 else 1), "labels": "x"}) for k in range(1000))
    )
    tracemalloc.start()
    data = read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [len(text) for text in data.raw["text"][:2]] == [200_000, 1]
    assert peak < 20_000_000
    again = read(write_npz(data, tmp_path / "a.npz"))
    assert again.raw["text"].tolist() == data.raw["text"].tolist()
    assert (tmp_path / "a.npz").stat().st_size < 100_000


def test_texts_that_padding_does_not_cost_much_are_stored_as_every_version_reads_them(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", {"text": "häuser", "labels": "x"}, {"text": "zwei", "labels": "x"})
    write_npz(read(path), tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as archive:
        assert archive["text__raw"].tolist() == ["häuser", "zwei"]


@pytest.mark.parametrize(
    ("lines", "line", "message"),
    [
        ([{"id": "a" * 300_000 if k == 6 else k, "text": "b"} for k in range(1000)], 7, "one of 300,000 characters"),
        ([{"id": k, "text": "b", "labels": [f"label {k}"]} for k in range(30_000)], None, "30,000 labels"),
    ],
    ids=["an id", "labels"],
)
def test_ids_and_labels_that_would_take_too_much_need_consent(tmp_path, lines, line, message):
    with pytest.raises(ReadError, match=f"{message}.* more than the limit of .*MODALHASH_READ_MEMORY") as caught:
        read(jsonl(tmp_path / "a.jsonl", *lines), limits=ReadLimits(memory="512MB"))
    assert caught.value.line == line


def test_numbers_too_large_for_an_id_are_texts(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", {"id": 10**30, "text": "a"}, {"id": 2, "text": "b"})
    assert read(path).ids["text"].tolist() == [str(10**30), "2"]


@pytest.mark.parametrize("depth", [101, 950, 100_000])
def test_deeply_nested_fields_are_a_problem_of_their_line(tmp_path, depth):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"id": {"[" * depth + "]" * depth}, "text": "a"}}\n{{"id": 1, "text": "b"}}')
    lines, problems = both_ways(path)
    assert [number for number, _ in lines] == [2]
    assert problems == [(1, "more than 100 nested lists and objects; expected plain values")]


def test_errors_say_file_line_and_reason(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,text\n1,a\n2\n")
    with pytest.raises(ReadError) as caught:
        read(path)
    error = pickle.loads(pickle.dumps(caught.value))  # as it comes back from a process of an experiment
    assert (error.file, error.line, error.variable) == (str(path), 3, None)
    assert error.reason.startswith("not 2 columns")
    assert str(error) == str(caught.value) == f"{path}, line 3: {error.reason}"


def test_a_list_that_is_not_utf8_is_an_error_of_its_line(tmp_path):
    (tmp_path / "caption.txt").write_bytes(b"one\ntwo\ngr\xfcn\n")
    with pytest.raises(ReadError, match=r"caption\.txt, line 3: not in UTF-8"):
        read(tmp_path / "caption.txt", text="caption")
