"""Encodings and separators of text tables, found from the bytes or given."""

from __future__ import annotations

import pytest

from modalhash.data import ReadError, TableFormat, manifest_columns, manifest_lines, read, table_format

ROWS = "text{0}labels\nein grüner Ball, rund{0}rot;grün\nzwei Häuser{0}blau\n"
GERMAN = [{"text": "ein grüner Ball, rund", "labels": "rot;grün"}, {"text": "zwei Häuser", "labels": "blau"}]


def table(folder, text, encoding="utf-8", name="a.csv"):
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


def lines_of(path, **options):
    return [line for _, line in manifest_lines(path, **options)]


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("utf-8", "utf-8"),
        ("utf-8-sig", "utf-8-sig"),
        ("utf-16", "utf-16"),
        ("utf-16-le", "utf-16-le"),
        ("utf-16-be", "utf-16-be"),
        ("utf-32", "utf-32"),
    ],
)
def test_unicode_is_found_without_a_word(tmp_path, written, found, recwarn):
    path = table(tmp_path, ROWS.format("\t"), written)
    assert table_format(path) == TableFormat(found, "\t")
    assert lines_of(path) == GERMAN
    assert not recwarn


@pytest.mark.parametrize("written", ["latin-1", "cp1252"])
def test_western_european_is_read_with_a_warning_that_shows_a_word(tmp_path, written):
    path = table(tmp_path, ROWS.format("\t"), written)
    assert table_format(path) == TableFormat("windows-1252", "\t", example="grüner")
    with pytest.warns(UserWarning, match=r"a\.csv: not in UTF-8; read as windows-1252, e\.g\. 'grüner'.*--encoding"):
        assert lines_of(path) == GERMAN


@pytest.mark.parametrize(
    "text",
    ["déjà vu à Noël", "naïve “quotes” – dash 5 €", "Îles, Øyer, Þór, ñandú", "CAFÉ À LA CRÈME", "une créée", "100 m³"],
)
def test_texts_that_read_like_western_european(tmp_path, text):
    assert table_format(table(tmp_path, f"text;labels\n{text};x\n", "cp1252")).encoding == "windows-1252"


@pytest.mark.parametrize(
    ("text", "encoding", "shown"),
    [
        ("Привет мир", "cp1251", "Ïðèâåò"),
        ("zażółć gęślą jaźń", "iso8859-2", "za¿ó³æ"),
        ("zażółć gęślą jaźń", "cp1250", "za¿ó³æ"),
        ("ein grüner Ball", "mac-roman", "grŸner"),
        ("ein grüner Ball", "cp850", "gr"),
        ("日本語のテキスト", "shift_jis", ""),
        ("中文文本", "gbk", ""),
    ],
)
def test_other_encodings_are_asked_for(tmp_path, text, encoding, shown):
    path = table(tmp_path, f"text;labels\n{text};x\n", encoding)
    with pytest.raises(ReadError, match=f"line 2: neither UTF-8 nor.*would read '{shown}.*--encoding cp1251"):
        table_format(path)
    given = TableFormat(encoding=encoding)
    assert lines_of(path, table=given)[0]["text"] == text
    assert read(path, table=given).raw["text"].tolist() == [text]


