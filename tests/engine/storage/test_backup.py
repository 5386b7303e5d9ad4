"""A backup is the engine of one moment, and is restored whole or not at all."""

from __future__ import annotations

import errno
import io
import os
import re
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from modalhash import Engine
from modalhash.core import files as _config
from modalhash.engine import EngineError, backup_engine, restore_engine, verify_engine
from modalhash.engine.searching import ONE_PIXEL_GIF
from modalhash.engine.storage import backup as archive
from modalhash.engine.storage.folder import CONFIG, ITEMS, MEDIA
from modalhash.store import SqliteStore


def contents(engine):
    return [(record.key, record.code, record.text, record.extra, record.refinement) for record in engine.items()]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["engine.tar", "engine.tar.gz"])
def test_a_backup_of_an_engine_in_use_is_restored_as_it_was(engine, tmp_path, name):
    engine.add([{"id": "gif", "data": ONE_PIXEL_GIF, "place": "Graz"}], keep=True)
    before = contents(engine)
    backup_engine(engine.path, tmp_path / name)
    engine.add([{"id": "later", "text": "a blue box"}])
    restore_engine(tmp_path / name, tmp_path / "restored")
    assert verify_engine(tmp_path / "restored") == []
    with Engine.open(tmp_path / "restored") as restored:
        assert contents(restored) == before
        assert restored.path_of(restored.get("gif")).read_bytes() == ONE_PIXEL_GIF
        assert restored.search(text="a red ball", k=5) == engine.search(text="a red ball", k=5)
        assert restored.generation != engine.generation
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["engine", name, "restored"])
    with tarfile.open(tmp_path / name) as opened:
        assert all(member.isreg() and member.uid == 0 for member in opened)


def test_only_pictures_of_items_are_in_it(engine, tmp_path):
    engine.add([{"id": "gif", "data": ONE_PIXEL_GIF}], keep=True)
    (engine.path / MEDIA / "notes.txt").write_text("of somebody")
    backup_engine(engine.path, tmp_path / "engine.tar")
    with tarfile.open(tmp_path / "engine.tar") as opened:
        assert [name for name in opened.getnames() if name.startswith(MEDIA)] == [
            f"{MEDIA}/{engine.path_of(engine.get('gif')).name}"
        ]


def test_a_picture_that_is_removed_during_the_backup(engine, tmp_path, monkeypatch):
    """Added after the first look and removed before the second: the store is copied anew."""
    copy, calls = SqliteStore.backup, []

    def meanwhile(store, path):
        calls.append(path)
        if len(calls) == 1:
            engine.add([{"id": "gif", "data": ONE_PIXEL_GIF}], keep=True)
        copy(store, path)
        if len(calls) == 1:
            engine.remove(["gif"])

    monkeypatch.setattr(SqliteStore, "backup", meanwhile)
    backup_engine(engine.path, tmp_path / "engine.tar")
    restore_engine(tmp_path / "engine.tar", tmp_path / "restored")
    assert [len(calls), verify_engine(tmp_path / "restored")] == [2, []]


@pytest.mark.skipif(os.name == "nt", reason="no locks there")
def test_a_backup_sweeps_what_killed_ones_left_beside_it(engine, tmp_path):
    (tmp_path / "backups" / ".monday.tar.abcdefgh.mh-part" / "new").mkdir(parents=True)
    (tmp_path / "backups" / ".monday.tar.abcdefgh.mh-part" / "new" / ITEMS).write_bytes(b"half")
    (tmp_path / "backups" / ".monday.tar.ijklmnop.mh-part").write_bytes(b"half")
    backup_engine(engine.path, tmp_path / "backups" / "tuesday.tar")
    assert [path.name for path in (tmp_path / "backups").iterdir()] == ["tuesday.tar"]


def test_a_backup_of_a_damaged_engine_is_made_with_a_warning(engine, tmp_path):
    engine.add([{"id": "gif", "data": ONE_PIXEL_GIF}], keep=True)
    engine.path_of(engine.get("gif")).unlink()
    with pytest.warns(UserWarning, match=r"is damaged, and so is its backup: media/.* is missing"):
        backup_engine(engine.path, tmp_path / "engine.tar")
    restore_engine(tmp_path / "engine.tar", tmp_path / "restored")


