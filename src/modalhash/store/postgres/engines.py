"""Engines in a database: the files of each in its schema, and which engine replaced which.

A schema has the files of its engine by name and digest, so that every machine that reaches the database can have the
engine. The schema ``modalhash_shared`` names, for each replaced schema, the newest one that replaced it, even after the
old schema was dropped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from modalhash.store.postgres.connection import BEING_MADE, IN_USE, REPLACED, Connections, lock_key
from modalhash.store.records import StoreError

SHARED = "modalhash_shared"
_PART_BYTES = 2**22
CREATE_FILES = (
    'CREATE TABLE {schema}.file (name text COLLATE "C" PRIMARY KEY, digest text NOT NULL)',
    "CREATE TABLE {schema}.file_part (digest text, part integer, data bytea NOT NULL, PRIMARY KEY (digest, part))",
    "ALTER TABLE {schema}.file_part ALTER data SET STORAGE EXTERNAL",
)
_CREATE_SHARED = (
    f"CREATE SCHEMA IF NOT EXISTS {SHARED}",
    f"CREATE TABLE IF NOT EXISTS {SHARED}.successor (old text PRIMARY KEY, new text NOT NULL)",
    f"CREATE TABLE IF NOT EXISTS {SHARED}.audit (number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
    "schema text NOT NULL, line json NOT NULL)",
    f"CREATE INDEX IF NOT EXISTS audit_schema ON {SHARED}.audit (schema, number)",
)


def has_table(connection: Any, schema: str, table: str) -> bool:
    sql = "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = %s"
    return bool(connection.execute(sql, [schema, table]).fetchall())


def has_schema(connection: Any, schema: str) -> bool:
    return bool(connection.execute("SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %s", [schema]).fetchall())


def find_successor(connection: Any, schema: str) -> str | None:
    """Return the newest schema that replaced this one, if any."""
    if not has_table(connection, SHARED, "successor"):
        return None
    rows = connection.execute(f"SELECT new FROM {SHARED}.successor WHERE old = %s", [schema]).fetchall()
    return str(rows[0][0]) if rows else None


def refuse_changes(connection: Any, schema: str) -> None:
    """Let a schema refuse every change from the end of the transaction on, which has locked its counter.

    A row and not a constraint: adding one waits for all transactions that wait for the counter.
    """
    connection.execute(f'INSERT INTO "{schema}".meta VALUES (%s, %s) ON CONFLICT DO NOTHING', [REPLACED, ""])


def name_successor(connection: Any, old: str, new: str) -> None:
    """Record in the caller's transaction that ``new`` replaces ``old``, and what ``old`` had replaced."""
    create_shared(connection)
    connection.execute(f"UPDATE {SHARED}.successor SET new = %s WHERE new = %s", [new, old])
    connection.execute(f"INSERT INTO {SHARED}.successor VALUES (%s, %s)", [old, new])


def create_shared(connection: Any) -> None:
    """Create the schema that all engines of a database share, unless it exists, in the caller's transaction."""
    if has_table(connection, SHARED, "audit"):
        return
    connection.execute("SELECT pg_advisory_xact_lock(%s, %s)", (BEING_MADE, lock_key(SHARED)))
    for statement in _CREATE_SHARED:
        connection.execute(statement)


def _parts(connection: Any, schema: str, digest: str) -> Iterator[bytes]:
    sql, part = f'SELECT data FROM "{schema}".file_part WHERE digest = %s AND part = %s', 0
    while rows := connection.cursor(binary=True).execute(sql, [digest, part]).fetchall():
        yield bytes(rows[0][0])
        part += 1


