"""A store in a schema of a PostgreSQL database, which processes on several machines share.

Every process follows the database by revision (:func:`modalhash.engine.refresh`). Every change is one transaction that
first locks the only row of ``counter``, so changes are serialized and the row ids taken from it ascend in commit order.
A sequence would not do, because it assigns ids before the commit: a reader that has seen 7 would miss 6 if that is
committed later. Items are written, and codes read, by binary ``COPY``. The format is in ``meta``.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from modalhash.core.codes import n_bytes
from modalhash.core.label_names import label_key
from modalhash.core.typing import Array, Codes
from modalhash.core.validation import check_choice, check_int
from modalhash.store.conditions import PostgresDialect
from modalhash.store.filters import SEARCHED_FIELDS, Filter
from modalhash.store.postgres.connection import BEING_MADE, FOLLOWER, REPLACED, Connections, lock_key
from modalhash.store.postgres.engines import find_successor, has_schema, name_successor, refuse_changes
from modalhash.store.postgres.schema import (
    COLUMNS,
    COPIED,
    CREATE,
    FORMAT,
    FROM,
    KEYS,
    NUMBERS,
    PADDED_REFINEMENT,
    Derived,
    from_row,
    integers,
    labels_of,
    read_rows,
    to_row,
)
from modalhash.store.postgres.words import LexemeCounts, find_items, searched_words
from modalhash.store.records import (
    KEPT_MARKS,
    KEPT_REMOVALS,
    MAX_REFINEMENT,
    Key,
    Record,
    Revision,
    SharedStore,
    StoreError,
    StoreReplacedError,
    check_absent,
    check_keys,
    check_present,
    check_records,
    check_same_keys,
    check_updates,
    first_damage,
)
from modalhash.store.sqlite.store import SqliteStore

_PAGE_ROWS = 100_000
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")


class PostgresStore(SharedStore):
    """A :class:`~modalhash.store.Store` in a schema of a PostgreSQL database (extra ``postgres``; version 14 or later).

    Several processes, on several machines, may read and write the same schema; each writer waits up to ``timeout``
    seconds for the write lock. Each thread uses a separate connection. After a connection is lost, the next call
    reconnects: a read is repeated, while a change raises :class:`StoreUnavailableError` and did not happen, or raises
    :class:`StoreUncertainError` if the connection was lost during the commit.

    Parameters
    ----------
    url : str
        ``postgresql://user:password@host/database?sslmode=verify-full``, as libpq takes it. Errors show only a part of
        it.
    schema : str
        The schema, of lower-case letters, digits and underscores; one for each store.
    n_bits : int, optional
        Length of the codes. Creates the schema if it does not exist; without it, the schema must exist.
    timeout : float
        Seconds to wait for another writer.
    searched_fields : sequence of str, optional
        Fields of ``extra`` that :meth:`search_text` searches in addition to texts and ids; changing them reads all
        items once. By default the stored setting, initially ``title``, ``caption``, ``description`` and
        ``picture_text``.
    read_only : bool
        Never write. Changes raise, and a role that may only select suffices.
    model : str, optional
        Digest of the model that computes the codes. The first one is stored, and any other is refused.
    """

    dialect = PostgresDialect()

    def __init__(
        self,
        url: str,
        *,
        schema: str = "modalhash",
        n_bits: int | None = None,
        timeout: float = 60.0,
        searched_fields: Sequence[str] | None = None,
        read_only: bool = False,
        model: str | None = None,
    ) -> None:
        if not _SCHEMA.fullmatch(schema):
            raise ValueError(f"schema is {schema!r}; expected lower-case letters, digits and underscores")
        if n_bits is not None:
            check_int(n_bits, "n_bits", at_least=1)
        super().__init__()
        self.schema, self.read_only = schema, read_only
        self.timeout = timeout
        self._word_facts = LexemeCounts()
        self._connections = Connections(url, schema, read_only=read_only)
        try:
            if n_bits is not None and not read_only:
                self._create(n_bits)
            meta = self._check_owner()
            self.n_bits = _check_meta(self.name, meta, n_bits, model)
            if model is not None and "model" not in meta and not read_only:
                sql = "INSERT INTO meta VALUES ('model', %s) ON CONFLICT DO NOTHING"
                self._change(lambda connection: connection.execute(sql, [model]))
            self._fields: list[str] = json.loads(meta["searched_fields"])
            if searched_fields is not None and list(searched_fields) != self._fields and not read_only:
                self._change_fields(list(searched_fields))
        except BaseException:
            self._connections.close()
            raise

    def __repr__(self) -> str:
        return f"PostgresStore({self.name!r}, n_bits={self.n_bits})"

    @property
    def name(self) -> str:
        """The location of the store, without user and password."""
        return self._connections.name

    def close(self) -> None:
        self._connections.close()

    def limit_statements(self, seconds: float) -> None:
        """Let the server cancel statements that take longer, if the process that waits for them does not."""
        self._connections.limit_statements(seconds)

    # -- changes

    def add(self, records: Iterable[Record], *, replace: bool = False) -> Array:
        batch = check_records(records, self.n_bits)

        def work(connection: Any) -> Array:
            first = self._lock_counter(connection) + 1
            known = _select_numbers(connection, [record.key for record in batch])
            if not replace:
                check_absent(known, len(batch))
            if not batch:
                return np.empty(0, dtype=np.int64)
            _delete(connection, list(known.values()))
            return self._insert(connection, batch, first)

        return self._change(work)

    def update(self, records: Mapping[int, Record]) -> Array:
        wanted = check_updates(records, self.n_bits)

        def work(connection: Any) -> Array:
            first = self._lock_counter(connection) + 1
            there = _select(connection, KEYS, [list(wanted)])
            check_same_keys(wanted, {number: (modality, id) for number, modality, id in there})
            numbers = [row[0] for row in there]
            if numbers:
                _delete(connection, numbers)
                self._insert(connection, [wanted[number] for number in numbers], first)
            return np.array(numbers, dtype=np.int64)

        return self._change(work)

    def optimize(self) -> None:
        """Do nothing, because the server maintains its tables."""

    @contextmanager
    def lock_writes(self) -> Iterator[Callable[[str | None], None]]:
        """Block all other writers during the block, because another store is about to replace this one.

        Readers continue. After the call of the function that it yields, the schema refuses every change, from every
        machine, and all machines follow to the schema that it was called with.
        """
        if self.read_only:
            raise StoreError(f"{self.name} was opened read-only and cannot be replaced")
        with self._connections.connect() as connection:
            with self._connections.translated():
                connection.execute("BEGIN")
                self._lock_counter(connection)

            def replace_by(schema: str | None) -> None:
                with self._connections.translated():
                    refuse_changes(connection, self.schema)
                    if schema is not None:
                        name_successor(connection, self.schema, schema)
                    self._connections.commit(connection)

            try:
                yield replace_by
            finally:
                self._connections.roll_back(connection)

    def successor(self) -> str | None:
        return self._connections.read(lambda connection: find_successor(connection, self.schema))

    def remove(self, keys: Iterable[Key], *, missing: str = "error") -> int:
        check_choice(missing, "missing", ("error", "ignore"))
        wanted = list(dict.fromkeys(check_keys(keys)))

        def work(connection: Any) -> int:
            self._lock_counter(connection)
            known = _select_numbers(connection, [key for key in wanted if _is_storable(*key)])
            if missing == "error":
                check_present(wanted, known)
            _delete(connection, list(known.values()))
            return len(known)

        return self._change(work)

    # -- reading

    def get(self, id: str, *, modality: str) -> Record:
        sql = f"SELECT {COLUMNS} {FROM} WHERE modality.name = %s AND item.id = %s"
        rows = self._rows(sql, modality, id) if _is_storable(modality, id) else []
        if not rows:
            raise KeyError(f"no item of {modality!r} has the id {id!r} in {self.name}")
        return from_row(rows[0])

    def row_ids(self, keys: Iterable[Key]) -> dict[Key, int]:
        wanted = [key for key in check_keys(keys) if _is_storable(*key)]
        return self._connections.read(lambda connection: _select_numbers(connection, wanted))

    def records(self, row_ids: Any, *, where: Filter | None = None) -> dict[int, Record]:
        wanted = np.asarray(row_ids, dtype=np.int64).tolist()
        test, values = self.dialect.condition(where)
        sql = f"SELECT item.number, {COLUMNS} {FROM} WHERE item.number = ANY(%s) AND {test} ORDER BY item.number"
        return {row[0]: from_row(row[1:]) for row in self._rows(sql, wanted, *values)}

    def search_text(
        self, query: str, *, where: Filter | None = None, limit: int = 20, match_all: bool = False
    ) -> Array:
        """Return the row ids of the items whose text, captions or id contain words of the query, by BM25.

        The rules are those of :meth:`~modalhash.store.SqliteStore.search_text`.
        """
        test, values = self.dialect.condition(where)
        found = self._connections.read(
            lambda connection: find_items(connection, self._word_facts, query, test, values, limit, match_all=match_all)
        )
        return np.array(found, dtype=np.int64)

    def scan(self, *, modality: str | None = None) -> Iterator[Record]:
        last, stop = 0, self.revision().items
        while rows := self._connections.read(partial(_page, last=last, stop=stop, modality=modality)):
            yield from (from_row(row[1:]) for row in rows)
            last = rows[-1][0]

    def codes(
        self, *, modality: str | None = None, since: Revision | None = None, until: Revision | None = None
    ) -> Iterator[tuple[Array, Array, Codes]]:
        for rows in self._pages("code", [("code", n_bytes(self.n_bits))], modality, since, until):
            yield integers(rows["number"]), integers(rows["modality"]), np.ascontiguousarray(rows["code"])

    def vectors(self, row_ids: Array) -> tuple[Array, Array, Array]:
        """Return row ids, ascending, modality numbers and refinement vectors of those items that have a vector."""
        sql = f"SELECT number, modality, {PADDED_REFINEMENT} FROM item WHERE number = ANY(%s) ORDER BY number"
        columns = [("number", 8), ("modality", 4), ("refinement", MAX_REFINEMENT), ("present", 1)]
        rows = self._copy_out(sql, [np.asarray(row_ids, dtype=np.int64).tolist()], columns)
        rows = rows[rows["present"][:, 0] != 0]
        vectors = np.ascontiguousarray(rows["refinement"]).view(np.int8)
        return integers(rows["number"]), integers(rows["modality"]), vectors

    @contextmanager
    def follower_lock(self) -> Iterator[Callable[[], None] | None]:
        """Hold the lock of the only process that copies codes elsewhere; None if another process has it.

        The function that is returned raises StoreUnavailableError if the lock was lost with its connection.
        """
        with self._connections.connect() as connection:

            def check() -> None:
                with self._connections.translated():
                    connection.execute("SELECT 1")

            with self._connections.translated():
                sql = "SELECT pg_try_advisory_lock(%s, %s)"
                ((alone,),) = connection.execute(sql, (FOLLOWER, self._connections.key)).fetchall()
            yield check if alone else None

    def refinements(
        self, *, modality: str | None = None, since: Revision | None = None, until: Revision | None = None
    ) -> Iterator[tuple[Array, Array, Array, Array]]:
        columns = [("refinement", MAX_REFINEMENT), ("present", 1)]
        for rows in self._pages(PADDED_REFINEMENT, columns, modality, since, until):
            vectors = np.ascontiguousarray(rows["refinement"]).view(np.int8)
            yield integers(rows["number"]), integers(rows["modality"]), vectors, rows["present"][:, 0] != 0

    def revision(self) -> Revision:
        ((items, removals),) = self._rows("SELECT items, removals FROM counter")
        return Revision(items, removals)

    def revision_if_ready(self) -> Revision | None:
        """Return None, because asking the server may take long."""
        return None

    def add_mark(self, mark: str) -> None:
        def work(connection: Any) -> None:
            self._lock_counter(connection)
            marks = " ".join([*_marks(connection), mark][-KEPT_MARKS:])
            sql = "INSERT INTO meta VALUES ('marks', %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
            connection.execute(sql, [marks])

        self._change(work)

    def count(self, modality: str | None = None) -> int:
        if modality is None:
            return int(self._rows("SELECT items_there FROM counter")[0][0])
        return sum(n for (name, _), n in self.counts().items() if name == modality)

    def counts(self) -> dict[tuple[str, str], int]:
        sql = f"SELECT modality.name, item.kind, count(*) {FROM} GROUP BY modality.number, item.kind ORDER BY 1, 2"
        return {(name, kind): n for name, kind, n in self._rows(sql)}

    def uris(self, part: str) -> set[str]:
        return {row[0] for row in self._rows("SELECT DISTINCT uri FROM item WHERE strpos(uri, %s) > 0", part)}

    def damage(self) -> list[str]:
        """Read all items and return the damage found: checksums, words, labels and counts."""
        try:
            return self._connections.read(self._find_damage)
        except StoreError as error:
            return [str(error)]

    def check(self) -> None:
        """Read all items and raise StoreError if something is damaged."""
        if found := self.damage():
            raise StoreError(f"{self.name} is damaged: {found[0]}. Restore a backup")

    def backup(self, path: str | Path) -> None:
        """Write a consistent copy to a new SQLite file, with new row ids, while other processes write."""
        target = Path(path)
        if target.exists():
            raise FileExistsError(f"{target} exists; give a new file")

        def work(connection: Any) -> None:
            target.unlink(missing_ok=True)  # left by a lost connection
            with SqliteStore(target, n_bits=self.n_bits, searched_fields=self._fields) as copy, _snapshot(connection):
                last, stop = 0, connection.execute("SELECT items FROM counter").fetchone()[0]
                while rows := _page(connection, last, stop, None):
                    copy.add(from_row(row[1:]) for row in rows)
                    last = rows[-1][0]

        self._connections.read(work)

    # -- private

    def _insert(self, connection: Any, batch: Sequence[Record], first: int) -> Array:
        """Insert items from row id ``first`` on, in the caller's transaction; return their row ids."""
        modalities = _modality_numbers(connection, dict.fromkeys(record.modality for record in batch))
        words = 0
        with connection.cursor().copy(f"COPY item ({', '.join(COPIED)}) FROM STDIN (FORMAT binary)") as copy:
            copy.set_types(list(COPIED.values()))
            for number, record in enumerate(batch, first):
                modality = modalities[record.modality]
                derived = Derived.of(record, modality, self._fields)
                words += derived.n_words
                copy.write_row(to_row(number, record, modality, derived))
        _count_labels(connection, Counter(name for record in batch for name in set(map(str, record.labels))), 1)
        connection.execute(
            "UPDATE counter SET items = items + %s, items_there = items_there + %s, words = words + %s",
            (len(batch), len(batch), words),
        )
        return np.arange(first, first + len(batch), dtype=np.int64)

    def _rows(self, sql: str, *values: Any) -> list[Any]:
        return self._connections.read(lambda connection: _select(connection, sql, values))

    def _select_matching(self, where: Filter | None) -> Array:
        return self._select_numbers(*self.dialect.condition(where), "item.number")

    def _select_newest(self, where: Filter | None) -> Array:
        return self._select_numbers(*self.dialect.condition(where), self.dialect.newest)

    def _select_up_to(self, last: int) -> Array:
        return self._select_numbers("number <= %s", [last], "number")

    def _select_numbers(self, test: str, values: Sequence[Any], order: str) -> Array:
        sql = f"SELECT item.number FROM item WHERE {test} ORDER BY {order}"
        return integers(self._copy_out(sql, values, [("n", 8)])["n"])

    def _change(self, work: Any) -> Any:
        if self.read_only:
            raise StoreError(f"{self.name} was opened read-only; nothing can be added or removed")
        return self._connections.change(work)

    def _lock_counter(self, connection: Any) -> int:
        """Take the write lock until the end of the transaction; return the last row id assigned."""
        connection.execute(f"SET LOCAL lock_timeout = {max(1, int(1000 * self.timeout))}")
        (last,) = connection.execute("SELECT items FROM counter FOR UPDATE").fetchone()
        if connection.execute("SELECT 1 FROM meta WHERE key = %s", [REPLACED]).fetchone() is not None:
            raise StoreReplacedError(
                f"{self.name} refuses changes because a retrained engine has replaced it. Nothing was changed; repeat "
                "it: a service fetches the new engine by itself, and a command when it opens the engine"
            )
        return int(last)

    def _pages(
        self,
        selected: str,
        columns: list[tuple[str, int]],
        modality: str | None,
        since: Revision | None,
        until: Revision | None,
    ) -> Iterator[Array]:
        """Iterate over pages of (row ids, modality numbers, byte columns) in insertion order."""
        group = None if modality is None else self.modalities().get(modality, -1)
        last, stop = (since or Revision()).items, (until or self.revision()).items
        columns = [("number", 8), ("modality", 4), *columns]
        while last < stop:
            sql = f"SELECT number, modality, {selected} FROM item WHERE number > {int(last)} AND number <= {int(stop)}"
            sql += f" AND modality = {int(group)}" if group is not None else ""
            rows = self._copy_out(f"{sql} ORDER BY number LIMIT {_PAGE_ROWS}", (), columns)
            if not len(rows):
                return
            yield rows
            last = int(integers(rows["number"][-1:])[0])

    def _copy_out(self, sql: str, values: Sequence[Any], columns: Sequence[tuple[str, int]]) -> Array:
        return self._connections.read(lambda connection: read_rows(connection, sql, values, columns))

    def _create(self, n_bits: int) -> None:
        """Create the schema unless it exists; a concurrent creator waits and finds it."""
        values = {
            "schema": f'"{self.schema}"',
            "n_bits": n_bits,
            "n_bytes": n_bytes(n_bits),
            "n_code_bits": 8 * n_bytes(n_bits),
            "max_refinement": MAX_REFINEMENT,
        }
        meta = {"format": str(FORMAT), "n_bits": str(n_bits), "searched_fields": json.dumps(SEARCHED_FIELDS)}
        with self._connections.connect(schema=False) as connection, self._connections.translated():
            if has_schema(connection, self.schema):
                return
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s, %s)", (BEING_MADE, lock_key(self.schema)))
                if has_schema(connection, self.schema):
                    return
                for statement in CREATE:
                    connection.execute(statement.format(**values))
                with connection.cursor() as cursor:
                    cursor.executemany(f'INSERT INTO "{self.schema}".meta VALUES (%s, %s)', list(meta.items()))

    def _check_owner(self) -> dict[str, str]:
        """Return the contents of ``meta``; raise if the schema is missing or not a store."""
        with self._connections.connect(schema=False) as connection, self._connections.translated():
            if not has_schema(connection, self.schema):
                raise StoreError(f"{self.name} does not exist: it was dropped, or the URL is that of another database")
            if connection.execute("SELECT to_regclass(%s)", [f'"{self.schema}".meta']).fetchone()[0] is None:
                raise StoreError(f"{self.name} is not a store of modalhash; give another schema")
            meta = dict(connection.execute(f'SELECT key, value FROM "{self.schema}".meta').fetchall())
        if not meta.get("format", "").isdigit():
            raise StoreError(f"{self.name} is not a store of modalhash; give another schema")
        if int(meta["format"]) > FORMAT:
            raise StoreError(
                f"{self.name} has format {meta['format']}; this version reads up to {FORMAT}. Install a newer "
                "version of modalhash"
            )
        return meta

    def _change_fields(self, fields: list[str]) -> None:
        """Recompute the searched words of all items from other fields of ``extra``."""

        def work(connection: Any) -> None:
            last, words = 0, 0
            stop = self._lock_counter(connection)
            while rows := _page(connection, last, stop, None):
                last = rows[-1][0]
                new = [(*searched_words(from_row(row[1:]), fields), row[0]) for row in rows]
                words += sum(n for _, n, _ in new)
                with connection.cursor() as cursor:
                    cursor.executemany("UPDATE item SET searched = %s, n_words = %s WHERE number = %s", new)
            connection.execute("UPDATE counter SET words = %s", [words])
            connection.execute("UPDATE meta SET value = %s WHERE key = 'searched_fields'", [json.dumps(fields)])

        self._change(work)
        self._fields = fields

    def _find_damage(self, connection: Any) -> list[str]:
        found: list[str] = []
        labels: Counter[str] = Counter()
        n_items = n_words = last = 0
        columns = "item.modality, item.checksum, item.searched, item.n_words, item.folded_labels"
        with _snapshot(connection):
            sql = "SELECT items, items_there, words FROM counter"
            stop, n_counted, n_words_counted = connection.execute(sql).fetchone()
            counted = dict(connection.execute("SELECT name, items FROM label WHERE items > 0").fetchall())
            while rows := _page(connection, last, stop, None, columns):
                last = rows[-1][0]
                for row in rows:
                    modality, *stored = row[11:]
                    record = from_row(row[1:11])
                    derived = Derived.of(record, modality, self._fields)
                    labels.update(set(map(str, record.labels)))
                    n_items, n_words = n_items + 1, n_words + stored[2]
                    stored[-1] = list(map(label_key, stored[-1]))  # earlier versions kept decomposed letters
                    if stored != [*derived[1:], labels_of(record.labels).folded]:
                        found.append(f"the item {record.id!r} of {record.modality!r} is not as it was written")
        found = first_damage(found)
        if (n_items, n_words) != (n_counted, n_words_counted):
            found.append(f"{n_items:,} items with {n_words:,} words, counted as {n_counted:,} and {n_words_counted:,}")
        if dict(labels) != counted:
            found.append("the counts of labels are not those of the items")
        return found


