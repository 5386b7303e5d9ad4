"""Back up engines while they are in use, restore them, verify them, and remove leftovers of killed processes.

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
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, BinaryIO

from modalhash.core import files as _config
from modalhash.core.archives import BoundedTar
from modalhash.core.files import (
    abandoned_folders,
    copy_tree,
    link_tree,
    recover_folder,
    scratch_folder,
    scratch_folders,
    sha256_of,
    shared_lock,
    sweep,
    temporary_files,
    write_atomically,
)
from modalhash.engine.items import urls
from modalhash.engine.items.item import ItemFiles
from modalhash.engine.storage.folder import (
    ENCODERS,
    ITEMS,
    MEDIA,
    PARTS,
    SNAPSHOT,
    SYNCED,
    EngineError,
    Generation,
    is_saved_media,
    new_folder,
    new_generation,
    read_config,
    read_parts,
    recover_engine,
    write_config,
)
from modalhash.engine.storage.index_snapshot import snapshot_problem
from modalhash.engine.storage.location import (
    SQLITE,
    StoreLocation,
    create_store,
    drop_leftover,
    has_schema,
    publish,
    sweep_unfinished,
)
from modalhash.store import (
    SqliteStore,
    Store,
    StoreAccessError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
)

FORMAT = 1
KIND = "modalhash backup"
CONTENTS = "backup.json"
MAX_CONTENTS = 2**28
"""Largest size in bytes of the list of members; about two million entries."""
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
            files = ItemFiles.of(folder, config, relative=False)
            _move_items(fresh, config, place, files)
            if files.media_url is not None:
                for path in (fresh / MEDIA).glob("*"):
                    urls.write_whole(urls.join(files.media_url, path.name), path.read_bytes())
        write_config(fresh, {**config, **place.to_config(), "generation": new_generation()})
        publish(fresh, place)


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
    for name in (*PARTS, SYNCED):
        copy_tree(folder / name, stage / name)
    write_config(stage, {name: value for name, value in read_config(stage).items() if name != "store"})
    used: set[str] = set()
    for _ in range(_ATTEMPTS):
        link_tree(folder / MEDIA, stage / MEDIA)
        (stage / ITEMS).unlink(missing_ok=True)
        with place.open(folder, read_only=True) as store:
            store.backup(stage / ITEMS)
            _fetch_media(folder, place, store)
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
    path = PurePosixPath(name)
    return (
        path.as_posix() == name
        and not path.is_absolute()
        and ".." not in path.parts
        and "\\" not in name
        and ":" not in name
        and "\0" not in name
        and len(name.encode("utf-8", "surrogatepass")) < 255
        and path.parts[:1] in {(one,) for one in (*PARTS, SYNCED, ITEMS, MEDIA)}
    )


_SAY_NOTHING = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
}
"""OS errors that do not indicate a damaged file."""


@dataclass(frozen=True)
class Finding:
    """Damage or a leftover."""

    kind: str
    """``"damage"``: changed or missing; ``"leftover"``: of a killed process."""
    path: str
    message: str
    repaired: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def verify_engine(
    folder: str | Path, *, repair: bool = False, trust: bool = False, database: str | None = None
) -> list[Finding]:
    """Read an entire engine and return findings; an empty list if it is intact.

    Verifies digests of all parts, the pages of the store, item checksums, media and the index snapshot, and finds
    leftovers of killed processes in the folder and next to it and schemas of replaced engines. The engine may be in
    use. Errors that prevent verification, such as a full disk, raise.

    Parameters
    ----------
    folder : of the engine
    repair : remove leftovers. Damage requires a backup (:func:`restore_engine`)
    trust : import encoders of other packages that the engine names, which runs their code
    database : URL of the engine's database, instead of the one in the environment variable
    """
    folder = Path(folder)
    found = []
    place = StoreLocation()
    with suppress(EngineError):
        place = StoreLocation.of(read_config(folder), database=database)
    if recover_folder(folder):
        message = "a process that was replacing this engine was killed; the previous engine was put back"
        found.append(Finding("leftover", str(folder), message, repaired=True))
    try:
        _ = read_parts(folder, trust=trust).model  # which reads more than opening does
    except (EngineError, OSError) as error:
        _raise_if_unknown(error)
        found.append(Finding("damage", str(folder), str(error)))
    scratch = [path for path in scratch_folders(folder) if not repair or drop_leftover(path, place)]
    found += _leftovers(scratch, "left by a killed process that was creating an engine", repair)
    parent = folder.absolute().parent  # usual folder of exports and backups
    others = [path for path in abandoned_folders(parent) if not _is_of(folder, path) and not has_schema(path)]
    found += _leftovers(others, "left by a killed process that was creating a backup or another engine", repair)
    left = [*temporary_files(parent), *_own_leftovers(folder)]
    found += _leftovers(left, "left by a killed process that was writing a file", repair)
    try:
        with place.open(folder, read_only=not repair) as store:
            found += (Finding("damage", place.name(folder), message) for message in store.damage())
            _fetch_media(folder, place, store)
            found += _check_media(folder, store, repair)
            found += _check_snapshot(folder, store, repair)
        found += _replaced_schemas(place, repair)
    except (EngineError, StoreError, OSError) as error:
        _raise_if_unknown(error)
        found.append(Finding("damage", place.name(folder), str(error)))
    return found


def _raise_if_unknown(error: Exception) -> None:
    """Raise errors that are not about the engine: a full disk, permissions, a busy or unavailable store."""
    cause = error.__cause__ if isinstance(error, EngineError) else error
    if isinstance(error, StoreFullError | StoreBusyError | StoreAccessError | StoreUnavailableError):
        raise error
    if isinstance(cause, OSError) and cause.errno in _SAY_NOTHING:
        raise error


def remove_leftovers(folder: Path, store: Store, place: StoreLocation) -> None:
    """Remove leftovers of killed processes next to an engine and in it; warn of an unfinished engine."""
    sweep_unfinished(folder, place)
    sweep(_own_leftovers(folder))
    unused_media(folder, store, delete=True)


def unused_media(folder: Path, store: Store, *, delete: bool = False) -> list[Path]:
    """Return the saved pictures without an item; none while another process is adding some."""
    media = folder / MEDIA
    if not media.is_dir() or not any(media.iterdir()):
        return []
    with shared_lock(media, exclusive=True) as alone:
        if not alone:
            return []
        saved = [path for path in sorted(media.iterdir()) if is_saved_media(path.name)]
        # By name, which is random, because an exported manifest has the entire path.
        used = {PurePath(uri).name for uri in store.uris(f"{MEDIA}/")} if saved else set()
        unused = [path for path in saved if path.name not in used]
        if delete:
            for path in unused:
                path.unlink(missing_ok=True)
    return unused


def _replaced_schemas(place: StoreLocation, repair: bool) -> list[Finding]:
    found = []
    for schema in place.replaces:
        free = place.drop(schema, only_look=not repair)
        if free:
            message = "the schema of an engine that was replaced, which is not in use"
            found.append(Finding("leftover", f"schema {schema} of ${place.variable}", message, repaired=repair))
    return found


def _is_of(folder: Path, scratch: Path) -> bool:
    return scratch.name.removesuffix(".mh-part").rpartition(".")[0] == f".{folder.absolute().name}"


def _own_leftovers(folder: Path) -> list[Path]:
    places = (folder, folder / MEDIA, folder / ENCODERS)
    return [path for place in places for path in (*temporary_files(place), *abandoned_folders(place))]


def _leftovers(paths: Iterable[Path], what: str, repair: bool) -> list[Finding]:
    paths = list(paths)
    if repair:
        sweep(paths)
    return [Finding("leftover", str(path), what, repaired=repair and not path.exists()) for path in paths]


def _check_snapshot(folder: Path, store: Store, repair: bool) -> list[Finding]:
    """Find an invalid index snapshot, which is not damage because it is recreated."""
    problem = snapshot_problem(folder, store)
    if problem is None:
        return []
    if repair:
        (folder / SNAPSHOT).unlink(missing_ok=True)
    message = f"an invalid snapshot of the index ({problem}); opening takes longer until a new one is written"
    return [Finding("leftover", str(folder / SNAPSHOT), message, repaired=repair)]


def _fetch_media(folder: Path, place: StoreLocation, store: Store) -> None:
    """Copy pictures at the media URL into the folder, unless they are there."""
    files = ItemFiles.of(folder, read_config(folder), relative=place.kind == SQLITE)
    if files.media_url is not None:
        for uri in store.uris(f"{MEDIA}/"):
            files.find(uri)


def _check_media(folder: Path, store: Store, repair: bool) -> list[Finding]:
    missing = sorted(
        uri for uri in store.uris(f"{MEDIA}/") if uri.startswith(f"{MEDIA}/") and not (folder / uri).is_file()
    )
    found = [Finding("damage", str(folder / uri), "the picture of an item is missing") for uri in missing]
    unused = unused_media(folder, store, delete=repair)
    return found + [Finding("leftover", str(path), "a picture without an item", repaired=repair) for path in unused]
