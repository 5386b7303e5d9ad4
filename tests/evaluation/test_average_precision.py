from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from slow_ranking import average_precision as slow, distances, mean_over_orders, random_case, tied_orders

from modalhash.evaluation import mean_average_precision, rank
from modalhash.evaluation.measures import average_precision, harmonic_difference

NORMALISERS = ("relevant", "retrieved", "smaller")
pytestmark = pytest.mark.filterwarnings("ignore:.*have no label")


@st.composite
def small_rankings(draw):
    items = draw(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=6))
    distance = np.array([d for d, _ in items])
    relevant = np.array([r for _, r in items])
    return distance, relevant, draw(st.none() | st.integers(1, len(items))), draw(st.sampled_from(NORMALISERS))


def ranking_of(distance, relevant):
    """One query and a database at these distances."""
    codes = np.packbits(np.arange(8) < np.asarray(distance)[:, None], axis=1)
    labels = np.stack([relevant, ~relevant], axis=1)
    return rank(np.zeros((1, 1), np.uint8), np.array([[1, 0]]), codes, labels)


@pytest.mark.slow
@given(small_rankings())
@settings(deadline=None, max_examples=100)
def test_expected_is_the_mean_over_all_orders(case):
    distance, relevant, cutoff, normaliser = case
    got = average_precision(ranking_of(distance, relevant), cutoff=cutoff, normaliser=normaliser)
    wanted = mean_over_orders(distance, relevant, lambda order: slow(order, cutoff, normaliser))
    assert got[0] == pytest.approx(wanted, abs=1e-12)


@pytest.mark.slow
@given(small_rankings())
@settings(deadline=None, max_examples=100)
def test_the_other_tie_rules_are_orders_too(case):
    distance, relevant, cutoff, normaliser = case
    ranking = ranking_of(distance, relevant)
    order = {
        "stable": np.argsort(distance, kind="stable"),
        "optimistic": np.lexsort((~relevant, distance)),
        "pessimistic": np.lexsort((relevant, distance)),
    }
    for ties, wanted in order.items():
        got = average_precision(ranking, ties=ties, cutoff=cutoff, normaliser=normaliser)[0]
        assert got == pytest.approx(slow(relevant[wanted], cutoff, normaliser), abs=1e-12), ties
    if normaliser != "retrieved":  # a ratio of two numbers that both change is not extreme at the extremes
        every = [slow(relevant[list(order)], cutoff, normaliser) for order in tied_orders(distance)]
        for ties, extreme in (("optimistic", max(every)), ("pessimistic", min(every))):
            got = average_precision(ranking, ties=ties, cutoff=cutoff, normaliser=normaliser)[0]
            assert got == pytest.approx(extreme, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("cutoff", "normaliser"), [(None, "relevant"), (40, "retrieved"), (40, "smaller")])
def test_expected_is_close_to_the_mean_of_random_orders(cutoff, normaliser):
    rng = np.random.default_rng(5)
    query_codes, query_labels, codes, labels = random_case(rng, 3, 300, 12)
    got = average_precision(rank(query_codes, query_labels, codes, labels), cutoff=cutoff, normaliser=normaliser)
    for q, row in enumerate(distances(query_codes, codes)):
        relevant = labels @ query_labels[q] > 0
        drawn = []
        for _ in range(2000):
            shuffled = rng.permutation(300)
            order = shuffled[np.argsort(row[shuffled], kind="stable")]
            drawn.append(slow(relevant[order], cutoff, normaliser))
        standard_error = np.std(drawn) / np.sqrt(len(drawn))
        assert abs(got[q] - np.mean(drawn)) <= 4.5 * standard_error + 1e-12


@pytest.mark.parametrize("n_bits", [7, 16, 64, 65, 128, 200])
@pytest.mark.parametrize("n_classes", [3, 64, 130])
def test_any_number_of_words(n_bits, n_classes):
    rng = np.random.default_rng(n_bits + n_classes)
    case = random_case(rng, 5, 90, n_bits, n_classes, density=2 / n_classes)
    query_codes, query_labels, codes, labels = case
    got = average_precision(rank(*case, n_bits=n_bits), ties="stable")
    for q, row in enumerate(distances(query_codes, codes)):
        relevant = (labels @ query_labels[q] > 0)[np.argsort(row, kind="stable")]
        assert got[q] == pytest.approx(slow(relevant), abs=1e-12)


