"""Translate filters to SQL conditions on the tables of :mod:`modalhash.store.postgres.store`.

Values and names of fields in ``extra`` are parameters; the SQL text consists of constants only. No condition is ever
NULL, so ``NOT`` is the complement. The results are those of :mod:`modalhash.store.sqlite.conditions`.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

from modalhash.store.filters import And, Comparison, Filter, Not, Or, checked_field, is_year

CREATE_ATOMS = """
CREATE FUNCTION {schema}.atoms(value json) RETURNS TABLE (kind text, atom text) LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog AS $$
    SELECT json_typeof(part), part #>> '{{}}' FROM (
        SELECT json_array_elements(value) AS part WHERE json_typeof(value) = 'array'
        UNION ALL SELECT (json_each(value)).value WHERE json_typeof(value) = 'object'
        UNION ALL SELECT value WHERE json_typeof(value) NOT IN ('array', 'object')
    ) AS parts
    WHERE json_typeof(part) IN ('string', 'number', 'boolean')
$$
"""  # the value of a field of extra, or the values in its list or mapping

_DATE = re.compile(r"\d{4}-\d{2}(-\d{2}([T ]\d{2}:\d{2}(:\d{2})?)?)?")
_OWN_COLUMNS = ("kind", "id", "text", "uri")
_NUMBER_TEST = r"""CASE
    WHEN kind = 'number' THEN atom::numeric {operator} %s
    WHEN kind = 'string' AND atom ~ '^-?(0|[1-9]\d{{0,250}})(\.\d{{1,250}})?([eE][-+]?\d{{1,3}})?$'
    THEN atom::numeric {operator} %s
END"""  # numbers from a CSV file are strings
_DATE_TEST = """CASE WHEN kind = 'string' AND atom ~ '^[0-9]{{4}}-[0-9]{{2}}'
    THEN substr(replace(atom, ' ', 'T'), 1, {length}) COLLATE "C" {operator} %s
END"""  # 2024-01-31 covers the whole day
_TAKEN = "item.extra ->> 'taken'"
NEWEST = f"""CASE WHEN json_typeof(item.extra -> 'taken') = 'string' AND {_TAKEN} ~ '^[0-9]{{4}}-[0-9]{{2}}'
    THEN replace({_TAKEN}, ' ', 'T') END COLLATE "C" DESC NULLS LAST, item.number DESC"""
"""Order by the field ``taken``, newest first; items without it follow, last added first."""


def condition(where: Filter) -> tuple[str, list[Any]]:
    """Return a condition on ``item`` and its parameters."""
    if isinstance(where, Comparison):
        sql, values = _test(where, "=" if where.operator == "!=" else where.operator)
        return (f"NOT {sql}" if where.operator == "!=" else sql), values
    if isinstance(where, Not):
        sql, values = condition(where.part)
        return f"NOT {sql}", values
    assert isinstance(where, And | Or)
    parts = [condition(part) for part in where.parts]
    word = " AND " if isinstance(where, And) else " OR "
    return f"({word.join(sql for sql, _ in parts)})", [value for _, values in parts for value in values]


def values_of(field: str) -> tuple[str, *tuple[list[str], ...]]:
    """Return SQL that counts the values of a field of ``extra``, and its parameters except the last, the limit."""
    paths = _paths(checked_field(field))
    one = "SELECT part.atom FROM item, atoms(item.extra #> %s::text[]) AS part WHERE part.kind IN ('string', 'number')"
    values = " UNION ALL ".join([one] * len(paths))
    sql = f'SELECT atom, count(*) FROM ({values}) AS own GROUP BY atom ORDER BY 2 DESC, atom COLLATE "C" LIMIT %s'
    return sql, *map(list, paths)


def _paths(field: str) -> list[tuple[str, ...]]:
    """Return the paths of a field in ``extra``: its name, and if that has dots, the nested path."""
    return list(dict.fromkeys(((field,), tuple(field.split(".")))))


def _test(where: Comparison, operator: str) -> tuple[str, list[Any]]:
    text = str(where.value).lower() if isinstance(where.value, bool) else str(where.value)
    if where.field == "label":
        return "item.folded_labels @> ARRAY[%s::text]", [text.casefold()]
    if where.field == "modality":
        return "coalesce(item.modality = (SELECT number FROM modality WHERE name = %s), false)", [text]
    if where.field in _OWN_COLUMNS:
        return f"coalesce(item.{where.field} {operator} %s, false)", [text]
    test, values = _json_test(where.value, operator)
    paths = _paths(where.field.removeprefix("extra."))
    sql = " OR ".join(
        f"EXISTS (SELECT 1 FROM atoms(item.extra{' -> %s::text' * len(path)}) WHERE {test})" for path in paths
    )
    return f"({sql})", [value for path in paths for value in (*path, *values)]


def _json_test(value: Any, operator: str) -> tuple[str, list[Any]]:
    """Return a test of one value of ``atoms`` and its parameters."""
    if isinstance(value, bool):
        texts = "CASE kind WHEN 'string' THEN lower(atom) WHEN 'boolean' THEN atom END"
        return f"{texts} = %s" if operator == "=" else f'{texts} COLLATE "C" {operator} %s', [str(value).lower()]
    if isinstance(value, int | float):
        test, values = _NUMBER_TEST.format(operator=operator), [Decimal(repr(value))] * 2
        if not is_year(value):
            return test, values
        return f"({test} OR {_DATE_TEST.format(operator=operator, length=4)})", [*values, str(value)]
    if _DATE.fullmatch(value):
        return _DATE_TEST.format(operator=operator, length=len(value)), [value.replace(" ", "T")]
    return f"kind <> 'boolean' AND atom COLLATE \"C\" {operator} %s", [value]
