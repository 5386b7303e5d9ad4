"""Translate filters to SQL conditions on the tables of :mod:`modalhash.store.sqlite.store`, and index labels.

Values and paths of fields in ``extra`` are parameters; the SQL text consists of constants only. No condition is ever
NULL, so ``NOT`` is the complement.

``label`` has each label once, with its folded name and a count that triggers maintain; ``item_label`` has a row per
label of an item, ordered by (label, item). A filter on labels alone reads only these tables.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from modalhash.core.typing import Array
from modalhash.store.filters import And, Comparison, Filter, Not, Or, Value, checked_field, is_year

_DATE = re.compile(r"\d{4}-\d{2}(-\d{2}([T ]\d{2}:\d{2}(:\d{2})?)?)?")
_OWN_COLUMNS = ("kind", "id", "text", "uri")
_HAS_LABEL = """item.number IN (
    SELECT item_label.item FROM label CROSS JOIN item_label ON item_label.label = label.number WHERE label.folded = ?
)"""  # reads all items with the label, so that a search among all items starts from them
_THIS_HAS_LABEL = """EXISTS (
    SELECT 1 FROM label CROSS JOIN item_label ON item_label.label = label.number AND item_label.item = item.number
    WHERE label.folded = ?
)"""  # one lookup per tested item
_HAS_ID = """item.number IN (
    SELECT own.number FROM modality CROSS JOIN item AS own ON own.modality = modality.number AND own.id = ?
)"""
_NUMBER_TEST = """CASE type
    WHEN 'integer' THEN atom {operator} ?
    WHEN 'real' THEN atom {operator} ?
    WHEN 'text' THEN CASE json_valid(atom) WHEN 1 THEN
        CASE WHEN json_type(atom) IN ('integer', 'real') THEN CAST(atom AS NUMERIC) {operator} ? END
    END
END"""  # numbers from a CSV file are strings
_IS_DATE = "GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]*'"
_DATE_TEST = f"""CASE WHEN type = 'text' AND atom {_IS_DATE}
    THEN substr(replace(atom, ' ', 'T'), 1, {{length}}) {{operator}} ?
END"""  # 2024-01-31 covers the whole day
_TAKEN = "json_extract(item.extra, '$.taken')"
NEWEST = f"CASE WHEN {_TAKEN} {_IS_DATE} THEN replace({_TAKEN}, ' ', 'T') END DESC, item.number DESC"
"""Order by the field ``taken``, newest first; items without it follow, last added first."""
_VALUES = (
    "SELECT CAST(atom AS TEXT) AS value FROM item, json_each(item.extra, ?) WHERE type IN ('text', 'integer', 'real')"
)


def condition(where: Filter, *, few: bool = False) -> tuple[str, list[Any]]:
    """Return a condition on ``item`` and its parameters; ``few`` if it tests few items, given by row id."""
    if isinstance(where, Comparison):
        return _comparison(where, few)
    if isinstance(where, Not):
        sql, values = condition(where.part, few=few)
        return f"NOT {sql}", values
    assert isinstance(where, And | Or)
    parts = [condition(part, few=few) for part in where.parts]
    word = " AND " if isinstance(where, And) else " OR "
    return f"({word.join(sql for sql, _ in parts)})", [value for _, values in parts for value in values]


def value_text(value: Value) -> str:
    """Return a value as the text with which labels and texts are compared."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def values_of(field: str) -> tuple[str, *tuple[str, ...]]:
    """Return SQL that counts the values of a field of ``extra``, and its parameters except the last, the limit."""
    paths = _paths(checked_field(field))
    values = " UNION ALL ".join([_VALUES] * len(paths))
    return f"SELECT value, count(*) FROM ({values}) GROUP BY value ORDER BY 2 DESC, 1 LIMIT ?", *paths


def _comparison(where: Comparison, few: bool) -> tuple[str, list[Any]]:
    operator = "=" if where.operator == "!=" else where.operator
    sql, values = _test(where, operator, few)
    return (f"NOT {sql}" if where.operator == "!=" else sql), values


def _test(where: Comparison, operator: str, few: bool) -> tuple[str, list[Any]]:
    text = value_text(where.value)
    if where.field == "label":
        return (_THIS_HAS_LABEL if few else _HAS_LABEL), [text.casefold()]
    if where.field == "id" and operator == "=" and not few:
        return _HAS_ID, [text]
    if where.field == "modality":
        return "coalesce(item.modality = (SELECT number FROM modality WHERE name = ?), 0)", [text]
    if where.field in _OWN_COLUMNS:
        return f"coalesce(item.{where.field} {operator} ?, 0)", [text]
    test, values = _json_test(where.value, operator)
    paths = _paths(where.field.removeprefix("extra."))
    sql = " OR ".join(f"EXISTS (SELECT 1 FROM json_each(item.extra, ?) WHERE {test})" for _ in paths)
    return f"({sql})", [value for path in paths for value in (path, *values)]


def _json_test(value: Any, operator: str) -> tuple[str, list[Any]]:
    """Return a test of one value of ``json_each`` and its parameters."""
    if isinstance(value, bool):
        text = str(value).lower()
        return f"CASE type WHEN 'text' THEN lower(atom) ELSE type END {operator} ?", [text]
    if isinstance(value, int | float):
        test, values = _NUMBER_TEST.format(operator=operator), [value] * 3
        if not is_year(value):
            return test, values
        return f"({test} OR {_DATE_TEST.format(operator=operator, length=4)})", [*values, str(value)]
    if _DATE.fullmatch(value):
        return _DATE_TEST.format(operator=operator, length=len(value)), [value.replace(" ", "T")]
    return f"type NOT IN ('true', 'false') AND CAST(atom AS TEXT) {operator} ?", [value]


def _paths(field: str) -> list[str]:
    """Return the paths of a field in ``extra``: its name, and with dots, the nested path. Names have no quotes."""
    nested = '"."'.join(field.split("."))
    return list(dict.fromkeys((f'$."{field}"', f'$."{nested}"')))


# -- labels

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
COUNTS = "SELECT name, items FROM label WHERE items > 0 ORDER BY items DESC, name"
"""Selects labels and counts, most frequent first."""
_ADD = (  # labels, then their items
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
_FORGET = """
DELETE FROM item_label WHERE (label, item) IN (
    SELECT label.number, item.number
    FROM item CROSS JOIN json_each(item.labels) AS own CROSS JOIN label ON label.name = CAST(own.value AS TEXT)
    WHERE item.number = ?
)"""
_ITEMS = """
SELECT item_label.item AS number
FROM label CROSS JOIN item_label ON item_label.label = label.number WHERE label.folded = ?
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
        return read(_ITEMS, (value_text(where.value).casefold(),)), where.operator == "!="
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
    names = {part: value_text(part.value).casefold() for part in needed}
    sizes = {part: read(f"SELECT count(*) FROM ({_ITEMS} LIMIT ?)", (name, _FEW))[0] for part, name in names.items()}
    rarest = min(sizes, key=lambda part: int(sizes[part]), default=None)
    if rarest is None or sizes[rarest] >= _FEW:
        return None
    test, values = condition(where, few=True)
    return read(f"SELECT item.number FROM ({_ITEMS}) AS item WHERE {test}", (names[rarest], *values))


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
