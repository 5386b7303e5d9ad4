"""A store in one SQLite file.

With write-ahead logging, readers continue while one process writes. ``synchronous=FULL`` waits for the disk at every
commit, so committed changes survive a killed process and a power cut. Every change is one ``BEGIN IMMEDIATE``
transaction, so changes are atomic and writers are serialized.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from modalhash.core.codes import n_bytes
from modalhash.core.progress import StoppedError, should_stop
from modalhash.core.typing import Array, Codes
from modalhash.core.validation import check_choice
from modalhash.store.conditions import SqliteDialect
from modalhash.store.filters import Filter
from modalhash.store.records import (
    KEPT_MARKS,
    KEPT_REMOVALS,
    MAX_DAMAGE,
    MAX_REFINEMENT,
    Key,
    Record,
    Revision,
    SharedStore,
    StoreError,
    check_absent,
    check_keys,
    check_present,
    check_records,
    check_same_keys,
    check_updates,
    first_damage,
)
from modalhash.store.sqlite import words
from modalhash.store.sqlite.labels import add_labels, find_labelled, forget_labels, is_by_labels, sorted_distinct
from modalhash.store.sqlite.schema import (
    CHECKED,
    COLUMNS,
    FORMAT,
    FROM,
    INSERT,
    Reader,
    Readers,
    connect,
    connect_read_only,
    from_row,
    tell_damage,
    to_row,
    transaction,
    translate_sqlite_errors,
)

_NUMBERS = """
SELECT modality.name, item.id, item.number
FROM json_each(?) AS wanted
CROSS JOIN modality ON modality.name = json_extract(wanted.value, '$[0]')
CROSS JOIN json_each(wanted.value, '$[1]') AS own
CROSS JOIN item ON item.modality = modality.number AND item.id = own.value
"""  # CROSS JOIN keeps this order: one lookup in the index of (modality, id) for each key
_KEYS = """
SELECT item.number, modality.name, item.id FROM json_each(?) AS wanted
CROSS JOIN item ON item.number = wanted.value CROSS JOIN modality ON modality.number = item.modality
ORDER BY item.number
"""
_PAGE_ROWS = 20_000  # per page; a long read would keep SQLite from writing the log back into the file
_FEW = SqliteDialect(few=True)

STORE_FORMAT = FORMAT
"""Format of the files that are written."""


class SqliteStore(SharedStore):
    """A :class:`~modalhash.store.Store` in one SQLite file.

    Several processes may read and write the same file; each writer waits up to ``timeout`` seconds for the write lock.
    A store may be shared between threads, but not across a fork.

    Parameters
    ----------
    path : str or Path
        The file, on a local disk. SQLite creates two more next to it (``-wal``, ``-shm``) while it is open.
    n_bits : int, optional
        Length of the codes. Creates the store if it does not exist; without it, the store must exist.
    timeout : float
        Seconds to wait for another writer.
    searched_fields : sequence of str, optional
        Fields of ``extra`` that :meth:`search_text` searches in addition to texts and ids; changing them reads all
        items once. By default the stored setting, initially ``title``, ``caption``, ``description`` and
        ``picture_text``.
    read_only : bool
        Never write. Changes raise, and a file on a read-only disk can be opened if its last writer closed it.

    Examples
    --------
    >>> import tempfile
    >>> from modalhash.store import Record
    >>> folder = tempfile.TemporaryDirectory()
    >>> with SqliteStore(Path(folder.name) / "items.db", n_bits=8) as store:
    ...     row_ids = store.add([Record("boat", "text", bytes([0b1010_0000]), text="a red boat", labels=("sea",))])
    ...     store.count(), store.get("boat", modality="text").text
    (1, 'a red boat')
    >>> folder.cleanup()
    """

    dialect = SqliteDialect()

    def __init__(
        self,
        path: str | Path,
        *,
        n_bits: int | None = None,
        timeout: float = 60.0,
        searched_fields: Sequence[str] | None = None,
        read_only: bool = False,
    ) -> None:
        super().__init__()
        self.path, self.read_only, self._timeout = Path(path), read_only, timeout
        if read_only:
            self._connection, self.n_bits = connect_read_only(self.path, n_bits=n_bits, timeout=timeout)
        else:
            self._connection, self.n_bits = connect(
                self.path, n_bits=n_bits, timeout=timeout, searched_fields=searched_fields
            )
        try:
            with translate_sqlite_errors(self.path):
                has_words = words.has_words(self._connection)
                self._has_words = has_words and (not read_only or words.is_current(self._connection, None))
        except BaseException:
            self._connection.close()
            raise
        self._lock = threading.RLock()
        self._main, self._readers = Reader(self._connection), Readers(self.path, self.n_bits, timeout)
        self._closed = self._warned = False
        self._writer: int | None = None
        """Thread whose change is in progress; its reads see the change."""

    def __repr__(self) -> str:
        return f"SqliteStore({str(self.path)!r}, n_bits={self.n_bits})"

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._readers.close()
                self._connection.close()

    # -- changes

    def add(self, records: Iterable[Record], *, replace: bool = False) -> Array:
        batch = check_records(records, self.n_bits)
        with self._change() as connection:
            known = self._numbers([record.key for record in batch])
            if not replace:
                check_absent(known, len(batch))
            self._delete(connection, list(known.values()))
            return self._insert(connection, batch)

    def update(self, records: Mapping[int, Record]) -> Array:
        wanted = check_updates(records, self.n_bits)
        with self._change() as connection:
            there = self._rows(_KEYS, json.dumps(list(wanted)))
            check_same_keys(wanted, {number: (modality, id) for number, modality, id in there})
            numbers = [row[0] for row in there]
            self._delete(connection, numbers)
            self._insert(connection, [wanted[number] for number in numbers])
            return np.array(numbers, dtype=np.int64)

    def optimize(self) -> None:
        """Merge the segments of the full-text index, so that a search reads only one."""
        if self.read_only or not self._has_words:
            return
        begin = some_left = True
        while some_left:
            with self._change() as connection:
                some_left = words.merge_some(connection, begin=begin)
            begin = False

    @contextmanager
    def lock_writes(self) -> Iterator[Callable[[str | None], None]]:
        """Block all other writers during the block, because another store is about to replace this one.

        The file may be moved meanwhile, and readers continue. The function has nothing to do, because other processes
        notice that the file was replaced.
        """
        if self.read_only:
            raise StoreError(f"{self.path} was opened read-only and cannot be replaced")
        with translate_sqlite_errors(self.path):
            # a separate connection, so that threads of this process can continue to read
            connection = sqlite3.connect(self.path, timeout=self._timeout, isolation_level=None)
            try:
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield lambda schema: None
                finally:
                    connection.execute("ROLLBACK")
            finally:
                connection.close()

    def successor(self) -> None:
        """Return None, because no other machine can replace a file."""

    def remove(self, keys: Iterable[Key], *, missing: str = "error") -> int:
        check_choice(missing, "missing", ("error", "ignore"))
        wanted = list(dict.fromkeys(check_keys(keys)))
        with self._change() as connection:
            known = self._numbers(wanted)
            if missing == "error":
                check_present(wanted, known)
            self._delete(connection, list(known.values()))
            return len(known)

    # -- reading

    def get(self, id: str, *, modality: str) -> Record:
        rows = self._rows(f"SELECT {COLUMNS} {FROM} WHERE modality.name = ? AND item.id = ?", modality, id)
        if not rows:
            raise KeyError(f"no item of {modality!r} has the id {id!r} in {self.path}")
        with tell_damage(self.path):
            return from_row(rows[0])

    def row_ids(self, keys: Iterable[Key]) -> dict[Key, int]:
        return self._numbers(check_keys(keys))

    def records(self, row_ids: Any, *, where: Filter | None = None) -> dict[int, Record]:
        wanted = json.dumps(np.asarray(row_ids, dtype=np.int64).tolist())
        test, values = _FEW.condition(where)
        # CROSS JOIN: one lookup per row id, even if the filter has an index
        sql = (
            f"SELECT item.number, {COLUMNS} FROM json_each(?) AS wanted CROSS JOIN item ON item.number = wanted.value "
            f"JOIN modality ON modality.number = item.modality WHERE {test}"
        )
        rows = self._rows(sql, wanted, *values)
        with tell_damage(self.path):
            return {row[0]: from_row(row[1:]) for row in rows}

    def search_text(
        self, query: str, *, where: Filter | None = None, limit: int = 20, match_all: bool = False
    ) -> Array:
        """Return the row ids of the items whose text, captions or id contain words of the query, by BM25.

        Case, accents and English endings are ignored, and ``dino*`` matches a prefix. If no item contains all words,
        items with some of them are returned, unless ``match_all`` is set. Items that match only common query words are
        dropped; words in most items are ignored. If SQLite was built without FTS5, nothing is found and a warning is
        issued once.
        """
        if not self._has_words:
            self._warn_of_no_words()
            return np.empty(0, np.int64)
        test, values = _FEW.condition(where)
        with self._reading() as reader:
            found = words.find_items(
                reader.connection, reader.word_facts, query, test, values, limit, match_all=match_all
            )
        return np.array(found, dtype=np.int64)

    def scan(self, *, modality: str | None = None) -> Iterator[Record]:
        last, stop = 0, self.revision().items
        sql = f"SELECT item.number, {COLUMNS} {FROM} WHERE item.number > ? AND item.number <= ?"
        sql += " AND modality.name = ?" if modality is not None else ""
        more = () if modality is None else (modality,)
        while rows := self._rows(f"{sql} ORDER BY item.number LIMIT {_PAGE_ROWS}", last, stop, *more):
            with tell_damage(self.path):
                records = [from_row(row[1:]) for row in rows]
            yield from records
            last = rows[-1][0]

    def codes(
        self, *, modality: str | None = None, since: Revision | None = None, until: Revision | None = None
    ) -> Iterator[tuple[Array, Array, Codes]]:
        for numbers, groups, codes in self._pages("code", modality, since, until):
            with tell_damage(self.path):
                packed = np.frombuffer(b"".join(codes), dtype=np.uint8).reshape(len(codes), n_bytes(self.n_bits))
            yield numbers, groups, packed

    def refinements(
        self, *, modality: str | None = None, since: Revision | None = None, until: Revision | None = None
    ) -> Iterator[tuple[Array, Array, Array, Array]]:
        for numbers, groups, rows in self._pages("refinement", modality, since, until):
            with tell_damage(self.path):
                vectors, present = _padded(rows)
            yield numbers, groups, vectors, present

    def revision(self) -> Revision:
        sql = (
            "SELECT iif(name = 'item', 'items', 'removals'), seq FROM sqlite_sequence WHERE name IN ('item', 'removed')"
        )
        rows = self._rows(sql)
        with tell_damage(self.path):
            return Revision(**{name: int(step) for name, step in rows})

    def revision_if_ready(self) -> Revision | None:
        """Return the current revision, or None if the file was replaced, so that threads share one connection."""
        with self._readers.take() as reader:
            is_ready = reader is not None
        return self.revision() if is_ready else None

    def add_mark(self, mark: str) -> None:
        with self._change() as connection:
            marks = " ".join([*self._meta("marks").split(), mark][-KEPT_MARKS:])
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('marks', ?)", (marks,))

    def count(self, modality: str | None = None) -> int:
        return sum(n for (name, _), n in self.counts().items() if modality in (None, name))

    def counts(self) -> dict[tuple[str, str], int]:
        sql = "SELECT modality, kind, count(*) FROM item GROUP BY modality, kind"
        names = {number: name for name, number in self.modalities().items()}
        rows = self._rows(sql)
        with tell_damage(self.path):
            return {(names[number], kind): n for number, kind, n in rows}

    def uris(self, part: str) -> set[str]:
        return {row[0] for row in self._rows("SELECT uri FROM item WHERE instr(uri, ?)", part)}

    def check(self) -> None:
        """Read the whole file and raise StoreError if it is damaged."""
        if found := self.damage():
            raise StoreError(f"{self.path} is damaged: {found[0]}. Restore it from a copy")

    def damage(self) -> list[str]:
        """Read the whole file and return the damage found: pages, references, checksums of items."""
        found = []
        try:
            self._check_open()
            # a new connection, because FTS5 takes pages that a connection remembers from a search for the current ones
            connection, _ = connect_read_only(self.path, n_bits=None, timeout=self._timeout)
            with closing(connection), translate_sqlite_errors(self.path):
                rows = connection.execute(f"PRAGMA integrity_check({MAX_DAMAGE})").fetchall()
                found += [str(row[0]) for row in rows if row[0] != "ok"]
                if dangling := connection.execute("PRAGMA foreign_key_check").fetchall():
                    found.append(f"{len(dangling)} rows refer to missing rows")
            found += self._changed_items()
        except StoreError as error:
            found.append(str(error))
        return found

    def backup(self, path: str | Path) -> None:
        """Write a consistent copy of the store to a new file, while other processes read and write."""
        target = Path(path)
        if target.exists():
            raise FileExistsError(f"{target} exists; give a new file")
        with translate_sqlite_errors(target):
            source, _ = connect_read_only(self.path, n_bits=None, timeout=60.0)
            try:
                copy = sqlite3.connect(target)
                try:
                    source.backup(copy)
                finally:
                    copy.close()
            finally:
                source.close()

    # -- private

    def _insert(self, connection: sqlite3.Connection, batch: list[Record]) -> Array:
        """Insert items in the caller's transaction and return their row ids."""
        modalities = {
            name: _modality_number(connection, name) for name in dict.fromkeys(record.modality for record in batch)
        }
        rows = [to_row(record, modalities[record.modality]) for record in batch]
        first = _last_number(connection) + 1
        connection.executemany(INSERT, rows)
        add_labels(connection, first)
        if self._has_words:
            words.add_items(connection)
        last = _last_number(connection) if rows else first - 1
        if last - first + 1 != len(rows):
            raise StoreError(f"{self.path}: row ids {first} to {last} for {len(rows)} items")
        return np.arange(first, last + 1, dtype=np.int64)

    def _rows(self, sql: str, *values: Any) -> list[Any]:
        with self._reading() as reader:
            return reader.connection.execute(sql, values).fetchall()

    def _values(self, sql: str, *values: Any) -> list[Any]:
        """Return the values of all rows in one flat list."""
        with self._reading() as reader:
            return list(chain.from_iterable(reader.connection.execute(sql, values)))

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        if self.read_only:
            raise StoreError(f"{self.path} was opened read-only; nothing can be added or removed")
        with self._lock, translate_sqlite_errors(self.path):
            self._check_open()
            with transaction(self._connection):
                before, self._writer = self._writer, threading.get_ident()
                try:
                    yield self._connection
                finally:
                    self._writer = before

    @contextmanager
    def _reading(self) -> Iterator[Reader]:
        """Provide a connection that no other thread uses, so that a read waits neither for reads nor for changes."""
        if should_stop.get()():
            raise StoppedError("a read of the store took too long")
        with translate_sqlite_errors(self.path):
            if self._writer != threading.get_ident():
                with self._readers.take() as reader:
                    self._check_open()
                    if reader is not None:
                        yield reader
                        return
            with self._lock:
                self._check_open()
                yield self._main

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self.path}: the store is closed")

    def _warn_of_no_words(self) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"SQLite {sqlite3.sqlite_version} of this Python was built without FTS5, so texts are not searched; "
                "use a Python whose SQLite has it",
                UserWarning,
                stacklevel=3,
            )

    def _delete(self, connection: sqlite3.Connection, numbers: list[int]) -> None:
        if self._has_words:
            words.forget_items(connection, numbers)
        forget_labels(connection, numbers)
        rows = [(number,) for number in numbers]
        connection.executemany("DELETE FROM item WHERE number = ?", rows)
        connection.executemany("INSERT INTO removed (number) VALUES (?)", rows)
        self._forget_removals(connection)

    def _forget_removals(self, connection: sqlite3.Connection) -> None:
        first, last = connection.execute("SELECT min(step), max(step) FROM removed").fetchone()
        if last is not None and last - first >= 2 * KEPT_REMOVALS:
            step = last - KEPT_REMOVALS
            connection.execute("DELETE FROM removed WHERE step <= ?", (step,))
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('forgotten_removals', ?)", (str(step),))

    def _changed_items(self) -> list[str]:
        """Return a message for each item whose checksum does not match."""
        names = {number: name for name, number in self.modalities().items()}
        found, last, stop = [], 0, self.revision().items
        sql = f"""
        SELECT number, modality, id, checksum IS row_checksum({CHECKED}) FROM item
        WHERE number > ? AND number <= ? ORDER BY number LIMIT {_PAGE_ROWS}
        """
        while rows := self._rows(sql, last, stop):
            last = rows[-1][0]
            found += [
                f"the item {id!r} of {names.get(modality, modality)!r} is not as it was written"
                for _, modality, id, same in rows
                if not same
            ]
        return first_damage(found)

    def _pages(
        self, column: str, modality: str | None, since: Revision | None, until: Revision | None
    ) -> Iterator[tuple[Array, Array, list[bytes]]]:
        """Iterate over pages of (row ids, modality numbers, values of one column) in insertion order.

        Rows are fetched flat because tuples would keep the garbage collector busy and take three times as long.
        """
        group = None if modality is None else self.modalities().get(modality, -1)
        last, stop = (since or Revision()).items, (until or self.revision()).items
        sql = f"SELECT number, modality, {column} FROM item WHERE number > ? AND number <= ?"
        sql += " AND +modality = ?" if modality is not None else ""  # + keeps SQLite from using the index of modalities
        more = () if group is None else (group,)
        while values := self._values(f"{sql} ORDER BY number LIMIT {_PAGE_ROWS}", last, stop, *more):
            with tell_damage(self.path):
                numbers, groups = (np.array(values[first::3], dtype=np.int64) for first in range(2))
            yield numbers, groups, values[2::3]
            last = int(numbers[-1])

    def _numbers(self, keys: list[Key]) -> dict[Key, int]:
        ids: dict[str, list[str]] = {}
        for modality, id in keys:
            ids.setdefault(modality, []).append(id)
        rows = self._rows(_NUMBERS, json.dumps(list(ids.items()), ensure_ascii=False))
        return {(modality, id): number for modality, id, number in rows}

    def _select_matching(self, where: Filter | None) -> Array:
        if where is not None and is_by_labels(where):
            return find_labelled(where, self._select_sorted)
        test, values = self.dialect.condition(where)
        return self._select_sorted(f"SELECT item.number FROM item WHERE {test}", values)

    def _select_newest(self, where: Filter | None) -> Array:
        test, values = self.dialect.condition(where)
        return self._select_numbers(f"SELECT item.number FROM item WHERE {test} ORDER BY {self.dialect.newest}", values)

    def _select_up_to(self, last: int) -> Array:
        return self._select_numbers("SELECT number FROM item WHERE number <= ?", (last,))

    def _select_sorted(self, sql: str, values: Sequence[Any]) -> Array:
        """Return the selected row ids, ascending and distinct; sorting here lets SQLite read the smallest index."""
        return sorted_distinct(self._select_numbers(sql, values))

    def _select_numbers(self, sql: str, values: Sequence[Any]) -> Array:
        with self._reading() as reader:
            return np.fromiter(chain.from_iterable(reader.connection.execute(sql, values)), dtype=np.int64)


