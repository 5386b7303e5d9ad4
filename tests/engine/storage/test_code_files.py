"""Files of codes that an engine takes in, and those that it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from modalhash.data import ReadError
from modalhash.engine import Item, ProblemCode
from modalhash.engine.storage.code_files import CodeRow, codes_as_bytes, engine_identity

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def rows(n, modality="text"):
    codes = np.arange(2 * n, dtype=np.uint8).reshape(n, 2)
    return [CodeRow(Item(modality, f"new-{i}", text=f"text {i}", extra={"n": i}), code=codes[i]) for i in range(n)]


@pytest.fixture
def write(engine, tmp_path):
    def write(some, name="codes.parquet"):
        (tmp_path / name).write_bytes(codes_as_bytes(some, engine_identity(engine.config)))
        return tmp_path / name

    return write


@pytest.mark.slow
def test_rows_become_items(engine, write):
    bad = Item("image", "bad", uri="/x.jpg", line=7, source="a.csv")
    file = write([*rows(3), CodeRow(bad, bad.problem(ProblemCode.MISSING_FILE, "no such file"))])
    problems = []
    assert engine.add(file, on_problem=problems.append).added == 3
    assert [str(one) for one in problems] == ["a.csv, line 7: /x.jpg: no such file"]
    record = engine.records(["new-2"])[0]
    assert (record.text, record.extra, record.code, record.kind) == ("text 2", {"n": 2}, b"\4\5", "hashed")
    with pytest.raises(ValueError, match="no such file"):
        engine.add(file, strict=True, replace=True)


def test_items_that_are_there(engine, write):
    assert engine.add(write(rows(2))).added == 2
    problems = []
    done = engine.add(write(rows(4)), on_problem=problems.append)
    assert (done.added, [one.code for one in problems]) == (2, [ProblemCode.EXISTS] * 2)
    done = engine.add(write(rows(5)), replace=True)
    assert (done.added, done.replaced, len(engine)) == (5, 4, 125)


def test_an_id_twice(engine, write, tmp_path):
    problems = []
    done = engine.add([write(rows(3)), write(rows(5), "more.parquet")], on_problem=problems.append)
    assert (done.added, [one.code for one in problems]) == (5, [ProblemCode.DUPLICATE] * 3)


def test_names_that_no_file_can_hold_are_told(engine, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    try:
        (folder / "half-\udc80.png").write_bytes(b"")
    except OSError:
        pytest.skip("this file system has names in UTF-8 alone")
    done = engine.encode_to(folder, tmp_path / "codes")
    assert (done.inputs, [one.code for one in done.problems]) == (1, [ProblemCode.MALFORMED])


def test_all_files_are_looked_at_first(engine, write, tmp_path):
    (tmp_path / "z.parquet").write_bytes(b"PAR1 and nothing more")
    with pytest.raises(ReadError, match=r"z\.parquet: not a complete Parquet file"):
        engine.add([write(rows(2)), tmp_path / "z.parquet"])
    assert len(engine) == 120


def change(file, **columns):
    table = parquet.ParquetFile(file).read()
    for name, values in columns.items():
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(at), pyarrow.array(values, table.schema.field(at).type))
    parquet.write_table(table, file)
    return file


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"code": [None, b"ab"]}, "'new-0' has no code"),
        ({"modality": ["sound", "text"]}, "'new-0' has no code of a modality of this engine"),
        ({"refinement": [b"x" * 193, None]}, "a refinement vector of 193 bytes"),
        ({"extra": ["{", None]}, "'new-0' has fields that are not a JSON object"),
        ({"extra": ["[1]", None]}, "'new-0' has fields that are not a JSON object"),
        ({"id": ["", "x"]}, "expected a non-empty text"),
    ],
)
def test_rows_that_nobody_wrote_so(engine, write, columns, message):
    with pytest.raises(ValueError, match=message):
        engine.add(change(write(rows(2)), **columns))
    assert len(engine) == 120


def test_files_of_others(engine, tmp_path, write):
    parquet.write_table(pyarrow.table({"text": ["a red boat"]}), tmp_path / "list.parquet")
    with pytest.raises(ReadError, match="it has no codes; create such files with `modalhash encode"):
        engine.add([write(rows(1)), tmp_path / "list.parquet"])  # by itself it is a table of items
    (tmp_path / "items.csv").write_text("text\na red boat\n")
    with pytest.raises(ValueError, match=r"items\.csv is not a Parquet file with codes"):
        engine.add([write(rows(1)), tmp_path / "items.csv"])
    with pytest.raises(ValueError, match="fields are for manifests"):
        engine.add(write(rows(1)), fields={"text": "caption"})
    with pytest.raises(FileNotFoundError, match="no such file"):
        engine.add(tmp_path / "nosuch.parquet")
    table = parquet.ParquetFile(write(rows(1))).read()
    parquet.write_table(table.drop_columns(["uri"]), tmp_path / "less.parquet")
    with pytest.raises(ReadError, match="its columns are not those of codes"):
        engine.add(tmp_path / "less.parquet")
