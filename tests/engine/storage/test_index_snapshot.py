"""An engine that opens from a snapshot answers as one that reads its store, whatever became of the snapshot."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from contextlib import closing

import numpy as np
import pytest

from modalhash import Engine
from modalhash.core.files import is_being_written, write_atomically
from modalhash.engine import backup_engine, restore_engine, verify_engine
from modalhash.engine.storage import index_snapshot
from modalhash.index import read_snapshot_facts, snapshot
from modalhash.store import SqliteStore, StoreError


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Let an engine of this size have snapshots, and write them only when a test asks for one."""
    monkeypatch.setattr(index_snapshot, "MIN_ITEMS", 10)
    monkeypatch.setattr(index_snapshot, "MIN_PAUSE", 3600.0)
    load = index_snapshot.SnapshotKeeper.load

    def load_and_record(keeper, index, ranker):
        keeper.loaded = load(keeper, index, ranker)
        return keeper.loaded

    monkeypatch.setattr(index_snapshot.SnapshotKeeper, "load", load_and_record)


@pytest.fixture
def folder(world, tmp_path):
    """A copy of the little engine, with a snapshot of all its items."""
    shutil.copytree(world / "engine", tmp_path / "engine")
    with Engine.open(tmp_path / "engine") as engine:
        assert engine.save_snapshot() == (tmp_path / "engine" / "index.snapshot").stat().st_size
    return tmp_path / "engine"


def answers(engine):
    queries = [
        {"text": "red"},
        {"text": "blue boat", "want": "image"},
        {"id": engine_ids(engine)[5], "modality": "image"},
    ]
    return [
        [(hit.modality, hit.id, hit.distance, hit.score) for hit in engine.search(**query, k=200)] for query in queries
    ]


def engine_ids(engine):
    return [record.id for record in engine.items() if record.modality == "image"]


def without_snapshot(folder, tmp_path):
    """What an engine answers that reads everything from its store, while others may be writing there."""
    copy = tmp_path / "without"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*index.snapshot*", "items.sqlite*"))
    with (
        closing(sqlite3.connect(folder / "items.sqlite")) as ours,
        closing(sqlite3.connect(copy / "items.sqlite")) as new,
    ):
        ours.backup(new)
    with Engine.open(copy, read_only=True) as engine:
        assert not uses_snapshot(engine)
        return answers(engine)


def uses_snapshot(engine):
    return engine._snapshots.loaded is not None


@pytest.mark.slow
def test_an_engine_opens_from_its_snapshot_without_reading_items(folder, tmp_path, monkeypatch):
    expected = without_snapshot(folder, tmp_path)

    def read_nothing(*args, **kwargs):
        raise AssertionError("items were read from the store")

    monkeypatch.setattr(SqliteStore, "codes", read_nothing)
    monkeypatch.setattr(SqliteStore, "refinements", read_nothing)
    with Engine.open(folder, read_only=True) as engine:
        assert uses_snapshot(engine)
        assert answers(engine) == expected


def test_what_changed_since_is_read_from_the_store(folder, tmp_path):
    snapshot = (folder / "index.snapshot").read_bytes()
    with Engine.open(folder) as engine:
        engine.add([{"text": "a red boat on the sea", "id": "new"}, {"text": "blue", "id": "gone"}])
        engine.remove(engine_ids(engine)[:3])
        engine.remove(["gone"])
    (folder / "index.snapshot").write_bytes(snapshot)  # closing may have written another
    with Engine.open(folder, read_only=True) as engine:
        assert uses_snapshot(engine)
        assert engine.info()["snapshot"]["changes_since"] == 6
        assert answers(engine) == without_snapshot(folder, tmp_path)
        assert "new" in {hit.id for hit in engine.search(text="a red boat on the sea", k=200)}


def test_changes_in_an_engine_from_a_snapshot_are_as_in_any_other(folder, world, tmp_path):
    shutil.copytree(world / "engine", tmp_path / "plain")
    found = []
    for place in (folder, tmp_path / "plain"):
        with Engine.open(place) as engine:
            engine.add([{"text": f"a red boat {i}", "id": f"new {i}"} for i in range(50)])
            engine.remove(["new 7", *engine_ids(engine)[3:9]])
            found.append(answers(engine))
    assert found[0] == found[1]


