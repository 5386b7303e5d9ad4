r"""Rankings of a database as histograms, and average precision and curves from them.

The measures need only the number of items, and of relevant items, at each distance from a query: ``n_bits + 1`` pairs
of counts instead of a ranking of the whole database. They are exact for every order of items at the same distance.

A distance holds ``g`` items of which ``q`` are relevant; ``s`` items and ``R`` relevant ones are nearer. With its
relevant items first (optimistic) or last (pessimistic) the precisions at them sum to a difference of harmonic numbers;
over all orders (expected) to

.. math:: \sum_{i=1}^{g} \frac{q}{g} \cdot \frac{R + 1 + (i-1)\frac{q-1}{g-1}}{s+i}

because a relevant item is at position ``i`` with probability ``q/g`` and then the ``i − 1`` positions before hold
``(i−1)(q−1)/(g−1)`` others on average: again harmonic numbers. Nothing is sorted.

The number of relevant items among the first N is piecewise linear in N for each query. Its slope within a distance is
``q/g`` over all orders, or 1 and 0 if relevant items come first or last. The slopes of all queries are summed at their
breaks, so the cost of a curve over every rank does not depend on the size of the database.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import lgamma
from typing import Any

import numpy as np

from modalhash.core.codes import check_codes, to_words
from modalhash.core.typing import Array, Codes
from modalhash.core.validation import check_choice, check_int, check_labels

TIES = ("expected", "stable", "optimistic", "pessimistic")


@dataclass(frozen=True, eq=False)
class Ranking:
    """Items and relevant items (sharing at least one label) at each distance from each query."""

    query_codes: Array
    """64-bit words, ``(queries, words)``, like the query labels."""
    query_labels: Array
    codes: Array
    """64-bit words, ``(words, items)``, like the labels."""
    labels: Array
    histograms: Array
    """``int32 (queries, n_bits + 1, 2)``: items and relevant items at each distance."""
    excluded: Array
    """Row of the item excluded for each query; −1 for none."""

    @property
    def n_queries(self) -> int:
        return int(self.query_codes.shape[0])

    @cached_property
    def n_items(self) -> int:
        """Return the number of items that a query is compared with, without the excluded one."""
        return int(self.histograms[:, :, 0].sum(axis=1, dtype=np.int64).max())

    @cached_property
    def n_relevant(self) -> Array:
        return np.asarray(self.histograms[:, :, 1].sum(axis=1, dtype=np.int64))

    def stable_ranks(self, *, cutoff: int | None = None, depth: int = 0) -> tuple[Array, Array, Array, Array]:
        """Rank the relevant items with ties in database order; see :func:`modalhash.core.bit_kernels.stable_ranks`."""
        from modalhash.core import bit_kernels as kernels

        ranks: tuple[Array, Array, Array, Array] = kernels.stable_ranks(
            self.query_codes,
            self.query_labels,
            self.codes,
            self.labels,
            self.histograms,
            self.excluded,
            self.n_items if cutoff is None else cutoff,
            depth,
        )
        return ranks


def rank(
    query_codes: Codes,
    query_labels: Any,
    database_codes: Codes,
    database_labels: Any,
    *,
    n_bits: int | None = None,
    excluded: Any = None,
    names: tuple[str, str] = ("queries", "database"),
) -> Ranking:
    """Scan the database once for all queries.

    Parameters
    ----------
    query_codes, database_codes : (n, ceil(n_bits / 8)) uint8
        Packed codes.
    query_labels, database_labels : (n, n_classes) 0/1, dense or CSR
        Items with a label in common are relevant to each other.
    n_bits : int, optional
        Length of the codes; by default all bits of the bytes.
    excluded : (n_queries,) int, optional
        For each query, the row of a database item to exclude, e.g. itself; −1 for none.
    names : (str, str)
        Names of the queries and the database in errors.
    """
    if n_bits is None:
        n_bits = 8 * (query_codes.shape[1] if getattr(query_codes, "ndim", 0) == 2 else 1)
    n_bits = check_int(n_bits, "n_bits", at_least=1)
    if n_bits >= 2**15:
        raise ValueError(f"n_bits is {n_bits}; distances are counted for fewer than {2**15} bits")
    clean = {}
    for name, codes in zip(names, (query_codes, database_codes), strict=True):
        check_codes(codes, n_bits, name)
        if not len(codes):
            raise ValueError(f"{name}: there are no items; expected at least one")
        clean[name] = codes
    labels = check_labels(dict(zip(names, (query_labels, database_labels), strict=True)), clean, unlabelled="allow")

    from modalhash.core import bit_kernels as kernels

    query, query_label = _words(query_codes), _words(_pack(labels[names[0]]))
    item, item_label = (np.ascontiguousarray(_words(part).T) for part in (database_codes, _pack(labels[names[1]])))
    own = _check_excluded(excluded, len(query_codes), len(database_codes))
    counts = kernels.histograms(query, query_label, item, item_label, n_bits)
    kernels.forget(counts, query, query_label, item, item_label, own)
    return Ranking(query, query_label, item, item_label, counts, own)


def _check_excluded(excluded: Any, n_queries: int, n_items: int) -> Array:
    if excluded is None:
        return np.full(n_queries, -1)
    own = np.asarray(excluded)
    if own.shape != (n_queries,) or not np.issubdtype(own.dtype, np.integer):
        raise ValueError(f"excluded: got {own.dtype} of shape {own.shape}; expected {n_queries} row indices")
    if own.min() < -1 or own.max() >= n_items:
        raise ValueError(
            f"excluded: values from {own.min()} to {own.max()}; expected −1 to {n_items - 1}, the rows of items"
        )
    if n_items == 1 and own.max() == 0:
        raise ValueError("excluded: the only item of the database is excluded; expected at least one more")
    return own.astype(np.int64)


def _pack(labels: Array) -> Codes:
    return np.packbits(labels, axis=1)


def _words(codes: Codes) -> Array:
    return np.require(to_words(codes), requirements=("C", "A"))


QUERIES_AT_ONCE = 1024  # bounds the workspace to a few megabytes


def average_precision(
    ranking: Ranking, *, ties: str = "expected", cutoff: int | None = None, normaliser: str = "relevant"
) -> Array:
    """Return the average precision of each query, in float64; 0 for a query without relevant items.

    Parameters
    ----------
    ranking : Ranking
        Of the queries, from :func:`modalhash.evaluation.measures.rank`.
    ties : {"expected", "stable", "optimistic", "pessimistic"}
        The order of items at the same distance.
    cutoff : int, optional
        Number of ranks that count; None for the whole database.
    normaliser : {"relevant", "retrieved", "smaller"}
        What the sum of precisions is divided by: the relevant items in the database, those up to the cut-off, or the
        smaller of cut-off and relevant items.
    """
    depth = ranking.n_items if cutoff is None else cutoff
    if ties == "stable":
        sums, hits, _, _ = ranking.stable_ranks(cutoff=depth)
        return _divide(sums, _divisor(hits, ranking.n_relevant, depth, normaliser))
    if ties == "expected" and normaliser == "retrieved" and depth < ranking.n_items:
        return np.array([_expected_ratio(row.astype(np.float64), depth) for row in ranking.histograms])
    out = np.empty(ranking.n_queries)
    for start in range(0, len(out), QUERIES_AT_ONCE):
        rows = slice(start, start + QUERIES_AT_ONCE)
        sums, hits = precision_sums(ranking.histograms[rows], ties, depth)
        out[rows] = _divide(sums, _divisor(hits, ranking.n_relevant[rows], depth, normaliser))
    return out


def mean_average_precision(
    query_codes: Codes,
    query_labels: Any,
    database_codes: Codes,
    database_labels: Any,
    *,
    n_bits: int | None = None,
    ties: str = "expected",
) -> float:
    """Return the mean average precision over the whole ranking; a query without relevant items counts as 0.

    Examples
    --------
    >>> codes, labels = np.array([[0], [1], [3]], dtype=np.uint8), np.array([[1, 0], [0, 1], [1, 0]])
    >>> mean_average_precision(codes[:1], labels[:1], codes[1:], labels[1:])
    0.5
    """
    check_choice(ties, "ties", TIES)
    ranking = rank(query_codes, query_labels, database_codes, database_labels, n_bits=n_bits)
    return float(average_precision(ranking, ties=ties).mean())


def precision_sums(histograms: Array, ties: str, depth: int) -> tuple[Array, Array]:
    """Return the sum of the precisions at the relevant items up to rank ``depth``, and their number."""
    g, q = np.moveaxis(histograms.astype(np.float64), 2, 0)
    s, R = g.cumsum(axis=1) - g, q.cumsum(axis=1) - q
    m = np.clip(depth - s, 0, g)  # ranks of each distance inside the cut-off
    if ties == "expected":
        sums, hits = _expected(g, q, s, R, m), q * m / np.maximum(g, 1)
    elif ties == "optimistic":
        hits = np.minimum(q, m)
        sums = hits + (R - s) * harmonic_difference(s, s + hits)
    else:
        hits = np.maximum(m - (g - q), 0)
        s = s + g - q
        sums = hits + (R - s) * harmonic_difference(s, s + hits)
    return sums.sum(axis=1), hits.sum(axis=1)


def harmonic_difference(a: Array, b: Array) -> Array:
    """Return 1/(a+1) + … + 1/b for whole numbers 0 ≤ a ≤ b, to full relative precision.

    The difference of two tabulated harmonic numbers would lose digits, so only terms up to 32 are tabulated and the
    rest comes from the asymptotic series.
    """
    a_small, b_small = (np.minimum(x, _SMALL).astype(np.intp) for x in (a, b))
    a, b = np.maximum(a, _SMALL), np.maximum(b, _SMALL)
    return np.asarray(_HARMONIC[b_small] - _HARMONIC[a_small] + np.log1p((b - a) / a) + _tail(b) - _tail(a))


_SMALL = 32
_HARMONIC = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, _SMALL + 1))])


def _tail(n: Array) -> Array:
    """Return H(n) − ln n − γ, to 1e-16 for n ≥ 32."""
    x = 1 / n**2
    return np.asarray(0.5 / n - x * (1 / 12 - x * (1 / 120 - x * (1 / 252 - x / 240))))


def _expected(g: Array, q: Array, s: Array, R: Array, m: Array) -> Array:
    difference = harmonic_difference(s, s + m)
    others = (q - 1) / np.maximum(g - 1, 1)
    return np.asarray(q / np.maximum(g, 1) * ((R + 1) * difference + others * (m - (s + 1) * difference)))


def _divisor(hits: Array, n_relevant: Array, depth: int, normaliser: str) -> Array:
    if normaliser == "retrieved":
        return hits
    return n_relevant if normaliser == "relevant" else np.minimum(n_relevant, depth)


def _divide(parts: Array, wholes: Array) -> Array:
    return np.divide(parts, wholes, out=np.zeros(np.shape(parts)), where=np.asarray(wholes) > 0)


def _expected_ratio(histogram: Array, depth: int) -> float:
    """Return the expectation of (sum of precisions) / (relevant items retrieved) for one query.

    Both depend on the number of relevant items before the cut-off within the distance that it splits. That number is
    hypergeometric, and given it their positions are uniform.
    """
    g, q = histogram.T
    depth = min(depth, int(g.sum()))  # a query with an excluded item has one item less
    split = int(np.searchsorted(g.cumsum(), depth))
    s, R = g[:split].sum(), q[:split].sum()
    ranks = depth - s
    before = precision_sums(histogram[None, :split], "expected", depth)[0][0]
    h, probability = _hypergeometric(int(g[split]), int(q[split]), int(ranks))
    one, s, R = np.ones_like(h), np.full_like(h, s), np.full_like(h, R)
    inside = _expected(ranks * one, h, s, R, ranks * one)
    return float(probability @ _divide(before + inside, R + h))


def _hypergeometric(items: int, relevant: int, drawn: int) -> tuple[Array, Array]:
    """Return the possible numbers of relevant items among the drawn ones, and their probabilities."""
    h = np.arange(max(0, drawn + relevant - items), min(relevant, drawn) + 1)
    up, down = (relevant - h) * (drawn - h), h * (items - relevant - drawn + h)
    ratios = np.log(up[:-1]) - np.log(down[1:])  # each probability from the one before
    first = _log_choose(relevant, h[0]) + _log_choose(items - relevant, drawn - h[0]) - _log_choose(items, drawn)
    probability = np.exp(first + np.concatenate([[0.0], np.cumsum(ratios)]))
    return h.astype(np.float64), probability / probability.sum()


def _log_choose(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


@dataclass(frozen=True, eq=False)
class Curve:
    """Precision and recall at ranks, or within radii."""

    at: Array
    precision: Array
    recall: Array

    def thin(self, points: int = 1000) -> Curve:
        """Return about ``points`` points at most, half spaced geometrically and half evenly."""
        n = len(self.at)
        if n <= points:
            return self
        some = [np.geomspace(1, n, points // 2), np.linspace(1, n, points // 2)]
        index = np.unique(np.concatenate(some).round().astype(np.intp)) - 1
        return Curve(self.at[index], self.precision[index], self.recall[index])

    def on_recall_grid(self, step: float = 0.001) -> tuple[Array, Array]:
        """Return recall 0, step, 2·step … and the precision interpolated there, as BATCH's code draws it."""
        grid = np.arange(0, self.recall[-1] + step / 2, step)
        recall = np.concatenate([[0.0], self.recall])
        precision = np.concatenate([self.precision[:1], self.precision])
        return grid, np.interp(grid, recall, precision)

    def to_json(self) -> dict[str, Any]:
        return {"at": self.at.tolist(), "precision": self.precision.tolist(), "recall": self.recall.tolist()}


