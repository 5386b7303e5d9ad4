"""All measures of one ranking, under one protocol."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from modalhash._typing import Array
from modalhash.evaluation.curves import by_radius, by_rank
from modalhash.evaluation.precision import average_precision
from modalhash.evaluation.protocol import Protocol
from modalhash.evaluation.ranking import Ranking
from modalhash.evaluation.result import Direction
from modalhash.validation import check_int

USUAL_RANKS = (10, 100, 1000)


def measure(
    ranking: Ranking,
    protocol: Protocol,
    query: str = "queries",
    database: str = "database",
    *,
    at: Iterable[int] | None = None,
    radius: int = 2,
) -> Direction:
    """Return all measures of one ranking."""
    n = ranking.n_items
    _check_depth(protocol.cutoff, "cutoff", n)
    ranks = [k for k in USUAL_RANKS if k <= n] if at is None else [check_int(k, "at", at_least=1) for k in at]
    for k in ranks:
        _check_depth(k, "at", n)
    radius = min(check_int(radius, "radius", at_least=0), ranking.histograms.shape[1] - 1)
    each = _average_precision(ranking, protocol)
    counted = protocol.counted(ranking.n_relevant)
    rank_curve = by_rank(ranking, ties=protocol.ties, empty=protocol.empty)
    radius_curve = by_radius(ranking, empty=protocol.empty)
    return Direction(
        query=query,
        database=database,
        n_queries=ranking.n_queries,
        n_items=n,
        n_empty=int((ranking.n_relevant == 0).sum()),
        map=protocol.mean(each[counted]),
        chance=chance_level(ranking, protocol),
        average_precision=np.where(counted, each, np.nan).astype(np.float32),
        precision_at={k: float(rank_curve.precision[k - 1]) for k in ranks},
        recall_at={k: float(rank_curve.recall[k - 1]) for k in ranks},
        radius=radius,
        lookup_precision=float(radius_curve.precision[radius]),
        lookup_recall=float(radius_curve.recall[radius]),
        by_rank=rank_curve.thin(),
        by_radius=radius_curve,
    )


def chance_level(ranking: Ranking, protocol: Protocol) -> float:
    """Return the mAP of a random ranking, exactly: all items tied, in expectation over their order."""
    random = replace(ranking, histograms=ranking.histograms.sum(axis=1, keepdims=True))
    each = average_precision(random, cutoff=protocol.cutoff, normaliser=protocol.normaliser)
    return protocol.mean(each[protocol.counted(ranking.n_relevant)])


def _average_precision(ranking: Ranking, protocol: Protocol) -> Array:
    return average_precision(ranking, ties=protocol.ties, cutoff=protocol.cutoff, normaliser=protocol.normaliser)


def _check_depth(k: int | None, parameter: str, n: int) -> None:
    if k is not None and k > n:
        raise ValueError(f"{parameter} is {k}, but the database has {n} items; take at most {n}")
