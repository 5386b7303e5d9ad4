from __future__ import annotations

import numpy as np
import pytest

from modalhash import kernels
from modalhash.codes import to_words


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
