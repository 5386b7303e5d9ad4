r"""Order a shortlist by refinement vectors, or by Hamming distance for items without one, and join rankings.

The score of an item is the inner product of its posterior and the query's, plus the agreement of their codes. Across
modalities whose encoders share a space, the cosine of meanings is added; it alone orders the hits of a query without a
known label. Within the query's modality, the cosine of embeddings is added, and near-duplicates of the query come
first. Items without a vector keep the position that their Hamming distance gives them.

Hits of codes are joined with items that have the query's words, and hits of a picture with those of words, by
reciprocal rank: an item's score is :math:`\sum 1 / (60 + r)` over its ranks [1]_. :func:`refresh` brings the index of
codes to the state of the store, as :class:`Ranker` does with its vectors.

References
----------
.. [1] G. V. Cormack, C. L. A. Clarke, S. Büttcher: Reciprocal rank fusion outperforms Condorcet and individual rank
  learning methods. SIGIR 2009.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from modalhash.core.codes import pack_signs
from modalhash.core.typing import Array, Codes
from modalhash.engine.search.refinement import EMBEDDING_DIMENSIONS, STEP, Refinement
from modalhash.index import FoundRows, HammingIndex, Index, merge_sources
from modalhash.store import PICTURE_TEXT, Revision, Store

if TYPE_CHECKING:
    from modalhash.engine.search.hits import Hit
    from modalhash.index import MilvusIndex

CODE_WEIGHT = 0.1
"""Weight of the agreement of codes, from −1 (no bit) to 1 (all), relative to the product of posteriors."""
MEANING_WEIGHT = 0.15
"""Weight of the cosine of meanings across modalities: chosen on training items, benchmarks/quality/photos.py."""
EMBEDDING_WEIGHT = 0.05
"""Weight of the cosine of embeddings within a modality."""
NEAR_DUPLICATE = 0.995
"""Cosine from which an item of the query's modality is a near-duplicate."""
DUPLICATE_SCORE = 10.0
"""Added to the cosine of near-duplicates, so that they come first."""
SKETCH_SHORTLIST, MAX_SKETCH_SHORTLIST = 64, 1024
"""Items of the query's modality that its sketch adds to the shortlist, without and with ties."""
SHARED_LABELS = 5
"""Largest number of shared labels of a hit."""
CLEAR_LABEL, CLEAR_SHARE = 0.25, 0.5
"""Least value of a label in a posterior that clearly has it: absolute, and relative to the largest."""

RANK_OFFSET = 60
"""Constant of reciprocal rank fusion: the larger it is, the slower the weight of a rank falls."""
IN_PICTURE = "text in the picture"
"""The ``found_by`` of hits that have query words only in the picture's text."""
_LEAST_STEM = 3
"""Number of letters from which a word matches longer words that start with it."""


SHORTLIST = np.dtype(
    [("number", np.int64), ("distance", np.int32), ("score", np.float64), ("by_code", bool), ("by_features", bool)]
)
"""An item of an ordered shortlist: its row id, its score (NaN without one), and whether the codes found it, or the
sketch or the meaning."""


class Vectors(Protocol):
    """Refinement vectors by row id, in memory (:class:`~modalhash.index.VectorTable`) or read from the store."""

    width: int

    @property
    def last_id(self) -> int: ...

    def add(self, ids: Any, vectors: Array, *, group: Any = 0) -> None: ...

    def remove(self, ids: Any) -> None: ...

    def nearest(
        self, query: Array, start: int, stop: int, groups: Sequence[int] | None, k: int
    ) -> tuple[Array, Array]: ...

    def find(self, ids: Array) -> FoundRows: ...