def by_rank(ranking: Ranking, *, ties: str = "expected", empty: str = "zero") -> Curve:
    """Return mean precision and recall among the first N items, for every N from 1 to the whole database."""
    if ties == "stable":
        _, _, relevant, shares = ranking.stable_ranks(depth=ranking.n_items)
    else:
        relevant, shares = _gains(ranking, ties)
    ranks = np.arange(1, ranking.n_items + 1)
    queries = _n_counted(ranking, empty)
    return Curve(ranks, relevant.cumsum() / ranks / queries, shares.cumsum() / queries)


def by_radius(ranking: Ranking, *, average: str = "macro", empty: str = "zero") -> Curve:
    """Return precision and recall within each Hamming radius; no ties are involved.

    ``"macro"`` averages over the queries, with precision 0 for a query without items in the radius; ``"micro"`` pools
    the items of all queries.
    """
    check_choice(average, "average", ("macro", "micro"))
    items, relevant = np.moveaxis(ranking.histograms.cumsum(axis=1, dtype=np.int64), 2, 0)
    radii = np.arange(items.shape[1])
    if average == "micro":
        hits = relevant.sum(axis=0)
        return Curve(radii, _divide(hits, items.sum(axis=0)), _divide(hits, ranking.n_relevant.sum()))
    queries = _n_counted(ranking, empty)
    precision = _divide(relevant, items).sum(axis=0) / queries
    recall = _divide(relevant, ranking.n_relevant[:, None]).sum(axis=0) / queries
    return Curve(radii, precision, recall)


