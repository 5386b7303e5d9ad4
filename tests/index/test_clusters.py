"""Clusters and shells against all distances: every length, ties, adversarial data, and after changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from slow_search import brute_force, change_alike, check, finish_builds, same, table_of

from modalhash.core.codes import pack
from modalhash.index import HammingIndex, clusters
from modalhash.index.clusters import ShellTables
from modalhash.index.layout import CHUNK, DistinctCodes, pack_words

N_BITS = (33, 63, 64, 65, 100, 128, 130, 256, 321)


def drawn(kind, rng, n, n_bits):
    """Codes as bits: anything, all equal, a few values many times, or around a few centres."""
    bits = rng.random((n, n_bits)) < 0.5
    if kind == "equal":
        bits[:] = bits[:1]
    elif kind == "few":
        bits = bits[rng.integers(0, min(3, n), n)]
    elif kind == "near":
        bits = bits[rng.integers(0, min(7, n), n)] ^ (rng.random((n, n_bits)) < 0.1)
    return bits


def expected_rows(queries, codes, gone, k, max_hits):
    """The obvious search: the k nearest rows that are there with the tie of the k-th, at most ``max_hits``."""
    rows = np.setdiff1d(np.arange(len(codes)), gone)
    for ids, distances in brute_force(queries, rows, codes[rows]):
        n = min(max_hits, np.count_nonzero(distances <= distances[min(k, len(distances)) - 1])) if len(ids) else 0
        yield ids[:n], distances[:n]


@settings(max_examples=150)
@given(
    n=st.integers(1, 3 * CHUNK),
    n_bits=st.sampled_from(N_BITS),
    kind=st.sampled_from(["any", "equal", "few", "near"]),
    k=st.integers(1, 40),
    more=st.integers(0, 40),
    share_gone=st.sampled_from([0.0, 0.2, 1.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_shells_find_what_all_distances_say(n, n_bits, kind, k, more, share_gone, seed):
    rng = np.random.default_rng(seed)
    bits = drawn(kind, rng, n, n_bits)
    near = bits[rng.integers(0, n, 3)] ^ (rng.random((3, n_bits)) < 1 / n_bits)
    codes, queries = pack(bits), pack(np.concatenate([near, rng.random((1, n_bits)) < 0.5]))
    gone = np.flatnonzero(rng.random(n) < share_gone)
    tables = ShellTables(table_of(codes, n_bits), n_bits)
    rows, distances, offsets, left_out = tables.search(pack_words(queries, n_bits), k, k + more, gone, budget=2**40)
    assert not left_out.any()
    for q, (wanted, expected) in enumerate(expected_rows(queries, codes, gone, k, k + more)):
        np.testing.assert_array_equal(rows[offsets[q] : offsets[q + 1]], wanted)
        np.testing.assert_array_equal(distances[offsets[q] : offsets[q + 1]], expected)


def test_ties_beyond_what_is_held_keep_the_first_rows(rng):
    codes = pack(drawn("few", rng, 20_000, 64))
    tables = ShellTables(table_of(codes, 64), 64)
    for k, max_hits in ((1, 1), (10, 10), (10, 900), (3000, 3000)):
        rows, _, _, _ = tables.search(pack_words(codes[:1], 64), k, max_hits, budget=2**40)
        np.testing.assert_array_equal(rows, next(expected_rows(codes[:1], codes, [], k, max_hits))[0])


@pytest.fixture
def many(monkeypatch):
    """Take 65,536 codes for many, so that tests take less time."""
    monkeypatch.setattr(clusters, "MIN_ROWS", 2**16)


@pytest.fixture
def small(monkeypatch):
    """Let clusters be made of few codes, and whether they pay or not."""
    monkeypatch.setattr(clusters, "MIN_ROWS", 1)
    monkeypatch.setattr(ShellTables, "pays", True)


@pytest.fixture
def restless(monkeypatch):
    """Rebuild clusters after 20 changes, so that builds run concurrently with many searches."""
    monkeypatch.setattr(clusters, "MIN_CHANGES_FOR_REBUILD", 20)
    monkeypatch.setattr(clusters, "REBUILD_SHARE", 1000)


@pytest.mark.slow
@pytest.mark.usefixtures("small", "restless")
@settings(max_examples=40)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["add", "replace", "remove", "search"]), st.integers(0, 2**31)), max_size=20
    ),
    n_bits=st.sampled_from([64, 70]),
)
def test_changes_after_building(steps, n_bits):
    """The same as an index without clusters, whatever was added, replaced and removed since."""
    rng = np.random.default_rng(0)
    plain, fast = HammingIndex(n_bits), HammingIndex(n_bits)
    ids, groups = rng.choice(3000, 1500, replace=False), rng.integers(0, 2, 1500)
    codes = pack(drawn("near", rng, 1500, n_bits))
    for index in (plain, fast):
        index.add(ids, codes, group=groups)
    assert fast.build_clusters() > 0
    for what, seed in [*steps, ("search", 1)]:
        some = change_alike(what, seed, plain, fast, lambda rng, n: drawn("near", rng, n, n_bits))
        if what == "search":
            stored = plain.dump()[1]
            for group in (None, 1, (0, 2), 7):
                for queries in (stored[:5], stored[5:6]):
                    same(plain.search(queries, k=30, group=group), fast.search(queries, k=30, group=group))
                    same(
                        plain.shortlist(queries, 10, max_hits=25, group=group),
                        fast.shortlist(queries, 10, max_hits=25, group=group),
                    )
            same(plain.search(stored[:5], k=4, ids=some), fast.search(stored[:5], k=4, ids=some))
        elif seed % 2:
            finish_builds(fast)
    finish_builds(fast)
    same(plain.search(stored[:5], k=30), fast.search(stored[:5], k=30))
    finish_builds(fast)


@pytest.mark.usefixtures("small")
def test_clusters_are_made_anew_when_much_has_changed(rng, monkeypatch):
    made = []
    monkeypatch.setattr(clusters, "ShellTables", lambda *args, **options: made.append(args) or ShellTables(*args))
    plain, fast = HammingIndex(64), HammingIndex(64)
    codes = pack(drawn("near", rng, 12_000, 64))
    for index in (plain, fast):
        index.add(range(3000), codes[:3000])
    fast.build_clusters()
    for index in (plain, fast):
        index.add(range(3000, 6000), codes[3000:6000])
    same(plain.search(codes[::100], k=5), fast.search(codes[::100], k=5))
    assert len(made) == 1
    for index in (plain, fast):
        index.add(range(6000, 12_000), codes[6000:])
    for _ in range(2):  # with the old clusters, and with the new ones
        same(plain.search(codes[::100], k=5), fast.search(codes[::100], k=5))
        finish_builds(fast)
        assert [source.n for source, _ in made] == [3000, 12_000]


def around_centres(rng, n, n_bits=64):
    centres = rng.random((100, n_bits)) < 0.5
    return pack(centres[rng.integers(0, 100, n)] ^ (rng.random((n, n_bits)) < 0.05))


@pytest.mark.slow
@pytest.mark.usefixtures("many")
def test_queries_far_from_everything_get_the_scan(rng):
    anywhere = rng.integers(0, 256, (10_040, 8), dtype=np.uint8)
    codes = np.concatenate([around_centres(rng, 60_000), anywhere[40:]])
    queries = np.concatenate([codes[:40], anywhere[:40]])
    plain, fast = HammingIndex(64), HammingIndex(64, n_threads=2)
    for index in (plain, fast):
        index.add(np.arange(70_000), codes)
    assert 12 * 70_000 <= fast.build_clusters() < 15 * 70_000
    *_, left_out = fast._clusters._tables[0].tables.search(pack_words(queries, 64), 50, 50)
    assert not left_out[:40].any()
    assert left_out[40:].any()
    for k in (1, 50, 70_001):
        same(plain.search(queries, k=k), fast.search(queries, k=k))
    same(plain.shortlist(queries, 20, max_hits=100), fast.shortlist(queries, 20, max_hits=100))
    same(plain.search(queries[:0], k=3), fast.search(queries[:0], k=3))
    assert fast.build_clusters(drop=True) == 0
    assert not fast._clusters.is_built
    same(plain.search(queries, k=5), fast.search(queries, k=5))


@pytest.mark.usefixtures("many")
def test_codes_that_lie_anywhere_are_tried_once(rng, monkeypatch):
    made = []
    monkeypatch.setattr(clusters, "ShellTables", lambda *args, **options: made.append(args) or ShellTables(*args))
    index = HammingIndex(64)
    codes = rng.integers(0, 256, (140_000, 8), dtype=np.uint8)
    index.add(np.arange(70_000), codes[:70_000])
    assert index.build_clusters() == 0
    for _ in range(3):
        check(index.search(codes[:2], k=7), brute_force(codes[:2], np.arange(70_000), codes[:70_000]), k=7)
    assert len(made) == 1
    index.add(np.arange(70_000, 140_000), codes[70_000:])
    for _ in range(3):
        check(index.search(codes[:2], k=7), brute_force(codes[:2], np.arange(140_000), codes), k=7)
        finish_builds(index)
    assert len(made) == 2


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(("n", "n_bits"), [(70_000, 32), (60_000, 64)])
def test_short_or_few_codes_are_scanned(rng, n, n_bits):
    index = HammingIndex(n_bits)
    index.add(np.arange(n), around_centres(rng, n, n_bits))
    assert index.build_clusters() == 0


@pytest.mark.usefixtures("many")
def test_codes_that_are_held_once_are_scanned(rng):
    codes = pack(rng.random((300, 64)) < 0.5)[rng.integers(0, 300, 70_000)]
    index = HammingIndex(64)
    index.add(np.arange(70_000), codes)
    assert index.build_clusters() == 0
    assert isinstance(index._groups[0].tables()[0], DistinctCodes)
    check(index.search(codes[:3], k=9), brute_force(codes[:3], np.arange(70_000), codes), k=9)
