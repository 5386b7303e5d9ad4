r"""Queries: raw items, features or stored items, encoded into codes, and the stored texts that have their words.

Codes find items that share labels with a query, but do not know words that no training item had, so its words are
searched too. If no item has one of them, the known words nearest in meaning are searched, if the encoder knows them.

:func:`expand_query` is pseudo-relevance feedback [1]_: it moves the query's posterior :math:`q` towards the posteriors
:math:`p_t` of the best stored texts :math:`t` by BM25 that contain all its words. Texts that name the words early count
more. The code is not changed.

.. math:: q' = \frac{q + \beta \sum_t w_t p_t}{1 + \beta}, \qquad w_t \propto 1 / (1 + \text{words before in } t)

References
----------
.. [1] J. J. Rocchio: Relevance feedback in information retrieval. In: The SMART Retrieval System, 1971.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import scipy

from modalhash.core.codes import pack_signs
from modalhash.core.label_names import label_key
from modalhash.core.typing import Array, Codes, Matrix
from modalhash.engine.search.refinement import has_features, model_features
from modalhash.engine.settings import SearchOptions
from modalhash.store import KINDS, Comparison, Filter, FilterError, Record, Store, all_of, any_value

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
    trained = {label_key(label) for label in trained_labels}
    for comparison in where.comparisons():
        if comparison.field == "label":
            if label_key(str(comparison.value)) not in trained:
                _check_label(comparison, all_labels())
        elif comparison.field in ("kind", "modality"):
            known = KINDS if comparison.field == "kind" else modalities
            if comparison.value not in known:
                raise FilterError(
                    f"{comparison}: the engine has no {comparison.field} {comparison.value!r}; it has "
                    f"{', '.join(map(repr, known))}"
                )


def _check_label(comparison: Comparison, labels: Mapping[str, int]) -> None:
    wanted = label_key(str(comparison.value))
    names = {label_key(label): label for label in labels}
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
class Query:
    """All that is known of one query; made by :meth:`modalhash.engine.Engine.prepare`."""

    code: Codes
    """Packed, one row."""
    modality: str | None = None
    projection: Array | None = None
    """Real-valued projections for ``asymmetric=True``."""
    vector: Array | None = None
    """Refinement vector, int8; None for a stored item without one."""
    item: Record | None = None
    """The stored item that is the query, and therefore never a hit."""
    text: str | None = None
    """Text whose words are searched with ``hybrid=True``."""
    rewritten_text: str | None = None
    """The text with unknown words replaced by known ones, searched if the text's own words find nothing."""
    known: float | None = None
    """Fraction of the text's words that the engine knows; None for pictures and features."""
    familiarity: float = 1.0
    """How well the engine knows the query's words or features, from 0 to 1."""
    read_as: Mapping[str, str] = field(default_factory=dict)
    """Words that were read as others, e.g. ``{"perro": "dog"}``."""
    parts: tuple[QueryPart, ...] = ()
    words: Query | None = None
    """Words that come with a picture or an item and are searched together with it."""
    matches: tuple[Record, ...] = ()
    """Stored items with its words, the best first; found by the search."""
    matches_rewritten: bool = False
    """Whether they have the words of the rewritten text instead."""
    message: str | None = field(init=False)
    """A message about a query that the engine hardly knows, so that its hits say little; None if it knows it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", self._message())

    def _message(self) -> str | None:
        if self.known == 0:
            return "None of these words is known, so hits found by meaning say little."
        if self.familiarity >= FAMILIAR:
            return None if self.words is None else self.words.message
        if self.known is None:
            return "This is unlike all training items, so its hits say little."
        if self.text is not None and len(self.text.split()) == 1:
            return "This word is hardly known, so hits found by meaning say little."
        return "Few of these words are known, so hits found by meaning say little."

    def with_words(self, words: Query) -> Query:
        """Return this picture or item together with words."""
        return replace(self, words=words, read_as={**self.read_as, **words.read_as})


Asked: TypeAlias = tuple[Query, SearchOptions]


def unknown_warning(queries: Sequence[Query]) -> str | None:
    """Return a warning about queries that are hardly known, or None."""
    messages = [query.message for query in queries if query.message is not None]
    if len(queries) == 1 or not messages:
        return next(iter(messages), None)
    kind = queries[0].modality
    return f"{len(messages)} of {len(queries)} queries are hardly known ({kind!r}), so their hits say little."


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
) -> list[Query]:
    """Encode queries given as texts, pictures or other inputs of the encoder."""
    if encoder.reads == "array":
        raise ValueError(
            f"{modality!r} was trained on given features, so a query must be features too: search(features=…, "
            f"modality={modality!r}), or id=… of a stored item"
        )
    if encoder.reads == "text":
        check_words(contents)
    queries = encode_features(
        model,
        encoder,
        modality,
        _features_of(encoder, contents),
        asymmetric=asymmetric,
        refinement=refinement,
        confidence=confidence,
    )
    if encoder.reads != "text" or not all(isinstance(content, str) for content in contents):
        return queries
    texts = list(contents)
    known = np.asarray(encoder.known(texts) if hasattr(encoder, "known") else np.ones(len(texts)))
    familiarity = known if confidence is None else confidence.text_familiarity(modality, known)
    rewritten = encoder.in_known_words(texts) if hasattr(encoder, "in_known_words") else repeat(None)
    read_as = encoder.read_as(texts) if hasattr(encoder, "read_as") else repeat({})
    return [
        replace(query, text=text, known=share, familiarity=own, rewritten_text=others, read_as=forms)
        for query, text, share, own, others, forms in zip(
            queries, texts, known.tolist(), familiarity.tolist(), rewritten, read_as, strict=False
        )
    ]


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
) -> list[Query]:
    """Encode queries given as a matrix, or one row, of features."""
    rows = features if scipy.sparse.issparse(features) else np.atleast_2d(np.asarray(features))
    if rows.shape[0] == 0:
        return []
    projections, mapped = model.project(modality, model_features(model, encoder, rows))
    familiarity = has_features(rows).astype(float)
    if confidence is not None:
        familiarity *= confidence.familiarity(modality, rows)
    vectors: Iterable[Array | None] = repeat(None, len(projections))
    if refinement is not None:
        vectors = refinement.vectors(modality, rows, mapped=mapped if refinement.model is model else None)
    return [
        Query(code, modality, projection if asymmetric else None, vector, familiarity=own)
        for code, projection, vector, own in zip(
            pack_signs(projections), projections, vectors, familiarity.tolist(), strict=True
        )
    ]


def encode_records(
    model: FittedHasher,
    encoders: Mapping[str, Encoder],
    records: Sequence[Record],
    *,
    files: ItemFiles,
    asymmetric: bool,
) -> list[Query]:
    """Return the codes of stored items as queries; project their contents if ``asymmetric``."""
    queries = []
    for record in records:
        code = np.frombuffer(bytes(record.code), dtype=np.uint8)
        vector = None if record.refinement is None else np.frombuffer(record.refinement, dtype=np.int8)
        projection = _projection(model, encoders[record.modality], record, files) if asymmetric else None
        queries.append(Query(code, record.modality, projection, vector, item=record))
    return queries


def _projection(model: FittedHasher, encoder: Encoder, record: Record, files: ItemFiles) -> Array:
    content: Any = files.find(record.uri) if record.text is None else record.text
    if encoder.reads == "array" or content is None:
        raise ValueError(f"{record.id}: only its code is stored, so asymmetric=True has no projections to rank by")
    features = model_features(model, encoder, _features_of(encoder, [content]))
    projection = model.decision_function({record.modality: features})[record.modality][0]
    return np.asarray(projection, dtype=np.float32)


def _features_of(encoder: Encoder, contents: Sequence[Any]) -> Matrix:
    from modalhash.encoders import encode_items

    serial = len(contents) <= MAX_SERIAL_QUERIES
    if serial and encoder.reads == "text":
        with suppress(ValueError, OSError):  # the slower path below names the bad query
            return encoder.encode(contents)
    encoded = encode_items(encoder, contents, workers=1 if serial else None)
    if encoded.failures:
        first = encoded.failures[0]
        which = f"query {first.row + 1} of {len(contents)}: " if len(contents) > 1 else ""
        raise ValueError(f"{which}{first.reason if isinstance(contents[first.row], bytes) else first}")
    return encoded.features


WEIGHT, N_TEXTS = 1.0, 30
"""β, and the largest number of texts: chosen on folds, benchmarks/quality/named_things.py."""
UNFOUND = 9
"""Words before, if a text has the query's words in another form."""
_WORD = re.compile(r"[^\W_]+")