def test_a_file_of_two_encodings_is_an_error_that_names_both_ways_out(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("text,labels\ngrün,a\n".encode() + "gelb,b\nweiß,c\n".encode("latin-1"))
    with pytest.raises(ReadError, match=r"line 4: .*several encodings.*--encoding utf-8.*--encoding windows-1252"):
        table_format(path)
    problems = []
    taken = list(manifest_lines(path, lambda *one: problems.append(one), table=TableFormat("utf-8")))
    assert [line["labels"] for _, line in taken] == ["a", "b"]
    assert [number for number, _ in problems] == [4]


def test_one_damaged_line_of_many_is_left_out_alone(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"text,labels\n" + b"a,b\n" * 400 + b"x\x81\xfe\x93y,b\n" + b"a,b\n")
    problems = []
    assert len(list(manifest_lines(path, lambda *one: problems.append(one)))) == 401
    assert [number for number, _ in problems] == [402]


@pytest.mark.parametrize(
    ("text", "separator", "lines"),
    [
        ("text,labels\na,b;c\n", ",", [("a", "b;c")]),
        ("text;labels\na, b;c|d\n", ";", [("a, b", "c|d")]),
        ("text\tlabels\na;b,c\tc\n", "\t", [("a;b,c", "c")]),
        ("text|labels\na|b;c\n", "|", [("a", "b;c")]),
        ("sep=;\r\ntext;labels\r\na,b;c\r\n", ";", [("a,b", "c")]),
        ('text;labels\n"x;\r\ny";b\n\n\n', ";", [("x;\r\ny", "b")]),
        ("text;labels\ra;b\rc;d\r", ";", [("a", "b"), ("c", "d")]),
        ("text,labels,,\na,b,,\n,,,\n", ",", [("a", "b")]),
        ("text;labels;price\na;b;0,5\nc;d;1,75\n", ";", [("a", "b"), ("c", "d")]),
        (" text , labels \na,b\n", ",", [("a", "b")]),
        ("text\n", ",", []),
    ],
)
def test_separators(tmp_path, text, separator, lines):
    path = table(tmp_path, text)
    assert table_format(path).separator == separator
    assert [(line["text"], line["labels"]) for line in lines_of(path)] == lines


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_the_suffix_says_nothing_of_the_separator(tmp_path, suffix):
    for mark in ",;\t|":
        assert table_format(table(tmp_path, ROWS.format(mark), name=f"a{suffix}")).separator == mark


def test_lines_count_as_an_editor_does(tmp_path):
    path = table(tmp_path, "sep=;\n\ntext;labels\na;b\n\nc\n")
    problems = []
    assert [number for number, _ in manifest_lines(path, lambda *one: problems.append(one))] == [4]
    assert problems == [(6, "not 2 columns as in line 3 but 1; is a text with ';' in it not within quotes?")]


def test_two_separators_that_fit_are_asked_for(tmp_path):
    path = table(tmp_path, "a;b,c\n1;2,3\n4;5,6\n")
    with pytest.raises(ReadError, match=r"separated by commas.*'a;b', 'c'.*2 of 2 rows or semicolons.*--separator ';'"):
        table_format(path)
    assert manifest_columns(path, table=TableFormat(separator=";")) == ["a", "b,c"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty; expected a line with the names of the columns"),
        ("\n\n", "the file is empty"),
        ("text,labels,labels\na,b,c\n", r"two columns are called 'labels' \(2 and 3\); rename one"),
        ("text,,labels\na,b,c\n", "column 2 has no name"),
    ],
)
def test_bad_column_names(tmp_path, text, message):
    with pytest.raises(ReadError, match=message):
        lines_of(table(tmp_path, text))


def test_a_nul_is_a_problem_of_its_line(tmp_path):
    with pytest.raises(ReadError, match="line 3: a NUL character"):
        lines_of(table(tmp_path, "text,labels\na,b\nc\0,d\n"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoding": "klingon"}, "encoding .* is 'klingon'; expected the name of one"),
        ({"encoding": "base64"}, "expected the name of one"),
        ({"separator": "ab"}, "separator .* is 'ab'; expected one character"),
        ({"separator": '"'}, "expected one character"),
    ],
)
def test_formats_that_there_are_not(options, message):
    with pytest.raises(ValueError, match=message):
        TableFormat(**options)


def test_a_tab_may_be_typed():
    assert TableFormat(separator="\\t") == TableFormat(separator="tab") == TableFormat(separator="\t")


def test_jsonl_in_another_encoding(tmp_path):
    text = '{"text": "grün"}\n{"text": "blau"}\n'
    assert lines_of(table(tmp_path, text, "utf-16", "a.jsonl")) == [{"text": "grün"}, {"text": "blau"}]
    path = table(tmp_path, text, "latin-1", "b.jsonl")
    with pytest.raises(ReadError, match=r"line 1: not in UTF-8; .*--encoding"):
        lines_of(path)
    assert lines_of(path, table=TableFormat("latin-1"))[0] == {"text": "grün"}
