"""Tables of a store in SQLite, and the check that a file has them. ``user_version`` is the format."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from modalhash.core.codes import n_bytes
from modalhash.store.records import MAX_REFINEMENT, StoreError
from modalhash.store.sqlite import conditions, words

FORMAT = 1
APPLICATION_ID = 0x6D6F6431  # "mod1" in the file's header: `file items.sqlite` shows it
UNRELEASED_ID = 0x6D6F6468  # "modh", in files of versions before the first release

CHECKED = "modality, id, code, kind, text, uri, labels, extra, refinement"  # columns in the checksum
_CREATE = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE modality (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    """
    CREATE TABLE item (
        number INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used twice: a larger one was added later
        modality INTEGER NOT NULL REFERENCES modality (number),
        id TEXT NOT NULL,
        code BLOB NOT NULL CHECK (length(code) = {n_bytes}),
        kind TEXT NOT NULL CHECK (kind IN ('learned', 'hashed')),
        text TEXT,
        uri TEXT,
        labels TEXT,
        extra TEXT,
        refinement BLOB CHECK (length(refinement) <= {max_refinement}),
        checksum INTEGER,
        UNIQUE (modality, id)
    )
    """,
    "CREATE INDEX item_modality ON item (modality, kind)",
    "CREATE TABLE removed (step INTEGER PRIMARY KEY AUTOINCREMENT, number INTEGER NOT NULL)",
    *conditions.CREATE,
    "INSERT INTO meta VALUES ('n_bits', '{n_bits}')",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit atomically. The write lock is taken at the start, so that no writer has to wait halfway."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk may have rolled it back already
            connection.execute("ROLLBACK")
        raise


def check_owner(connection: sqlite3.Connection, path: Path) -> None:
    """Raise for a file of another program, or of a later or unreleased version, before changing it."""
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    version = format_of(connection)
    # Read last: another process may create the store, atomically, between these lines. If the application id is not
    # set yet, nothing had been written when the other values were read.
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if application == 0 and version == 0 and tables == 0:
        return  # new, or left by a process that was killed before it wrote anything
    if application == UNRELEASED_ID:
        raise StoreError(f"{path} was made by an unreleased version of modalhash; train the engine again")
    if application != APPLICATION_ID:
        raise StoreError(f"{path} is an SQLite file of another program, not a store of modalhash")
    if version > FORMAT:
        raise StoreError(
            f"{path} has format {version}; this version reads up to {FORMAT}. Install a newer version of modalhash"
        )


def create(connection: sqlite3.Connection, n_bits: int) -> None:
    """Create the tables unless they exist."""
    if format_of(connection):
        return
    values = {"n_bits": n_bits, "n_bytes": n_bytes(n_bits), "max_refinement": MAX_REFINEMENT}
    with transaction(connection):
        if not format_of(connection):
            for statement in _CREATE:
                connection.execute(statement.format(**values))
            if words.has_words(connection):
                words.update_index(connection, None)


def check_n_bits(connection: sqlite3.Connection, path: Path, n_bits: int | None) -> int:
    """Return the code length of a file, or raise if it is not ``n_bits``."""
    if not format_of(connection):
        raise StoreError(f"{path} is empty; give n_bits to create a store in it")
    row = connection.execute("SELECT value FROM meta WHERE key = 'n_bits'").fetchone()
    if row is None or not re.fullmatch(r"[0-9]{1,6}", str(row[0])) or not int(row[0]):
        raise StoreError(f"{path} is damaged: the length of its codes is missing")
    if n_bits is not None and n_bits != int(row[0]):
        raise StoreError(f"{path} holds codes of {row[0]} bits; n_bits is {n_bits}. Use another file for other codes")
    return int(row[0])


def format_of(connection: sqlite3.Connection) -> int:
    """Return the format of a file; 0 if it has no store."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
