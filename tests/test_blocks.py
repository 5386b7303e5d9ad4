"""Row blocks: whatever the block size, the memory and the number of threads, the result is the same."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from modalhash.blocks import FeatureBlocks, blas_threads, row_slices, side_by_side, workers


def blocks(X, **options):
    return FeatureBlocks(X, lambda rows_of, rows: rows_of[rows].copy(), width=X.shape[1], dtype=X.dtype, **options)


@given(n=st.integers(1, 70), d=st.integers(1, 6), block_rows=st.integers(1, 80), limit=st.sampled_from([None, 1, 500]))
@settings(max_examples=40)
def test_walks_are_those_of_the_whole(n, d, block_rows, limit):
    X = np.random.default_rng(n).normal(size=(n, d))
    W = np.random.default_rng(d).normal(size=(d, 2))
    for threads in (1, 3):
        with threadpool_limits(threads, user_api="blas"):
            phi = blocks(X, block_rows=block_rows, memory_limit=limit)
            np.testing.assert_array_equal(phi.whole(), X)
            np.testing.assert_allclose(phi.mean(), X.mean(axis=0), atol=1e-12)
            np.testing.assert_allclose(phi.gram(), X.T @ X, atol=1e-10)
            np.testing.assert_allclose(phi.project(W), X @ W, atol=1e-12)
            assert [rows for rows, _ in phi] == list(row_slices(n, block_rows))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_threads_change_nothing(rng, dtype):
    X = rng.normal(size=(500, 30)).astype(dtype)
    results = []
    for threads in (1, 2, 4):
        with threadpool_limits(threads, user_api="blas"):
            phi = blocks(X, block_rows=64)
            results.append((phi.gram(), phi.mean(), phi.project(X[:30])))
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


def test_side_by_side_keeps_the_order_and_bounds_what_waits():
    with threadpool_limits(2, user_api="blas"):
        started = []
        values = side_by_side(lambda i: started.append(i) or i * i, list(range(100)))
        assert next(values) == 0
        assert len(started) <= 6  # two at work, four waiting
        assert list(values) == [i * i for i in range(1, 100)]
        assert blas_threads() == 2


def test_a_failure_comes_back_and_leaves_no_trace():
    def fail(i):
        raise KeyError(i)

    with threadpool_limits(2, user_api="blas"):
        with pytest.raises(KeyError):
            list(side_by_side(fail, [1, 2, 3]))
        assert blas_threads() == 2
        assert list(side_by_side(abs, [-1, -2])) == [1, 2]


def test_workers_have_a_blas_of_one_thread_and_no_workers_of_their_own():
    def inner(_):
        return blas_threads(), {threading.get_ident() for _ in side_by_side(lambda x: x, [1, 2, 3])}

    with threadpool_limits(2, user_api="blas"), workers():
        assert blas_threads() == 1
        for threads, used in side_by_side(inner, [1, 2, 3, 4]):
            assert threads == 1
            assert len(used) == 1
    with threadpool_limits(1, user_api="blas"):
        here = list(side_by_side(lambda _: threading.get_ident(), [1, 2, 3]))
        assert set(here) == {threading.get_ident()}  # one BLAS thread: nothing is started


def test_float32_gram_is_good_beside_one_large_direction(rng):
    """Many equal rows and a direction that outweighs all others: plain float32 sums lose the small eigenvalues."""
    few = np.exp(-rng.random((40, 60))).astype(np.float32)
    X = few[rng.integers(40, size=20_000)] * rng.choice([0.2, 1, 3], size=(20_000, 1)).astype(np.float32)
    exact = X.T.astype(np.float64) @ X
    ridge = 0.01
    values, vectors = np.linalg.eigh(exact)
    scaled = vectors / np.sqrt(np.maximum(values, 0) + ridge)

    def error(gram):
        return np.abs(np.linalg.eigvalsh(scaled.T @ (gram - exact) @ scaled)).max()

    plain = sum((X[rows].T @ X[rows]).astype(np.float64) for rows in row_slices(len(X), 5000))
    assert error(plain) > 0.5  # (G + ρI) would be wrong by half and more where it is small
    assert error(blocks(X, block_rows=5000).gram()) < 0.2


def test_the_limit_is_kept(rng):
    X = rng.normal(size=(1000, 128))  # 1 MB; blocks of a MiB at least
    assert blocks(X).cached == 1
    assert blocks(X, block_rows=10, memory_limit=100).cached == 0
    assert 0.3 < blocks(X, block_rows=10, memory_limit=X.nbytes // 2).cached <= 0.5
