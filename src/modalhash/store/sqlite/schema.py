"""The file of a store in SQLite: its tables and rows, how it is opened, and what SQLite's errors mean.

``user_version`` is the format.
"""

from __future__ import annotations

import json
import re
import sqlite3
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from queue import Empty, Full, LifoQueue
from typing import Any

from modalhash.core.codes import n_bytes
from modalhash.core.label_names import label_key
from modalhash.core.progress import StoppedError, should_stop
from modalhash.core.validation import check_int
from modalhash.store.records import (
    MAX_REFINEMENT,
    Record,
    StoreAccessError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    to_json,
)
from modalhash.store.sqlite import labels, words

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
    *labels.CREATE,
    "INSERT INTO meta VALUES ('n_bits', '{n_bits}')",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)
COLUMNS = "item.id, modality.name, item.code, item.kind, item.text, item.uri, item.labels, item.extra, item.refinement"
FROM = "FROM item JOIN modality ON modality.number = item.modality"
INSERT = f"INSERT INTO item ({CHECKED}, checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"

_SHARED_MEMORY_ERRORS = (
    sqlite3.SQLITE_IOERR_SHMOPEN,
    sqlite3.SQLITE_IOERR_SHMSIZE,
    sqlite3.SQLITE_IOERR_SHMMAP,
)
_READ_ERRORS = (sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ)  # the file may be damaged
_CACHE_KIBIBYTES = 65536  # SQLite's default of 2 MB is too small to search a million items
_MAX_IDLE = 4  # connections that only read
_STEPS = 20_000  # of SQLite's machine, about a millisecond, between two looks whether to stop


# -- rows


def to_row(record: Record, modality: int) -> tuple[Any, ...]:
    """Return an item as the values of ``INSERT``; ``modality`` is its modality's number."""
    labels = to_json(list(record.labels)) if record.labels else None
    extra = to_json(dict(record.extra)) if record.extra else None
    text, uri, refinement = record.text, record.uri, record.refinement
    row = modality, record.id, record.code, record.kind, text, uri, labels, extra, refinement
    return *row, row_checksum(*row)


def from_row(row: tuple[Any, ...]) -> Record:
    """Return the record of a row of ``COLUMNS``."""
    id, modality, code, kind, text, uri, labels, extra, refinement = row
    fields = json.loads(extra) if extra else {}
    if not isinstance(fields, dict):
        raise TypeError(f"the fields of the item {id!r} are {type(fields).__name__}")
    return Record(
        id=id,
        modality=modality,
        code=code,
        kind=kind,
        text=text,
        uri=uri,
        labels=_parse_labels(labels) if labels else (),
        extra=fields,
        refinement=refinement,
    )


@lru_cache(4096)
def _parse_labels(text: str) -> tuple[str | int, ...]:
    return tuple(json.loads(text))  # cached: many items have the same labels


def row_checksum(*values: Any) -> int:
    """Return the CRC-32 of the columns and their lengths, so that moving bytes between columns changes it."""
    parts = [b"" if value is None else value if isinstance(value, bytes) else str(value).encode() for value in values]
    lengths = ",".join("" if value is None else str(len(part)) for value, part in zip(values, parts, strict=True))
    return zlib.crc32(b"".join(parts), zlib.crc32(lengths.encode("ascii")))


# -- tables


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


# -- opening


@contextmanager
def translate_sqlite_errors(path: Path) -> Iterator[None]:
    """Raise SQLite's errors as those of the store, with advice."""
    try:
        yield
    except UnicodeDecodeError as error:  # SQLite's message contains an invalid name
        raise _damaged(path, error) from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise StoreBusyError(f"{path}: another process is writing and did not finish in time; try again") from error
        if code == sqlite3.SQLITE_INTERRUPT:
            raise StoppedError("a read of the store took too long") from error
        if code == sqlite3.SQLITE_FULL:
            raise StoreFullError(
                f"{path}: the disk is full. This change did not happen, nothing else was lost; make room and repeat it"
            ) from error
        if code == sqlite3.SQLITE_IOERR and error.sqlite_errorcode in _SHARED_MEMORY_ERRORS:
            raise StoreAccessError(
                f"{path}: the disk is full or fails, so that {path.name}-shm, which the processes that have the store "
                "open share, cannot be created. Nothing was changed; make room and repeat it"
            ) from error
        if code == sqlite3.SQLITE_IOERR:
            kind = StoreError if error.sqlite_errorcode in _READ_ERRORS else StoreAccessError
            raise kind(
                f"{path}: the disk failed ({error}). A change in progress may or may not have happened; reopen the "
                "store and check before you repeat it"
            ) from error
        if code == sqlite3.SQLITE_NOTADB:
            raise StoreError(
                f"{path} is not a store: it is not an SQLite file, or was truncated or overwritten"
            ) from error
        if code == sqlite3.SQLITE_CORRUPT:
            raise _damaged(path, error) from error
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
            raise StoreAccessError(
                f"{path} cannot be opened for writing ({error}). To search only, open it read-only: read_only=True, "
                "or --read-only"
            ) from error
        raise StoreError(f"{path}: {error}") from error


