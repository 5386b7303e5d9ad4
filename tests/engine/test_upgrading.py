"""Engines of earlier formats brought to the present one, in their place."""

from __future__ import annotations

import sqlite3

import pytest

from modalhash import Engine
from modalhash.engine import EngineError, EngineReplacedError, upgrade_engine, verify_engine
from modalhash.engine.engine import ONE_PIXEL_GIF
from modalhash.engine.folder import ITEMS, write_config
from modalhash.store import STORE_FORMAT, SqliteStore, StoreBusyError, StoreError

TO_FORMAT_3 = (
    "DROP TRIGGER item_label_added",
    "DROP TRIGGER item_label_removed",
    "ALTER TABLE label DROP COLUMN items",
    "ALTER TABLE item DROP COLUMN checksum",
    "PRAGMA user_version = 3",
)


@pytest.fixture
def old(engine):
    """The folder of an engine as an earlier version wrote it."""
    engine.add([{"id": "kept", "data": ONE_PIXEL_GIF}], keep=True)
    engine.close()
    connection = sqlite3.connect(engine.path / ITEMS)
    for statement in TO_FORMAT_3:
        connection.execute(statement)
    connection.close()
    write_config(engine.path, {name: value for name, value in engine.config.items() if name != "generation"})
    return engine.path


def lines(folder):
    with Engine.open(folder, read_only=True) as engine:
        return list(engine.export())


def test_an_old_engine_is_brought_to_the_newest_format_once(old):
    before = lines(old)
    with Engine.open(old, read_only=True) as reader:
        done = upgrade_engine(old)
        assert done.done[1] == f"items.sqlite: from format 3 to {STORE_FORMAT}"
        assert "config.json" in done.done[0]
        assert reader.replaced, "a service notices, and follows"
        assert reader.search(text="a red ball"), "who has it open goes on searching"
        with reader.reopen() as new:
            assert not new.replaced
    assert SqliteStore.format_of(old / ITEMS) == STORE_FORMAT
    assert lines(old) == before
    assert upgrade_engine(old).done == ()
    assert verify_engine(old) == []
    assert [path.name for path in old.parent.iterdir()] == ["engine"]


def test_only_a_new_id_is_given_where_the_store_is_as_it_should_be(engine):
    write_config(engine.path, {name: value for name, value in engine.config.items() if name != "generation"})
    assert len(upgrade_engine(engine.path).done) == 1
    assert upgrade_engine(engine.path).done == ()


def test_who_writes_meanwhile_waits_and_is_told(old, monkeypatch):
    """In the old format there may be writers of an earlier version; one of this version migrates by itself."""
    other, outcome = sqlite3.connect(old / ITEMS, timeout=0), []
    check = SqliteStore.check

    def write(store):
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        outcome.append("waits")
        check(store)

    monkeypatch.setattr(SqliteStore, "check", write)
    upgrade_engine(old)
    assert outcome == ["waits"]
    other.close()


def test_a_damaged_engine_is_refused_and_left_as_it_is(old):
    connection = sqlite3.connect(old / ITEMS)
    with connection:
        connection.execute("UPDATE item SET modality = 99 WHERE number = 3")
    connection.close()
    with pytest.raises(StoreError, match="damaged"):
        upgrade_engine(old)
    assert SqliteStore.format_of(old / ITEMS) == 3
    assert [path.name for path in old.parent.iterdir()] == ["engine"]
    (old / "model" / "config.json").write_text("{}")
    with pytest.raises(EngineError):
        upgrade_engine(old)


def test_an_engine_that_was_replaced_or_is_written_to_is_left_alone(old, monkeypatch):
    holder = sqlite3.connect(old / ITEMS, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr("modalhash.store.sqlite.held_copy", _hasty)
    with pytest.raises(StoreBusyError):
        upgrade_engine(old)
    holder.close()
    monkeypatch.undo()
    monkeypatch.setattr("modalhash.engine.folder.Generation.is_current", lambda self: False)
    with pytest.raises(EngineReplacedError):
        upgrade_engine(old)
    assert SqliteStore.format_of(old / ITEMS) == 3


def _hasty(path, target):
    from modalhash.store._sqlite_open import held_copy

    return held_copy(path, target, timeout=0.01)