def flip(path, place):
    whole = bytearray(path.read_bytes())
    whole[place] ^= 16
    path.write_bytes(whole)


@pytest.mark.parametrize("place", [3, 60, -1, -40, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_damaged_snapshot_costs_time_and_nothing_else(place, read_only, folder, tmp_path):
    path = folder / "index.snapshot"
    flip(path, int(place * path.stat().st_size) if isinstance(place, float) else place)
    damaged = path.read_bytes()
    with pytest.warns(UserWarning, match="damaged.*read from the store"):
        opened = Engine.open(folder, read_only=read_only)
    with opened as engine:
        assert not uses_snapshot(engine)
        assert answers(engine) == without_snapshot(folder, tmp_path)
    if read_only:
        assert path.read_bytes() == damaged
    else:  # deleted, and written again
        assert path.read_bytes() != damaged
        assert verify_engine(folder) == []


def test_a_file_that_changes_beneath_an_open_engine_changes_no_answer(folder, tmp_path):
    expected = without_snapshot(folder, tmp_path)
    path = folder / "index.snapshot"
    with Engine.open(folder, read_only=True) as engine:
        assert uses_snapshot(engine)
        with path.open("r+b") as file:  # in place, so that it stays the file that was opened
            file.write(b"\xff" * path.stat().st_size)
        assert answers(engine) == expected
        os.truncate(path, 0)
        assert answers(engine) == expected


@pytest.mark.parametrize("length", [0, 100, 9000, -1])
def test_a_cut_snapshot_is_passed_over(length, folder, tmp_path):
    path = folder / "index.snapshot"
    path.write_bytes(path.read_bytes()[:length])
    with (
        pytest.warns(UserWarning, match="is truncated.*read from the store"),
        Engine.open(folder, read_only=True) as engine,
    ):
        assert answers(engine) == without_snapshot(folder, tmp_path)


@pytest.mark.slow
def test_the_snapshot_of_another_engine_is_not_used(folder, world, tmp_path):
    with Engine.train(world / "items.csv", tmp_path / "other", n_bits=16) as other:
        other.save_snapshot()
    shutil.copy(tmp_path / "other" / "index.snapshot", folder)
    with Engine.open(folder, read_only=True) as engine:
        assert not uses_snapshot(engine)
        assert engine.info()["snapshot"] is None
        assert answers(engine) == without_snapshot(folder, tmp_path)


@pytest.mark.parametrize("change", ["added", "removed", "removed and added"])
def test_the_snapshot_of_a_copy_that_went_its_own_way_is_not_used(change, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    for place, row in ((folder, 1), (tmp_path / "copy", 2)):
        with Engine.open(place) as engine:
            if "removed" in change:
                engine.remove([engine_ids(engine)[row]])
            if "added" in change:  # equal items after different removals
                engine.add([{"text": "red" if row == 1 or "removed" in change else "a green tree", "id": "new"}])
            engine.save_snapshot()
    shutil.copy(tmp_path / "copy" / "index.snapshot", folder)
    with Engine.open(folder, read_only=True) as engine:
        assert engine.store.revision() == tuple(read_snapshot_facts(folder / "index.snapshot")[0]["revision"])
        assert not uses_snapshot(engine)
        assert answers(engine) == without_snapshot(folder, tmp_path)


def test_the_snapshot_of_a_copy_from_before_it_went_its_own_way_is_used(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    snapshot = (folder / "index.snapshot").read_bytes()
    for place, text in ((folder, "red"), (tmp_path / "copy", "a green tree")):
        with Engine.open(place) as engine:
            engine.add([{"text": text, "id": "new"}])
        (place / "index.snapshot").write_bytes(snapshot)
        with Engine.open(place, read_only=True) as engine:
            assert uses_snapshot(engine)
            assert answers(engine) == without_snapshot(place, tmp_path / f"of {place.name}")


@pytest.mark.parametrize("grown", [False, True])
def test_a_snapshot_from_after_the_store_was_put_back_is_not_used(grown, folder):
    items = (folder / "items.sqlite").read_bytes()
    with Engine.open(folder) as engine:
        engine.add([{"text": "red", "id": "later"}])
        engine.save_snapshot()
    snapshot = (folder / "index.snapshot").read_bytes()
    (folder / "items.sqlite").write_bytes(items)
    if grown:  # beyond the revision of the snapshot
        with Engine.open(folder) as engine:
            engine.add([{"text": "a green tree", "id": f"{i}"} for i in range(3)])
        (folder / "index.snapshot").write_bytes(snapshot)
    with Engine.open(folder, read_only=True) as engine:
        assert not uses_snapshot(engine)
        assert "later" not in {hit.id for hit in engine.search(text="red", k=200)}


def test_forgotten_removals_are_found_by_comparing(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("modalhash.store.sqlite.store.KEPT_REMOVALS", 2)
    snapshot = (folder / "index.snapshot").read_bytes()
    with Engine.open(folder) as engine:
        for id in engine_ids(engine)[:9]:
            engine.remove([id])
    (folder / "index.snapshot").write_bytes(snapshot)
    with Engine.open(folder, read_only=True) as engine:
        assert uses_snapshot(engine)
        assert answers(engine) == without_snapshot(folder, tmp_path)


@pytest.mark.slow
def test_a_retrained_engine_has_a_snapshot_of_its_own(folder, tmp_path):
    with Engine.open(folder) as engine:
        old = engine.generation
        with engine.retrain() as new:
            new._snapshots.finish()
            assert engine.save_snapshot() is None  # the folder is another engine's by now
            assert new.generation != old
            assert answers(new) == without_snapshot(folder, tmp_path)
    with Engine.open(folder, read_only=True) as engine:
        assert uses_snapshot(engine)


def test_a_snapshot_is_written_beside_when_enough_has_changed(world, tmp_path):
    shutil.copytree(world / "engine", tmp_path / "engine", ignore=shutil.ignore_patterns("index.snapshot"))
    with Engine.open(tmp_path / "engine") as engine:
        engine._snapshots.finish()
        first = engine.info()["snapshot"]
        assert (first["items"], first["changes_since"]) == (120, 0)
        engine._snapshots._not_before = 0.0
        engine.add([{"text": "red", "id": "one"}])
        engine._snapshots.finish()
        assert engine.info()["snapshot"]["items"] == 120  # one of 120 is not enough
        engine.add([{"text": "red", "id": f"more {i}"} for i in range(5)])
        engine._snapshots.finish()
        assert engine.info()["snapshot"]["items"] == 126
        engine.add([{"text": "red", "id": f"many {i}"} for i in range(20)])
        engine._snapshots.finish()
        assert engine.info()["snapshot"]["items"] == 126  # not so soon after the last
    with Engine.open(tmp_path / "engine", read_only=True) as engine:
        assert engine.info()["snapshot"]["items"] == 146  # but when it is closed


def test_nothing_is_written_of_an_engine_that_is_closed_or_half_read(folder, monkeypatch):
    before = (folder / "index.snapshot").read_bytes()
    with Engine.open(folder) as engine, Engine.open(folder) as other:
        engine._snapshots._not_before = other._snapshots._not_before = float("inf")
        other.add([{"text": "red", "id": f"more {i}"} for i in range(20)])
        other._snapshots._saved = other._revision  # so that closing writes none

        def fail(*args, **kwargs):
            raise StoreError("out of reach")

        monkeypatch.setattr(SqliteStore, "refinements", fail)
        with pytest.raises(StoreError):
            engine.refresh()
        assert not engine._is_snapshot_due(now=True)
        engine.close()
        with pytest.raises(StoreError, match="closed"):
            engine.save_snapshot()
    assert (folder / "index.snapshot").read_bytes() == before


def test_small_engines_have_none(world, tmp_path, monkeypatch):
    monkeypatch.setattr(index_snapshot, "MIN_ITEMS", 121)
    shutil.copytree(world / "engine", tmp_path / "engine", ignore=shutil.ignore_patterns("index.snapshot"))
    with Engine.open(tmp_path / "engine") as engine:
        assert engine.search(text="red")
        assert engine.info()["snapshot"] is None
    assert not (tmp_path / "engine" / "index.snapshot").exists()


def test_two_processes_do_not_both_write_it(folder):
    with Engine.open(folder) as one, Engine.open(folder) as other:
        one.add([{"text": "red", "id": f"more {i}"} for i in range(20)])
        one.save_snapshot()
        written = (folder / "index.snapshot").stat().st_ino
        other._snapshots._not_before = float("inf")  # not by itself
        other.refresh()
        assert other._is_snapshot_due(now=True)
        assert other._snapshots.save(*other._freeze()) is None
        assert not other._is_snapshot_due(now=True)
    assert (folder / "index.snapshot").stat().st_ino == written


def test_a_file_that_somebody_writes_is_known(tmp_path):
    seen = []
    write_atomically(tmp_path / "one", lambda file: seen.append(is_being_written(tmp_path / "one")))
    assert seen == [True]
    assert not is_being_written(tmp_path / "one")
    (tmp_path / ".one.abcd1234.mh-part").write_bytes(b"left by a killed process")
    assert not is_being_written(tmp_path / "one")
    assert not is_being_written(tmp_path / "missing" / "one")


def test_a_full_disk_costs_a_warning(folder, monkeypatch):
    before = (folder / "index.snapshot").read_bytes()

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(snapshot, "_write", full)
    with Engine.open(folder) as engine:
        with pytest.warns(UserWarning, match="No space left.*nothing is lost"):
            assert engine.save_snapshot() is None
        assert engine.search(text="red")
    assert (folder / "index.snapshot").read_bytes() == before
    assert not list(folder.glob(".index*"))


def test_a_read_only_engine_never_writes_one(folder):
    (folder / "index.snapshot").unlink()
    with Engine.open(folder, read_only=True) as engine:
        assert engine.save_snapshot() is None
    assert not (folder / "index.snapshot").exists()


def test_a_folder_that_is_gone_does_not_come_back(folder):
    engine = Engine.open(folder)
    frozen = engine._freeze()
    shutil.rmtree(folder)
    assert engine._snapshots.save(*frozen, anyway=True) is None
    engine.close()
    assert not folder.exists()


def test_backups_are_without_it(folder, tmp_path):
    backup_engine(folder, tmp_path / "engine.tar")
    restore_engine(tmp_path / "engine.tar", tmp_path / "restored")
    assert not (tmp_path / "restored" / "index.snapshot").exists()
    with Engine.open(tmp_path / "restored", read_only=True) as engine:
        assert answers(engine) == without_snapshot(folder, tmp_path)


def test_verify_reads_it_and_repair_deletes_what_cannot_be_used(folder):
    assert verify_engine(folder) == []
    path = folder / "index.snapshot"
    flip(path, path.stat().st_size // 2)
    (finding,) = verify_engine(folder)
    assert (finding.kind, finding.path, finding.repaired) == ("leftover", str(path), False)
    assert "is damaged: its digest differs" in finding.message
    (finding,) = verify_engine(folder, repair=True)
    assert finding.repaired
    assert not path.exists()
    assert verify_engine(folder) == []


def test_vectors_of_a_snapshot_are_those_of_the_store(folder):
    with Engine.open(folder, read_only=True) as engine:
        for numbers, _, vectors, present in engine.store.refinements():
            found = engine._ranker.vectors.find(numbers[present])
            assert np.array_equal(found.vectors(), vectors[present, : engine._ranker.vectors.width])


@pytest.fixture
def clusters(monkeypatch):
    """Let clusters be made of few codes, and whether they pay or not."""
    monkeypatch.setattr("modalhash.index.clusters.MIN_ROWS", 1)
    monkeypatch.setattr("modalhash.index.clusters.ShellTables.pays", True)


@pytest.mark.slow
def test_an_index_with_clusters_answers_as_any_other_also_after_changes(world, tmp_path, clusters):
    Engine.train(world / "items.csv", tmp_path / "engine", n_bits=48).close()
    with Engine.open(tmp_path / "engine") as engine:
        engine.save_snapshot()
    for late in (False, True):
        with Engine.open(tmp_path / "engine", backend="clusters") as engine, Engine.open(tmp_path / "engine") as other:
            assert set(engine.index._clusters._tables) == set(engine.index.groups), "clusters of every modality"
            assert not other.index._clusters.is_built
            if late:
                engine.add([{"id": "late", "text": "a red kite", "labels": ["red"]}])
                engine.remove([engine_ids(engine)[3]], modality="image")
                assert "late" in {hit.id for hit in engine.search(text="a red kite", k=20)}
            assert answers(engine) == answers(other)


def test_an_unknown_backend_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"backend is 'annoy'.*exact.*clusters"):
        Engine.open(tmp_path, backend="annoy")
