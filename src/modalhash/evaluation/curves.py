"""Precision and recall by rank and by radius, averaged over the queries, from histograms.

The number of relevant items among the first N is, for each query, a line broken where a distance
begins: its slope within a distance is q/g over all orders, or 1 and 0 when relevant items come first
or last. Slopes of all queries are added up at their breaks, so a curve over every rank costs no more
than the histograms, whatever the size of the database.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from modalhash._typing import Array
from modalhash.evaluation.precision import QUERIES_AT_ONCE
from modalhash.evaluation.ranking import Ranking
from modalhash.validation import check_choice


@dataclass(frozen=True, eq=False)
class Curve:
    """Precision and recall at ranks, or within radii."""

    at: Array
    precision: Array
    recall: Array

    def thin(self, points: int = 1000) -> Curve:
        """Return at most about this many points, close together where ranks are small and evenly spread."""
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
        """Return the curve as plain lists."""
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

    ``"macro"`` averages over the queries, and a query that finds nothing within the radius has
    precision 0 there; ``"micro"`` divides the items of all queries together.
    """
    check_choice(average, "average", ("macro", "micro"))
    items, relevant = np.moveaxis(ranking.histograms.cumsum(axis=1, dtype=np.int64), 2, 0)
    radii = np.arange(items.shape[1])
    if average == "micro":
        hits = relevant.sum(axis=0)
        return Curve(radii, _ratio(hits, items.sum(axis=0)), _ratio(hits, ranking.n_relevant.sum()))
    queries = _n_counted(ranking, empty)
    precision = _ratio(relevant, items).sum(axis=0) / queries
    recall = _ratio(relevant, ranking.n_relevant[:, None]).sum(axis=0) / queries
    return Curve(radii, precision, recall)


def _gains(ranking: Ranking, ties: str) -> tuple[Array, Array]:
    """What each rank adds, over all queries: relevant items, and shares of a query's relevant items."""
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


def _ratio(part: Array, whole: Array) -> Array:
    return np.divide(part, whole, out=np.zeros(np.shape(part)), where=np.asarray(whole) > 0)
