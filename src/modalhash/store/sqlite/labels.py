"""The labels of items in SQLite: their tables, and filters on labels alone.

``label`` has each label once, with its folded name and a count that triggers maintain; ``item_label`` has a row per
label of an item, ordered by (label, item). A filter on labels alone reads only these tables.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from modalhash.core.typing import Array
from modalhash.store.conditions import SqliteDialect, label_forms, value_text
from modalhash.store.filters import And, Comparison, Filter, Not, Or

CREATE = (
    "CREATE TABLE label (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, folded TEXT NOT NULL, "
    "items INTEGER NOT NULL DEFAULT 0)",
    "CREATE INDEX label_folded ON label (folded)",
    "CREATE TABLE item_label (label INTEGER NOT NULL, item INTEGER NOT NULL, PRIMARY KEY (label, item)) WITHOUT ROWID",
    """
    CREATE TRIGGER item_label_added AFTER INSERT ON item_label
    BEGIN UPDATE label SET items = items + 1 WHERE number = new.label; END
    """,
    """
    CREATE TRIGGER item_label_removed AFTER DELETE ON item_label
    BEGIN UPDATE label SET items = items - 1 WHERE number = old.label; END
    """,
)
_ADD = (  # labels, then their items
    """
    INSERT INTO label (name, folded)
    SELECT DISTINCT CAST(own.value AS TEXT), label_key(CAST(own.value AS TEXT))
    FROM item, json_each(item.labels) AS own WHERE item.number >= ? ON CONFLICT DO NOTHING
    """,
    """
    INSERT OR IGNORE INTO item_label (label, item)
    SELECT label.number, item.number
    FROM item CROSS JOIN json_each(item.labels) AS own CROSS JOIN label ON label.name = CAST(own.value AS TEXT)
    WHERE item.number >= ?
    """,
)
_FORGET = """
DELETE FROM item_label WHERE (label, item) IN (
    SELECT label.number, item.number
    FROM item CROSS JOIN json_each(item.labels) AS own CROSS JOIN label ON label.name = CAST(own.value AS TEXT)
    WHERE item.number = ?
)"""
_ITEMS = """
SELECT item_label.item AS number
FROM label CROSS JOIN item_label ON item_label.label = label.number WHERE label.folded IN (?, ?)
"""
_FEW = 200_000  # items whose labels are tested one by one faster than by reading all items of each label

Read = Callable[[str, Sequence[Any]], Array]
"""Return the row ids that a query selects, ascending and distinct."""


def add_labels(connection: sqlite3.Connection, first: int) -> None:
    """Index the labels of the items from row id ``first`` on, in the caller's transaction."""
    for statement in _ADD:
        connection.execute(statement, (first,))


def forget_labels(connection: sqlite3.Connection, numbers: Iterable[int]) -> None:
    """Remove the labels of items that are about to be deleted, in the caller's transaction."""
    connection.executemany(_FORGET, ((number,) for number in numbers))


def is_by_labels(where: Filter) -> bool:
    """Return whether a filter compares labels only."""
    return all(comparison.field == "label" for comparison in where.comparisons())


def find_labelled(where: Filter, read: Read) -> Array:
    """Return the row ids of the items that match a filter on labels alone, ascending."""
    numbers, complement = _evaluate(where, read)
    return _without(read("SELECT number FROM item", ()), numbers) if complement else numbers


def _evaluate(where: Filter, read: Read) -> tuple[Array, bool]:
    """Return (row ids, complement). If complement is true, every item not in the row ids matches."""
    if isinstance(where, Comparison):
        return read(_ITEMS, label_forms(value_text(where.value))), where.operator == "!="
    if isinstance(where, Not):
        numbers, complement = _evaluate(where.part, read)
        return numbers, not complement
    assert isinstance(where, And | Or)
    if isinstance(where, And) and (found := _among_few(where, read)) is not None:
        return found, False
    parts = [_evaluate(part, read) for part in where.parts]
    if isinstance(where, And):
        return _all(parts)
    numbers, complement = _all([(numbers, not complement) for numbers, complement in parts])
    return numbers, not complement


def _among_few(where: And, read: Read) -> Array | None:
    """Return the matches among the items of the rarest required label, or None if that label is common."""
    needed = [part for part in where.parts if isinstance(part, Comparison) and part.operator == "="]
    names = {part: label_forms(value_text(part.value)) for part in needed}
    sizes = {part: read(f"SELECT count(*) FROM ({_ITEMS} LIMIT ?)", (*forms, _FEW))[0] for part, forms in names.items()}
    rarest = min(sizes, key=lambda part: int(sizes[part]), default=None)
    if rarest is None or sizes[rarest] >= _FEW:
        return None
    test, values = SqliteDialect(few=True).condition(where)
    return read(f"SELECT item.number FROM ({_ITEMS}) AS item WHERE {test}", (*names[rarest], *values))


def _all(parts: list[tuple[Array, bool]]) -> tuple[Array, bool]:
    """Return the intersection of several sets, each given as (row ids, complement)."""
    left_out = [numbers for numbers, complement in parts if complement]
    members = sorted((numbers for numbers, complement in parts if not complement), key=len)
    if not members:
        return sorted_distinct(np.concatenate(left_out)), True
    found = members[0]
    for other in members[1:]:
        found = found[np.isin(found, other, assume_unique=True)]
    for other in left_out:
        found = _without(found, other)
    return found, False


def _without(numbers: Array, others: Array) -> Array:
    return numbers[np.isin(numbers, others, assume_unique=True, invert=True)]


def sorted_distinct(numbers: Array) -> Array:
    """Return values in ascending order, each once."""
    if np.all(numbers[1:] > numbers[:-1]):
        return numbers
    ordered = np.sort(numbers)
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])]
