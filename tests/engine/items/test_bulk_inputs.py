"""Inputs in parts: the same sources give the same parts, and no path leads out of its folder."""

from __future__ import annotations

import datetime
import json

import pytest

from modalhash.data import ReadError
from modalhash.engine import Problem
from modalhash.engine.items.bulk_inputs import count_inputs, list_parts, open_sources
from modalhash.engine.items.urls import OutsideError, inside, location
from sources_for_encoding import make_source, rows_of

READS = {"image": "image", "text": "text"}


def parts_of(*given, **options):
    return list(list_parts(open_sources(list(given)), READS, **options))


def ids_of(part):
    return [one.id for one in part.entries]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return make_source(tmp_path_factory.mktemp("source"), 10)


def test_parts_have_the_same_names_again(source):
    names = [part.file_name for part in parts_of(source, size=7)]
    assert names == [part.file_name for part in parts_of(source, size=7)]
    assert len(set(names)) == 4
    assert names[0].startswith("part-000000-")
    assert names[0] == parts_of(source, source.parent / "photos", size=7)[0].file_name
    assert names[0] != parts_of(source, size=6)[0].file_name
    assert names[0] != parts_of(source, size=7, root="/elsewhere")[0].file_name


def test_an_id_is_once_among_all_sources(source):
    parts = parts_of(source.parent / "photos", source)
    items = [one for part in parts for one in part.entries if not isinstance(one, Problem)]
    assert len({one.key for one in items}) == len(items) == 10 + 1 + 1 + 10 + 1
    wrong = [one.code for one in parts[1].entries if isinstance(one, Problem)]
    assert wrong == ["duplicate"] * 10 + ["malformed"]
    assert count_inputs(open_sources([source, source.parent / "photos"]), READS) == 23 + 11


def test_folders_have_pictures_and_texts(tmp_path):
    for name in ("boats/red/1.JPG", "boats/2.txt", "boats/notes.md", ".hidden/3.jpg", "4.png"):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / name).touch()
    (part,) = parts_of(tmp_path / "photos")
    assert [(one.modality, one.id, one.labels) for one in part.entries] == [
        ("image", "photos/4.png", ()),
        ("text", "photos/boats/2.txt", ("boats",)),
        ("image", "photos/boats/red/1.JPG", ("boats", "red")),
    ]
    only = list(list_parts(open_sources(tmp_path / "photos"), {"image": "image"}))
    assert ids_of(only[0]) == ["photos/4.png", "photos/boats/red/1.JPG"]
    with pytest.raises(ValueError, match="no encoder that reads pictures"):
        list(list_parts(open_sources(tmp_path / "photos"), {"sound": "array"}))


def test_parquet_lists(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table(
        {
            "text": ["a red boat", None, "a blue boat"],
            "labels": [["boat"], ["sea"], []],
            "day": [datetime.date(2004, 5, 6), None, None],
            "thumbnail": [b"\xff", None, None],
        }
    )
    parquet.write_table(table, tmp_path / "some.parquet")
    (part,) = parts_of(tmp_path / "some.parquet")
    first, empty, last = part.entries
    assert (first.id, first.text, first.labels) == ("some.parquet:1", "a red boat", ("boat",))
    assert first.extra == {"day": "2004-05-06"}
    assert (empty.code, empty.line) == ("empty", 2)
    assert last.extra == {}
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "some.parquet").read_bytes()[:-20])
    with pytest.raises(ReadError, match="not a complete Parquet file"):
        parts_of(tmp_path / "cut.parquet")
    parquet.write_table(pyarrow.table({"words": ["a"]}), tmp_path / "other.parquet")
    with pytest.raises(ValueError, match="the columns are words; expected path or text"):
        parts_of(tmp_path / "other.parquet")


def test_a_parquet_list_may_not_take_all_memory(tmp_path, monkeypatch):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": ["x" * 1000] * 1000}), tmp_path / "some.parquet", use_dictionary=False)
    monkeypatch.setenv("MODALHASH_READ_MEMORY", "500KB")
    with pytest.raises(ReadError, match="row group 0 would take"):
        parts_of(tmp_path / "some.parquet")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nosuch", "no such file or folder; expected a folder, a manifest"),
        ("nosuch.csv", "no such file or folder"),
        ("*.tar", "no such files"),
        ("a.tar.xz", "this kind of archive is not supported; unpack it"),
        ("a.mat", "unknown kind; expected a folder"),
    ],
)
def test_what_is_no_source(tmp_path, name, message):
    (tmp_path / "a.mat").touch()
    (tmp_path / "a.tar.xz").touch()
    with pytest.raises((OSError, ValueError), match=message):
        open_sources(tmp_path / name)


def test_ids_of_two_tars_of_one_name_would_be_the_same(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "0.tar").touch()
    with pytest.raises(ValueError, match="have the same name, which is part of the ids"):
        open_sources(str(tmp_path / "*" / "0.tar"))


@pytest.mark.parametrize(
    "value", ["../x.jpg", "a/../../x.jpg", "/etc/passwd", "file:///etc/passwd", "s3://other/x.jpg"]
)
def test_paths_that_lead_out(tmp_path, value):
    for root in (str(tmp_path), "s3://bucket/photos"):
        with pytest.raises(OutsideError, match="is not inside"):
            inside(root, value)


@pytest.mark.parametrize(
    "value", ["%2e%2e/x.jpg", "a/%2E%2E/%2e%2e/x.jpg", "..\\x.jpg", "a//x.jpg", "s3://bucket/photos2/x"]
)
def test_paths_that_lead_out_of_a_url(value):
    with pytest.raises(OutsideError):
        inside("s3://bucket/photos", value)


def test_paths_inside(tmp_path):
    (tmp_path / "a").mkdir()
    assert inside(str(tmp_path), "a/./x.jpg") == str(tmp_path / "a" / "x.jpg")
    assert inside(str(tmp_path), f"{tmp_path}/a/x.jpg") == str(tmp_path / "a" / "x.jpg")
    assert inside("s3://bucket/photos", "s3://bucket/photos/a/x.jpg") == "s3://bucket/photos/a/x.jpg"
    assert inside("memory://", "a/x.jpg") == "memory://a/x.jpg"
    assert location("memory://") == "memory://"


@pytest.mark.slow
def test_files_outside_are_rows_with_a_problem(engine, world, tmp_path):
    pytest.importorskip("pyarrow")
    folder = tmp_path / "list"
    folder.mkdir()
    (folder / "link.png").symlink_to(world / "photos" / "0.png")
    (folder / "own.png").write_bytes((world / "photos" / "0.png").read_bytes())
    (folder / "folder.png").mkdir()
    paths = ["own.png", "link.png", "../list/own.png", str(world / "photos" / "0.png"), "http://a/b.png", "folder.png"]
    (folder / "some.jsonl").write_text("\n".join(json.dumps({"id": n, "path": p}) for n, p in enumerate(paths)))
    engine.encode_to([folder / "some.jsonl", folder], tmp_path / "codes")
    assert [(row["id"], row["problem_code"]) for row in rows_of(tmp_path / "codes")] == [
        ("0", None),
        ("1", "outside"),
        ("2", None),
        ("3", "outside"),
        ("4", "outside"),
        ("5", "not_a_file"),
        ("list/link.png", "outside"),
        ("list/own.png", None),
    ]