@pytest.mark.parametrize("ties", ["expected", "stable", "optimistic", "pessimistic"])
def test_more_items_and_queries_than_a_block(ties):
    rng = np.random.default_rng(1)
    n, copies = 4096, 3
    query_codes, query_labels, codes, labels = random_case(rng, 37, n, 16)
    got = mean_average_precision(
        query_codes, query_labels, np.tile(codes, (copies, 1)), np.tile(labels, (copies, 1)), ties=ties
    )
    wanted = []
    for q, row in enumerate(np.tile(distances(query_codes, codes), copies)):
        relevant = np.tile(labels @ query_labels[q] > 0, copies)
        order = {
            "stable": np.argsort(row, kind="stable"),
            "optimistic": np.lexsort((~relevant, row)),
            "pessimistic": np.lexsort((relevant, row)),
        }.get(ties)
        if order is None:
            wanted.append(_expected_by_formula(row, relevant))
            continue
        hits = relevant[order]
        precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
        wanted.append((precision * hits).sum() / max(hits.sum(), 1))
    assert got == pytest.approx(np.mean(wanted), abs=1e-12)


def _expected_by_formula(distance, relevant):
    s = R = 0
    total = 0.0
    for d in np.unique(distance):
        g, q = (distance == d).sum(), relevant[distance == d].sum()
        i = np.arange(1, g + 1)
        total += (q / g * (R + 1 + (i - 1) * (q - 1) / max(g - 1, 1)) / (s + i)).sum()
        s, R = s + g, R + q
    return total / R if R else 0.0


@given(st.integers(0, 10**6), st.integers(0, 2000))
@settings(deadline=None, max_examples=200)
def test_harmonic_difference_keeps_its_digits(a, length):
    wanted = np.sum(1 / np.arange(a + length, a, -1, dtype=np.longdouble))
    got = harmonic_difference(np.array([float(a)]), np.array([float(a + length)]))[0]
    assert got == pytest.approx(float(wanted), rel=1e-13, abs=1e-300)


def test_query_without_relevant_items_counts_as_zero():
    codes = np.zeros((4, 1), np.uint8)
    labels = np.array([[1, 0], [1, 0], [1, 0], [1, 0]])
    both = np.array([[1, 0], [0, 1]])
    assert mean_average_precision(codes[:2], both, codes, labels) == 0.5


def test_sparse_labels_and_unaligned_codes():
    from scipy import sparse

    rng = np.random.default_rng(0)
    query_codes, query_labels, codes, labels = random_case(rng, 4, 50, 64)
    raw = np.empty(codes.size + 1, np.uint8)
    raw[1:] = codes.ravel()
    shifted = raw[1:].reshape(codes.shape)
    shifted.flags.writeable = False
    wanted = mean_average_precision(query_codes, query_labels, codes, labels)
    sparse_labels = [sparse.csr_array(part) for part in (query_labels, labels)]
    assert mean_average_precision(query_codes, sparse_labels[0], shifted, sparse_labels[1]) == wanted
    assert mean_average_precision(query_codes, query_labels, codes[::-1], labels[::-1]) == pytest.approx(wanted)


class TestBadInput:
    codes = np.zeros((3, 2), np.uint8)
    labels = np.array([[1, 0], [0, 1], [1, 1]])

    @pytest.mark.parametrize(
        ("change", "error", "match"),
        [
            ({"query_codes": codes[:0]}, ValueError, "queries: there are no items"),
            ({"database_codes": codes[:0]}, ValueError, "database: there are no items"),
            ({"query_codes": codes[:, :1]}, ValueError, r"database: got shape \(3, 2\); 8 bits need \(n, 1\)"),
            ({"query_codes": codes[0]}, ValueError, r"queries: got shape \(2,\)"),
            ({"query_codes": codes.astype(float)}, TypeError, "queries: got dtype float64"),
            ({"query_labels": labels[:2]}, ValueError, "'queries': 2 label rows for 3 items"),
            ({"database_labels": labels[:2]}, ValueError, "'database': 2 label rows for 3 items"),
            ({"database_labels": labels[:, :1]}, ValueError, "label columns differ"),
            ({"query_labels": labels * 0.5}, ValueError, "'queries': labels contain .*0.5"),
            ({"query_labels": labels * 0}, ValueError, "'queries': none of the 3 items has a label"),
            ({"database_labels": labels * 0}, ValueError, "'database': none of the 3 items has a label"),
            ({"ties": "random"}, ValueError, "ties is 'random'; expected one of 'expected'"),
            ({"n_bits": 9}, None, ""),
            ({"n_bits": 17}, ValueError, r"queries: got shape \(3, 2\); 17 bits need \(n, 3\)"),
        ],
    )
    def test_message(self, change, error, match):
        given = {
            "query_codes": self.codes,
            "query_labels": self.labels,
            "database_codes": self.codes,
            "database_labels": self.labels,
            **change,
        }
        if error is None:
            mean_average_precision(**given)
            return
        with pytest.raises(error, match=match):
            mean_average_precision(**given)
