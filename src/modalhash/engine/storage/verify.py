"""Verify an engine, and remove leftovers of killed processes."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath

from modalhash.core.files import abandoned_folders, recover_folder, scratch_folders, shared_lock, sweep, temporary_files
from modalhash.engine.storage.folder import (
    ENCODERS,
    MEDIA,
    SNAPSHOT,
    EngineError,
    StoreLocation,
    drop_leftover,
    has_schema,
    is_saved_media,
    read_config,
    read_parts,
    sweep_unfinished,
)
from modalhash.engine.storage.index_snapshot import snapshot_problem
from modalhash.store import (
    Store,
    StoreAccessError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
)

_SAY_NOTHING = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM),
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
    """Return whether a scratch folder belongs to this engine, by its name."""
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


def _check_media(folder: Path, store: Store, repair: bool) -> list[Finding]:
    missing = sorted(
        uri for uri in store.uris(f"{MEDIA}/") if uri.startswith(f"{MEDIA}/") and not (folder / uri).is_file()
    )
    found = [Finding("damage", str(folder / uri), "the picture of an item is missing") for uri in missing]
    unused = unused_media(folder, store, delete=repair)
    return found + [Finding("leftover", str(path), "a picture without an item", repaired=repair) for path in unused]
