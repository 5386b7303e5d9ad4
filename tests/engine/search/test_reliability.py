from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from modalhash.engine import Bin, calibration_error, pooled, reliability_bins, reliability_svg


def test_the_error_of_a_known_table():
    bins = [Bin(0.0, 30, 0.1, 0.2), Bin(0.5, 10, 0.6, 0.2)]
    assert calibration_error(bins) == pytest.approx((30 * 0.1 + 10 * 0.4) / 40)
    assert calibration_error([]) == 0


def test_pooled_tables_are_the_table_of_all():
    rng = np.random.default_rng(0)
    confidence = rng.random(600)
    right = rng.random(600) < confidence
    parts = pooled([reliability_bins(confidence[:200], right[:200]), reliability_bins(confidence[200:], right[200:])])
    whole = reliability_bins(confidence, right)
    assert [(b.start, b.hits) for b in parts] == [(b.start, b.hits) for b in whole]
    np.testing.assert_allclose([b[2:] for b in parts], [b[2:] for b in whole], atol=2e-4)
    assert sum(b.hits for b in whole) == 600


def test_certain_hits_are_in_the_last_bin():
    assert reliability_bins(np.array([1.0]), np.array([True])) == [Bin(round(14 / 15, 4), 1, 1.0, 1.0)]


def test_the_diagram_has_a_circle_per_bin_and_escapes_its_title():
    drawn = ET.fromstring(reliability_svg([Bin(0.0, 3, 0.05, 0.0), Bin(0.5, 9, 0.52, 0.5)], "a < b & c"))
    assert len(drawn.findall("{http://www.w3.org/2000/svg}circle")) == 2
    assert drawn.find("{http://www.w3.org/2000/svg}title").text == "a < b & c"