def with_matches(asked: Sequence[Asked], store: Store, n_posterior: int) -> list[Asked]:
    """Return the queries with the stored items that contain their words, moved towards the texts among these."""
    texts = [_numbers_of_texts(*one, store) if n_posterior else [] for one in asked]
    found = [_numbers_of_items(*one, store) for one in asked]
    numbers = {*chain(*texts), *chain.from_iterable(items for items, _ in found)}
    if not numbers:
        return list(asked)
    records = store.records(sorted(numbers))

    def there(numbers: Iterable[int]) -> list[Record]:
        return [records[number] for number in numbers if number in records]

    matched = []
    for (query, options), own, (items, rewritten) in zip(asked, texts, found, strict=True):
        vector, matches = expand_query(query, there(own), n_posterior), tuple(there(items))
        if matches or vector is not query.vector:
            query = replace(query, vector=vector, matches=matches, matches_rewritten=rewritten)
        matched.append((query, options))
    return matched


def _numbers_of_texts(query: Query, options: SearchOptions, store: Store) -> list[int]:
    if query.text is None or query.vector is None or not options.hybrid:
        return []
    own = _of_modality(str(query.modality))
    numbers: list[int] = store.search_text(query.text, where=own, limit=N_TEXTS, match_all=True).tolist()
    return numbers


