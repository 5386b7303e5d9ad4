from __future__ import annotations

import itertools

import numpy as np
import pytest

from modalhash.evaluation import Spread, bootstrap_interval, randomisation_test


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


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: randomisation_test([1.0], [1.0, 2.0]), "1 and 2 queries"),
        (lambda: randomisation_test([], []), "at least one"),
        (lambda: randomisation_test([1.0, np.nan], [1.0, 1.0]), "leaves out different queries"),
        (lambda: randomisation_test([np.nan], [np.nan]), "no query counts"),
        (lambda: bootstrap_interval([np.nan]), "no query counts"),
        (lambda: bootstrap_interval([[1.0]]), "one number per query"),
        (lambda: bootstrap_interval([1.0], level=1.5), "between 0 and 1"),
    ],
)
def test_bad_input(call, match):
    with pytest.raises(ValueError, match=match):
        call()
