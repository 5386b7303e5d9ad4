"""The compiled scans against all distances, sorted: every kind of word, ties, k up to n, logs that are too short."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_search import table_of

from modalhash.codes import pack
from modalhash.index import _kernels
from modalhash.index._layout import CHUNK, NO_STARTS, pack_words

N_BITS = (1, 7, 9, 16, 17, 32, 33, 64, 65, 128, 129, 192, 250, 256, 300, 520)


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
