"""Queries: raw items, features or stored items, encoded into codes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import sparse

from modalhash.core.blocks import has_features
from modalhash.core.codes import n_bytes, pack_signs
from modalhash.core.typing import Array, Codes, Matrix
from modalhash.engine.search.refinement import model_features
from modalhash.engine.settings import SearchOptions
from modalhash.store import KINDS, Comparison, Filter, FilterError, Key, Record

if TYPE_CHECKING:
    from modalhash.encoders import Encoder
    from modalhash.engine.items.item import ItemFiles
    from modalhash.engine.search.confidence import Confidence
    from modalhash.engine.search.refinement import Refinement
    from modalhash.methods.fitted import FittedHasher


MAX_HINTS = 3


class UnknownLabelError(FilterError):
    """A filter names a label that no item of the engine has."""


def check_filter(
    where: Filter,
    *,
    trained_labels: Iterable[str],
    all_labels: Callable[[], Mapping[str, int]],
    modalities: Iterable[str],
) -> None:
    """Raise FilterError if the filter names a label, kind or modality that no item can have.

    ``all_labels`` reads the store, so it is called only for labels that were not trained on.
    """
    modalities = tuple(modalities)
    trained = {label.casefold() for label in trained_labels}
    for comparison in where.comparisons():
        if comparison.field == "label":
            if str(comparison.value).casefold() not in trained:
                _check_label(comparison, all_labels())
        elif comparison.field in ("kind", "modality"):
            known = KINDS if comparison.field == "kind" else modalities
            if comparison.value not in known:
                raise FilterError(
                    f"{comparison}: the engine has no {comparison.field} {comparison.value!r}; it has "
                    f"{', '.join(map(repr, known))}"
                )


def _check_label(comparison: Comparison, labels: Mapping[str, int]) -> None:
    wanted = str(comparison.value).casefold()
    names = {label.casefold(): label for label in labels}
    if wanted in names:
        return
    close = get_close_matches(wanted, names, n=MAX_HINTS)
    close += [name for name in names if wanted in name and name not in close]
    hints = [repr(names[name]) for name in close[:MAX_HINTS]]
    if hints:
        hint = f"did you mean {' or '.join(hints)}?"
    elif names:
        hint = f"labels are, for example, {', '.join(map(repr, list(labels)[:MAX_HINTS]))}"
    else:
        hint = "no item has labels"
    raise UnknownLabelError(f"no item has the label {str(comparison.value)!r}; {hint}")


SHORTLIST_RATIO, MIN_SHORTLIST = 10, 200
"""Items that ``asymmetric=True`` re-ranks: 10 times k, and at least 200."""
FAMILIAR = 0.5
"""Familiarity below which a query gets a message."""
MAX_SERIAL_QUERIES = 8
"""Number of queries up to which threads cost more than they save."""


class QueryPart(NamedTuple):
    """One of the things that a query asks for."""

    code: Codes
    vector: Array
    label: str | None = None
    """The label that the part names, if it names one."""
    sure: float = 1.0
    """Certainty of the label; below 1 for a word that only means about the same."""


@dataclass(frozen=True)
class SearchRequest:
    """One query code with its options."""

    code: Codes
    """Packed, one row."""
    options: SearchOptions = field(default_factory=SearchOptions)
    projection: Array | None = None
    """Real-valued projections for ``asymmetric=True``."""
    exclude: Key | None = None
    """Key of an item that is never a hit: the query itself."""
    vector: Array | None = None
    """Refinement vector of the query."""
    modality: str | None = None
    text: str | None = None
    """Text whose words are searched with ``hybrid=True``."""
    rewritten_text: str | None = None
    """The text with unknown words replaced by known ones, searched if the text's own words find nothing."""
    familiarity: float = 1.0
    """How well the engine knows the query's words or features, from 0 to 1."""
    parts: tuple[QueryPart, ...] = ()
    words: SearchRequest | None = None
    """Words that come with a picture and are searched together with it."""

    @property
    def reranked(self) -> bool:
        """Whether hits are ordered by the query's projections."""
        return self.options.asymmetric and self.projection is not None

    @property
    def refined(self) -> bool:
        """Whether hits are ordered by refinement vectors."""
        return self.options.refine and self.vector is not None and not self.reranked

    @property
    def filtered(self) -> bool:
        return self.options.filter is not None

    @property
    def n_candidates(self) -> int:
        """The number of items that must pass the filter: the hits, or the shortlist to re-rank."""
        options = self.options
        if not self.reranked:
            return options.k
        return max(SHORTLIST_RATIO * options.k, MIN_SHORTLIST) if options.shortlist is None else options.shortlist


