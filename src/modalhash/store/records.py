"""What the store keeps of an item, and its form as a row of the database."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from modalhash._typing import Codes
from modalhash.codes import check_codes

KINDS = ("learned", "hashed")
COLUMNS = "item.id, modality.name, item.code, item.kind, item.text, item.uri, item.labels, item.extra"


@dataclass(frozen=True)
class Record:
    """An item as it is stored.

    Parameters
    ----------
    id : str
        Given by the user; unique in the store, whatever the modality.
    modality : str
        E.g. ``"image"``.
    code : uint8 (ceil(n_bits / 8),) or bytes
        Packed; bytes when it comes from the store.
    kind : {"hashed", "learned"}
        From features alone, or the code that training made from labels.
    text, uri : str, optional
        The text itself, or where the item is.
    labels : tuple of str or int
        Its labels, if known.
    extra : mapping
        Whatever else should be kept; goes through JSON.
    """

    id: str
    modality: str
    code: bytes | Codes
    kind: str = "hashed"
    text: str | None = None
    uri: str | None = None
    labels: tuple[str | int, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


def to_row(record: Record, modality: int, n_bits: int) -> tuple[Any, ...]:
    """The values of a row, checked."""
    for name in ("text", "uri"):
        value = getattr(record, name)
        if value is not None and not isinstance(value, str):
            raise TypeError(f"item {record.id!r}: {name} is {type(value).__name__}; expected a text or None")
    if record.kind not in KINDS:
        raise ValueError(f"item {record.id!r}: the kind of its code is {record.kind!r}; expected one of {KINDS}")
    code = record.code
    row = np.frombuffer(code, dtype=np.uint8) if isinstance(code, bytes) else np.asarray(code)
    packed = check_codes(row[None], n_bits, f"item {record.id!r}: code").tobytes()
    if isinstance(record.labels, str) or not all(
        isinstance(label, str | int) and not isinstance(label, bool) for label in record.labels
    ):
        raise TypeError(
            f"item {record.id!r}: labels are {record.labels!r}; expected texts or integers, several or none"
        )
    labels = _json(list(record.labels), record.id, "labels") if record.labels else None
    extra = _json(dict(record.extra), record.id, "extra") if record.extra else None
    return record.id, modality, packed, record.kind, record.text, record.uri, labels, extra


def from_row(row: tuple[Any, ...]) -> Record:
    """The record of a row of :data:`COLUMNS`."""
    identity, modality, code, kind, text, uri, labels, extra = row
    return Record(
        id=identity,
        modality=modality,
        code=code,
        kind=kind,
        text=text,
        uri=uri,
        labels=_labels(labels) if labels else (),
        extra=json.loads(extra) if extra else {},
    )


@lru_cache(4096)
def _labels(text: str) -> tuple[str | int, ...]:
    """Many items have the same ones."""
    return tuple(json.loads(text))


def check_names(record: Any) -> Record:
    """A record with an id and a modality."""
    if not isinstance(record, Record):
        raise TypeError(f"got {type(record).__name__}; expected modalhash.store.Record")
    for name in ("id", "modality"):
        value = getattr(record, name)
        if not isinstance(value, str) or not value or "\0" in value:
            raise ValueError(f"item {record.id!r}: {name} is {value!r}; expected a non-empty text without NUL")
    return record


def _json(value: Any, identity: str, name: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TypeError(f"item {identity!r}: {name} cannot be written as JSON: {error}") from None
