"""Caches of feature blocks on workers: their memory, and that a task which runs twice does no harm."""

from __future__ import annotations

import gc
import pickle
import sys

import numpy as np
import pytest

from modalhash.core.features import AnchorKernel
from modalhash.distributed.arrays import BlockCache

BLOCK = 10 * 20 * 4


@pytest.fixture
def kernel(rng):
    X = rng.normal(size=(30, 5)).astype(np.float32)
    return X, AnchorKernel(20, random_state=0).fit(X)


def uncentred(feature_map):
    copy = pickle.loads(pickle.dumps(feature_map))
    copy.mean_ = np.zeros_like(copy.mean_)
    return copy


def blocks_of(cache, X, feature_map):
    return [cache.block(i, X, slice(10 * i, 10 * i + 10), feature_map) for i in range(3)]


@pytest.mark.parametrize("room", [0, 1, 3])
def test_blocks_are_those_of_the_map_however_many_are_held(kernel, room):
    X, feature_map = kernel
    cache = BlockCache(3, BLOCK, "fit", room * BLOCK, None)
    before = np.concatenate([block.copy() for block in blocks_of(cache, X, uncentred(feature_map))])
    np.testing.assert_allclose(before - feature_map.mean_, feature_map.transform(X), atol=1e-6)
    for _ in range(2):  # a task may run again
        after = np.concatenate([block.copy() for block in blocks_of(cache, X, feature_map)])
        np.testing.assert_array_equal(after, feature_map.transform(X))
    assert len(cache._blocks) == room


def test_a_task_of_before_the_mean_may_still_run_after(kernel):
    X, feature_map = kernel
    cache = BlockCache(3, BLOCK, "fit", None, None)
    blocks_of(cache, X, feature_map)
    late = np.concatenate([block.copy() for block in blocks_of(cache, X, uncentred(feature_map))])
    np.testing.assert_allclose(late - feature_map.mean_, feature_map.transform(X), atol=1e-6)
    np.testing.assert_array_equal(np.concatenate(blocks_of(cache, X, feature_map)), feature_map.transform(X))


@pytest.mark.slow
def test_limits_hold_for_a_fit_and_for_the_process():
    first, second = BlockCache(4, 100, "one", 600, 1000), BlockCache(4, 100, "one", 600, 1000)
    third = BlockCache(9, 100, "two", 600, 1000)
    assert [cache._room for cache in (first, second, third)] == [4, 2, 4]
    nothing = BlockCache(9, 100, "two", 400, 1000)
    assert nothing._room == 0
    del first, nothing
    gc.collect()
    assert BlockCache(9, 100, "two", None, 1000)._room == 4


def test_dask_is_told_what_a_cache_will_hold():
    sizeof = pytest.importorskip("dask.sizeof").sizeof
    cache = BlockCache(5, 10**6, "fit", 3 * 10**6, None)
    assert sizeof(cache) == sys.getsizeof(cache)
    assert 3 * 10**6 <= sizeof(cache) < 3.1 * 10**6


def test_a_cache_is_sent_empty(kernel):
    X, feature_map = kernel
    cache = BlockCache(3, BLOCK, "fit", None, None)
    blocks_of(cache, X, feature_map)
    sent = pickle.dumps(cache)
    assert len(sent) < BLOCK
    np.testing.assert_array_equal(
        np.concatenate(blocks_of(pickle.loads(sent), X, feature_map)), feature_map.transform(X)
    )
