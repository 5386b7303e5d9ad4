"""A filter as a condition of SQL over the tables of :mod:`modalhash.store.sqlite`.

Values, and the paths of fields in ``extra``, are parameters; the text of the condition is made of constants alone. No
condition is ever NULL, so ``NOT`` is the complement.
"""

from __future__ import annotations

import re
from typing import Any

from modalhash.store.filters import And, Comparison, Filter, Not, Or, Value, is_year

_DATE = re.compile(r"\d{4}-\d{2}(-\d{2}([T ]\d{2}:\d{2}(:\d{2})?)?)?")
_OWN_COLUMNS = ("kind", "id", "text", "uri")
_HAS_LABEL = """item.number IN (
    SELECT item_label.item FROM label CROSS JOIN item_label ON item_label.label = label.number WHERE label.folded = ?
)"""  # reads all items that have it, so that a search among all items starts from them
_THIS_HAS_LABEL = """EXISTS (
    SELECT 1 FROM label CROSS JOIN item_label ON item_label.label = label.number AND item_label.item = item.number
    WHERE label.folded = ?
)"""  # one look for each item that is asked about
_HAS_ID = """item.number IN (
    SELECT own.number FROM modality CROSS JOIN item AS own ON own.modality = modality.number AND own.id = ?
)"""
_NUMBER_TEST = """CASE type
    WHEN 'integer' THEN atom {operator} ?
    WHEN 'real' THEN atom {operator} ?
    WHEN 'text' THEN CASE json_valid(atom) WHEN 1 THEN
        CASE WHEN json_type(atom) IN ('integer', 'real') THEN CAST(atom AS NUMERIC) {operator} ? END
    END
END"""  # a number of a CSV file is a text
_DATE_TEST = """CASE WHEN type = 'text' AND atom GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]*'
    THEN substr(replace(atom, ' ', 'T'), 1, {length}) {operator} ?
END"""  # 2024-01-31 is the whole day, also its evening


def condition(where: Filter, *, few: bool = False) -> tuple[str, list[Any]]:
    """Return a condition on ``item``, and its parameters; ``few`` says that few items are asked about, by number."""
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
    """Return a value as text, as labels and texts are compared with it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


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
    """Return a test of one value of ``json_each``, and its parameters."""
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
    """Return where a field is in ``extra``: under its name, or, with dots, inside of others. No name has a quote."""
    nested = '"."'.join(field.split("."))
    return list(dict.fromkeys((f'$."{field}"', f'$."{nested}"')))
