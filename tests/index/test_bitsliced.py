"""Codes compared plane by plane against distances counted one by one, and batches against single queries."""

from __future__ import annotations

import numpy as np
import pytest
from slow_search import table_of

from modalhash.core.codes import pack
from modalhash.index.kernels import bitsliced as _planes, scans as _kernels
from modalhash.index.layout import CHUNK, NO_STARTS, pack_words, to_chunks

N_BITS = (33, 64, 65, 128, 200, 256)
BATCH = _kernels.MIN_QUERIES_FOR_PLANES + 3  # compared by planes, unless vector instructions count bits


def words_of(rng, n, n_words):
    return rng.integers(0, 2**64, (n, n_words), dtype=np.uint64)


@pytest.mark.parametrize("n_words", [1, 2, 4])
def test_codes_below_a_bound(rng, n_words):
    codes, queries = words_of(rng, 2 * _planes.GROUP, n_words), words_of(rng, 5, n_words)
    queries[0], queries[1] = codes[3], ~codes[300]  # distances of nothing and of every bit
    chunks = to_chunks(codes, 2 * _planes.GROUP_CHUNKS)
    tables = _planes.aligned_words(2 * n_words * _planes.TABLE_WORDS).reshape(2, -1)
    planes, out = _planes.aligned_words(64 * _planes.LANES), _planes.aligned_words(_planes.LANES)
    for g in range(2):
        _planes.fill_table(chunks[g * _planes.GROUP_CHUNKS : (g + 1) * _planes.GROUP_CHUNKS], planes, tables[g])
    places = np.empty((len(queries), 2 * _planes.TRIPLES * n_words), np.uint16)
    bounds = np.empty((len(queries), _planes.MAX_DIGITS), np.uint64)
    for q, query in enumerate(queries):
        _planes.fill_places(query, places[q])
        distances = np.bitwise_count(codes ^ query).sum(axis=1, dtype=np.int64).reshape(2, -1)
        for bound in (
            0,
            1,
            *np.quantile(distances, [0, 0.01, 0.5]).astype(int).tolist(),
            64 * n_words,
            64 * n_words + 1,
        ):
            _planes.fill_bound(bound, bounds[q])
            expected = distances < bound
            for start in range(2):
                g = _planes.next_group_below(tables, start, 2, places, bounds, q, out)
                assert g == next((g for g in range(start, 2) if expected[g].any()), 2)
                if g < 2:
                    bits = np.unpackbits(out.view(np.uint8), bitorder="little").astype(bool)
                    np.testing.assert_array_equal(bits, expected[g])


@pytest.mark.parametrize("n_bits", N_BITS)
@pytest.mark.parametrize("kind", ["any", "repeated", "falling"])
def test_a_batch_finds_what_is_nearest(rng, n_bits, kind):
    n = 41 * CHUNK + 5  # several blocks, then a chunk that is no whole group, then some rows
    bits = rng.random((n, n_bits)) < 0.5
    if kind == "repeated":
        bits = bits[rng.integers(0, 9, n)]
    elif kind == "falling":  # each row is nearer to the query of zeros than the one before
        bits = np.arange(n_bits) < np.linspace(n_bits, 0, n)[:, None]
    queries = rng.random((BATCH, n_bits)) < 0.5
    queries[0], queries[1] = False, bits[7]
    table, packed = table_of(pack(bits), n_bits), pack_words(pack(queries), n_bits)
    distances = np.bitwise_count(pack(queries)[:, None] ^ pack(bits)[None]).sum(axis=2, dtype=np.int64)
    order = np.argsort(distances, axis=1, kind="stable")
    for k in (1, 100, n):
        rows, near, sizes = _kernels.nearest(packed, table.words, n, NO_STARTS, k, k, n_bits, n_bits)
        assert (sizes == k).all()
        np.testing.assert_array_equal(rows, order[:, :k])
        np.testing.assert_array_equal(near, np.take_along_axis(distances, order[:, :k], axis=1))


def test_rows_of_several_items_count_several_times(rng):
    n, k, max_hits = 4 * _planes.GROUP, 50, 80
    codes, queries = words_of(rng, n, 1), words_of(rng, BATCH, 1)
    starts = np.concatenate([[0], np.cumsum(rng.integers(1, 9, n))])
    args = to_chunks(codes, n // CHUNK), n, starts, k, max_hits, 64, 64
    rows, distances, sizes = _kernels.nearest(queries, *args)
    for q in range(BATCH):
        alone = _kernels.nearest(queries[q : q + 1], *args)
        np.testing.assert_array_equal(rows[q], alone[0][0])
        np.testing.assert_array_equal(distances[q], alone[1][0])
        assert sizes[q] == alone[2][0]


@pytest.mark.parametrize("n_words", [1, 2, 4])
def test_groups_are_scanned_on_every_processor(rng, n_words):
    n, k, n_bits = 9 * _planes.GROUP, 30, 64 * n_words
    codes, queries = words_of(rng, n, n_words), words_of(rng, 5, n_words)
    rows, distances = np.empty((5, 2 * k), np.int64), np.empty((5, 2 * k), np.int32)
    counts, n_rows_at = np.zeros((5, n_bits + 1), np.int64), np.zeros((5, n_bits + 1), np.int64)
    sizes, n_within, limits = np.zeros(5, np.int64), np.zeros(5, np.int64), np.full(5, n_bits)
    done = _kernels.scan_groups(
        _kernels.Search(queries, to_chunks(codes, n // CHUNK), n, NO_STARTS, k, k),
        _kernels.Candidates(rows, distances, counts, n_rows_at, sizes, n_within, limits),
    )
    assert done == n // CHUNK
    for q, query in enumerate(queries):
        expected = np.bitwise_count(codes ^ query).sum(axis=1, dtype=np.int64)
        order = np.argsort(expected, kind="stable")[:k]
        found = slice(int(sizes[q]))
        best = np.lexsort((rows[q, found], distances[q, found]))[:k]
        np.testing.assert_array_equal(rows[q, found][best], order)
        np.testing.assert_array_equal(distances[q, found][best], expected[order])
        assert limits[q] == expected[order[-1]]
