"""FAISS's inverted lists behind the interface of the exact index."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from modalhash._imports import MissingExtraError, install_line
from modalhash.index import FaissIndex, HammingIndex, make_index

faiss = pytest.importorskip("faiss", reason="the extra 'faiss' is not installed")

N, N_BITS = 12_000, 60


@pytest.fixture(autouse=True)
def one_thread():
    """FAISS's threads wait for one another: with other tests at work beside them, for long."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield
    faiss.omp_set_num_threads(before)


@pytest.fixture
def codes(rng):
    """Clustered, as learned codes are: a few hundred centres with some bits flipped."""
    centres = rng.random((300, N_BITS)) < 0.5
    return np.packbits(centres[rng.integers(300, size=N)] ^ (rng.random((N, N_BITS)) < 0.08), axis=1)


@pytest.fixture
def built(codes):
    index = FaissIndex(N_BITS, n_lists=40)
    index.add(np.arange(N), codes)
    index.build(k=10)
    return index


def test_exact_until_built(codes):
    index, exact = make_index(N_BITS, backend="faiss-ivf"), HammingIndex(N_BITS)
    for each in (index, exact):
        each.add(np.arange(N), codes)
    np.testing.assert_array_equal(index.search(codes[:20], k=30).ids, exact.search(codes[:20], k=30).ids)
    assert index.report == {}


def test_recall_is_measured_and_true(built, codes):
    report = built.report[0]
    assert report.recall >= 0.95
    assert f"recall@10 against exact {report.recall:.4f}" in str(report)
    queries = codes[:500]
    hits, exact = built.search(queries, k=10), built.exact.search(queries, k=10)
    assert np.mean(hits.distances <= exact.distances[:, -1:]) > 0.9
    true = np.bitwise_count(codes[hits.ids] ^ queries[:, None]).sum(axis=2)
    np.testing.assert_array_equal(hits.distances, true)
    order = np.lexsort((hits.ids, hits.distances), axis=1)
    assert (order == np.arange(10)).all(), "by distance, then id"


def test_reading_all_lists_is_exact(codes):
    index = FaissIndex(N_BITS, n_lists=40, n_probe=10**6)
    index.add(np.arange(N) * 3, codes)
    assert index.build()[0].recall == 1.0
    np.testing.assert_array_equal(
        index.search(codes[:50], k=7).distances, index.exact.search(codes[:50], k=7).distances
    )


def test_add_replace_and_remove_after_building(built, codes):
    assert built.remove(np.arange(0, N, 2)) == N // 2
    hits = built.search(codes[:100], k=5)
    assert (hits.ids % 2 == 1).all(), "removed items are gone, the ids of the others stay"
    np.testing.assert_array_equal(hits.distances, np.bitwise_count(codes[hits.ids] ^ codes[:100, None]).sum(axis=2))
    built.add(np.arange(0, 100, 2), codes[:100:2])
    assert (built.search(codes[:100:2], k=1).distances == 0).all()
    built.add([1], codes[7:8], replace=True)
    assert 1 in built.search(codes[7:8], k=50).ids
    with pytest.raises(ValueError, match="in the index already"):
        built.add([1], codes[:1])
    assert len(built) == N // 2 + 50


def test_groups_small_ones_are_exact(built, codes):
    built.add([-5, -6], codes[:2], group=1)
    built.build(k=10)
    assert set(built.report) == {0}
    assert built.search(codes[:1], k=3, group=1).ids[0].tolist()[2] == -1
    assert -5 in built.search(codes[:1], k=300).ids
    assert (built.search(codes[:1], k=2, group=9).ids == -1).all()


def test_filters_and_radius_are_exact(built, codes):
    exact = HammingIndex(N_BITS)
    exact.add(np.arange(N), codes)
    for search in ({"radius": 9}, {"k": 5, "ids": np.arange(0, N, 7)}):
        left, right = built.search(codes[:9], **search), exact.search(codes[:9], **search)
        np.testing.assert_array_equal(left.ids, right.ids)
    assert built.search(codes[:0], k=5).ids.shape == (0, 5)
    assert built.search(codes[:2], k=N + 5).ids.shape == (2, N + 5)


def test_empty_index_can_be_built():
    index = make_index(12, backend="faiss-ivf")
    assert index.build() == {}
    assert (index.search(np.zeros((1, 2), np.uint8), k=2).ids == -1).all()


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtraError, match=re.escape(install_line("faiss"))):
        make_index(16, backend="faiss-ivf")
    with pytest.raises(ValueError, match="backend is 'annoy'"):
        make_index(16, backend="annoy")


def test_threads_wait_quietly():
    code = "import os; from modalhash.index import FaissIndex; FaissIndex(8); print(os.environ['OMP_WAIT_POLICY'])"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "passive"


def test_lists_that_find_too_little_are_refused(codes):
    index = FaissIndex(N_BITS, n_lists=200, n_probe=1)
    index.add(np.arange(len(codes)), codes)
    queries = np.random.default_rng(1).integers(0, 256, (50, codes.shape[1]), dtype=np.uint8)
    queries[:, -1] &= 0xF0
    with pytest.raises(ValueError, match=r"stay exact: .*recall@10 against exact 0\.\d+.*expected at least 0\.95"):
        index.build(queries=queries, k=10)
    assert index.report == {}
    exact = index.exact.search(codes[:20], 10)
    np.testing.assert_array_equal(index.search(codes[:20], 10).ids, exact.ids)
    for recall in (0.5, 1.5):
        with pytest.raises(ValueError, match=r"expected 0\.95 to 1"):
            FaissIndex(N_BITS, recall=recall)
