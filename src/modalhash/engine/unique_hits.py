"""Hits without near-duplicates: of several that are the same, or nearly, the best is kept.

Two hits of one modality are the same if a call of :meth:`~modalhash.engine.Engine.duplicates` that is still remembered
put them into one group, or if their embeddings are as near as that call wants them (texts have to share most of their
words as well). What the pixels of photos tell is therefore known after such a call only: a search reads no files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from modalhash._typing import Array
from modalhash.engine.answer import Hit
from modalhash.engine.near_duplicates import DUPLICATE_THRESHOLD, SHARED_WORDS, share_of_words, words_in
from modalhash.engine.query import SearchRequest
from modalhash.engine.refinement import Refinement
from modalhash.store import Key

WIDER = (2, 8, 32)
"""How many times as many hits are asked for, as long as too few of them are left."""


@dataclass(frozen=True)
class SameHits:
    """Tells which hits are the same, or nearly."""

    refinement: Refinement
    groups: Mapping[Key, int]
    """The group of duplicates of an item, where one is remembered."""

    def first_of_each(self, hits: Sequence[Hit]) -> list[Hit]:
        """Return hits in their order, without those that are the same as one before; ranks count what is left."""
        kept: list[Hit] = []
        groups: set[int] = set()
        seen: dict[str, list[tuple[Array, str | None]]] = {}
        before = None
        for hit in hits:
            group = self.groups.get((hit.modality, hit.id))
            embedding = self._embedding(hit)
            others = seen.setdefault(hit.modality, [])
            if group in groups or (embedding is not None and _is_near(embedding, hit.text, others)):
                continue
            if group is not None:
                groups.add(group)
            if embedding is not None:
                others.append((embedding, hit.text))
            rank = kept[-1].rank if kept and hit.rank == before else len(kept) + 1
            before = hit.rank
            kept.append(hit.changed(rank=rank))
        return kept

    def _embedding(self, hit: Hit) -> Array | None:
        """Return the embedding of a hit, scaled to length 1; None if it has none, or one that says nothing."""
        if hit.refinement is None:
            return None
        values = self.refinement.embedding_of(hit.modality, np.frombuffer(hit.refinement, np.int8)).astype(np.float32)
        length = np.linalg.norm(values)
        return None if not length else np.asarray(values / length)


def answer_unique(
    requests: Sequence[SearchRequest], answer: Callable[[Sequence[SearchRequest]], list[list[Hit]]], same: SameHits
) -> list[list[Hit]]:
    """Return the hits of each request, without near-duplicates where its options say so.

    Parameters
    ----------
    requests : the requests
    answer : returns the hits of requests that do not say so
    same : which hits are the same
    """
    answers: list[list[Hit]] = [[] for _ in requests]
    waiting = list(range(len(requests)))
    for times in WIDER:
        asked = [_wider(requests[row], times) for row in waiting]
        too_few = []
        for row, request, hits in zip(waiting, asked, answer(asked) if asked else [], strict=True):
            wanted = _n_hits(requests[row])
            answers[row] = same.first_of_each(hits)[:wanted] if requests[row].options.unique else hits
            if wanted is not None and len(answers[row]) < wanted and len(hits) == _n_hits(request):
                too_few.append(row)  # and there may be more
        waiting = too_few
    return answers


def _n_hits(request: SearchRequest) -> int | None:
    """Return how many hits a request asks for; None for all."""
    return request.options.k if request.options.radius is None else request.options.limit


def _wider(request: SearchRequest, times: int) -> SearchRequest:
    """Return a request for more hits, near-duplicates or not, where they are to be left out."""
    options = request.options
    if not options.unique:
        return request
    k = times * options.k
    shortlist = None if options.shortlist is None else max(options.shortlist, k)
    limit = None if options.limit is None else times * options.limit
    return replace(request, options=replace(options, k=k, shortlist=shortlist, limit=limit, unique=False))


def _is_near(embedding: Array, text: str | None, others: Sequence[tuple[Array, str | None]]) -> bool:
    if not others:
        return False
    near = np.flatnonzero(np.stack([other for other, _ in others]) @ embedding >= DUPLICATE_THRESHOLD).tolist()
    if text is None:
        return bool(near)
    words = words_in(text)
    return any(share_of_words(words, words_in(others[row][1] or "")) >= SHARED_WORDS for row in near)
