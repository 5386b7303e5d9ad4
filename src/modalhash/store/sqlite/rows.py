"""Convert between records and SQLite rows, with a checksum that detects damage."""

from __future__ import annotations

import json
import zlib
from functools import lru_cache
from typing import Any

from modalhash.store.records import Record, to_json
from modalhash.store.sqlite.schema import CHECKED

COLUMNS = "item.id, modality.name, item.code, item.kind, item.text, item.uri, item.labels, item.extra, item.refinement"
FROM = "FROM item JOIN modality ON modality.number = item.modality"
INSERT = f"INSERT INTO item ({CHECKED}, checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


def to_row(record: Record, modality: int) -> tuple[Any, ...]:
    """Return an item as the values of ``INSERT``; ``modality`` is its modality's number."""
    labels = to_json(list(record.labels)) if record.labels else None
    extra = to_json(dict(record.extra)) if record.extra else None
    text, uri, refinement = record.text, record.uri, record.refinement
    row = modality, record.id, record.code, record.kind, text, uri, labels, extra, refinement
    return *row, row_checksum(*row)


def from_row(row: tuple[Any, ...]) -> Record:
    """Return the record of a row of ``COLUMNS``."""
    id, modality, code, kind, text, uri, labels, extra, refinement = row
    fields = json.loads(extra) if extra else {}
    if not isinstance(fields, dict):
        raise TypeError(f"the fields of the item {id!r} are {type(fields).__name__}")
    return Record(
        id=id,
        modality=modality,
        code=code,
        kind=kind,
        text=text,
        uri=uri,
        labels=_parse_labels(labels) if labels else (),
        extra=fields,
        refinement=refinement,
    )


@lru_cache(4096)
def _parse_labels(text: str) -> tuple[str | int, ...]:
    return tuple(json.loads(text))  # cached: many items have the same labels


def row_checksum(*values: Any) -> int:
    """Return the CRC-32 of the columns and their lengths, so that moving bytes between columns changes it."""
    parts = [b"" if value is None else value if isinstance(value, bytes) else str(value).encode() for value in values]
    lengths = ",".join("" if value is None else str(len(part)) for value, part in zip(values, parts, strict=True))
    return zlib.crc32(b"".join(parts), zlib.crc32(lengths.encode("ascii")))
