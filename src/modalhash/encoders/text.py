"""Text encoders without learned weights: TF-IDF, and hashing for streams. Both count words and pieces of words.

A text is normalised (Unicode NFKC, case-folded) and split into words. Pieces of a word, runs of a few letters with its
borders marked by a space, let ``Segelboot`` match ``Boote``. One sparse product counts them, so that Python code runs
once per distinct word; for a few texts, as in searches, rows are computed one by one, which is faster. TF-IDF mixes a
text with the *context* of its words, the mean row of the training texts with these words, because a single word is far
from every text that contains it among ten others.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import numpy as np
import scipy

from modalhash.core.blocks import row_slices
from modalhash.core.typing import Array
from modalhash.core.validation import check_int, check_number, check_sparse
from modalhash.encoders.encoder import EncoderBase, ItemError, State, not_fitted

WORD = re.compile(
    # all but white space and punctuation; \w would split words of Hindi or Thai at vowel signs, and drop emoji
    r"[^\s\x00-/:-@\[-`{-\xa9\xab-\xb4\xb6-\xb9\xbb-\xbf×÷\u2000-\u200b\u200e-\u206f\u3000-\u3004\u3008-\u3020\u30fb]+"
)
SHOWN = 40
BLOCK = 4096  # texts per block in which ``fit`` counts pieces
CONTEXT_TERMS = 64  # words and pieces with the largest weights that are kept of a word's context
CONTEXT_TEXTS = 50_000  # maximum number of texts that contexts are learned from, taken evenly from all
CONTEXT_BLOCK = 256  # words per block in which contexts are summed
CONTEXT_DECIMALS = 4  # contexts are rounded so that they do not depend on the order of the texts
FEW_TEXTS = 4  # number of texts up to which rows are computed one by one, which is then faster than matrices


class TfidfEncoder(EncoderBase):
    """TF-IDF of words and of pieces of words, as CSR.

    Counts c become 1 + log c and are weighted by log((1 + n) / (1 + df)) + 1 as in scikit-learn. Words and pieces have
    equal weight and a row has length 1. A text without known words or pieces is a row of zeros; a text without any word
    is an error. There is no list of stop words, because frequent words have small weights in any language.

    The context of a word is the mean row of the training texts that have it. The contexts of a text's known words,
    weighted like the words, are mixed into its row.

    Parameters
    ----------
    pieces : lengths of the shortest and longest piece of a word, or None for words alone
    min_df : minimum number of texts with a word or piece
    max_words, max_pieces : maximum size of the vocabulary, filled with those in most texts. The size of a model grows
        with them, because it stores some thousand anchors as dense rows
    context : share of the context in a row, from 0 (the text alone) to below 1

    Examples
    --------
    >>> encoder = TfidfEncoder().fit(["ein rotes Boot", "zwei Boote im Hafen"])
    >>> rows = encoder.encode(["das Segelboot", "Hafen"])
    >>> rows.shape == (2, encoder.dim), bool(rows[[0]].sum() > 0)
    (True, True)
    """

    name = "tfidf"
    reads = "text"

    def __init__(
        self,
        *,
        pieces: Sequence[int] | None = (3, 4),
        min_df: int = 1,
        max_words: int = 4096,
        max_pieces: int = 4096,
        context: float = 0.25,
    ) -> None:
        self.pieces = _check_pieces(pieces)
        self.min_df = check_int(min_df, "min_df", at_least=1)
        self.max_words = check_int(max_words, "max_words", at_least=1)
        self.max_pieces = check_int(max_pieces, "max_pieces", at_least=1)
        self.context = check_number(context, "context", at_least=0)
        if self.context >= 1:
            raise ValueError(f"context is {context}; expected a share of the row, from 0 to below 1")
        self._contexts: scipy.sparse.csr_array | None = None
        self._columns: list[dict[str, int]] | None = None
        self._idf: list[Array] = []

    def fit(self, items: Sequence[Any]) -> Self:
        """Learn vocabulary and weights; skip texts without a word, which ``encode`` refuses."""
        texts = [text for text in items if has_word(text)]
        if not texts:
            raise ValueError(f"'tfidf' learns its vocabulary from texts; none of {len(items)} items has a word")
        counts, words = _count_words(texts)
        tables = [(scipy.sparse.eye_array(len(words), format="csr", dtype=np.float32), words, self.max_words)]
        if self.pieces:
            column: dict[str, int] = {}
            low, high = self.pieces
            within = _count_terms(words, lambda word: pieces_of(word, low, high), column)
            tables.append((within, list(column), self.max_pieces))
        columns, weights = [], []
        for within, terms, most in tables:
            frequency = np.zeros(len(terms), dtype=np.int64)
            for rows in row_slices(len(texts), BLOCK):
                frequency += np.bincount((counts[rows] @ within).indices, minlength=len(terms))
            chosen = _most_frequent(terms, frequency, self.min_df, most)
            columns.append({terms[i]: column for column, i in enumerate(chosen)})
            weights.append((np.log((1 + len(texts)) / (1 + frequency[chosen])) + 1).astype(np.float32))
        if not any(columns):
            raise ValueError(f"no word or piece occurs in {self.min_df} of {len(texts)} texts; take min_df=1")
        self._columns, self._idf = columns, weights
        if self.context:
            step = -(-len(texts) // CONTEXT_TEXTS)
            self._contexts = _contexts(self._weighed(texts[::step]), len(columns[0]))
        return self

    @property
    def columns(self) -> dict[str, int]:
        """The columns of known words, which come before those of pieces."""
        return self._fitted()[0]

    @property
    def words(self) -> list[str]:
        return list(self.columns)

    @property
    def word_weights(self) -> Array:
        self._fitted()
        return self._idf[0]

    @property
    def dim(self) -> int:
        return sum(map(len, self._fitted()))

    def encode(self, batch: Sequence[Any]) -> scipy.sparse.csr_array:
        if len(batch) <= FEW_TEXTS:
            rows = [self._row(text) for text in batch]
            return scipy.sparse.csr_array(np.stack(rows) if rows else np.empty((0, self.dim), dtype=np.float32))
        return self._encode_many(batch)

    def _encode_many(self, batch: Sequence[Any]) -> scipy.sparse.csr_array:
        rows = self._weighed(batch)
        return rows if self._contexts is None else _mixed(rows, self._contexts, self.context)

    def _row(self, text: Any) -> Array:
        """Return the row of one text, dense; the same as that of :meth:`_encode_many` to 1e-6."""
        words = words_of(text)
        terms = [words]
        if self.pieces:
            low, high = self.pieces
            terms.append([piece for word in words for piece in pieces_of(word, low, high)])
        parts = []
        for own, columns, weights in zip(terms, self._fitted(), self._idf, strict=True):
            counts = Counter(columns[term] for term in own if term in columns)
            found = np.fromiter(counts, np.intp, len(counts))
            part = np.zeros(len(columns), dtype=np.float32)
            part[found] = _dampen(np.fromiter(counts.values(), np.float32, len(counts))) * weights[found]
            parts.append(_unit(part))
        row = np.concatenate(parts) / np.float32(np.sqrt(len(parts)))
        return row if self._contexts is None else _mixed_row(row, self._contexts, self.context)

    def _weighed(self, batch: Sequence[Any]) -> scipy.sparse.csr_array:
        """Return the rows of texts without contexts."""
        columns = self._fitted()
        counts, words = _count_words(batch)
        tables = [_count_terms(words, lambda word: [word], columns[0], fixed=True)]
        if self.pieces:
            low, high = self.pieces
            tables.append(_count_terms(words, lambda word: pieces_of(word, low, high), columns[1], fixed=True))
        parts = [_dampened(counts @ within) for within in tables]
        for part, weights in zip(parts, self._idf, strict=True):
            part.data *= weights[part.indices]
        return _joined(parts)

    def known(self, batch: Sequence[Any]) -> Array:
        """Return the share of each text's words in the vocabulary; pieces do not count.

        Examples
        --------
        >>> TfidfEncoder(min_df=1).fit(["ein rotes Boot"]).known(["rotes Segelboot", "Boot"]).tolist()
        [0.5, 1.0]
        """
        words = self._fitted()[0]
        return np.array([np.mean([word in words for word in words_of(text)]) for text in batch], dtype=np.float64)

    @property
    def state(self) -> State:
        config = {
            "pieces": None if self.pieces is None else list(self.pieces),
            "min_df": self.min_df,
            "max_words": self.max_words,
            "max_pieces": self.max_pieces,
            **({"context": self.context} if self.context else {}),  # restore uses 0 if it is missing
        }
        if self._columns is None:
            return State(config)
        arrays = {"idf": np.hstack(self._idf)}
        if self._contexts is not None:
            arrays |= {f"context_{name}": getattr(self._contexts, name) for name in ("data", "indices", "indptr")}
        return State({**config, "vocabulary": [list(column) for column in self._columns]}, arrays)

    @classmethod
    def restore(cls, state: State) -> Self:
        config = {"context": 0.0, **state.config}
        vocabulary = config.pop("vocabulary", None)
        encoder = cls(**config)
        if vocabulary is not None:
            sizes = [len(terms) for terms in vocabulary]
            idf = state.arrays["idf"]
            if len(idf) != sum(sizes) or len(sizes) != (2 if encoder.pieces else 1):
                raise ValueError(f"'tfidf': {len(idf)} weights for a vocabulary of {sizes}; the state is incomplete")
            encoder._columns = [{term: column for column, term in enumerate(terms)} for terms in vocabulary]
            encoder._idf = np.split(idf, np.cumsum(sizes)[:-1])
            if encoder.context:
                parts = tuple(state.arrays[f"context_{name}"] for name in ("data", "indices", "indptr"))
                encoder._contexts = scipy.sparse.csr_array(parts, shape=(sizes[0], sum(sizes)))
                check_sparse(encoder._contexts, "'tfidf', context")
        return encoder

    def _fitted(self) -> list[dict[str, int]]:
        if self._columns is None:
            raise not_fitted("the encoder 'tfidf' has no vocabulary yet; call fit(texts) with the training texts")
        return self._columns


class HashingEncoder(EncoderBase):
    """Words and pieces of words, assigned to columns by a hash, as CSR. Nothing is learned, so it suits streams.

    The first half of the columns is for words, the second for pieces. Different words may share a column; signs are
    hashed too, so that collisions cancel on average. Frequent words keep their weight, so ``tfidf`` is better if the
    training texts can be read once.

    Parameters
    ----------
    columns : features, an even number
    pieces : lengths of the shortest and longest piece of a word

    Examples
    --------
    >>> HashingEncoder().encode(["ein rotes Boot"]).shape
    (1, 8192)
    """

    name = "hashing"
    reads = "text"

    def __init__(self, *, columns: int = 8192, pieces: Sequence[int] = (3, 4)) -> None:
        self.columns = check_int(columns, "columns", at_least=2)
        if self.columns % 2:
            raise ValueError(f"columns is {columns}; expected an even number, half for words and half for pieces")
        if pieces is None:
            raise ValueError("pieces is None; expected the shortest and the longest piece, e.g. (3, 4)")
        self.pieces = _check_pieces(pieces)

    @property
    def dim(self) -> int:
        return self.columns

    def encode(self, batch: Sequence[Any]) -> scipy.sparse.csr_array:
        from sklearn.feature_extraction import FeatureHasher

        assert self.pieces is not None
        low, high = self.pieces
        counts, words = _count_words(batch)
        hasher = FeatureHasher(self.columns // 2, input_type="string", dtype=np.float32)
        column: dict[str, int] = {}
        pieces = _count_terms(words, lambda word: pieces_of(word, low, high), column)
        hashed_words, hashed_pieces = (hasher.transform([[term] for term in terms]) for terms in (words, column))
        return _joined([_dampened(counts) @ hashed_words, _dampened(counts @ pieces) @ hashed_pieces])

    @property
    def state(self) -> State:
        assert self.pieces is not None
        return State({"columns": self.columns, "pieces": list(self.pieces)})


def words_of(text: Any) -> list[str]:
    """Return the words of a text in order.

    Examples
    --------
    >>> words_of("Die Straße (nach Süden) – 2 Boote; blaue.")
    ['die', 'strasse', 'nach', 'süden', '2', 'boote', 'blaue']
    """
    if not isinstance(text, str):
        raise ItemError(f"got {type(text).__name__}; expected a text")
    words = WORD.findall(unicodedata.normalize("NFKC", text).casefold())
    if not words:
        raise ItemError("the text is empty" if not text.strip() else f"no word in the text {text[:SHOWN]!r}")
    return words


def pieces_of(word: str, low: int, high: int) -> list[str]:
    """Return the runs of ``low`` to ``high`` characters of a word with a space at both ends.

    Examples
    --------
    >>> pieces_of("boot", 3, 4)
    [' bo', 'boo', 'oot', 'ot ', ' boo', 'boot', 'oot ']
    """
    marked = f" {word} "
    return [marked[i : i + n] for n in range(low, high + 1) for i in range(len(marked) - n + 1)]


def _check_pieces(pieces: Sequence[int] | None) -> tuple[int, int] | None:
    if pieces is None:
        return None
    if len(pieces) != 2 or not all(isinstance(n, int) for n in pieces) or not 1 <= pieces[0] <= pieces[1]:
        raise ValueError(f"pieces is {pieces!r}; expected the shortest and the longest piece, e.g. (3, 4), or None")
    return pieces[0], pieces[1]


def has_word(text: Any) -> bool:
    try:
        return bool(words_of(text))
    except ItemError:
        return False


def _most_frequent(terms: list[str], frequency: Array, least: int, most: int) -> list[int]:
    """Return the indices of the most frequent terms in alphabetical order, independent of the texts' order."""
    enough = np.flatnonzero(frequency >= least).tolist()
    best = sorted(enough, key=lambda i: (-frequency[i], terms[i]))[:most]
    return sorted(best, key=lambda i: terms[i])


