"""From queries to hits: scan the index as rarely as possible, then filter, order and score."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from modalhash.core.codes import unpack_signs
from modalhash.core.typing import Array
from modalhash.engine.search.confidence import (
    BY_MEANING,
    Confidence,
    Pair,
    PairFeatures,
    pair_features,
    query_name,
)
from modalhash.engine.search.ordering import (
    IN_PICTURE,
    Ranker,
    competition_ranks,
    join_both,
    pad,
    reciprocal_rank_fusion,
    ways_found,
)
from modalhash.engine.search.photo_words import TEXT
from modalhash.engine.search.query import Asked, Query, QueryPart, with_matches
from modalhash.engine.search.refinement import Refinement
from modalhash.engine.settings import SearchOptions
from modalhash.index import Index
from modalhash.store import Record, Store

OVERFETCH, MAX_OVERFETCH = 4, 4096
"""A search with a filter fetches 4 times the items it needs. If too few pass, the fraction that passed determines the
next attempt; above 4,096 it is faster to search only among the items that the store says pass."""
SHORTLIST_RATIO, MIN_SHORTLIST = 10, 200
"""Items that ``asymmetric=True`` re-ranks: 10 times k, and at least 200."""
MIN_K_BUCKET, K_BUCKET_RATIO = 32, 4
"""Queries whose k is in the same bucket (32, 128, 512 …) are scanned together: 20 and 30, but not 20 and 2,000."""

REFINED_RATIO, MIN_REFINED, MIN_REFINED_OF_MANY, MANY, MAX_TIES = 10, 2000, 200, 100_000, 8
"""Refinement orders the 10 times k nearest items, at least 2,000, and those at the distance of the last, up to 8 times
that number. Of more than 100,000 items at least 200, because scanning for more would take longer than all the rest. Set
by hand for time, not by folds; docs/measurements/order-of-hits.md has the cost of shorter lists."""

HAS_LABEL = 0.99
"""Least confidence of an item in a label that it has."""
_FOUND_BY = {(True, False): ("code",), (False, True): ("features",), (True, True): ("code", "features")}
_FOUND_BY_NAMES = {(True, False): ("code",), (False, True): ("names",), (True, True): ("code", "names")}
"""The same for hits of another modality, which their meaning found."""


@dataclass(frozen=True)
class Hit:
    """One item that a search returned."""

    id: str
    distance: int
    """Number of differing bits."""
    modality: str
    text: str | None = None
    uri: str | None = None
    labels: tuple[str | int, ...] = ()
    kind: str = "hashed"
    """Kind of its code: ``learned`` from labels in training, or ``hashed`` from features."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    code: bytes = b""
    """Packed, the most significant bit first."""
    score: float | None = None
    """Score of the refinement vectors, larger is nearer; None if they did not order the hit. With ``asymmetric=True``
    the inner product of the query's projections and the code's signs."""
    rank: int = 1
    """From 1; ties share a rank, as in 1, 1, 3."""
    found_by: tuple[str, ...] = ("code",)
    """Any of ``code``, ``features`` of its own, ``names`` of what it shows, ``words``, words of similar ``meaning``,
    and words in the picture alone (``text in the picture``); among duplicates, the ``pixels`` of a photo."""
    shared_labels: tuple[str, ...] = ()
    """At most 5 labels that the vectors of query and item clearly have, the clearest first."""
    confidence: float | None = None
    """Probability that it shares a label with the query; None if the engine cannot estimate it."""
    weak: bool = False
    """True if confidence is below the midpoint between chance and 1 and no query word matched."""
    refinement: bytes | None = field(default=None, repr=False, compare=False)
    """Refinement vector, int8."""

    @classmethod
    def from_record(cls, record: Record, distance: int, **more: Any) -> Hit:
        """Return a stored item as a hit, with further fields by name."""
        return cls(
            record.id,
            int(distance),
            record.modality,
            record.text,
            record.uri,
            record.labels,
            record.kind,
            record.extra,
            bytes(record.code),
            refinement=record.refinement,
            **more,
        )

    def changed(self, **fields: Any) -> Hit:
        """Return a copy with other values of some fields, five times as fast as ``dataclasses.replace``."""
        other = object.__new__(Hit)
        other.__dict__.update(self.__dict__, **fields)
        return other

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, the code in hexadecimal, without empty values and the refinement vector."""
        values = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self.__dict__.items()
            if name != "refinement" and value is not None and value not in ({}, ()) and value is not False
        }
        return {**values, "labels": list(self.labels), "code": self.code.hex()}


@dataclass(frozen=True)
class ConfidenceScorer:
    """Estimates the confidence of hits, and drops those below ``min_confidence``."""

    confidence: Confidence
    refinement: Refinement
    n_bits: int

    def apply(self, query: Query, options: SearchOptions, hits: list[Hit]) -> list[Hit]:
        """Return the hits of a query with confidence; hits without a refinement vector have none."""
        scored = list(hits)
        kinds: dict[tuple[str, str], list[int]] = {}
        for row, hit in enumerate(hits):
            if hit.refinement is not None:
                kinds.setdefault((hit.modality, hit.kind), []).append(row)
        if query.vector is None:
            return scored
        for (modality, kind), rows in kinds.items():
            found = self._probabilities(query, modality, kind, [hits[row] for row in rows])
            if found is None:
                continue
            values, weak_below = found
            for row, value in zip(rows, values.tolist(), strict=True):
                weak = value < weak_below and not {"words", IN_PICTURE} & {*hits[row].found_by}
                scored[row] = hits[row].changed(confidence=round(value, 4), weak=weak)
        least = options.min_confidence
        return scored if least is None else [hit for hit in scored if (hit.confidence or 0) >= least]

    def _probabilities(self, query: Query, modality: str, kind: str, hits: list[Hit]) -> tuple[Array, float] | None:
        """Return the confidence of hits in the query part that fits worst, and the limit of weak hits."""
        assert query.vector is not None
        codes = np.frombuffer(b"".join(hit.code for hit in hits), np.uint8).reshape(len(hits), -1)
        vectors = np.frombuffer(b"".join(hit.refinement or b"" for hit in hits), np.int8).reshape(len(hits), -1)
        within = modality == query.modality
        values, weak_below = np.ones(len(hits)), 0.0
        for part in query.parts or (QueryPart(query.code, query.vector),):
            name = query_name(query.modality, part.vector, self.refinement)
            curve = self.confidence.curves.get(Pair(name, modality, kind))
            if curve is None:
                return None
            features = pair_features(
                part.code, part.vector, codes, vectors, self.refinement, self.n_bits, within=within
            )
            own = curve.probability(features, query.familiarity)
            if part.label is not None and kind == "learned":
                own = self._by_labels(own, part.label, hits, features)
            values = np.minimum(values, part.sure * own)
            weak_below = max(weak_below, curve.weak_below)
        return values, weak_below

    def _by_labels(self, values: Array, label: str, hits: list[Hit], features: PairFeatures) -> Array:
        """Return the confidence of labelled items in a label; items that have it are certain.

        For the others it is at most that of their meaning, because the person who labelled them did not see it.
        """
        curve = self.confidence.curves.get(Pair(BY_MEANING, hits[0].modality, "learned"))
        without = np.array([label not in map(str, hit.labels) for hit in hits])
        most = 0.0 if curve is None else curve.probability(features, 1.0)
        return np.where(without, np.minimum(values, most), np.maximum(values, HAS_LABEL))

    def orders(self, query: Query) -> bool:
        """Return whether hits are ordered by confidence: those of a few words among pictures.

        Scores of pictures with and without labels are not on one scale, but probabilities are. A caption names many
        labels, which its confidence does not know, so it is ordered by scores.
        """
        if self.refinement.word_codes is None or query.modality != TEXT or query.vector is None:
            return False
        labels = bool(query.vector[: self.refinement.n_posterior].any())
        return not labels or any(part.label is not None for part in query.parts)

    def order(self, query: Query, options: SearchOptions, hits: list[Hit]) -> list[Hit]:
        """Return the k best hits by decreasing confidence; the order of ties is kept."""
        ordered = sorted(self.apply(query, options, hits), key=lambda hit: -(hit.confidence or 0))
        values = np.array([hit.confidence or 0 for hit in ordered])
        ranks = competition_ranks(values, np.zeros(len(values)))
        return [hit.changed(rank=rank) for hit, rank in zip(ordered, ranks, strict=True)][: options.k]


@dataclass(frozen=True)
class HitFinder:
    """Searches an index, and reads from the store what it finds."""

    index: Index
    store: Store
    groups: Mapping[str, int]
    """Group of the index of each modality."""
    ranker: Ranker | None = None
    scorer: ConfidenceScorer | None = None

    def find(self, asked: Sequence[Asked]) -> list[list[Hit]]:
        """Return the hits of each query, ordered by its options."""
        if any(query.words is not None for query, _ in asked):
            return self._find_with_words(asked)
        n_posterior = 0 if self.ranker is None else self.ranker.refinement.n_posterior
        asked = with_matches(asked, self.store, n_posterior)
        refined = [
            self.ranker is not None and options.refine and query.vector is not None and not _is_reranked(query, options)
            for query, options in asked
        ]
        by_codes = iter(self._find_by_codes([one for one, own in zip(asked, refined, strict=True) if not own]))
        by_vectors = iter(self._find_refined([one for one, own in zip(asked, refined, strict=True) if own]))
        answers = [next(by_vectors if own else by_codes) for own in refined]
        answers = [_join_words(*one, hits) for one, hits in zip(asked, answers, strict=True)]
        if self.scorer is None:
            return answers
        return [self.scorer.apply(*one, hits) for one, hits in zip(asked, answers, strict=True)]

    def _find_with_words(self, asked: Sequence[Asked]) -> list[list[Hit]]:
        """Answer queries of which some are pictures with words, joined by reciprocal rank."""
        alone: list[Asked] = []
        for query, options in asked:
            if query.words is None:
                alone.append((query, options))
                continue
            wide = replace(options, k=max(REFINED_RATIO * options.k, MIN_REFINED_OF_MANY), shortlist=None)
            alone += [(replace(query, words=None), wide), (query.words, wide)]
        found = iter(self.find(alone))
        return [
            next(found) if query.words is None else join_both(next(found), next(found), options.k)
            for query, options in asked
        ]

    def _scan(
        self, asked: Sequence[Asked], sizes: Sequence[int], *, ties: bool, ids: Array | None = None
    ) -> list[tuple[Array, Array]]:
        """Return row ids and distances of the nearest items, with one scan for all queries of one size and modalities.

        ``ties`` adds the items at the distance of the last. With a radius, the size does not matter.
        """
        together: dict[tuple[tuple[str, ...] | None, int | None, int], list[int]] = {}
        for place, ((_, options), size) in enumerate(zip(asked, sizes, strict=True)):
            n = size if options.radius is None else 0
            together.setdefault((options.want, options.radius, n), []).append(place)
        found: dict[int, tuple[Array, Array]] = {}
        for (want, radius, n), places in together.items():
            codes, group = np.stack([asked[place][0].code for place in places]), self._groups_of(want)
            if radius is not None:
                hits = self.index.search(codes, radius=radius, ids=ids, group=group)
            elif ties:
                hits = self.index.shortlist(codes, n, max_hits=MAX_TIES * n, ids=ids, group=group)
            else:
                hits = self.index.search(codes, k=min(n, max(1, len(self.index))), ids=ids, group=group)
            found.update((place, hits[row]) for row, place in enumerate(places))
        return [found[place] for place in range(len(asked))]

    def _groups_of(self, want: Sequence[str] | None) -> list[int] | None:
        return None if want is None else [self.groups[name] for name in want if name in self.groups]

    # -- by codes

    def _find_by_codes(self, asked: Sequence[Asked]) -> list[list[Hit]]:
        """Return the hits of each query by distance, then by order of adding, or by score if re-ranked."""
        nearest = self._scan(asked, [_bucket(_n_fetch(*one)) for one in asked], ties=False)
        most = [_n_kept(*one) for one in asked]
        nearest = [(numbers[:n], distances[:n]) for (numbers, distances), n in zip(nearest, most, strict=True)]
        unfiltered = [found[0] for (_, options), found in zip(asked, nearest, strict=True) if options.filter is None]
        shared = self.store.records(np.concatenate(unfiltered)) if unfiltered else {}
        answers = []
        for (query, options), found in zip(asked, nearest, strict=True):
            if options.filter is None:
                passed = _with_records(query, found, shared)
            else:
                passed = self._passing(query, options, found)
            answers.append(_rank(query, options, passed))
        return answers

    def _passing(self, query: Query, options: SearchOptions, nearest: tuple[Array, Array]) -> list[tuple[Record, int]]:
        """Return the nearest items that pass the filter, from the items found if enough of them do."""
        n_found = len(nearest[0])
        if options.radius is not None and n_found > MAX_OVERFETCH:
            return self._passing_within(query, options, nearest)
        passed = _with_records(query, nearest, self.store.records(nearest[0], where=options.filter))
        wanted = _n_candidates(query, options)
        if options.radius is not None or n_found < _n_fetch(query, options) or len(passed) >= wanted:
            return passed
        share = len(passed) / n_found
        n = math.ceil(2 * wanted / share) if share else MAX_OVERFETCH + 1
        if n <= MAX_OVERFETCH:
            (nearest,) = self._scan([(query, options)], [n], ties=False)
            passed = _with_records(query, nearest, self.store.records(nearest[0], where=options.filter))
            if len(nearest[0]) < n or len(passed) >= wanted:
                return passed
        return self._passing_of_all(query, options)

    def _passing_of_all(self, query: Query, options: SearchOptions) -> list[tuple[Record, int]]:
        """Search only among the items that pass the filter, which is fastest if few do."""
        numbers = self.store.matching(options.filter)
        n = min(_n_candidates(query, options) + (query.item is not None), max(1, len(numbers)))
        (nearest,) = self._scan([(query, options)], [n], ties=False, ids=numbers)
        return _with_records(query, nearest, self.store.records(nearest[0]))

    def _passing_within(
        self, query: Query, options: SearchOptions, nearest: tuple[Array, Array]
    ) -> list[tuple[Record, int]]:
        """Return the items within a radius that pass; compare row ids before reading many records."""
        numbers, distances = nearest
        chosen = np.flatnonzero(np.isin(numbers, self.store.matching(options.filter)))
        chosen = chosen if options.limit is None else chosen[: options.limit + (query.item is not None)]
        return _with_records(query, (numbers[chosen], distances[chosen]), self.store.records(numbers[chosen]))

    # -- by refinement vectors

    def _find_refined(self, asked: Sequence[Asked]) -> list[list[Hit]]:
        """Return the hits of each query, the shortlist ordered by refinement vectors."""
        sizes = [shortlist_size(options, len(self.index)) for _, options in asked]
        shortlists = self._scan(asked, sizes, ties=True)
        orders = [self._order(*one, *found) for one, found in zip(asked, shortlists, strict=True)]
        first = [
            order["number"][: _n_first(query, options, self._n_hits(query, options))]
            for (query, options), order in zip(asked, orders, strict=True)
            if options.filter is None
        ]
        shared = self.store.records(np.concatenate(first)) if first else {}
        return [
            self._refined_hits(*one, order, {} if one[1].filter is not None else shared)
            for one, order in zip(asked, orders, strict=True)
        ]

    def _refined_hits(
        self, query: Query, options: SearchOptions, order: Array, records: dict[int, Record]
    ) -> list[Hit]:
        """Return the hits of an ordered shortlist; if too few of it pass the filter, of all items that do."""
        rows = self._first_passing(query, options, order, records)
        enough = options.radius is not None or len(rows) >= options.k
        if not enough and options.filter is not None and len(order) < len(self.index):
            size, matching = shortlist_size(options, len(self.index)), self.store.matching(options.filter)
            (nearest,) = self._scan([(query, options)], [size], ties=True, ids=matching)
            order = self._order(query, options, *nearest, similar=False)
            rows = self._first_passing(query, options, order, records)
        hits = _hits_of(query, order[rows], records)
        if self.scorer is not None and self.scorer.orders(query):
            hits = self.scorer.order(query, options, hits)
        numbers = {records[number].key: number for number in order["number"][rows].tolist()}
        return self._with_shared_labels(query, hits, numbers)

    def _n_hits(self, query: Query, options: SearchOptions) -> int:
        return options.k * (REFINED_RATIO if self.scorer is not None and self.scorer.orders(query) else 1)

    def _order(
        self, query: Query, options: SearchOptions, numbers: Array, distances: Array, *, similar: bool = True
    ) -> Array:
        """Order a shortlist by vectors; ``similar`` adds items of the query's modality with similar features."""
        ranker = self.ranker
        assert ranker is not None
        assert query.vector is not None
        want, vector = options.want, pad(query.vector, ranker.vectors.width)
        own = None
        if query.modality is not None and (want is None or query.modality in want):
            own = self.groups.get(query.modality)
        more = np.empty(0, np.int64)
        if similar and options.radius is None:
            if (
                ranker.refinement.word_codes is None or query.modality == TEXT
            ):  # otherwise all items are of the query's modality
                n = max(REFINED_RATIO * options.k, MIN_REFINED_OF_MANY)
                more = ranker.near_in_meaning(vector, self._groups_of(want), n)
            if own is not None:
                more = np.union1d(more, ranker.similar(vector, own, options.k))
        return ranker.rank(query.code, vector, numbers, distances, self.index, own_group=own, similar=more)

    def _first_passing(
        self, query: Query, options: SearchOptions, order: Array, records: dict[int, Record]
    ) -> list[int]:
        """Return the positions of the first items that pass the filter, reading records as needed."""
        n_hits = self._n_hits(query, options)
        most = n_hits if options.radius is None else options.limit or len(order)
        rows: list[int] = []
        start, size = 0, _n_first(query, options, n_hits) or len(order)
        while start < len(order) and len(rows) < most:
            numbers = order["number"][start : start + size].tolist()
            if unread := [number for number in numbers if number not in records]:
                records.update(self.store.records(unread, where=options.filter))
            for row, number in enumerate(numbers, start):
                record = records.get(number)  # None if it does not pass or was removed since the scan
                if record is not None and not _is_query(record, query):
                    rows.append(row)
            start, size = start + size, 2 * size
        return rows[:most]

    def _with_shared_labels(self, query: Query, hits: list[Hit], numbers: Mapping[tuple[str, str], int]) -> list[Hit]:
        assert self.ranker is not None
        assert query.vector is not None
        found = np.array([numbers[hit.modality, hit.id] for hit in hits], dtype=np.int64)
        labels = self.ranker.shared_labels(pad(query.vector, self.ranker.vectors.width), found)
        return [hit.changed(shared_labels=own) for hit, own in zip(hits, labels, strict=True)]


