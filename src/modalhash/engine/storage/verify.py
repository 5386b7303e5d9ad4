"""Is an engine sound? What is damaged is found, and what killed processes left behind is swept."""

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
    Generation,
    is_saved_media,
    model_digest,
    read_config,
    read_parts,
)
from modalhash.engine.storage.index_snapshot import SnapshotOwner, snapshot_problem
from modalhash.engine.storage.location import StoreLocation, drop_leftover, has_schema, sweep_unfinished
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
"""Errors of the system that say nothing about a file."""


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be."""

    kind: str
    """``"damage"``: not as it was written, or missing; ``"leftover"``: of a process that was killed."""
    path: str
    """The file or folder."""
    message: str
    repaired: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def verify_engine(
    folder: str | Path, *, repair: bool = False, trust: bool = False, database: str | None = None
) -> list[Finding]:
    """Read all of an engine and return what is wrong with it; an empty list if nothing is.

    Digests of all parts, the pages of the store, a checksum for every item, saved pictures that are missing or that no
    item has, the snapshot of the index, what killed processes left in the folder or beside it, and schemas of engines
    that this one replaced in a database. Others may use the engine meanwhile. What keeps from looking, such as a full
    disk, is raised: it is no damage.

    Parameters
    ----------
    folder : of the engine
    repair : remove leftovers. Damage cannot be undone; restore a backup (:func:`restore_engine`)
    trust : import encoders of other packages if the engine names some; that runs their code
    database : the URL of its database, if its items are in one, instead of that of the variable which it names
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
        read_parts(folder, trust=trust)
    except (EngineError, OSError) as error:
        _raise_if_unknown(error)
        found.append(Finding("damage", str(folder), str(error)))
    scratch = [path for path in scratch_folders(folder) if not repair or drop_leftover(path, place)]
    found += _leftovers(scratch, "the remains of an engine that was being made", repair)
    beside = folder.absolute().parent  # where exports and backups are often put
    others = [path for path in abandoned_folders(beside) if not _is_of(folder, path) and not has_schema(path)]
    found += _leftovers(others, "the remains of a backup, or of another engine that was being made", repair)
    left = [*temporary_files(beside), *_own_leftovers(folder)]
    found += _leftovers(left, "the remains of what was being written", repair)
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
    """Raise what says nothing about the engine: a full disk, a permission, a store that is busy or out of reach."""
    cause = error.__cause__ if isinstance(error, EngineError) else error
    if isinstance(error, StoreFullError | StoreBusyError | StoreAccessError | StoreUnavailableError):
        raise error
    if isinstance(cause, OSError) and cause.errno in _SAY_NOTHING:
        raise error


def remove_leftovers(folder: Path, store: Store, place: StoreLocation) -> None:
    """Remove what killed processes left beside an engine and in it; warn of an engine that was being made."""
    sweep_unfinished(folder, place)
    sweep(_own_leftovers(folder))
    unused_media(folder, store, delete=True)


def unused_media(folder: Path, store: Store, *, delete: bool = False) -> list[Path]:
    """Return the saved pictures that no item has; none while somebody is adding some."""
    media = folder / MEDIA
    if not media.is_dir() or not any(media.iterdir()):
        return []
    with shared_lock(media, exclusive=True) as alone:
        if not alone:
            return []
        saved = [path for path in sorted(media.iterdir()) if is_saved_media(path.name)]
        # By name, which is random: a manifest that was exported has the whole path.
        used = {PurePath(uri).name for uri in store.uris(f"{MEDIA}/")} if saved else set()
        unused = [path for path in saved if path.name not in used]
        if delete:
            for path in unused:
                path.unlink(missing_ok=True)
    return unused


def _replaced_schemas(place: StoreLocation, repair: bool) -> list[Finding]:
    """Find the schemas of engines that this one replaced, which nobody has open any more."""
    found = []
    for schema in place.replaces:
        free = place.drop(schema, only_look=not repair)
        if free:
            message = "the schema of an engine that was replaced, which nobody uses any more"
            found.append(Finding("leftover", f"schema {schema} of ${place.variable}", message, repaired=repair))
    return found


def _is_of(folder: Path, scratch: Path) -> bool:
    """Return whether a scratch folder is of this engine, by its name."""
    return scratch.name.removesuffix(".mh-part").rpartition(".")[0] == f".{folder.absolute().name}"


def _own_leftovers(folder: Path) -> list[Path]:
    """Return the temporary files and folders in an engine that nobody is writing."""
    places = (folder, folder / MEDIA, folder / ENCODERS)
    return [path for place in places for path in (*temporary_files(place), *abandoned_folders(place))]


def _leftovers(paths: Iterable[Path], what: str, repair: bool) -> list[Finding]:
    paths = list(paths)
    if repair:
        sweep(paths)
    return [Finding("leftover", str(path), what, repaired=repair and not path.exists()) for path in paths]


def _check_snapshot(folder: Path, store: Store, repair: bool) -> list[Finding]:
    """Find a snapshot of the index that cannot be used: no damage, because it is a copy, and is made anew."""
    with suppress(EngineError):
        config = read_config(folder)
        owner = SnapshotOwner(Generation(folder).id, model_digest(config))
        problem = snapshot_problem(folder, owner, store)
        if problem is not None:
            if repair:
                (folder / SNAPSHOT).unlink(missing_ok=True)
            message = (
                f"a snapshot of the index that is of no use ({problem}); opening takes longer until there is another"
            )
            return [Finding("leftover", str(folder / SNAPSHOT), message, repaired=repair)]
    return []


def _check_media(folder: Path, store: Store, repair: bool) -> list[Finding]:
    missing = sorted(
        uri for uri in store.uris(f"{MEDIA}/") if uri.startswith(f"{MEDIA}/") and not (folder / uri).is_file()
    )
    found = [Finding("damage", str(folder / uri), "the picture of an item is missing") for uri in missing]
    unused = unused_media(folder, store, delete=repair)
    return found + [Finding("leftover", str(path), "a picture that no item has", repaired=repair) for path in unused]