def _count_words(texts: Sequence[Any]) -> tuple[scipy.sparse.csr_array, list[str]]:
    """Return the counts of each distinct word in each text, float32 CSR ``(texts, words)``, and the words."""
    column: dict[str, int] = {}
    return _count_terms(texts, words_of, column), list(column)


def _count_terms(
    things: Iterable[Any], terms_of: Callable[[Any], list[str]], column: dict[str, int], *, fixed: bool = False
) -> scipy.sparse.csr_array:
    """Return counts of each thing's terms; ``column`` grows by new terms unless ``fixed``."""
    indices: list[int] = []
    starts = [0]
    for thing in things:
        if fixed:
            indices.extend(column[term] for term in terms_of(thing) if term in column)
        else:
            indices.extend([column.setdefault(term, len(column)) for term in terms_of(thing)])
        starts.append(len(indices))
    values = np.ones(len(indices), dtype=np.float32)
    counts = scipy.sparse.csr_array(
        (values, np.array(indices, dtype=np.int32), np.array(starts)), shape=(len(starts) - 1, len(column))
    )
    counts.sum_duplicates()
    return counts


def _contexts(rows: scipy.sparse.csr_array, n_words: int) -> scipy.sparse.csr_array:
    """Return, for each of the first ``n_words`` columns, the largest terms of the mean row of its texts."""
    from sklearn.preprocessing import normalize

    rows = rows.astype(np.float64)
    has_word = (rows[:, :n_words] > 0).astype(np.float64).T.tocsr()
    kept: list[scipy.sparse.csr_array] = []
    for words in row_slices(n_words, CONTEXT_BLOCK):
        has = has_word[words]
        means = normalize(has, norm="l1", copy=False) @ rows
        means.data = np.round(means.data, CONTEXT_DECIMALS)
        means.sort_indices()
        kept.append(_largest(means, CONTEXT_TERMS))
    return scipy.sparse.csr_array(scipy.sparse.vstack(kept, format="csr"), dtype=np.float32)


