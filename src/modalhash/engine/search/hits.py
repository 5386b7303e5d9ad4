"""From requests to hits: scan the index as rarely as possible, then filter, order and score."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

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
from modalhash.engine.search.ordering import Ranked, Ranker, competition_ranks, pad
from modalhash.engine.search.photo_words import TEXT
from modalhash.engine.search.query import QueryPart, SearchRequest
from modalhash.engine.search.refinement import Refinement
from modalhash.engine.search.text_match import (
    IN_PICTURE,
    expand_query,
    join_both,
    match_words,
    reciprocal_rank_fusion,
    ways_found,
)
from modalhash.index import Index
from modalhash.store import Record, Store

OVERFETCH, MAX_OVERFETCH = 4, 4096
"""A search with a filter fetches 4 times the items it needs. If too few pass, the fraction that passed determines the
next attempt; above 4,096 it is faster to search only among the items that the store says pass."""
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

Groups = Mapping[str, int]
"""Group of the index of each modality."""


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
    code: str = ""
    """Hexadecimal, the most significant bit first."""
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
            bytes(record.code).hex(),
            refinement=record.refinement,
            **more,
        )

    def changed(self, **fields: Any) -> Hit:
        """Return a copy with other values of some fields, seven times as fast as ``dataclasses.replace``."""
        other = object.__new__(Hit)
        other.__dict__.update(self.__dict__, **fields)
        return other

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, without empty values (except labels) and the refinement vector."""
        values = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self.__dict__.items()
            if name != "refinement" and value is not None and value not in ({}, ()) and value is not False
        }
        return {**values, "labels": list(self.labels)}


class _Candidates(NamedTuple):
    """Row ids and distances of the nearest items of one query, and whether there may be more."""

    numbers: Array
    distances: Array
    more: bool


@dataclass(frozen=True)
class ConfidenceScorer:
    """Estimates the confidence of hits, and drops those below ``min_confidence``."""

    confidence: Confidence
    refinement: Refinement
    n_bits: int

    def apply(self, request: SearchRequest, hits: list[Hit]) -> list[Hit]:
        """Return the hits of a request with confidence; hits without a refinement vector have none."""
        judged = list(hits)
        kinds: dict[tuple[str, str], list[int]] = {}
        for row, hit in enumerate(hits):
            if hit.refinement is not None:
                kinds.setdefault((hit.modality, hit.kind), []).append(row)
        if request.vector is None:
            return judged
        for (modality, kind), rows in kinds.items():
            found = self._probabilities(request, modality, kind, [hits[row] for row in rows])
            if found is None:
                continue
            values, weak_below = found
            for row, value in zip(rows, values.tolist(), strict=True):
                weak = value < weak_below and not {"words", IN_PICTURE} & {*hits[row].found_by}
                judged[row] = hits[row].changed(confidence=round(value, 4), weak=weak)
        least = request.options.min_confidence
        return judged if least is None else [hit for hit in judged if (hit.confidence or 0) >= least]

    def _probabilities(
        self, request: SearchRequest, modality: str, kind: str, hits: list[Hit]
    ) -> tuple[Array, float] | None:
        """Return the confidence of hits in the query part that fits worst, and the limit of weak hits."""
        assert request.vector is not None
        codes = np.frombuffer(bytes.fromhex("".join(hit.code for hit in hits)), np.uint8).reshape(len(hits), -1)
        vectors = np.frombuffer(b"".join(hit.refinement or b"" for hit in hits), np.int8).reshape(len(hits), -1)
        within = modality == request.modality
        values, weak_below = np.ones(len(hits)), 0.0
        for part in request.parts or (QueryPart(request.code, request.vector),):
            name = query_name(request.modality, part.vector, self.refinement)
            curve = self.confidence.curves.get(Pair(name, modality, kind))
            if curve is None:
                return None
            features = pair_features(
                part.code, part.vector, codes, vectors, self.refinement, self.n_bits, within=within
            )
            own = curve.probability(features, request.familiarity)
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

    def orders(self, request: SearchRequest) -> bool:
        """Return whether hits are ordered by confidence: those of a few words among pictures.

        Scores of pictures with and without labels are not on one scale, but probabilities are. A caption names many
        labels, which its confidence does not know, so it is ordered by scores.
        """
        if self.refinement.word_codes is None or request.modality != TEXT or request.vector is None:
            return False
        labels = bool(request.vector[: self.refinement.n_posterior].any())
        return not labels or any(part.label is not None for part in request.parts)

    def order(self, request: SearchRequest, hits: list[Hit]) -> list[Hit]:
        """Return the k best hits by decreasing confidence; the order of ties is kept."""
        ordered = sorted(self.apply(request, hits), key=lambda hit: -(hit.confidence or 0))
        values = np.array([hit.confidence or 0 for hit in ordered])
        ranks = competition_ranks(values, np.zeros(len(values)))
        return [hit.changed(rank=rank) for hit, rank in zip(ordered, ranks, strict=True)][: request.options.k]