def _check_meta(name: str, meta: Mapping[str, str], n_bits: int | None, model: str | None) -> int:
    if n_bits is not None and n_bits != int(meta["n_bits"]):
        raise StoreError(
            f"{name} holds codes of {meta['n_bits']} bits; n_bits is {n_bits}. Use another schema for other codes"
        )
    if model is not None and meta.get("model", model) != model:
        raise StoreError(
            f"{name} holds codes of another model (digest {meta['model'][:12]}…, not {model[:12]}…). Give "
            "the engine that its items were trained with, or another schema"
        )
    return int(meta["n_bits"])


@contextmanager
def _snapshot(connection: Any) -> Iterator[None]:
    """Read one consistent state of the store until the end of the block."""
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    yield
    connection.execute("COMMIT")


def _select(connection: Any, sql: str, values: Sequence[Any]) -> list[Any]:
    rows: list[Any] = connection.cursor(binary=True).execute(sql, values).fetchall()
    return rows


def _marks(connection: Any) -> list[str]:
    rows = _select(connection, "SELECT value FROM meta WHERE key = 'marks'", ())
    return str(rows[0][0]).split() if rows else []


def _page(connection: Any, last: int, stop: int, modality: str | None, more: str = "") -> list[Any]:
    """Return one page of rows of row id and ``COLUMNS`` with ``last`` < row id ≤ ``stop``."""
    sql = f"SELECT item.number, {COLUMNS}{f', {more}' if more else ''} {FROM} WHERE item.number > %s"
    sql += " AND item.number <= %s" + (" AND modality.name = %s" if modality is not None else "")
    values = (last, stop) if modality is None else (last, stop, modality)
    return _select(connection, f"{sql} ORDER BY item.number LIMIT {_PAGE_ROWS // 5}", values)


