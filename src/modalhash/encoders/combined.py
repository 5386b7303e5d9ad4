r"""Combine counted words with a sentence encoder: known words are counted, others contribute by meaning.

A row is :math:`[t, s\,v] / \sqrt{1 + s^2}`. :math:`t` is the row of :class:`TfidfEncoder`, in which every unknown word
is read as the known words nearest in meaning (:mod:`modalhash.encoders.semantic`), and :math:`v` the sentence vector.
The scale :math:`s` is the one with which a kernel ridge regression best predicts the labels of held-out training texts,
and of single words of them. :math:`s = 0` omits sentence vectors and is used only if it is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import scipy

from modalhash.core.typing import Array, Matrix
from modalhash.core.validation import check_number
from modalhash.encoders.encoder import EncoderBase, State, check_weights, not_fitted
from modalhash.encoders.semantic import (
    UNDERSTOOD,
    MultilingualE5,
    Neighbours,
    SentenceEncoder,
    UniversalSentenceEncoder,
    WordNeighbours,
    known_shares,
    senses_arrays,
    senses_from,
    surface_forms,
    words_read_as,
    written_words,
)
from modalhash.encoders.text import TfidfEncoder, has_word, unit_csr

SCALES = (0.5, 1.0, 2.0)
DEFAULT_SCALE = 1.0  # scale if there are too few labels to choose one
RIDGES = (0.1, 1.0)  # regularisation of the regression; the better one counts
UNKNOWN_WEIGHT = 0.5
"""Weight of an unknown word, relative to 1 for a known one; chosen on folds, benchmarks/quality/semantic.py."""
N_FOLDS = 3
MAX_TEXTS = 600  # maximum number of labelled texts that the scale is chosen on
MIN_TEXTS = 30  # minimum number of labelled texts to choose the scale on


class CombinedTextEncoder(EncoderBase):
    """TF-IDF, with unknown words by meaning, concatenated with a sentence vector; CSR.

    Parameters
    ----------
    scale : s, length of the sentence vector relative to TF-IDF's; None to choose it in :meth:`fit_labelled`
    """

    reads = "text"
    parallel = True
    sentence_encoder: ClassVar[type[SentenceEncoder]]

    def __init__(self, *, scale: float | None = None) -> None:
        self.scale = None if scale is None else check_number(scale, "scale", at_least=0)
        self._sentences = self.sentence_encoder()
        self._words = TfidfEncoder()
        self._senses: WordNeighbours | None = None
        self._scale = DEFAULT_SCALE if self.scale is None else self.scale

    @property
    def sentences(self) -> SentenceEncoder:
        """The encoder of whole texts, which needs no training."""
        return self._sentences

    @property
    def learned_scale(self) -> float:
        return self._scale

    def fit(self, items: Sequence[Any]) -> Self:
        """Learn vocabulary, weights and word neighbours; the scale is the given one or the default."""
        texts = [text for text in items if has_word(text)]
        self._words = TfidfEncoder().fit(texts if texts else items)
        self._sentences.learn_space()
        forms = surface_forms(texts)
        self._senses = WordNeighbours.learn([forms[word] for word in self._words.words], self._sentences)
        words = self._words.words
        self._sentences.keep_rows([words[row] for row in np.argsort(self._words.word_weights, kind="stable")])
        self._scale = DEFAULT_SCALE if self.scale is None else self.scale
        return self

    def fit_labelled(self, items: Sequence[Any], labels: Array) -> Self:
        """Learn the same, and the scale from the 0/1 labels (items, labels)."""
        self.fit(items)
        rows = [row for row in np.flatnonzero(labels.any(axis=1)).tolist() if has_word(items[row])]
        if self.scale is None and len(rows) >= MIN_TEXTS:
            chosen = np.random.default_rng(0).permutation(rows)[:MAX_TEXTS].tolist()
            self._scale = self._chosen_scale([items[row] for row in chosen], labels[chosen].astype(np.float64))
        return self

    @property
    def dim(self) -> int:
        self._fitted()
        return self._words.dim + (self._sentences.dim if self._scale else 0)

    def encode(self, batch: Sequence[Any]) -> scipy.sparse.csr_array:
        if not len(batch):
            return scipy.sparse.csr_array((0, self.dim), dtype=np.float32)
        rows = word_rows(batch, self._words, self._fitted(), self._sentences)
        if not self._scale:
            return rows
        vectors = scipy.sparse.csr_array(np.float32(self._scale) * self._sentences.encode(batch))
        whole = scipy.sparse.hstack([rows, vectors], format="csr", dtype=np.float32)
        whole.data /= np.float32(np.sqrt(1 + self._scale**2))
        return scipy.sparse.csr_array(whole)

    def in_space(self, features: Matrix) -> Array:
        """Return texts in the space of the sentence encoder, from the sentence vectors in their features."""
        if self.space is None:
            return super().in_space(features)
        vectors = scipy.sparse.csr_array(features)[:, self._words.dim :].toarray()
        return self._sentences.in_space(vectors * np.float32(np.sqrt(1 + self._scale**2) / self._scale))

    @property
    def space(self) -> str | None:  # type: ignore[override]
        """The space of the sentence encoder; None if the scale is 0."""
        return self._sentences.space if self._scale else None

    def known(self, batch: Sequence[Any]) -> Array:
        """Return the share of each text's words that is known or, in part, understood."""
        return known_shares(batch, self._words.columns, self._fitted(), self._sentences)

    def read_as(self, batch: Sequence[Any], *, least: float = UNDERSTOOD) -> list[dict[str, str]]:
        """Return for each text its understood unknown words and the known words they are read as."""
        return words_read_as(batch, self._words.words, self._fitted(), self._sentences, least=least)

    def in_known_words(self, batch: Sequence[Any], *, least: float = UNDERSTOOD) -> list[str]:
        """Return texts with each understood unknown word replaced by the known word nearest in meaning.

        Other unknown words stay as written, and a text without any such word is returned unchanged.
        """
        read = self.read_as(batch, least=least)
        return [
            " ".join(own.get(form, form) for _, form in written_words(text)) if own else text
            for text, own in zip(batch, read, strict=True)
        ]

    @property
    def state(self) -> State:
        words = self._words.state
        config = {"scale": self.scale, "weights": self._sentences._sha256, "tfidf": dict(words.config)}
        if self._senses is None:
            return State(config)
        arrays = {f"tfidf_{name}": values for name, values in words.arrays.items()}
        return State(
            {**config, "learned_scale": self._scale, **self._sentences.kept.config},
            {**arrays, **senses_arrays(self._senses), **self._sentences.space_arrays, **self._sentences.kept.arrays},
        )

    @classmethod
    def restore(cls, state: State) -> Self:
        config = state.config
        encoder = cls(scale=config["scale"])
        check_weights(cls.name, encoder._sentences._sha256, config["weights"])
        arrays = {name.removeprefix("tfidf_"): values for name, values in state.arrays.items() if "tfidf_" in name}
        encoder._words = TfidfEncoder.restore(State(config["tfidf"], arrays))
        if "learned_scale" in config:
            encoder._scale = check_number(config["learned_scale"], "learned_scale", at_least=0)
            encoder._senses = senses_from(state.arrays, len(encoder._words.words), cls.name)
            encoder._sentences.set_space(state.arrays)
            encoder._sentences.set_kept(state)
        return encoder

    def _fitted(self) -> WordNeighbours:
        if self._senses is None:
            raise not_fitted(f"the encoder {self.name!r} has no vocabulary yet; call fit(texts) with training texts")
        return self._senses

    def _chosen_scale(self, texts: list[str], labels: Array) -> float:
        """Return the scale that best predicts labels of held-out texts and words; the smallest of equals."""
        scores = np.zeros(len(SCALES))
        vectors = self._sentences.quick_rows(texts).astype(np.float64)
        for fold in self._folds(texts):
            wanted = labels[fold.held_out]
            queries = np.vstack([vectors[fold.held_out], self._sentences.quick_rows(fold.single_words)])
            near = queries @ vectors[fold.learned].T
            own = vectors[fold.learned] @ vectors[fold.learned].T
            for number, scale in enumerate(SCALES):
                K, Q = fold.own + scale**2 * own, fold.near + scale**2 * near
                predicted = [_predicted(K, Q, labels[fold.learned], ridge * (1 + scale**2)) for ridge in RIDGES]
                scores[number] += max(_agreement(values, np.vstack([wanted, wanted])) for values in predicted)
        return SCALES[int(np.argmax(scores))]

    def _folds(self, texts: list[str]) -> Iterator[_Fold]:
        """Yield held-out texts and words with their inner products in TF-IDF space."""
        rng = np.random.default_rng(1)
        number = rng.permutation(len(texts)) % N_FOLDS
        senses, columns = self._fitted(), self._words.columns
        for k in range(N_FOLDS):
            learned, held_out = np.flatnonzero(number != k), np.flatnonzero(number == k)
            words = TfidfEncoder().fit([texts[row] for row in learned])
            own_senses = senses.only(np.array([columns.get(word, -1) for word in words.words]))
            single = []
            for row in held_out:
                forms = written_words(texts[row])
                single.append(forms[int(rng.integers(len(forms)))][1])
            rows = word_rows([texts[row] for row in learned], words, own_senses, self._sentences, quick=True)
            asked = [*(texts[row] for row in held_out), *single]
            queries = word_rows(asked, words, own_senses, self._sentences, quick=True)
            yield _Fold(learned, held_out, single, (rows @ rows.T).toarray(), (queries @ rows.T).toarray())


