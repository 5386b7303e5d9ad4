"""Location of an engine's items: a file in its folder, or a schema of a PostgreSQL database.

The entry ``store`` of the configuration describes a database; without it, the items are in ``items.sqlite``. It
contains the environment variable with the URL of the database, never the URL, which contains a password.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modalhash.core import files as _config
from modalhash.core.files import abandoned_folders, sweep
from modalhash.engine.storage.folder import (
    CONFIG,
    FORMAT,
    ITEMS,
    KIND,
    EngineError,
    new_generation,
    read_config,
    recover_engine,
    write_config,
)
from modalhash.store import SqliteStore, StoreError

if TYPE_CHECKING:
    from modalhash.store import PostgresStore

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
        """Return the name of the store for messages."""
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
        """Create the store of a new engine in a scratch folder."""
        if self.kind == SQLITE:
            return SqliteStore(fresh / ITEMS, n_bits=n_bits, searched_fields=searched_fields)
        from modalhash.store import PostgresStore

        assert self.schema is not None
        # written first, so that the schema is found if this process is killed
        write_config(fresh, {"kind": KIND, "format": FORMAT, **self.to_config()})
        return PostgresStore(self.url, schema=self.schema, n_bits=n_bits, searched_fields=searched_fields, model=model)

    def drop(self, schema: str, *, only_look: bool = False) -> bool | None:
        """Drop an unused schema of the same database; see :func:`modalhash.store.drop_schema`."""
        from modalhash.store import drop_schema

        return drop_schema(self.url, schema, only_look=only_look)


@contextmanager
def create_store(target: Path, store: str | None, *, variable: str | None = None) -> Iterator[StoreLocation]:
    """Choose the location for the items of a new engine; drop its schema if the block fails.

    Leftovers of killed processes are removed first.

    Parameters
    ----------
    target : folder of the engine, which may exist store : ``"sqlite"``, the URL of a database, ``"postgresql"`` for the
    database in the variable, or None for the kind of the existing engine, or else ``"sqlite"`` variable : environment
    variable for the URL
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
                place.drop(place.schema)
        raise


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
        return unfinished.schema in (None, place.schema) or unfinished.drop(str(unfinished.schema)) is not False
    except (EngineError, StoreError):  # unavailable; it may exist
        return False


def has_schema(scratch: Path) -> bool:
    """Return whether a scratch folder belongs to an engine with a database schema, which must be dropped first."""
    return _unfinished_location(scratch).schema is not None


def _unfinished_location(scratch: Path, database: str | None = None) -> StoreLocation:
    """Return the location of the items of an unfinished engine, of which only the location may be written."""
    path = scratch / "new" / CONFIG
    try:
        config = _config.read_config(path, kind=KIND, format=FORMAT, required=(), error=EngineError)
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
