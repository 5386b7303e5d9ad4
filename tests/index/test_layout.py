"""Rows in chunks: how they grow, and when each code is held once."""

from __future__ import annotations

import numpy as np

from modalhash.index import layout as _layout
from modalhash.index.layout import DistinctCodes, GroupRows, PackedRows, number_rows, pack_words, word_type


def test_growth_is_amortised(rng):
    """Ids that fall are the worst order: few of the additions may copy the table."""
    rows, copies = GroupRows(1, np.uint64), 0
    rebuild = rows._rebuild

    def counted(*new):
        nonlocal copies
        copies += 1
        rebuild(*new)

    rows._rebuild = counted
    codes = rng.integers(0, 2**64, (20_000, 1), dtype=np.uint64)
    for i in range(20_000):
        rows.add(np.array([-i]), codes[i : i + 1])
    assert len(rows) == 20_000
    assert copies <= 5
    (table,) = rows.tables()
    assert table.ids.tolist() == list(range(-19_999, 1))


def repeated(rng, n, n_codes, n_bits=64):
    codes = rng.integers(0, 256, (n_codes, n_bits // 8), dtype=np.uint8)[rng.integers(0, n_codes, n)]
    return pack_words(codes, n_bits)


def test_codes_that_repeat_are_held_once(rng):
    codes = repeated(rng, 20_000, 300)
    rows = GroupRows(1, np.uint64)
    rows.add(np.arange(20_000), codes)
    (table,) = rows.tables()
    assert isinstance(table, DistinctCodes)
    assert (table.n, table.n_codes, len(rows)) == (20_000, 300, 20_000)
    np.testing.assert_array_equal(table.codes(), codes)
    firsts = [np.flatnonzero(table.numbers == number)[0] for number in range(300)]
    assert firsts == sorted(firsts), "in the order of their first row"
    for number in (0, 7, 299):
        own = table.rows[table.starts[number] : table.starts[number + 1]]
        np.testing.assert_array_equal(own, np.flatnonzero(table.numbers == number))


def test_codes_that_differ_stay_one_by_one(rng):
    rows = GroupRows(1, np.uint64)
    rows.add(np.arange(20_000), rng.integers(0, 2**64, (20_000, 1), dtype=np.uint64))
    (table,) = rows.tables()
    assert isinstance(table, PackedRows)
    rows.add(np.arange(20_000, 20_010), repeated(rng, 10, 2))
    numbered, _layout.number_rows = _layout.number_rows, None
    try:
        rows.tables()  # not looked at again before there are twice as many
    finally:
        _layout.number_rows = numbered


def test_what_comes_later_is_beside_the_codes_until_it_is_much(rng):
    codes = repeated(rng, 200_000, 100)
    rows = GroupRows(1, np.uint64)
    rows.add(np.arange(100_000), codes[:100_000])
    rows.tables()
    rows.add(np.arange(100_000, 100_050), codes[100_000:100_050])
    base, rest = rows.tables()
    assert (base.n, rest.n) == (100_000, 50)
    rows.add(np.arange(100_050, 200_000), codes[100_050:])
    (table,) = rows.tables()
    np.testing.assert_array_equal(table.codes(), codes)


def test_removed_rows_leave_codes_in_the_order_of_their_first_row(rng):
    codes = repeated(rng, 40_000, 50)
    rows = GroupRows(1, np.uint64)
    rows.add(np.arange(40_000), codes)
    rows.tables()
    gone = np.flatnonzero((codes == codes[7]).all(axis=1))  # all of a code, and the first of others
    gone = np.union1d(gone, np.arange(5))
    rows.remove(gone)
    (table,) = rows.tables()
    assert (table.n, table.n_codes, len(rows)) == (40_000 - len(gone), 49, 40_000 - len(gone))
    np.testing.assert_array_equal(table.ids, np.delete(np.arange(40_000), gone))
    np.testing.assert_array_equal(table.codes(), np.delete(codes, gone, axis=0))
    firsts = table.rows[table.starts[:-1]].tolist()
    assert firsts == sorted(firsts)


def test_memory_of_codes_held_once_is_no_more(rng):
    """As many codes as there may be: their arrays take at most a tenth more than ids and codes do."""
    n = 2**17
    for n_bits in (16, 32, 64, 128, 256):
        codes = repeated(rng, n, n // _layout.ITEMS_PER_CODE, n_bits)
        table = number_rows(np.arange(n), codes)
        assert table is not None
        taken = sum(part.nbytes for part in table if isinstance(part, np.ndarray))
        assert taken <= 1.1 * n * (8 + n_bits // 8)


def test_ids_far_apart():
    ids = np.array([-(2**62), 0, 2**62])
    table = number_rows(np.repeat(ids, 16) + np.tile(np.arange(16), 3), np.zeros((48, 1), np.uint64))
    assert table.find(np.array([5, -(2**63), 2**62 + 1, 2**63 - 1]))[1].tolist() == [True, False, True, False]


def test_short_codes_get_short_words():
    assert [np.dtype(word_type(bits)).itemsize for bits in (1, 16, 17, 32, 33, 500)] == [2, 2, 4, 4, 8, 8]