def test_restoring_over_an_engine_is_asked_for_and_noticed_by_whoever_has_it_open(engine, tmp_path):
    backup_engine(engine.path, tmp_path / "engine.tar")
    engine.add([{"id": "later", "text": "a blue box"}])
    with pytest.raises(FileExistsError, match="overwrite=True"):
        restore_engine(tmp_path / "engine.tar", engine.path)
    restore_engine(tmp_path / "engine.tar", engine.path, overwrite=True)
    assert engine.replaced
    with engine.reopen() as restored:
        assert len(restored) == 120


@pytest.fixture
def backup(engine, tmp_path):
    backup_engine(engine.path, tmp_path / "engine.tar")
    return tmp_path / "engine.tar"


def rewrite(backup, change):
    """Write an archive anew with its members as a function changes them: a list of (TarInfo, bytes)."""
    with tarfile.open(backup) as opened:
        members = [(member, opened.extractfile(member).read()) for member in opened]
    with tarfile.open(backup, "w") as opened:
        for member, data in change(members):
            member.size = len(data) if member.isreg() else 0
            opened.addfile(member, io.BytesIO(data))


def listing(names):
    """The first member of an archive that lists these files, truthfully but for the digests."""
    files = {name: {"bytes": 4, "sha256": "0" * 64} for name in names}
    data = _config.config_bytes({"kind": archive.KIND, "format": 1, "files": files})
    return tarfile.TarInfo(archive.CONTENTS), data


def link(name, target, kind):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member, b""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda members: members[1:], "does not start with backup.json"),
        (lambda members: members[:-1], "is truncated: missing"),
        (lambda members: [*members, (tarfile.TarInfo("more"), b"more")], "'more' does not match"),
        (lambda members: [*members, members[-1]], "does not match"),
        (lambda members: [*members[:-1], (members[-1][0], members[-1][1][:-1])], "does not match"),
        (
            lambda members: [*members[:-1], (members[-1][0], members[-1][1][:-1] + b"?")],
            "is damaged: its digest differs",
        ),
        (lambda members: [listing(["../evil"]), (tarfile.TarInfo("../evil"), b"evil")], "it lists other files"),
        (lambda members: [listing(["/tmp/evil"]), (tarfile.TarInfo("/tmp/evil"), b"evil")], "it lists other files"),
        (lambda members: [listing(["media/../../evil"])], "it lists other files"),
        (lambda members: [listing(["."])], "it lists other files"),
        (lambda members: [listing([f"media/{'a' * 300}"])], "it lists other files"),
        (lambda members: [listing(["media", "media/a"])], "'media' is both a file and a folder"),
        (lambda members: [listing(["media/a\0b"])], "it lists other files"),
        (lambda members: [listing(["media/a"]), link("media/a", "/etc/passwd", tarfile.SYMTYPE)], "does not match"),
        (lambda members: [listing(["media/a"]), link("media/a", "config.json", tarfile.LNKTYPE)], "does not match"),
        (lambda members: [listing(["media/a"]), link("media/a", "", tarfile.FIFOTYPE)], "does not match"),
        (
            lambda members: [(members[0][0], members[0][1].replace(b'"bytes": ', b'"bytes": 9', 1))],
            "damaged or changed",
        ),
    ],
)
def test_an_archive_that_is_not_what_it_says_is_refused_and_nothing_is_written(backup, tmp_path, change, message):
    rewrite(backup, change)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(EngineError, match=message):
        restore_engine(backup, tmp_path / "restored")
    assert sorted(os.listdir(tmp_path)) == before


