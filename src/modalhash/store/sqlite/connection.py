"""Open a store in SQLite, read-only or for writing, and translate SQLite's errors."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from modalhash.core.validation import check_int
from modalhash.store.records import StoreAccessError, StoreBusyError, StoreError, StoreFullError
from modalhash.store.sqlite import words
from modalhash.store.sqlite.rows import row_checksum
from modalhash.store.sqlite.schema import check_n_bits, check_owner, create, transaction

_SHARED_MEMORY_ERRORS = (
    sqlite3.SQLITE_IOERR_SHMOPEN,
    sqlite3.SQLITE_IOERR_SHMSIZE,
    sqlite3.SQLITE_IOERR_SHMMAP,
)
_READ_ERRORS = (sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ)  # the file may be damaged
_CACHE_KIBIBYTES = 65536  # SQLite's default of 2 MB is too small to search a million items


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


def _add_functions(connection: sqlite3.Connection) -> None:
    connection.create_function("casefold", 1, str.casefold, deterministic=True)
    connection.create_function("row_checksum", -1, row_checksum, deterministic=True)


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