def search_requests(
    requests: Sequence[SearchRequest],
    index: Index,
    store: Store,
    groups: Groups,
    ranker: Ranker | None = None,
    judge: ConfidenceScorer | None = None,
) -> list[list[Hit]]:
    """Return the hits of each request, ordered by its options."""
    if any(request.words is not None for request in requests):
        return _answer_with_words(requests, index, store, groups, ranker, judge)
    if ranker is not None:
        n_posterior = ranker.refinement.n_posterior if ranker.refinement.knows_labels else 0
        requests = [expand_query(request, store, n_posterior) for request in requests]
    refined = [ranker is not None and request.refined for request in requests]
    by_code = [request for request, own in zip(requests, refined, strict=True) if not own]
    by_vector = [request for request, own in zip(requests, refined, strict=True) if own]
    plain = iter(_answer_by_codes(by_code, index, store, groups))
    ranked = iter(_answer_refined(by_vector, index, store, groups, ranker, judge) if ranker is not None else ())
    answers = [next(ranked if own else plain) for own in refined]
    if judge is None:
        return answers
    return [judge.apply(request, hits) for request, hits in zip(requests, answers, strict=True)]


def _answer_with_words(requests: Sequence[SearchRequest], *rest: Any) -> list[list[Hit]]:
    """Answer requests of which some are pictures with words, joined by reciprocal rank."""
    asked: list[SearchRequest] = []
    for request in requests:
        if request.words is None:
            asked.append(request)
            continue
        most = max(REFINED_RATIO * request.options.k, MIN_REFINED_OF_MANY)
        wide = replace(request.options, k=most, shortlist=None)
        asked += [replace(request, words=None, options=wide), replace(request.words, options=wide)]
    found = iter(search_requests(asked, *rest))
    return [
        next(found) if request.words is None else join_both(next(found), next(found), request.options.k)
        for request in requests
    ]


# -- by codes


def _answer_by_codes(requests: Sequence[SearchRequest], index: Index, store: Store, groups: Groups) -> list[list[Hit]]:
    """Return the hits of each request by distance, then by order of adding, or by score if re-ranked."""
    nearest = _scan_together(requests, index, groups)
    unfiltered = [found.numbers for request, found in zip(requests, nearest, strict=True) if not request.filtered]
    shared = store.records(np.concatenate(unfiltered)) if unfiltered else {}
    answers = []
    for request, candidates in zip(requests, nearest, strict=True):
        if request.filtered:
            passed = _search_filtered(request, candidates, index, store, groups)
        else:
            passed = _with_records(request, candidates, shared)
        answers.append(_join_words(request, _rank(request, passed), store))
    return answers


def _join_words(request: SearchRequest, hits: list[Hit], store: Store) -> list[Hit]:
    """Join hits with items that contain the query's words, if the options ask for it."""
    options = request.options
    if not options.hybrid or request.text is None or options.radius is not None:
        return hits
    for way, text in (("words", request.text), ("meaning", request.rewritten_text)):
        if text is None or (way == "meaning" and text == request.text):
            continue
        by_words = match_words(text, request.code, options.filter, options.want, store, limit=options.k)
        if by_words:
            ranked = {
                (hit.modality, hit.id): hit.changed(found_by=ways_found(hit, text, way))
                for hit in _rank(request, by_words)
            }
            return reciprocal_rank_fusion(hits, [ranked[record.key] for record, _ in by_words], options.k)
    return hits


