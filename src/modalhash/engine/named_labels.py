"""Labels for texts that have none: those whose names they contain.

Photos in folders ``boat/`` and ``beach/`` have labels that are words, and a text with the word *boats* is about one of
them. A label is given to a text where a word of its name stands in the text, singular or plural; or, if the text
encoder can tell which words mean about the same (:attr:`~modalhash.encoders.EncoderBase.same_meaning`), a word whose
meaning is nearest to that word's: then *Himmel* has the label ``sky`` too. Which words of a name count, and how near a
meaning has to be, was chosen on folds: benchmarks/quality/without_labels.py.

Such labels are weak: a text may name a thing that it is not about. They are learned from and nothing else. Items keep
the labels that they were given, and searches and filters see those alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from modalhash.linalg import unit_rows

if TYPE_CHECKING:
    from modalhash.encoders import Encoder

WORD = re.compile(r"[^\W\d_]+")
MIN_LETTERS = 3
"""Shorter words of a name do not count: *in*, *&*, *of* stand in any text."""
WORDS_AT_ONCE = 64
"""Words that an encoder is given at once."""
MAX_EXAMPLES = 3


@dataclass(frozen=True)
class NamedLabels:
    """What :func:`find_named_labels` found."""

    labels: list[tuple[str, ...]]
    """Of each text, in the order of the names."""
    words: Mapping[str, tuple[str, ...]]
    """Words of the texts, and the labels that they stand for."""
    likeness: Mapping[str, float] = field(default_factory=dict)
    """Of words that are read by their meaning, the cosine with the word of the label."""

    def to_config(self) -> dict[str, Any]:
        """Return how many texts have labels, how many labels there are, and the most frequent ones with a word each."""
        counts = Counter(label for some in self.labels for label in some)
        frequent = [label for label, _ in counts.most_common(MAX_EXAMPLES)]
        shown = [next(word for word, some in self.words.items() if label in some) for label in frequent]
        return {
            "texts": len(self.labels),
            "labelled": sum(map(bool, self.labels)),
            "labels": len(counts),
            "examples": {label: [word, counts[label]] for label, word in zip(frequent, shown, strict=True)},
        }


def find_named_labels(texts: Sequence[str], names: Iterable[str], encoder: Encoder | None = None) -> NamedLabels:
    """Return for each text the labels that its words name.

    Parameters
    ----------
    texts : without labels
    names : of the labels
    encoder : of the texts; one that knows which words mean about the same finds those as well

    Examples
    --------
    >>> find_named_labels(["two boats on a lake", "ein Haus"], ["boat", "lakes & rivers"]).labels
    [('boat', 'lakes & rivers'), ()]
    """
    names = list(dict.fromkeys(names))
    by_word: dict[str, list[str]] = {}
    for name in names:
        for word in _name_words(name):
            by_word.setdefault(word, []).append(name)
    words_of = [list(dict.fromkeys(WORD.findall(text.casefold()))) for text in texts]
    frequency = Counter(word for words in words_of for word in words)
    vocabulary = [word for word, _ in frequency.most_common()]
    stands_for = {word: [singular(word)] if singular(word) in by_word else [] for word in vocabulary}
    likeness = {}
    for word, (near, cosine) in _nearest(vocabulary, list(by_word), encoder).items():
        if not stands_for[word]:
            likeness[word] = cosine
        stands_for[word].append(near)
    order = {name: number for number, name in enumerate(names)}
    found = {
        word: tuple(sorted({name for one in some for name in by_word[one]}, key=order.__getitem__))
        for word, some in stands_for.items()
        if some
    }
    labels = [
        tuple(sorted({name for word in words for name in found.get(word, ())}, key=order.__getitem__))
        for words in words_of
    ]
    return NamedLabels(labels, found, likeness)


def singular(word: str) -> str:
    """Return a word without the plural that English has, in one form for comparing; other words may lose an s.

    Examples
    --------
    >>> [singular(word) for word in ("boats", "cities", "churches", "glass", "bus", "sea")]
    ['boat', 'city', 'church', 'glass', 'bus', 'sea']
    """
    word = word.casefold()
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 4 and word.endswith(("ches", "shes", "xes", "sses")):
        return word[:-2]
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _name_words(name: str) -> list[str]:
    """Return the words of a label's name that count."""
    return list(dict.fromkeys(singular(word) for word in WORD.findall(name) if len(word) >= MIN_LETTERS))


def _nearest(words: Sequence[str], targets: Sequence[str], encoder: Encoder | None) -> dict[str, tuple[str, float]]:
    """Return the target nearest in meaning to each word that has one near enough, and the cosine."""
    encoder = getattr(encoder, "sentences", encoder)  # of an encoder that joins one with counted words
    least = getattr(encoder, "same_meaning", None)
    if encoder is None or least is None or not words or not targets:
        return {}
    goals, near = _vectors(encoder, targets), {}
    for start in range(0, len(words), WORDS_AT_ONCE):
        some = words[start : start + WORDS_AT_ONCE]
        cosines = _vectors(encoder, some) @ goals.T
        for word, best, row in zip(some, cosines.argmax(axis=1).tolist(), cosines, strict=True):
            if row[best] >= least:
                near[word] = targets[best], float(row[best])
    return near


def _vectors(encoder: Encoder, words: Sequence[str]) -> np.ndarray[Any, Any]:
    parts = [encoder.encode(words[start : start + WORDS_AT_ONCE]) for start in range(0, len(words), WORDS_AT_ONCE)]
    return unit_rows(np.vstack([part.toarray() if hasattr(part, "toarray") else part for part in parts]))
