"""A store in one SQLite file.

Write-ahead logging lets readers go on while one process writes; ``synchronous=FULL`` waits for the disk at every
commit, so what was committed outlives a killed process and a power cut. Every change is one ``BEGIN IMMEDIATE``
transaction: whole or not at all, one writer after another.

The format stands in the header of the file as ``user_version``. Format 1 had ids that were unique across modalities,
which an engine wrote as ``"modality:id"``; format 2 had no refinement vectors and no tables of labels and words;
format 3 had no checksums. Opening an older file brings it to the present format in one transaction.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from modalhash._typing import Array, Codes
from modalhash.codes import n_bytes
from modalhash.store._filter_sql import condition
from modalhash.store._words import add_items, bring_up, find_items, forget_items, has_words, is_current
from modalhash.store.base import (
    MAX_REFINEMENT,
    Key,
    Record,
    Revision,
    StoreBusyError,
    StoreError,
    StoreFullError,
    check_keys,
    check_records,
    to_json,
)
from modalhash.store.filters import Filter
from modalhash.validation import check_choice, check_int

FORMAT = 4
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
_CREATE_LABELS = (
    "CREATE TABLE label (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, folded TEXT NOT NULL)",
    "CREATE INDEX label_folded ON label (folded)",
    "CREATE TABLE item_label (label INTEGER NOT NULL, item INTEGER NOT NULL, PRIMARY KEY (label, item)) WITHOUT ROWID",
)
_ADD_LABELS = (  # of the items from one number on: their names, then who has them
    """
    INSERT INTO label (name, folded)
    SELECT DISTINCT CAST(own.value AS TEXT), casefold(CAST(own.value AS TEXT))
    FROM item, json_each(item.labels) AS own WHERE item.number >= ? ON CONFLICT DO NOTHING
    """,
    """
    INSERT OR IGNORE INTO item_label (label, item)
    SELECT label.number, item.number
    FROM item CROSS JOIN json_each(item.labels) AS own CROSS JOIN label ON label.name = CAST(own.value AS TEXT)
    WHERE item.number >= ?
    """,
)
_DELETE_LABELS = """
DELETE FROM item_label WHERE (label, item) IN (
    SELECT label.number, item.number
    FROM item CROSS JOIN json_each(item.labels) AS own CROSS JOIN label ON label.name = CAST(own.value AS TEXT)
    WHERE item.number = ?
)"""
_ADD_REFINEMENT = f"ALTER TABLE item ADD COLUMN refinement BLOB CHECK (length(refinement) <= {MAX_REFINEMENT})"
_ADD_CHECKSUM = "ALTER TABLE item ADD COLUMN checksum INTEGER"  # of the other columns, by row_checksum
_CHECKED = "modality, id, code, kind, text, uri, labels, extra, refinement"
_CREATE_ITEM_INDEX = "CREATE INDEX item_modality ON item (modality, kind)"
_CREATE = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE modality (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    _CREATE_ITEM,
    _ADD_REFINEMENT,  # as the migrations do, so that every file of this format has the same schema
    _ADD_CHECKSUM,
    _CREATE_ITEM_INDEX,
    "CREATE TABLE removed (step INTEGER PRIMARY KEY AUTOINCREMENT, number INTEGER NOT NULL)",
    *_CREATE_LABELS,
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
    *_CREATE_LABELS,
    *(statement.replace("?", "1") for statement in _ADD_LABELS),
    "PRAGMA user_version = 3",
)
_FROM_3_TO_4 = (
    _ADD_CHECKSUM,
    f"UPDATE item SET checksum = row_checksum({_CHECKED})",
    "PRAGMA user_version = 4",
)
_MIGRATIONS = {1: _FROM_1_TO_2, 2: _FROM_2_TO_3, 3: _FROM_3_TO_4}

_COLUMNS = "item.id, modality.name, item.code, item.kind, item.text, item.uri, item.labels, item.extra, item.refinement"
_FROM = "FROM item JOIN modality ON modality.number = item.modality"
_INSERT = f"INSERT INTO item ({_CHECKED}, checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_NUMBERS = """
SELECT modality.name, item.id, item.number
FROM json_each(?) AS wanted
CROSS JOIN modality ON modality.name = json_extract(wanted.value, '$[0]')
CROSS JOIN json_each(wanted.value, '$[1]') AS own
CROSS JOIN item ON item.modality = modality.number AND item.id = own.value
"""  # CROSS JOIN keeps this order: one look into the index of (modality, id) for each key
_PAGE_ROWS = 20_000  # read at a time: a long read would keep SQLite from writing the log back into the file
_CACHED_FILTERS = 8
_KEPT_REMOVALS = 10_000  # whoever is further behind compares with what is there: it does not take much longer
_MAX_DAMAGE = 20  # of each kind that is told one by one
_CACHE_KIBIBYTES = 65536  # of pages, as far as they are read; SQLite's 2 MB are too few for searches among a million


class SqliteStore:
    """A :class:`~modalhash.store.Store` in one SQLite file.

    Several processes may read and write the same file; each writer waits up to ``timeout`` seconds for its turn. A
    store may be used from several threads, but not across a fork.

    Parameters
    ----------
    path : str or Path
        The file, on a local disk. SQLite has two more beside it (``-wal``, ``-shm``) while it is open.
    n_bits : int, optional
        Length of the codes. Creates the store if it is not there; without it, the store must be there.
    timeout : float
        Seconds to wait for another writer.
    searched_fields : sequence of str, optional
        The fields of ``extra`` whose words :meth:`words` searches beside texts and ids; a change reads all items once.
        By default what the store was last told, at first ``title``, ``caption`` and ``description``.
    read_only : bool
        Never write: changes raise, and a file on a read-only disk can be opened if its last writer closed it. A file of
        an earlier format must have been opened for writing once.

    Examples
    --------
    >>> import tempfile
    >>> from modalhash.store import Record
    >>> folder = tempfile.TemporaryDirectory()
    >>> with SqliteStore(Path(folder.name) / "items.db", n_bits=8) as store:
    ...     numbers = store.add([Record("boat", "text", bytes([0b1010_0000]), text="a red boat", labels=("sea",))])
    ...     store.count(), store.get("boat", modality="text").text
    (1, 'a red boat')
    >>> folder.cleanup()
    """

    def __init__(
        self,
        path: str | Path,
        *,
        n_bits: int | None = None,
        timeout: float = 60.0,
        searched_fields: Sequence[str] | None = None,
        read_only: bool = False,
    ) -> None:
        self.path, self.read_only = Path(path), read_only
        if read_only:
            self._connection, self.n_bits = _connect_read_only(self.path, n_bits=n_bits, timeout=timeout)
        else:
            self._connection, self.n_bits = _connect(
                self.path, n_bits=n_bits, timeout=timeout, searched_fields=searched_fields
            )
        self._has_words = has_words(self._connection) and (not read_only or is_current(self._connection, None))
        self._lock = threading.RLock()
        self._closed = self._warned = False
        self._matching: dict[str, tuple[Revision, Array]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return self.count()

    def __contains__(self, key: object) -> bool:
        (checked,) = check_keys([key])  # type: ignore[list-item]
        return checked in self.numbers([checked])

    def __repr__(self) -> str:
        return f"SqliteStore({str(self.path)!r}, n_bits={self.n_bits})"

    def close(self) -> None:
        """Close the file; every change that returned is there. Closing twice does nothing; using it then fails."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._connection.close()

    # -- changes

    def add(self, records: Iterable[Record], *, replace: bool = False) -> Array:
        """Add items in one transaction and return their numbers.

        If a key is in the store already, or is given twice, ValueError is raised and nothing is added. With
        ``replace`` the new item takes the key of the old one, under a new number.
        """
        batch = check_records(records, self.n_bits)
        with self._change() as connection:
            known = self._numbers([record.key for record in batch])
            if known and not replace:
                modality, id = next(iter(known))
                raise ValueError(
                    f"{len(known)} of {len(batch)} ids are in the store already (first: {id!r} of {modality!r}); "
                    "nothing was added. Pass replace=True to replace those items"
                )
            self._delete(connection, list(known.values()))
            modalities = {
                name: _modality_number(connection, name) for name in dict.fromkeys(record.modality for record in batch)
            }
            rows = [_to_row(record, modalities[record.modality]) for record in batch]
            first = _last_number(connection) + 1
            connection.executemany(_INSERT, rows)
            for statement in _ADD_LABELS:
                connection.execute(statement, (first,))
            if self._has_words:
                add_items(connection)
            last = _last_number(connection) if rows else first - 1
            if last - first + 1 != len(rows):
                raise StoreError(f"{self.path}: numbers {first} to {last} for {len(rows)} items")
            return np.arange(first, last + 1, dtype=np.int64)

    def remove(self, keys: Iterable[Key], *, missing: str = "error") -> int:
        """Remove items in one transaction and return how many there were.

        If a key is not in the store, KeyError is raised and nothing is removed, unless ``missing="ignore"``.
        """
        check_choice(missing, "missing", ("error", "ignore"))
        wanted = list(dict.fromkeys(check_keys(keys)))
        with self._change() as connection:
            known = self._numbers(wanted)
            if missing == "error" and len(known) < len(wanted):
                modality, id = next(key for key in wanted if key not in known)
                raise KeyError(
                    f"{len(wanted) - len(known)} of {len(wanted)} ids are not in the store (first: {id!r} of "
                    f"{modality!r}); nothing was removed. Pass missing='ignore' to remove the others"
                )
            self._delete(connection, list(known.values()))
            return len(known)

    # -- reading

    def get(self, id: str, *, modality: str) -> Record:
        """Return the item with this key, or raise KeyError."""
        rows = self._rows(f"SELECT {_COLUMNS} {_FROM} WHERE modality.name = ? AND item.id = ?", modality, id)
        if not rows:
            raise KeyError(f"no item of {modality!r} has the id {id!r} in {self.path}")
        return _from_row(rows[0])

    def numbers(self, keys: Iterable[Key]) -> dict[Key, int]:
        """Return the numbers of the items with these keys, without those that are not in the store."""
        return self._numbers(check_keys(keys))

    def records(self, numbers: Any, *, where: Filter | None = None) -> dict[int, Record]:
        """Return the items with these numbers that pass the filter, without those that are not in the store."""
        wanted = json.dumps(np.asarray(numbers, dtype=np.int64).tolist())
        test, values = ("1", []) if where is None else condition(where, few=True)
        # CROSS JOIN: one look at each number, whatever else the filter has an index for
        sql = (
            f"SELECT item.number, {_COLUMNS} FROM json_each(?) AS wanted CROSS JOIN item ON item.number = wanted.value "
            f"JOIN modality ON modality.number = item.modality WHERE {test}"
        )
        return {row[0]: _from_row(row[1:]) for row in self._rows(sql, wanted, *values)}

    def matching(self, where: Filter | None = None) -> Array:
        """Return the numbers, rising, of the items that pass the filter.

        A filter by label or id reads the items that have it, any other one reads all items. The last answers are cached
        until something changes.
        """
        revision, key = self.revision(), str(where)  # as text: 1 and true are equal in Python, but not here
        known = self._matching.get(key)
        if known is None or known[0] != revision:
            known = revision, self._select_matching(where)
            with self._lock:
                self._matching.pop(key, None)
                self._matching[key] = known
                for old in list(self._matching)[:-_CACHED_FILTERS]:
                    del self._matching[old]
        return known[1]

    def words(self, query: str, *, where: Filter | None = None, limit: int = 20, every: bool = False) -> Array:
        """Return the numbers of the items whose text, captions or id have words of the query, the best first (BM25).

        Where no item has all words, those that have some are found, unless ``every`` word is asked for.
        Case, accents and English endings do not matter, and ``dino*`` is whatever begins so. What has only a lesser
        word of the query is left out, and so are words that most items have. Without FTS5 in this Python's SQLite
        nothing is found, and a warning says so once.
        """
        if not self._has_words:
            self._warn_of_no_words()
            return np.empty(0, np.int64)
        test, values = ("1", []) if where is None else condition(where, few=True)
        with self._lock, translate_sqlite_errors(self.path):
            self._check_open()
            return np.array(find_items(self._connection, query, test, values, limit, every=every), dtype=np.int64)

    def scan(self, *, modality: str | None = None) -> Iterator[Record]:
        """Iterate in insertion order; concurrent changes are skipped.

        An item that was removed since the call may still come, one that was added does not.
        """
        last, stop = 0, self.revision().items
        sql = f"SELECT item.number, {_COLUMNS} {_FROM} WHERE item.number > ? AND item.number <= ?"
        sql += " AND modality.name = ?" if modality is not None else ""
        more = () if modality is None else (modality,)
        while rows := self._rows(f"{sql} ORDER BY item.number LIMIT {_PAGE_ROWS}", last, stop, *more):
            yield from (_from_row(row[1:]) for row in rows)
            last = rows[-1][0]

    def codes(
        self, *, modality: str | None = None, since: Revision | None = None, until: Revision | None = None
    ) -> Iterator[tuple[Array, Array, Codes]]:
        """Iterate over batches of (numbers, numbers of the modalities, packed codes) in insertion order.

        Only items that were added after ``since`` and not after ``until`` are included, and of these only the ones that
        are still there.
        """
        for numbers, groups, codes in self._pages("code", modality, since, until):
            yield numbers, groups, np.frombuffer(b"".join(codes), dtype=np.uint8).reshape(-1, n_bytes(self.n_bits))

    def refinements(
        self, *, modality: str | None = None, since: Revision | None = None, until: Revision | None = None
    ) -> Iterator[tuple[Array, Array, Array, Array]]:
        """Iterate over batches of (numbers, numbers of the modalities, vectors, who has one), as :meth:`codes`.

        Vectors are rows of 128 int8 values, with zeros after those that an item has, and zeros alone where it has none.
        """
        for numbers, groups, rows in self._pages("refinement", modality, since, until):
            padded = b"".join((row or b"").ljust(MAX_REFINEMENT, b"\0") for row in rows)
            vectors = np.frombuffer(padded, dtype=np.int8).reshape(-1, MAX_REFINEMENT)
            yield numbers, groups, vectors, np.array([row is not None for row in rows], dtype=bool)

    def removed(self, since: Revision, until: Revision) -> Array:
        """Return the numbers of the items that were removed after ``since`` and not after ``until``.

        The last ten thousand removals are remembered. For an earlier revision, other numbers of items that are no
        longer there are among them.
        """
        sql = "SELECT number FROM removed WHERE step > ? AND step <= ? ORDER BY step"
        known = np.array([row[0] for row in self._rows(sql, since.removals, until.removals)], dtype=np.int64)
        if self._forgotten() <= since.removals:  # asked last: meanwhile some may have been forgotten
            return known
        there = [row[0] for row in self._rows("SELECT number FROM item WHERE number <= ?", since.items)]
        return np.setdiff1d(np.arange(1, since.items + 1), np.array(there, dtype=np.int64))

    def revision(self) -> Revision:
        """Return the current revision; cheap enough to call before every search."""
        sql = (
            "SELECT iif(name = 'item', 'items', 'removals'), seq FROM sqlite_sequence WHERE name IN ('item', 'removed')"
        )
        return Revision(**dict(self._rows(sql)))

    def modalities(self) -> dict[str, int]:
        """Return the number of each modality by name; a number never changes."""
        return dict(self._rows("SELECT name, number FROM modality ORDER BY number"))

    def count(self, modality: str | None = None) -> int:
        """Return the number of items, in all or in one modality."""
        return sum(n for (name, _), n in self.counts().items() if modality in (None, name))

    def counts(self) -> dict[tuple[str, str], int]:
        """Return the number of items by modality and kind of code; zeros are left out."""
        sql = "SELECT modality, kind, count(*) FROM item GROUP BY modality, kind"
        names = {number: name for name, number in self.modalities().items()}
        return {(names[number], kind): n for number, kind, n in self._rows(sql)}

    def uris(self, part: str) -> set[str]:
        """Return the URIs that have this text in them, of all items; reads all items."""
        return {row[0] for row in self._rows("SELECT uri FROM item WHERE instr(uri, ?)", part)}

    def labels(self) -> dict[str, int]:
        """Return how many items have each label, the most frequent first; numbers are texts here."""
        sql = """
        SELECT label.name, count(*) AS n FROM item_label JOIN label ON label.number = item_label.label
        GROUP BY item_label.label ORDER BY n DESC, label.name
        """
        return dict(self._rows(sql))

    def check(self) -> None:
        """Read the whole file and raise StoreError if something in it is not as it was written."""
        if found := self.damage():
            raise StoreError(f"{self.path} is damaged: {found[0]}. Restore it from a copy")

    def damage(self) -> list[str]:
        """Read the whole file and return what in it is not as it was written: pages, references, checksums of items."""
        found = []
        try:
            found += [str(row[0]) for row in self._rows(f"PRAGMA integrity_check({_MAX_DAMAGE})") if row[0] != "ok"]
            if dangling := self._rows("PRAGMA foreign_key_check"):
                found.append(f"{len(dangling)} rows refer to rows that are not there")
            found += self._changed_items()
        except StoreError as error:
            found.append(str(error))
        return found

    def backup(self, path: str | Path) -> None:
        """Write a copy of the store as it is at this moment to a new file; others may go on reading and writing."""
        target = Path(path)
        if target.exists():
            raise FileExistsError(f"{target} exists; give a new file")
        with translate_sqlite_errors(target):
            source, _ = _connect_read_only(self.path, n_bits=None, timeout=60.0)
            try:
                copy = sqlite3.connect(target)
                try:
                    source.backup(copy)
                finally:
                    copy.close()
            finally:
                source.close()

    # -- inside

    def _rows(self, sql: str, *values: Any) -> list[Any]:
        with self._lock, translate_sqlite_errors(self.path):
            self._check_open()
            return self._connection.execute(sql, values).fetchall()

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        if self.read_only:
            raise StoreError(f"{self.path} was opened read-only: nothing can be added or removed")
        with self._lock, translate_sqlite_errors(self.path):
            self._check_open()
            with _transaction(self._connection):
                yield self._connection

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self.path}: the store is closed")

    def _warn_of_no_words(self) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"SQLite {sqlite3.sqlite_version} of this Python has no FTS5, so words are not searched in texts; "
                "use a Python whose SQLite has it",
                UserWarning,
                stacklevel=3,
            )

    def _delete(self, connection: sqlite3.Connection, numbers: list[int]) -> None:
        if self._has_words:
            forget_items(connection, numbers)
        rows = [(number,) for number in numbers]
        connection.executemany(_DELETE_LABELS, rows)
        connection.executemany("DELETE FROM item WHERE number = ?", rows)
        connection.executemany("INSERT INTO removed (number) VALUES (?)", rows)
        self._forget_removals(connection)

    def _forgotten(self) -> int:
        """Return the number of the last removal that is no longer remembered."""
        rows = self._rows("SELECT value FROM meta WHERE key = 'forgotten_removals'")
        return int(rows[0][0]) if rows else 0

    def _forget_removals(self, connection: sqlite3.Connection) -> None:
        """Delete old removals, many at a time, in the caller's transaction."""
        first, last = connection.execute("SELECT min(step), max(step) FROM removed").fetchone()
        if last is not None and last - first >= 2 * _KEPT_REMOVALS:
            step = last - _KEPT_REMOVALS
            connection.execute("DELETE FROM removed WHERE step <= ?", (step,))
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('forgotten_removals', ?)", (str(step),))

    def _changed_items(self) -> list[str]:
        """Return which items are not as they were written, by their checksums."""
        if "checksum" not in {row[1] for row in self._rows("PRAGMA table_info(item)")}:
            return []  # of an earlier format, opened read-only
        names = {number: name for name, number in self.modalities().items()}
        found, last, stop = [], 0, self.revision().items
        sql = f"""
        SELECT number, modality, id, checksum IS row_checksum({_CHECKED}) FROM item
        WHERE number > ? AND number <= ? ORDER BY number LIMIT {_PAGE_ROWS}
        """
        while rows := self._rows(sql, last, stop):
            last = rows[-1][0]
            found += [
                f"the item {id!r} of {names.get(modality, modality)!r} is not as it was written"
                for _, modality, id, same in rows
                if not same
            ]
        more = len(found) - _MAX_DAMAGE
        return found if more <= 0 else [*found[:_MAX_DAMAGE], f"and {more:,} more items"]

    def _pages(
        self, column: str, modality: str | None, since: Revision | None, until: Revision | None
    ) -> Iterator[tuple[Array, Array, tuple[bytes, ...]]]:
        """Iterate over pages of numbers, numbers of the modalities and one column, in insertion order."""
        group = None if modality is None else self.modalities().get(modality, -1)
        last, stop = (since or Revision()).items, (until or self.revision()).items
        sql = f"SELECT number, modality, {column} FROM item WHERE number > ? AND number <= ?"
        sql += " AND +modality = ?" if modality is not None else ""  # +: by number, not through the other index
        more = () if group is None else (group,)
        while rows := self._rows(f"{sql} ORDER BY number LIMIT {_PAGE_ROWS}", last, stop, *more):
            numbers, groups, values = zip(*rows, strict=True)
            yield np.array(numbers, dtype=np.int64), np.array(groups, dtype=np.int64), values
            last = numbers[-1]

    def _numbers(self, keys: list[Key]) -> dict[Key, int]:
        ids: dict[str, list[str]] = {}
        for modality, id in keys:
            ids.setdefault(modality, []).append(id)
        rows = self._rows(_NUMBERS, json.dumps(list(ids.items()), ensure_ascii=False))
        return {(modality, id): number for modality, id, number in rows}

    def _select_matching(self, where: Filter | None) -> Array:
        test, values = ("1", []) if where is None else condition(where)
        rows = self._rows(f"SELECT item.number FROM item WHERE {test} ORDER BY item.number", *values)
        return np.fromiter((row[0] for row in rows), dtype=np.int64, count=len(rows))


