"""Engines in a database that machines share: each machine fetches the files of the engine into its own folder.

Training and restoring put the files of a new engine next to its items, and name it as the successor of the engine that
it replaces. Other machines look for a successor when they open the engine and, as a service, once a second.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from modalhash.engine.storage.audit import AuditLog
from modalhash.engine.storage.folder import (
    PARTS,
    POSTGRESQL,
    EngineError,
    StoreLocation,
    new_folder,
    read_config,
    write_config,
)

if TYPE_CHECKING:
    from modalhash.store import AuditTable


def publish(folder: Path, place: StoreLocation) -> None:
    """Put the files of a complete engine next to its items, if they are in a database."""
    if place.schema is None:
        return
    paths = [path for name in PARTS for path in (folder / name, *sorted((folder / name).rglob("*"))) if path.is_file()]
    place.engines.save_files(place.schema, {path.relative_to(folder).as_posix(): path for path in paths})


def follow(folder: Path, *, database: str | None = None) -> bool:
    """Replace the engine in a folder by the one that replaced it on another machine; return whether there is one."""
    place = StoreLocation.of(read_config(folder), database=database)
    newest = place.successor()
    if newest is None:
        return False
    _fetch(folder, replace(place, schema=newest), overwrite=True)
    return True


def clone_engine(
    source: str,
    folder: str | Path,
    *,
    schema: str | None = None,
    store_variable: str | None = None,
    overwrite: bool = False,
) -> None:
    """Fetch an engine from the PostgreSQL database of its items, for one more machine that serves it.

    Parameters
    ----------
    source : ``"postgresql"`` for the database in the variable, or its URL
    folder : the folder to create
    schema : of the engine, if the database has several
    store_variable : environment variable for the URL, which the engine reads when it is opened
    overwrite : replace an existing engine
    """
    if source != POSTGRESQL and not source.startswith(("postgresql://", "postgres://")):
        raise ValueError(f"source is {source!r}; expected 'postgresql', or the URL of a database, postgresql://…")
    place = StoreLocation(POSTGRESQL, schema=schema, database=None if source == POSTGRESQL else source)
    if store_variable is not None:
        place = replace(place, variable=store_variable)
    if schema is None:
        found = place.engines.newest()
        if len(found) != 1:
            names = ", ".join(found) or "no engine"
            raise EngineError(f"the database has {names}; choose one with schema=… (--schema)")
        place = replace(place, schema=found[0])
    _fetch(Path(folder), replace(place, schema=place.successor() or place.schema), overwrite=overwrite)


def audit_log(folder: str | Path, *, database: str | None = None) -> AuditLog:
    """Return the audit log of an engine, which need not exist yet: a file, and the database of its items, if any."""
    folder = Path(folder)
    tables: dict[str, AuditTable] = {}

    def table() -> AuditTable | None:
        place = StoreLocation()
        with suppress(EngineError):  # the engine is being created
            place = StoreLocation.of(read_config(folder), database=database)
        if place.schema is None:
            return None
        if place.schema not in tables:
            from modalhash.store import AuditTable

            tables[place.schema] = AuditTable(place.url, place.schema)
        return tables[place.schema]

    return AuditLog.of_engine(folder, table)


def _fetch(folder: Path, place: StoreLocation, *, overwrite: bool) -> None:
    assert place.schema is not None
    with new_folder(folder, overwrite=overwrite) as fresh:
        place.engines.load_files(place.schema, fresh)
        config = read_config(fresh)
        own = replace(StoreLocation.of(config), variable=place.variable)
        write_config(fresh, {**config, **own.to_config()})
