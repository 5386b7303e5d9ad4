"""Multi-index hashing against all distances: every length, every radius, adversarial data, and after changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from slow_search import brute_force, change_alike, finish_builds, same, table_of

from modalhash.core.codes import pack
from modalhash.index import HammingIndex
from modalhash.index.layout import CHUNK, pack_words, word_type
from modalhash.index.radius import (
    SubstringTables,
    _ball_size,
    _flip_masks,
    _plan,
    _scan_cost,
    _substring_pieces,
    _substring_radii,
    _worthwhile,
)

N_BITS = (1, 2, 7, 8, 9, 12, 16, 17, 31, 32, 33, 63, 64, 65, 100, 128, 130, 256, 321)


def drawn(kind, rng, n, n_bits):
    """Codes as bits: anything, all equal, a few values many times, or all in one bucket of the first substring."""
    bits = rng.random((n, n_bits)) < 0.5
    if kind == "equal":
        bits[:] = bits[:1]
    elif kind == "few":
        bits = bits[rng.integers(0, min(3, n), n)]
    elif kind == "near":
        bits = bits[:1] ^ (rng.random((n, n_bits)) < 1.5 / n_bits)
    elif kind == "one bucket":
        bits[:, : n_bits // 2] = False
    return bits


@pytest.mark.slow
@settings(max_examples=150)
@given(
    n=st.integers(1, 3 * CHUNK),
    n_bits=st.sampled_from(N_BITS),
    kind=st.sampled_from(["any", "equal", "few", "near", "one bucket"]),
    made_for=st.integers(0, 6),
    radius=st.integers(0, 4),
    seed=st.integers(0, 2**32 - 1),
)
def test_tables_find_all_and_nothing_else(n, n_bits, kind, made_for, radius, seed):
    rng = np.random.default_rng(seed)
    bits = drawn(kind, rng, n, n_bits)
    near = bits[rng.integers(0, n, 3)] ^ (rng.random((3, n_bits)) < 1 / n_bits)
    codes, queries = pack(bits), pack(np.concatenate([near, rng.random((1, n_bits)) < 0.5]))
    radius = min(radius, n_bits)
    tables = SubstringTables(table_of(codes, n_bits), n_bits, min(made_for, n_bits))
    rows, distances, offsets, left_out = tables.search(pack_words(queries, n_bits), radius, budget=2**40)
    assert not left_out.any()
    for q, (expected_rows, expected) in enumerate(brute_force(queries, np.arange(n), codes)):
        n_inside = np.count_nonzero(expected <= radius)
        np.testing.assert_array_equal(rows[offsets[q] : offsets[q + 1]], expected_rows[:n_inside])
        np.testing.assert_array_equal(distances[offsets[q] : offsets[q + 1]], expected[:n_inside])


@pytest.mark.slow
@settings(max_examples=60)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["add", "replace", "remove", "search"]), st.integers(0, 2**31)), max_size=20
    ),
    n_bits=st.sampled_from([12, 64, 70]),
)
def test_changes_after_building(steps, n_bits):
    """The same as an index without tables, whatever was added, replaced and removed since."""
    rng = np.random.default_rng(0)
    plain, fast = HammingIndex(n_bits), HammingIndex(n_bits)
    ids, groups = rng.choice(3000, 1500, replace=False), rng.integers(0, 2, 1500)
    codes = pack(drawn("near", rng, 1500, n_bits))
    for index in (plain, fast):
        index.add(ids, codes, group=groups)
    fast.build_radius(2)
    for what, seed in [*steps, ("search", 1)]:
        some = change_alike(what, seed, plain, fast, lambda rng, n: drawn("near", rng, n, n_bits))
        if what == "search":
            stored = plain.dump()[1]
            for radius in (0, 1, 2, 5):
                for group in (None, 1, (0, 2), 7):
                    same(
                        plain.search(stored[:5], radius=radius, group=group),
                        fast.search(stored[:5], radius=radius, group=group),
                    )
            same(plain.search(stored[:5], radius=2, ids=some), fast.search(stored[:5], radius=2, ids=some))


@pytest.fixture
def large(rng):
    """Two indexes of the same 40,000 codes, of which one has tables; and queries near some of them."""
    bits = rng.random((40_000, 64)) < 0.5
    bits[:20_000] = bits[0]  # half of them equal: too many for the tables
    queries = pack(bits[::400] ^ (rng.random((100, 64)) < 0.02))
    plain, fast = HammingIndex(64), HammingIndex(64)
    for index in (plain, fast):
        index.add(np.arange(40_000), pack(bits))
    return plain, fast, queries


@pytest.mark.slow
def test_queries_with_full_buckets_get_the_scan(large):
    plain, fast, queries = large
    assert fast.build_radius(2) > 0
    tables = fast._multi_index._tables[0].tables
    left_out = tables.search(pack_words(queries, 64), 2)[3]
    assert 0 < left_out.sum() < len(queries), "some of both"
    for radius in (0, 2, 3, 20, 64):
        same(plain.search(queries, radius=radius), fast.search(queries, radius=radius))
    rows, distances, offsets, left_out = tables.search(pack_words(queries, 64), 30)
    assert left_out.all(), "too many values to look up, whatever the codes are"
    assert len(rows) == len(distances) == offsets.max() == 0


def test_no_queries(large):
    _, fast, queries = large
    fast.build_radius(2)
    hits = fast.search(queries[:0], radius=2)
    assert len(hits) == len(hits.ids) == len(hits.distances) == 0


@pytest.mark.slow
def test_tables_are_rebuilt_when_much_has_changed(large, rng):
    plain, fast, queries = large
    fast.build_radius(2)
    before = fast._multi_index._tables[0]
    for start in (40_000, 42_000, 46_000):
        codes = pack(rng.random((2000, 64)) < 0.5)
        for index in (plain, fast):
            index.add(np.arange(start, start + 2000), codes)
            index.remove(np.arange(start - 40_000, start - 40_000 + 500))
        same(plain.search(queries, radius=2), fast.search(queries, radius=2))
        finish_builds(fast)
        same(plain.search(queries, radius=2), fast.search(queries, radius=2))
    assert fast._multi_index._tables[0] is not before
    assert fast.build_radius(None) == 0
    assert not fast._multi_index._tables
    same(plain.search(queries, radius=2), fast.search(queries, radius=2))


def test_many_queries_in_threads(large, monkeypatch):
    monkeypatch.setattr("modalhash.index.scan.QUERY_TILE", 16)
    plain, fast, queries = large
    fast.n_threads = 3
    fast.build_radius(2)
    same(plain.search(queries, radius=2), fast.search(queries, radius=2))


def test_small_or_hopeless_needs_no_tables(rng):
    index = HammingIndex(64)
    assert index.build_radius(2) == 0, "nothing there"
    index.add(np.arange(100), pack(rng.random((100, 64)) < 0.5))
    assert index.build_radius(2) == 0, "a scan of 100 codes is quicker"
    index.add(np.arange(100, 5000), pack(rng.random((4900, 64)) < 0.5))
    assert index.build_radius(40) == 0, "half of all values lie that near"
    assert index.build_radius(2) > 0
    assert len(index.search(index.dump()[1][:1], radius=1).ids) == 1
    with pytest.raises(ValueError, match="radius is -1"):
        index.build_radius(-1)


@settings(max_examples=80)
@given(n_bits=st.integers(1, 300), radius=st.integers(0, 12), n=st.integers(1, 10**8))
def test_substrings_are_disjoint_and_reach_far_enough(n_bits, radius, n):
    radius = min(radius, n_bits)
    lengths = _plan(n, n_bits, radius)[1]
    radii = _substring_radii(radius, lengths)
    full = any(reach == length for reach, length in zip(radii, lengths, strict=True))
    assert full or sum(reach + 1 for reach in radii) == radius + 1  # pigeonhole
    pieces = _substring_pieces(n_bits, lengths)
    width = 8 * np.dtype(word_type(n_bits)).itemsize
    bits = []
    for substring, word, shift, mask, position in pieces.tolist():
        bits += [(word * width + shift + i, substring, position + i) for i in range(mask.bit_length())]
    sources = [bit for bit, _, _ in bits]
    assert len(set(sources)) == len(sources) == sum(lengths), "no bit twice, none lost"
    used = np.unpackbits(pack(np.ones((1, n_bits), dtype=bool)), axis=1)[0].reshape(-1, 8)[:, ::-1].ravel()
    assert all(used[bit] for bit in sources), "no padding"
    for substring, length in enumerate(lengths):
        assert sorted(position for _, own, position in bits if own == substring) == list(range(length))


def test_masks_are_the_ball():
    for length in range(1, 7):
        for reach in range(-1, length + 1):
            wanted = [v for v in range(2**length) if v.bit_count() <= reach]
            assert sorted(_flip_masks(length, reach).tolist()) == wanted
            assert _ball_size(length, reach) == len(wanted)


def test_what_is_planned():
    assert _plan(20_000_000, 64, 2)[1] == [22, 21, 21]
    assert _plan(20_000_000, 128, 2)[1] == [25, 25, 25]
    assert _worthwhile(20_000_000, 64, 4)
    assert not _worthwhile(20_000_000, 64, 20)
    assert _scan_cost(10_240, 16) * 4 == _scan_cost(10_240, 64)
