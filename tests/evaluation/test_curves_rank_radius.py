from __future__ import annotations

import numpy as np
import pytest
import slow_ranking as slow
from hypothesis import given, settings, strategies as st

from modalhash.evaluation import by_radius, by_rank, rank
from modalhash.evaluation.measures import Curve

pytestmark = pytest.mark.filterwarnings("ignore:.*have no label")


def slow_hits(case, ties):
    """Relevant items among the first N, for every query and N."""
    query_codes, query_labels, codes, labels = case
    rows = []
    for q, row in enumerate(slow.distances(query_codes, codes)):
        relevant = labels @ query_labels[q] > 0
        if ties == "expected":
            chance = np.array([relevant[row == d].mean() for d in row])
            gains = chance[np.argsort(row, kind="stable")]
        else:
            key = {"stable": np.zeros(len(row)), "optimistic": ~relevant, "pessimistic": relevant}[ties]
            gains = relevant[np.lexsort((key, row))]
        rows.append(np.cumsum(gains))
    return np.array(rows, dtype=float)


@given(st.integers(0, 10**6), st.sampled_from(["expected", "stable", "optimistic", "pessimistic"]), st.booleans())
@settings(deadline=None, max_examples=40)
def test_by_rank_is_the_mean_over_queries(seed, ties, skip):
    case = slow.random_case(np.random.default_rng(seed), 9, 40, 6, density=0.1)
    ranking = rank(*case)
    hits = slow_hits(case, ties)
    total = hits[:, -1:]
    keep = total[:, 0] > 0 if skip else np.ones(len(hits), bool)
    if not keep.any():
        return
    curve = by_rank(ranking, ties=ties, empty="skip" if skip else "zero")
    np.testing.assert_allclose(curve.precision, (hits / np.arange(1, 41))[keep].mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(curve.recall, (hits / np.maximum(total, 1))[keep].mean(axis=0), atol=1e-12)
    assert list(curve.at) == list(range(1, 41))


@given(st.integers(0, 10**6))
@settings(deadline=None, max_examples=30)
def test_by_radius(seed):
    case = query_codes, query_labels, codes, labels = slow.random_case(np.random.default_rng(seed), 9, 40, 8)
    ranking = rank(*case)
    distance = slow.distances(query_codes, codes)
    relevant = query_labels @ labels.T > 0
    macro, micro = by_radius(ranking), by_radius(ranking, average="micro")
    for radius in range(9):
        inside = distance <= radius
        found = (inside & relevant).sum(axis=1)
        assert macro.precision[radius] == pytest.approx(np.mean(found / np.maximum(inside.sum(axis=1), 1)))
        assert macro.recall[radius] == pytest.approx(np.mean(found / np.maximum(relevant.sum(axis=1), 1)))
        assert micro.precision[radius] == pytest.approx(found.sum() / max(inside.sum(), 1))
        assert micro.recall[radius] == pytest.approx(found.sum() / max(relevant.sum(), 1))


def test_recall_grid_is_the_interpolation_of_batch():
    curve = Curve(np.arange(1, 4), np.array([1.0, 0.5, 0.4]), np.array([0.2, 0.4, 0.8]))
    recall, precision = curve.on_recall_grid(0.1)
    np.testing.assert_allclose(recall, np.arange(9) / 10)
    np.testing.assert_allclose(precision, [1, 1, 1, 0.75, 0.5, 0.475, 0.45, 0.425, 0.4])


def test_a_thinned_curve_keeps_both_ends():
    n = 50_000
    curve = Curve(np.arange(1, n + 1), np.linspace(1, 0, n), np.linspace(0, 1, n)).thin(1000)
    assert curve.at[0] == 1
    assert curve.at[-1] == n
    assert 700 < len(curve.at) <= 1000
    assert set(range(1, 11)) <= set(curve.at.tolist())


def test_average_is_checked():
    ranking = rank(*slow.random_case(np.random.default_rng(0), 2, 5, 8))
    with pytest.raises(ValueError, match="average is 'mean'"):
        by_radius(ranking, average="mean")