def _chosen(want: tuple[str, ...] | None, groups: Groups) -> list[int] | None:
    return None if want is None else [groups[name] for name in want if name in groups]


def _n_fetch(request: SearchRequest) -> int:
    n = request.n_candidates + (request.exclude is not None)
    return OVERFETCH * n if request.filtered else n


def _scan_together(requests: Sequence[SearchRequest], index: Index, groups: Groups) -> list[_Candidates]:
    """Find the nearest items, with one scan for all requests of the same modalities and similar k."""
    together: dict[tuple[tuple[str, ...] | None, int | None, int], list[int]] = {}
    for position, request in enumerate(requests):
        n = 1 if request.options.radius is not None else _k_bucket(_n_fetch(request))
        together.setdefault((request.options.want, request.options.radius, n), []).append(position)
    found: dict[int, _Candidates] = {}
    for (want, radius, n), positions in together.items():
        codes = np.stack([requests[position].code for position in positions])
        if radius is not None:
            hits = index.search(codes, radius=radius, group=_chosen(want, groups))
        else:
            hits = index.search(codes, k=min(n, max(1, len(index))), group=_chosen(want, groups))
        for row, position in enumerate(positions):
            numbers, distances = hits[row]
            request = requests[position]
            most: int | None = _n_fetch(request)
            if radius is not None:
                limit = request.options.limit
                most = None if limit is None or request.filtered else limit + (request.exclude is not None)
            more = radius is None and len(numbers) >= _n_fetch(request)
            found[position] = _Candidates(numbers[:most], distances[:most], more)
    return [found[position] for position in range(len(requests))]


def _k_bucket(n: int) -> int:
    bucket = MIN_K_BUCKET
    while bucket < n:
        bucket *= K_BUCKET_RATIO
    return bucket


def _search_filtered(
    request: SearchRequest, candidates: _Candidates, index: Index, store: Store, groups: Groups
) -> list[tuple[Record, int]]:
    """Return the nearest items that pass the filter, from the candidates if enough of them do."""
    where = request.options.filter
    if request.options.radius is not None and len(candidates.numbers) > MAX_OVERFETCH:
        return _filter_within(request, candidates, store)
    passed = _with_records(request, candidates, store.records(candidates.numbers, where=where))
    if not candidates.more or len(passed) >= request.n_candidates:
        return passed
    share = len(passed) / len(candidates.numbers)
    n = math.ceil(2 * request.n_candidates / share) if share else MAX_OVERFETCH + 1
    if n <= MAX_OVERFETCH:
        k = min(n, max(1, len(index)))
        numbers, distances = index.search(request.code[None], k=k, group=_chosen(request.options.want, groups))[0]
        candidates = _Candidates(numbers, distances, len(numbers) >= n)
        passed = _with_records(request, candidates, store.records(candidates.numbers, where=where))
        if not candidates.more or len(passed) >= request.n_candidates:
            return passed
    return _search_matching(request, index, store, groups)


def _search_matching(request: SearchRequest, index: Index, store: Store, groups: Groups) -> list[tuple[Record, int]]:
    """Search only among the items that pass the filter, which is fastest if few do."""
    numbers = store.matching(request.options.filter)
    n = min(request.n_candidates + (request.exclude is not None), max(1, len(numbers)))
    hits = index.search(request.code[None], k=n, ids=numbers, group=_chosen(request.options.want, groups))
    ids, distances = hits[0]
    return _with_records(request, _Candidates(ids, distances, False), store.records(ids))


def _filter_within(request: SearchRequest, candidates: _Candidates, store: Store) -> list[tuple[Record, int]]:
    """Return the items within a radius that pass; compare row ids before reading many records."""
    limit = request.options.limit
    chosen = np.flatnonzero(np.isin(candidates.numbers, store.matching(request.options.filter)))
    chosen = chosen if limit is None else chosen[: limit + (request.exclude is not None)]
    numbers, distances = candidates.numbers[chosen], candidates.distances[chosen]
    return _with_records(request, _Candidates(numbers, distances, False), store.records(numbers))