class Ranker:
    """The refinement vectors and sketches of all items of an engine, and the order they give."""

    def __init__(
        self,
        refinement: Refinement,
        class_names: Sequence[str],
        *,
        vectors: Vectors,
        sketches: HammingIndex | MilvusIndex,
    ) -> None:
        self.refinement = refinement
        self._class_names = class_names
        self.vectors, self.sketches = vectors, sketches
        self._revision: Revision | None = None
        self._last_added = 0

    @property
    def revision(self) -> Revision | None:
        """The last revision read; behind that of the index if a store failed in between."""
        return self._revision

    def resume(self, revision: Revision) -> None:
        """Continue from a revision whose :attr:`vectors` and :attr:`sketches` were filled elsewhere."""
        self._revision, self._last_added = revision, self.vectors.last_id

    def refresh(self, store: Store, until: Revision) -> None:
        """Read what was added to and removed from a store since the last call; repeatable if the store fails."""
        since = self._revision
        if since == until:
            return
        if since is not None:
            gone = store.removed(since, until)
            self.vectors.remove(gone)
            self.sketches.remove(gone, missing="ignore")
        for numbers, groups, vectors, present in store.refinements(since=since, until=until):
            present &= numbers > self._last_added
            numbers, groups, vectors = numbers[present], groups[present], vectors[present, : self.vectors.width]
            self.vectors.add(numbers, vectors, group=groups)
            numbers_of, groups_of, sketches = sketches_of(self.refinement, numbers, groups, vectors)
            self.sketches.add(numbers_of, sketches, group=groups_of)
            self._last_added = max(self._last_added, *numbers[-1:].tolist(), 0)
        self._revision = until

    def similar(self, vector: Array, group: int, k: int) -> Array:
        """Return the row ids of a group's items whose features are nearest to the query's, with ties."""
        if not embedding(self.refinement, vector).any():
            return np.empty(0, np.int64)
        k = max(k, SKETCH_SHORTLIST)
        hits = self.sketches.shortlist(
            pack_signs(embedding(self.refinement, vector[None])), k, max_hits=max(k, MAX_SKETCH_SHORTLIST), group=group
        )
        return hits[0][0]

    def near_in_meaning(self, vector: Array, groups: Sequence[int] | None, k: int) -> Array:
        """Return the row ids of the k items, of some groups or of all, nearest in meaning to the query."""
        part = self.refinement.meaning_values
        if part.start == part.stop or not vector[part].any():
            return np.empty(0, np.int64)
        return self.vectors.nearest(vector, part.start, part.stop, groups, k)[0]

    def rank(
        self,
        code: Codes,
        vector: Array,
        numbers: Array,
        distances: Array,
        index: Index,
        *,
        own_group: int | None,
        similar: Array,
    ) -> Array:
        """Order a shortlist, together with the row ids ``similar``, by refinement vectors; return a SHORTLIST."""
        if len(similar):
            near = index.distances(code, similar)
            numbers, distances, by_code, by_features = merge_sources(
                (numbers, distances), (similar, near), compiled=self.sketches.compiled
            )
        else:
            by_code, by_features = np.ones(len(numbers), dtype=bool), np.zeros(len(numbers), dtype=bool)
        scores = self.scores(vector, numbers, 1 - 2 * distances / index.n_bits, own_group)
        ordered = np.empty(len(numbers), SHORTLIST)
        order = _order_scored(scores)
        for name, values in zip(SHORTLIST.names or (), (numbers, distances, scores, by_code, by_features), strict=True):
            ordered[name] = values[order]
        return ordered

    def scores(self, vector: Array, numbers: Array, agreement: Array, own_group: int | None) -> Array:
        """Return the scores of items, float64; NaN without a vector, or of another modality without posteriors.

        ``agreement`` is that of their codes with the query's, from −1 to 1. ``own_group`` is the group of the query's
        modality, whose embeddings count; None for none.
        """
        found = self.vectors.find(numbers)
        all_present = len(found.rows) == len(numbers)
        n = self.refinement.n_posterior
        if own_group is None:
            products, cosines = found.dots(vector, 0, n), None
        else:
            products, cosines = found.dots_and_cosines(vector, n, n + EMBEDDING_DIMENSIONS)
        values = np.full(len(found.rows), np.nan)
        labels_known = bool(n) and (own_group is not None or bool(vector[:n].any()))
        if labels_known:
            agreeing = agreement if all_present else agreement[found.present]
            values = products * self.refinement.posterior_step**2 + CODE_WEIGHT * agreeing
        own_values = values if labels_known else np.zeros(len(found.rows))
        part = self.refinement.meaning_values
        if vector[part].any():
            meaning = found.dots(vector, part.start, part.stop) * STEP**2
            own_values = values if labels_known else meaning
            values = values + MEANING_WEIGHT * meaning if labels_known else meaning
        if cosines is not None:
            mixed = own_values + EMBEDDING_WEIGHT * cosines if labels_known else (own_values + cosines) / 2
            own = np.where(cosines >= NEAR_DUPLICATE, DUPLICATE_SCORE + cosines, mixed)
            values = np.where(found.groups == own_group, own, values)
        if all_present:
            return values
        scores = np.full(len(numbers), np.nan)
        scores[found.present] = values
        return scores

    def shared_labels(self, vector: Array, numbers: Array) -> list[tuple[str, ...]]:
        """Return the labels that each item's posterior and the query's both clearly have, the clearest first."""
        shared: list[tuple[str, ...]] = [()] * len(numbers)
        if not self.refinement.knows_labels:
            return shared
        found = self.vectors.find(numbers)
        scores = self.refinement.label_scores(np.concatenate([vector[None], found.vectors()]))
        clear = clear_labels(scores, CLEAR_LABEL, CLEAR_SHARE)
        rows, labels = np.nonzero(clear[1:] & clear[0])
        if not len(rows):
            return shared
        own, theirs = scores[0], scores[1:]
        clearest = np.lexsort((labels, -own[labels] * theirs[rows, labels], rows))
        positions = np.flatnonzero(found.present)[rows[clearest]]
        for position, label in zip(positions.tolist(), labels[clearest].tolist(), strict=True):
            shared[position] = (*shared[position], self._class_names[label])[:SHARED_LABELS]
        return shared


