"""Sources encoded into files: one row per input, as one process makes them, whoever dies on the way."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys

import pytest

from dask_cluster import Cluster, need_dask
from modalhash import Engine
from modalhash.core.imports import MissingExtraError, install_line
from modalhash.engine import EncodeError
from modalhash.engine.storage import encode_to as encode_run
from modalhash.engine.storage.folder import read_config, write_config
from sources_for_encoding import items_of, make_source, make_tar, rows_of

pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return make_source(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def coded(world, source, tmp_path_factory):
    """The source, encoded in this process."""
    out = tmp_path_factory.mktemp("codes") / "codes"
    with Engine.open(world / "engine", read_only=True) as engine:
        done = engine.encode_to(source, out, workers=1, part_size=16)
    assert (done.parts, done.present, done.inputs, done.n_problems) == (6, 0, 83, 3)
    return out


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.slow
def test_one_row_per_input(coded, source):
    rows = rows_of(coded)
    assert len(rows) == 83
    assert len({(row["modality"], row["id"]) for row in rows}) == 83
    assert [row["line"] for row in rows] == [*range(2, 82), 82, 83, 84]
    wrong = [(row["id"], row["problem_code"]) for row in rows if row["code"] is None]
    assert wrong == [
        ("photos/nosuch.png", "missing_file"),
        ("items.csv:83", "unreadable"),
        ("items.csv:84", "malformed"),
    ]
    assert all((row["code"] is None) == (row["problem"] is not None) for row in rows)
    assert rows[0]["uri"] == str((source.parent / "photos" / "0.png").resolve())
    assert rows[1]["text"] == "a green box stands in the corner today"


def test_added_files_are_the_items_that_add_makes(coded, engine, source, tmp_path):
    shutil.copytree(engine.path, tmp_path / "other")
    with Engine.open(tmp_path / "other") as other:
        for one in (engine, other):
            one.remove([record.id for record in one.items()], missing="ignore")
        direct, bulk = [], []
        assert engine.add(source, on_problem=direct.append).added == 80
        assert other.add([str(coded / "*.parquet")], on_problem=bulk.append).added == 80
        assert items_of(engine) == items_of(other)
        assert [one.code for one in bulk] == ["missing_file", "unreadable", "malformed"]
        assert {(one.line, one.reason, one.code) for one in bulk} == {
            (one.line, one.reason, one.code) for one in direct
        }
        hits = [[hit.id for hit in one.search(text="a red ball", k=5)] for one in (engine, other)]
        assert hits[0] == hits[1]
        assert hits[0]


def test_a_second_run_does_nothing(coded, engine, source):
    before = {file.name: file.stat().st_mtime_ns for file in coded.iterdir()}
    done = engine.encode_to(source, coded, part_size=16)
    assert (done.parts, done.present, done.inputs) == (0, 6, 0)
    assert {file.name: file.stat().st_mtime_ns for file in coded.iterdir()} == before


def test_what_is_missing_is_made_and_leftovers_go(coded, engine, source, tmp_path):
    out = tmp_path / "codes"
    shutil.copytree(coded, out)
    lost = sorted(out.glob("*.parquet"))[2]
    lost.unlink()
    (out / f".{lost.name}.abcd1234.mh-part").write_bytes(b"of a worker that was killed")
    done = engine.encode_to(source, out, workers=1, part_size=16)
    assert (done.parts, done.present, done.inputs) == (1, 5, 16)
    assert contents(out) == contents(coded)


def test_urls(engine, source, coded, tmp_path):
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.put(str(source.parent), "/encode-urls/in", recursive=True)
    here = f"file://{source.parent}/items.csv"
    assert engine.encode_to(here, f"file://{tmp_path}/codes", workers=1, part_size=16).inputs == 83
    assert contents(tmp_path / "codes") == contents(coded)

    done = engine.encode_to("memory://encode-urls/in/items.csv", "memory://encode-urls/codes", part_size=16)
    assert (done.parts, done.inputs, done.n_problems) == (6, 83, 3)
    assert engine.encode_to("memory://encode-urls/in/items.csv", "memory://encode-urls/codes", part_size=16).parts == 0
    names = [name.rpartition("/")[2] for name in memory.ls("/encode-urls/codes", detail=False)]
    assert len([name for name in names if name.endswith(".parquet")]) == 6
    assert not [name for name in names if name.endswith(".mh-part")]
    memory.get("/encode-urls/codes/", str(tmp_path / "fetched"), recursive=True)
    same = ("id", "modality", "code", "refinement", "text", "labels", "extra", "problem_code", "line")
    fetched, local = ([[row[name] for name in same] for row in rows_of(one)] for one in (tmp_path / "fetched", coded))
    assert fetched == local
    uris = {row["uri"] for row in rows_of(tmp_path / "fetched") if row["modality"] == "image"}
    assert "memory://encode-urls/in/photos/0.png" in uris

    engine.remove([record.id for record in engine.items()])
    assert engine.add("memory://encode-urls/codes/*.parquet", on_problem=lambda _: None).added == 80
    folder = engine.encode_to("memory://encode-urls/in/photos", "memory://encode-urls/more", workers=1)
    assert (folder.inputs, folder.n_problems) == (41, 1)


def test_another_run_into_the_same_folder_is_refused(coded, engine, source, tmp_path):
    before = contents(coded)
    with pytest.raises(EncodeError, match="different part size: 16, not 8"):
        engine.encode_to(source, coded, workers=1, part_size=8)
    with pytest.raises(EncodeError, match=r"different sources: .*items\.csv, not .*photos"):
        engine.encode_to(source.parent / "photos", coded, workers=1, part_size=16)
    with pytest.raises(EncodeError, match="different fields"):
        engine.encode_to(source, coded, workers=1, part_size=16, fields={"labels": "text"})
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(EncodeError, match="is not empty and was not created by"):
        engine.encode_to(source, tmp_path, workers=1)
    assert contents(coded) == before


def test_a_source_that_has_changed_is_refused(coded, engine, source, tmp_path):
    shutil.copytree(source.parent, tmp_path / "source")
    changed, out = tmp_path / "source" / "items.csv", tmp_path / "codes"
    engine.encode_to(changed, out, workers=1, part_size=16)
    lines = changed.read_text().splitlines()
    for text in ("\n".join([*lines, ",one more,red"]), "\n".join(lines[:20])):
        changed.write_text(text)
        with pytest.raises(EncodeError, match=r"part-00000\d-.* the source has changed"):
            engine.encode_to(changed, out, workers=1, part_size=16)
    changed.write_text("\n".join(lines))
    assert engine.encode_to(changed, out, workers=1, part_size=16).parts == 0


def test_codes_of_another_engine_are_refused(coded, engine, source, world, tmp_path):
    with Engine.train(world / "items.csv", tmp_path / "other", n_bits=16, method="amsh") as other:
        with pytest.raises(ValueError, match=r"another model and other refinement\): its codes are not valid here"):
            other.add(sorted(coded.glob("*.parquet")))
        with pytest.raises(EncodeError, match="codes of another engine"):
            other.encode_to(source, coded, workers=1, part_size=16)
        assert len(other) == 120
    write_config(engine.path, {**read_config(engine.path), "generation": "0123456789abcdef"})
    with Engine.open(engine.path) as again:  # a copy under another generation makes the same codes
        assert again.encode_to(source, coded, part_size=16).parts == 0


def test_fields_and_the_root_of_paths(engine, source, tmp_path):
    lists = tmp_path / "lists"
    lists.mkdir()
    (lists / "some.tsv").write_text("file\tcaption\tkind\nphotos/0.png\ta red ball\tred;circle\n")
    fields = {"image": "file", "text": "caption", "labels": "kind"}
    engine.encode_to(lists / "some.tsv", tmp_path / "codes", fields=fields, root=source.parent)
    rows = rows_of(tmp_path / "codes")
    assert [(row["modality"], row["problem"], row["labels"]) for row in rows] == [
        ("image", None, ["red", "circle"]),
        ("text", None, ["red", "circle"]),
    ]


def test_without_the_extra(engine, source, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtraError, match=re.escape(install_line("dask"))):
        engine.encode_to(source, tmp_path / "codes")
    assert not (tmp_path / "codes").exists()


def test_progress(engine, source, tmp_path):
    steps = []
    engine.encode_to(source, tmp_path / "codes", part_size=16, callback=lambda one: steps.append((one.step, one.total)))
    assert steps == [(16, 83), (32, 83), (48, 83), (64, 83), (80, 83), (83, 83), (83, 83)]


@pytest.mark.slow
def test_a_killed_worker_changes_nothing(coded, world, source, tmp_path, monkeypatch):
    """Two workers over TCP, one killed while parts are under way: the files of one process, and no other file."""
    need_dask()
    tar = make_tar(tmp_path / "shard.tar", [(f"{n}.txt", b"a red ball") for n in range(5)])
    with Cluster() as cluster, Engine.open(world / "engine", read_only=True) as engine:

        def kill_one(progress):
            if cluster.workers[0].poll() is None:
                os.kill(cluster.workers[0].pid, signal.SIGKILL)
                cluster.workers[0].wait()

        done = engine.encode_to(source, tmp_path / "codes", part_size=16, scheduler=cluster.address, callback=kill_one)
        assert (done.parts, done.inputs, done.n_problems) == (6, 83, 3)
        assert cluster.workers[0].poll() == -signal.SIGKILL
        assert contents(tmp_path / "codes") == contents(coded)
        again = engine.encode_to(source, tmp_path / "codes", part_size=16, scheduler=cluster.address)
        assert (again.parts, again.present) == (0, 6)
        assert engine.encode_to(tar, tmp_path / "tar-codes", scheduler=cluster.address).inputs == 5

        monkeypatch.setattr(encode_run, "LOST_SECONDS", 0.5)
        monkeypatch.setattr(encode_run, "CHECK_SECONDS", 0.2)

        def kill_the_other(progress):
            cluster.workers[1].kill()
            cluster.workers[1].wait()

        with pytest.raises(EncodeError, match="no worker for"):
            engine.encode_to(source, tmp_path / "more", part_size=4, scheduler=cluster.address, callback=kill_the_other)
        with pytest.raises(EncodeError, match="has no worker; start one"):
            engine.encode_to(source, tmp_path / "more", part_size=4, scheduler=cluster.address)
