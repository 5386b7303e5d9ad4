"""What a person gets back: hits with what they are, and what they score by the query's real-valued projections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from modalhash._typing import Array
from modalhash.codes import unpack_signs
from modalhash.store import Record


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
    code: str = ""
    """Hexadecimal, the most significant bit first."""
    score: float | None = None
    """After ``asymmetric=True``: the query's projections summed with the signs of the code; larger is nearer."""

    @classmethod
    def from_record(cls, record: Record, distance: int) -> Hit:
        """A stored item as a hit."""
        return cls(
            record.id,
            int(distance),
            record.modality,
            record.text,
            record.uri,
            record.labels,
            record.kind,
            record.extra,
            bytes(record.code).hex(),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; what is empty is left out, except labels."""
        values = {name: value for name, value in asdict(self).items() if value is not None and value != {}}
        return {**values, "labels": list(self.labels)}


def scores_of(projection: Array, records: list[Record]) -> Array:
    """The sum of the query's projections with the signs of each code: a near miss counts less than a clear one."""
    codes = np.frombuffer(b"".join(bytes(record.code) for record in records), dtype=np.uint8).reshape(len(records), -1)
    scores: Array = unpack_signs(codes, len(projection)) @ projection.astype(np.float32)
    return scores