class _Fold(NamedTuple):
    """A fold of texts, without sentence vectors."""

    learned: Array
    held_out: Array
    single_words: list[str]  # one word of each held-out text
    own: Array  # inner products of the training texts
    near: Array  # inner products of held-out texts, then of single words, with the training texts


class TextAndUse(CombinedTextEncoder):
    """Counted words and the Universal Sentence Encoder: ``text+use``."""

    name = "text+use"
    sentence_encoder = UniversalSentenceEncoder


class TextAndE5(CombinedTextEncoder):
    """Counted words and multilingual E5: ``text+e5``."""

    name = "text+e5"
    sentence_encoder = MultilingualE5


def word_rows(
    batch: Sequence[Any],
    words: TfidfEncoder,
    senses: WordNeighbours,
    sentences: SentenceEncoder,
    *,
    quick: bool = False,
) -> scipy.sparse.csr_array:
    """Return TF-IDF rows in which unknown words are replaced by those nearest in meaning."""
    rows = words.encode(batch)
    columns = words.columns
    written = [written_words(text) for text in batch]
    unknown = sorted({form for own in written for word, form in own if word not in columns})
    if not unknown or not senses.enough:
        return rows
    number = {form: row for row, form in enumerate(unknown)}
    entries = [
        (row, number[form], 1 / len(own))
        for row, own in enumerate(written)
        for word, form in own
        if word not in columns
    ]
    shares = _from_entries(entries, (len(batch), len(unknown)))
    meant = unit_csr(shares @ _rows_by_meaning(unknown, words, senses.meaning(unknown, sentences, quick=quick)))
    share = np.asarray(shares.sum(axis=1)).ravel()
    changed = np.flatnonzero(share)
    mixed = unit_csr(
        scipy.sparse.diags_array(1 - share[changed]) @ unit_csr(rows[changed])
        + scipy.sparse.diags_array(UNKNOWN_WEIGHT * share[changed]) @ meant[changed]
    )
    place = _from_entries([(row, i, 1.0) for i, row in enumerate(changed.tolist())], (len(batch), len(changed)))
    same = scipy.sparse.diags_array((share == 0).astype(np.float32))  # texts without unknown words are unchanged
    out = scipy.sparse.csr_array(same @ rows + place @ mixed, dtype=np.float32)
    out.eliminate_zeros()
    out.sort_indices()
    return out