@dataclass(frozen=True)
class QueryBatch:
    """Encoded queries, as :meth:`modalhash.engine.Engine.prepare` returns them."""

    modality: str | None
    """None for stored items of several modalities."""
    codes: Codes
    projections: Array | None = None
    """Real-valued projections for ``asymmetric=True``."""
    records: list[Record] | None = None
    """The stored items, if they are the queries."""
    vectors: list[Array | None] | None = None
    """Refinement vectors, int8; None for a stored item without one."""
    known_share: Array | None = None
    """Fraction of each query's words that the engine knows; None for pictures and features."""
    familiarity: Array | None = None
    """How well the engine knows the words or features of each query, from 0 to 1."""
    texts: list[str] | None = None
    rewritten_text: list[str] | None = None
    """The texts with unknown words replaced by known ones, if the encoder can do so."""
    read_as: list[dict[str, str]] | None = None
    """Words of each text that were read as others, e.g. ``{"perro": "dog"}``."""
    parts: list[tuple[QueryPart, ...]] | None = None
    words: QueryBatch | None = None
    """The words that come with each picture."""

    def __len__(self) -> int:
        return len(self.codes)

    def request(self, row: int, options: SearchOptions = SearchOptions()) -> SearchRequest:  # noqa: B008 (frozen)
        return SearchRequest(
            self.codes[row],
            options,
            None if self.projections is None else self.projections[row],
            exclude=None if self.records is None else self.records[row].key,
            vector=None if self.vectors is None else self.vectors[row],
            modality=self.modality if self.records is None else self.records[row].modality,
            text=None if self.texts is None else self.texts[row],
            rewritten_text=None if self.rewritten_text is None else self.rewritten_text[row],
            familiarity=1.0 if self.familiarity is None else float(self.familiarity[row]),
            parts=() if self.parts is None else self.parts[row],
            words=None if self.words is None else self.words.request(row, options),
        )

    def words_read_as(self, row: int) -> dict[str, str]:
        """Return the words of a query that were read as others, including words that come with a picture."""
        own = {} if self.read_as is None else self.read_as[row]
        return own if self.words is None else {**own, **self.words.words_read_as(row)}

    @property
    def unknown(self) -> Array:
        """Whether the engine hardly knows each query, so that its hits say little."""
        return np.array([self.message(row) is not None for row in range(len(self))], dtype=bool)

    def message(self, row: int) -> str | None:
        """Return a message about a query that is hardly known, or None."""
        if self.words is not None:
            return self.words.message(row)
        if self.known_share is not None and not self.known_share[row]:
            return "None of these words is known, so hits found by meaning say little."
        if self.familiarity is None or self.familiarity[row] >= FAMILIAR:
            return None
        if self.known_share is None:
            return "This is unlike all training items, so its hits say little."
        if self.texts is not None and len(self.texts[row].split()) == 1:
            return "This word is hardly known, so hits found by meaning say little."
        return "Few of these words are known, so hits found by meaning say little."

    def warning(self) -> str | None:
        """Return a warning about queries that are hardly known, or None."""
        if len(self) == 1:
            return self.message(0)
        n = int(np.count_nonzero(self.unknown))
        return (
            f"{n} of {len(self)} queries are hardly known ({self.modality!r}), so their hits say little." if n else None
        )


