"""The compiled scans against all distances, sorted: every kind of word, ties, k up to n, logs that are too short.

And what they are made of: which chunks are looked at, and how the halves of a large database are scanned in turn.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st
from slow_search import table_of

from modalhash.core.bit_kernels import compiled
from modalhash.core.codes import pack
from modalhash.index.kernels import scans as _kernels
from modalhash.index.kernels.bitsliced import MAX_SUM, chunk_below, codes_below
from modalhash.index.layout import CHUNK, NO_STARTS, pack_words, to_chunks

N_BITS = (1, 7, 9, 16, 17, 32, 33, 64, 65, 128, 129, 192, 250, 256, 300, 520)


@compiled()
def ask(chunks, c, query, limit, ahead):
    return chunk_below(chunks, c, query, limit, ahead)


@compiled()
def ask_which(chunks, c, query, limit, out):
    codes_below(chunks, c, query, limit, out)


@st.composite
def cases(draw):
    n = draw(st.one_of(st.integers(1, 5), st.integers(CHUNK - 1, CHUNK + 1), st.integers(1, 40 * CHUNK)))
    n_bits = draw(st.sampled_from(N_BITS))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["any", "sparse", "equal", "repeated", "falling"]))
    bits = rng.random((n, n_bits)) < (0.05 if kind == "sparse" else 0.5)
    if kind == "equal":
        bits[:] = bits[0]
    elif kind == "repeated":
        bits = bits[rng.integers(0, min(n, 4), n)]
    elif kind == "falling":  # each row is nearer to the query of zeros than the one before
        bits = np.arange(n_bits) < np.linspace(n_bits, 0, n)[:, None]
    queries = np.concatenate([np.zeros((1, n_bits), bool), rng.random((draw(st.integers(0, 3)), n_bits)) < 0.5])
    distances = (queries[:, None] != bits[None]).sum(axis=2)
    return n_bits, pack_words(pack(queries), n_bits), table_of(pack(bits), n_bits), distances


@settings(max_examples=120)
@given(case=cases(), share=st.sampled_from([0.0, 0.01, 0.5, 1.0]))
def test_nearest(case, share):
    n_bits, queries, table, distances = case
    k = max(1, int(share * table.n))
    rows, near, sizes = _kernels.nearest(queries, table.words, table.n, NO_STARTS, k, k, n_bits, n_bits)
    assert (sizes == k).all()
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(rows, order)
    np.testing.assert_array_equal(near, np.take_along_axis(distances, order, axis=1))


@pytest.mark.slow
@settings(max_examples=120)
@given(case=cases(), share=st.sampled_from([0.0, 0.1, 0.45, 1.0]), log=st.sampled_from([1, CHUNK, 2**18]))
def test_within(case, share, log):
    n_bits, queries, table, distances = case
    radius = int(share * n_bits)
    default, _kernels.LOG_LENGTH = _kernels.LOG_LENGTH, log
    try:
        rows, near, offsets = _kernels.within(queries, table.words, table.n, radius, n_bits)
    finally:
        _kernels.LOG_LENGTH = default
    for q, all_distances in enumerate(distances):
        order = np.argsort(all_distances, kind="stable")
        order = order[all_distances[order] <= radius]
        np.testing.assert_array_equal(rows[offsets[q] : offsets[q + 1]], order)
        np.testing.assert_array_equal(near[offsets[q] : offsets[q + 1]], all_distances[order])


@pytest.mark.parametrize("n_words", [1, 2, 3, 4, 17])
@pytest.mark.parametrize("n_chunks", [1, 6, 7])
def test_chunks_with_a_distance_below_a_limit(rng, n_words, n_chunks):
    codes = rng.integers(0, 2**64, (n_chunks * CHUNK, n_words), dtype=np.uint64)
    query = ~codes[-1]  # every bit differs from the last code
    for column in range(CHUNK):  # each place of a chunk has the nearest code once
        codes[column % n_chunks * CHUNK + column] = query ^ np.uint64(1 << column % 64)
        chunks = to_chunks(codes, n_chunks)
        distances = np.bitwise_count(codes ^ query).sum(axis=1, dtype=np.int64)
        least = distances.reshape(n_chunks, CHUNK).min(axis=1)
        for limit in (0, least.min(), least.min() + 1, int(np.median(least)), 64 * n_words + 1):
            for start in range(n_chunks + 1):
                expected = next((c for c in range(start, n_chunks) if least[c] < limit), n_chunks)
                for cached in (False, True):
                    assert _kernels.next_chunk_below(query, chunks, start, limit, cached) == expected


@pytest.mark.parametrize("n_chunks", [2, 6, 7])
def test_pairs_of_chunks_with_a_distance_below_a_limit(rng, n_chunks):
    codes, query = rng.integers(0, 2**64, (n_chunks * CHUNK, 2), dtype=np.uint64), np.zeros(2, np.uint64)
    chunks, n_pairs = to_chunks(codes, n_chunks), n_chunks // 2
    least = np.bitwise_count(codes).sum(axis=1, dtype=np.int64).reshape(n_chunks, CHUNK).min(axis=1)
    first, second = least[:n_pairs], least[n_chunks - n_pairs :]
    found, n_found = np.empty((2, 2), np.int64), np.empty(2, np.int64)
    for limit in (*least.tolist(), 0, 129):
        for other in (*least.tolist(), 0, 129):
            for start in range(n_pairs + 1):
                lists: list[list[int]] = [[], []]
                stop = start
                while stop < n_pairs and max(map(len, lists)) < 2:
                    lists[0] += [stop] if first[stop] < limit else []
                    lists[1] += [n_chunks - n_pairs + stop] if second[stop] < other else []
                    stop += 1
                assert _kernels.next_pairs_below(query, chunks, start, limit, other, found, n_found) == stop
                assert [row[:n].tolist() for row, n in zip(found, n_found, strict=True)] == lists


@given(
    seed=st.integers(0, 2**32 - 1),
    n_words=st.sampled_from([1, 2, 3, 4, 5, 17]),
    share=st.sampled_from([0.02, 0.5, 0.98]),
    above=st.integers(-2, 3),
    place=st.integers(0, CHUNK - 1),
)
def test_codes_of_a_chunk_below_a_limit(seed, n_words, share, above, place):
    rng = np.random.default_rng(seed)
    bits = rng.random((3 * CHUNK, 64 * n_words)) < share
    codes = pack_words(pack(bits), 64 * n_words)
    chunks, query = to_chunks(codes, 3), codes[CHUNK] ^ np.uint64(seed)
    distances = np.bitwise_count(codes ^ query).sum(axis=1, dtype=np.int64)
    limit = int(distances[place]) + above
    below = np.empty(CHUNK // 64, np.uint64)
    for c in range(3):
        near = distances[c * CHUNK : (c + 1) * CHUNK] < limit
        for ahead in (c, c + 1, c + 100):  # beyond the last chunk too
            assert ask(chunks, c, query, limit, ahead) == near.any()
        ask_which(chunks, c, query, limit, below)
        np.testing.assert_array_equal(np.unpackbits(below.view(np.uint8), bitorder="little"), near)


@pytest.mark.parametrize("n_bits", [MAX_SUM - 63, MAX_SUM + 1, MAX_SUM + 65])
def test_distances_that_sums_of_a_chunk_do_not_reach(n_bits):
    codes = np.full((3, n_bits // 64), 2**64 - 1, np.uint64)  # all of them differ from zeros in every bit
    codes[1, 0] -= np.uint64(1)
    chunks, query = to_chunks(codes, 1), np.zeros((1, codes.shape[1]), np.uint64)
    rows, distances, _ = _kernels.nearest(query, chunks, 3, NO_STARTS, 3, 3, n_bits, n_bits)
    assert rows.tolist() == [[1, 0, 2]]
    assert distances.tolist() == [[n_bits - 1, n_bits, n_bits]]
    codes[:] = codes[0]  # without the zeros after the last row, which are nearer
    full = to_chunks(np.repeat(codes[:1], CHUNK, axis=0), 1)
    assert _kernels.next_chunk_below(query[0], full, 0, min(n_bits, MAX_SUM), False) == 1
    assert _kernels.next_chunk_below(query[0], full, 0, n_bits + 1, False) == 0


@pytest.mark.slow
@settings(max_examples=120)
@given(case=cases(), share=st.sampled_from([0.0, 0.01, 0.5, 1.0]), more=st.integers(0, 300), weights=st.booleans())
def test_halves_in_turn(case, share, more, weights):
    n_bits, queries, table, distances = case
    assume(table.words.itemsize == 8)
    rng = np.random.default_rng(table.n)
    starts = np.concatenate([[0], np.cumsum(rng.integers(1, 5, table.n))]) if weights else NO_STARTS
    k = max(1, int(share * table.n))
    max_hits = k + more
    capacity = min(table.n, 2 * max_hits + _kernels.EXTRA_CANDIDATES)
    for query, own_distances in zip(queries, distances, strict=True):
        rows, near, counts = np.empty(capacity, np.int64), np.empty(capacity, np.int32), np.zeros(n_bits + 1, np.int64)
        size, n_items_within, limit = _kernels.scan_halves(
            _kernels.Search(query[None], table.words, table.n, starts, k, max_hits), rows, near, counts, n_bits
        )
        order = np.argsort(own_distances, kind="stable")
        items = np.cumsum(np.diff(starts)[order] if weights else np.ones(table.n, np.int64))
        last = own_distances[order[np.searchsorted(items, k)]]  # of the k-th item
        assert limit == last
        assert n_items_within >= k
        n_nearer = np.count_nonzero(own_distances < last)
        quota = max_hits - (items[n_nearer - 1] if n_nearer else 0)
        wanted = order[: min(n_nearer + quota, np.count_nonzero(own_distances <= last))]
        assert n_items_within - counts[limit] == max_hits - quota
        np.testing.assert_array_equal(near[:size], own_distances[rows[:size]])
        found = rows[:size][np.argsort(near[:size], kind="stable")]  # equal distances in the order they came
        np.testing.assert_array_equal(found[: len(wanted)], wanted)


@pytest.mark.parametrize("kind", ["any", "repeated"])
@pytest.mark.parametrize("n_words", [1, 2, 3, 4])
def test_a_database_that_is_scanned_by_halves(rng, kind, n_words):
    n = _kernels.MIN_BYTES_FOR_HALVES // (8 * n_words) + 77
    codes = rng.integers(0, 2**64, (n, n_words), dtype=np.uint64)
    if kind == "repeated":
        codes = codes[rng.integers(0, 50, n)]
    chunks, query = to_chunks(codes, -(-n // CHUNK)), codes[n // 2 : n // 2 + 1] ^ np.uint64(5)
    assert _kernels.halves_pay(chunks, len(chunks), 1)
    distances = np.bitwise_count(codes ^ query).sum(axis=1, dtype=np.int64)
    order = np.argsort(distances, kind="stable")
    for k in (1, 100, 30_000):
        rows, near, sizes = _kernels.nearest(query, chunks, n, NO_STARTS, k, k, 64 * n_words, 64 * n_words)
        assert sizes == [k]
        np.testing.assert_array_equal(rows[0], order[:k])
        np.testing.assert_array_equal(near[0], distances[order[:k]])
