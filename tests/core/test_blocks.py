"""Row blocks: whatever the block size, the memory and the number of threads, the result is the same."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from threadpoolctl import threadpool_limits

from modalhash import AMSH
from modalhash.core.blocks import (
    GROUP_BLOCKS,
    FeatureBlocks,
    FeatureRows,
    _column_sums,
    block_groups,
    ordered_sum,
    product,
    row_slices,
)
from modalhash.core.features import AnchorKernel
from modalhash.core.linalg import RidgeFactor
from modalhash.core.parallel import worker_threads
from modalhash.data import generate
from modalhash.methods.amsh.functions import learn_functions


def blocks(X, **options):
    return FeatureBlocks(X, lambda rows_of, rows: rows_of[rows].copy(), width=X.shape[1], dtype=X.dtype, **options)


@pytest.mark.slow
@given(n=st.integers(1, 70), d=st.integers(1, 6), block_rows=st.integers(1, 80), limit=st.sampled_from([None, 1, 500]))
@settings(max_examples=40)
def test_results_are_those_of_the_whole(n, d, block_rows, limit):
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


@pytest.mark.parametrize(("n", "block_rows", "run_rows"), [(1, 3, None), (100, 3, None), (100, 7, 21), (40, 50, 9)])
def test_groups_cover_all_rows_and_end_with_their_run(n, block_rows, run_rows):
    runs = block_groups(n, block_rows, run_rows)
    blocks = [rows for run in runs for group in run for rows in group]
    np.testing.assert_array_equal(np.concatenate([np.arange(n)[rows] for rows in blocks]), np.arange(n))
    assert all(rows.stop - rows.start <= block_rows for rows in blocks)
    assert all(1 <= len(group) <= GROUP_BLOCKS for run in runs for group in run)
    assert [run[0][0].start for run in runs] == list(range(0, n, run_rows or n))


def test_runs_are_summed_for_themselves(rng):
    X = rng.normal(size=(100, 4))
    phi = blocks(X, block_rows=3, run_rows=30)
    sums = phi.run_totals(_column_sums, per_item=())
    np.testing.assert_allclose(sums, [X[rows].sum(axis=0) for rows in row_slices(100, 30)])


class ProcessParts(FeatureRows):
    """The same blocks, each worked on in another process."""

    def __init__(self, source: FeatureBlocks, pool: ProcessPoolExecutor) -> None:
        self.n, self.width, self.dtype = source.n, source.width, source.dtype
        self.original, self.pool, self.blocks = source, pool, list(source)

    def results(self, work, per_item, shared) -> Iterator:
        tasks = [self.pool.submit(work, b, *(a[rows] for a in per_item), *shared) for rows, b in self.blocks]
        return (task.result() for task in tasks)

    def total(self, work, *, per_item=(), shared=()):
        return ordered_sum(self.results(work, per_item, shared))

    def run_totals(self, work, *, per_item=(), shared=()):
        return [self.total(work, per_item=per_item, shared=shared)]

    def subtract(self, row):
        raise NotImplementedError

    def map(self, work, *, per_item=(), shared=()):
        return np.concatenate(list(self.results(work, per_item, shared)))

    def head(self, size):
        return self.blocks[0][1][:size]

    def take(self, rows):
        return self.original.take(rows)  # computed from these rows alone, as all kinds of parts do


@pytest.fixture(scope="module")
def pool():
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, context, initializer=threadpool_limits, initargs=(1, "blas")) as processes:
        yield processes


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_processes_give_what_threads_give(rng, pool, dtype):
    X = rng.normal(size=(300, 12))
    B = np.where(X @ rng.normal(size=(12, 6)) + rng.normal(size=(300, 6)) > 0, 1, -1).astype(np.int8)
    here = AnchorKernel(40, dtype=dtype, random_state=0).fit_blocks(X, block_rows=70)
    there = ProcessParts(here, pool)
    with threadpool_limits(2, user_api="blas"), worker_threads():
        for one, other in zip(*(results(parts, B) for parts in (here, there)), strict=True):
            np.testing.assert_array_equal(one, other)


def results(phi: FeatureRows, B):
    """All that AMSH asks of the features of a modality."""
    gram = phi.gram()
    yield from (gram, phi.mean(), phi.whole(), phi.project(np.eye(phi.width, 5)))
    for margins in (True, False):
        inverse = RidgeFactor(gram, 0.01).inverse()
        functions = learn_functions(phi, B, lambda inverse=inverse: inverse, ridge=0.01, max_iter=4, margins=margins)
        yield from (functions.F, np.array(functions.trace))


@pytest.mark.parametrize("options", [{}, {"init": "pca", "precision": "float64"}, {"kernel": None, "margins": False}])
def test_work_of_a_fit_pickles(monkeypatch, options):
    data = generate(n_items=200, seed=0)
    model = AMSH(8, n_anchors=50, random_state=0, **options)
    expected = model.fit(data.X, data.Y).functions_
    seen = set()

    def apply(self, i, work, per_item, shared):
        task = (work, self._block(i), *(values[self._slices[i]] for values in per_item), *shared)
        work, *arguments = pickle.loads(pickle.dumps(task))
        seen.add(getattr(work, "func", work).__name__)
        return work(*arguments)

    monkeypatch.setattr(FeatureBlocks, "_apply", apply)
    functions = model.fit(data.X, data.Y).functions_
    assert seen >= {"hinge_terms", "_column_sums"}
    for name, F in functions.items():
        np.testing.assert_array_equal(F, expected[name])


def test_sums_are_taken_in_float64_entry_by_entry():
    parts = [(np.full(3, 0.1, dtype=np.float32), 1.0), (np.full(3, 2.0, dtype=np.float32), 2)]
    total, count = ordered_sum(iter(parts))
    assert total.dtype == np.float64
    np.testing.assert_array_equal(total, np.float64(np.float32(0.1)) + 2.0)
    assert count == 3
    np.testing.assert_array_equal(ordered_sum(iter([np.ones(2), np.ones(2)])), [2, 2])
    with pytest.raises(ValueError, match="no blocks"):
        ordered_sum(iter([]))


def test_per_item_rows_belong_to_their_block(rng):
    X, weights = rng.normal(size=(50, 3)), rng.random(50)
    phi = blocks(X, block_rows=7)
    np.testing.assert_array_equal(phi.map(scaled, per_item=(weights,), shared=(2.0,)), X * weights[:, None] * 2.0)


def scaled(block, weights, factor):
    return block * weights[:, None] * factor


def test_product_is_the_product(rng):
    A, B = rng.normal(size=(1300, 8)), rng.normal(size=(8, 5))
    for threads in (1, 2):
        with threadpool_limits(threads, user_api="blas"):
            np.testing.assert_allclose(product(A, B), A @ B, atol=1e-12)


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


def test_the_memory_limit_holds(rng):
    X = rng.normal(size=(1000, 128))  # 1 MB; blocks of a MiB at least
    assert blocks(X).cached == 1
    assert blocks(X).held
    assert not blocks(X, block_rows=10, memory_limit=X.nbytes // 2).held
    assert blocks(X, block_rows=10, memory_limit=100).cached == 0
    assert 0.3 < blocks(X, block_rows=10, memory_limit=X.nbytes // 2).cached <= 0.5
