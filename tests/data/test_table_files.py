"""Excel, Parquet and Arrow files, whole and hostile."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from datetime import datetime

import openpyxl
import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from modalhash.core.imports import install_line
from modalhash.data import ReadError, ReadLimits, TableFormat, manifest_columns, manifest_lines, read, table_format
from modalhash.data.formats import sandbox_worker as _child
from modalhash.data.formats.tables import open_table

datasets = pytest.importorskip("datasets", reason="datasets is not installed (extra test-all)")
pl = pytest.importorskip("polars", reason="polars is not installed (extra test-all)")


def excel(path, *rows, sheets=()):
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    for name in sheets:
        book.create_sheet(name).append(["text", name])
    book.save(path)
    return path


def rewritten(path, member, change):
    """The same archive with one member changed."""
    with zipfile.ZipFile(path) as old:
        content = {info.filename: old.read(info) for info in old.infolist()}
    content[member] = change(content[member])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name, data in content.items():
            new.writestr(name, data)
    return path


def test_excel_rows_have_the_numbers_that_it_shows(tmp_path):
    path = excel(
        tmp_path / "a.xlsx",
        [],
        ["id", "text", "labels", "day", None],
        [7.0, "a", "x;y", datetime(2024, 5, 1)],
        [None, " ", None],
        [8, "b", 3, datetime(2024, 5, 1, 12)],
        [9, "#N/A", "x"],
        [10, "c", "x", None, "beyond"],
    )
    problems = []
    lines = list(manifest_lines(path, lambda *one: problems.append(one)))
    assert lines == [
        (3, {"id": 7, "text": "a", "labels": "x;y", "day": "2024-05-01"}),
        (5, {"id": 8, "text": "b", "labels": 3, "day": "2024-05-01T12:00:00"}),
    ]
    assert problems == [
        (6, "column 'text' is the error #N/A; repair the formula, or clear the cell"),
        (7, "a value in column 5, which has no name in row 2"),
    ]
    assert manifest_columns(path) == ["id", "text", "labels", "day"]
    with pytest.raises(ReadError, match="line 6: column 'text' is the error #N/A"):
        read(path)


def test_sheets(tmp_path):
    path = excel(tmp_path / "a.xlsx", ["text", "labels"], ["a", "x"], sheets=["More"])
    assert table_format(path).sheet == "Sheet"
    with pytest.warns(UserWarning, match="read the first sheet, 'Sheet'; others: More.*--sheet"):
        assert read(path).raw["text"].tolist() == ["a"]
    assert manifest_columns(path, table=TableFormat(sheet="More")) == ["text", "More"]
    with pytest.raises(ReadError, match="no sheet 'Less'; it has 'Sheet', 'More'"):
        manifest_columns(path, table=TableFormat(sheet="Less"))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "the sheet 'Sheet' is empty"),
        ([["text", "text"], ["a", "b"]], r"line 1: two columns are called 'text' \(1 and 2\)"),
        ([["text", None, "labels"], ["a", "b", "c"]], "column 2 has no name"),
    ],
)
def test_excel_without_usable_columns(tmp_path, rows, message):
    with pytest.raises(ReadError, match=message):
        read(excel(tmp_path / "a.xlsx", *rows))


def test_what_a_sheet_declares_is_not_believed(tmp_path):
    path = excel(tmp_path / "a.xlsx", ["text", "labels"], ["a", "x"])
    large = (b'ref="A1:B2"', b'ref="A1:XFD1048576"')
    rewritten(path, "xl/worksheets/sheet1.xml", lambda xml: xml.replace(*large))
    assert list(manifest_lines(path)) == [(2, {"text": "a", "labels": "x"})]
    small = (large[1], b'ref="A1"')
    rewritten(path, "xl/worksheets/sheet1.xml", lambda xml: xml.replace(*small))
    assert list(manifest_lines(path)) == [(2, {"text": "a", "labels": "x"})]


def test_a_row_that_no_sheet_has(tmp_path):
    path = excel(tmp_path / "a.xlsx", ["text"], ["a"])
    far = (b'r="2"', b'r="99999999999"')
    rewritten(path, "xl/worksheets/sheet1.xml", lambda xml: xml.replace(*far).replace(b'r="A2"', b'r="A99999999999"'))
    with pytest.raises(ReadError, match="more than 1,048,576 rows"):
        read(path)


def test_an_excel_bomb_needs_consent(tmp_path):
    path = excel(tmp_path / "a.xlsx", ["text"], ["a"])
    rewritten(
        path, "xl/worksheets/sheet1.xml", lambda xml: xml.replace(b"<sheetData>", b"<sheetData>" + b" " * 4_000_000)
    )
    assert path.stat().st_size < 20_000
    with pytest.raises(ReadError, match=r"would take 4.* more than the limit of 1\.0 MB.*--read-memory"):
        open_table(path, TableFormat(), limits=ReadLimits(memory="1MB"))


@pytest.mark.parametrize("content", [b"PK\x03\x04", b"\xd0\xcf\x11\xe0" + b"\0" * 100, b"text,labels\na,b\n"])
def test_what_is_no_excel_file(tmp_path, content):
    (tmp_path / "a.xlsx").write_bytes(content)
    with pytest.raises(ReadError, match=r"a\.xlsx: (cannot be read as an Excel file|encrypted)"):
        read(tmp_path / "a.xlsx")


def arrow_table():
    return pa.table(
        {
            "id": [3, 4, 5],
            "text": ["a", None, "c"],
            "labels": [["x", "y"], [], None],
            "vector": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.float32(), 2)),
            "number": [1, None, 3],
            "photo": [b"\0\1", None, b""],
            "day": pa.array([datetime(2024, 5, 1)] * 3),
        }
    )


def write_parquet(table, path):
    parquet.write_table(table, path, row_group_size=2)


def write_stream(table, path):
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


@pytest.mark.parametrize(
    ("name", "write"), [("a.parquet", write_parquet), ("a.feather", feather.write_feather), ("a.arrow", write_stream)]
)
def test_parquet_and_arrow(tmp_path, name, write):
    write(arrow_table(), tmp_path / name)
    opened = open_table(tmp_path / name, TableFormat())
    assert opened.columns == {
        "id": "number", "text": "text", "labels": "names", "vector": "vector", "number": "number", "photo": "bytes",
        "day": "other",
    }  # fmt: skip
    rows = list(opened.rows())
    assert [number for number, _ in rows] == [1, 2, 3]
    day = "2024-05-01T00:00:00"
    assert rows[0][1] == {"id": 3, "text": "a", "labels": ["x", "y"], "number": 1, "photo": b"\0\1", "day": day}
    assert rows[1][1]["text"] is None
    assert opened.numbers("vector").tolist() == [[1, 2], [3, 4], [5, 6]]
    assert opened.numbers("vector").dtype == "float32"
    assert str(opened.numbers("number").tolist()) == "[1.0, nan, 3.0]"
    with pytest.raises(ReadError, match="line 2: neither 'path' nor 'text'"):
        read(tmp_path / name)


def test_categories_of_pandas_and_polars(tmp_path):
    pl.DataFrame({"text": ["a", "b"], "label": pl.Series(["x", None], dtype=pl.Categorical)}).write_parquet(
        tmp_path / "a.parquet"
    )
    data = read(tmp_path / "a.parquet")
    assert data.class_names == ("x",)
    assert data.labels["text"].tolist() == [[True], [False]]


def test_class_names_of_hugging_face_are_in_their_parquet_files(tmp_path):
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["cat", "dog"])})
    data = datasets.Dataset.from_dict({"text": ["a", "b", "c"], "label": [1, 0, -1]}, features=features)
    parquet.write_table(data.with_format("arrow")[:], tmp_path / "a.parquet")
    found = read(tmp_path / "a.parquet")
    assert found.class_names == ("cat", "dog")
    assert found.labels["text"].astype(int).tolist() == [[0, 1], [1, 0], [0, 0]]


def test_truncated_files_of_every_length(tmp_path):
    """A file that is cut anywhere is an error with its name, or what is left of an Arrow stream."""
    for name, write in (("a.parquet", write_parquet), ("a.feather", feather.write_feather)):
        write(arrow_table(), tmp_path / name)
        whole = (tmp_path / name).read_bytes()
        for length in range(0, len(whole), len(whole) // 6):
            (tmp_path / name).write_bytes(whole[:length])
            with pytest.raises(ReadError, match=name):
                list(manifest_lines(tmp_path / name))


def test_ragged_vectors_name_the_row(tmp_path):
    write_parquet(pa.table({"image": [[1.0, 2.0], [3.0]], "labels": ["a", "b"]}), tmp_path / "a.parquet")
    with pytest.raises(ReadError, match="row 2, column 'image' has 1 numbers, row 1 has 2"):
        read(tmp_path / "a.parquet")


def test_a_row_group_that_takes_too_much_needs_consent(tmp_path):
    parquet.write_table(pa.table({"text": ["a" * 100] * 50_000}), tmp_path / "a.parquet", compression="zstd")
    with pytest.raises(ReadError, match=r"more than the limit of 1\.0 MB"):
        list(open_table(tmp_path / "a.parquet", TableFormat(), limits=ReadLimits(memory="1MB")).rows())


@pytest.mark.parametrize("name", ["a.xls", "a.ods"])
def test_formats_that_are_not_read_say_what_to_save_as(tmp_path, name):
    (tmp_path / name).write_bytes(b"\xd0\xcf\x11\xe0")
    with pytest.raises(ReadError, match=r"save it as \.xlsx or \.csv"):
        read(tmp_path / name)


@pytest.mark.parametrize(("format", "package"), [("excel", "openpyxl"), ("arrow", "pyarrow")])
def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch, format, package):
    """As the process that reads files would answer."""
    monkeypatch.setitem(sys.modules, package, None)
    sent = io.BytesIO()
    request = {"path": str(tmp_path / "a.x"), "format": format, "variable": None, "memory": 10**6, "seconds": 1}
    _child.answer(request, sent)
    answer = json.loads(sent.getvalue().splitlines()[0])
    assert answer["package"] == package
    assert install_line("tables") in answer["missing"]
