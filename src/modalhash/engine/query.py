"""Queries: what a search returns (options), and raw items, features or stored items made into codes (batches)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from scipy import sparse

from modalhash._typing import Array, Codes, Matrix
from modalhash.codes import n_bytes, pack_signs
from modalhash.store import KINDS, Key, Record
from modalhash.validation import check_choice, check_int

if TYPE_CHECKING:
    from modalhash.base import CrossModalHasher
    from modalhash.encoders import Encoder
    from modalhash.engine.refinement import Refinement

SHORTLIST_RATIO, MIN_SHORTLIST = 10, 200
"""``asymmetric=True`` re-ranks 10 times k items, and at least 200."""
MAX_SERIAL_QUERIES = 8
"""Up to this many queries threads cost more than they save, above all where many search at once."""


class OptionValues(TypedDict, total=False):
    """The options of a search as keyword arguments: those of :class:`SearchOptions`, where they are explained."""

    k: int
    radius: int | None
    want: str | Sequence[str] | None
    labels: str | Sequence[str]
    kind: str | None
    refine: bool
    asymmetric: bool
    shortlist: int | None


@dataclass(frozen=True)
class SearchOptions:
    """What a search returns: how many hits, of which items, in which order.

    Parameters
    ----------
    k : int
        The number of hits.
    radius : int, optional
        Return all items within this Hamming distance instead of the ``k`` nearest.
    want : str or sequence of str, optional
        The modality, or modalities, to search in; all by default.
    labels : str or sequence of str
        Return only items that have all of these labels.
    kind : {"learned", "hashed"}, optional
        Return only items with this kind of code.
    refine : bool
        Order the ``shortlist`` nearest by their refinement vectors, and find items of the query's own modality by their
        features as well. False is the order of the codes alone: by Hamming distance, then in the order of adding.
    asymmetric : bool
        Re-rank the ``shortlist`` nearest by the query's real-valued projections instead, which tell a clear difference
        from a near miss; codes alone do not.
    shortlist : int, optional
        The number of items to re-rank. By default 10 times ``k``, and at least 200 with ``asymmetric``; where
        refinement vectors order them, at least 2,000, or 200 of more than 100,000 items, together with all that are as
        near as the last of them.
    """

    k: int = 20
    radius: int | None = None
    want: tuple[str, ...] | None = None
    labels: tuple[str, ...] = ()
    kind: str | None = None
    refine: bool = True
    asymmetric: bool = False
    shortlist: int | None = None

    def __post_init__(self) -> None:
        if self.want is not None:
            object.__setattr__(self, "want", (self.want,) if isinstance(self.want, str) else tuple(self.want))
        object.__setattr__(self, "labels", (self.labels,) if isinstance(self.labels, str) else tuple(self.labels))
        check_int(self.k, "k", at_least=1)
        if self.radius is not None:
            check_int(self.radius, "radius", at_least=0)
        if self.kind is not None:
            check_choice(self.kind, "kind", KINDS)
        if self.shortlist is not None:
            check_int(self.shortlist, "shortlist", at_least=self.k)


@dataclass(frozen=True)
class SearchRequest:
    """One query code with its options."""

    code: Codes
    """Packed, one row."""
    options: SearchOptions = field(default_factory=SearchOptions)
    projection: Array | None = None
    """Real-valued, to re-rank the shortlist by if the options ask for it."""
    exclude: Key | None = None
    """The key of an item that is never a hit: the query itself."""
    vector: Array | None = None
    """Its refinement vector, to order the shortlist by if the options ask for it."""
    modality: str | None = None
    """The modality of the query; None if it is not known."""

    @property
    def reranked(self) -> bool:
        """Whether hits are ordered by the query's projections."""
        return self.options.asymmetric and self.projection is not None

    @property
    def refined(self) -> bool:
        """Whether hits are ordered by refinement vectors."""
        return self.options.refine and self.vector is not None and not self.reranked

    @property
    def filtered(self) -> bool:
        """Whether items may fail the filter."""
        return bool(self.options.labels or self.options.kind)

    @property
    def n_candidates(self) -> int:
        """The number of items that have to pass the filter: the hits, or the shortlist to re-rank."""
        options = self.options
        if not self.reranked:
            return options.k
        return max(SHORTLIST_RATIO * options.k, MIN_SHORTLIST) if options.shortlist is None else options.shortlist


