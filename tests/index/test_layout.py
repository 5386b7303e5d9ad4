"""Rows in chunks: how they grow, and the words they are made of."""

from __future__ import annotations

import numpy as np

from modalhash.index._layout import GroupRows, pack_words, word_type


def test_growth_is_amortised(rng):
    """Ids that fall are the worst order: few of the additions may copy the table."""
    rows, copies = GroupRows(1, np.uint64), 0
    rebuild = rows._rebuild

    def counted(*new):
        nonlocal copies
        copies += 1
        rebuild(*new)

    rows._rebuild = counted
    codes = pack_words(rng.integers(0, 256, (20_000, 8), dtype=np.uint8), 64)
    for i in range(20_000):
        rows.add(np.array([-i]), codes[i : i + 1])
    assert len(rows) == 20_000
    assert copies <= 5
    assert rows.table().ids.tolist() == list(range(-19_999, 1))


def test_short_codes_get_short_words():
    assert [np.dtype(word_type(bits)).itemsize for bits in (1, 16, 17, 32, 33, 500)] == [2, 2, 4, 4, 8, 8]
