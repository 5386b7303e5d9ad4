"""Translate filters to SQL conditions on the tables of the stores.

Values and names of fields in ``extra`` are parameters; the SQL text consists of constants only. No condition is ever
NULL, so ``NOT`` is the complement. Both dialects select the same items.
"""

from __future__ import annotations

import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from modalhash.core.label_names import label_key
from modalhash.store.filters import And, Comparison, Filter, Not, Or, Value, checked_field, is_year

_DATE = re.compile(r"\d{4}-\d{2}(-\d{2}([T ]\d{2}:\d{2}(:\d{2})?)?)?")
_OWN_COLUMNS = ("kind", "id", "text", "uri")

Condition = tuple[str, list[Any]]
"""SQL and its parameters."""


def value_text(value: Value) -> str:
    """Return a value as the text with which labels and texts are compared."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def label_forms(text: str) -> list[str]:
    """Return the two forms in which a store may have the key of a label; earlier versions kept decomposed letters."""
    key = label_key(text)
    return [key, unicodedata.normalize("NFD", key)]


class Dialect(ABC):
    """The SQL of a back end, whose tests of one value read the columns of a JSON value: its kind and ``atom``."""

    mark: str  # where a parameter goes
    true: str
    false: str
    label: str
    number_test: str
    date_test: str
    text_test: str
    newest: str
    """Order by the field ``taken``, newest first; items without it follow, last added first."""

    def condition(self, where: Filter | None) -> Condition:
        """Return a condition on ``item`` and its parameters."""
        if where is None:
            return self.true, []
        if isinstance(where, Comparison):
            sql, values = self.test(where, "=" if where.operator == "!=" else where.operator)
            return (f"NOT {sql}" if where.operator == "!=" else sql), values
        if isinstance(where, Not):
            sql, values = self.condition(where.part)
            return f"NOT {sql}", values
        assert isinstance(where, And | Or)
        parts = [self.condition(part) for part in where.parts]
        word = " AND " if isinstance(where, And) else " OR "
        return f"({word.join(sql for sql, _ in parts)})", [value for _, values in parts for value in values]

    def test(self, where: Comparison, operator: str) -> Condition:
        """Return the condition of a comparison with ``=`` or an order."""
        text, mark, false = value_text(where.value), self.mark, self.false
        if where.field == "label":
            return self.label, label_forms(text)
        if where.field == "modality":
            return f"coalesce(item.modality = (SELECT number FROM modality WHERE name = {mark}), {false})", [text]
        if where.field in _OWN_COLUMNS:
            return f"coalesce(item.{where.field} {operator} {mark}, {false})", [text]
        test, values = self.json_test(where.value, operator)
        paths = self.paths(where.field.removeprefix("extra."))
        sql = " OR ".join(f"EXISTS (SELECT 1 FROM {self.json_values(path)} WHERE {test})" for path in paths)
        return f"({sql})", [value for path in paths for value in (*path, *values)]

    def json_test(self, value: Value, operator: str) -> Condition:
        """Return a test of one value of a field of ``extra``."""
        if isinstance(value, bool):
            return self.bool_test(operator), [str(value).lower()]
        if isinstance(value, int | float):
            test, values = self.number_test.format(operator=operator), self.number_values(value)
            if not is_year(value):
                return test, values
            return f"({test} OR {self.date_test.format(operator=operator, length=4)})", [*values, str(value)]
        if _DATE.fullmatch(value):
            return self.date_test.format(operator=operator, length=len(value)), [value.replace(" ", "T")]
        return self.text_test.format(operator=operator), [value]

    @abstractmethod
    def values_of(self, field: str) -> tuple[str, *tuple[Any, ...]]:
        """Return SQL that counts the values of a field of ``extra``, and its parameters except the last, the limit."""

    @abstractmethod
    def bool_test(self, operator: str) -> str: ...

    @abstractmethod
    def number_values(self, value: float) -> list[Any]: ...

    @abstractmethod
    def paths(self, field: str) -> list[Sequence[str]]:
        """Return the paths of a field in ``extra``: its name, and with dots, the nested path."""

    @abstractmethod
    def json_values(self, path: Sequence[str]) -> str:
        """Return the table of the value at a path, or of the values in its list or mapping."""


class SqliteDialect(Dialect):
    """Conditions for SQLite; ``few`` if they test few items, given by row id."""

    mark, true, false = "?", "1", "0"
    number_test = """CASE type
    WHEN 'integer' THEN atom {operator} ?
    WHEN 'real' THEN atom {operator} ?
    WHEN 'text' THEN CASE json_valid(atom) WHEN 1 THEN
        CASE WHEN json_type(atom) IN ('integer', 'real') THEN CAST(atom AS NUMERIC) {operator} ? END
    END
