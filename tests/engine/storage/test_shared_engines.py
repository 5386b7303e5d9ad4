"""Engines in a database: other machines fetch them, and follow to the engine that replaced theirs."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys

import pytest

from modalhash import Engine
from modalhash.core.files import sha256_of
from modalhash.engine import EngineError, audit_log, backup_engine, clone_engine, restore_engine, verify_engine
from modalhash.engine.storage.location import VARIABLE, StoreLocation
from modalhash.store import StoreError, StoreReplacedError, drop_schema
from postgres_server import postgres  # noqa: F401


@pytest.fixture
def url(postgres, monkeypatch):  # noqa: F811
    """The URL of the database, without engines of other tests, in the variable."""

    def drop():
        for (name,) in postgres.execute("SELECT nspname FROM pg_namespace WHERE nspname ~ '^modalhash_'"):
            postgres.execute(f"DROP SCHEMA {name} CASCADE")

    drop()
    monkeypatch.setenv(VARIABLE, postgres.url)
    yield postgres.url
    drop()


@pytest.fixture
def shared(world, tmp_path, url):
    """The little engine, with its items in the database."""
    backup_engine(world / "engine", tmp_path / "engine.tar")
    restore_engine(tmp_path / "engine.tar", tmp_path / "one" / "engine", store="postgresql")
    return tmp_path / "one" / "engine"


def schema_of(folder):
    return StoreLocation.of(json.loads((folder / "config.json").read_text())).schema


def parts(folder):
    """The digests of the model's files and of the encoders'."""
    paths = [path for name in ("model", "encoders") for path in (folder / name).rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): sha256_of([path]) for path in paths}


def again(shared):
    """As another training on this machine does."""
    restore_engine(shared.parents[1] / "engine.tar", shared, overwrite=True)


def test_a_machine_without_anything(shared, tmp_path, url, monkeypatch):
    clone_engine("postgresql", tmp_path / "two")
    assert parts(tmp_path / "two") == parts(shared)
    assert len(parts(shared)) >= 4
    with Engine.open(tmp_path / "two") as two, Engine.open(shared) as one:
        assert two.search(text="a red ball") == one.search(text="a red ball")
        assert one.add([{"id": "new", "text": "a green zebra"}]).added == 1
        assert "new" in [hit.id for hit in two.search(text="zebra", want="text")]
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("MY_ITEMS", url)
    with pytest.raises(FileExistsError, match="overwrite"):
        clone_engine(url, tmp_path / "two")
    clone_engine(url, tmp_path / "two", store_variable="MY_ITEMS", overwrite=True)
    with Engine.open(tmp_path / "two") as two:
        assert [len(two), two.info()["store"]["variable"]] == [121, "MY_ITEMS"]


def test_which_engine_to_fetch(shared, tmp_path, url):
    restore_engine(tmp_path / "engine.tar", tmp_path / "other", store="postgresql")
    schemas = sorted(map(schema_of, (shared, tmp_path / "other")))
    with pytest.raises(EngineError, match=f"the database has {', '.join(schemas)}; choose one with"):
        clone_engine("postgresql", tmp_path / "two")
    clone_engine("postgresql", tmp_path / "two", schema=schema_of(shared))
    assert schema_of(tmp_path / "two") == schema_of(shared)
    with pytest.raises(ValueError, match="expected 'postgresql', or the URL"):
        clone_engine("backup.tar", tmp_path / "three")
    with pytest.raises(StoreError, match="has no files of an engine"):
        clone_engine("postgresql", tmp_path / "three", schema="nothing")
    assert not (tmp_path / "three").exists()


def test_other_machines_follow(shared, tmp_path):
    clone_engine("postgresql", tmp_path / "two")
    clone_engine("postgresql", tmp_path / "three")
    old = schema_of(shared)
    with Engine.open(tmp_path / "two") as two, Engine.open(shared, read_only=True) as on_one:
        assert not two.fetch_replacement()
        again(shared)
        again(shared)  # the successor of the old engine is the newest one
        with pytest.raises(StoreReplacedError, match="a retrained engine has replaced it"):
            two.add([{"id": "late", "text": "a red ball"}])
        assert two.search(text="a red ball", k=1), "it goes on searching"
        assert [two.fetch_replacement(), two.replaced, on_one.fetch_replacement()] == [True, True, True]
        with two.reopen() as newest:
            assert schema_of(tmp_path / "two") == schema_of(shared) != old
            assert newest.generation == json.loads((shared / "config.json").read_text())["generation"]
            assert newest.add([{"id": "late", "text": "a red ball"}]).added == 1
    assert drop_schema(os.environ[VARIABLE], old) is True
    with Engine.open(tmp_path / "three", read_only=False) as three:  # after the old schema was dropped
        assert [schema_of(tmp_path / "three"), len(three)] == [schema_of(shared), 121]


def test_the_audit_log_is_that_of_all_machines(shared, tmp_path, postgres):  # noqa: F811
    clone_engine("postgresql", tmp_path / "two")
    one, two = audit_log(shared), audit_log(tmp_path / "two")
    with one.change("add", {"who": "alice"}, ids=["a"]) as result:
        result["added"] = 1
    with pytest.raises(ZeroDivisionError), two.change("remove", {"who": "bob"}):
        raise ZeroDivisionError
    with one.change("restore", {"who": "alice"}):
        again(shared)
    lines = one.tail(10)
    assert lines == audit_log(shared).tail(10)
    assert [(line["who"], line["what"], line["state"]) for line in lines] == [
        ("alice", "add", "begun"),
        ("alice", "add", "done"),
        ("bob", "remove", "begun"),
        ("bob", "remove", "failed"),
        ("alice", "restore", "begun"),
        ("alice", "restore", "done"),
    ]
    assert {line["machine"] for line in lines} == {socket.gethostname()}
    assert [line["state"] for line in one.tail(2)] == ["begun", "done"]
    assert len(one.path.read_text().splitlines()) == 4, "the file has those of its own machine"
    postgres.execute("ALTER TABLE modalhash_shared.audit ADD CONSTRAINT closed CHECK (false) NOT VALID")
    with pytest.raises(StoreError), one.change("add", {"who": "alice"}):
        pytest.fail("what cannot be recorded is not done")
    assert json.loads(one.path.read_text().splitlines()[-1])["state"] == "failed"


def test_damaged_files_are_not_taken(shared, tmp_path, postgres):  # noqa: F811
    shutil.copytree(shared, tmp_path / "two")
    old = schema_of(shared)
    again(shared)
    postgres.execute(f"UPDATE {schema_of(shared)}.file_part SET data = data || '!'")
    with pytest.raises(StoreError, match="is damaged: its digest differs; nothing was fetched"):
        Engine.open(tmp_path / "two")
    assert schema_of(tmp_path / "two") == old
    postgres.execute(f"UPDATE {schema_of(shared)}.file SET name = '../' || name")
    with pytest.raises(StoreError, match="is not a file of an engine"):
        Engine.open(tmp_path / "two")


def test_a_second_retraining_elsewhere_is_refused(shared, tmp_path):
    shutil.copytree(shared, tmp_path / "two")
    with Engine.open(shared) as one, Engine.open(tmp_path / "two") as two:
        with one.store.lock_writes() as replace_by:
            replace_by("modalhash_0123456789abcdef")
        with pytest.raises(StoreReplacedError, match="a retrained engine has replaced it"), two.store.lock_writes():
            pass


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="no locks there")
def test_a_retraining_that_was_killed_before_its_folder_was_in_place(shared, tmp_path):
    """The database says which engine is the newest, so what others have added to it since is not lost."""
    shutil.copytree(shared, tmp_path / "two")
    old = schema_of(shared)
    program = f"""
import os
from modalhash import Engine
from modalhash.core import files
files._exchange = lambda *_: os._exit(9)
Engine.open({str(shared)!r}).retrain(n_bits=8)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9
    assert schema_of(shared) == old
    with Engine.open(tmp_path / "two") as two:
        assert [two.n_bits, two.add([{"id": "new", "text": "a red ball"}]).added] == [8, 1]
    assert verify_engine(shared, repair=True) == []
    with Engine.open(shared) as one:
        assert [one.n_bits, len(one)] == [8, 121]
    verify_engine(shared, repair=True)
    assert verify_engine(shared) == []
    assert [path.name for path in shared.parent.iterdir()] == ["engine"]
