"""Near-duplicates: items of one modality that are nearly the same, whatever their labels are.

Two items are near if the cosine of their embeddings (:mod:`modalhash.engine.search.refinement`) reaches a threshold and
the sketches, the signs of the embeddings, differ in few bits. A scan of the sketches finds the candidates. Texts must
also share most of their words.

Groups are greedy in the order of adding: an item that is not in a group starts one, and takes all later items near it.
So a chain of small changes does not merge half the collection. Groups whose first items are the same photo, mirrored,
turned or cropped (:mod:`modalhash.engine.search.picture_prints`), are merged.

A search with ``unique=True`` drops hits that are near a better one by the same rules. It reads no files, so pixels
count only if :meth:`~modalhash.engine.Engine.duplicates` was called and its result is still valid.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from hashlib import file_digest, sha256
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from modalhash.core.archives import ArchiveMember
from modalhash.core.blocks import row_slices
from modalhash.core.codes import pack_signs
from modalhash.core.progress import check_not_stopped
from modalhash.core.typing import Array
from modalhash.engine.items.item import File, ItemFiles
from modalhash.engine.search.hits import Hit
from modalhash.engine.search.ordering import competition_ranks
from modalhash.engine.search.picture_prints import PrintKeeper, SamePairs, find_same
from modalhash.engine.search.query import Asked
from modalhash.engine.search.refinement import EMBEDDING_DIMENSIONS, Refinement
from modalhash.engine.settings import SearchOptions
from modalhash.index import FoundRows, HammingIndex
from modalhash.store import MAX_REFINEMENT, Filter, Key, Record, Revision, Store

DUPLICATE_RADIUS = 8
"""Default number of 64 bits in which sketches of near items may differ; this and the next three were chosen on training
items with planted copies (benchmarks/quality/duplicates.py)."""
DUPLICATE_THRESHOLD = 0.97
"""Default least cosine of the embeddings of near items."""
SAME_PICTURE = 0.95
"""Least correlation of the details of two photos that show the same."""
SHARED_WORDS = 0.8
"""Least fraction of words that near-duplicate texts have in common."""
MAX_COMPARED_TEXTS = 1_000_000
"""Pairs of texts that are compared per group; beyond that, only equal words match."""
BATCH = 1024
"""Items that are compared with each other before they are searched among all."""
FIRST_QUERIES, WANTED_CANDIDATES = 16, 2**18
"""Sketches of the first search, and the number of candidates per search that later ones aim at."""
PAIRS_AT_ONCE, LONG_RUN, RECORDS_AT_ONCE = 2**16, 64, 5000
_WORD = re.compile(r"\w+")
ROUNDING = 1e-6
"""Upper bound of the float32 error of a cosine."""
MAX_REMEMBERED = 8
"""Cached results."""


@dataclass(frozen=True)
class DuplicateGroup:
    """Items that are the same, or nearly."""

    items: tuple[Hit, ...]
    """The oldest item, then the others by nearness to it: ``score`` is the cosine with the first, or the correlation of
    pixels if only these match (see ``found_by``); None for items without vectors. ``distance`` is the Hamming distance
    of codes."""
    exact: bool
    """Whether all texts or files are identical, or features where these are missing."""

    def to_dict(self) -> dict[str, Any]:
        return {"exact": self.exact, "items": [item.to_dict() for item in self.items]}


class Group(NamedTuple):
    """A group of row ids."""

    numbers: Array
    cosines: Array
    """Cosines with the first; NaN without vectors."""
    exact: bool
    by_pixels: frozenset[int] = frozenset()
    """Row ids that only pixels put into the group."""


class _Question(NamedTuple):
    modality: str
    radius: int
    threshold: float
    pixels: bool
    where: Filter | None


class DuplicateFinder:
    """Finds the near-duplicates of a store; results are cached until the store changes."""

    def __init__(
        self, store: Store, refinement: Refinement, files: ItemFiles, prints: PrintKeeper | None = None
    ) -> None:
        self._store, self._refinement, self._files = store, refinement, files
        self._prints = PrintKeeper(None) if prints is None else prints
        self._found: dict[str, tuple[Revision, _Question, list[Group]]] = {}
        self._by_key: tuple[tuple[Revision, tuple[str, ...]], dict[Key, int]] | None = None
        self._lock = threading.Lock()

    def find(
        self,
        modalities: Iterable[str],
        *,
        radius: int,
        threshold: float,
        pixels: bool = True,
        where: Filter | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[DuplicateGroup]:
        """Return groups of duplicates within modalities, exact ones first, without the first ``offset``."""
        questions = [_Question(name, radius, threshold, pixels, where) for name in modalities]
        with self._lock if where is None else nullcontext():  # so that concurrent callers share one computation
            groups = [group for question in questions for group in self._groups(question)]
        groups.sort(key=_importance)
        wanted = groups[offset:] if limit is None else groups[offset : offset + limit]
        records = self._store.records([number for group in wanted for number in group.numbers.tolist()])
        found = (_with_items(group, records) for group in wanted)
        return [group for group in found if len(group.items) > 1]  # items may have been removed since

    def remembered(self) -> Mapping[Key, int]:
        """Return the group of each item by cached results of the default parameters."""
        revision, usual = self._store.revision(), (DUPLICATE_RADIUS, DUPLICATE_THRESHOLD, True, None)
        found = [
            (key, groups)
            for key, (at, question, groups) in list(self._found.items())
            if at == revision and question[1:] == usual
        ]
        known = revision, tuple(key for key, _ in found)
        if self._by_key is None or self._by_key[0] != known:
            groups = [group.numbers.tolist() for _, some in found for group in some]
            records = self._store.records([number for numbers in groups for number in numbers])
            places = ((records.get(number), place) for place, numbers in enumerate(groups) for number in numbers)
            self._by_key = known, {record.key: place for record, place in places if record is not None}
        return self._by_key[1]

    def _groups(self, question: _Question) -> list[Group]:
        key, revision = str(question), self._store.revision()
        if key in self._found and self._found[key][0] == revision:
            return self._found[key][2]
        groups = self._search(question)
        self._found[key] = revision, question, groups
        for old in list(self._found)[:-MAX_REMEMBERED]:
            self._found.pop(old, None)  # which another thread may have dropped
        return groups

    def _search(self, question: _Question) -> list[Group]:
        numbers, embeddings, unknown = self._embeddings(question.modality)
        if question.where is not None:
            passing = self._store.matching(question.where)
            passed = np.isin(numbers, passing)
            numbers, embeddings, unknown = numbers[passed], embeddings[passed], unknown[np.isin(unknown, passing)]
        similar = group_vectors(embeddings, radius=question.radius, threshold=question.threshold)
        records = self._store.records([number for rows, _ in similar for number in numbers[rows].tolist()])
        groups = []
        for rows, cosines in similar:
            own = [records[number].text if number in records else None for number in numbers[rows].tolist()]
            texts = [text for text in own if text is not None]
            parts = [(rows, cosines)]
            if len(texts) == len(rows):
                parts = group_texts(texts, rows, embeddings, question.threshold)
            for part, some in parts:
                same = bool((embeddings[part] == embeddings[part[0]]).all())
                stored = [record for number in numbers[part].tolist() if (record := records.get(number)) is not None]
                groups.append(Group(numbers[part], some, same and self._same_content(stored)))
        groups += self._identical(unknown)
        if not question.pixels:
            return groups
        strict = question.threshold > DUPLICATE_THRESHOLD
        least = max(SAME_PICTURE, question.threshold) if strict else SAME_PICTURE
        return self._join_same_photos(groups, np.concatenate([numbers, unknown]), least)

    def _join_same_photos(self, groups: list[Group], numbers: Array, least: float) -> list[Group]:
        others = np.concatenate([np.empty(0, np.int64), *(group.numbers[1:] for group in groups)])
        firsts = np.sort(numbers[~np.isin(numbers, others)])
        files: list[File | None] = []
        for rows in row_slices(len(firsts), RECORDS_AT_ONCE):
            records = self._store.records(firsts[rows])
            own = [records.get(number) for number in firsts[rows].tolist()]
            files += [None if one is None or one.text is not None else self._files.find(one.uri) for one in own]
        return join_same(groups, firsts, find_same(self._prints.prints(files), least))

    def _embeddings(self, modality: str) -> tuple[Array, Array, Array]:
        """Return row ids and embeddings of the items that have one, and the row ids of the others."""
        nothing = self._refinement.embedding_of(modality, np.empty((0, MAX_REFINEMENT), np.int8))
        known, rows, unknown = [np.empty(0, np.int64)], [nothing], [np.empty(0, np.int64)]
        for numbers, _, vectors, present in self._store.refinements(modality=modality):
            own = self._refinement.embedding_of(modality, vectors)
            useful = present & own.any(axis=1)  # texts without known words have zeros
            known.append(numbers[useful])
            rows.append(own[useful])
            unknown.append(numbers[~useful])
        return np.concatenate(known), np.concatenate(rows), np.concatenate(unknown)

    def _same_content(self, records: list[Record]) -> bool:
        """Return whether all existing texts or files are the same."""
        if len({(record.text, self._size(record)) for record in records}) > 1:
            return False
        return len({_digest(self._files.find(record.uri)) for record in records} - {None}) <= 1

    def _identical(self, numbers: Array) -> list[Group]:
        """Return groups of items whose texts or files are identical."""
        by_text: dict[object, list[int]] = {}
        by_size: dict[object, list[tuple[int, File | None]]] = {}
        batches = (self._store.records(numbers[rows]) for rows in row_slices(len(numbers), RECORDS_AT_ONCE))
        for number, record in (pair for batch in batches for pair in batch.items()):
            if record.text is not None:
                by_text.setdefault(record.text, []).append(number)
            elif (size := self._size(record)) is not None:
                by_size.setdefault(size, []).append((number, self._files.find(record.uri)))
        by_digest: dict[object, list[int]] = {}
        for some in by_size.values():
            for number, path in some if len(some) > 1 else ():
                if (digest := _digest(path)) is not None:
                    by_digest.setdefault(digest, []).append(number)
        similar = [members for members in (*by_text.values(), *by_digest.values()) if len(members) > 1]
        return [Group(np.array(members), np.full(len(members), np.nan), True) for members in similar]

    def _size(self, record: Record) -> int | None:
        file = self._files.find(record.uri)
        try:
            return None if file is None else file.size() if isinstance(file, ArchiveMember) else file.stat().st_size
        except (OSError, ValueError):
            return None


def group_vectors(vectors: Array, *, radius: int, threshold: float) -> list[tuple[Array, Array]]:
    """Return groups of two or more near vectors: the rows of each, its first before all others, and cosines.

    ``vectors`` are int8 and nonzero. ``radius`` is of 64 signs, and proportionally smaller for shorter vectors.
    """
    if len(vectors) < 2:
        return []
    first_rows, copies = _distinct(vectors)
    leader, cosine = _leaders(
        np.ascontiguousarray(vectors[first_rows]), radius * vectors.shape[1] // EMBEDDING_DIMENSIONS, threshold
    )
    group, cosines = leader[copies], cosine[copies]
    sizes = np.bincount(group, minlength=len(first_rows))
    rows = np.flatnonzero(sizes[group] > 1)
    rows = rows[np.lexsort((rows, -cosines[rows], rows != first_rows[group[rows]], group[rows]))]
    bounds = np.flatnonzero(np.diff(group[rows], prepend=-1, append=-1))
    return [(rows[start:stop], cosines[rows[start:stop]]) for start, stop in pairwise(bounds.tolist())]


def _distinct(vectors: Array) -> tuple[Array, Array]:
    """Return the first row of each distinct vector, ascending, and the index into these of every row."""
    as_bytes = np.ascontiguousarray(vectors).view(np.dtype((np.void, vectors.shape[1])))[:, 0]
    _, first_rows, inverse = np.unique(as_bytes, return_index=True, return_inverse=True)
    ascending = np.argsort(first_rows)
    return first_rows[ascending], np.argsort(ascending)[inverse]


def _leaders(vectors: Array, radius: int, threshold: float) -> tuple[Array, Array]:
    """Return for each distinct vector the first of its group, and the cosine with it."""
    n, n_bits = vectors.shape
    sketches = pack_signs(vectors)
    index = HammingIndex(n_bits)
    index.add(np.arange(n), sketches)
    lengths = np.concatenate(
        [np.linalg.norm(vectors[rows].astype(np.float64), axis=1) for rows in row_slices(n, BATCH)]
    )
    leader, cosine = np.full(n, -1), np.ones(n, np.float32)
    n_queries = FIRST_QUERIES
    for rows in row_slices(n, BATCH):
        check_not_stopped()
        while len(free := rows.start + np.flatnonzero(leader[rows] < 0)):
            free = free[_firsts(vectors[free], radius, threshold)]
            while len(free):
                now, free = free[:n_queries], free[n_queries:]
                now = now[leader[now] < 0]
                leader[now] = now
                hits = index.search(sketches[now], radius=radius)
                assert hits.offsets is not None
                asking = np.repeat(now, np.diff(hits.offsets))
                later = (leader[hits.ids] < 0) & (hits.ids > asking)
                asking, near = asking[later], hits.ids[later]
                cosines = _cosines(vectors, lengths, asking, near)
                asking, near, cosines = (values[cosines >= threshold] for values in (asking, near, cosines))
                taken, at = np.unique(near, return_index=True)
                leader[taken], cosine[taken] = asking[at], cosines[at]  # the first of several
                wanted = n_queries * WANTED_CANDIDATES // max(1, len(hits.ids))
                n_queries = max(1, min(wanted, 2 * n_queries, BATCH))
    return leader, np.minimum(cosine, 1)


def _firsts(vectors: Array, radius: int, threshold: float) -> Array:
    """Return which rows are not near an earlier row of this kind."""
    values = vectors.astype(np.float32)
    signs = np.where(values > 0, np.float32(1), np.float32(-1))
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    clearly = threshold + ROUNDING  # unclear rows are searched
    near = (values @ values.T >= clearly) & (vectors.shape[1] - signs @ signs.T <= 2 * radius)
    first = np.ones(len(vectors), dtype=bool)
    for row in np.flatnonzero(np.tril(near, -1).any(axis=1)).tolist():
        first[row] = not (near[row, :row] & first[:row]).any()
    return first


def _cosines(vectors: Array, lengths: Array, left: Array, right: Array) -> Array:
    """Return the cosines of pairs of rows, which are grouped by their left row."""
    bounds = np.flatnonzero(np.diff(left, prepend=-1, append=-1)).tolist()
    if len(left) > LONG_RUN * len(bounds):  # long runs: one product per left row, without copies
        products = [
            FoundRows(vectors, right[start:stop], right[:0], right[:0]).dots(vectors[left[start]], 0, vectors.shape[1])
            for start, stop in pairwise(bounds)
        ]
    else:
        products = [
            np.einsum("ij,ij->i", vectors[left[part]].astype(np.int32), vectors[right[part]].astype(np.int32))
            for part in row_slices(len(left), PAIRS_AT_ONCE)
        ]
    return np.asarray(np.concatenate([np.empty(0), *products]) / (lengths[left] * lengths[right]))


def group_texts(texts: Sequence[str], rows: Array, vectors: Array, threshold: float) -> list[tuple[Array, Array]]:
    """Split a group of near vectors into groups of texts that share most of their words.

    Embeddings of short texts are not enough: "flag: France" and "flag: Chad" are equal to an encoder that knows neither
    country.
    """
    words = [words_in(text) for text in texts]
    left, compared = np.arange(len(rows)), 0
    places: list[Array] = []
    while len(left) > 1 and compared < MAX_COMPARED_TEXTS:
        shares = np.array([share_of_words(words[left[0]], words[place]) for place in left])
        near = (shares >= SHARED_WORDS) & (_cosines_with(vectors[rows[left]], vectors[rows[left[0]]]) >= threshold)
        near[0] = True
        places.append(left[near])
        compared += len(left)
        left = left[~near]
    same: dict[frozenset[str], list[int]] = {}
    for place in left.tolist():  # too many to compare: only equal words match
        same.setdefault(words[place], []).append(place)
    places += [np.array(some) for some in same.values()]
    found = []
    for members in (rows[some] for some in places if len(some) > 1):
        own = _cosines_with(vectors[members], vectors[members[0]])
        order = np.lexsort((members, -own, members != members[0]))
        found.append((members[order], own[order]))
    return found


def words_in(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.casefold()))


def share_of_words(left: frozenset[str], right: frozenset[str]) -> float:
    """Return the Dice coefficient of two sets of words."""
    return 2 * len(left & right) / max(1, len(left) + len(right))


def _cosines_with(vectors: Array, one: Array) -> Array:
    values, own = vectors.astype(np.float64), one.astype(np.float64)
    return np.minimum(1, values @ own / (np.linalg.norm(values, axis=1) * np.linalg.norm(own)))


def join_same(groups: Iterable[Group], firsts: Array, same: SamePairs) -> list[Group]:
    """Merge groups whose first items are the same photo, and single items of the same photo.

    ``firsts`` are the ascending row ids of first items and of items in no group; ``same`` are pairs of their indices.
    """
    by_first = {int(group.numbers[0]): group for group in groups}
    taken: set[int] = set()
    joined: dict[int, list[tuple[int, float]]] = {}
    for first, other, score in zip(
        firsts[same.left].tolist(), firsts[same.right].tolist(), same.scores.tolist(), strict=True
    ):
        if first not in taken and other not in taken:
            taken.add(other)
            joined.setdefault(first, []).append((other, score))
    kept = [group for first, group in by_first.items() if first not in taken and first not in joined]
    return kept + [_joined(first, others, by_first) for first, others in joined.items()]


def _joined(first: int, others: list[tuple[int, float]], groups: Mapping[int, Group]) -> Group:
    """Merge the groups of ``others`` into that of an item, each with the correlation of its pixels."""
    parts = [(groups.get(number), number, score) for number, score in [(first, 1.0), *others]]
    numbers = [np.array([number]) if group is None else group.numbers for group, number, _ in parts]
    cosines = [
        np.array([score]) if group is None else np.fmin(np.nan_to_num(group.cosines, nan=1), score)
        for group, _, score in parts
    ]
    members, scores = np.concatenate(numbers), np.concatenate(cosines)
    order = np.lexsort((members, -scores, members != first))
    by_pixels = frozenset(np.concatenate(numbers[1:]).tolist())
    return Group(members[order], scores[order], exact=False, by_pixels=by_pixels)


def _importance(group: Group) -> tuple[bool, int, float, int]:
    """Return the sort key: exact groups first, by size, then near ones by similarity."""
    if group.exact:
        return False, -len(group.numbers), 0.0, int(group.numbers[0])
    return True, 0, -float(group.cosines.min()), int(group.numbers[0])


def _with_items(group: Group, records: Mapping[int, Record]) -> DuplicateGroup:
    """Return a group with its items, without removed ones."""
    there = [place for place, number in enumerate(group.numbers.tolist()) if number in records]
    own = [records[int(group.numbers[place])] for place in there]
    codes = [np.frombuffer(bytes(record.code), np.uint8) for record in own]
    distances = np.array([int(np.unpackbits(code ^ codes[0]).sum()) for code in codes])
    cosines = group.cosines[there].astype(np.float64)
    hits = [
        replace(
            Hit.from_record(record, distance),
            score=None if np.isnan(cosine) else round(cosine, 6),
            rank=rank,
            found_by=() if np.isnan(cosine) else ("pixels",) if number in group.by_pixels else ("features",),
        )
        for number, record, distance, cosine, rank in zip(
            group.numbers[there].tolist(),
            own,
            distances.tolist(),
            cosines.tolist(),
            competition_ranks(cosines, distances),
            strict=True,
        )
    ]
    return DuplicateGroup(tuple(hits), group.exact)


def _digest(path: File | None) -> bytes | None:
    if path is None:
        return None
    try:
        if isinstance(path, ArchiveMember):
            return sha256(path.read()).digest()
        with path.open("rb") as file:
            return file_digest(file, "sha256").digest()
    except (OSError, ValueError):
        return None


WIDER = (2, 8, 32)
"""Factors of the number of hits to fetch, tried while too few remain."""


@dataclass(frozen=True)
class SameHits:
    """Decides which hits are near-duplicates."""

    refinement: Refinement
    groups: Mapping[Key, int]
    """The known duplicate group of an item."""

    def first_of_each(self, hits: Sequence[Hit]) -> list[Hit]:
        """Drop hits that are near-duplicates of earlier ones, and renumber ranks."""
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
        """Return the embedding of a hit, scaled to length 1; None without one."""
        if hit.refinement is None:
            return None
        values = self.refinement.embedding_of(hit.modality, np.frombuffer(hit.refinement, np.int8)).astype(np.float32)
        length = np.linalg.norm(values)
        return None if not length else np.asarray(values / length)


def find_unique(
    asked: Sequence[Asked], find: Callable[[Sequence[Asked]], list[list[Hit]]], same: SameHits
) -> list[list[Hit]]:
    """Return the hits of each query; find more and drop near-duplicates if its options say so."""
    answers: list[list[Hit]] = [[] for _ in asked]
    waiting = list(range(len(asked)))
    for times in WIDER:
        wider = [(asked[row][0], _wider(asked[row][1], times)) for row in waiting]
        too_few = []
        for row, (_, wide), hits in zip(waiting, wider, find(wider) if wider else [], strict=True):
            options = asked[row][1]
            wanted = _n_hits(options)
            answers[row] = same.first_of_each(hits)[:wanted] if options.unique else hits
            if wanted is not None and len(answers[row]) < wanted and len(hits) == _n_hits(wide):
                too_few.append(row)  # and there may be more
        waiting = too_few
    return answers


def _n_hits(options: SearchOptions) -> int | None:
    return options.k if options.radius is None else options.limit


def _wider(options: SearchOptions, times: int) -> SearchOptions:
    """Return options for ``times`` the hits, including near-duplicates, if they ask to drop these."""
    if not options.unique:
        return options
    k = times * options.k
    shortlist = None if options.shortlist is None else max(options.shortlist, k)
    limit = None if options.limit is None else times * options.limit
    return replace(options, k=k, shortlist=shortlist, limit=limit, unique=False)


def _is_near(embedding: Array, text: str | None, others: Sequence[tuple[Array, str | None]]) -> bool:
    if not others:
        return False
    near = np.flatnonzero(np.stack([other for other, _ in others]) @ embedding >= DUPLICATE_THRESHOLD).tolist()
    if text is None:
        return bool(near)
    words = words_in(text)
    return any(share_of_words(words, words_in(others[row][1] or "")) >= SHARED_WORDS for row in near)