def _with_records(
    request: SearchRequest, candidates: _Candidates, records: Mapping[int, Record]
) -> list[tuple[Record, int]]:
    """Return candidates with their records; items removed since the scan have none."""
    pairs = zip(candidates.numbers.tolist(), candidates.distances.tolist(), strict=True)
    found = ((records.get(number), distance) for number, distance in pairs)
    return [(record, distance) for record, distance in found if record is not None and record.key != request.exclude]


def _rank(request: SearchRequest, passed: list[tuple[Record, int]]) -> list[Hit]:
    """Return the best of the items that passed, re-ranked if the request asks for it."""
    options = request.options
    most = options.k if options.radius is None else options.limit
    scores = np.full(len(passed), np.nan)
    if request.reranked and passed:
        assert request.projection is not None
        passed = passed if options.radius is not None else passed[: request.n_candidates]
        codes = np.frombuffer(b"".join(bytes(record.code) for record, _ in passed), np.uint8).reshape(len(passed), -1)
        products: Array = unpack_signs(codes, len(request.projection)) @ request.projection.astype(np.float32)
        best = np.argsort(-products, kind="stable")  # stable, so that distance breaks ties
        passed, scores = [passed[row] for row in best.tolist()], products[best].astype(np.float64)
    passed, scores = passed[:most], scores[:most]
    ranks = competition_ranks(scores, np.array([distance for _, distance in passed]))
    return [
        Hit.from_record(record, distance, score=None if score != score else score, rank=rank)  # NaN: not re-ranked
        for (record, distance), score, rank in zip(passed, scores.tolist(), ranks, strict=True)
    ]


# -- by refinement vectors


def _answer_refined(
    requests: Sequence[SearchRequest],
    index: Index,
    store: Store,
    groups: Groups,
    ranker: Ranker,
    judge: ConfidenceScorer | None,
) -> list[list[Hit]]:
    """Return the hits of each request, the shortlist ordered by refinement vectors."""

    def n_hits(request: SearchRequest) -> int:
        return request.options.k * (REFINED_RATIO if judge is not None and judge.orders(request) else 1)

    shortlists = _shortlists(requests, index, groups)
    ranked = [
        _order(request, numbers, distances, index, groups, ranker)
        for request, (numbers, distances) in zip(requests, shortlists, strict=True)
    ]
    first = [
        order.numbers[: _n_first(request, n_hits(request))]
        for request, order in zip(requests, ranked, strict=True)
        if not request.filtered
    ]
    shared = store.records(np.concatenate(first)) if first else {}
    answers = []
    for request, order in zip(requests, ranked, strict=True):
        records = {} if request.filtered else shared
        rows = _first_passing(request, n_hits(request), order, records, store)
        enough = request.options.radius is not None or len(rows) >= request.options.k
        if not enough and request.filtered and len(order.numbers) < len(index):
            matching = store.matching(request.options.filter)
            numbers, distances = _shortlists([request], index, groups, ids=matching)[0]
            order = _order(request, numbers, distances, index, groups, ranker, similar=False)
            rows = _first_passing(request, n_hits(request), order, records, store)
        hits = _refined_hits(request, order, rows, records)
        if judge is not None and judge.orders(request):
            hits = judge.order(request, hits)
        known = {records[number].key: number for number in order.numbers[rows].tolist()}
        answers.append(_join_words(request, _with_shared_labels(request, hits, known, ranker), store))
    return answers


def _n_first(request: SearchRequest, n_hits: int) -> int | None:
    """Return how many records to read first; None for all, with a radius."""
    n = n_hits + (request.exclude is not None)
    if request.options.radius is not None:
        return None
    return OVERFETCH * n if request.filtered else n


def shortlist_size(request: SearchRequest, n_items: int) -> int:
    """Return the number of items to order by their vectors, without ties."""
    if request.options.shortlist is not None:
        return request.options.shortlist
    return max(REFINED_RATIO * request.options.k, MIN_REFINED if n_items <= MANY else MIN_REFINED_OF_MANY)


