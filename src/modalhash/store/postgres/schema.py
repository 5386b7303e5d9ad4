"""Tables of a store in PostgreSQL, and their rows as records and as the arrays of a binary ``COPY``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Self

import numpy as np

from modalhash.core.label_names import label_key
from modalhash.core.typing import Array
from modalhash.store.postgres.engines import CREATE_FILES
from modalhash.store.postgres.words import CREATE_WORDS, searched_words
from modalhash.store.records import MAX_REFINEMENT, Record, to_json
from modalhash.store.sqlite.schema import row_checksum

FORMAT = 1
_CREATE_ATOMS = """
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
CREATE = (
    "CREATE SCHEMA {schema}",
    *CREATE_FILES,
    "CREATE TABLE {schema}.meta (key text PRIMARY KEY, value text NOT NULL)",
    # One row: the last row id, the number of removals, and the current numbers of items and of words.
    """
    CREATE TABLE {schema}.counter (
        one boolean PRIMARY KEY DEFAULT true CHECK (one),
        items bigint NOT NULL, removals bigint NOT NULL, items_there bigint NOT NULL, words bigint NOT NULL
    ) WITH (fillfactor = 10)
    """,
    'CREATE TABLE {schema}.modality (number integer PRIMARY KEY, name text COLLATE "C" NOT NULL UNIQUE)',
    *CREATE_WORDS,
    """
    CREATE TABLE {schema}.item (
        number bigint PRIMARY KEY,
        modality integer NOT NULL,  -- no foreign key: its trigger would cost as much as the row
        id text COLLATE "C" NOT NULL,
        code bytea NOT NULL CHECK (octet_length(code) = {n_bytes}),
        kind text COLLATE "C" NOT NULL CHECK (kind IN ('learned', 'hashed')),
        text text COLLATE "C",
        uri text COLLATE "C",
        labels text[] COLLATE "C" NOT NULL,
        integer_labels integer[],  -- which of the labels are integers
        folded_labels text[] COLLATE "C" NOT NULL,  -- whatever the case, as filters compare them
        extra json,
        refinement bytea CHECK (octet_length(refinement) <= {max_refinement}),
        checksum bigint NOT NULL,
        searched text NOT NULL,  -- the words that are searched, folded
        n_words integer NOT NULL,
        words tsvector GENERATED ALWAYS AS (to_tsvector('{schema}.words', searched)) STORED,
        UNIQUE (id, modality)
    )
    """,
    "ALTER TABLE {schema}.item ALTER code SET STORAGE PLAIN",
    "CREATE INDEX item_modality ON {schema}.item (modality, kind)",
    "CREATE INDEX item_labels ON {schema}.item USING gin (folded_labels)",
    "CREATE INDEX item_words ON {schema}.item USING gin (words)",
    'CREATE TABLE {schema}.label (name text COLLATE "C" PRIMARY KEY, items bigint NOT NULL)',
    "CREATE TABLE {schema}.removed (step bigint PRIMARY KEY, number bigint NOT NULL)",
    _CREATE_ATOMS,
    """
    CREATE VIEW {schema}.items AS SELECT
        item.number, modality.name AS modality, item.id, item.kind, item.text, item.uri, item.labels, item.extra,
        ('x' || encode(item.code, 'hex'))::bit({n_code_bits})::bit({n_bits}) AS code
    FROM {schema}.item JOIN {schema}.modality ON modality.number = item.modality
    """,
    "INSERT INTO {schema}.counter VALUES (true, 0, 0, 0, 0)",
)