class EngineDatabase:
    """The engines in a PostgreSQL database.

    Parameters
    ----------
    url : str
        As for :class:`PostgresStore`.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def save_files(self, schema: str, files: Mapping[str, Path]) -> None:
        """Store the files of an engine by name, instead of those that its schema has."""
        with self._connection(schema) as (connection, _), connection.transaction():
            create_shared(connection)
            connection.execute(f'DELETE FROM "{schema}".file')
            connection.execute(f'DELETE FROM "{schema}".file_part')
            for name, path in files.items():
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                    file.seek(0)
                    for part, data in enumerate(iter(partial(file.read, _PART_BYTES), b"")):
                        sql = f'INSERT INTO "{schema}".file_part VALUES (%s, %s, %s) ON CONFLICT DO NOTHING'
                        connection.execute(sql, [digest, part, data])
                connection.execute(f'INSERT INTO "{schema}".file VALUES (%s, %s)', [name, digest])

    def load_files(self, schema: str, folder: Path) -> None:
        """Write the files of an engine into a folder; raise if one is not as its digest says."""
        with self._connection(schema) as (connection, shown):
            names: list[tuple[str, str]] = []
            if has_table(connection, schema, "file"):
                names = connection.execute(f'SELECT name, digest FROM "{schema}".file ORDER BY name').fetchall()
            if not names:
                raise StoreError(f"{shown} has no files of an engine; copy its folder from another machine")
            for name, digest in names:
                if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                    raise StoreError(f"{shown}: {name!r} is not a file of an engine; nothing was fetched")
                path, actual = folder / name, hashlib.sha256()
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as file:
                    for data in _parts(connection, schema, digest):
                        actual.update(data)
                        file.write(data)
                if actual.hexdigest() != digest:
                    raise StoreError(f"{shown}: {name!r} is damaged: its digest differs; nothing was fetched")

    def newest(self) -> list[str]:
        """Return the schemas that have the files of an engine and were not replaced."""
        with self._connection(SHARED) as (connection, _):
            sql = "SELECT schemaname FROM pg_catalog.pg_tables WHERE tablename = 'file_part' ORDER BY 1"
            found = [str(schema) for (schema,) in connection.execute(sql).fetchall()]
            return [schema for schema in found if find_successor(connection, schema) is None]

    def successor(self, schema: str) -> str | None:
        """Return the newest schema that replaced this one, which need not exist, if any."""
        with self._connection(schema) as (connection, _):
            return find_successor(connection, schema)

    def replace(self, old: str, new: str) -> None:
        """Let ``new`` replace ``old``, or what replaced that already: it refuses changes, and all machines follow."""
        with self._connection(old) as (connection, _), connection.transaction():
            old = find_successor(connection, old) or old
            if old == new:
                return
            if has_schema(connection, old):
                connection.execute(f'SELECT FROM "{old}".counter FOR UPDATE')
                refuse_changes(connection, old)
            name_successor(connection, old, new)

    @contextmanager
    def _connection(self, schema: str) -> Iterator[tuple[Any, str]]:
        """Provide a connection, and the name of a schema for messages, which need not exist."""
        connections = Connections(self._url, schema, read_only=False)
        with connections.connect(schema=False) as connection, connections.translated():
            yield connection, connections.name


class AuditTable:
    """The audit log of an engine in its database, which outlives its schema and is the same for all machines."""

    def __init__(self, url: str, schema: str) -> None:
        self._connections, self._schema = Connections(url, SHARED, read_only=False), schema

    def append(self, line: str) -> None:
        def work(connection: Any) -> None:
            create_shared(connection)
            connection.execute(f"INSERT INTO {SHARED}.audit (schema, line) VALUES (%s, %s)", [self._schema, line])

        self._connections.change(work)

    def tail(self, n: int) -> list[dict[str, Any]]:
        """Return the last lines of this engine and of those that it has replaced, oldest first."""
        sql = (
            f"SELECT line FROM {SHARED}.audit WHERE schema = %s OR schema IN "
            f"(SELECT old FROM {SHARED}.successor WHERE new = %s) ORDER BY number DESC LIMIT %s"
        )

        def work(connection: Any) -> list[dict[str, Any]]:
            if not has_table(connection, SHARED, "audit"):
                return []
            rows = connection.execute(sql, [self._schema, self._schema, n]).fetchall()
            return [dict(line) for (line,) in reversed(rows)]

        return self._connections.read(work)

    def close(self) -> None:
        self._connections.close()


def drop_schema(url: str, schema: str, *, only_look: bool = False, unfinished: bool = False) -> bool | None:
    """Delete a schema that no process has open; return whether it was deleted.

    Returns False if a process has it open, and None if it does not exist. With ``only_look`` nothing is deleted, and
    True means that it could be. ``unfinished`` spares a schema that has replaced another one, because machines follow
    to it even if the process that created it was killed before its folder was in place.
    """
    connections = Connections(url, schema, read_only=False)
    with connections.connect(schema=False) as connection, connections.translated():
        if not has_schema(connection, schema):
            return None
        ((alone,),) = connection.execute("SELECT pg_try_advisory_lock(%s, %s)", (IN_USE, lock_key(schema))).fetchall()
        with connection.transaction():
            free = alone and not (unfinished and _is_successor(connection, schema))
            if free and not only_look:
                connection.execute(f'DROP SCHEMA "{schema}" CASCADE')
        return bool(free)


def _is_successor(connection: Any, schema: str) -> bool:
    """Return whether a schema has replaced another one; wait for transactions that are being committed."""
    if not has_table(connection, SHARED, "successor"):
        return False
    connection.execute(f"LOCK TABLE {SHARED}.successor IN SHARE MODE")
    sql = f"SELECT 1 FROM {SHARED}.successor WHERE new = %s"
    return bool(connection.execute(sql, [schema]).fetchall())
