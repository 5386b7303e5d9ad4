"""Back up engines while they are in use, and restore them.

A backup is a tar file. Its first member, ``backup.json``, lists the sizes and digests of the others, which are the
files of the engine's folder (:mod:`modalhash.engine.storage.folder`) with the media that its items use.
"""

from __future__ import annotations

import errno
import lzma
import shutil
import tarfile
import warnings
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from modalhash.core import files as _config
from modalhash.core.archives import BoundedTar
from modalhash.core.files import (
    abandoned_folders,
    copy_tree,
    link_tree,
    scratch_folder,
    sha256_of,
    sweep,
    temporary_files,
    write_atomically,
)
from modalhash.engine.items.item import ItemFiles
from modalhash.engine.search.confidence import FILE as CONFIDENCE
from modalhash.engine.search.refinement import FILE as REFINEMENT
from modalhash.engine.storage.folder import (
    CONFIG,
    ENCODERS,
    ITEMS,
    MEDIA,
    MODEL,
    SQLITE,
    SYNCED,
    EngineError,
    Generation,
    StoreLocation,
    create_store,
    has_schema,
    new_folder,
    new_generation,
    read_config,
    recover_engine,
    write_config,
)
from modalhash.store import SqliteStore, StoreError, StoreFullError

FORMAT = 1
KIND = "modalhash backup"
CONTENTS = "backup.json"
MAX_CONTENTS = 2**28
"""Largest size in bytes of the list of members; about two million entries."""
_PARTS = (CONFIG, MODEL, ENCODERS, REFINEMENT, CONFIDENCE, SYNCED)
_ATTEMPTS = 3
_MOVED_TOGETHER = 10_000


def backup_engine(folder: str | Path, file: str | Path, *, database: str | None = None) -> None:
    """Write a consistent backup of an engine, which stays in use.

    Items in a database are written as a file, like all others. Damaged items and missing media are backed up as they
    are, with a warning.

    Parameters
    ----------
    folder : of the engine
    file : the archive, written atomically; compressed if its name ends in ``.gz`` or ``.tgz``
    database : URL of the engine's database, instead of the one in the environment variable
    """
    folder, file = Path(folder), Path(file)
    recover_engine(folder)
    parent = file.absolute().parent
    left = [path for path in abandoned_folders(parent) if not has_schema(path)]  # left by killed backups
    sweep([*left, *temporary_files(parent)])
    while True:
        generation = Generation(folder)
        with _room_for(file), scratch_folder(file) as scratch:
            stage = scratch / "new"
            try:
                missing = _stage(folder, stage, database)
            except (OSError, EngineError, StoreError):
                if generation.is_current():
                    raise
                continue
            if not generation.is_current():
                continue  # the engine was replaced meanwhile
            found = _damage(folder, stage, database) + [f"{uri} is missing" for uri in missing]
            for ending in ("-wal", "-shm"):
                (stage / f"{ITEMS}{ending}").unlink(missing_ok=True)
            write_atomically(file, partial(_write_archive, stage, compress=file.suffix in (".gz", ".tgz")))
            break
    if found:
        text = f"{folder} is damaged, and so is its backup: {found[0]} ({len(found)} in total; see modalhash verify)"
        warnings.warn(text, UserWarning, stacklevel=2)