def the_only_argument(given: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the name and value of the one argument that is not None; TypeError for none or several."""
    chosen = [(name, value) for name, value in given.items() if value is not None]
    if len(chosen) != 1:
        names = " and ".join(name for name, _ in chosen)
        raise TypeError(f"search got {names or 'no query'}; expected one of {', '.join(given)}")
    return chosen[0]


def encode_contents(
    model: FittedHasher,
    encoder: Encoder,
    modality: str,
    contents: Sequence[Any],
    *,
    asymmetric: bool,
    refinement: Refinement | None = None,
    confidence: Confidence | None = None,
) -> QueryBatch:
    """Encode queries given as texts, pictures or other inputs of the encoder."""
    if encoder.reads == "array":
        raise ValueError(
            f"{modality!r} was trained on given features, so a query must be features too: search(features=…, "
            f"modality={modality!r}), or id=… of a stored item"
        )
    if encoder.reads == "text":
        check_words(contents)
    features = _features_of(encoder, contents)
    batch = encode_features(
        model, encoder, modality, features, asymmetric=asymmetric, refinement=refinement, confidence=confidence
    )
    texts = [content for content in contents if isinstance(content, str)]
    if encoder.reads != "text" or len(texts) < len(contents):
        return batch
    known_share = encoder.known(texts) if hasattr(encoder, "known") else np.ones(len(texts))
    familiarity = known_share if confidence is None else confidence.text_familiarity(modality, known_share)
    rewritten = encoder.in_known_words(texts) if hasattr(encoder, "in_known_words") else None
    read_as = encoder.read_as(texts) if hasattr(encoder, "read_as") else None
    return replace(
        batch, texts=texts, known_share=known_share, familiarity=familiarity, rewritten_text=rewritten, read_as=read_as
    )


def check_words(queries: Sequence[Any]) -> None:
    """Raise ValueError for an empty query."""
    for number, query in enumerate(queries, 1):
        if isinstance(query, str) and not query.strip():
            which = "the query" if len(queries) == 1 else f"query {number} of {len(queries)}"
            how = "only white space" if query else "empty"
            raise ValueError(f"{which} is {how}; expected some words, e.g. 'red boat'")


def encode_features(
    model: FittedHasher,
    encoder: Encoder,
    modality: str,
    features: Matrix,
    *,
    asymmetric: bool,
    refinement: Refinement | None = None,
    confidence: Confidence | None = None,
) -> QueryBatch:
    """Encode queries given as a matrix, or one row, of features."""
    rows = features if sparse.issparse(features) else np.atleast_2d(np.asarray(features))
    if rows.shape[0] == 0:
        return QueryBatch(modality, np.empty((0, n_bytes(model.n_bits)), np.uint8))
    projections, mapped = model.project(modality, model_features(model, encoder, rows))
    familiarity = has_features(rows).astype(float)
    if confidence is not None:
        familiarity *= confidence.familiarity(modality, rows)
    vectors = None
    if refinement is not None:
        vectors = list(refinement.vectors(modality, rows, mapped=mapped if refinement.model is model else None))
    return QueryBatch(
        modality,
        pack_signs(projections),
        projections if asymmetric else None,
        vectors=vectors,
        familiarity=familiarity,
    )


def encode_records(
    model: FittedHasher,
    encoders: Mapping[str, Encoder],
    records: Sequence[Record],
    *,
    files: ItemFiles,
    asymmetric: bool,
) -> QueryBatch:
    """Return the codes of stored items as queries; project their contents if ``asymmetric``."""
    modalities = {record.modality for record in records}
    modality = modalities.pop() if len(modalities) == 1 else None
    codes = np.frombuffer(b"".join(bytes(record.code) for record in records), dtype=np.uint8)
    codes = codes.reshape(len(records), n_bytes(model.n_bits))
    vectors = [
        None if record.refinement is None else np.frombuffer(record.refinement, dtype=np.int8) for record in records
    ]
    if not asymmetric:
        return QueryBatch(modality, codes, records=list(records), vectors=vectors)
    projections = np.empty((len(records), model.n_bits), dtype=np.float32)
    for row, record in enumerate(records):
        encoder = encoders[record.modality]
        content: Any = files.find(record.uri) if record.text is None else record.text
        if encoder.reads == "array" or content is None:
            raise ValueError(f"{record.id}: only its code is stored, so asymmetric=True has no projections to rank by")
        features = model_features(model, encoder, _features_of(encoder, [content]))
        projections[row] = model.decision_function({record.modality: features})[record.modality][0]
    return QueryBatch(modality, codes, projections, list(records), vectors)


def _features_of(encoder: Encoder, contents: Sequence[Any]) -> Matrix:
    from modalhash.encoders import encode_batch, encode_items

    serial = len(contents) <= MAX_SERIAL_QUERIES
    if serial:
        with suppress(ValueError, OSError):  # the slower path below names the bad query
            return encode_batch(encoder, contents)
    encoded = encode_items(encoder, contents, workers=1 if serial else None)
    if encoded.failures:
        first = encoded.failures[0]
        which = f"query {first.row + 1} of {len(contents)}: " if len(contents) > 1 else ""
        raise ValueError(f"{which}{first.reason if isinstance(contents[first.row], bytes) else first}")
    return encoded.features
