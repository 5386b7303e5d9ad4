"""Words as queries in an engine that has pictures and no texts, and labels of texts by the names they contain.

A text gets a label if it contains a word of the label's name, singular or plural, or a word of nearly the same meaning,
if the encoder knows one (:attr:`~modalhash.encoders.EncoderBase.same_meaning`). The limits were chosen on folds:
benchmarks/quality/without_labels.py. Such labels are weak, so they are used for learning only.

A word that names a label is searched as that label, with the posterior of an item that has it. If the encoders of
pictures and texts share a space (:mod:`modalhash.engine.search.refinement`), all words together are a vector in it.
Codes are predicted from both by least squares on the training pictures.

A query may have several parts, ``snowy mountains``: each label that it names, and all words together if some do not
name a label. The confidence of a picture is that of the part that it matches least.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from modalhash.core.codes import pack_signs, unpack_signs
from modalhash.core.linalg import unit_rows
from modalhash.core.typing import Array, Codes
from modalhash.data import label_matrix
from modalhash.engine.search.query import Query, QueryPart, check_words
from modalhash.engine.search.refinement import Refinement

if TYPE_CHECKING:
    from modalhash.encoders import Encoder


WORD = re.compile(r"[^\W\d_]+")
MIN_LETTERS = 3
"""Shorter words of a name, like *in* and *of*, do not count."""
WORDS_AT_ONCE = 64
"""Words per call of an encoder."""
MAX_EXAMPLES = 3


@dataclass(frozen=True)
class NamedLabels:
    """Result of :func:`find_named_labels`."""

    labels: list[tuple[str, ...]]
    """Labels of each text, in the order of the names."""
    words: Mapping[str, tuple[str, ...]]
    """Words of the texts, and the labels that they represent."""
    likeness: Mapping[str, float] = field(default_factory=dict)
    """Cosine with the label's word, for words that are matched by meaning."""

    def to_config(self) -> dict[str, Any]:
        """Return the numbers of labelled texts and of labels, and the most frequent labels with a word each."""
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
    """Return for each text the labels that its words name, by meaning too if ``encoder`` compares words.

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
    """Return a word without its English plural ending, for comparisons; other words may lose an s.

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
    return list(dict.fromkeys(singular(word) for word in WORD.findall(name) if len(word) >= MIN_LETTERS))


def _nearest(words: Sequence[str], targets: Sequence[str], encoder: Encoder | None) -> dict[str, tuple[str, float]]:
    """Return the target nearest in meaning, and the cosine, for each word that has one near enough."""
    encoder = getattr(encoder, "sentences", encoder)  # part of an encoder that combines it with word counts
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


TEXT = "text"
"""Modality of words as queries; no item has it."""
N_SUGGESTED, N_GOOD, SUGGESTED, ALIKE = 12, 5, 0.45, 0.5
"""Largest number of suggested words; the number of pictures each must find; their least cosine; the cosine from which
two words are too similar."""
MAX_LABELS = 3
"""Number of labels up to which each is a part; a text that names more is one part."""
UNLIKE = 0.5
"""Cosine of words at which the certainty of a label is 0."""
RIDGE = 1e-2
"""Ridge of the fit of codes, relative to the mean square of the predictors."""


@dataclass(frozen=True)
class PhotoWords:
    """Encodes words; made by :func:`words_for` and :func:`learn_word_codes`."""

    encoder: Encoder | None
    """Encodes texts in the space of the pictures; without one, only labels are understood."""
    class_names: Sequence[str]
    """The learned labels."""
    refinement: Refinement

    def read(self, texts: Sequence[str]) -> list[Query]:
        check_words(texts)
        rows = np.flatnonzero(np.abs(self.refinement.basis).sum(axis=1)).tolist()  # without labels learned online
        named = find_named_labels(texts, [self.class_names[row] for row in rows], self.encoder)
        labels = label_matrix(named.labels, self.class_names)
        features = None if self.encoder is None else self.encoder.encode(list(texts))
        vectors = word_vectors(self.refinement, labels, features)
        known = np.array([float(bool(own)) for own in named.labels])
        said: list[dict[str, str]] = [_said(text, named.words) for text in texts]
        if self.encoder is not None:
            understood = getattr(self.encoder, "known", lambda batch: np.ones(len(batch)))
            known = np.maximum(known, understood(texts))
            said = [{**_read_as(self.encoder, text), **own} for text, own in zip(texts, said, strict=True)]
        return [
            Query(
                code,
                TEXT,
                vector=vectors[row],
                text=text,
                known=share,
                familiarity=share,
                read_as=said[row],
                parts=self._parts(text, named, labels[row], vectors[row]),
            )
            for row, (text, code, share) in enumerate(
                zip(texts, word_codes(self.refinement, vectors), known.tolist(), strict=True)
            )
        ]

    def _parts(self, text: str, named: NamedLabels, labels: Array, vector: Array) -> tuple[QueryPart, ...]:
        """Return the labels that a text names, and the whole text if some of its words name none."""
        columns = np.flatnonzero(labels)
        if len(columns) > MAX_LABELS and self.encoder is not None:
            columns = columns[:0]
        words = [word for word in WORD.findall(text.casefold()) if len(word) >= MIN_LETTERS]
        whole = self.encoder is not None and (not len(columns) or any(word not in named.words for word in words))
        rows = np.repeat(vector[None], len(columns) + whole, axis=0)
        rows[:, : self.refinement.n_posterior] = 0
        each = np.zeros((len(columns), len(labels)), dtype=bool)
        each[np.arange(len(columns)), columns] = True
        if len(columns):
            rows[: len(columns), : self.refinement.n_posterior] = self.refinement.label_posteriors(each)
        names = [*(self.class_names[column] for column in columns.tolist()), *([None] * whole)]
        sure = [1.0 if name is None else _how_sure(name, words, named) for name in names]
        return tuple(map(QueryPart, word_codes(self.refinement, rows), rows, names, sure))