def restore_engine(
    file: str | Path,
    folder: str | Path,
    *,
    overwrite: bool = False,
    store: str | None = None,
    store_variable: str | None = None,
) -> None:
    """Create an engine atomically from a backup.

    Digests are verified, and nothing is written outside the folder. The engine gets a new generation, so that processes
    that have a replaced engine open notice.

    Parameters
    ----------
    file : the archive
    folder : the folder to create
    overwrite : replace an existing engine and its media
    store, store_variable : store of the items, as for :meth:`Engine.train`
    """
    file, folder = Path(file), Path(folder)
    with (
        _room_for(folder),
        create_store(folder, store, variable=store_variable) as place,
        new_folder(folder, overwrite=overwrite, keep_media=False) as fresh,
    ):
        try:
            with BoundedTar.open(file, "r:*") as archive:
                _extract(archive, fresh, file)
        except EngineError:
            raise
        except (tarfile.TarError, EOFError, OSError, ValueError, LookupError, zlib.error, lzma.LZMAError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise EngineError(f"{file} is not a backup, or is damaged: {error}") from error
        config = read_config(fresh)
        if place.kind != SQLITE:
            _move_items(fresh, config, place, ItemFiles.of(folder, config, relative=False))
        write_config(fresh, {**config, **place.to_config(), "generation": new_generation()})


@contextmanager
def _room_for(target: Path) -> Iterator[None]:
    """Name the target, not one of many temporary files, if the disk is full."""
    try:
        yield
    except (OSError, StoreFullError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise EngineError(f"no space for {target}; free some, or choose another disk") from error


def _move_items(fresh: Path, config: Mapping[str, Any], place: StoreLocation, files: ItemFiles) -> None:
    fields = config["searched_fields"]
    with (
        SqliteStore(fresh / ITEMS, read_only=True) as source,
        place.create(fresh, n_bits=source.n_bits, searched_fields=fields, model=config["model"]) as target,
    ):
        records = source.scan()
        while batch := list(islice(records, _MOVED_TOGETHER)):
            target.add(replace(record, uri=files.whole(record.uri)) for record in batch)
    for ending in ("", "-wal", "-shm"):
        (fresh / f"{ITEMS}{ending}").unlink(missing_ok=True)


def _damage(folder: Path, stage: Path, database: str | None) -> list[str]:
    """Return the damage of the items in a backup; a database checks its own items."""
    place = StoreLocation.of(read_config(folder), database=database)
    with SqliteStore(stage / ITEMS, read_only=True) as copy:
        found = copy.damage()
    if place.kind != SQLITE:
        with place.open(folder, read_only=True) as store:
            found += store.damage()
    return found


def _stage(folder: Path, stage: Path, database: str | None) -> list[str]:
    """Copy an engine with a consistent store and the media of its items; return missing media.

    Media files are never changed, but may be deleted at any time. They are linked before and after the store is copied;
    if a file that was added in between is already deleted, the copy is repeated.
    """
    place = StoreLocation.of(read_config(folder), database=database)
    stage.mkdir()
    for name in _PARTS:
        copy_tree(folder / name, stage / name)
    write_config(stage, {name: value for name, value in read_config(stage).items() if name != "store"})
    used: set[str] = set()
    for _ in range(_ATTEMPTS):
        link_tree(folder / MEDIA, stage / MEDIA)
        (stage / ITEMS).unlink(missing_ok=True)
        with place.open(folder, read_only=True) as store:
            store.backup(stage / ITEMS)
        link_tree(folder / MEDIA, stage / MEDIA)
        with SqliteStore(stage / ITEMS, read_only=True) as copy:
            used = copy.uris(f"{MEDIA}/")
        missing = sorted(uri for uri in used if uri.startswith(f"{MEDIA}/") and not (stage / uri).is_file())
        if not missing:
            break
    names = {PurePosixPath(uri).name for uri in used}
    for path in (stage / MEDIA).iterdir() if (stage / MEDIA).is_dir() else ():
        if path.name not in names:
            path.unlink()
    return missing


def _write_archive(stage: Path, out: BinaryIO, *, compress: bool) -> None:
    files = [path for path in sorted(stage.rglob("*")) if path.is_file()]
    listed = {
        path.relative_to(stage).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_of([path])}
        for path in files
    }
    contents = stage / CONTENTS
    contents.write_bytes(_config.config_bytes({"kind": KIND, "format": FORMAT, "files": listed}))
    with tarfile.open(fileobj=out, mode="w:gz" if compress else "w", dereference=True) as archive:
        for path in (contents, *files):
            archive.add(path, path.relative_to(stage).as_posix(), recursive=False, filter=_without_owner)


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _extract(archive: tarfile.TarFile, fresh: Path, file: Path) -> None:
    """Extract the listed members of an archive and verify their digests."""
    first = archive.next()
    if first is None or first.name != CONTENTS or not first.isreg() or first.size > MAX_CONTENTS:
        raise EngineError(f"{file} is not a backup of an engine: it does not start with {CONTENTS}")
    listed = _read_contents(archive, first, fresh, file)
    needed = sum(one["bytes"] for one in listed.values())
    if needed > (free := shutil.disk_usage(fresh).free):
        raise EngineError(
            f"{file} needs {needed:,} bytes, and {free:,} are free; free some space, or choose another disk"
        )
    while (member := archive.next()) is not None:
        expected = listed.pop(member.name, None)
        if expected is None or not member.isreg() or member.size != expected["bytes"]:
            raise EngineError(f"{file}: {member.name!r} does not match the list of the backup; nothing was restored")
        source = archive.extractfile(member)
        assert source is not None
        target = fresh / member.name
        target.parent.mkdir(parents=True, exist_ok=True)
        with source, target.open("xb") as out:
            shutil.copyfileobj(source, out, 2**20)
        if sha256_of([target]) != expected.get("sha256"):
            raise EngineError(f"{file}: {member.name!r} is damaged: its digest differs; nothing was restored")
    if listed:
        raise EngineError(f"{file} is truncated: missing {', '.join(sorted(listed)[:3])}; nothing was restored")


def _read_contents(archive: tarfile.TarFile, member: tarfile.TarInfo, fresh: Path, file: Path) -> dict[str, Any]:
    """Return the list of members by name; every name is valid in an engine."""
    source = archive.extractfile(member)
    assert source is not None
    path = fresh / CONTENTS
    path.write_bytes(source.read())
    config = _config.read_config(path, kind=KIND, format=FORMAT, required=("files",), error=EngineError)
    path.unlink()
    listed = config["files"]
    if not isinstance(listed, Mapping) or not all(
        _is_own(name) and isinstance(one, Mapping) and isinstance(one.get("bytes"), int) for name, one in listed.items()
    ):
        raise EngineError(f"{file} is not a backup of an engine: it lists other files")
    if twice := {parent.as_posix() for name in listed for parent in PurePosixPath(name).parents} & listed.keys():
        raise EngineError(f"{file} is not a backup of an engine: {min(twice)!r} is both a file and a folder")
    return dict(listed)


def _is_own(name: str) -> bool:
    """Return whether a member has a valid name of an engine file."""
    path = PurePosixPath(name)
    return (
        path.as_posix() == name
        and not path.is_absolute()
        and ".." not in path.parts
        and "\\" not in name
        and ":" not in name
        and "\0" not in name
        and len(name.encode("utf-8", "surrogatepass")) < 255
        and path.parts[:1] in {(one,) for one in (*_PARTS, ITEMS, MEDIA)}
    )