def _gains(ranking: Ranking, ties: str) -> tuple[Array, Array]:
    """Return the relevant items, and fractions of a query's relevant items, that each rank adds over all queries."""
    n = ranking.n_items
    bends = np.zeros((2, n + 1))
    for start in range(0, ranking.n_queries, QUERIES_AT_ONCE):
        rows = slice(start, start + QUERIES_AT_ONCE)
        g, q = np.moveaxis(ranking.histograms[rows].astype(np.int64), 2, 0)
        end = g.cumsum(axis=1)
        begin = end - g
        slope = np.ones(g.shape)
        if ties == "expected":
            slope = q / np.maximum(g, 1)
        elif ties == "optimistic":
            end = begin + q
        else:
            begin = end - q
        share = slope / np.maximum(ranking.n_relevant[rows, None], 1)
        for line, weight in zip(bends, (slope, share), strict=True):
            line += np.bincount(begin.ravel(), weight.ravel(), minlength=n + 1)
            line -= np.bincount(end.ravel(), weight.ravel(), minlength=n + 1)
    relevant, shares = bends[:, :n].cumsum(axis=1)
    return relevant, shares


def _n_counted(ranking: Ranking, empty: str) -> int:
    return max(1, int((ranking.n_relevant > 0).sum())) if empty == "skip" else ranking.n_queries
