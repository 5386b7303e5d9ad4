"""The tables of a store in SQLite, their formats, and how a file of an earlier format is brought to the present one.

The format stands in the header of the file as ``user_version``.

======  ==============================================================================================
format  what it has
======  ==============================================================================================
1       ids that are unique across modalities, which an engine wrote as ``"modality:id"``
2       items named by modality and id
3       refinement vectors, tables of labels and words
4       a checksum for every item
5       a count for every label
======  ==============================================================================================

Opening an older file brings it to the present format in one transaction.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from modalhash.codes import n_bytes
from modalhash.store import _labels, _words
from modalhash.store.base import MAX_REFINEMENT, StoreError

FORMAT = 5
FIRST_WITH_COUNTS = 5  # of labels
OLDEST_READ_ONLY = 3  # what can be read as it is, without bringing it to the present format
APPLICATION_ID = 0x6D6F6468  # "modh" in the file's header: `file items.sqlite` shows it

_CREATE_ITEM = """
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
    UNIQUE (modality, id)
)"""
_ADD_REFINEMENT = f"ALTER TABLE item ADD COLUMN refinement BLOB CHECK (length(refinement) <= {MAX_REFINEMENT})"
_ADD_CHECKSUM = "ALTER TABLE item ADD COLUMN checksum INTEGER"  # of the other columns, by row_checksum
CHECKED = "modality, id, code, kind, text, uri, labels, extra, refinement"
_CREATE_ITEM_INDEX = "CREATE INDEX item_modality ON item (modality, kind)"
_CREATE = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE modality (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    _CREATE_ITEM,
    _ADD_REFINEMENT,  # as the migrations do, so that every file of this format has the same schema
    _ADD_CHECKSUM,
    _CREATE_ITEM_INDEX,
    "CREATE TABLE removed (step INTEGER PRIMARY KEY AUTOINCREMENT, number INTEGER NOT NULL)",
    *_labels.CREATE,
    *_labels.COUNT,
    "INSERT INTO meta VALUES ('n_bits', '{n_bits}')",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)
_FROM_1_TO_2 = (
    "ALTER TABLE item RENAME TO item_1",
    "DROP INDEX item_modality",
    _CREATE_ITEM,
    # An item that no engine wrote keeps its id, and so does one whose id without the prefix is thereby taken.
    """
    WITH RECURSIVE
        old AS (
            SELECT item_1.*, modality.name || ':' AS prefix
            FROM item_1 JOIN modality ON modality.number = item_1.modality
        ),
        unchanged (number, modality, id, prefix) AS (
            SELECT number, modality, id, prefix FROM old
            WHERE substr(id, 1, length(prefix)) != prefix OR length(id) = length(prefix)
            UNION ALL
            SELECT item_1.number, item_1.modality, item_1.id, prefix FROM unchanged
            JOIN item_1 ON item_1.id = prefix || unchanged.id AND item_1.modality = unchanged.modality
        )
    INSERT INTO item (number, modality, id, code, kind, text, uri, labels, extra)
    SELECT
        number, modality,
        iif(number IN (SELECT number FROM unchanged), id, substr(id, length(prefix) + 1)),
        code, kind, text, uri, labels, extra
    FROM old ORDER BY number
    """,
    _CREATE_ITEM_INDEX,
    # Numbers go on from the last one given, which may belong to an item that was removed.
    "DELETE FROM sqlite_sequence WHERE name = 'item'",
    "UPDATE sqlite_sequence SET name = 'item' WHERE name = 'item_1'",
    "DROP TABLE item_1",
    "PRAGMA user_version = 2",
)
_FROM_2_TO_3 = (
    _ADD_REFINEMENT,
    *_labels.CREATE,
    *(statement.replace("?", "1") for statement in _labels.ADD),
    "PRAGMA user_version = 3",
)
_FROM_3_TO_4 = (
    _ADD_CHECKSUM,
    f"UPDATE item SET checksum = row_checksum({CHECKED})",
    "PRAGMA user_version = 4",
)
_FROM_4_TO_5 = (*_labels.COUNT, "PRAGMA user_version = 5")
MIGRATIONS = {1: _FROM_1_TO_2, 2: _FROM_2_TO_3, 3: _FROM_3_TO_4, 4: _FROM_4_TO_5}
"""What brings a file of a format to the next one."""


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit all or nothing. The write lock is taken at the start, so no writer finds out halfway that it must wait."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk may have rolled it back already
            connection.execute("ROLLBACK")
        raise


def check_owner(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a file of another program or of a later version, before anything in it is changed."""
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    version = format_of(connection)
    # Last: another process may create the store between two of these lines, all at once. Whoever is not yet named
    # here had not written when the others were read.
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if application == 0 and version == 0 and tables == 0:
        return  # new, or left by a process that was killed before it wrote anything
    if application != APPLICATION_ID:
        raise StoreError(f"{path} is an SQLite file of another program, not a store of modalhash")
    if version > FORMAT:
        raise StoreError(
            f"{path} has format {version}; this version reads up to {FORMAT}. Install a newer version of modalhash"
        )


def create(connection: sqlite3.Connection, n_bits: int) -> None:
    """Create the tables unless they are there; whoever comes second finds them."""
    if format_of(connection):
        return
    with transaction(connection):
        if not format_of(connection):
            _execute_all(connection, _CREATE, n_bits)
            if _words.has_words(connection):
                _words.bring_up(connection, None)


def migrate(connection: sqlite3.Connection, n_bits: int) -> None:
    """Bring a file of an earlier format to the present one; whoever comes second waits, and finds it done."""
    if format_of(connection) >= FORMAT:
        return
    with transaction(connection):
        for version in range(format_of(connection), FORMAT):
            _execute_all(connection, MIGRATIONS[version], n_bits)
        if _words.has_words(connection):
            _words.bring_up(connection, None)


def _execute_all(connection: sqlite3.Connection, statements: Iterable[str], n_bits: int) -> None:
    for statement in statements:
        connection.execute(statement.format(n_bits=n_bits, n_bytes=n_bytes(n_bits)))


def check_n_bits(connection: sqlite3.Connection, path: Path, n_bits: int | None) -> int:
    """Return the length of the codes in a file, or raise if it is another one than ``n_bits``."""
    if not format_of(connection):
        raise StoreError(f"{path} is empty: no store was created in it; give n_bits to create one")
    row = connection.execute("SELECT value FROM meta WHERE key = 'n_bits'").fetchone()
    if row is None or not re.fullmatch(r"[0-9]{1,6}", str(row[0])) or not int(row[0]):
        raise StoreError(f"{path} does not say how many bits its codes have; it is damaged")
    if n_bits is not None and n_bits != int(row[0]):
        raise StoreError(f"{path} holds codes of {row[0]} bits; n_bits is {n_bits}. Use another file for other codes")
    return int(row[0])


def format_of(connection: sqlite3.Connection) -> int:
    """Return the format of a file, 0 of one in which no store was created."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
