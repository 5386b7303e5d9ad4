r"""Match the words of a query in the texts of items, and join the result with the hits of codes.

Codes find items that share labels with a query, but do not know words that no training item had. Both rankings are
joined by reciprocal rank: an item's score is :math:`\sum 1 / (60 + r)` over its ranks [1]_. If no item has a word of
the query, the known words nearest in meaning are searched, if the encoder knows them.

:func:`expand_query` is pseudo-relevance feedback [2]_: it moves the query's posterior :math:`q` towards the posteriors
:math:`p_t` of the best stored texts :math:`t` by BM25 that contain all its words. Texts that name the words early count
more. The code is not changed.

.. math:: q' = \frac{q + \beta \sum_t w_t p_t}{1 + \beta}, \qquad w_t \propto 1 / (1 + \text{words before in } t)

References
----------
.. [1] G. V. Cormack, C. L. A. Clarke, S. Büttcher: Reciprocal rank fusion outperforms Condorcet and individual rank
  learning methods. SIGIR 2009.
.. [2] J. J. Rocchio: Relevance feedback in information retrieval. In: The SMART Retrieval System, 1971.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from modalhash.core.typing import Codes
from modalhash.engine.search.query import Asked, Query
from modalhash.engine.settings import SearchOptions
from modalhash.store import PICTURE_TEXT, Comparison, Record, Store, all_of, any_value

if TYPE_CHECKING:
    from modalhash.engine.search.hits import Hit


RANK_OFFSET = 60
"""Constant of reciprocal rank fusion: the larger it is, the slower the weight of a rank falls."""
IN_PICTURE = "text in the picture"
"""The ``found_by`` of hits that have query words only in the picture's text."""
_LEAST_STEM = 3
"""Number of letters from which a word matches longer words that start with it."""


class WordMatches(NamedTuple):
    """Stored items that contain the words of a query, the best first."""

    texts: list[Record]
    """Texts of the query's own modality that contain all its words, for :func:`expand_query`."""
    items: list[Record]
    """Items that pass the filter."""
    text: str
    """The text whose words the items contain."""
    way: str
    """Their ``found_by``: ``words``, or ``meaning`` if the text is the rewritten one."""


def find_words(asked: Sequence[Asked], store: Store, n_posterior: int) -> list[WordMatches]:
    """Return the word matches of each query, read together; they are empty if a query does not search words."""
    texts = [_numbers_of_texts(*one, store) if n_posterior else [] for one in asked]
    found = [_numbers_of_items(*one, store) for one in asked]
    numbers = {*chain(*texts), *chain.from_iterable(items for items, _, _ in found)}
    records = store.records(sorted(numbers)) if numbers else {}

    def there(numbers: Iterable[int]) -> list[Record]:
        return [records[number] for number in numbers if number in records]

    return [
        WordMatches(there(own), there(items), text, way) for own, (items, text, way) in zip(texts, found, strict=True)
    ]


def _numbers_of_texts(query: Query, options: SearchOptions, store: Store) -> list[int]:
    if query.text is None or query.vector is None or not options.hybrid:
        return []
    own = Comparison("modality", "=", str(query.modality))
    numbers: list[int] = store.search_text(query.text, where=own, limit=N_TEXTS, match_all=True).tolist()
    return numbers


def _numbers_of_items(query: Query, options: SearchOptions, store: Store) -> tuple[list[int], str, str]:
    """Return the items that contain words of the text, or else of the rewritten text; the text, and the way."""
    if query.text is None or not options.hybrid or options.radius is not None:
        return [], "", ""
    where = all_of(None if options.want is None else any_value("modality", options.want), options.filter)
    numbers: list[int] = store.search_text(query.text, where=where, limit=options.k).tolist()
    if numbers or query.rewritten_text in (None, query.text):
        return numbers, query.text, "words"
    numbers = store.search_text(query.rewritten_text, where=where, limit=options.k).tolist()
    return numbers, query.rewritten_text, "meaning"


def with_distances(code: Codes, items: Sequence[Record]) -> list[tuple[Record, int]]:
    """Return items with the Hamming distances of their codes from a query's."""
    codes = np.frombuffer(b"".join(bytes(record.code) for record in items), np.uint8).reshape(len(items), len(code))
    return list(zip(items, np.bitwise_count(code ^ codes).sum(axis=1).tolist(), strict=True))


