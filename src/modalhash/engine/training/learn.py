"""Learn from a corpus: codes, refinement vectors, and confidence with the quality to expect.

Codes get the shortest length at which items with conflicting labels do not share a code. A *label set* is the set of
labels of an item. Two label sets *conflict* if they share less than half of their labels: ``{activity, medal}`` and
``{activity, needle}`` do, ``{activity}`` and ``{activity, medal}`` do not. They *collide* if items of both have the
same code. An item is *misplaced* if its label set conflicts with the most frequent one of its code. ``n_bits="auto"``
takes the first of :data:`LENGTHS` that misplaces at most :data:`TOLERANCE` of the training items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import sparse

from modalhash.core.progress import Callback, Progress, Reporter
from modalhash.core.typing import Array, Codes, Matrix
from modalhash.encoders import NAMES, NOUNS
from modalhash.engine.items.item import Item
from modalhash.engine.search.confidence import (
    HELD_OUT,
    MIN_HELD_OUT,
    Confidence,
    LabelWords,
    confidence_of_names,
    fit_confidence,
    hold_out,
    search_held_out,
)
from modalhash.engine.search.photo_words import TEXT, learn_word_codes, words_for
from modalhash.engine.search.refinement import Learned, learn_refinement, model_features, sharing_modalities
from modalhash.engine.settings import TrainSettings
from modalhash.engine.training.corpus import AUTO, Corpus, TrainingInput
from modalhash.engine.training.expected_quality import measure_expected_quality, unknown_quality

if TYPE_CHECKING:
    from modalhash.encoders import Encoder
    from modalhash.methods.base import CrossModalHasher

LENGTHS = (32, 64, 128, 256)
"""Code lengths in bits that are tried; shorter ones only if there are too few items for 32 bits."""
LENGTH_WITHOUT_LABELS = 64
"""Code length in bits of methods that do not learn from labels."""
TOLERANCE = 0.01
"""Largest accepted fraction of misplaced items."""
_SETS_PER_BLOCK = 256
"""Label sets compared with all others at a time, which bounds memory."""


class WordReader(NamedTuple):
    """The encoders of an engine, and the one for words if it has pictures and no texts."""

    encoders: Mapping[str, Encoder]
    words: Encoder | None
    """None if texts are a modality, or if no encoder maps words into the space of the pictures."""
    pictures: str | None
    """The modality that words are searched in; None if texts are a modality."""

    @property
    def by_names(self) -> bool:
        """Whether words are encoded in the space of names."""
        return self.pictures is not None and getattr(self.words, "space", None) == NAMES

    @property
    def sharing(self) -> list[str]:
        """The modalities whose encoders share a space."""
        return sharing_modalities(self.in_space)

    @property
    def in_space(self) -> dict[str, Encoder]:
        """The encoders of modalities and of words."""
        return {**self.encoders, **({} if self.words is None else {TEXT: self.words})}


class Trained(NamedTuple):
    """What was learned from a corpus."""

    rows: dict[str, Array]
    """Of the corpus, by modality, that were learned from."""
    hasher: CrossModalHasher
    collisions: Collisions | None
    lengths: list[int]
    """Code lengths that were fitted."""
    reader: WordReader
    vectors: Learned
    confidence: Confidence | None
    expected: dict[str, Any]


def learn(
    given: TrainingInput, corpus: Corpus, settings: TrainSettings, callback: Callback | None, end: Callable[[str], None]
) -> Trained:
    """Learn codes, then refinement vectors, then confidence from the training items; ``end`` is called after each."""
    rows = corpus.training_rows()
    _check_training(corpus, rows)
    taught = corpus.take(rows)
    encoders = {modality: given.encoders[modality] for modality in corpus.items}
    seed = settings.method_parameters["random_state"]
    seed = seed if isinstance(seed, int) else 0
    pairs = _pairs_of(taught.items) if type(given.hasher).needs_pairs else None
    hasher = _with_anchors(given.hasher, taught)
    X = {name: model_features(hasher, encoders[name], values) for name, values in taught.features.items()}
    hasher, collisions, lengths = fit_with_length(
        hasher, settings.n_bits, X, taught.label_arrays(), pairs=pairs, callback=callback
    )
    end("learn")
    reader = _read_words(encoders, given.encoders.get(TEXT), corpus.class_names)
    vectors = _learn_vectors(hasher, taught, reader, seed)
    end("refine")
    confidence, expected = _learn_confidence(hasher, taught, reader, seed, Reporter(callback))
    end("confidence")
    return Trained(rows, hasher, collisions, lengths, reader, vectors, confidence, expected)


def _check_training(corpus: Corpus, rows: Mapping[str, Array]) -> None:
    """Raise ValueError for a modality without training items."""
    for modality, some in rows.items():
        if not len(some):
            what = "is for training" if corpus.labels is None else "has a label"
            raise ValueError(
                f"{modality!r}: none of {len(corpus.items[modality])} items {what}. Give labels to some, "
                "leave this modality out of the manifest, or learn without labels (labels='none', --labels none)"
            )


def _read_words(encoders: Mapping[str, Encoder], given: Encoder | None, class_names: Sequence[str]) -> WordReader:
    """Choose the encoder for words as queries."""
    pictures = next((name for name, encoder in encoders.items() if encoder.reads == "image"), None)
    if pictures is None or TEXT in encoders or any(encoder.reads == "text" for encoder in encoders.values()):
        return WordReader(encoders, None, None)
    return WordReader(encoders, words_for(encoders[pictures], given, class_names), pictures)


def _learn_vectors(hasher: CrossModalHasher, taught: Corpus, reader: WordReader, seed: int) -> Learned:
    """Learn refinement vectors, and codes of words if texts are not a modality."""
    sharing = list(taught.features) if getattr(hasher, "space", None) == "shared" else reader.sharing
    labels = taught.label_arrays()
    learned = learn_refinement(hasher, taught.features, labels, seed=seed, encoders=reader.in_space, sharing=sharing)
    name = reader.pictures
    if name is None or not (learned.refinement.knows_labels or learned.refinement.meaning):
        return learned
    posteriors = learned.training_posteriors(name, labels=False)
    vectors = learned.refinement.joined(name, posteriors, taught.features[name])
    made = learn_word_codes(learned.refinement, vectors, hasher.codes_[name], hasher.n_bits)
    return learned._replace(refinement=made)


def _learn_confidence(
    hasher: CrossModalHasher, taught: Corpus, reader: WordReader, seed: int, progress: Reporter
) -> tuple[Confidence | None, dict[str, Any]]:
    """Refit the method to most of the training items, and learn confidence from searches for the others.

    Return the expected quality for new items too, or the reason why it is unknown.
    """
    from sklearn.base import clone

    names = confidence_of_names(str(reader.pictures)) if reader.by_names else None
    if taught.labels is None:
        return names, unknown_quality("it was trained without labels, so it is unknown which hits are right")
    held = hold_out(taught.features, seed)
    fewest = min(held.held_out, key=lambda name: len(held.held_out[name]))
    if len(held.held_out[fewest]) < MIN_HELD_OUT:
        return names, unknown_quality(
            f"{len(taught.items[fewest]):,} labelled {fewest} items are too few to hold some out for measuring; "
            f"about {HELD_OUT * MIN_HELD_OUT} of each modality are needed"
        )
    rest = taught.take(held.learned)
    progress("confidence", 0, 2)
    pairs = _pairs_of(rest.items) if type(hasher).needs_pairs else None
    model = _with_anchors(clone(hasher), rest).fit(rest.features, rest.label_arrays(), pairs=pairs)
    progress("confidence", 1, 2)
    known = {}
    for name, encoder in reader.encoders.items():
        texts = [item.text for item in taught.items.get(name, ())]
        if encoder.reads == "text" and texts and all(text is not None for text in texts):
            known[name] = _known_words(encoder, texts, held.learned[name], held.held_out[name])
    words = None
    if reader.pictures is not None:
        everyday = np.array([name.casefold() in NOUNS for name in taught.class_names])
        words = LabelWords(None if reader.words is None else reader.words.encode(taught.class_names), everyday)
    vectors, labels = _learn_vectors(model, rest, reader, seed), taught.label_arrays() or {}
    searches = search_held_out(model, taught.features, labels, held, vectors, known=known, words=words, seed=seed)
    ids = {name: [item.id for item in items] for name, items in taught.items.items()}
    if reader.pictures is not None:
        ids[TEXT] = taught.class_names
    learned, expected = fit_confidence(searches), measure_expected_quality(searches, taught.features, ids)
    if reader.by_names:
        learned = confidence_of_names(str(reader.pictures), learned)
    progress("confidence", 2, 2)
    return learned, expected


def _known_words(encoder: Encoder, texts: Sequence[str | None], learned: Array, held_out: Array) -> Array:
    """Return the fraction of known words of held-out texts, for an encoder fitted to the others."""
    if not hasattr(encoder, "known"):
        return np.ones(len(held_out))
    other = deepcopy(encoder).fit([texts[row] for row in learned.tolist()])
    return np.asarray(other.known([texts[row] for row in held_out.tolist()]))


def _with_anchors(hasher: CrossModalHasher, taught: Corpus) -> CrossModalHasher:
    """Cap the number of anchors at the number of items, which avoids a warning of the method."""
    anchors = hasher.get_params(deep=False).get("n_anchors")
    if isinstance(anchors, int):
        anchors = dict.fromkeys(taught.items, anchors)
    if isinstance(anchors, Mapping):
        hasher.set_params(n_anchors={name: min(n, len(taught.items[name])) for name, n in anchors.items()})
    return hasher


def _pairs_of(items: Mapping[str, list[Item]]) -> Array:
    """Return the rows of the items that have the same id in every modality."""
    rows = [{item.id: row for row, item in enumerate(some)} for some in items.values()]
    shared = [id for id in rows[0] if all(id in others for others in rows[1:])]
    if not shared:
        raise ValueError("this method learns from pairs, and no id is in every modality; choose rlh, which needs none")
    return np.array([[own[id] for own in rows] for id in shared])


@dataclass(frozen=True)
class Collisions:
    """How the label sets of training items share codes."""

    label_sets: int
    codes: int
    pairs: int
    """Pairs of label sets that collide."""
    conflicting: int
    """Colliding pairs that share less than half of their labels."""
    disjoint: int
    """Colliding pairs without a common label."""
    misplaced: int
    items: int

    @property
    def matter(self) -> bool:
        """True if more than :data:`TOLERANCE` of the items are misplaced."""
        return self.misplaced > TOLERANCE * self.items

    def to_config(self) -> dict[str, Any]:
        numbers = asdict(self)
        return {"label_sets": numbers.pop("label_sets"), "collisions": numbers}


def count_collisions(codes: Mapping[str, Codes], labels: Mapping[str, Array]) -> Collisions:
    """Count label sets that share a code, over the labelled items of all modalities."""
    all_labels = np.concatenate([labels[modality] for modality in codes])
    labelled = all_labels.any(axis=1)
    all_labels, all_codes = all_labels[labelled], np.concatenate(list(codes.values()))[labelled]
    first_with_set, set_of = _distinct_rows(np.packbits(all_labels, axis=1))
    first_with_code, code_of = _distinct_rows(all_codes)
    n_sets, n_codes = len(first_with_set), len(first_with_code)
    sets = sparse.csr_array(all_labels[first_with_set], dtype=np.int32)
    held, counts = np.unique(code_of * n_sets + set_of, return_counts=True)  # (code, label set) pairs
    code, own = held // n_sets, held % n_sets
    pairs = conflicting = disjoint = 0
    for first, second in _colliding_pairs(code, own, n_codes, n_sets):
        common, union = _overlap(sets, first, second)
        pairs += len(first)
        conflicting += int((2 * common < union).sum())
        disjoint += int((common == 0).sum())
    by_size = np.lexsort((own, -counts, code))  # the most frequent label set of each code comes first
    most_frequent = own[by_size[np.unique(code[by_size], return_index=True)[1]]]
    common, union = _overlap(sets, own, most_frequent[code])
    misplaced = int(counts[2 * common < union].sum())
    return Collisions(n_sets, n_codes, pairs, conflicting, disjoint, misplaced, len(all_labels))


def _distinct_rows(values: Array) -> tuple[Array, Array]:
    """Return the first index of each distinct row of bytes, and the number of the distinct row of each row."""
    rows = np.ascontiguousarray(values).view(f"V{values.shape[1]}")[:, 0]  # much faster than np.unique(axis=0)
    _, first, which = np.unique(rows, return_index=True, return_inverse=True)
    return first, which


def _colliding_pairs(code: Array, own: Array, n_codes: int, n_sets: int) -> Iterator[tuple[Array, Array]]:
    """Yield the pairs of label sets that have a code in common, each pair once, in blocks."""
    holds = sparse.csr_array((np.ones(len(code), np.int32), (own, code)), shape=(n_sets, n_codes))
    by_code = holds.T.tocsr()
    for start in range(0, n_sets, _SETS_PER_BLOCK):
        first, second = (holds[start : start + _SETS_PER_BLOCK] @ by_code).nonzero()
        first = first + start
        yield first[first < second], second[first < second]


def _overlap(sets: sparse.csr_array, first: Array, second: Array) -> tuple[Array, Array]:
    sizes = sets.sum(axis=1)
    common = np.asarray(sets[first].multiply(sets[second]).sum(axis=1)).ravel()
    return common, sizes[first] + sizes[second] - common


def lengths_to_try(n_label_sets: int, n_items: int) -> list[tuple[int, ...]]:
    """Return code lengths in ascending order, in groups that are fitted together.

    AMSH finds about as many codes as bits, so the first length is the first of which twice reaches the number of label
    sets. If that length alone is smaller than the number of label sets, the next one is fitted with it, because one fit
    of both is cheaper than two. The longest length costs as much as all others together and is tried last and alone.

    Parameters
    ----------
    n_label_sets : number of distinct label sets of the training items
    n_items : number of items of the smallest modality; code lengths stay below it

    Examples
    --------
    >>> lengths_to_try(10, 2000), lengths_to_try(98, 1517), lengths_to_try(14_781, 17_664), lengths_to_try(10, 20)
    ([(32,), (64,), (128,), (256,)], [(64, 128), (256,)], [(128,), (256,)], [(16,)])
    """
    possible = [length for length in LENGTHS if length < n_items] or [longest_below(n_items)]
    enough = [length for length in possible if 2 * length >= n_label_sets or length == LENGTHS[-2]] or possible[-1:]
    lengths = possible[possible.index(enough[0]) :]
    both = len(lengths) > 1 and lengths[0] < n_label_sets and lengths[1] != LENGTHS[-1]
    n_first = 2 if both else 1
    return [tuple(lengths[:n_first]), *((length,) for length in lengths[n_first:])]


def longest_below(n_items: int) -> int:
    """Return the largest power of two below ``n_items``, at least 1."""
    return 1 << max(0, (n_items - 1).bit_length() - 1)


def fit_with_length(
    hasher: CrossModalHasher,
    n_bits: int | str,
    features: Mapping[str, Matrix],
    labels: Mapping[str, Array] | None,
    *,
    pairs: Array | None,
    callback: Callback | None,
) -> tuple[CrossModalHasher, Collisions | None, list[int]]:
    """Fit a method with ``n_bits``, or with the shortest sufficient code length if that is "auto".

    Return it with its collisions, which are None without labels, and the lengths tried.
    """
    n_items = min(values.shape[0] for values in features.values())
    if pairs is not None:
        n_items = min(n_items, len(pairs))
    if n_bits == AUTO and labels is None:
        n_bits = min(LENGTH_WITHOUT_LABELS, longest_below(n_items))
    if isinstance(n_bits, int):
        hasher.set_params(n_bits=n_bits).fit(features, labels, pairs=pairs, callback=callback)
        return hasher, count_collisions(hasher.codes_, labels) if labels is not None else None, [n_bits]
    assert labels is not None
    n_label_sets = len(_distinct_rows(np.packbits(np.concatenate(list(labels.values())), axis=1))[0])
    tried: list[int] = []
    best: tuple[CrossModalHasher, Collisions] | None = None
    for lengths in lengths_to_try(n_label_sets, n_items):
        for model in _fit_lengths(hasher, lengths, features, labels, pairs, callback):
            tried.append(model.n_bits)
            collisions = count_collisions(model.codes_, labels)
            if best is None or collisions.misplaced < best[1].misplaced:
                best = model, collisions
            if not collisions.matter:
                return model, collisions, tried
    assert best is not None
    return *best, tried


def _fit_lengths(
    hasher: CrossModalHasher,
    lengths: tuple[int, ...],
    features: Mapping[str, Matrix],
    labels: Mapping[str, Array],
    pairs: Array | None,
    callback: Callback | None,
) -> Iterator[CrossModalHasher]:
    """Yield a model of each length; fit them together if the method shares work between lengths."""
    from sklearn.base import clone

    if len(lengths) > 1 and hasher.shares_lengths:
        shown = _with_length(callback, ", ".join(map(str, lengths)))
        yield from hasher.fit_path(features, labels, n_bits=lengths, pairs=pairs, callback=shown).values()
        return
    for length in lengths:
        shown = _with_length(callback, str(length))
        yield clone(hasher).set_params(n_bits=length).fit(features, labels, pairs=pairs, callback=shown)


def _with_length(callback: Callback | None, length: str) -> Callback | None:
    if callback is None:
        return None

    def show(progress: Progress) -> None:
        callback(replace(progress, stage=f"{length} bits: {progress.stage}"))

    return show
