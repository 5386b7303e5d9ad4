r"""Confidence: the probability that a hit shares a label with the query, learned with the engine.

A fifth of the training items is held out. The method and the refinement vectors are learned again from the others, and
the held-out items search among them and among themselves. For each kind of pair, e.g. a text that finds an image with a
learned code, a logistic regression maps the :class:`PairFeatures` to the probability :math:`P` that both share a label.

With the *familiarity* :math:`f` of the query in [0, 1] and the fraction :math:`b` of all pairs of that kind that share
a label, the confidence is

.. math:: b + f \, (P - b)

A text is familiar if half of its words are known; the familiarity of a text without any known word is measured on
held-out texts. A picture, or another dense vector, is familiar unless it deviates from the training items more than
nearly all held-out items do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy
from threadpoolctl import threadpool_limits

from modalhash.core.codes import pack_signs
from modalhash.core.files import NONSENSE, write_atomically
from modalhash.core.randomness import row_keys
from modalhash.core.typing import Array, Codes, Matrix
from modalhash.engine.search.ordering import CODE_WEIGHT, EMBEDDING_WEIGHT, MEANING_WEIGHT
from modalhash.engine.search.photo_words import TEXT, word_codes, word_vectors
from modalhash.engine.search.refinement import EMBEDDING_DIMENSIONS, Learned, Refinement
from modalhash.engine.search.reliability import Bin, reliability_bins

if TYPE_CHECKING:
    from modalhash.methods.base import CrossModalHasher

WEAK = 0.5
"""A hit is weak below this fraction of the way from chance to 1."""
ENOUGH_WORDS = 0.5
"""Fraction of known words from which a text is fully familiar; set by hand on held-out training texts."""
UNKNOWN_WORDS = 0.45
"""Default familiarity of a text without a known word, measured on OpenMoji's names."""
MIN_UNKNOWN = 20
"""Least number of held-out texts without a known word to measure their familiarity."""
HELD_OUT = 5
"""One of 5 items is held out."""
MAX_ITEMS = 25_000
"""Largest number of items per modality to learn from; more would hardly change the curves."""
MIN_HELD_OUT = 20
"""Least number of held-out items of a modality to learn from."""
MAX_QUERIES = 500
"""Largest number of held-out queries per modality."""
USUAL_LABEL = 5
"""Least number of items of a label whose name is a query."""
N_HITS = 24
"""First hits of every query that are sampled; lower ranks are sampled too, to learn low confidence."""
FAR_RANKS, FAR_WEIGHT = 12, 0.1
"""Number of lower ranks, and the weight of each: chosen on folds."""
USUAL, LAST = 0.95, 0.995
"""Quantiles of held-out items: a deviation up to the first is familiar, from the second on it is not."""
FILE = "confidence.json"
BY_MEANING = "text by meaning"
"""Replaces the modality of a query whose words do not name a label."""
NAMES_WEIGHT, NAMES_CONSTANT, NAMES_CHANCE = 4.6, -3.6, 0.02
"""Curve of words in the space of names for unlabelled items, by the cosine of meanings: learned from training photos of
IAPR TC-12 and their keywords (benchmarks/quality/photos.py). It is rather low, because keywords omit much of what a
photo shows."""


class ConfidenceError(ValueError):
    """The confidence file is not the one that the engine was written with."""


class PairFeatures(NamedTuple):
    """Features of query-hit pairs, one value per pair."""

    agreement: Array
    """Agreement of codes, from −1 (no bit) to 1 (all)."""
    product: Array
    """Inner product of posteriors."""
    cosine: Array
    """Cosine of posteriors."""
    length: Array
    """Length of the query's posterior, which is short if its features say little about labels."""
    likeness: Array
    """Cosine of embeddings within a modality, of meanings across modalities; 0 without them."""


