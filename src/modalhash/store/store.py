"""The items of an engine on disk: the truth, of which an index in memory is a copy."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from modalhash._typing import Array, Codes
from modalhash.codes import n_bytes
from modalhash.store.database import StoreBusyError, StoreError, StoreFullError, connect, explained, transaction
from modalhash.store.records import COLUMNS, Record, check_names, from_row, to_row
from modalhash.validation import check_choice

__all__ = ["Revision", "Store", "StoreBusyError", "StoreError", "StoreFullError"]
FROM = "FROM item JOIN modality ON modality.number = item.modality"
INSERT = "INSERT INTO item (id, modality, code, kind, text, uri, labels, extra) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
PAGE = 20_000  # items read at a time: no long read holds up the tidying of the log
REMEMBERED = 8  # filters whose items are known


class Revision(NamedTuple):
    """Numbers given and removals made so far. Equal revisions mean equal contents."""

    items: int = 0
    removals: int = 0


class Store:
    """Items on disk: ids, modalities, codes, texts or places, labels.

    An item has two names. Its ``id`` is a text that the user gives. Its ``number`` is an integer that the store
    gives, the one an index holds; numbers only rise and are never used again.

    Every call that changes something is one transaction: it happens whole, or not at all. Several processes may
    read and write the same file; each writer waits up to ``timeout`` seconds for its turn. A store may be used
    from several threads, but not across a fork.

    Parameters
    ----------
    path : str or Path
        The file; SQLite keeps two more beside it (``-wal``, ``-shm``) while it is open. A local disk.
    n_bits : int, optional
        Length of the codes. Creates the store if it is not there; without it, the store must be there.
    timeout : float
        Seconds to wait for another writer.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> with Store(Path(folder.name) / "items.db", n_bits=8) as store:
    ...     numbers = store.add([Record("boat", "text", bytes([0b1010_0000]), text="a red boat", labels=("sea",))])
    ...     store.count(), store.get("boat").text
    (1, 'a red boat')
    >>> folder.cleanup()
    """

    def __init__(self, path: str | Path, *, n_bits: int | None = None, timeout: float = 60.0) -> None:
        self.path = Path(path)
        self._connection, self.n_bits = connect(self.path, n_bits=n_bits, timeout=timeout)
        self._lock = threading.RLock()
        self._closed = False
        self._matched: dict[tuple[tuple[str, ...], str | None], tuple[Revision, Array]] = {}

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return self.count()

    def __contains__(self, identity: object) -> bool:
        return isinstance(identity, str) and len(self._rows("SELECT 1 FROM item WHERE id = ?", identity)) > 0

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r}, n_bits={self.n_bits})"

    def close(self) -> None:
        """Close the file; what was committed is there. Closing twice does nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._connection.close()

    # -- changes

    def add(self, records: Iterable[Record], *, replace: bool = False) -> Array:
        """Add items in one transaction; returns their numbers.

        An id that is in the store already (or comes twice) is an error, and then nothing is added. With
        ``replace`` the new item takes the place of the old one, under a new number.
        """
        batch = [check_names(record) for record in records]
        seen: set[str] = set()
        for record in batch:
            if record.id in seen:
                raise ValueError(f"the id {record.id!r} is given twice; nothing was added")
            seen.add(record.id)
        with self._change() as connection:
            known = self._numbers_by_id(list(seen))
            if known and not replace:
                raise ValueError(
                    f"{len(known)} of {len(batch)} ids are in the store already (first: {next(iter(known))!r}); "
                    "nothing was added. Pass replace=True to replace those items"
                )
            self._delete(connection, list(known.values()))
            modalities = {
                name: _modality(connection, name) for name in dict.fromkeys(record.modality for record in batch)
            }
            rows = [to_row(record, modalities[record.modality], self.n_bits) for record in batch]
            first = _sequence(connection, "item") + 1
            connection.executemany(INSERT, rows)
            last = _sequence(connection, "item") if rows else first - 1
            if last - first + 1 != len(rows):
                raise StoreError(f"{self.path}: numbers {first} to {last} for {len(rows)} items")
            return np.arange(first, last + 1, dtype=np.int64)

    def remove(self, ids: Iterable[str], *, missing: str = "error") -> int:
        """Remove items in one transaction; returns how many. An unknown id is an error unless ``missing="ignore"``."""
        check_choice(missing, "missing", ("error", "ignore"))
        wanted = list(dict.fromkeys(_check_texts(ids)))
        with self._change() as connection:
            known = self._numbers_by_id(wanted)
            if missing == "error" and len(known) < len(wanted):
                lost = next(identity for identity in wanted if identity not in known)
                raise KeyError(
                    f"{len(wanted) - len(known)} of {len(wanted)} ids are not in the store (first: {lost!r}); "
                    "nothing was removed. Pass missing='ignore' to remove the others"
                )
            self._delete(connection, list(known.values()))
            return len(known)

    # -- reading

    def get(self, identity: str) -> Record:
        """The item with this id; KeyError if there is none."""
        rows = self._rows(f"SELECT {COLUMNS} {FROM} WHERE item.id = ?", identity)
        if not rows:
            raise KeyError(f"no item has the id {identity!r} in {self.path}")
        return from_row(rows[0])

    def records(self, numbers: Any) -> dict[int, Record]:
        """The items with these numbers; those that were removed are left out."""
        wanted = json.dumps(np.asarray(numbers, dtype=np.int64).tolist())
        sql = f"SELECT item.number, {COLUMNS} {FROM} WHERE item.number IN (SELECT value FROM json_each(?))"
        return {row[0]: from_row(row[1:]) for row in self._rows(sql, wanted)}

    def numbers(self, ids: Iterable[str]) -> dict[str, int]:
        """The numbers of the items with these ids; unknown ones are left out."""
        return self._numbers_by_id(_check_texts(ids))

    def matching(self, *, labels: Iterable[str] = (), kind: str | None = None) -> Array:
        """Numbers of the items that have all these labels and this kind of code.

        Reads every item's labels; the last answers are remembered until something changes.
        """
        key, revision = (tuple(labels), kind), self.revision()
        known = self._matched.get(key)
        if known is None or known[0] != revision:
            known = revision, self._matching(*key)
            with self._lock:
                self._matched.pop(key, None)
                self._matched[key] = known
                for old in list(self._matched)[:-REMEMBERED]:
                    del self._matched[old]
        return known[1]

    def scan(self, *, modality: str | None = None) -> Iterator[Record]:
        """All items in the order they were added. Removed meanwhile: left out; added meanwhile: left out too."""
        last, stop = 0, self.revision().items
        sql = f"SELECT item.number, {COLUMNS} {FROM} WHERE item.number > ? AND item.number <= ?"
        sql += " AND modality.name = ?" if modality is not None else ""
        more = () if modality is None else (modality,)
        while rows := self._rows(f"{sql} ORDER BY item.number LIMIT {PAGE}", last, stop, *more):
            yield from (from_row(row[1:]) for row in rows)
            last = rows[-1][0]

    def codes(
        self, *, modality: str | None = None, since: int = 0, until: int | None = None
    ) -> Iterator[tuple[Array, Array, Codes]]:
        """Codes for an index, in pages: numbers (above ``since``), numbers of the modalities, packed codes."""
        group = None if modality is None else self.modalities().get(modality, -1)
        stop = self.revision().items if until is None else until
        sql = "SELECT number, modality, code FROM item WHERE number > ? AND number <= ?"
        sql += " AND +modality = ?" if modality is not None else ""  # +: by number, not through the other index
        more = () if group is None else (group,)
        while rows := self._rows(f"{sql} ORDER BY number LIMIT {PAGE}", since, stop, *more):
            numbers, groups, codes = zip(*rows, strict=True)
            packed = np.frombuffer(b"".join(codes), dtype=np.uint8).reshape(-1, n_bytes(self.n_bits))
            yield np.array(numbers, dtype=np.int64), np.array(groups, dtype=np.int64), packed
            since = numbers[-1]

    def removed(self, since: int, until: int) -> Array:
        """Numbers that were removed after step ``since`` and up to ``until`` (see :meth:`revision`)."""
        rows = self._rows("SELECT number FROM removed WHERE step > ? AND step <= ? ORDER BY step", since, until)
        return np.array([row[0] for row in rows], dtype=np.int64)

    def revision(self) -> Revision:
        """How far the store has come, whoever moved it: cheap enough to ask before every search."""
        return Revision(**dict(self._rows(
            "SELECT iif(name = 'item', 'items', 'removals'), seq FROM sqlite_sequence WHERE name IN ('item', 'removed')"
        )))  # fmt: skip

    def modalities(self) -> dict[str, int]:
        """Names of the modalities and their numbers, which never change."""
        return dict(self._rows("SELECT name, number FROM modality ORDER BY number"))

    def count(self, modality: str | None = None) -> int:
        """How many items there are, in all or in one modality."""
        return sum(n for (name, _), n in self.counts().items() if modality in (None, name))

    def counts(self) -> dict[tuple[str, str], int]:
        """How many items there are by modality and kind of code."""
        sql = "SELECT modality, kind, count(*) FROM item GROUP BY modality, kind"
        names = {number: name for name, number in self.modalities().items()}
        return {(names[number], kind): n for number, kind, n in self._rows(sql)}

    def check(self) -> None:
        """Read the whole file and raise StoreError if something in it does not fit together."""
        found = [row[0] for row in self._rows("PRAGMA integrity_check")]
        if found != ["ok"]:
            raise StoreError(f"{self.path} is damaged: {found[0]}. Restore it from a copy")

    # -- inside

    def _rows(self, sql: str, *values: Any) -> list[Any]:
        with self._lock, explained(self.path):
            self._check_open()
            return self._connection.execute(sql, values).fetchall()

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        with self._lock, explained(self.path):
            self._check_open()
            with transaction(self._connection):
                yield self._connection

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self.path}: the store is closed")

    def _numbers_by_id(self, ids: list[str]) -> dict[str, int]:
        sql = "SELECT id, number FROM item WHERE id IN (SELECT value FROM json_each(?))"
        return dict(self._rows(sql, json.dumps(ids, ensure_ascii=False)))

    def _matching(self, labels: Iterable[str], kind: str | None) -> Array:
        sql, values = "SELECT number FROM item WHERE 1", []
        if kind is not None:
            sql, values = f"{sql} AND +kind = ?", [kind]
        for label in labels:
            # the first condition is much faster and lets few pass that the second one refuses
            sql += " AND instr(labels, ?) AND EXISTS (SELECT 1 FROM json_each(labels) WHERE CAST(value AS TEXT) = ?)"
            values += [json.dumps(label, ensure_ascii=False)[1:-1], label]
        return np.array([row[0] for row in self._rows(f"{sql} ORDER BY number", *values)], dtype=np.int64)

    @staticmethod
    def _delete(connection: sqlite3.Connection, numbers: list[int]) -> None:
        connection.executemany("DELETE FROM item WHERE number = ?", ((number,) for number in numbers))
        connection.executemany("INSERT INTO removed (number) VALUES (?)", ((number,) for number in numbers))


def _modality(connection: sqlite3.Connection, name: str) -> int:
    connection.execute("INSERT INTO modality (name) VALUES (?) ON CONFLICT DO NOTHING", (name,))
    number: int = connection.execute("SELECT number FROM modality WHERE name = ?", (name,)).fetchone()[0]
    return number


def _sequence(connection: sqlite3.Connection, table: str) -> int:
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).fetchone()
    return row[0] if row else 0


def _check_texts(ids: Iterable[str]) -> list[str]:
    if isinstance(ids, str):
        raise TypeError(f"ids is the text {ids!r}; expected several ids, e.g. [{ids!r}]")
    texts = list(ids)
    for identity in texts:
        if not isinstance(identity, str):
            raise TypeError(f"the id {identity!r} is {type(identity).__name__}; expected a text")
    return texts