END"""  # numbers from a CSV file are strings
    is_date = "GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]*'"
    date_test = f"""CASE WHEN type = 'text' AND atom {is_date}
    THEN substr(replace(atom, ' ', 'T'), 1, {{length}}) {{operator}} ?
END"""  # 2024-01-31 covers the whole day
    text_test = "type NOT IN ('true', 'false') AND CAST(atom AS TEXT) {operator} ?"
    taken = "json_extract(item.extra, '$.taken')"
    newest = f"CASE WHEN {taken} {is_date} THEN replace({taken}, ' ', 'T') END DESC, item.number DESC"

    def __init__(self, *, few: bool = False) -> None:
        self._few = few
        source = "FROM label CROSS JOIN item_label ON item_label.label = label.number"
        if few:  # one lookup per tested item
            self.label = f"EXISTS (SELECT 1 {source} AND item_label.item = item.number WHERE label.folded IN (?, ?))"
        else:  # reads all items with the label, so that a search among all items starts from them
            self.label = f"item.number IN (SELECT item_label.item {source} WHERE label.folded IN (?, ?))"

    def test(self, where: Comparison, operator: str) -> Condition:
        if where.field == "id" and operator == "=" and not self._few:
            sql = "SELECT own.number FROM modality CROSS JOIN item AS own ON own.modality = modality.number"
            return f"item.number IN ({sql} AND own.id = ?)", [value_text(where.value)]
        return super().test(where, operator)

    def bool_test(self, operator: str) -> str:
        return f"CASE type WHEN 'text' THEN lower(atom) ELSE type END {operator} ?"

    def number_values(self, value: float) -> list[Any]:
        return [value] * 3

    def paths(self, field: str) -> list[Sequence[str]]:
        nested = '"."'.join(field.split("."))  # names have no quotes
        return [(path,) for path in dict.fromkeys((f'$."{field}"', f'$."{nested}"'))]

    def json_values(self, path: Sequence[str]) -> str:
        return "json_each(item.extra, ?)"

    def values_of(self, field: str) -> tuple[str, *tuple[Any, ...]]:
        paths = self.paths(checked_field(field))
        one = "SELECT CAST(atom AS TEXT) AS value FROM item, json_each(item.extra, ?)"
        values = " UNION ALL ".join([f"{one} WHERE type IN ('text', 'integer', 'real')"] * len(paths))
        sql = f"SELECT value, count(*) FROM ({values}) GROUP BY value ORDER BY 2 DESC, 1 LIMIT ?"
        return sql, *(part for path in paths for part in path)


class PostgresDialect(Dialect):
    """Conditions for PostgreSQL."""

    mark, true, false = "%s", "true", "false"
    label = "item.folded_labels && ARRAY[%s, %s]::text[]"
    number_test = r"""CASE
    WHEN kind = 'number' THEN atom::numeric {operator} %s
    WHEN kind = 'string' AND atom ~ '^-?(0|[1-9]\d{{0,250}})(\.\d{{1,250}})?([eE][-+]?\d{{1,3}})?$'
    THEN atom::numeric {operator} %s
END"""
    date_test = """CASE WHEN kind = 'string' AND atom ~ '^[0-9]{{4}}-[0-9]{{2}}'
    THEN substr(replace(atom, ' ', 'T'), 1, {length}) COLLATE "C" {operator} %s
END"""
    text_test = "kind <> 'boolean' AND atom COLLATE \"C\" {operator} %s"
    taken = "item.extra ->> 'taken'"
    newest = f"""CASE WHEN json_typeof(item.extra -> 'taken') = 'string' AND {taken} ~ '^[0-9]{{4}}-[0-9]{{2}}'
    THEN replace({taken}, ' ', 'T') END COLLATE "C" DESC NULLS LAST, item.number DESC"""

    def bool_test(self, operator: str) -> str:
        texts = "CASE kind WHEN 'string' THEN lower(atom) WHEN 'boolean' THEN atom END"
        return f"{texts} = %s" if operator == "=" else f'{texts} COLLATE "C" {operator} %s'

    def number_values(self, value: float) -> list[Any]:
        return [Decimal(repr(value))] * 2

    def paths(self, field: str) -> list[Sequence[str]]:
        return list(dict.fromkeys(((field,), tuple(field.split(".")))))

    def json_values(self, path: Sequence[str]) -> str:
        return f"atoms(item.extra{' -> %s::text' * len(path)})"

    def values_of(self, field: str) -> tuple[str, *tuple[Any, ...]]:
        paths = self.paths(checked_field(field))
        one = "SELECT part.atom FROM item, atoms(item.extra #> %s::text[]) AS part"
        values = " UNION ALL ".join([f"{one} WHERE part.kind IN ('string', 'number')"] * len(paths))
        sql = f'SELECT atom, count(*) FROM ({values}) AS own GROUP BY atom ORDER BY 2 DESC, atom COLLATE "C" LIMIT %s'
        return sql, *map(list, paths)