@dataclass(frozen=True)
class CalibrationCurve:
    """Maps features of one kind of pair to the probability of a shared label."""

    weights: tuple[float, ...]
    """Coefficients of :class:`PairFeatures`, and an intercept."""
    chance: float
    """Fraction of all pairs that share a label."""

    @property
    def weak_below(self) -> float:
        return self.chance + WEAK * (1 - self.chance)

    def probability(self, features: PairFeatures, familiarity: Array | float) -> Array:
        values = np.column_stack(features) @ np.array(self.weights[:-1]) + self.weights[-1]
        return np.asarray(self.chance + familiarity * (0.5 + 0.5 * np.tanh(values / 2) - self.chance))


class Pair(NamedTuple):
    """A kind of pair: the modalities of query and hit, and the kind of the hit's code."""

    query: str
    hit: str
    kind: str


class Usual(NamedTuple):
    """Mean and spread of a modality's features."""

    mean: Array
    scale: Array
    """Standard deviation of each feature, plus a constant."""
    most: float
    """Largest deviation of a fully familiar item."""
    last: float
    """Least deviation of an unfamiliar item."""

    def familiarity(self, X: Matrix) -> Array:
        return np.asarray(np.clip((self.last - deviation(X, self.mean, self.scale)) / (self.last - self.most), 0, 1))


def deviation(X: Matrix, mean: Array, scale: Array) -> Array:
    """Return the mean square of each item's standardised features."""
    return np.asarray((((X - mean) / scale) ** 2).mean(axis=1))


