r"""What a word means that no training text has: known words that are near it in the space of a sentence encoder.

``Weihnachten`` is near ``christmas`` and ``xmas``, ``kitten`` near ``cat``. Vectors are compared by the cosine after
the mean of all known words is taken off, which vectors of some encoders have in common.

How far a word is understood is told by two things. Letters that mean nothing are cut into many short pieces, where a
word of any language that the encoder knows is cut into few. And among the known words a few stand out as near, where
nothing is near to nonsense or all is a little: the *contrast* of the nearest word and the twentieth. Words with their
letters shuffled tell the contrast of nonsense, known words among the others the contrast that is usual; in between, a
word is understood in part.
"""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from modalhash.core.typing import Array
from modalhash.encoders.text import WORD, words_of

NEAREST = 40
"""Known words that stand for an unknown one."""
POWER = 2
"""Of their similarities, as weights: chosen on folds with :data:`NEAREST`, benchmarks/quality/semantic.py."""
CONTRAST_RANK = 20
"""The known word whose similarity that of the nearest is compared with."""
BYTES_PER_PIECE = 2.5
"""Of a word that means something, at least, unless it is one piece: of German names of OpenMoji 95 in 100 words have
more, of English ones with their letters shuffled about one in ten."""
LIKE = 0.5
"""Cosine from which a word is read as the known word nearest to it. Of 40 invented words (blorp, frobnicate) none
reaches it, of 50 words in ten languages all but seven do."""
DOUBTFUL = 0.25
"""How far a word of several pieces is understood, at most, that is near to no known word."""
TRIED = 300
"""Words that tell what contrast is usual, and as many shuffled ones."""
MIN_WORDS = 3 * CONTRAST_RANK
"""With fewer known words none need be near an unknown one: no unknown word is understood."""


class Sentences(Protocol):
    """What is asked of a sentence encoder here."""

    def encode(self, batch: Sequence[str]) -> Array:
        """Return rows of texts, each as if it were alone."""

    def quick_rows(self, texts: Sequence[str]) -> Array:
        """Return rows of texts, made together: they may differ from others in the last digits."""

    def n_pieces(self, words: Sequence[str]) -> Array:
        """Return how many pieces each word is cut into."""


class Neighbours(NamedTuple):
    """What some unknown words mean."""

    columns: Array
    """Numbers of known words, those nearest to each word: (words, at most :data:`NEAREST`)."""
    weights: Array
    """Of these, rows with the sum 1."""
    understood: Array
    """How far each word is understood, from 0 to 1."""
    nearest: Array
    """The number of the known word nearest to each."""
    likeness: Array
    """Its cosine."""