@contextmanager
def tell_damage(path: Path) -> Iterator[None]:
    """Raise errors caused by damaged rows as a StoreError."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> StoreError:
    return StoreError(
        f"{path} is damaged ({type(error).__name__}: {error}). Restore it from a copy, or save what can be read with "
        f"`sqlite3 {path.name} .recover`"
    )


def connect(
    path: Path, *, n_bits: int | None, timeout: float, searched_fields: Sequence[str] | None
) -> tuple[sqlite3.Connection, int]:
    """Open the file, or create it if ``n_bits`` is given; return the connection and its n_bits."""
    if n_bits is None and not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give n_bits to create a store there")
    if n_bits is not None:
        check_int(n_bits, "n_bits", at_least=1)
        path.parent.mkdir(parents=True, exist_ok=True)
    connection = None
    try:
        with translate_sqlite_errors(path):
            connection = sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)
            check_owner(connection, path)
            _use_write_ahead_log(connection, timeout)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KIBIBYTES}")
            connection.execute("PRAGMA foreign_keys = ON")
            _add_functions(connection)
            if n_bits is not None:
                create(connection, n_bits)
            n_bits = check_n_bits(connection, path, n_bits)
            if words.has_words(connection) and not words.is_current(connection, searched_fields):
                with transaction(connection):
                    words.update_index(connection, searched_fields)
            return connection, n_bits
    except BaseException:
        if connection is not None:
            connection.close()
        raise


def connect_read_only(path: Path, *, n_bits: int | None, timeout: float) -> tuple[sqlite3.Connection, int]:
    """Open the file without ever writing to it; return the connection and its n_bits."""
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    with translate_sqlite_errors(path):
        try:
            connection = _connect_uri(path, "mode=ro", timeout)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
                raise
            log = path.with_name(f"{path.name}-wal")
            if log.exists() and log.stat().st_size:
                raise StoreAccessError(
                    f"{path} was not closed by its last writer, so its last changes are in {log.name}, and reading "
                    "that needs a writable folder. Open it once in a writable folder, and close it"
                ) from error
            connection = _connect_uri(path, "mode=ro&immutable=1", timeout)  # no process can write here
        try:
            check_owner(connection, path)
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KIBIBYTES}")
            _add_functions(connection)
            return connection, check_n_bits(connection, path, n_bits)
        except BaseException:
            connection.close()
            raise


def _connect_uri(path: Path, options: str, timeout: float) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?{options}"
    connection = sqlite3.connect(uri, uri=True, timeout=timeout, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


class Reader:
    """A connection, and what is cached of the words that were read through it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection, self.word_facts = connection, words.WordStatistics()


class Readers:
    """Connections that only read one file, one for each thread that reads it."""

    def __init__(self, path: Path, n_bits: int, timeout: float) -> None:
        self._path, self._n_bits, self._timeout = path, n_bits, timeout
        self._file = self._file_now()
        self._idle: LifoQueue[Reader] = LifoQueue(_MAX_IDLE)
        self._is_closed = False

    def close(self) -> None:
        """Close all idle connections; others are closed when they are returned."""
        self._is_closed = True
        with suppress(Empty):
            while True:
                self._idle.get_nowait().connection.close()

    @contextmanager
    def take(self) -> Iterator[Reader | None]:
        """Provide a connection for one thread; None if another file has replaced this one and none is idle."""
        try:
            reader: Reader | None = self._idle.get_nowait()
        except Empty:
            reader = self._open()
        try:
            yield reader
        finally:
            if reader is not None:
                self._give_back(reader)

    def _open(self) -> Reader | None:
        if self._file is None or self._file_now() != self._file:
            return None
        try:
            connection, _ = connect_read_only(self._path, n_bits=self._n_bits, timeout=self._timeout)
        except (OSError, StoreError):  # what is open may still be read
            return None
        if self._file_now() == self._file:  # so this is the file that was opened
            return Reader(connection)
        connection.close()
        return None

    def _give_back(self, reader: Reader) -> None:
        try:
            self._idle.put_nowait(reader)
        except Full:
            reader.connection.close()
        if self._is_closed:
            self.close()

    def _file_now(self) -> tuple[int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino


def _add_functions(connection: sqlite3.Connection) -> None:
    connection.create_function("label_key", 1, label_key, deterministic=True)
    connection.create_function("row_checksum", -1, row_checksum, deterministic=True)
    connection.set_progress_handler(lambda: should_stop.get()(), _STEPS)


def _use_write_ahead_log(connection: sqlite3.Connection, timeout: float) -> None:
    """Switch to write-ahead logging; retry because SQLite does not wait here if two processes create."""
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
