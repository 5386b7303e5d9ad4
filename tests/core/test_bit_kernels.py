from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from modalhash.core import bit_kernels as kernels
from modalhash.core.codes import pack, to_words


@pytest.fixture(scope="module")
def words():
    rng = np.random.default_rng(0)

    def draw(n, width):
        return to_words(rng.integers(256, size=(n, 8 * width), dtype=np.uint8))

    return draw


@pytest.mark.parametrize("width", [1, 2, 3])
def test_hamming(words, width):
    a, b = words(4, width), words(7, width)
    wanted = np.bitwise_count(a[:, None] ^ b[None]).sum(axis=2)
    np.testing.assert_array_equal(kernels.hamming(a, b), wanted)


@pytest.mark.parametrize(("width", "label_width"), [(1, 1), (2, 1), (1, 2), (3, 3)])
@pytest.mark.parametrize("n", [1, 5, kernels.BLOCK + 3])
def test_histograms(words, width, label_width, n):
    n_queries = kernels.TILE + 2
    a, b = words(n_queries, width), words(n, width)
    labels_a, labels_b = (words(m, label_width) & words(m, label_width) & words(m, label_width) for m in (n_queries, n))
    labels_a, labels_b = labels_a & np.uint64(0x8100000000000101), labels_b & np.uint64(0x8100000000000101)
    counts = kernels.histograms(a, labels_a, np.ascontiguousarray(b.T), np.ascontiguousarray(labels_b.T), 64 * width)
    distances = kernels.hamming(a, b)
    relevant = (labels_a[:, None] & labels_b[None]).any(axis=2)
    assert counts.shape == (n_queries, 64 * width + 1, 2)
    for q in range(n_queries):
        items = np.bincount(distances[q], minlength=64 * width + 1)
        hits = np.bincount(distances[q][relevant[q]], minlength=64 * width + 1)
        np.testing.assert_array_equal(counts[q], np.stack([items, hits], axis=1))


def test_stable_ranks_do_not_depend_on_threads(words):
    import numba

    a, b = words(20, 1) & np.uint64(0xFF), words(500, 1) & np.uint64(0xFF)
    labels_a, labels_b = (words(n, 1) & np.uint64(3) for n in (20, 500))
    given = (a, labels_a, np.ascontiguousarray(b.T), np.ascontiguousarray(labels_b.T))
    counts = kernels.histograms(*given, 64)
    threads = numba.get_num_threads()
    nobody = np.full(20, -1)
    first = kernels.stable_ranks(*given, counts, nobody, 100, 500)
    try:
        numba.set_num_threads(1)
        second = kernels.stable_ranks(*given, counts, nobody, 100, 500)
    finally:
        numba.set_num_threads(threads)
    for left, right in zip(first, second, strict=True):
        np.testing.assert_array_equal(left, right)


@st.composite
def cases(draw):
    """Codes and labels of queries and items as bits: any, all equal, or each many times; one bit, one row, no multiple of 64."""
    n_queries, n_items = draw(st.integers(1, 20)), draw(st.sampled_from([1, 2, 63, 64, 65, kernels.BLOCK + 5]))
    n_bits, n_classes = draw(st.sampled_from([1, 7, 16, 63, 64, 65, 128, 130, 200])), draw(st.sampled_from([1, 24, 70]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    codes = rng.random((n_queries + n_items, n_bits)) < 0.5
    kind = draw(st.sampled_from(["any", "equal", "repeated"]))
    if kind != "any":
        codes = codes[
            np.zeros(len(codes), int) if kind == "equal" else rng.integers(0, 3, len(codes)).clip(0, len(codes) - 1)
        ]
    labels = rng.random((n_queries + n_items, n_classes)) < draw(st.sampled_from([0.0, 1.5 / n_classes, 1.0]))
    excluded = rng.integers(-1, n_items, n_queries) if n_items > 1 else np.full(n_queries, -1)
    return n_queries, codes, labels, excluded


@pytest.mark.slow
@settings(max_examples=60)
@given(case=cases(), cutoff=st.sampled_from([1, 3, 10**6]), depth=st.sampled_from([0, 1, 50]))
def test_histograms_and_ranks_equal_a_sort(case, cutoff, depth):
    n, codes, labels, excluded = case
    words = [to_words(pack(part)) for part in (codes[:n], labels[:n], codes[n:], labels[n:])]
    given = (*words[:2], *(np.ascontiguousarray(part.T) for part in words[2:]))
    n_bits = codes.shape[1]
    counts = kernels.histograms(*given, n_bits)
    kernels.forget(counts, *given, excluded)
    precisions, hits, found, shares = kernels.stable_ranks(*given, counts, excluded, cutoff, depth)
    all_found, all_shares = np.zeros(depth), np.zeros(depth)
    for q in range(n):
        seen = np.arange(len(codes) - n) != excluded[q]
        distances = (codes[q] != codes[n:]).sum(axis=1)[seen]
        relevant = (labels[q] & labels[n:]).any(axis=1)[seen]
        wanted = np.stack([np.bincount(d, minlength=n_bits + 1) for d in (distances, distances[relevant])], axis=1)
        np.testing.assert_array_equal(counts[q], wanted)
        ranked = relevant[np.argsort(distances, kind="stable")]
        precision = np.cumsum(ranked) / np.arange(1, len(ranked) + 1)
        assert precisions[q] == pytest.approx(precision[:cutoff][ranked[:cutoff]].sum(), rel=1e-12)
        assert hits[q] == ranked[:cutoff].sum()
        all_found[: len(ranked)] += ranked[:depth]
        all_shares[: len(ranked)] += ranked[:depth] / max(ranked.sum(), 1)
    np.testing.assert_array_equal(found, all_found)
    np.testing.assert_allclose(shares, all_shares, rtol=1e-12)


@settings(max_examples=40)
@given(n=st.integers(0, 20), m=st.integers(0, 20), n_bits=st.integers(1, 200), seed=st.integers(0, 2**32 - 1))
def test_hamming_of_any_size(n, m, n_bits, seed):
    rng = np.random.default_rng(seed)
    a, b = rng.random((n, n_bits)) < 0.5, rng.random((m, n_bits)) < 0.5
    wanted = (a[:, None] != b[None]).sum(axis=2)
    np.testing.assert_array_equal(kernels.hamming(to_words(pack(a)), to_words(pack(b))), wanted)