def embedding(refinement: Refinement, vectors: Array) -> Array:
    """Return the part of vectors that is compared within a modality."""
    n = refinement.n_posterior
    return vectors[..., n : n + EMBEDDING_DIMENSIONS]


def sketches_of(refinement: Refinement, numbers: Array, groups: Array, vectors: Array) -> tuple[Array, Array, Codes]:
    """Return row ids, groups and sketches of the items that have features; the others are near nothing."""
    embedded = embedding(refinement, vectors)
    has = embedded.any(axis=1)
    return numbers[has], groups[has], pack_signs(embedded[has])


def _order_scored(scores: Array) -> Array:
    """Return the order by decreasing score, stable; items without a score keep their position."""
    unscored = np.isnan(scores)
    if not unscored.any():
        return np.argsort(-scores, kind="stable")
    scored = np.flatnonzero(~unscored)
    order = np.arange(len(scores))
    order[scored] = scored[np.argsort(-scores[scored], kind="stable")]
    return order


def clear_labels(scores: Array, least: float, share: float) -> Array:
    """Return which label scores are at least ``least`` and at least ``share`` of the row's largest."""
    clear: Array = scores >= np.maximum(least, share * scores.max(axis=1, initial=0, keepdims=True))
    return clear


def vector_width(refinement: Refinement) -> int:
    """Return the number of values per vector of a table: cache lines of 64 that hold the longest."""
    longest = max((refinement.width(name) for name in refinement.components), default=0)
    return 64 * max(1, -(-longest // 64))


def pad(vector: Array, width: int) -> Array:
    padded = np.zeros(width, dtype=vector.dtype)
    padded[: len(vector)] = vector
    return padded


def competition_ranks(scores: Array, distances: Array) -> list[int]:
    """Return ranks from 1 of sorted hits; ties share a rank, and the next rank counts all of them.

    Examples
    --------
    >>> competition_ranks(np.array([0.9, 0.9, 0.4]), np.array([2, 3, 2]))
    [1, 1, 3]
    """
    plain = np.isnan(scores)
    tied = (scores[1:] == scores[:-1]) | (plain[1:] & plain[:-1] & (distances[1:] == distances[:-1]))
    places = np.arange(1, len(scores) + 1)
    places[1:][tied] = 0  # ties get the rank of their first
    ranks: list[int] = np.maximum.accumulate(places).tolist()
    return ranks


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


def refresh(index: Index, store: Store, since: Revision | None = None) -> Revision:
    r"""Update ``index`` to the state of ``store`` and return its revision, for the next call.

    Reads what any process added or removed after ``since``. Items are indexed by row id, in the group of their modality
    (:meth:`Store.modalities`). Not thread-safe. If the store fails halfway, the rows that were added are removed again,
    so that the call can be repeated.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from modalhash.index import HammingIndex
    >>> from modalhash.store import Record, SqliteStore
    >>> folder = tempfile.TemporaryDirectory()
    >>> store, index = SqliteStore(Path(folder.name) / "items.db", n_bits=8), HammingIndex(8)
    >>> reached = refresh(index, store)
    >>> numbers = store.add([Record("boat", "text", b"\xa0"), Record("sea", "text", b"\x0a")])
    >>> reached = refresh(index, store, reached)
    >>> len(index)
    2
    >>> store.close(); folder.cleanup()
    """
    if index.n_bits != store.n_bits:
        raise ValueError(f"the index holds codes of {index.n_bits} bits, the store codes of {store.n_bits}")
    target = store.revision()
    if target == since:
        return target
    if since is not None:
        index.remove(store.removed(since, target), missing="ignore")
    added = []
    try:
        for numbers, groups, codes in store.codes(since=since, until=target):
            index.add(numbers, codes, group=groups)
            added.append(numbers)
    except BaseException:
        for numbers in added:
            index.remove(numbers)
        raise
    return target