def _rows_by_meaning(unknown: Sequence[str], words: TfidfEncoder, meaning: Neighbours) -> scipy.sparse.csr_array:
    """Return the weighted sum of the rows of the known words nearest to each unknown word."""
    used, place = np.unique(meaning.columns, return_inverse=True)
    weights = meaning.weights * words.word_weights[meaning.columns]
    row = np.repeat(np.arange(len(unknown)), meaning.columns.shape[1])
    standing = scipy.sparse.csr_array((weights.ravel(), (row, place.ravel())), shape=(len(unknown), len(used)))
    return scipy.sparse.csr_array(standing @ words.encode([words.words[column] for column in used.tolist()]))


def _from_entries(entries: list[tuple[int, int, float]], shape: tuple[int, int]) -> scipy.sparse.csr_array:
    if not entries:
        return scipy.sparse.csr_array(shape, dtype=np.float64)
    row, column, value = (np.array(part) for part in zip(*entries, strict=True))
    return scipy.sparse.csr_array((value, (row, column)), shape=shape)


def _predicted(K: Array, Q: Array, labels: Array, ridge: float) -> Array:
    targets = labels / np.sqrt(np.maximum(labels.sum(axis=1, keepdims=True), 1))
    mean = targets.mean(axis=0)
    weights = np.linalg.solve(K + ridge * np.eye(len(K)), targets - mean)
    return np.asarray(Q @ weights + mean)


def _agreement(predicted: Array, labels: Array) -> float:
    norms = np.linalg.norm(predicted, axis=1) * np.linalg.norm(labels, axis=1)
    return float(np.mean(np.einsum("ij,ij->i", predicted, labels) / np.where(norms > 0, norms, 1)))
