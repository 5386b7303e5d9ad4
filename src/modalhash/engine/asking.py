"""Prepared queries, each with its own wishes, answered together: one walk over the index for as many as possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypedDict

import numpy as np

from modalhash._typing import Array, Codes
from modalhash.engine.answers import Hit, scores_of
from modalhash.index import SearchIndex
from modalhash.store import KINDS, Key, Record, Store
from modalhash.validation import check_choice, check_int

SHORTLIST, MIN_SHORTLIST = 10, 200
"""``asymmetric=True`` re-ranks 10 times k items, and at least 200."""
OVERFETCH, OVERFETCH_GROWTH, MAX_OVERFETCH = 4, 16, 4096
"""A search with a filter fetches 4 times as many items as it needs; then, as long as too few pass, 16 times as many
again; above 4,096 it is quicker to request the store which items pass."""
K_BUCKET_RATIO = 4
"""Queries that want 20 and 30 hits are scanned together, those that want 20 and 2,000 are not."""


class OptionValues(TypedDict, total=False):
    """The options of a search as keyword arguments: those of :class:`SearchOptions`, where they are explained."""

    k: int
    radius: int | None
    want: str | Sequence[str] | None
    labels: str | Sequence[str]
    kind: str | None
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
    asymmetric : bool
        Re-rank the ``shortlist`` nearest by the query's real-valued projections, which tell a clear difference from
        a near miss; codes alone do not.
    shortlist : int, optional
        The number of items to re-rank; 10 times ``k`` and at least 200 by default.
    """

    k: int = 20
    radius: int | None = None
    want: tuple[str, ...] | None = None
    labels: tuple[str, ...] = ()
    kind: str | None = None
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
    """Real-valued, to re-rank the shortlist by if the options request for it."""
    exclude: Key | None = None
    """The key of an item that is never a hit: the query itself."""

    @property
    def reranked(self) -> bool:
        """Whether hits are ordered by the query's projections."""
        return self.options.asymmetric and self.projection is not None

    @property
    def filtered(self) -> bool:
        """Whether items may fail the filter."""
        return bool(self.options.labels or self.options.kind)

    @property
    def enough(self) -> int:
        """The number of items that have to pass the filter."""
        options = self.options
        if not self.reranked:
            return options.k
        return max(SHORTLIST * options.k, MIN_SHORTLIST) if options.shortlist is None else options.shortlist

    @property
    def fetch(self) -> int:
        """The number of items to fetch first: the query finds itself, and others may not pass the filter."""
        n = self.enough + (self.exclude is not None)
        return OVERFETCH * n if self.filtered else n

    def passes(self, record: Record) -> bool:
        """Whether an item may be a hit."""
        options = self.options
        return (
            record.key != self.exclude
            and options.kind in (None, record.kind)
            and (not options.labels or set(options.labels) <= set(map(str, record.labels)))
        )


class Found(NamedTuple):
    """Numbers and distances of one query, and whether there may be more than these."""

    numbers: Array
    distances: Array
    cut: bool


Groups = Callable[[tuple[str, ...] | None], list[int] | None]
"""Groups of the index for names of modalities."""


def answers(requests: Sequence[SearchRequest], index: SearchIndex, store: Store, groups: Groups) -> list[list[Hit]]:
    """Hits of each query, by (distance, order of adding), or by score where there are projections."""
    found = walked(requests, index, groups)
    numbers = [one.numbers for one in found]
    records = store.records(np.concatenate(numbers)) if numbers else {}
    done = []
    for request, one in zip(requests, found, strict=True):
        passed = passing(request, one, records)
        n = request.fetch
        while one.cut and len(passed) < request.enough and request.filtered:
            n *= OVERFETCH_GROWTH
            if n > MAX_OVERFETCH:
                passed = among_matching(request, index, store, groups)
                break
            one = nearest(request, n, index, groups)
            passed = passing(request, one, store.records(one.numbers))
        done.append(ranked(request, passed))
    return done


def walked(requests: Sequence[SearchRequest], index: SearchIndex, groups: Groups) -> list[Found]:
    """The nearest of each query; those that look in the same place for a like number walk together."""
    together: dict[tuple[tuple[str, ...] | None, int | None, int], list[int]] = {}
    for place, request in enumerate(requests):
        n = 1 if request.options.radius is not None else rounded(request.fetch)
        together.setdefault((request.options.want, request.options.radius, n), []).append(place)
    found: dict[int, Found] = {}
    for (want, radius, n), places in together.items():
        codes = np.stack([requests[place].code for place in places])
        if radius is not None:
            hits = index.search(codes, radius=radius, group=groups(want))
        else:
            hits = index.search(codes, k=min(n, max(1, len(index))), group=groups(want))
        for row, place in enumerate(places):
            numbers, distances = hits[row]
            most = len(numbers) if radius is not None else requests[place].fetch
            cut = radius is None and len(numbers) >= most
            found[place] = Found(numbers[:most], distances[:most], cut)
    return [found[place] for place in range(len(requests))]


def nearest(request: SearchRequest, n: int, index: SearchIndex, groups: Groups) -> Found:
    """The ``n`` nearest of one query."""
    numbers, distances = index.search(
        request.code[None], k=min(n, max(1, len(index))), group=groups(request.options.want)
    )[0]
    return Found(numbers, distances, len(numbers) >= n)


def passing(request: SearchRequest, found: Found, records: dict[int, Record]) -> list[tuple[Record, int]]:
    """Items that pass the filter, with distances; one that went away since the search is passed over."""
    pairs = zip(found.numbers.tolist(), found.distances.tolist(), strict=True)
    kept = ((records.get(number), distance) for number, distance in pairs)
    return [(record, distance) for record, distance in kept if record is not None and request.passes(record)]


def among_matching(
    request: SearchRequest, index: SearchIndex, store: Store, groups: Groups
) -> list[tuple[Record, int]]:
    """Few items pass: let the store name them, and search among these alone."""
    numbers = store.matching(labels=request.options.labels, kind=request.options.kind)
    n = min(request.enough + (request.exclude is not None), max(1, len(numbers)))
    hits = index.search(request.code[None], k=n, ids=numbers, group=groups(request.options.want))
    ids, distances = hits[0]
    return passing(request, Found(ids, distances, False), store.records(ids))


def ranked(request: SearchRequest, passed: list[tuple[Record, int]]) -> list[Hit]:
    """The best of those that passed."""
    if not request.reranked or not passed:
        most = None if request.options.radius is not None else request.options.k
        return [Hit.from_record(record, distance) for record, distance in passed[:most]]
    passed = passed if request.options.radius is not None else passed[: request.enough]
    assert request.projection is not None
    scores = scores_of(request.projection, [record for record, _ in passed])
    best = np.argsort(-scores, kind="stable")  # stable: the order by distance decides between equals
    best = best if request.options.radius is not None else best[: request.options.k]
    return [replace(Hit.from_record(*passed[i]), score=float(scores[i])) for i in best.tolist()]


def rounded(n: int) -> int:
    """The next larger one of 32, 128, 512 and so on."""
    step = 32
    while step < n:
        step *= K_BUCKET_RATIO
    return step