def _largest(rows: scipy.sparse.csr_array, most: int) -> scipy.sparse.csr_array:
    """Keep the ``most`` largest values of each row; of equal ones the first."""
    number = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    order = np.lexsort((rows.indices, -rows.data, number))
    rank = np.arange(len(order)) - rows.indptr[number[order]]
    chosen = order[(rank < most) & (rows.data[order] > 0)]
    return scipy.sparse.csr_array((rows.data[chosen], (number[chosen], rows.indices[chosen])), shape=rows.shape)


def _mixed(rows: scipy.sparse.csr_array, contexts: scipy.sparse.csr_array, share: float) -> scipy.sparse.csr_array:
    """Mix rows with the contexts of their words, at length 1; leave rows without known words unchanged."""
    context = unit_csr(rows[:, : contexts.shape[0]] @ contexts)
    known = np.diff(context.indptr) > 0
    mixed = unit_csr((1 - share) * rows + share * context)
    lengths = np.where(known, 1, _lengths(rows)).astype(np.float32)
    mixed = scipy.sparse.csr_array(scipy.sparse.diags_array(lengths) @ mixed, dtype=np.float32)
    mixed.sort_indices()
    return mixed


def _joined(parts: Sequence[scipy.sparse.csr_array]) -> scipy.sparse.csr_array:
    """Concatenate parts whose rows are scaled to length 1; the result has length 1 if no part is 0."""
    whole = scipy.sparse.hstack([unit_csr(part) for part in parts], format="csr", dtype=np.float32)
    whole.data /= np.float32(np.sqrt(len(parts)))
    whole.sort_indices()
    return scipy.sparse.csr_array(whole)