@contextmanager
def translate_sqlite_errors(path: Path) -> Iterator[None]:
    """Raise SQLite's errors as the store's, with what to do about them."""
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
                f"{path} cannot be opened for writing ({error}). To search only, open it read-only: read_only=True, "
                "or --read-only"
            ) from error
        raise StoreError(f"{path}: {error}") from error


# -- opening and creating


def _connect(
    path: Path, *, n_bits: int | None, timeout: float, searched_fields: Sequence[str] | None
) -> tuple[sqlite3.Connection, int]:
    """Open the file, or create it if it is not there and ``n_bits`` is given; return its n_bits too."""
    if n_bits is None and not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give n_bits to create a store there")
    if n_bits is not None:
        check_int(n_bits, "n_bits", at_least=1)
        path.parent.mkdir(parents=True, exist_ok=True)
    connection = None
    try:
        with translate_sqlite_errors(path):
            connection = sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)
            _check_owner(connection, path)
            _use_write_ahead_log(connection, timeout)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KIBIBYTES}")
            connection.execute("PRAGMA foreign_keys = ON")
            _add_functions(connection)
            if n_bits is not None:
                _create(connection, n_bits)
            n_bits = _check_n_bits(connection, path, n_bits)
            _migrate(connection, n_bits)
            if has_words(connection) and not is_current(connection, searched_fields):
                with _transaction(connection):
                    bring_up(connection, searched_fields)
            return connection, n_bits
    except BaseException:
        if connection is not None:
            connection.close()
        raise


