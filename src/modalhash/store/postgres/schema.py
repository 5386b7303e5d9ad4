"""Tables of a store in PostgreSQL, and the statements that read their rows."""

from __future__ import annotations

from modalhash.store.postgres.conditions import CREATE_ATOMS
from modalhash.store.postgres.words import CREATE_WORDS
from modalhash.store.records import MAX_REFINEMENT

FORMAT = 1

CREATE = (
    "CREATE SCHEMA {schema}",
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
    CREATE_ATOMS,
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
SELECT modality.name, item.id, item.number FROM unnest(%s::text[], %s::text[]) AS wanted (modality, id)
JOIN modality ON modality.name = wanted.modality JOIN item ON item.id = wanted.id AND item.modality = modality.number
"""
KEYS = """
SELECT item.number, modality.name, item.id FROM item JOIN modality ON modality.number = item.modality
WHERE item.number = ANY(%s) ORDER BY item.number
"""
PADDED_REFINEMENT = f"""
coalesce(refinement, '') || substring(decode(repeat('00', {MAX_REFINEMENT}), 'hex') FROM
1 + coalesce(octet_length(refinement), 0)), refinement IS NOT NULL
"""
