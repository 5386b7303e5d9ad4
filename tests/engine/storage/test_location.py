"""Engines whose items are in PostgreSQL: made, opened, replaced, checked, backed up, and never telling a password."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from modalhash import Engine
from modalhash.engine import EngineError, EngineReplacedError, backup_engine, restore_engine, verify_engine
from modalhash.engine.storage import index_snapshot
from modalhash.engine.storage.folder import FORMAT, KIND, write_config
from modalhash.engine.storage.location import VARIABLE, StoreLocation, has_schema
from modalhash.engine.training import train as training_module
from modalhash.index import read_snapshot_facts
from modalhash.store import StoreError, StoreUnavailableError
from postgres_server import postgres  # noqa: F401

LOST = StoreUnavailableError("the server is away")


@pytest.fixture
def schemas(postgres):  # noqa: F811
    """The schemas of engines, all of which are dropped before and after."""
    sql = "SELECT nspname FROM pg_namespace WHERE nspname ~ '^modalhash_[0-9a-f]{16}$' ORDER BY 1"

    def find():
        return [name for (name,) in postgres.execute(sql)]

    def drop():
        for name in find():
            postgres.execute(f"DROP SCHEMA {name} CASCADE")

    drop()  # those of other tests that used this server
    yield find
    drop()


@pytest.fixture
def url(postgres, schemas, monkeypatch):  # noqa: F811
    """The URL of the database, with a password, in the variable."""
    with_password = postgres.url.replace("postgres@", "postgres:s3cret@", 1)
    monkeypatch.setenv(VARIABLE, with_password)
    return with_password


@pytest.fixture
def shared(world, tmp_path, url):
    """The little engine, with its items in the database."""
    backup_engine(world / "engine", tmp_path / "engine.tar")
    restore_engine(tmp_path / "engine.tar", tmp_path / "engine", store="postgresql")
    return tmp_path / "engine"


@pytest.mark.slow
def test_train_and_search(world, tmp_path, url, schemas):
    with (
        Engine.train(world / "items.csv", tmp_path / "engine", n_bits=16, store=url) as engine,
        Engine.open(world / "engine") as expected,
    ):
        (schema,) = schemas()
        assert engine.info()["store"] == {"kind": "postgresql", "variable": VARIABLE, "schema": schema, "replaces": []}
        for options in ({}, {"want": "image", "where": "label = red"}, {"refine": False, "hybrid": False}):
            assert engine.search(text="a red ball", **options) == expected.search(text="a red ball", **options)
        assert not (tmp_path / "engine" / "items.sqlite").exists()
    texts = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"s3cret" in text or b"postgresql://" in text for text in texts)
    shutil.copytree(tmp_path / "engine", tmp_path / "other machine")
    with Engine.open(tmp_path / "engine") as one, Engine.open(tmp_path / "other machine") as two:
        assert one.add([{"id": "new", "text": "a green zebra"}]).added == 1
        assert "new" in [hit.id for hit in two.search(text="zebra", want="text")], "at the next search"
        two.remove(["new"])
        assert "new" not in [hit.id for hit in one.search(text="zebra", want="text")]


def test_a_url_that_is_missing_or_wrong(shared, monkeypatch, tmp_path):
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(EngineError, match=f"set the variable {VARIABLE} to its URL"):
        Engine.open(shared)
    monkeypatch.setenv(VARIABLE, f"postgresql://me:s3cret@/items?host={tmp_path}")
    with pytest.raises(StoreUnavailableError, match="cannot be reached") as raised:
        Engine.open(shared)
    assert "s3cret" not in str(raised.value)
    with pytest.raises(ValueError, match="expected 'sqlite', 'postgresql', or the URL") as raised:
        Engine.train([], tmp_path / "e", store="mysql://me:s3cret@db/items")
    assert "s3cret" not in str(raised.value)
    with pytest.raises(ValueError, match="the name of an environment variable"):
        Engine.train([], tmp_path / "e", store="postgresql", store_variable="postgresql://me@db")


def test_another_variable(world, tmp_path, url, monkeypatch):
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("MY_ITEMS", url)
    backup_engine(world / "engine", tmp_path / "b.tar")
    restore_engine(tmp_path / "b.tar", tmp_path / "engine", store="postgresql", store_variable="MY_ITEMS")
    with Engine.open(tmp_path / "engine") as engine:
        assert [len(engine), engine.info()["store"]["variable"]] == [120, "MY_ITEMS"]


def test_another_model_is_refused(shared, url):
    config = json.loads((shared / "config.json").read_text())
    place = StoreLocation.of(config)
    with pytest.raises(StoreError, match="holds codes of another model"):
        place.open(shared, model="0" * 64)


def test_pictures_are_not_kept(shared):
    from modalhash.engine.searching import ONE_PIXEL_GIF

    with Engine.open(shared) as engine:
        found = engine.add([{"id": "new", "data": ONE_PIXEL_GIF}, {"id": "t", "text": "a red ball"}], keep=True,
                           on_problem=lambda problem: None)  # fmt: skip
        assert [found.added, [problem.code for problem in found.problems]] == [1, ["not_shared"]]
        assert "set MODALHASH_MEDIA_URL" in found.problems[0].reason
    assert not (shared / "media").exists()


def test_replacing_goes_to_a_new_schema(world, shared, schemas):
    (old,) = schemas()
    with Engine.open(shared) as open_one:
        restore_engine(shared.parent / "engine.tar", shared, overwrite=True)
        new = (set(schemas()) - {old}).pop()
        assert open_one.replaced
        assert open_one.search(text="a red ball", k=1), "what is open goes on answering"
        with pytest.raises(EngineReplacedError):
            open_one.add([{"id": "new", "text": "a red ball"}])
        assert verify_engine(shared, repair=True) == [], "somebody has the old one open"
        with open_one.reopen() as newer:
            assert newer.info()["store"]["schema"] == new
            assert newer.info()["store"]["replaces"] == [old]
    (finding,) = verify_engine(shared)
    assert [finding.kind, finding.repaired, old in finding.path] == ["leftover", False, True]
    (finding,) = verify_engine(shared, repair=True)
    assert [finding.repaired, schemas()] == [True, [new]]
    assert verify_engine(shared) == []
    restore_engine(shared.parent / "engine.tar", shared, overwrite=True, store="sqlite")
    with Engine.open(shared) as engine:
        assert len(engine) == 120
    assert [finding.repaired for finding in verify_engine(shared, repair=True)] == [True]
    assert schemas() == []


@pytest.mark.slow
def test_a_training_that_fails_leaves_no_schema(world, tmp_path, url, schemas, monkeypatch):
    monkeypatch.setattr(training_module, "write_parts", lambda *_: (_ for _ in ()).throw(OSError("no more")))
    with pytest.raises(OSError, match="no more"):
        Engine.train(world / "items.csv", tmp_path / "engine", n_bits=8, store="postgresql")
    assert [schemas(), list(tmp_path.iterdir())] == [[], []]


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="no locks there")
def test_a_training_that_was_killed_is_swept(shared, schemas):
    program = f"""