def _padded(vectors: Sequence[bytes | None]) -> tuple[Array, Array]:
    """Return refinement vectors as zero-padded rows, and which of them are present."""
    if None not in vectors and len(widths := set(map(len, vectors))) == 1:  # type: ignore[arg-type]
        rows = np.zeros((len(vectors), MAX_REFINEMENT), np.int8)
        width = widths.pop()
        rows[:, :width] = np.frombuffer(b"".join(vectors), np.int8).reshape(len(vectors), width)  # type: ignore[arg-type]
        return rows, np.ones(len(vectors), dtype=bool)
    padded = b"".join((vector or b"").ljust(MAX_REFINEMENT, b"\0") for vector in vectors)
    rows = np.frombuffer(padded, np.int8).reshape(len(vectors), MAX_REFINEMENT)
    return rows, np.array([vector is not None for vector in vectors], dtype=bool)


def _modality_number(connection: sqlite3.Connection, name: str) -> int:
    connection.execute("INSERT INTO modality (name) VALUES (?) ON CONFLICT DO NOTHING", (name,))
    number: int = connection.execute("SELECT number FROM modality WHERE name = ?", (name,)).fetchone()[0]
    return number


def _last_number(connection: sqlite3.Connection) -> int:
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'item'").fetchone()
    return row[0] if row else 0
