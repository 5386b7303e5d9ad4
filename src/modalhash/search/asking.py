"""Prepared queries, each with its own wishes, answered together: one walk over the index for as many as possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from modalhash._typing import Array, Codes
from modalhash.search.answers import Hit, as_hit, scores_of
from modalhash.search.backends import SearchIndex
from modalhash.search.records import KINDS, Record
from modalhash.search.store import Store
from modalhash.validation import check_choice, check_int

SHORTLIST = 10
"""Times k: how many items ``asymmetric=True`` ranks anew, at least 200."""
SPARE, MORE, MOST = 4, 16, 4096
"""A search with a filter looks at 4 times as many items as it needs; then, as long as too few pass, at 16 times as many
again; above 4,096 it is quicker to ask the store who passes."""
STEP = 4
"""Queries that want 20 and 30 hits walk together, those that want 20 and 2,000 do not."""


@dataclass(frozen=True)
class Ask:
    """One prepared query and what is wanted of it; see :meth:`modalhash.search.engine.Engine.search`."""

    code: Codes
    """Packed, one row."""
    projection: Array | None = None
    """Real-valued, to rank the ``shortlist`` by."""
    k: int = 20
    radius: int | None = None
    want: tuple[str, ...] | None = None
    labels: tuple[str, ...] = ()
    kind: str | None = None
    shortlist: int | None = None
    leave_out: str | None = None
    """The store's id of the query itself."""

    def __post_init__(self) -> None:
        check_int(self.k, "k", at_least=1)
        if self.kind is not None:
            check_choice(self.kind, "kind", KINDS)
        if self.shortlist is not None:
            check_int(self.shortlist, "shortlist", at_least=self.k)

    @property
    def enough(self) -> int:
        """Items that have to pass."""
        if self.projection is None:
            return self.k
        return max(SHORTLIST * self.k, 200) if self.shortlist is None else self.shortlist

    @property
    def looks_at(self) -> int:
        """Items to look at first: the query finds itself, and others may not pass the filter."""
        n = self.enough + (self.leave_out is not None)
        return SPARE * n if self.labels or self.kind else n

    def passes(self, record: Record) -> bool:
        """Whether an item may be a hit."""
        return (
            record.id != self.leave_out
            and self.kind in (None, record.kind)
            and (not self.labels or set(self.labels) <= set(map(str, record.labels)))
        )


class Found(NamedTuple):
    """Numbers and distances of one query, and whether there may be more than these."""

    numbers: Array
    distances: Array
    cut: bool


Groups = Callable[[tuple[str, ...] | None], list[int] | None]
"""Groups of the index for names of modalities."""


def answers(asks: Sequence[Ask], index: SearchIndex, store: Store, groups: Groups) -> list[list[Hit]]:
    """Hits of each query, by (distance, order of adding), or by score where there are projections."""
    found = walked(asks, index, groups)
    numbers = [one.numbers for one in found]
    records = store.records(np.concatenate(numbers)) if numbers else {}
    done = []
    for ask, one in zip(asks, found, strict=True):
        passed = passing(ask, one, records)
        n = ask.looks_at
        while one.cut and len(passed) < ask.enough and (ask.labels or ask.kind):
            n *= MORE
            if n > MOST:
                passed = among_matching(ask, index, store, groups)
                break
            one = nearest(ask, n, index, groups)
            passed = passing(ask, one, store.records(one.numbers))
        done.append(ranked(ask, passed))
    return done


def walked(asks: Sequence[Ask], index: SearchIndex, groups: Groups) -> list[Found]:
    """The nearest of each query; those that look in the same place for a like number walk together."""
    together: dict[tuple[tuple[str, ...] | None, int | None, int], list[int]] = {}
    for place, ask in enumerate(asks):
        n = 1 if ask.radius is not None else rounded(ask.looks_at)
        together.setdefault((ask.want, ask.radius, n), []).append(place)
    found: dict[int, Found] = {}
    for (want, radius, n), places in together.items():
        codes = np.stack([asks[place].code for place in places])
        if radius is not None:
            hits = index.search(codes, radius=radius, group=groups(want))
        else:
            hits = index.search(codes, k=min(n, max(1, len(index))), group=groups(want))
        for row, place in enumerate(places):
            numbers, distances = hits[row]
            most = len(numbers) if radius is not None else asks[place].looks_at
            cut = radius is None and len(numbers) >= most
            found[place] = Found(numbers[:most], distances[:most], cut)
    return [found[place] for place in range(len(asks))]


def nearest(ask: Ask, n: int, index: SearchIndex, groups: Groups) -> Found:
    """The ``n`` nearest of one query."""
    numbers, distances = index.search(ask.code[None], k=min(n, max(1, len(index))), group=groups(ask.want))[0]
    return Found(numbers, distances, len(numbers) >= n)


def passing(ask: Ask, found: Found, records: dict[int, Record]) -> list[tuple[Record, int]]:
    """Items that pass the filter, with distances; one that went away since the search is passed over."""
    pairs = zip(found.numbers.tolist(), found.distances.tolist(), strict=True)
    kept = ((records.get(number), distance) for number, distance in pairs)
    return [(record, distance) for record, distance in kept if record is not None and ask.passes(record)]


def among_matching(ask: Ask, index: SearchIndex, store: Store, groups: Groups) -> list[tuple[Record, int]]:
    """Few items pass: let the store name them, and search among these alone."""
    numbers = store.matching(labels=ask.labels, kind=ask.kind)
    n = min(ask.enough + (ask.leave_out is not None), max(1, len(numbers)))
    hits = index.search(ask.code[None], k=n, ids=numbers, group=groups(ask.want))
    ids, distances = hits[0]
    return passing(ask, Found(ids, distances, False), store.records(ids))


def ranked(ask: Ask, passed: list[tuple[Record, int]]) -> list[Hit]:
    """The best of those that passed."""
    if ask.projection is None or not passed:
        most = None if ask.radius is not None else ask.k
        return [as_hit(record, distance) for record, distance in passed[:most]]
    passed = passed if ask.radius is not None else passed[: ask.enough]
    scores = scores_of(ask.projection, [record for record, _ in passed])
    best = np.argsort(-scores, kind="stable")  # stable: the order by distance decides between equals
    best = best if ask.radius is not None else best[: ask.k]
    return [replace(as_hit(*passed[i]), score=float(scores[i])) for i in best.tolist()]


def rounded(n: int) -> int:
    """The next larger one of 32, 128, 512 and so on."""
    step = 32
    while step < n:
        step *= STEP
    return step