def _shortlists(
    requests: Sequence[SearchRequest], index: Index, groups: Groups, ids: Array | None = None
) -> list[tuple[Array, Array]]:
    """Return row ids and distances of the items to order, with one scan per group of similar requests."""
    together: dict[tuple[tuple[str, ...] | None, int | None, int], list[int]] = {}
    for position, request in enumerate(requests):
        options = request.options
        n = 0 if options.radius is not None else shortlist_size(request, len(index))
        together.setdefault((options.want, options.radius, n), []).append(position)
    found: dict[int, tuple[Array, Array]] = {}
    for (want, radius, n), positions in together.items():
        codes = np.stack([requests[position].code for position in positions])
        if radius is not None:
            hits = index.search(codes, radius=radius, ids=ids, group=_chosen(want, groups))
        else:
            hits = index.shortlist(codes, n, max_hits=MAX_TIES * n, ids=ids, group=_chosen(want, groups))
        found.update((position, hits[row]) for row, position in enumerate(positions))
    return [found[position] for position in range(len(requests))]


def _order(
    request: SearchRequest,
    numbers: Array,
    distances: Array,
    index: Index,
    groups: Groups,
    ranker: Ranker,
    *,
    similar: bool = True,
) -> Ranked:
    """Order a shortlist by vectors; ``similar`` adds items of the query's modality with similar features."""
    assert request.vector is not None
    want, vector = request.options.want, pad(request.vector, ranker.vectors.width)
    own = None
    if request.modality is not None and (want is None or request.modality in want):
        own = groups.get(request.modality)
    more = np.empty(0, np.int64)
    if similar and request.options.radius is None:
        if (
            ranker.refinement.word_codes is None or request.modality == TEXT
        ):  # otherwise all items are of the query's modality
            n = max(REFINED_RATIO * request.options.k, MIN_REFINED_OF_MANY)
            more = ranker.near_in_meaning(vector, _chosen(want, groups), n)
        if own is not None:
            more = np.union1d(more, ranker.similar(vector, own, request.options.k))
    return ranker.rank(request.code, vector, numbers, distances, index, own_group=own, similar=more)


def _first_passing(
    request: SearchRequest, n_hits: int, order: Ranked, records: dict[int, Record], store: Store
) -> list[int]:
    """Return the positions of the first items that pass the filter, reading records as needed."""
    options = request.options
    most = n_hits if options.radius is None else options.limit or len(order.numbers)
    rows: list[int] = []
    start, size = 0, _n_first(request, n_hits) or len(order.numbers)
    while start < len(order.numbers) and len(rows) < most:
        numbers = order.numbers[start : start + size].tolist()
        if unread := [number for number in numbers if number not in records]:
            records.update(store.records(unread, where=options.filter))
        for row, number in enumerate(numbers, start):
            record = records.get(number)  # None if it does not pass or was removed since the scan
            if record is not None and record.key != request.exclude:
                rows.append(row)
        start, size = start + size, 2 * size
    return rows[:most]


def _with_shared_labels(
    request: SearchRequest, hits: list[Hit], numbers: Mapping[tuple[str, str], int], ranker: Ranker
) -> list[Hit]:
    assert request.vector is not None
    found = np.array([numbers[hit.modality, hit.id] for hit in hits], dtype=np.int64)
    labels = ranker.shared_labels(pad(request.vector, ranker.vectors.width), found)
    return [hit.changed(shared_labels=own) for hit, own in zip(hits, labels, strict=True)]


def _refined_hits(request: SearchRequest, order: Ranked, rows: list[int], records: Mapping[int, Record]) -> list[Hit]:
    numbers, distances, scores = order.numbers[rows], order.distances[rows], order.scores[rows]
    sources = zip(order.by_code[rows].tolist(), order.by_features[rows].tolist(), strict=True)
    return [
        Hit.from_record(
            records[number],
            distance,
            score=None if score != score else score,  # NaN
            rank=rank,
            found_by=(_FOUND_BY if records[number].modality == request.modality else _FOUND_BY_NAMES)[source],
        )
        for number, distance, score, rank, source in zip(
            numbers.tolist(),
            distances.tolist(),
            scores.tolist(),
            competition_ranks(scores, distances),
            sources,
            strict=True,
        )
    ]