def shortlist_size(options: SearchOptions, n_items: int) -> int:
    """Return the number of items to order by their vectors, without ties."""
    if options.shortlist is not None:
        return options.shortlist
    return max(REFINED_RATIO * options.k, MIN_REFINED if n_items <= MANY else MIN_REFINED_OF_MANY)


def _join_words(query: Query, options: SearchOptions, hits: list[Hit]) -> list[Hit]:
    """Join hits with the items that contain the query's words."""
    if not query.matches:
        return hits
    codes = np.frombuffer(b"".join(bytes(record.code) for record in query.matches), np.uint8)
    distances = np.bitwise_count(query.code ^ codes.reshape(len(query.matches), -1)).sum(axis=1).tolist()
    text, way = (query.rewritten_text, "meaning") if query.matches_rewritten else (query.text, "words")
    by_words = [
        hit.changed(found_by=ways_found(hit, str(text), way))
        for hit in _rank(query, options, list(zip(query.matches, distances, strict=True)))
    ]
    ranked = {(hit.modality, hit.id): hit for hit in by_words}
    return reciprocal_rank_fusion(hits, [ranked[record.key] for record in query.matches], options.k)


def _is_reranked(query: Query, options: SearchOptions) -> bool:
    """Return whether hits are ordered by the query's projections."""
    return options.asymmetric and query.projection is not None


