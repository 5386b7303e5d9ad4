r"""Words beside codes: items whose own texts have the words of a query, joined with those that the codes find.

Codes find what shares labels with a query; they do not know a word that no training item had. Both rankings are joined
by reciprocal rank, which needs no common scale: an item gets :math:`\sum 1 / (60 + r)` over its ranks [1]_. Where no
item has a word of the query, and the encoder understands words that training texts did not have, it is searched for the
known words nearest to them in meaning: ``Weihnachten`` finds texts and captions that say ``christmas``.

References
----------
.. [1] G. V. Cormack, C. L. A. Clarke, S. Büttcher: Reciprocal rank fusion outperforms Condorcet and individual rank
   learning methods. SIGIR 2009.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from modalhash.core.typing import Codes
from modalhash.engine.search.query import SearchRequest
from modalhash.store import PICTURE_TEXT, Comparison, Filter, Record, Store, all_of, any_value

if TYPE_CHECKING:
    from modalhash.engine.search.hits import Hit


RANK_OFFSET = 60
"""The constant of the paper, which says how slowly the weight of a rank falls."""
IN_PICTURE = "text in the picture"
"""What hits are found by that have words of the query in the picture, and nowhere else."""
_LEAST_STEM = 3
"""Letters of the shortest word that others may begin with and be alike."""


def match_words(
    text: str, code: Codes, where: Filter | None, want: Sequence[str] | None, store: Store, *, limit: int
) -> list[tuple[Record, int]]:
    """Return the items that have words of the text, the best first, and the distances of their codes."""
    where = all_of(None if want is None else any_value("modality", want), where)
    numbers = store.search_text(text, where=where, limit=limit).tolist()
    records = store.records(numbers) if numbers else {}
    found = [records[number] for number in numbers if number in records]
    if not found:
        return []
    codes = np.frombuffer(b"".join(bytes(record.code) for record in found), np.uint8).reshape(len(found), -1)
    distances: list[int] = np.bitwise_count(code ^ codes).sum(axis=1).tolist()
    return list(zip(found, distances, strict=True))


def join_both(by_picture: Sequence[Hit], by_words: Sequence[Hit], k: int) -> list[Hit]:
    """Return the k best hits of a picture with words, by reciprocal rank; each is as certain as the less certain one.

    An item that only one of the two found counts for the other as if it came after all that it found.
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
    """Return what found a hit that has words of a text: ``way``, and the picture for words that only its text has."""
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
    """Return the words that a text has."""
    own = set(_words(text))
    return {word for word in words if any(_are_alike(word, other) for other in own)}


def _are_alike(one: str, other: str) -> bool:
    """Return whether two words differ in their ending at most, as *boat* and *boats*, which the store finds alike."""
    short, long = sorted((one, other), key=len)
    return one == other or (len(short) >= _LEAST_STEM and long.startswith(short))


def reciprocal_rank_fusion(by_code: Sequence[Hit], by_words: Sequence[Hit], k: int) -> list[Hit]:
    """Return the k best of two rankings, by reciprocal rank; between equals, what has the words comes first."""
    scores: dict[tuple[str, str], float] = {}
    hits: dict[tuple[str, str], Hit] = {}
    found_by: dict[tuple[str, str], tuple[str, ...]] = {}
    for ranking in (by_words, by_code):
        for position, hit in enumerate(ranking, 1):
            key = (hit.modality, hit.id)
            scores[key] = scores.get(key, 0.0) + 1 / (RANK_OFFSET + position)
            found_by[key] = (*hit.found_by, *found_by.get(key, ()))
            hits[key] = hit
    best = sorted(scores, key=lambda key: -scores[key])  # stable: words were first
    return [hits[key].changed(found_by=found_by[key], rank=rank) for rank, key in enumerate(best[:k], 1)]


# -- Feedback: the words of a query stand in texts of the engine, and what is known of these texts is known of the
# query.
#
# A word alone says little to an encoder that learned from whole texts. But where stored texts have all words of a
# query, their posteriors, which labels went into, tell what the words are about; by them the words find pictures too.
# Before a search, the posterior :math:`q` of the query moves towards theirs, as Rocchio's feedback does [1]_:
#
# .. math:: q' = \frac{q + \beta \sum_t w_t p_t}{1 + \beta}, \qquad w_t \propto 1 / (1 + \text{words before in } t)
#
# over the best texts :math:`t` by BM25: what a text names first is what it is about, and a hot beverage that is also
# called coffee counts for more than a colour that is. The code stays what it is: distances are those of the query
# itself.
#
# References
# ----------
# .. [1] J. J. Rocchio: Relevance feedback in information retrieval. In: The SMART Retrieval System, 1971.

WEIGHT, N_TEXTS = 1.0, 30
"""β, and the texts that are taken at most: chosen on folds, benchmarks/quality/named_things.py."""
UNFOUND = 9
"""Words before, where a text has the query's words in another form."""
_WORD = re.compile(r"[^\W_]+")


def expand_query(request: SearchRequest, store: Store, n_posterior: int) -> SearchRequest:
    """Return a request whose posterior, the first values of its vector, knows texts that have all its words."""
    if request.text is None or request.vector is None or not request.options.hybrid or not n_posterior:
        return request
    own = Comparison("modality", "=", str(request.modality))
    numbers = store.search_text(request.text, where=own, limit=N_TEXTS, match_all=True).tolist()
    records = store.records(numbers) if numbers else {}
    found = [records[number] for number in numbers if number in records]
    found = [record for record in found if len(record.refinement or b"") >= n_posterior]
    if not found:
        return request
    asked = set(_WORD.findall(request.text.casefold()))
    weights = np.array([1 / (1 + _words_before(asked, record.text)) for record in found])
    posteriors = np.array([np.frombuffer(record.refinement or b"", np.int8)[:n_posterior] for record in found])
    vector = request.vector.copy()
    moved = (vector[:n_posterior] + WEIGHT * (weights / weights.sum()) @ posteriors) / (1 + WEIGHT)
    vector[:n_posterior] = np.rint(moved)
    return replace(request, vector=vector)


def _words_before(asked: set[str], text: str | None) -> int:
    """Return how many words stand before the first that is asked for."""
    words = _WORD.findall((text or "").casefold())
    return next((place for place, word in enumerate(words) if word in asked), UNFOUND)