def _connect_read_only(path: Path, *, n_bits: int | None, timeout: float) -> tuple[sqlite3.Connection, int]:
    """Open the file without ever writing to it; return its n_bits too."""
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
                raise StoreError(
                    f"{path} was not closed by its last writer: what it wrote last stands in {log.name}, and reading "
                    "that needs a folder that can be written. Open it once where it can, and close it"
                ) from error
            connection = _connect_uri(path, "mode=ro&immutable=1", timeout)  # nobody can write here
        try:
            _check_owner(connection, path)
            version = _version(connection)
            if 0 < version < OLDEST_READ_ONLY:
                raise StoreError(f"{path} has format {version}; open it once for writing, which brings it to {FORMAT}")
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KIBIBYTES}")
            _add_functions(connection)
            return connection, _check_n_bits(connection, path, n_bits)
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


def row_checksum(*values: Any) -> int:
    """Return the CRC-32 of the columns of an item, with their lengths, so that none can lend to its neighbour."""
    parts = [b"" if value is None else value if isinstance(value, bytes) else str(value).encode() for value in values]
    lengths = ",".join("" if value is None else str(len(part)) for value, part in zip(values, parts, strict=True))
    return zlib.crc32(b"".join(parts), zlib.crc32(lengths.encode("ascii")))


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit all or nothing. The write lock is taken at the start, so no writer finds out halfway that it must wait."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk may have rolled it back already
            connection.execute("ROLLBACK")
        raise