def _is_query(record: Record, query: Query) -> bool:
    return query.item is not None and record.key == query.item.key


def _n_candidates(query: Query, options: SearchOptions) -> int:
    """Return the number of items that must pass the filter: the hits, or the shortlist to re-rank."""
    if not _is_reranked(query, options):
        return options.k
    return max(SHORTLIST_RATIO * options.k, MIN_SHORTLIST) if options.shortlist is None else options.shortlist


def _n_fetch(query: Query, options: SearchOptions) -> int:
    n = _n_candidates(query, options) + (query.item is not None)
    return n if options.filter is None else OVERFETCH * n


def _n_kept(query: Query, options: SearchOptions) -> int | None:
    """Return how many of the items found are read; None for all within a radius."""
    if options.radius is None:
        return _n_fetch(query, options)
    return None if options.limit is None or options.filter is not None else options.limit + (query.item is not None)


def _bucket(n: int) -> int:
    bucket = MIN_K_BUCKET
    while bucket < n:
        bucket *= K_BUCKET_RATIO
    return bucket


def _n_first(query: Query, options: SearchOptions, n_hits: int) -> int | None:
    """Return how many records to read first; None for all, with a radius."""
    n = n_hits + (query.item is not None)
    if options.radius is not None:
        return None
    return n if options.filter is None else OVERFETCH * n


