"""The page of the deep methods is that of the committed results."""

from __future__ import annotations

import pytest

pytest.importorskip("matplotlib")

from reproduction import deep_page

pytestmark = pytest.mark.slow

LABELS = ("AMSH_cnn", "RLH", *(f"{name} on frozen features" for name in ("DCMH", "PRDH", "AADAH")))


@pytest.fixture(scope="module")
def found():
    return deep_page.measured()


def test_the_page_is_that_of_the_results(found):
    text = deep_page.PAGE.read_text(encoding="utf-8")
    made, drawings = deep_page.page(text, found)
    assert made == text, "run python -m reproduction.deep_page"
    for name, svg in drawings.items():  # another matplotlib may draw other bytes
        assert svg.startswith("<svg")
        assert (deep_page.IMAGES / name).is_file()