@dataclass(frozen=True)
class QueryBatch:
    """Queries made into codes: what :meth:`modalhash.engine.Engine.prepare` returns."""

    modality: str | None
    """The modality of all of them; None where they are stored items of several."""
    codes: Codes
    projections: Array | None = None
    """Real-valued, where hits are to be re-ranked by them."""
    records: list[Record] | None = None
    """The stored items, where the queries are such."""
    vectors: list[Array | None] | None = None
    """Refinement vectors, int8, where the engine makes them; None for a stored item that has none."""
    unknown: Array | None = None
    """Whether a query has nothing that the engine knows, so that its hits mean nothing."""

    def __len__(self) -> int:
        return len(self.codes)

    def request(self, row: int, options: SearchOptions = SearchOptions()) -> SearchRequest:  # noqa: B008 (frozen)
        """Return one query of the batch with its options."""
        return SearchRequest(
            self.codes[row],
            options,
            None if self.projections is None else self.projections[row],
            exclude=None if self.records is None else self.records[row].key,
            vector=None if self.vectors is None else self.vectors[row],
            modality=self.modality if self.records is None else self.records[row].modality,
        )

    def warning(self) -> str | None:
        """Return a warning about queries that have nothing the engine knows, or None."""
        n = 0 if self.unknown is None else int(np.count_nonzero(self.unknown))
        if not n:
            return None
        return (
            f"{n} of {len(self)} queries have nothing that the engine knows ({self.modality!r}): "
            "what they find says nothing. Use other words"
        )


def exactly_one(given: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the name and value of the one argument that is not None; TypeError if there are none or several."""
    chosen = [(name, value) for name, value in given.items() if value is not None]
    if len(chosen) != 1:
        names = " and ".join(name for name, _ in chosen)
        raise TypeError(f"search got {names or 'no query'}; expected one of {', '.join(given)}")
    return chosen[0]


def encode_contents(
    model: CrossModalHasher,
    encoder: Encoder,
    modality: str,
    contents: Sequence[Any],
    *,
    asymmetric: bool,
    refinement: Refinement | None = None,
) -> QueryBatch:
    """Encode queries given as texts, pictures or whatever the encoder takes."""
    if encoder.reads == "array":
        raise ValueError(
            f"{modality!r} was trained on given features, so a query must be features too: search(features=…, "
            f"modality={modality!r}), or id=… of a stored item"
        )
    features = _features_of(encoder, contents)
    return encode_features(model, modality, features, asymmetric=asymmetric, refinement=refinement)


def encode_features(
    model: CrossModalHasher,
    modality: str,
    features: Matrix,
    *,
    asymmetric: bool,
    refinement: Refinement | None = None,
) -> QueryBatch:
    """Encode queries given as rows of features; one row need not be a matrix."""
    rows = features if sparse.issparse(features) else np.atleast_2d(np.asarray(features))
    if rows.shape[0] == 0:
        return QueryBatch(modality, np.empty((0, n_bytes(model.n_bits)), np.uint8))
    unknown = np.asarray(abs(rows).sum(axis=1)).ravel() == 0
    projections = model.decision_function({modality: rows})[modality]
    return QueryBatch(
        modality,
        pack_signs(projections),
        projections if asymmetric else None,
        vectors=None if refinement is None else list(refinement.vectors(modality, rows)),
        unknown=unknown,
    )


def encode_records(
    model: CrossModalHasher,
    encoders: Mapping[str, Encoder],
    records: Sequence[Record],
    *,
    base: Path,
    asymmetric: bool,
) -> QueryBatch:
    """Take the codes of stored items as queries, and encode their contents where projections are wanted."""
    modalities = {record.modality for record in records}
    modality = modalities.pop() if len(modalities) == 1 else None
    codes = np.frombuffer(b"".join(bytes(record.code) for record in records), dtype=np.uint8)
    codes = codes.reshape(len(records), n_bytes(model.n_bits))
    vectors = [
        None if record.refinement is None else np.frombuffer(record.refinement, dtype=np.int8) for record in records
    ]
    if not asymmetric:
        return QueryBatch(modality, codes, records=list(records), vectors=vectors)
    projections = np.empty((len(records), model.n_bits), dtype=np.float32)
    for row, record in enumerate(records):
        encoder, content = encoders[record.modality], record.text
        if content is None and record.uri is not None:
            content = str(base / record.uri)
        if encoder.reads == "array" or content is None:
            raise ValueError(f"{record.id}: only its code is stored, so asymmetric=True has no projections to rank by")
        features = _features_of(encoder, [content])
        projections[row] = model.decision_function({record.modality: features})[record.modality][0]
    return QueryBatch(modality, codes, projections, list(records), vectors)


def _features_of(encoder: Encoder, contents: Sequence[Any]) -> Matrix:
    """Return the features of queries, or raise an error that says which of them is bad."""
    from modalhash.encoders import encode_items

    serial = len(contents) <= MAX_SERIAL_QUERIES
    encoded = encode_items(encoder, contents, workers=1 if serial else None)
    if encoded.failures:
        first = encoded.failures[0]
        which = f"query {first.row + 1} of {len(contents)}: " if len(contents) > 1 else ""
        raise ValueError(f"{which}{first.reason if isinstance(contents[first.row], bytes) else first}")
    return encoded.features
