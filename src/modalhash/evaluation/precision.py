r"""Average precision from histograms, for every way of ordering items at the same distance.

A distance holds ``g`` items of which ``q`` are relevant; ``s`` items and ``R`` relevant ones are
nearer. With its relevant items first (optimistic) or last (pessimistic) the precisions at them add up
to a difference of harmonic numbers; over all orders (expected) to

.. math:: \sum_{i=1}^{g} \frac{q}{g} \cdot \frac{R + 1 + (i-1)\frac{q-1}{g-1}}{s+i}

because a relevant item is at position ``i`` with probability ``q/g`` and then the ``i − 1`` positions before
hold ``(i−1)(q−1)/(g−1)`` others on average: again harmonic numbers. Nothing is sorted.
"""

from __future__ import annotations

from math import lgamma
from typing import Any

import numpy as np

from modalhash._typing import Array, Codes
from modalhash.evaluation.ranking import TIES, Ranking, rank
from modalhash.validation import check_choice

QUERIES_AT_ONCE = 1024  # keeps the work space at a few megabytes however many queries there are


def average_precision(
    ranking: Ranking, *, ties: str = "expected", cutoff: int | None = None, normaliser: str = "relevant"
) -> Array:
    """Return the average precision of each query, in float64; 0 for a query without relevant items.

    Parameters
    ----------
    ranking : Ranking
        Of the queries, from :func:`modalhash.evaluation.ranking.rank`.
    ties : {"expected", "stable", "optimistic", "pessimistic"}
        The order of items at the same distance.
    cutoff : int, optional
        Only the first ``cutoff`` ranks count; None for the whole database.
    normaliser : {"relevant", "retrieved", "smaller"}
        What the sum of precisions is divided by: the relevant items in the database, those up to the
        cut-off, or the smaller of cut-off and relevant items.
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
    """Return the sum of the precisions at the relevant items up to rank ``depth``, and the number of those items."""
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

    A table of harmonic numbers would lose digits in the difference: the small part is summed, the
    rest comes from their asymptotic series.
    """
    a_small, b_small = (np.minimum(x, _SMALL).astype(np.intp) for x in (a, b))
    a, b = np.maximum(a, _SMALL), np.maximum(b, _SMALL)
    return np.asarray(_HARMONIC[b_small] - _HARMONIC[a_small] + np.log1p((b - a) / a) + _tail(b) - _tail(a))


_SMALL = 32
_HARMONIC = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, _SMALL + 1))])


def _tail(n: Array) -> Array:
    """H(n) − ln n − γ, to 1e-16 from n = 32 on."""
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


def _divide(sums: Array, divisors: Array) -> Array:
    return np.divide(sums, divisors, out=np.zeros(len(sums)), where=divisors > 0)


def _expected_ratio(histogram: Array, depth: int) -> float:
    """Expectation of (sum of precisions) / (relevant items retrieved) for one query.

    Both depend on how many relevant items of the distance that the cut-off splits come before it:
    that number is hypergeometric, and given it their positions are again uniform.
    """
    g, q = histogram.T
    depth = min(depth, int(g.sum()))  # a query with an excluded item sees one item less
    split = int(np.searchsorted(g.cumsum(), depth))
    s, R = g[:split].sum(), q[:split].sum()
    ranks = depth - s
    before = precision_sums(histogram[None, :split], "expected", depth)[0][0]
    h, probability = _hypergeometric(int(g[split]), int(q[split]), int(ranks))
    one, s, R = np.ones_like(h), np.full_like(h, s), np.full_like(h, R)
    inside = _expected(ranks * one, h, s, R, ranks * one)
    return float(probability @ _divide(before + inside, R + h))


def _hypergeometric(items: int, relevant: int, drawn: int) -> tuple[Array, Array]:
    """Possible numbers of relevant items among the drawn ones, and their probabilities."""
    h = np.arange(max(0, drawn + relevant - items), min(relevant, drawn) + 1)
    up, down = (relevant - h) * (drawn - h), h * (items - relevant - drawn + h)
    ratios = np.log(up[:-1]) - np.log(down[1:])  # each probability from the one before
    first = _log_choose(relevant, h[0]) + _log_choose(items - relevant, drawn - h[0]) - _log_choose(items, drawn)
    probability = np.exp(first + np.concatenate([[0.0], np.cumsum(ratios)]))
    return h.astype(np.float64), probability / probability.sum()


def _log_choose(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