def _with_records(
    query: Query, nearest: tuple[Array, Array], records: Mapping[int, Record]
) -> list[tuple[Record, int]]:
    """Return items with their distances; items removed since the scan have no record."""
    pairs = zip(nearest[0].tolist(), nearest[1].tolist(), strict=True)
    found = ((records.get(number), distance) for number, distance in pairs)
    return [(record, distance) for record, distance in found if record is not None and not _is_query(record, query)]


def _rank(query: Query, options: SearchOptions, passed: list[tuple[Record, int]]) -> list[Hit]:
    """Return the best of the items that passed, re-ranked if the options ask for it."""
    most = options.k if options.radius is None else options.limit
    scores = np.full(len(passed), np.nan)
    if _is_reranked(query, options) and passed:
        assert query.projection is not None
        passed = passed if options.radius is not None else passed[: _n_candidates(query, options)]
        codes = np.frombuffer(b"".join(bytes(record.code) for record, _ in passed), np.uint8).reshape(len(passed), -1)
        products: Array = unpack_signs(codes, len(query.projection)) @ query.projection.astype(np.float32)
        best = np.argsort(-products, kind="stable")  # stable, so that distance breaks ties
        passed, scores = [passed[row] for row in best.tolist()], products[best].astype(np.float64)
    passed, scores = passed[:most], scores[:most]
    ranks = competition_ranks(scores, np.array([distance for _, distance in passed]))
    return [
        Hit.from_record(record, distance, score=None if score != score else score, rank=rank)  # NaN: not re-ranked
        for (record, distance), score, rank in zip(passed, scores.tolist(), ranks, strict=True)
    ]


def _hits_of(query: Query, found: Array, records: Mapping[int, Record]) -> list[Hit]:
    ranks = competition_ranks(found["score"], found["distance"])
    return [
        Hit.from_record(
            records[number],
            distance,
            score=None if score != score else score,  # NaN
            rank=rank,
            found_by=(_FOUND_BY if records[number].modality == query.modality else _FOUND_BY_NAMES)[tuple(source)],
        )
        for (number, distance, score, *source), rank in zip(found.tolist(), ranks, strict=True)
    ]
