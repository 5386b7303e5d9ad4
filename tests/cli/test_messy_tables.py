"""Tables as people have them: what a command says of each, and its exit code."""

from __future__ import annotations

import shutil
from typing import NamedTuple

import openpyxl
import pytest
from typer.testing import CliRunner

from modalhash import Engine
from modalhash.cli import app

pd = pytest.importorskip("pandas", reason="pandas is not installed (extra test-all)")


class Messy(NamedTuple):
    """A table, the options that it is added with, the message, the exit code, and how many items are added."""

    name: str
    content: object
    """Bytes, or a function that writes the file."""
    says: str
    exit_code: int
    added: int
    options: tuple[str, ...] = ()


def book(*rows, more=False):
    def write(path):
        made = openpyxl.Workbook()
        for row in rows:
            made.active.append(row)
        if more:
            made.create_sheet("Rest").append(["text"])
            made["Rest"].append(["a blue ball"])
        made.save(path)

    return write


def frame(writer, **columns):
    return lambda path: getattr(pd.DataFrame(columns), writer)(path)


TWO = "text{0}labels\nein grüner Ball{0}green;circle\na red box, today{0}red\n"
HALF = b"PAR1" + b"\0" * 60
ROWS = {
    "semicolons": Messy("a.csv", TWO.format(";").replace("green;circle", "green|circle").encode(), "2 items added", 0, 2),
    "tabs in a .csv": Messy("a.csv", TWO.format("\t").encode(), "2 items added", 0, 2),
    "bars": Messy("a.csv", TWO.format("|").encode(), "2 items added", 0, 2),
    "Excel's own line": Messy("a.csv", ("sep=;\r\n" + TWO.format(";").replace("n;c", "n|c")).encode(), "2 items", 0, 2),
    "a mark of UTF-8": Messy("a.csv", TWO.format("\t").encode("utf-8-sig"), "2 items added", 0, 2),
    "UTF-16": Messy("a.csv", TWO.format("\t").encode("utf-16"), "2 items added", 0, 2),
    "UTF-16 without a mark": Messy("a.tsv", TWO.format("\t").encode("utf-16-be"), "2 items added", 0, 2),
    "Latin-1": Messy("a.csv", TWO.format("\t").encode("latin-1"), "read as windows-1252, e.g. 'grüner'", 0, 2),
    "Latin-1, as said": Messy(
        "a.csv", TWO.format("\t").encode("latin-1"), "2 items added", 0, 2, ("--encoding", "latin-1")
    ),
    "Cyrillic": Messy(
        "a.csv", "text\nПривет мир\n".encode("cp1251"), "line 2: neither UTF-8 nor a Western European encoding", 2, 0
    ),
    "Cyrillic, as said": Messy(
        "a.csv", "text\nПривет мир\n".encode("cp1251"), "1 items added", 0, 1, ("--encoding", "cp1251")
    ),
    "two encodings": Messy("a.csv", "text\ngrün\n".encode() + "weiß\n".encode("latin-1"), "several encodings", 2, 0),
    "no such encoding": Messy("a.csv", b"text\na\n", "--encoding) is 'klingon'", 2, 0, ("--encoding", "klingon")),
    "two separators fit": Messy(
        "a.csv", b"a;b,c\n1;2,3\n", "separated by commas, which make 'a;b', 'c'", 2, 0, ("--field", "text=b")
    ),
    "two separators fit, as said": Messy(
        "a.csv", b"a;b,c\n1;2,3\n", "1 items added", 0, 1, ("--separator", ";", "--field", "text=b,c")
    ),
    "no such separator": Messy("a.csv", b"text\na\n", "--separator) is ';;'", 2, 0, ("--separator", ";;")),
    "no quotes": Messy("a.csv", b"text,labels\na red ball, today,red\na red box,red\n", "line 2: not 2 columns", 1, 1),
    "a line in quotes": Messy("a.csv", b'text,labels\n"a red\nball",red\n', "1 items added", 0, 1),
    "old Macintosh": Messy("a.csv", b"text,labels\ra red ball,red\r", "1 items added", 0, 1),
    "empty lines and columns": Messy("a.csv", b"text,labels,,\na,b,,\n,,,\n\n\n", "1 items added", 0, 1),
    "a name twice": Messy("a.csv", b"text,text\na,b\n", "two columns are called 'text' (1 and 2); rename one", 2, 0),
    "other names": Messy("a.csv", b"caption,labels\na,b\n", "the columns are caption, labels; expected path or text", 2, 0),
    "an empty file": Messy("a.csv", b"", "the file is empty; expected a line with the names of the columns", 2, 0),
    "names alone": Messy("a.csv", b"text,labels\n", "0 items added", 0, 0),
    "a NUL": Messy("a.csv", b"text,labels\na\0b,c\nd,e\n", "line 2: a NUL character", 1, 1),
    "the label as a column": Messy("a.csv", b"text,label\na red box,red\n", "1 items added", 0, 1),
    "Excel": Messy("a.xlsx", book(["text", "label"], ["a red ball", 7], [], ["a box", None]), "2 items added", 0, 2),
    "Excel, two sheets": Messy("a.xlsx", book(["text"], ["a"], more=True), "read the first sheet, 'Sheet'; others: Rest", 0, 1),
    "Excel, a sheet": Messy("a.xlsx", book(["text"], more=True), "1 items added", 0, 1, ("--sheet", "Rest")),
    "Excel, no such sheet": Messy("a.xlsx", book(["text"]), "no sheet 'X'; it has 'Sheet'", 2, 0, ("--sheet", "X")),
    "Excel, an error": Messy("a.xlsx", book(["text"], ["#REF!"], ["a"]), "line 2: column 'text' is the error #REF!", 1, 1),
    "Excel, nothing": Messy("a.xlsx", book(), "the sheet 'Sheet' is empty", 2, 0),
    "Excel, broken": Messy("a.xlsx", b"PK\x03\x04", "cannot be read as an Excel file", 2, 0),
    "Excel, with a password": Messy("a.xlsx", b"\xd0\xcf\x11\xe0" * 9, "encrypted, or an old .xls file", 2, 0),
    "Excel, old": Messy("a.xls", b"\xd0\xcf\x11\xe0" * 9, "save it as .xlsx or .csv", 2, 0),
    "Parquet": Messy("a.parquet", frame("to_parquet", text=["a", None], label=["x", None]), "a.parquet, line 2: text is empty", 1, 1),
    "Parquet, other names": Messy("a.parquet", frame("to_parquet", caption=["a"]), "the columns are caption", 2, 0),
    "Parquet, broken": Messy("a.parquet", HALF, "not a complete Parquet file", 2, 0),
    "Feather": Messy("a.feather", frame("to_feather", text=["a"], labels=[["x", "y"]]), "1 items added", 0, 1),
    "Arrow, broken": Messy("a.arrow", b"ARROW1" + b"\0" * 60, "cannot be read as a Parquet or Arrow file", 2, 0),
}  # fmt: skip


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    words = [f"a {colour} {thing} {n}" for n in range(5) for colour in ("red", "green") for thing in ("ball", "box")]
    items = [{"text": text, "labels": text.split()[1:3]} for text in words]
    Engine.train(items, folder / "engine", n_bits=8, method="amsh", parameters={"n_anchors": 10}).close()
    return folder / "engine"


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_what_is_said(row, engine, tmp_path):
    own = shutil.copytree(engine, tmp_path / "engine")
    if callable(row.content):
        row.content(tmp_path / row.name)
    else:
        (tmp_path / row.name).write_bytes(row.content)
    arguments = ["add", str(own), str(tmp_path / row.name), *row.options]
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "400"})
    assert row.says in done.output, done.output
    assert done.exit_code == row.exit_code, done.output
    assert "Traceback" not in done.output
    with Engine.open(own, read_only=True) as opened:
        assert len(opened) == 20 + row.added