class WordNeighbours:
    """Known words as points in the space of a sentence encoder; made by :meth:`learn`.

    Parameters
    ----------
    rows : float16 (words, features), of length 1 after ``mean`` was taken off
    mean : of the rows before, float32
    limits : contrast of nonsense, and the usual one
    """

    def __init__(self, rows: Array, mean: Array, limits: Array) -> None:
        self.rows, self.mean, self.limits = rows, mean, limits
        self._wide: Array | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_wide": None}  # four times as large: made anew where it is needed

    @property
    def _points(self) -> Array:
        if self._wide is None:
            self._wide = self.rows.astype(np.float64)
        return self._wide

    @classmethod
    def learn(cls, words: Sequence[str], sentences: Sentences) -> Self:
        """Place known words, each written as it mostly is; what shuffles them is always the same."""
        rows = sentences.quick_rows(words)
        mean = rows.mean(axis=0, dtype=np.float32)
        senses = cls(_unit(rows - mean).astype(np.float16), mean, np.array([0.0, 1.0], dtype=np.float32))
        if len(words) < MIN_WORDS:
            return senses
        rng = np.random.default_rng(0)
        chosen = rng.permutation(len(words))[:TRIED]
        own = senses._points[chosen] @ senses._points.T
        own[np.arange(len(chosen)), chosen] = -1
        shuffled = ["".join(rng.permutation(list(words[row])).tolist()) for row in chosen.tolist()]
        noise = senses._similarities(shuffled, sentences.quick_rows)
        limits = [float(np.median(_contrast(values))) for values in (noise, own)]
        senses.limits = np.array([limits[0], max(limits[1], limits[0] + 1e-3)], dtype=np.float32)
        return senses

    @property
    def enough(self) -> bool:
        """Whether there are so many known words that some are near to an unknown one."""
        return len(self.rows) >= MIN_WORDS

    def only(self, rows: Array) -> WordNeighbours:
        """Return the same with some of the words; −1 is a word that is near to none."""
        chosen = self.rows[rows]
        chosen[rows < 0] = 0
        return WordNeighbours(chosen, self.mean, self.limits)

    def meaning(self, words: Sequence[str], sentences: Sentences, *, quick: bool = False) -> Neighbours:
        """Return what at least one unknown word means, each written as it was or with a capital, as nouns may be.

        With ``quick`` its last digits may depend on the words beside it.
        """
        similar = self._similarities(words, sentences.quick_rows if quick else sentences.encode)
        columns = _largest(similar, min(NEAREST, similar.shape[1]))
        weights = np.maximum(np.take_along_axis(similar, columns, 1), 1e-6) ** POWER
        weights /= weights.sum(axis=1, keepdims=True)
        nearest = similar.argmax(axis=1)
        likeness = similar.max(axis=1)
        if not self.enough:
            return Neighbours(columns, weights, np.zeros(len(words)), nearest, likeness)
        nonsense, usual = self.limits.tolist()
        understood = np.clip((_contrast(similar) - nonsense) / (usual - nonsense), 0, 1)
        n_bytes = np.array([len(word.encode("utf-8", "replace")) for word in words])
        pieces = np.minimum(sentences.n_pieces(words), sentences.n_pieces([word.capitalize() for word in words]))
        understood *= (pieces <= 1) | (n_bytes >= BYTES_PER_PIECE * pieces)
        understood *= np.where((pieces <= 1) | (likeness >= LIKE), 1, DOUBTFUL)
        return Neighbours(columns, weights, understood, nearest, likeness)

    def _similarities(self, words: Sequence[str], rows_of: Callable[[Sequence[str]], Array]) -> Array:
        """Cosines with all known words, of each word in that of its two forms that is nearer to one."""
        forms = [*words, *(word.capitalize() for word in words)]
        # rounded, so that the last digits, which depend on how many words are multiplied at once, do not count
        both = np.round(_unit(rows_of(forms) - self.mean) @ self._points.T, 6)
        written, capital = both[: len(words)], both[len(words) :]
        return np.where((written.max(axis=1) >= capital.max(axis=1))[:, None], written, capital)


def written_words(text: str) -> list[tuple[str, str]]:
    """Return the words of a text, each as the encoders of words have it and as it is written.

    Examples
    --------
    >>> written_words("Ein Boot")
    [('ein', 'Ein'), ('boot', 'Boot')]
    """
    words = words_of(text)
    forms = WORD.findall(unicodedata.normalize("NFKC", text))
    return list(zip(words, forms if len(forms) == len(words) else words, strict=True))


def surface_forms(texts: Iterable[str]) -> Mapping[str, str]:
    """Return how each word of some texts is mostly written."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for text in texts:
        for word, form in written_words(text):
            counts[word][form] += 1
    return {word: min(forms, key=lambda form: (-forms[form], form)) for word, forms in counts.items()}


def _largest(values: Array, n: int) -> Array:
    """Return the columns of the n largest values of each row, in ascending order; of equal ones the first."""
    least = np.partition(values, -n, axis=1)[:, [-n]]
    first = np.argsort((values < least).astype(np.int8) * 2 + (values == least), axis=1, kind="stable")[:, :n]
    return np.sort(first, axis=1)


def _contrast(similar: Array) -> Array:
    """Return by how much the nearest known word is nearer than the twentieth."""
    best = np.partition(similar, [-CONTRAST_RANK, -1], axis=1)
    return np.asarray(best[:, -1] - best[:, -CONTRAST_RANK])


def _unit(rows: Array) -> Array:
    rows = rows.astype(np.float64)
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return np.asarray(rows / np.where(norms > 0, norms, 1)[:, None])