@cache
def _of_modality(name: str) -> Comparison:
    return Comparison("modality", "=", name)


def _numbers_of_items(query: Query, options: SearchOptions, store: Store) -> tuple[list[int], bool]:
    """Return the items that contain words of the text, or else of the rewritten text, and whether of the latter."""
    if query.text is None or not options.hybrid or options.radius is not None:
        return [], False
    where = options.filter if options.want is None else all_of(any_value("modality", options.want), options.filter)
    numbers: list[int] = store.search_text(query.text, where=where, limit=options.k).tolist()
    if numbers or query.rewritten_text in (None, query.text):
        return numbers, False
    return store.search_text(query.rewritten_text, where=where, limit=options.k).tolist(), True


def expand_query(query: Query, texts: Sequence[Record], n_posterior: int) -> Array | None:
    """Return the query's vector with its posterior moved towards those of texts with all its words."""
    found = [record for record in texts if len(record.refinement or b"") >= n_posterior]
    if not found or query.text is None or query.vector is None:
        return query.vector
    asked = set(_WORD.findall(query.text.casefold()))
    weights = np.array([1 / (1 + _words_before(asked, record.text)) for record in found])
    posteriors = np.array([np.frombuffer(record.refinement or b"", np.int8)[:n_posterior] for record in found])
    vector = query.vector.copy()
    moved = (vector[:n_posterior] + WEIGHT * (weights / weights.sum()) @ posteriors) / (1 + WEIGHT)
    vector[:n_posterior] = np.rint(moved)
    return vector


def _words_before(asked: set[str], text: str | None) -> int:
    """Return the number of words before the first one in ``asked``."""
    words = _WORD.findall((text or "").casefold())
    return next((place for place, word in enumerate(words) if word in asked), UNFOUND)