def join_both(by_picture: Sequence[Hit], by_words: Sequence[Hit], k: int) -> list[Hit]:
    """Return the k best hits of a picture with words by reciprocal rank, with the lower of both confidences.

    An item that only one ranking contains is ranked after the last hit of the other.
    """
    rankings = [
        {(hit.modality, hit.id): (place, hit) for place, hit in enumerate(hits, 1)} for hits in (by_picture, by_words)
    ]
    scores: dict[tuple[str, str], float] = {}
    for ranking in rankings:
        for key in {**rankings[0], **rankings[1]}:
            place = ranking[key][0] if key in ranking else len(ranking) + 1
            scores[key] = scores.get(key, 0.0) + 1 / (RANK_OFFSET + place)
    joined = []
    for rank, key in enumerate(sorted(scores, key=lambda key: -scores[key])[:k], 1):
        both = [ranking[key][1] for ranking in rankings if key in ranking]
        certain = [hit.confidence for hit in both if hit.confidence is not None]
        found_by = tuple(dict.fromkeys(way for hit in both for way in hit.found_by))
        least = min(certain) if len(certain) == len(both) == len(rankings) else None
        joined.append(both[0].changed(rank=rank, score=scores[key], found_by=found_by, confidence=least))
    return joined


def ways_found(hit: Hit, text: str, way: str) -> tuple[str, ...]:
    """Return ``found_by`` of a hit that matches words: ``way``, and IN_PICTURE for words only in the picture."""
    if PICTURE_TEXT not in hit.extra:
        return (way,)
    words = set(_words(text))
    others = (hit.id, hit.text, *(value for name, value in hit.extra.items() if name != PICTURE_TEXT))
    elsewhere = _found(words, " ".join(map(str, others)))
    in_picture = _found(words, str(hit.extra[PICTURE_TEXT])) - elsewhere
    return (*((way,) if elsewhere or not in_picture else ()), *((IN_PICTURE,) if in_picture else ()))


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.casefold())


def _found(words: set[str], text: str) -> set[str]:
    own = set(_words(text))
    return {word for word in words if any(_are_alike(word, other) for other in own)}


def _are_alike(one: str, other: str) -> bool:
    """Return whether two words differ in their ending at most, like *boat* and *boats*."""
    short, long = sorted((one, other), key=len)
    return one == other or (len(short) >= _LEAST_STEM and long.startswith(short))


def reciprocal_rank_fusion(by_code: Sequence[Hit], by_words: Sequence[Hit], k: int) -> list[Hit]:
    """Return the k best of two rankings by reciprocal rank; word matches win ties."""
    scores: dict[tuple[str, str], float] = {}
    hits: dict[tuple[str, str], Hit] = {}
    found_by: dict[tuple[str, str], tuple[str, ...]] = {}
    for ranking in (by_words, by_code):
        for position, hit in enumerate(ranking, 1):
            key = (hit.modality, hit.id)
            scores[key] = scores.get(key, 0.0) + 1 / (RANK_OFFSET + position)
            found_by[key] = (*hit.found_by, *found_by.get(key, ()))
            hits[key] = hit
    best = sorted(scores, key=lambda key: -scores[key])  # stable, so that word matches stay first
    return [hits[key].changed(found_by=found_by[key], rank=rank) for rank, key in enumerate(best[:k], 1)]


WEIGHT, N_TEXTS = 1.0, 30
"""β, and the largest number of texts: chosen on folds, benchmarks/quality/named_things.py."""
UNFOUND = 9
"""Words before, if a text has the query's words in another form."""
_WORD = re.compile(r"[^\W_]+")


def expand_query(query: Query, texts: Sequence[Record], n_posterior: int) -> Query:
    """Return the query with its posterior moved towards those of texts with all its words."""
    found = [record for record in texts if len(record.refinement or b"") >= n_posterior]
    if not found or query.text is None or query.vector is None:
        return query
    asked = set(_WORD.findall(query.text.casefold()))
    weights = np.array([1 / (1 + _words_before(asked, record.text)) for record in found])
    posteriors = np.array([np.frombuffer(record.refinement or b"", np.int8)[:n_posterior] for record in found])
    vector = query.vector.copy()
    moved = (vector[:n_posterior] + WEIGHT * (weights / weights.sum()) @ posteriors) / (1 + WEIGHT)
    vector[:n_posterior] = np.rint(moved)
    return replace(query, vector=vector)


def _words_before(asked: set[str], text: str | None) -> int:
    """Return the number of words before the first one in ``asked``."""
    words = _WORD.findall((text or "").casefold())
    return next((place for place, word in enumerate(words) if word in asked), UNFOUND)
