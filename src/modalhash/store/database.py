"""The SQLite file under the store: opened or created safely, and errors a person understands.

Write-ahead logging lets readers go on while one process writes; ``synchronous=FULL`` waits for the disk at
every commit, so what was committed outlives a killed process and a power cut. Every change is one
``BEGIN IMMEDIATE`` transaction: whole or not at all, one writer after another.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from modalhash.codes import n_bytes
from modalhash.validation import check_int

FORMAT = 1
APPLICATION = 0x6D6F6468  # "modh" in the file's header: `file store.db` shows it
SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE modality (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE item (
    number INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used twice: a larger one was added later
    id TEXT NOT NULL UNIQUE,
    modality INTEGER NOT NULL REFERENCES modality (number),
    code BLOB NOT NULL CHECK (length(code) = {width}),
    kind TEXT NOT NULL CHECK (kind IN ('learned', 'hashed')),
    text TEXT,
    uri TEXT,
    labels TEXT,
    extra TEXT
);
CREATE INDEX item_modality ON item (modality, kind);
CREATE TABLE removed (step INTEGER PRIMARY KEY AUTOINCREMENT, number INTEGER NOT NULL);
"""


class StoreError(RuntimeError):
    """The store's file cannot be used; the message says why and what to do."""


class StoreBusyError(StoreError):
    """Another process has been writing for longer than this one was willing to wait."""


class StoreFullError(StoreError):
    """The disk is full; the change did not happen, everything before it is there."""


def connect(path: Path, *, n_bits: int | None, timeout: float) -> tuple[sqlite3.Connection, int]:
    """Open the file, or create it if it is not there and ``n_bits`` is given; also returns its n_bits."""
    if n_bits is None and not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give n_bits to create a store there")
    if n_bits is not None:
        check_int(n_bits, "n_bits", at_least=1)
        path.parent.mkdir(parents=True, exist_ok=True)
    connection = None
    try:
        with explained(path):
            connection = sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)
            _check_owner(connection, path)
            _write_ahead(connection, timeout)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            if n_bits is not None:
                _create(connection, n_bits)
            return connection, _check_meta(connection, path, n_bits)
    except BaseException:
        if connection is not None:
            connection.close()
        raise


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """SQLite's errors in words."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise StoreBusyError(f"{path}: another process is writing and did not finish in time; try again") from error
        if code == sqlite3.SQLITE_FULL:
            raise StoreFullError(
                f"{path}: the disk is full. This change did not happen, nothing else was lost; make room and repeat it"
            ) from error
        if code == sqlite3.SQLITE_NOTADB:
            raise StoreError(f"{path} is not a store: it is not an SQLite file, or was cut or overwritten") from error
        if code == sqlite3.SQLITE_CORRUPT:
            raise StoreError(
                f"{path} is damaged ({error}). Restore it from a copy, or save what can be read with "
                f"`sqlite3 {path.name} .recover`"
            ) from error
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
            raise StoreError(
                f"{path} cannot be opened for writing ({error}); file and folder must be writable, also for searching"
            ) from error
        raise StoreError(f"{path}: {error}") from error


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing. The write lock is taken at the start, so no writer finds out halfway that it must wait."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk may have rolled it back already
            connection.execute("ROLLBACK")
        raise


def _check_owner(connection: sqlite3.Connection, path: Path) -> None:
    """Nothing is changed in a file that somebody else made, or a later version."""
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    version = _version(connection)
    # Last: another process may create the store between two of these lines, all at once. Whoever is not yet named
    # here had not written when the others were read.
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if application == 0 and version == 0 and tables == 0:
        return  # new, or left by a process that was killed before it wrote anything
    if application != APPLICATION:
        raise StoreError(f"{path} is an SQLite file of another program, not a store of modalhash")
    if version > FORMAT:
        raise StoreError(
            f"{path} has format {version}; this version reads up to {FORMAT}. Upgrade: pip install --upgrade modalhash"
        )


def _write_ahead(connection: sqlite3.Connection, timeout: float) -> None:
    """Switch to write-ahead logging; SQLite does not wait here by itself when two processes create at once."""
    stop = time.monotonic() + timeout
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > stop:
                raise
            time.sleep(0.01)
            continue
        if mode != "wal":
            raise StoreError(f"write-ahead logging is not possible here (SQLite stays with {mode!r}); use a local disk")
        return


def _create(connection: sqlite3.Connection, n_bits: int) -> None:
    """Create the tables unless they are there; whoever comes second finds them."""
    if _version(connection):
        return
    with transaction(connection):
        if _version(connection):
            return
        for statement in SCHEMA.format(width=n_bytes(n_bits)).split(";\n"):
            if statement.strip():
                connection.execute(statement)
        connection.execute("INSERT INTO meta VALUES ('n_bits', ?)", (str(n_bits),))
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {FORMAT}")


def _check_meta(connection: sqlite3.Connection, path: Path, n_bits: int | None) -> int:
    if not _version(connection):
        raise StoreError(f"{path} is empty: no store was created in it; give n_bits to create one")
    row = connection.execute("SELECT value FROM meta WHERE key = 'n_bits'").fetchone()
    if row is None or not row[0].isdigit():
        raise StoreError(f"{path} does not say how many bits its codes have; it is damaged")
    if n_bits is not None and n_bits != int(row[0]):
        raise StoreError(f"{path} holds codes of {row[0]} bits; n_bits is {n_bits}. Use another file for other codes")
    return int(row[0])


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