def unit_csr(rows: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """Scale rows to length 1 in place; a row of zeros stays zero."""
    lengths = _lengths(rows)
    rows.data = (rows.data / np.repeat(lengths, np.diff(rows.indptr))).astype(rows.dtype)
    return rows


def _lengths(rows: scipy.sparse.csr_array) -> Array:
    """Return the lengths of rows; 1 for a row of zeros."""
    squares = np.zeros(rows.shape[0])
    filled = np.flatnonzero(np.diff(rows.indptr))
    if len(filled):
        squares[filled] = np.add.reduceat(rows.data * rows.data, rows.indptr[filled], dtype=np.float64)
    return np.sqrt(np.where(squares > 0, squares, 1))


def _dampened(counts: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    counts.data = _dampen(counts.data)
    return counts


def _dampen(counts: Array) -> Array:
    return np.asarray(1 + np.log(counts, dtype=np.float32))


def _mixed_row(row: Array, contexts: scipy.sparse.csr_array, share: float) -> Array:
    context = np.zeros_like(row)
    for word in np.flatnonzero(row[: contexts.shape[0]]).tolist():
        terms = slice(contexts.indptr[word], contexts.indptr[word + 1])
        context[contexts.indices[terms]] += row[word] * contexts.data[terms]
    if not context.any():
        return row
    return _unit((1 - share) * row + share * _unit(context))


def _unit(values: Array) -> Array:
    return values / (np.linalg.norm(values) or np.float32(1))