@dataclass(frozen=True)
class Confidence:
    """Estimates the probability that hits share a label with a query; made by :func:`fit_confidence`."""

    curves: Mapping[Pair, CalibrationCurve]
    usual: Mapping[str, Usual]
    """By modality with dense features."""
    unknown_words: Mapping[str, float]
    """By modality of texts, the familiarity of a text without known words."""
    reliability: Mapping[Pair, list[Bin]] = field(default_factory=dict)
    """Confidence and accuracy on held-out queries, cross-validated."""

    def familiarity(self, modality: str, X: Matrix) -> Array:
        """Return the familiarity of items by their features, from 0 to 1; 1 for sparse features."""
        usual = self.usual.get(modality)
        return np.ones(X.shape[0]) if usual is None or scipy.sparse.issparse(X) else usual.familiarity(X)

    def text_familiarity(self, modality: str, known: Array) -> Array:
        """Return the familiarity of texts by the fraction of their words that are known."""
        least = self.unknown_words.get(modality, UNKNOWN_WORDS)
        return least + (1 - least) * enough_words(known)

    def to_config(self) -> dict[str, Any]:
        return {
            "curves": [
                {
                    **pair._asdict(),
                    "weights": [round(value, 6) for value in curve.weights],
                    "chance": round(curve.chance, 6),
                    "reliability": [list(bin) for bin in self.reliability.get(pair, [])],
                }
                for pair, curve in self.curves.items()
            ],
            "usual": {
                name: {
                    "mean": [round(value, 7) for value in usual.mean.tolist()],
                    "scale": [round(value, 7) for value in usual.scale.tolist()],
                    "most": usual.most,
                    "last": usual.last,
                }
                for name, usual in self.usual.items()
            },
            "unknown_words": {name: round(value, 4) for name, value in self.unknown_words.items()},
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Confidence:
        curves = {
            Pair(row["query"], row["hit"], row["kind"]): CalibrationCurve(tuple(row["weights"]), row["chance"])
            for row in config["curves"]
        }
        usual = {
            name: Usual(np.array(own["mean"]), np.array(own["scale"]), own["most"], own["last"])
            for name, own in config["usual"].items()
        }
        checked = {
            pair: [Bin(*values) for values in row["reliability"]]
            for pair, row in zip(curves, config["curves"], strict=True)
        }
        return cls(curves, usual, config["unknown_words"], checked)


class Side(NamedTuple):
    """Items of one modality, as queries or as a database."""

    modality: str
    kind: str
    codes: Codes
    vectors: Array
    labels: Array
    rows: Array
    """Row among all training items; ascending, except for queries."""
    familiarity: Array | None = None
    """Familiarity of queries; 0 for texts without a known word."""


def pair_features(
    code: Codes, vector: Array, codes: Codes, vectors: Array, refinement: Refinement, n_bits: int, *, within: bool
) -> PairFeatures:
    """Return the features of one query with each of some items; ``within`` if all are of one modality."""
    distances = np.bitwise_count(code ^ codes).sum(axis=1)
    n = refinement.n_posterior
    own, theirs = vector[:n].astype(np.float32), vectors[:, :n].astype(np.float32, copy=False)
    products = theirs @ own
    length = float(np.sqrt(own @ own))
    lengths = length * np.sqrt(np.einsum("ij,ij->i", theirs, theirs))
    part = slice(n, n + EMBEDDING_DIMENSIONS) if within else refinement.meaning_values
    own, theirs = vector[part].astype(np.float32), vectors[:, part].astype(np.float32, copy=False)
    norms = np.sqrt((own @ own) * np.einsum("ij,ij->i", theirs, theirs))
    likeness = np.asarray(theirs @ own / np.where(norms > 0, norms, 1))
    step = refinement.posterior_step
    return PairFeatures(
        1 - 2 * distances / n_bits,
        products * step**2,
        products / np.where(lengths > 0, lengths, 1),
        np.full(len(codes), length * step),
        likeness,
    )


class Held(NamedTuple):
    """Training rows by modality: to learn from, and held out."""

    learned: dict[str, Array]
    held_out: dict[str, Array]


def hold_out(X: Mapping[str, Matrix], seed: int) -> Held:
    """Choose the rows to hold out by content, so that copies of an item are on one side."""
    learned, held_out = {}, {}
    for name, values in X.items():
        keys = row_keys(values, seed + 1)
        rows = np.argsort(keys, kind="stable")[:MAX_ITEMS]
        ordered = keys[rows]
        share = -(-len(rows) // HELD_OUT)
        n = int(np.searchsorted(ordered, ordered[share - 1], side="right")) if share else 0  # a whole run of copies
        learned[name], held_out[name] = np.sort(rows[n:]), np.sort(rows[:n])
    return Held(learned, held_out)


class Searches(NamedTuple):
    """Hits of held-out items among the others and among themselves."""

    model: CrossModalHasher
    """Fitted to the items that are not held out."""
    queries: list[Side]
    databases: list[Side]
    samples: dict[Pair, Pairs]
    """Sampled hits by kind of pair; ``hashed`` are held-out items."""
    usual: dict[str, Usual]
    known: frozenset[str]
    """Modalities of texts whose fractions of known words are measured."""


def search_held_out(
    model: CrossModalHasher,
    X: Mapping[str, Matrix],
    labels: Mapping[str, Array],
    held: Held,
    learned: Learned,
    *,
    known: Mapping[str, Array],
    words: LabelWords | None = None,
    seed: int = 0,
) -> Searches:
    """Search with held-out items among the others, whose codes are learned, and among themselves.

    ``model`` and ``learned`` are fitted without the held-out items. ``known`` is, by modality of texts, the fraction of
    each held-out text's words that an encoder fitted to the others knows. ``words`` are the names of the labels as
    queries, in an engine of pictures whose texts are queries only.
    """
    rest = {name: values[held.learned[name]] for name, values in X.items()}
    rest_labels = {name: values[held.learned[name]] for name, values in labels.items()}
    refinement, rng = learned.refinement, np.random.default_rng(seed)
    queries, databases, usual = [], [], {}
    for name, values in X.items():
        rows = held.held_out[name]
        new = values[rows]
        if not len(rows):
            continue
        codes = pack_signs(model.decision_function({name: new})[name])
        vectors = refinement.vectors(name, new)
        databases.append(Side(name, "hashed", codes, vectors, labels[name][rows], rows))
        posteriors = learned.training_posteriors(name, labels=True)
        trained, vectors_of_rest = model.codes_[name], refinement.joined(name, posteriors, rest[name])
        databases.append(Side(name, "learned", trained, vectors_of_rest, rest_labels[name], held.learned[name]))
        familiarity = np.ones(len(rows))
        if name in known:
            familiarity = enough_words(known[name])
        elif not scipy.sparse.issparse(values):
            usual[name] = _usual(rest[name], new)
            familiarity = usual[name].familiarity(new)
        some = rng.permutation(len(rows))[:MAX_QUERIES]
        queries.append(
            Side(name, "query", codes[some], vectors[some], labels[name][rows[some]], rows[some], familiarity[some])
        )
    samples = {
        Pair(query.modality, database.modality, database.kind): sample_pairs(
            query, database, refinement, model.n_bits, find_queries(query, database)
        )
        for query in queries
        for database in databases
    }
    if refinement.word_codes is not None and words is not None:
        counts = sum(own.sum(axis=0) for own in labels.values())
        asked = _word_queries(refinement, words, np.asarray(counts), rng)
        queries += asked
        for query in asked:
            for side in databases:
                database = side if side.kind == "learned" else _out_of_fold(model, learned, rest, rest_labels, side)
                pair = Pair(query.modality, side.modality, side.kind)
                samples[pair] = sample_pairs(query, database, refinement, model.n_bits, None)
    return Searches(model, queries, databases, samples, usual, frozenset(known))


class LabelWords(NamedTuple):
    """Names of labels as queries."""

    features: Any
    """Features of the text encoder; None without one."""
    everyday: Array
    """Which of them are everyday nouns, which users type more often than *side* or *area*."""


def _word_queries(refinement: Refinement, words: LabelWords, counts: Array, rng: np.random.Generator) -> list[Side]:
    """Return the names of labels as queries: as labels and, if they have a meaning, as unknown words.

    Rare labels and names that are not everyday nouns are dropped if there are enough others.
    """
    usual = counts >= USUAL_LABEL
    candidates = (np.flatnonzero(usual & words.everyday), np.flatnonzero(usual), np.arange(len(counts)))
    enough = next((some for some in candidates if len(some) >= MIN_HELD_OUT), candidates[-1])
    chosen = np.sort(rng.permutation(enough)[:MAX_QUERIES])
    labels = np.eye(len(counts), dtype=bool)[chosen]
    own = None if words.features is None else words.features[chosen]
    sides = [(TEXT, labels)]
    if refinement.meaning is not None:
        sides.append((BY_MEANING, np.zeros_like(labels)))
    queries = []
    for name, named in sides:
        vectors = word_vectors(refinement, named, own)
        codes = word_codes(refinement, vectors)
        queries.append(Side(name, "query", codes, vectors, labels, chosen, np.ones(len(chosen))))
    return queries


def _out_of_fold(
    model: CrossModalHasher, learned: Learned, X: Mapping[str, Matrix], labels: Mapping[str, Array], side: Side
) -> Side:
    """Return the learned items as if they had no labels, with posteriors from folds without them.

    They are four times the held-out items, and names of labels need no items of their own.
    """
    name = side.modality
    vectors = learned.refinement.joined(name, learned.training_posteriors(name, labels=False), X[name])
    codes = pack_signs(model.decision_function({name: X[name]})[name])
    return Side(name, "hashed", codes, vectors, labels[name], np.arange(len(codes)))


def query_name(modality: str | None, vector: Array, refinement: Refinement) -> str:
    """Return the modality of a query, or BY_MEANING if it names no label."""
    by_meaning = refinement.word_codes is not None and modality == TEXT and not vector[: refinement.n_posterior].any()
    return BY_MEANING if by_meaning else str(modality)


def find_queries(query: Side, database: Side) -> Array | None:
    """Return the rows of the queries in a database of the same held-out items; None for another."""
    if query.modality != database.modality or database.kind != "hashed":
        return None
    return np.searchsorted(database.rows, query.rows)


def fit_confidence(searches: Searches) -> Confidence | None:
    """Learn confidence from the hits of held-out items; None if no kind of pair has right and wrong hits."""
    samples = {pair: pairs for pair, pairs in searches.samples.items() if pairs.shared.any() and not pairs.shared.all()}
    unknown_words = {
        name: _unknown_words([own for pair, own in samples.items() if pair.query == name])
        for name in sorted(searches.known)
    }
    checked = {pair: _cross_checked(pairs, unknown_words.get(pair.query, 0.0)) for pair, pairs in samples.items()}
    curves = {pair: fit_curve(pairs) for pair, pairs in samples.items()}
    return Confidence(curves, searches.usual, unknown_words, checked) if curves else None


def enough_words(known: Array) -> Array:
    return np.asarray(np.minimum(known / ENOUGH_WORDS, 1.0))


def _unknown_words(samples: list[Pairs]) -> float:
    """Return f of texts without a known word, by least squares of shared − b = f (P − b) over their hits."""
    products = squares = 0.0
    n = 0
    for pairs in samples:
        own = pairs.only((pairs.familiarity == 0) & (pairs.rank < N_HITS))
        above = fit_curve(pairs).probability(own.features, 1.0) - pairs.chance
        products += float(above @ (own.shared - pairs.chance))
        squares += float(above @ above)
        n = max(n, len(np.unique(own.query)))
    return float(np.clip(products / squares, 0, 1)) if n >= MIN_UNKNOWN else UNKNOWN_WORDS


class Pairs(NamedTuple):
    """Queries with their hits, and whether they share a label."""

    query: Array
    rank: Array
    """Rank of the hit, from 0."""
    features: PairFeatures
    familiarity: Array
    shared: Array
    chance: float
    item: Array
    """Row of the hit in the database."""

    def only(self, chosen: Array) -> Pairs:
        features = PairFeatures(*(values[chosen] for values in self.features))
        return Pairs(
            self.query[chosen],
            self.rank[chosen],
            features,
            self.familiarity[chosen],
            self.shared[chosen],
            self.chance,
            self.item[chosen],
        )


def sample_pairs(query: Side, database: Side, refinement: Refinement, n_bits: int, own_rows: Array | None) -> Pairs:
    """Return the first hits of every query and some of lower rank, in the engine's order.

    ``own_rows`` are the rows of the queries in the database, if they are in it, to exclude them.
    """
    n = len(database.codes)
    most = n - (own_rows is not None)
    far = np.geomspace(N_HITS + 1, max(most, N_HITS + 1), FAR_RANKS).astype(np.intp)
    ranks = np.unique(np.concatenate([np.arange(N_HITS), far]))
    ranks = ranks[ranks < most]
    within = query.modality == database.modality
    database = database._replace(vectors=database.vectors.astype(np.float32))  # once instead of for every query
    parts, shared, items = [], [], []
    chance = 0.0
    for row in range(len(query.codes)):
        every = pair_features(
            query.codes[row], query.vectors[row], database.codes, database.vectors, refinement, n_bits, within=within
        )
        meets: Array = np.asarray(database.labels[:, query.labels[row].astype(bool)].any(axis=1))
        score = order_scores(every, bool(query.vectors[row, : refinement.n_posterior].any()), within=within)
        if own_rows is not None:
            score[own_rows[row]] = -np.inf
        order = np.argsort(-score, kind="stable")[ranks]
        parts.append(PairFeatures(*(values[order] for values in every)))
        shared.append(meets[order])
        items.append(order)
        chance += float(meets.mean()) / len(query.codes)
    assert query.familiarity is not None
    return Pairs(
        np.repeat(np.arange(len(query.codes)), len(ranks)),
        np.tile(ranks, len(query.codes)),
        PairFeatures(*(np.concatenate(values) for values in zip(*parts, strict=True))),
        np.repeat(query.familiarity, len(ranks)),
        np.concatenate(shared),
        chance,
        np.concatenate(items),
    )


def order_scores(pairs: PairFeatures, labels_known: bool, *, within: bool) -> Array:
    """Return the scores that order hits, as ``Ranker.scores`` computes them."""
    if not labels_known and not within:
        return pairs.likeness.copy()
    weight = EMBEDDING_WEIGHT if within else MEANING_WEIGHT
    return np.asarray(pairs.product + CODE_WEIGHT * pairs.agreement + weight * pairs.likeness)


def fit_curve(pairs: Pairs) -> CalibrationCurve:
    """Fit the probability that pairs share a label, weighted by the familiarity of queries."""
    from sklearn.linear_model import LogisticRegression

    X = np.column_stack(pairs.features)
    scale = np.where(X.std(axis=0) > 0, X.std(axis=0), 1)
    weight = pairs.familiarity * np.where(pairs.rank < N_HITS, 1, FAR_WEIGHT)
    with threadpool_limits(1):  # small products, for which threads only wait for each other
        logistic = LogisticRegression(max_iter=500).fit(X / scale, pairs.shared, sample_weight=weight)
    return CalibrationCurve((*(logistic.coef_[0] / scale).tolist(), float(logistic.intercept_[0])), pairs.chance)


def _cross_checked(pairs: Pairs, least: float) -> list[Bin]:
    """Return the reliability of first hits, each half of the queries scored by the curve of the other."""
    confidence = np.empty(len(pairs.shared))
    for half in (0, 1):
        own: Array = np.equal(pairs.query % 2, half)
        some, others = pairs.only(own), pairs.only(~own)
        if others.shared.all() or not others.shared.any():
            return []
        familiarity = least + (1 - least) * some.familiarity
        confidence[own] = fit_curve(others).probability(some.features, familiarity)
    first = pairs.rank < N_HITS
    return reliability_bins(confidence[first], pairs.shared[first])


def _usual(learned: Array, held_out: Array) -> Usual:
    """Return the moments of the learned items' features, with limits from held-out ones."""
    mean, spread = learned.mean(axis=0, dtype=np.float64), learned.std(axis=0, dtype=np.float64)
    scale = spread + 0.1 * spread.mean() + 1e-6  # so that a feature of low variance does not dominate
    most, last = np.quantile(deviation(held_out, mean, scale), [USUAL, LAST]).tolist()
    return Usual(mean, scale, most, max(last, most + 1e-6))


def confidence_of_names(modality: str, learned: Confidence | None = None) -> Confidence:
    """Add the curve of the space of names, learned from many photos, for words that name no label."""
    curve = CalibrationCurve((0.0, 0.0, 0.0, 0.0, NAMES_WEIGHT, NAMES_CONSTANT), NAMES_CHANCE)
    curves = {Pair(BY_MEANING, modality, kind): curve for kind in ("learned", "hashed")}
    if learned is None:
        return Confidence(curves, {}, {})
    return replace(learned, curves={**learned.curves, **curves})


def save_confidence(confidence: Confidence, folder: Path) -> dict[str, Any]:
    """Write the confidence file into an engine's folder; return its entry of the configuration."""
    data = f"{json.dumps(confidence.to_config(), ensure_ascii=False)}\n".encode()
    write_atomically(folder / FILE, data)
    return {"sha256": sha256(data).hexdigest()}


def load_confidence(folder: Path, config: Mapping[str, Any]) -> Confidence:
    """Read the file of :func:`save_confidence`; ConfidenceError if it is another one."""
    try:
        data = (folder / FILE).read_bytes()
    except FileNotFoundError:
        raise ConfidenceError(f"{folder / FILE} is missing; the engine was not copied whole") from None
    if not isinstance(config, Mapping) or sha256(data).hexdigest() != config.get("sha256"):
        raise ConfidenceError(f"{folder / FILE} is truncated or not the file this engine was written with")
    try:
        return Confidence.from_config(json.loads(data))
    except NONSENSE as error:
        raise ConfidenceError(f"{folder / FILE} cannot be read ({type(error).__name__}: {error})") from error
