"""Vectors by item: rows that grow, shrink and are found; products against slow references; shortlists with ties."""

from __future__ import annotations

import numpy as np
import pytest

from modalhash.index import HammingIndex, VectorTable, merge_sources


def random_vectors(n: int, width: int = 128, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-128, 128, (n, width), dtype=np.int8)


@pytest.mark.parametrize("map_above", [2**28, 0])
def test_products_are_those_of_whole_numbers(map_above, tmp_path):
    vectors = random_vectors(300)
    table = VectorTable(128, folder=tmp_path, map_above=map_above)
    table.add(np.arange(5, 305), vectors)
    assert table.mapped == (map_above == 0)
    assert list(tmp_path.iterdir()) == []  # the file has no name
    query = random_vectors(1, seed=1)[0]
    wanted = np.array([304, 5, 77, 5])
    found = table.find(wanted)
    wide = vectors[wanted - 5].astype(np.int64)
    for start, stop in ((0, 128), (0, 64), (64, 128), (3, 10), (7, 7)):
        own = query[start:stop].astype(np.int64)
        assert found.dots(query, start, stop).tolist() == (wide[:, start:stop] @ own).tolist()
        lengths = np.sqrt((wide[:, start:stop] ** 2).sum(axis=1) * float(own @ own))
        expected = [p / length if length else 0.0 for p, length in zip(wide[:, start:stop] @ own, lengths, strict=True)]
        products, cosines = found.dots_and_cosines(query, start, stop)
        assert cosines.tolist() == expected
        assert products.tolist() == (wide[:, :start] @ query[:start].astype(np.int64)).tolist()
    assert found.dots(query, 0, 128).dtype == np.int32
    np.testing.assert_array_equal(found.vectors(), vectors[wanted - 5])


def test_ids_with_gaps_and_without_a_row():
    table, vectors = VectorTable(4), random_vectors(3, 4)
    table.add([2, 7, 9], vectors, group=[0, 1, 0])
    found = table.find([9, 3, 2, 100])
    assert found.present.tolist() == [True, False, True, False]
    np.testing.assert_array_equal(found.vectors(), vectors[[2, 0]])
    assert found.groups.tolist() == [0, 0]


def test_rows_that_are_removed_make_room(tmp_path):
    table = VectorTable(8, folder=tmp_path)
    vectors = random_vectors(1000, 8)
    for start in range(0, 1000, 100):
        table.add(np.arange(start, start + 100), vectors[start : start + 100], group=1)
    before = table.find([3, 999])
    table.remove(np.arange(0, 700))
    table.remove([5, 2000])  # gone already, never there
    assert len(table) == 300
    np.testing.assert_array_equal(table.find([700, 999]).vectors(), vectors[[700, 999]])
    np.testing.assert_array_equal(before.vectors(), vectors[[3, 999]])  # what was handed out stays
    table.add([1000], vectors[:1])
    assert table.find([1000, 3]).present.tolist() == [True, False]
    assert len(table) == 301


@pytest.mark.parametrize("k", [1, 3, 40, 41, 100])
def test_of_equal_products_the_first_are_nearest(rng, k):
    table, vectors = VectorTable(4), rng.integers(-1, 2, (200, 4), dtype=np.int8)
    groups = rng.integers(0, 3, 200)
    table.add(np.arange(7, 207), vectors, group=groups)
    query = np.array([1, -1, 1, 0], dtype=np.int8)
    products = vectors.astype(int) @ query
    for wanted in (None, [0, 2], [1]):
        rows = np.flatnonzero(np.isin(groups, range(3) if wanted is None else wanted))
        expected = np.sort(rows[np.lexsort((rows, -products[rows]))[:k]])
        ids, found = table.nearest(query, 0, 4, wanted, k)
        assert ids.tolist() == (expected + 7).tolist()
        assert found.tolist() == products[expected].tolist()


def test_bad_rows_are_refused():
    table = VectorTable(4)
    table.add([3], random_vectors(1, 4))
    with pytest.raises(ValueError, match="ascending"):
        table.add([3], random_vectors(1, 4))
    with pytest.raises(ValueError, match="int8"):
        table.add([4], np.zeros((1, 4)))
    with pytest.raises(ValueError, match=r"\(1, 4\)"):
        table.add([4], random_vectors(1, 5))
    assert len(table) == 1


def slow_shortlist(codes, query, k, max_hits):
    """Return ids and distances by sorting everything."""
    distances = np.unpackbits(codes ^ query, axis=1).sum(axis=1)
    order = np.argsort(distances, kind="stable")
    n = min(max_hits, int((distances <= distances[order[min(k, len(order)) - 1]]).sum()))
    return order[:n].tolist(), distances[order[:n]].tolist()