def test_what_is_no_archive_is_refused(tmp_path, backup):
    backup.write_bytes(backup.read_bytes()[:-20_000])
    with pytest.raises(EngineError, match=r"engine\.tar"):
        restore_engine(backup, tmp_path / "restored")
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(EngineError, match="is not a backup, or is damaged"):
        restore_engine(tmp_path / "text", tmp_path / "restored")
    with pytest.raises(FileNotFoundError):
        restore_engine(tmp_path / "nothing", tmp_path / "restored")
    with pytest.raises(EngineError, match="does not exist"):
        backup_engine(tmp_path / "nothing", tmp_path / "new.tar")
    assert not (tmp_path / "restored").exists()
    assert not (tmp_path / "new.tar").exists()


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_header_that_claims_gigabytes_is_not_read(backup, tmp_path, kind, is_first):
    member = tarfile.TarInfo("header")
    member.type, member.size = kind, 3 * 2**30
    with tarfile.open(backup) as opened:
        end = opened.getmembers()[0 if is_first else 2].offset
    with backup.open("r+b") as file:
        file.seek(end)
        file.write(member.tobuf())
        file.truncate(2**32)  # sparse
    tracemalloc.start()
    try:
        with pytest.raises(EngineError, match="more than 131,072 bytes of headers"):
            restore_engine(backup, tmp_path / "restored")
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    finally:
        tracemalloc.stop()
    assert not (tmp_path / "restored").exists()


def test_a_second_list_of_members_is_refused(backup, tmp_path):
    rewrite(backup, lambda members: [*members, members[0]])
    with pytest.raises(EngineError, match=r"'backup\.json' does not match"):
        restore_engine(backup, tmp_path / "restored")


@pytest.mark.parametrize("part", ["model", "media", "archive", "items"])
@pytest.mark.parametrize("name", ["engine.tar", "engine.tar.gz"])
def test_a_backup_on_a_full_disk_is_one_clear_error_and_leaves_nothing(engine, tmp_path, monkeypatch, part, name):
    """Whatever is being written when the disk is full."""
    engine.add([{"id": "gif", "data": ONE_PIXEL_GIF}], keep=True)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "x"))

    def refuse(*given, **more):
        raise full

    if part in ("model", "media"):
        monkeypatch.setattr("modalhash.core.files.copy_tree.__defaults__", (refuse,))
        if part == "media":
            monkeypatch.setattr("os.link", refuse)
            monkeypatch.setattr("shutil.copy2", refuse)
    elif part == "archive":
        monkeypatch.setattr(tarfile, "copyfileobj", refuse)
    else:
        monkeypatch.setattr(SqliteStore, "backup", refuse)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(EngineError, match=rf"no space for .*{re.escape(name)}; free some"):
        backup_engine(engine.path, tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == before


def test_an_archive_that_needs_more_room_than_there_is(backup, tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr(archive.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(EngineError, match="10 are free; free some space"):
        restore_engine(backup, tmp_path / "restored")


def test_an_engine_opened_read_only_is_searched_and_not_changed(engine):
    engine.close()
    before = {path: path.read_bytes() for path in engine.path.rglob("*") if path.is_file()}
    with Engine.open(engine.path, read_only=True) as opened:
        hit = opened.search(text="a red ball", k=1)[0]
        assert opened.get(hit.id, modality=hit.modality)
        for change in (lambda: opened.add([{"text": "a red ball"}]), lambda: opened.remove([hit.id])):
            with pytest.raises(EngineError, match="opened read-only"):
                change()
        with opened.reopen() as again:
            assert again.read_only
    assert {path: path.read_bytes() for path in before} == before
    assert (engine.path / CONFIG).exists()


@pytest.mark.parametrize("name", ["engine.tar.gz", "engine.tar.xz", "engine.tar.bz2"])
def test_damage_within_a_compressed_archive_is_told(backup, tmp_path, name):
    import bz2
    import gzip
    import lzma

    compress = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}[Path(name).suffix]
    data = bytearray(compress(backup.read_bytes()))
    data[len(data) // 2 : len(data) // 2 + 40] = bytes(40)
    (tmp_path / name).write_bytes(data)
    with pytest.raises(EngineError, match=name):
        restore_engine(tmp_path / name, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()