def _check_owner(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a file of another program or of a later version, before anything in it is changed."""
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    version = _version(connection)
    # Last: another process may create the store between two of these lines, all at once. Whoever is not yet named
    # here had not written when the others were read.
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if application == 0 and version == 0 and tables == 0:
        return  # new, or left by a process that was killed before it wrote anything
    if application != APPLICATION_ID:
        raise StoreError(f"{path} is an SQLite file of another program, not a store of modalhash")
    if version > FORMAT:
        raise StoreError(
            f"{path} has format {version}; this version reads up to {FORMAT}. Upgrade: pip install --upgrade modalhash"
        )


def _use_write_ahead_log(connection: sqlite3.Connection, timeout: float) -> None:
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
    with _transaction(connection):
        if not _version(connection):
            _execute_all(connection, _CREATE, n_bits)
            if has_words(connection):
                bring_up(connection, None)


def _migrate(connection: sqlite3.Connection, n_bits: int) -> None:
    """Bring a file of an earlier format to the present one; whoever comes second waits, and finds it done."""
    if _version(connection) >= FORMAT:
        return
    with _transaction(connection):
        for version in range(_version(connection), FORMAT):
            _execute_all(connection, _MIGRATIONS[version], n_bits)
        if has_words(connection):
            bring_up(connection, None)


def _execute_all(connection: sqlite3.Connection, statements: Iterable[str], n_bits: int) -> None:
    for statement in statements:
        connection.execute(statement.format(n_bits=n_bits, n_bytes=n_bytes(n_bits)))


def _check_n_bits(connection: sqlite3.Connection, path: Path, n_bits: int | None) -> int:
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


# -- rows


def _modality_number(connection: sqlite3.Connection, name: str) -> int:
    connection.execute("INSERT INTO modality (name) VALUES (?) ON CONFLICT DO NOTHING", (name,))
    number: int = connection.execute("SELECT number FROM modality WHERE name = ?", (name,)).fetchone()[0]
    return number


def _last_number(connection: sqlite3.Connection) -> int:
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'item'").fetchone()
    return row[0] if row else 0


def _to_row(record: Record, modality: int) -> tuple[Any, ...]:
    labels = to_json(list(record.labels)) if record.labels else None
    extra = to_json(dict(record.extra)) if record.extra else None
    text, uri, refinement = record.text, record.uri, record.refinement
    row = modality, record.id, record.code, record.kind, text, uri, labels, extra, refinement
    return *row, row_checksum(*row)


def _from_row(row: tuple[Any, ...]) -> Record:
    """Return the record of a row of ``_COLUMNS``."""
    id, modality, code, kind, text, uri, labels, extra, refinement = row
    return Record(
        id=id,
        modality=modality,
        code=code,
        kind=kind,
        text=text,
        uri=uri,
        labels=_parse_labels(labels) if labels else (),
        extra=json.loads(extra) if extra else {},
        refinement=refinement,
    )


@lru_cache(4096)
def _parse_labels(text: str) -> tuple[str | int, ...]:
    return tuple(json.loads(text))  # cached: many items have the same labels