@pytest.mark.parametrize("n_bits", [8, 64, 128])
@pytest.mark.parametrize(("k", "max_hits"), [(1, 1), (1, 500), (10, 12), (50, 4000), (3000, 3000)])
def test_a_shortlist_has_whole_ties(n_bits, k, max_hits):
    rng = np.random.default_rng(n_bits + k)
    codes = rng.integers(0, 256, (1500, n_bits // 8), dtype=np.uint8)
    codes[200:500] = codes[7]  # a large tie
    queries = np.concatenate([codes[[7, 3]], rng.integers(0, 256, (3, n_bits // 8), dtype=np.uint8)])
    index = HammingIndex(n_bits)
    index.add(np.arange(1500), codes, group=np.arange(1500) % 2)
    hits = index.shortlist(queries, k, max_hits=max_hits)
    for query, code in enumerate(queries):
        ids, distances = hits[query]
        assert (ids.tolist(), distances.tolist()) == slow_shortlist(codes, code, k, max_hits)
        ids, distances = index.shortlist(queries[query : query + 1], k, max_hits=max_hits)[
            0
        ]  # by itself, as searches come
        assert (ids.tolist(), distances.tolist()) == slow_shortlist(codes, code, k, max_hits)
    chosen = np.arange(0, 1500, 3)
    ids, _ = index.shortlist(queries[:1], k, max_hits=max_hits, ids=chosen)[0]
    assert ids.tolist() == chosen[slow_shortlist(codes[chosen], queries[0], k, max_hits)[0]].tolist()
    ids, _ = index.shortlist(queries[:1], k, max_hits=max_hits, group=1)[0]
    assert ids.tolist() == (2 * np.array(slow_shortlist(codes[1::2], queries[0], k, max_hits)[0]) + 1).tolist()


def test_a_misleading_sample_changes_nothing():
    """The rows that a scan samples first are the only near ones: there are not k of them."""
    from modalhash.index.kernels.scans import MAX_SAMPLED
    from modalhash.index.layout import CHUNK

    n = 16 * MAX_SAMPLED * CHUNK
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (n, 8), dtype=np.uint8)
    codes[:, 4:] = 255  # far from the query, but for the sampled chunks
    for chunk in range(0, n // CHUNK, 16):
        codes[chunk * CHUNK : chunk * CHUNK + 8] = 0
    index = HammingIndex(64)
    index.add(np.arange(n), codes)
    query = np.zeros((1, 8), dtype=np.uint8)
    for k, max_hits in ((500, 2000), (1500, 4000), (20_000, 80_000)):
        ids, distances = index.shortlist(query, k, max_hits=max_hits)[0]
        assert (ids.tolist(), distances.tolist()) == slow_shortlist(codes, query, k, max_hits)


@pytest.mark.parametrize("sizes", [(40_000, 60_000), (300_000, 270_000), (5, 300_000)])
def test_the_bound_of_one_group_holds_in_the_other(sizes):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (sum(sizes), 8), dtype=np.uint8)
    codes[sizes[0] :, :2] = 0  # one group is nearer
    index = HammingIndex(64)
    index.add(np.arange(len(codes)), codes, group=np.repeat([0, 1], sizes))
    for query in (np.zeros((1, 8), np.uint8), np.full((1, 8), 255, np.uint8)):
        for k, max_hits in ((64, 512), (240, 1920), (240, 250)):
            ids, distances = index.shortlist(query, k, max_hits=max_hits)[0]
            assert (ids.tolist(), distances.tolist()) == slow_shortlist(codes, query, k, max_hits)


@pytest.mark.parametrize("n_bits", [8, 16, 64, 128])
@pytest.mark.parametrize("spread", ["even", "gaps", "far apart"])
def test_distances_of_some_items(n_bits, spread):
    rng = np.random.default_rng(n_bits)
    ids = {
        "even": np.arange(10, 1010),
        "gaps": np.sort(rng.choice(10**6, 1000, replace=False)),
        "far apart": np.concatenate([np.arange(-500, 0), 2**62 + np.arange(500)]),
    }[spread]
    codes = rng.integers(0, 256, (1000, n_bits // 8), dtype=np.uint8)
    index = HammingIndex(n_bits)
    index.add(ids, codes, group=np.arange(1000) % 3)
    query = codes[4]
    expected = np.unpackbits(codes ^ query, axis=1).sum(axis=1)
    order = rng.permutation(1000)
    assert index.distances(query, ids[order]).tolist() == expected[order].tolist()
    own = np.arange(1000) % 3 == 1
    assert index.distances(query, ids, group=1).tolist() == np.where(own, expected.astype(int), -1).tolist()
    missing = np.setdiff1d(np.concatenate([ids - 1, ids + 1, [0, 2**63 - 1, -(2**63)]]), ids)
    assert set(index.distances(query, missing).tolist()) == {-1}
    assert index.distances(query, []).tolist() == []
    assert HammingIndex(n_bits).distances(query, [1]).tolist() == [-1]


def test_two_lists_of_hits_become_one():
    rng = np.random.default_rng(0)
    near = rng.integers(0, 6, 200).astype(np.int32)
    for n, m in ((50, 30), (0, 20), (20, 0), (200, 200)):
        first, other = rng.permutation(200)[:n], rng.permutation(200)[:m]
        first = first[np.lexsort((first, near[first]))]
        ids, distances, by_first, by_other = merge_sources((first, near[first]), (other, near[other]))
        both = np.union1d(first, other)
        expected = both[np.lexsort((both, near[both]))]
        assert ids.tolist() == expected.tolist()
        assert distances.tolist() == near[expected].tolist()
        assert by_first.tolist() == np.isin(expected, first).tolist()
        assert by_other.tolist() == np.isin(expected, other).tolist()
