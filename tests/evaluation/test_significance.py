from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from modalhash.evaluation import (
    PairedTest,
    Spread,
    bootstrap_interval,
    holm,
    paired_tests,
    randomisation_test,
    randomisation_tests,
)


def test_spread():
    spread = Spread.of([0.1, 0.2, 0.6])
    assert (spread.mean, spread.n) == (pytest.approx(0.3), 3)
    assert spread.sd == pytest.approx(np.std([0.1, 0.2, 0.6], ddof=1))
    assert str(Spread.of([0.5])) == "0.5000"
    with pytest.raises(ValueError, match="at least one"):
        Spread.of([])


def test_bootstrap_interval_is_that_of_the_mean():
    values = np.random.default_rng(0).random(800)
    low, high = bootstrap_interval(values)
    half = 1.96 * values.std() / np.sqrt(800)
    assert low == pytest.approx(values.mean() - half, abs=0.15 * half)
    assert high == pytest.approx(values.mean() + half, abs=0.15 * half)
    assert (low, high) == bootstrap_interval(np.append(values, np.nan))
    wide = bootstrap_interval(values, level=0.99)
    assert wide[0] < low < high < wide[1]


def test_randomisation_test_tries_every_toss_when_few():
    a, b = np.array([0.5, 0.9, 0.4, 0.8]), np.array([0.4, 0.2, 0.5, 0.3])
    sums = [abs(np.dot(signs, a - b)) for signs in itertools.product((-1, 1), repeat=4)]
    wanted = np.mean([s >= abs((a - b).sum()) - 1e-12 for s in sums])
    assert randomisation_test(a, b) == wanted
    assert randomisation_test(a, a) == 1.0


def test_randomisation_test_finds_a_difference_and_none():
    rng = np.random.default_rng(1)
    a = rng.random(300)
    assert randomisation_test(a, a + 0.05 + 0.1 * rng.standard_normal(300), draws=2000) < 0.01
    same = [randomisation_test(a, a + 0.1 * rng.standard_normal(300), draws=500) for _ in range(40)]
    assert 0.3 < np.mean(same) < 0.7
    assert randomisation_test(a, a[::-1]) == randomisation_test(a, a[::-1])


def test_many_tests_agree_with_one():
    rng = np.random.default_rng(0)
    columns = [rng.normal(shift, 1, size=60) for shift in (0.0, 0.2, 0.4, 1.0)] + [rng.normal(0.3, 1, size=25)]
    many = randomisation_tests(columns, draws=20_000)
    one = [randomisation_test(column, np.zeros(len(column)), draws=20_000) for column in columns]
    assert many == pytest.approx(one, abs=0.01)


def test_left_out_queries_do_not_count():
    values = np.array([0.3, 0.1, np.nan, 0.2, -0.1, 0.4])
    assert randomisation_tests([values]) == pytest.approx(randomisation_tests([values[~np.isnan(values)]]), abs=0.02)


def test_no_difference_is_no_difference():
    assert randomisation_tests([np.zeros(10)]) == [1.0]
    assert randomisation_tests([]) == []
    assert holm([]) == []


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_corrects_upwards_and_keeps_the_order(values):
    corrected = holm(values)
    assert all(c >= min(1.0, v) - 1e-9 for v, c in zip(values, corrected, strict=True))
    assert max(corrected) <= 1
    order = np.argsort(values, kind="stable")
    assert np.all(np.diff(np.array(corrected)[order]) >= -1e-12)
    assert min(corrected) == pytest.approx(min(1.0, min(values) * len(values)), rel=1e-9, abs=1e-12)


def test_scipy_finds_the_same():
    """An independent reference, slower: exact for few queries, within the spread of the draws for many."""
    rng = np.random.default_rng(2)
    few = rng.random((2, 6))
    assert randomisation_test(*few) == pytest.approx(_scipy_p(few))
    many = rng.random((2, 150))
    assert randomisation_test(*many, draws=4000) == pytest.approx(_scipy_p(many), abs=0.05)
    drawn = stats.bootstrap(
        (many[0],), np.mean, method="percentile", n_resamples=4000, random_state=rng
    ).confidence_interval
    assert bootstrap_interval(many[0], draws=4000) == pytest.approx(tuple(drawn), abs=0.005)


def _scipy_p(pair):
    def difference(x, y, axis):
        return x.mean(axis=axis) - y.mean(axis=axis)

    result = stats.permutation_test(
        tuple(pair), difference, permutation_type="samples", vectorized=True, n_resamples=4000, random_state=0
    )
    return result.pvalue


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: randomisation_test([1.0], [1.0, 2.0]), "1 and 2 queries"),
        (lambda: randomisation_test([], []), "at least one"),
        (lambda: randomisation_test([1.0, np.nan], [1.0, 1.0]), "excludes different queries"),
        (lambda: randomisation_test([np.nan], [np.nan]), "no query counts"),
        (lambda: bootstrap_interval([np.nan]), "no query counts"),
        (lambda: bootstrap_interval([[1.0]]), "one number per query"),
        (lambda: bootstrap_interval([1.0], level=1.5), "between 0 and 1"),
    ],
)
def test_bad_input(call, match):
    with pytest.raises(ValueError, match=match):
        call()


def test_paired_tests_are_randomisation_tests_corrected_by_holm():
    rng = np.random.default_rng(3)
    differences = {name: rng.normal(shift, 1, size=50) for name, shift in (("a", 0.6), ("b", 0.0), ("c", -0.9))}
    differences["b"][0] = np.nan
    found = paired_tests(differences)
    p_values = randomisation_tests(list(differences.values()))
    assert [test.p for test in found.values()] == p_values
    assert [test.p_holm for test in found.values()] == holm(p_values)
    assert [test.difference for test in found.values()] == [np.nanmean(values) for values in differences.values()]
    assert [(test.sign, test.arrow) for test in found.values()] == [(1, "↑"), (0, ""), (-1, "↓")]
    assert paired_tests({}) == {}


@pytest.mark.parametrize(("difference", "p", "sign"), [(0.1, 0.05, 0), (0.1, 0.049, 1), (-0.1, 0.01, -1), (0, 0.0, 0)])
def test_an_arrow_needs_a_difference_and_a_small_p(difference, p, sign):
    assert PairedTest(difference, p, p).sign == sign
