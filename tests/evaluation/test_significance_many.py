"""Tests between methods: against the slow one, and with known answers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modalhash.evaluation import holm, randomisation_test, randomisation_tests


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