COLUMNS = """
item.id, modality.name, item.code, item.kind, item.text, item.uri, item.labels, item.integer_labels, item.extra::text,
item.refinement
"""
FROM = "FROM item JOIN modality ON modality.number = item.modality"
COPIED = {
    "number": "int8",
    "modality": "int4",
    "id": "text",
    "code": "bytea",
    "kind": "text",
    "text": "text",
    "uri": "text",
    "labels": "text[]",
    "integer_labels": "int4[]",
    "folded_labels": "text[]",
    "extra": "text",  # JSON as text, whose binary form is the same
    "refinement": "bytea",
    "checksum": "int8",
    "searched": "text",
    "n_words": "int4",
}
"""Columns of an item that are written by COPY, with their types."""
NUMBERS = """
SELECT modality.name, found.id, found.number FROM unnest(%s::text[], %s::text[]) AS wanted (modality, id)
JOIN modality ON modality.name = wanted.modality CROSS JOIN LATERAL (
    SELECT id, number FROM item WHERE item.id = wanted.id AND item.modality = modality.number LIMIT 1
) AS found
"""
"""``LIMIT`` makes the planner use the index: until the first ANALYZE, it would compare all pairs."""
KEYS = """
SELECT item.number, modality.name, item.id FROM item JOIN modality ON modality.number = item.modality
WHERE item.number = ANY(%s) ORDER BY item.number
"""
PADDED_REFINEMENT = f"""
coalesce(refinement, '') || substring(decode(repeat('00', {MAX_REFINEMENT}), 'hex') FROM
1 + coalesce(octet_length(refinement), 0)), refinement IS NOT NULL
"""
_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"


def read_rows(connection: Any, sql: str, values: Sequence[Any], columns: Sequence[tuple[str, int]]) -> Array:
    """Return the rows of a query as a structured array with columns of the given sizes in bytes, never NULL.

    A row of ``COPY`` is the number of its fields and, for each, its length and its bytes.
    """
    fields: list[Any] = [("n_fields", ">i2")]
    for name, size in columns:
        fields += [(f"{name}_size", ">i4"), (name, np.uint8, (size,))]
    with connection.cursor().copy(f"COPY ({sql}) TO STDOUT (FORMAT binary)", values or None) as copy:
        data = b"".join(copy)
    n_rows = (len(data) - len(_HEADER) - len(_TRAILER)) // np.dtype(fields).itemsize
    return np.frombuffer(data, dtype=np.dtype(fields), offset=len(_HEADER), count=n_rows)


def integers(column: Array) -> Array:
    """Return an integer column of :func:`read_rows` as int64."""
    return np.ascontiguousarray(column).view(f">i{column.shape[1]}")[:, 0].astype(np.int64)


class Labels(NamedTuple):
    """Labels of an item in the forms that are stored."""

    json: str | None
    names: list[str]
    integers: list[int] | None
    """Positions of the labels that are integers."""
    folded: list[str]


@lru_cache(4096)  # many items have the same labels
def labels_of(labels: tuple[str | int, ...]) -> Labels:
    names = [str(label) for label in labels]
    integers = [position for position, label in enumerate(labels) if not isinstance(label, str)]
    json = to_json(list(labels)) if labels else None
    return Labels(json, names, integers or None, [label_key(name) for name in names])


class Derived(NamedTuple):
    """Columns of an item that are derived from its record."""

    extra: str | None
    checksum: int
    searched: str
    n_words: int

    @classmethod
    def of(cls, record: Record, modality: int, fields: Sequence[str]) -> Self:
        extra = to_json(dict(record.extra)) if record.extra else None
        start = modality, record.id, record.code, record.kind, record.text, record.uri
        checksum = row_checksum(*start, labels_of(tuple(record.labels)).json, extra, record.refinement)
        return cls(extra, checksum, *searched_words(record, fields))


def to_row(number: int, record: Record, modality: int, derived: Derived) -> tuple[Any, ...]:
    """Return the columns of ``COPIED``."""
    labels = labels_of(tuple(record.labels))
    return (
        number,
        modality,
        record.id,
        bytes(record.code),
        record.kind,
        record.text,
        record.uri,
        labels.names,
        labels.integers,
        labels.folded,
        derived.extra,
        record.refinement,
        derived.checksum,
        derived.searched,
        derived.n_words,
    )


def from_row(row: Sequence[Any]) -> Record:
    """Return the record of a row of ``COLUMNS``."""
    id, modality, code, kind, text, uri, labels, integers, extra, refinement = row
    for place in integers or ():
        labels[place] = int(labels[place])
    return Record(
        id=id,
        modality=modality,
        code=bytes(code),
        kind=kind,
        text=text,
        uri=uri,
        labels=tuple(labels),
        extra=json.loads(extra) if extra else {},
        refinement=None if refinement is None else bytes(refinement),
    )
