"""Where the items of an engine are, and engines in a database that machines share.

The entry ``store`` of the configuration describes a database; without it, the items are in ``items.sqlite``. It
contains the environment variable with the URL of the database, never the URL, which contains a password.

Each machine fetches the files of an engine in a database into its own folder. Training and restoring put the files of a
new engine next to its items, and name it as the successor of the engine that it replaces. Other machines look for a
successor when they open the engine and, as a service, once a second.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modalhash.core.files import abandoned_folders, read_config as _read_config, sweep
from modalhash.engine.storage.audit import AuditLog
from modalhash.engine.storage.folder import (
    CONFIG,
    FORMAT,
    ITEMS,
    KIND,
    PARTS,
    EngineError,
    new_folder,
    new_generation,
    read_config,
    recover_engine,
    write_config,
)
from modalhash.store import SqliteStore, StoreError

if TYPE_CHECKING:
    from modalhash.store import AuditTable, EngineDatabase, PostgresStore

VARIABLE = "MODALHASH_DATABASE_URL"
"""Default environment variable for the URL of the database."""
POSTGRESQL, SQLITE = "postgresql", "sqlite"


@dataclass(frozen=True)
class StoreLocation:
    """Location of the items of one engine."""

    kind: str = SQLITE
    variable: str = VARIABLE
    schema: str | None = None
    replaces: tuple[str, ...] = ()
    """Schemas of replaced engines, which other processes may still have open."""
    database: str | None = None
    """URL of the database; None to read it from the variable."""

    @classmethod
    def of(cls, config: Mapping[str, Any], *, database: str | None = None) -> StoreLocation:
        value = config.get("store", {"kind": SQLITE})
        try:
            place = cls(
                value["kind"], value.get("variable", VARIABLE), value.get("schema"), tuple(value.get("replaces", ()))
            )
        except (TypeError, KeyError, AttributeError):
            raise EngineError(f"{CONFIG}: 'store' is {value!r}; expected an object with its 'kind'") from None
        if place.kind not in (SQLITE, POSTGRESQL) or (place.kind == POSTGRESQL) != isinstance(place.schema, str):
            raise EngineError(f"{CONFIG}: the kind of the store is {place.kind!r}, which this version does not support")
        return replace(place, database=database)

    def to_config(self) -> dict[str, Any]:
        """Return the entry of the configuration; empty for a file, if no schema is left to drop."""
        if self.kind == SQLITE and not self.replaces:
            return {}
        value = {"kind": self.kind, "variable": self.variable, "schema": self.schema, "replaces": list(self.replaces)}
        return {"store": {name: one for name, one in value.items() if one is not None}}

    @property
    def url(self) -> str:
        """URL of the database; EngineError names the variable to set."""
        url = self.database or os.environ.get(self.variable)
        if not url:
            raise EngineError(
                f"the items are in a PostgreSQL database; set the variable {self.variable} to its URL, "
                "postgresql://user:password@host/database"
            )
        return url

    def name(self, folder: Path) -> str:
        return str(folder / ITEMS) if self.kind == SQLITE else f"schema {self.schema} of ${self.variable}"

    def open(
        self,
        folder: Path,
        *,
        searched_fields: Sequence[str] | None = None,
        read_only: bool = False,
        model: str | None = None,
    ) -> SqliteStore | PostgresStore:
        """Open the store; a database with codes of another ``model`` (a digest) raises."""
        if self.kind == SQLITE:
            return SqliteStore(folder / ITEMS, searched_fields=searched_fields, read_only=read_only)
        from modalhash.store import PostgresStore

        assert self.schema is not None
        return PostgresStore(
            self.url, schema=self.schema, searched_fields=searched_fields, read_only=read_only, model=model
        )

    def create(
        self, fresh: Path, *, n_bits: int, searched_fields: Sequence[str], model: str | None = None
    ) -> SqliteStore | PostgresStore:
        if self.kind == SQLITE:
            return SqliteStore(fresh / ITEMS, n_bits=n_bits, searched_fields=searched_fields)
        from modalhash.store import PostgresStore

        assert self.schema is not None
        # written first, so that the schema is found if this process is killed
        write_config(fresh, {"kind": KIND, "format": FORMAT, **self.to_config()})
        return PostgresStore(self.url, schema=self.schema, n_bits=n_bits, searched_fields=searched_fields, model=model)

    def successor(self) -> str | None:
        """Return the schema of the engine that replaced this one on any machine; None if it is the newest."""
        return None if self.schema is None else self.engines.successor(self.schema)

    @property
    def engines(self) -> EngineDatabase:
        from modalhash.store import EngineDatabase

        return EngineDatabase(self.url)

    def drop(self, schema: str, *, only_look: bool = False, unfinished: bool = False) -> bool | None:
        """Drop an unused schema of the same database; see :func:`modalhash.store.drop_schema`."""
        from modalhash.store import drop_schema

        return drop_schema(self.url, schema, only_look=only_look, unfinished=unfinished)


@contextmanager
def create_store(target: Path, store: str | None, *, variable: str | None = None) -> Iterator[StoreLocation]:
    """Choose the location for the items of a new engine; drop its schema if the block fails.

    ``store`` is ``"sqlite"``, the URL of a database, ``"postgresql"`` for the database in the ``variable``, or None for
    the kind of the existing engine in ``target``, or else ``"sqlite"``. Leftovers of
    killed processes are removed first. At the end, the schema of a replaced engine names the new one.
    """
    recover_engine(target)
    old = StoreLocation()
    with suppress(EngineError):
        old = StoreLocation.of(read_config(target))
    place = _choose(store, old, variable)
    sweep_unfinished(target, place)
    left = [*old.replaces, *([] if old.schema is None else [old.schema])]
    if left:
        with suppress(StoreError, EngineError):  # unavailable; they may exist
            left = [schema for schema in left if place.drop(schema, only_look=True) is not None]
        place = replace(place, replaces=tuple(left))
    try:
        yield place
    except BaseException:
        if place.schema is not None:
            with suppress(StoreError, EngineError):  # the first error is more informative
                place.drop(place.schema, unfinished=True)
        raise
    if old.schema is not None and place.schema is not None:  # retraining has done so already
        place.engines.replace(old.schema, place.schema)


def sweep_unfinished(target: Path, place: StoreLocation) -> None:
    """Remove what killed processes left when they created or replaced the engine, with a warning."""
    target = target.absolute()
    left = [path for path in abandoned_folders(target.parent, target=target.name) if drop_leftover(path, place)]
    if left:
        sweep(left)
        warnings.warn(
            f"{target}: a process that was creating or replacing this engine was killed; its leftovers "
            f"({', '.join(path.name for path in left)}) were removed",
            UserWarning,
            stacklevel=4,
        )


def drop_leftover(scratch: Path, place: StoreLocation) -> bool:
    """Drop the schema of an unfinished engine in a scratch folder; return whether none is left.

    ``place`` is the location of the engine's items now.
    """
    try:
        unfinished = _unfinished_location(scratch, place.database)
        return (
            unfinished.schema in (None, place.schema)
            or unfinished.drop(str(unfinished.schema), unfinished=True) is not False
        )
    except (EngineError, StoreError):  # unavailable; it may exist
        return False


def has_schema(scratch: Path) -> bool:
    """Return whether a scratch folder belongs to an engine with a database schema, which must be dropped first."""
    return _unfinished_location(scratch).schema is not None


def _unfinished_location(scratch: Path, database: str | None = None) -> StoreLocation:
    """Return the location of the items of an unfinished engine, of which only the location may be written."""
    path = scratch / "new" / CONFIG
    try:
        config = _read_config(path, kind=KIND, format=FORMAT, required=(), error=EngineError)
        return StoreLocation.of(config, database=database)
    except EngineError:
        return StoreLocation()


def _choose(store: str | None, old: StoreLocation, variable: str | None) -> StoreLocation:
    name = variable or old.variable
    if not name.isidentifier():
        raise ValueError(f"the variable is {name!r}; expected the name of an environment variable")
    if store is None:
        store = old.kind
    if store == SQLITE:
        return StoreLocation(variable=name)
    schema = f"modalhash_{new_generation()}"
    if store == POSTGRESQL:
        return StoreLocation(POSTGRESQL, name, schema)
    if store.startswith(("postgresql://", "postgres://")):
        return StoreLocation(POSTGRESQL, name, schema, database=store)
    raise ValueError("store: expected 'sqlite', 'postgresql', or the URL of a database, postgresql://…")


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