def words_for(image: Encoder, given: Encoder | None, class_names: Sequence[str]) -> Encoder | None:
    """Return the picture encoder's text encoder, or ``given`` if both share a space, else None."""
    from modalhash.encoders import NOUNS

    space = getattr(image, "space", None)
    if space is None:
        return None
    make = getattr(image, "text_encoder", None)
    encoder = None if make is None else make()
    if encoder is None:
        encoder = given if getattr(given, "space", None) == space else None
    if encoder is None:
        return None
    try:
        encoder.fit([*NOUNS, *class_names]).encode(list(NOUNS))
    except ValueError:  # an encoder of another package may refuse these
        return None
    return encoder


def suggest_words(refinement: Refinement, pictures: Array, labels: Counter[str]) -> list[str]:
    """Return everyday nouns that find something: frequent labels or, without labels, names of pictures.

    ``pictures`` are refinement vectors. Near-synonyms of names are dropped.
    """
    from modalhash.encoders import NOUNS

    if labels:
        return [label for label, _ in labels.most_common() if label.casefold() in NOUNS][:N_SUGGESTED]
    if refinement.meaning is None or not len(pictures):
        return []
    part = refinement.meaning_values
    encoder = refinement.encoders[TEXT]
    nouns = refinement.meaning.vectors(TEXT, encoder, encoder.encode(list(NOUNS))).astype(np.float32) / 127
    cosines = np.sort(nouns @ (pictures[:, part].astype(np.float32) / 127).T, axis=1)[:, -N_GOOD:]
    chosen: list[int] = []
    for row in np.argsort(-cosines.mean(axis=1), kind="stable").tolist():
        if cosines[row, 0] < SUGGESTED or len(chosen) == N_SUGGESTED:
            break
        if not chosen or float((nouns[chosen] @ nouns[row]).max()) < ALIKE:
            chosen.append(row)
    return [NOUNS[row] for row in chosen]


def word_vectors(refinement: Refinement, labels: Array, features: Any) -> Array:
    """Return refinement vectors of words, int8, from the labels they name (words, labels) and their features."""
    width = max(refinement.width(name) for name in refinement.components)
    vectors = np.zeros((len(labels), width), dtype=np.int8)
    if refinement.knows_labels:
        vectors[:, : refinement.n_posterior] = refinement.label_posteriors(labels)
    if refinement.meaning is not None and features is not None:
        meaning = refinement.meaning.vectors(TEXT, refinement.encoders[TEXT], features)
        vectors[:, refinement.meaning_values] = meaning
    return vectors


def word_codes(refinement: Refinement, vectors: Array) -> Codes:
    """Predict the codes of pictures with such vectors."""
    assert refinement.word_codes is not None
    return pack_signs(_first_parts(refinement, vectors) @ refinement.word_codes)


def learn_word_codes(refinement: Refinement, vectors: Array, codes: Codes, n_bits: int) -> Refinement:
    """Return a refinement that also predicts codes, from the vectors and codes of pictures."""
    known = _first_parts(refinement, vectors)
    gram = known.T @ known
    gram[np.diag_indices(len(gram))] += RIDGE * np.trace(gram) / len(gram)
    weights = np.linalg.solve(gram, known.T @ unpack_signs(codes, n_bits).astype(np.float64))
    return replace(refinement, word_codes=weights.astype(np.float32))


def _first_parts(refinement: Refinement, vectors: Array) -> Array:
    """Return the posterior and the meaning of vectors, and a 1."""
    posterior = vectors[:, : refinement.n_posterior] * refinement.posterior_step
    meaning = vectors[:, refinement.meaning_values] / 127
    return np.hstack([posterior, meaning, np.ones((len(vectors), 1))])


def _said(text: str, words: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return the words of a text that were read as labels of another spelling."""
    own = {form: words[form.casefold()] for form in WORD.findall(text) if form.casefold() in words}
    return {form: names[0] for form, names in own.items() if not any(_names(form, name) for name in names)}


def _how_sure(label: str, words: Sequence[str], named: NamedLabels) -> float:
    """Return the certainty that words mean a label: 1 by its name, otherwise by their cosine."""
    cosines = [named.likeness.get(word, 1.0) for word in words if label in named.words.get(word, ())]
    return float(np.clip((max(cosines, default=1.0) - UNLIKE) / (1 - UNLIKE), 0, 1))


def _names(word: str, label: str) -> bool:
    return singular(word) in map(singular, WORD.findall(label.casefold()))


def _read_as(encoder: Encoder, text: str) -> dict[str, str]:
    read = getattr(encoder, "read_as", None)
    return {} if read is None else {word: other for word, other in read([text])[0].items() if not _names(word, other)}
