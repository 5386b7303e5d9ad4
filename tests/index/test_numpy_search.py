"""What an index finds without compiled code against what it finds with it: equal in every bit."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from slow_search import table_of

from modalhash.core.codes import pack
from modalhash.index import HammingIndex, VectorTable
from modalhash.index.kernels import compiled as _kernels, numpy_search as _numpy_search
from modalhash.index.layout import CHUNK, MIN_NUMBERED, NO_STARTS, pack_words

N_BITS = (1, 7, 16, 17, 32, 33, 64, 65, 128, 250, 255, 256, 300)


def same(found, wanted):
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


@st.composite
def cases(draw):
    """Queries and rows, any, near each other, or each many times; some numbers of items behind the rows."""
    most_rows = _numpy_search.BLOCK_CHUNKS * CHUNK + 3
    n = draw(st.one_of(st.integers(1, 5), st.integers(CHUNK - 1, CHUNK + 1), st.sampled_from([1000, most_rows])))
    n_bits = draw(st.sampled_from(N_BITS))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    bits = rng.random((n, n_bits)) < draw(st.sampled_from([0.03, 0.5]))
    if draw(st.booleans()):
        bits = bits[rng.integers(0, min(n, 5), n)]
    queries = rng.random((draw(st.integers(1, 3)), n_bits)) < 0.5
    starts = np.concatenate([[0], np.cumsum(rng.integers(1, 5, n))]) if draw(st.booleans()) else NO_STARTS
    starts = starts + draw(st.sampled_from([0, 7]))  # of chunks from the middle of a table
    return n_bits, pack_words(pack(queries), n_bits), table_of(pack(bits), n_bits), starts, rng


@pytest.mark.slow
@settings(max_examples=200)
@given(
    case=cases(),
    k_share=st.sampled_from([0.0, 0.01, 0.5, 1.0]),
    more=st.sampled_from([0, 3, 1000]),
    near=st.sampled_from([0.0, 0.4, 1.0]),
)
def test_nearest(case, k_share, more, near):
    n_bits, queries, table, starts, rng = case
    n_items = int(starts[-1] - starts[0]) if len(starts) else table.n
    k = max(1, int(k_share * n_items))
    max_hits = min(n_items, k + more)
    asked = queries, table.words, table.n, starts, k, max_hits, n_bits, int(near * n_bits)
    wanted = _kernels.nearest(*asked)
    found = _numpy_search.nearest(*asked)
    same(found, wanted)
    if len(starts):
        items = rng.permutation(int(starts[-1]) + 5)
        for first, last in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
            items[first:last].sort()
        for dtype in (np.uint32, np.int64):
            behind = starts, items.astype(dtype), max_hits
            same(_numpy_search.nearest_items(*found, *behind), _kernels.nearest_items(*wanted, *behind))


@pytest.mark.slow
@settings(max_examples=100)
@given(case=cases(), share=st.sampled_from([0.0, 0.1, 0.45, 1.0]))
def test_within(case, share):
    n_bits, queries, table, starts, rng = case
    asked = queries, table.words, table.n, int(share * n_bits), n_bits
    wanted = _kernels.within(*asked)
    same(_numpy_search.within(*asked), wanted)
    if len(starts):
        items = rng.permutation(int(starts[-1])).astype(np.uint32)
        for first, last in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
            items[first:last].sort()
        same(_numpy_search.items_within(*wanted, starts, items), _kernels.items_within(*wanted, starts, items))


@given(
    first=st.sets(st.tuples(st.integers(0, 3), st.integers(-3, 12))),
    other=st.sets(st.tuples(st.integers(0, 3), st.integers(-3, 12))),
)
def test_merged_lists(first, other):
    lists = [np.array(sorted(some), dtype=np.int64).reshape(-1, 2) for some in (first, other)]
    asked = [part for pairs in lists for part in (pairs[:, 1].copy(), pairs[:, 0].astype(np.int32))]
    same(_numpy_search.merge_ordered(*asked), _kernels.merge_ordered(*asked))


@given(
    seed=st.integers(0, 2**32 - 1),
    n_rows=st.sampled_from([0, 1, 40]),
    start=st.sampled_from([0, 1, 30, 48]),
    extreme=st.booleans(),
)
def test_products_of_vectors(seed, n_rows, start, extreme):
    rng = np.random.default_rng(seed)
    table = rng.integers(-128, 128, (50, 64)).astype(np.int8)
    query = rng.integers(-128, 128, 48).astype(np.int8)
    table[7] = 0
    if extreme:
        table[:25], query[:] = -128, -128
    rows = rng.integers(0, 50, n_rows)
    asked = query[start:], table, rows, start
    same([_numpy_search.dots(*asked)], [_kernels.dots(*asked)])
    asked = query, table, rows, start
    same(_numpy_search.dots_and_cosines(*asked), _kernels.dots_and_cosines(*asked))
    zeros = np.zeros(48, np.int8), table, rows, start
    same(_numpy_search.dots_and_cosines(*zeros), _kernels.dots_and_cosines(*zeros))


@pytest.mark.parametrize("n_bits", [16, 32, 64, 130])
@pytest.mark.parametrize("n_codes", [40, 100_000])
def test_an_index_answers_the_same(rng, n_bits, n_codes):
    """Also if codes repeat and are stored once, and after removals, which rebuild such tables."""
    n = MIN_NUMBERED + 2000
    codes = pack(rng.random((n_codes, n_bits)) < 0.5)[rng.integers(0, n_codes, n)]
    queries, ids, groups = pack(rng.random((3, n_bits)) < 0.5), np.arange(n) * 3 + 10, np.arange(n) % 2
    wanted = rng.choice(np.concatenate([ids, ids + 1]), 500)

    def answers(compiled):
        index = HammingIndex(n_bits, compiled=compiled)
        index.add(ids, codes, group=np.where(np.arange(n) < 1900, groups, 0))
        found = []
        for _ in range(2):
            for hits in (
                index.search(queries, k=50),
                index.search(queries, radius=n_bits // 3),
                index.search(queries, k=7, ids=wanted),
                index.shortlist(queries[:1], 30, max_hits=200),
                index.shortlist(queries, 30, max_hits=200),
            ):
                found += [hits.ids, hits.distances]
            found.append(index.distances(queries[0], wanted))
            index.remove(ids[5:5000:7], missing="ignore")
        return found

    same(answers(False), answers(True))


def test_vectors_score_the_same(rng):
    vectors, wanted = rng.integers(-128, 128, (100, 64)).astype(np.int8), rng.integers(0, 200, 50)
    query = rng.integers(-128, 128, 64).astype(np.int8)

    def products(compiled):
        table = VectorTable(64, compiled=compiled)
        table.add(np.arange(100) * 2, vectors)
        found = table.find(wanted)
        return [found.dots(query, 3, 40), *found.dots_and_cosines(query, 8, 40)]

    same(products(False), products(True))


def test_an_index_without_compiled_code_does_not_load_numba():
    code = """
import sys
import numpy as np
from modalhash import HammingIndex
index = HammingIndex(64, compiled=False)
rng = np.random.default_rng(0)
index.add(np.arange(20_000), rng.integers(0, 256, (20_000, 8), dtype=np.uint8), group=np.arange(20_000) % 2)
code = rng.integers(0, 256, (1, 8), dtype=np.uint8)
index.search(code, k=5), index.search(code, radius=20), index.shortlist(code, 5, max_hits=9), index.distances(code[0], [3])
assert "numba" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