def _select_numbers(connection: Any, keys: Sequence[Key]) -> dict[Key, int]:
    rows = _select(connection, NUMBERS, ([key[0] for key in keys], [key[1] for key in keys])) if keys else []
    return {(modality, id): number for modality, id, number in rows}


def _is_storable(*texts: str) -> bool:
    """Return whether a store can hold these texts; PostgreSQL raises if asked for others."""
    return not any("\0" in text or any("\ud800" <= character <= "\udfff" for character in text) for text in texts)


def _modality_numbers(connection: Any, names: Iterable[str]) -> dict[str, int]:
    """Return the numbers of all modalities, after adding new ``names``."""
    known: dict[str, int] = dict(connection.execute("SELECT name, number FROM modality").fetchall())
    for name in names:
        if name not in known:
            known[name] = max(known.values(), default=0) + 1
            connection.execute("INSERT INTO modality (number, name) VALUES (%s, %s)", (known[name], name))
    return known


def _delete(connection: Any, numbers: list[int]) -> None:
    if not numbers:
        return
    rows = connection.execute("DELETE FROM item WHERE number = ANY(%s) RETURNING labels, n_words", [numbers]).fetchall()
    _count_labels(connection, Counter(name for labels, _ in rows for name in set(labels)), -1)
    ((last,),) = connection.execute(
        "UPDATE counter SET removals = removals + %s, items_there = items_there - %s, words = words - %s "
        "RETURNING removals",
        (len(numbers), len(rows), sum(n for _, n in rows)),
    ).fetchall()
    connection.execute(
        "INSERT INTO removed SELECT %s + position, number FROM unnest(%s::bigint[]) WITH ORDINALITY AS own (number, "
        "position)",
        (last - len(numbers), numbers),
    )
    ((first,),) = connection.execute("SELECT min(step) FROM removed").fetchall()
    if last - first >= 2 * KEPT_REMOVALS:  # rarely, and many together
        connection.execute("DELETE FROM removed WHERE step <= %s", [last - KEPT_REMOVALS])
        connection.execute(
            "INSERT INTO meta VALUES ('forgotten_removals', %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            [str(last - KEPT_REMOVALS)],
        )


def _count_labels(connection: Any, counts: Mapping[str, int], sign: int) -> None:
    """Add ``sign`` times the counts to the numbers of items with each label."""
    if counts:
        connection.execute(
            "INSERT INTO label SELECT * FROM unnest(%s::text[], %s::bigint[]) "
            "ON CONFLICT (name) DO UPDATE SET items = label.items + excluded.items",
            (list(counts), [sign * n for n in counts.values()]),
        )