import os
from modalhash.engine import restore_engine
from modalhash.engine.storage import backup
backup.write_config = lambda *_: os._exit(9)
restore_engine({str(shared.parent / "engine.tar")!r}, {str(shared)!r}, overwrite=True)
"""
    (own,) = schemas()
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9
    assert len(schemas()) == 2
    assert [finding.repaired for finding in verify_engine(shared, repair=True)] == [True]
    assert schemas() == [own]
    with Engine.open(shared) as engine:
        assert len(engine) == 120


def test_verify_and_backup(shared, schemas, postgres, tmp_path):  # noqa: F811
    assert verify_engine(shared) == []
    with Engine.open(shared) as engine:
        engine.add([{"id": "new", "text": "a green zebra", "labels": ["green"], "year": 3}])
        before = list(engine.export())
    backup_engine(shared, tmp_path / "b.tar")
    restore_engine(tmp_path / "b.tar", tmp_path / "file", store="sqlite")
    with Engine.open(tmp_path / "file") as engine:
        assert [{**line, "path": None} for line in engine.export()] == [{**line, "path": None} for line in before]
    postgres.execute(f"UPDATE {schemas()[0]}.item SET text = 'x' WHERE id = 'new'")
    (finding,) = verify_engine(shared)
    assert [finding.kind, finding.message] == ["damage", "the item 'new' of 'text' is not as it was written"]
    with pytest.warns(UserWarning, match="is damaged, and so is its backup"):
        backup_engine(shared, tmp_path / "damaged.tar")


def test_a_snapshot_is_a_local_cache_of_the_database(shared, monkeypatch):
    monkeypatch.setattr(index_snapshot, "MIN_ITEMS", 10)

    def found(engine):
        return [(hit.modality, hit.id, hit.score) for hit in engine.search(text="red", k=200)]

    with Engine.open(shared) as engine:
        engine._snapshots._not_before = float("inf")
        assert engine.save_snapshot() is not None
        engine.add([{"text": "a red boat", "id": "new"}])
        engine.remove([hit.id for hit in engine.search(text="blue", want="image", k=3)], modality="image")
        expected = found(engine)
        engine._snapshots._saved = engine._revision  # so that closing writes no other
    with Engine.open(shared, read_only=True) as engine:
        assert list(engine._snapshots._saved) == read_snapshot_facts(shared / "index.snapshot")[0]["revision"]
        assert engine.info()["snapshot"]["changes_since"] == 4
        assert found(engine) == expected


def test_read_only(shared):
    with Engine.open(shared, read_only=True) as engine:
        assert engine.search(text="a red ball", k=1)
        with pytest.raises(EngineError, match="read-only"):
            engine.add([{"id": "new", "text": "a red ball"}])


def test_a_search_goes_on_after_a_failed_refresh(shared, monkeypatch):
    with Engine.open(shared) as engine, Engine.open(shared) as other:
        other.add([{"id": "new", "text": "a green zebra"}])
        refinements = type(engine.store).refinements
        monkeypatch.setattr(type(engine.store), "refinements", lambda *_, **__: (_ for _ in ()).throw(LOST))
        with pytest.raises(StoreUnavailableError):
            engine.search(text="zebra")
        monkeypatch.setattr(type(engine.store), "refinements", refinements)
        assert engine.search(text="a green zebra", want="text", k=3) == other.search(
            text="a green zebra", want="text", k=3
        )


@pytest.mark.parametrize("value", [3, {}, {"kind": "mysql"}, {"kind": "postgresql"}, {"kind": "sqlite", "schema": "x"}])
def test_configurations_that_make_no_sense(value):
    with pytest.raises(EngineError, match="store"):
        StoreLocation.of({"store": value})


def test_the_first_note_of_a_new_engine_tells_its_schema(tmp_path):
    assert not has_schema(tmp_path)
    (tmp_path / "new").mkdir()
    write_config(
        tmp_path / "new", {"kind": KIND, "format": FORMAT, **StoreLocation("postgresql", schema="s").to_config()}
    )
    assert has_schema(tmp_path)
    write_config(tmp_path / "new", {"kind": KIND, "format": FORMAT})
    assert not has_schema(tmp_path)


@pytest.mark.slow
def test_relabel_retrain_and_upgrade(shared, schemas, tmp_path):
    """Also where another machine, with a copy of the folder, writes to the old schema after the new one took over."""
    shutil.copytree(shared, tmp_path / "elsewhere")
    (old,) = schemas()
    with Engine.open(shared) as engine, Engine.open(tmp_path / "elsewhere") as elsewhere:
        item, peer = (
            next(one for one in engine.items() if one.modality == "image" and set(one.labels) == labels)
            for labels in ({"red", "circle"}, {"blue", "square"})
        )
        assert elsewhere.relabel([{"id": item.id, "labels": ["blue", "square"]}]).learned == 1
        assert engine.get(item.id, modality="image").code == peer.code
        done = []

        def change(progress):
            if progress.stage == "store: text" and not done:
                done.append(elsewhere.add([{"id": "late", "text": "a red ball"}]).added)
                elsewhere.remove([peer.id])

        with engine.retrain(callback=change) as new:
            assert done == [1]
            assert [len(new), engine.replaced] == [120, True]
            records = {one.key: one for one in new.items()}
            assert records["text", "late"].kind == "hashed"
            assert ("image", peer.id) not in records
            assert records["image", item.id].labels == ("blue", "square")
            assert len(schemas()) == 2
            with pytest.raises(StoreError, match="a retrained engine has replaced it"):
                elsewhere.add([{"id": "too late", "text": "a red ball"}])
            assert elsewhere.search(text="a red ball"), "it goes on searching in the old schema"
    verify_engine(shared, repair=True)
    assert old not in schemas()
    assert verify_engine(shared) == []
