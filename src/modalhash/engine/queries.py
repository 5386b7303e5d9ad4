"""Queries: raw items, rows of features, or items that are stored already, made into codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from modalhash._typing import Array, Codes, Matrix
from modalhash.codes import pack_signs
from modalhash.engine.asking import SearchOptions, SearchRequest
from modalhash.store import Record

if TYPE_CHECKING:
    from modalhash.base import CrossModalHasher
    from modalhash.encoders import Encoder

ALONE = 8
"""Queries up to which threads cost more than they save, above all where many search at once."""


@dataclass(frozen=True)
class QueryBatch:
    """Queries made into codes: what :meth:`modalhash.engine.engine.Engine.prepare` gives."""

    modality: str | None
    """Of all of them; None where they are stored items of several."""
    codes: Codes
    projections: Array | None = None
    """Where hits are to be ranked by them."""
    records: list[Record] | None = None
    """Where they are stored items."""
    unknown: Array | None = None
    """Whether a query has nothing that the engine knows: what it finds says nothing."""

    def __len__(self) -> int:
        return len(self.codes)

    def request(self, row: int, options: SearchOptions = SearchOptions()) -> SearchRequest:  # noqa: B008 (frozen)
        """One query of the batch with its options."""
        return SearchRequest(
            self.codes[row],
            options,
            None if self.projections is None else self.projections[row],
            exclude=None if self.records is None else self.records[row].key,
        )

    def warning(self) -> str | None:
        """What is to be told about them, if anything."""
        n = 0 if self.unknown is None else int(np.count_nonzero(self.unknown))
        if not n:
            return None
        return (
            f"{n} of {len(self)} queries have nothing that the engine knows ({self.modality!r}): "
            "what they find says nothing. Use other words"
        )


def exactly_one(given: Mapping[str, Any]) -> tuple[str, Any]:
    """The kind of query that was given, and the queries."""
    chosen = [(name, value) for name, value in given.items() if value is not None]
    if len(chosen) != 1:
        names = " and ".join(name for name, _ in chosen)
        raise TypeError(f"search got {names or 'no query'}; expected one of {', '.join(given)}")
    return chosen[0]


def of_contents(
    model: CrossModalHasher, encoder: Encoder, modality: str, contents: Sequence[Any], *, asymmetric: bool
) -> QueryBatch:
    """Queries given as texts, pictures or whatever the encoder takes."""
    if encoder.reads == "array":
        raise ValueError(
            f"{modality!r} was trained on given features, so a query must be features too: search(features=…, "
            f"modality={modality!r}), or id=… of a stored item"
        )
    return of_features(model, modality, encoded(encoder, contents), asymmetric=asymmetric)


def of_features(model: CrossModalHasher, modality: str, features: Matrix, *, asymmetric: bool) -> QueryBatch:
    """Queries given as rows of features; one row need not be a matrix."""
    rows = features if sparse.issparse(features) else np.atleast_2d(np.asarray(features))
    if rows.shape[0] == 0:
        return QueryBatch(modality, np.empty((0, -(-model.n_bits // 8)), np.uint8))
    unknown = np.asarray(abs(rows).sum(axis=1)).ravel() == 0
    projections = model.decision_function({modality: rows})[modality]
    return QueryBatch(modality, pack_signs(projections), projections if asymmetric else None, unknown=unknown)


def of_records(
    model: CrossModalHasher,
    encoders: Mapping[str, Encoder],
    records: Sequence[Record],
    *,
    base: Path,
    asymmetric: bool,
) -> QueryBatch:
    """Queries that are stored items: by their codes, and by their content where projections are wanted."""
    modalities = {record.modality for record in records}
    modality = modalities.pop() if len(modalities) == 1 else None
    codes = np.frombuffer(b"".join(bytes(record.code) for record in records), dtype=np.uint8)
    codes = codes.reshape(len(records), -(-model.n_bits // 8))
    if not asymmetric:
        return QueryBatch(modality, codes, records=list(records))
    projections = np.empty((len(records), model.n_bits), dtype=np.float32)
    for row, record in enumerate(records):
        encoder, content = encoders[record.modality], record.text
        if content is None and record.uri is not None:
            content = str(base / record.uri)
        if encoder.reads == "array" or content is None:
            raise ValueError(f"{record.id}: only its code is stored, so asymmetric=True has no projections to rank by")
        features = encoded(encoder, [content])
        projections[row] = model.decision_function({record.modality: features})[record.modality][0]
    return QueryBatch(modality, codes, projections, list(records))


def encoded(encoder: Encoder, contents: Sequence[Any]) -> Matrix:
    """Features of queries; a bad one is an error that tells which it is."""
    from modalhash.encoders import encode_items

    few = len(contents) <= ALONE
    found = encode_items(encoder, contents, workers=1 if few else None)
    if found.failures:
        first = found.failures[0]
        place = f"query {first.row + 1} of {len(contents)}: " if len(contents) > 1 else ""
        raise ValueError(f"{place}{first.reason if isinstance(contents[first.row], bytes) else first}")
    return found.features
