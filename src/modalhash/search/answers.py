"""What a person gets back: hits with what they are, perhaps ranked anew by the query's real-valued projections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from modalhash._typing import Array
from modalhash.codes import unpack_signs
from modalhash.search.hits import Hits
from modalhash.search.records import Record


@dataclass(frozen=True)
class Hit:
    """One item found."""

    id: str
    distance: int
    """Differing bits."""
    modality: str
    text: str | None = None
    uri: str | None = None
    labels: tuple[str | int, ...] = ()
    kind: str = "hashed"
    """Of its code: ``learned`` from labels in training, or ``hashed`` from features."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    score: float | None = None
    """After ``asymmetric=True``: the query's projections summed with the signs of the code; larger is nearer."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; what is empty is left out, except labels."""
        values = {name: value for name, value in asdict(self).items() if value is not None and value != {}}
        return {**values, "labels": list(self.labels)}


def key_of(modality: str, id: str) -> str:
    """The store's id of an item: the same id may stand in several modalities, for the same thing seen twice."""
    return f"{modality}:{id}"


def own_id(record: Record) -> str:
    """The id as its owner gave it."""
    return record.id[len(record.modality) + 1 :]


def as_hit(record: Record, distance: int, score: float | None = None) -> Hit:
    """A stored item as a hit."""
    return Hit(
        own_id(record),
        int(distance),
        record.modality,
        record.text,
        record.uri,
        tuple(record.labels),
        record.kind,
        record.extra,
        score,
    )


def answer(
    hits: Hits,
    records: Mapping[int, Record],
    *,
    k: int | None,
    leave_out: list[str] | None = None,
    projections: Array | None = None,
) -> list[list[Hit]]:
    """Hits of each query, by (distance, order of adding), or by score where there are projections.

    A record that went away since the search is passed over, and so is the query itself (``leave_out``).
    """
    answers = []
    for query in range(len(hits)):
        numbers, distances = hits[query]
        found = [
            (records[number], int(distance))
            for number, distance in zip(numbers.tolist(), distances.tolist(), strict=True)
            if number in records and (leave_out is None or records[number].id != leave_out[query])
        ]
        if projections is None or not found:
            answers.append([as_hit(record, distance) for record, distance in found[:k]])
            continue
        scores = scores_of(projections[query], [record for record, _ in found])
        best = np.argsort(-scores, kind="stable")[:k]  # stable: the order by distance decides between equals
        answers.append([as_hit(found[i][0], found[i][1], float(scores[i])) for i in best.tolist()])
    return answers


def scores_of(projection: Array, records: list[Record]) -> Array:
    """The sum of the query's projections with the signs of each code: a near miss counts less than a clear one."""
    codes = np.frombuffer(b"".join(bytes(record.code) for record in records), dtype=np.uint8).reshape(len(records), -1)
    scores: Array = unpack_signs(codes, len(projection)) @ projection.astype(np.float32)
    return scores
