"""verify, backup, restore, --read-only, and bad lines, as typed."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from command_line import run
from postgres_server import postgres  # noqa: F401


@pytest.mark.slow
def test_a_backup_is_restored(engine, tmp_path):
    done = run("backup", engine, tmp_path / "engine.tar.gz")
    assert done.exit_code == 0
    assert "engine written to" in done.stderr
    shutil.rmtree(engine)
    done = run("restore", tmp_path / "engine.tar.gz", engine)
    assert [done.exit_code, run("search", engine, "red ball").exit_code] == [0, 0]
    assert run("restore", tmp_path / "engine.tar.gz", engine).exit_code == 2
    assert run("restore", tmp_path / "engine.tar.gz", engine, "--overwrite").exit_code == 0
    assert run("verify", engine).exit_code == 0


@pytest.mark.slow
def test_relabel_and_retrain(engine, world, tmp_path):
    (tmp_path / "labels.csv").write_text("id,labels\nphotos/1.png,red;sunset\nnothing,red\n")
    done = run("relabel", engine, tmp_path / "labels.csv")
    assert done.exit_code == 1
    assert "line 3: nothing: no item has the id" in done.stderr
    assert "1 item relabelled, 0 unchanged; 1 have codes from labels" in done.stderr
    assert "only after modalhash retrain: sunset (1)" in done.stderr
    facts = json.loads(run("relabel", engine, tmp_path / "labels.csv", "--json").stdout)
    assert (facts["unchanged"], facts["problems"][0]["code"]) == (1, "unknown_id")
    done = run("relabel", engine, tmp_path / "labels.csv", "--field", "id=photo")
    assert [done.exit_code, "expected photo and labels" in done.stderr] == [2, True]
    shutil.copy(world / "photos" / "0.png", tmp_path / "lost.png")
    (tmp_path / "lost.csv").write_text("id,path\nlost,lost.png\n")
    assert run("add", engine, tmp_path / "lost.csv").exit_code == 0
    (tmp_path / "lost.png").unlink()
    done = run("retrain", engine)
    assert done.exit_code == 2
    assert "lost.png: no such file" in done.stderr
    assert "--drop-missing" in done.stderr
    done = run("retrain", engine, "--drop-missing", "--json")
    assert done.exit_code == 1
    facts = json.loads(done.stdout)
    assert (facts["items"], facts["new_labels"], facts["n_bits"]) == (120, ["sunset"], 16)
    noted = [json.loads(line) for line in engine.with_name("engine.audit.jsonl").read_text().splitlines()]
    assert {line["what"] for line in noted} == {"relabel", "add", "retrain"}


def test_a_full_disk_is_no_damage(engine, monkeypatch):
    from modalhash.store import SqliteStore, StoreFullError

    def full(store):
        raise StoreFullError("the disk is full")

    monkeypatch.setattr(SqliteStore, "damage", full)
    done = run("verify", engine)
    assert [done.exit_code, "error: the disk is full" in done.stderr, "backup" in done.stderr] == [2, True, False]


@pytest.mark.skipif(os.name == "nt", reason="no locks there")
def test_verify_says_what_is_wrong(engine):
    done = run("verify", engine)
    assert [done.exit_code, f"{engine} is sound" in done.stderr] == [0, True]
    (engine / ".config.json.abcdefgh.mh-part").write_text("half")
    done = run("verify", engine)
    assert [done.exit_code, "--repair removes" in done.stderr] == [1, True]
    done = run("verify", engine, "--repair", "--json")
    assert done.exit_code == 0
    facts = json.loads(done.stdout)
    assert facts["sound"]
    assert facts["findings"][0] | {"path": ""} == {
        "kind": "leftover",
        "path": "",
        "message": "left by a killed process that was writing a file",
        "repaired": True,
    }
    model = engine / "model" / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1])
    done = run("verify", engine, "--repair")
    assert [done.exit_code, "restore a backup" in done.stderr] == [1, True]
    assert run("verify", engine.parent / "nowhere" / "engine").exit_code == 2


def test_read_only(engine, tmp_path):
    before = {path: path.read_bytes() for path in engine.rglob("*") if path.is_file()}
    for command in (["search", engine, "red ball"], ["info", engine], ["export", engine], ["duplicates", engine]):
        assert run(*command, "--read-only").exit_code == 0
    done = run("serve", engine, "--read-only", "--writable")
    assert [done.exit_code, "exclude each other" in done.stderr] == [2, True]
    assert {path: path.read_bytes() for path in before} == before


def test_a_bad_line_is_named_and_the_rest_is_added(engine, tmp_path):
    manifest = tmp_path / "more.jsonl"
    manifest.write_text('{"id": "half", "text": "\\ud83d"}\n{"id": "good", "text": "a red ball"}\n')
    done = run("add", engine, manifest)
    assert done.exit_code == 1
    assert "more.jsonl, line 1: half: text has an unpaired surrogate" in done.stderr
    done = run("add", engine, manifest, "--replace", "--json")
    facts = json.loads(done.stdout)
    assert [facts["replaced"], facts["problems"][0]["line"]] == [1, 1]


def test_an_id_that_no_output_takes_is_printed_escaped(engine, tmp_path):
    manifest = tmp_path / "more.jsonl"
    manifest.write_text('{"id": "\\ud83d", "text": "a red ball"}\n')
    done = run("add", engine, manifest, "--json")
    assert [done.exit_code, json.loads(done.stdout)["problems"][0]["id"]] == [1, "\ud83d"]


@pytest.mark.skipif(os.name == "nt", reason="no locks there")
def test_the_rest_of_an_export_that_was_killed_is_swept_by_the_next_one(engine, tmp_path):
    left = tmp_path / ".items.jsonl.abcdefgh.mh-part"
    left.write_text("half")
    assert run("export", engine, "-o", tmp_path / "items.jsonl").exit_code == 0
    assert not left.exists()


@pytest.mark.slow
def test_items_move_into_a_database_and_back(engine, tmp_path, postgres, monkeypatch):  # noqa: F811
    with_password = postgres.url.replace("postgres@", "postgres:s3cret@", 1)
    assert run("backup", engine, tmp_path / "engine.tar").exit_code == 0
    done = run("restore", tmp_path / "engine.tar", engine, "--overwrite", "--store", "postgresql")
    assert [done.exit_code, "set the variable MODALHASH_DATABASE_URL" in done.stderr] == [2, True]
    monkeypatch.setenv("MODALHASH_DATABASE_URL", with_password)
    assert run("restore", tmp_path / "engine.tar", engine, "--overwrite", "--store", "postgresql").exit_code == 0
    facts = json.loads(run("info", engine, "--json").stdout)
    assert [facts["items"], facts["store"]["kind"]] == [120, "postgresql"]
    assert run("search", engine, "red ball", "--read-only").exit_code == 0
    assert run("verify", engine).exit_code == 0
    done = run("restore", tmp_path / "engine.tar", engine, "--overwrite", "--store", "sqlite")
    assert [done.exit_code, run("verify", engine, "--repair").exit_code] == [0, 0]
    assert postgres.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", facts["store"]["schema"]) == []
    bad = run("train", tmp_path / "none.csv", "-o", tmp_path / "new", "--store", "mysql://me:s3cret@db/items")
    assert [bad.exit_code, "s3cret" in bad.stderr] == [2, False]
    assert "s3cret" not in (tmp_path / "engine.audit.jsonl").read_text()
