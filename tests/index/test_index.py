"""The index against the obvious: all distances, sorted by (distance, id)."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modalhash.codes import n_bytes, pack
from modalhash.index import HammingIndex, Hits
from modalhash.index.rows import CHUNK, Rows, to_rows, word_type

N_BITS = (1, 7, 8, 9, 16, 17, 32, 33, 63, 64, 65, 128, 130, 200, 256, 321, 520)


def draw_codes(rng, n, n_bits, density=0.5):
    return pack(rng.random((n, n_bits)) < density).reshape(n, n_bytes(n_bits))


def brute_force(queries, ids, codes):
    """All (ids, distances) of each query in canonical order."""
    ids = np.asarray(ids, dtype=np.int64)
    for query in queries:
        distances = np.bitwise_count(codes ^ query).sum(axis=1, dtype=np.int64)
        order = np.lexsort((ids, distances))
        yield ids[order], distances[order]


def check(hits: Hits, expected, *, k=None, radius=None):
    expected = list(expected)
    assert len(hits) == len(expected)
    for q, (ids, distances) in enumerate(expected):
        stop = k if radius is None else np.count_nonzero(distances <= radius)
        np.testing.assert_array_equal(hits[q][0], ids[:stop])
        np.testing.assert_array_equal(hits[q][1], distances[:stop])
        if k is not None:
            assert hits.ids.shape == hits.distances.shape == (len(expected), k)
            assert (hits.ids[q, len(ids) :] == -1).all()
            assert (hits.distances[q, len(ids) :] == -1).all()


@pytest.mark.parametrize("n_bits", N_BITS)
@pytest.mark.parametrize("density", [0.5, 0.02, 0.0])  # the last: nothing but ties
def test_equals_brute_force(rng, n_bits, density):
    n = 5 * CHUNK + 17
    ids = rng.choice(10 * n, n, replace=False) - 5 * n  # negative ones too, in any order
    codes, queries = draw_codes(rng, n, n_bits, density), draw_codes(rng, 9, n_bits)
    index = HammingIndex(n_bits)
    index.add(ids, codes)
    expected = list(brute_force(queries, ids, codes))
    for k in (1, 2, 50, n - 1, n, n + 3):
        check(index.search(queries, k=k), expected, k=k)
    for radius in (0, 1, n_bits // 2, n_bits, n_bits + 5):
        check(index.search(queries, radius=radius), expected, radius=radius)


@settings(max_examples=60)
@given(data=st.data(), n=st.integers(0, 2 * CHUNK + 5), n_bits=st.sampled_from(N_BITS), seed=st.integers(0, 2**32 - 1))
def test_any_size_any_filter(data, n, n_bits, seed):
    rng = np.random.default_rng(seed)
    ids = rng.choice(3 * n + 1, n, replace=False)
    groups = rng.integers(0, data.draw(st.integers(1, 3)), n)
    codes = draw_codes(rng, n, n_bits, rng.choice([0.5, 0.05]))
    queries = draw_codes(rng, data.draw(st.integers(0, 4)), n_bits)
    index = HammingIndex(n_bits)
    index.add(ids, codes, group=groups)
    group = data.draw(st.sampled_from([None, 0, 1, 7, (0, 2)]))
    among = data.draw(st.sampled_from([None, 0, 1, 40]))
    keep = np.ones(n, dtype=bool) if group is None else np.isin(groups, group)
    if among is not None:
        among = rng.integers(0, 3 * n + 1, among)  # some are unknown, some come twice
        keep &= np.isin(ids, among)
    expected = list(brute_force(queries, ids[keep], codes[keep]))
    k = data.draw(st.integers(1, n + 2))
    check(index.search(queries, k=k, ids=among, group=group), expected, k=k)
    radius = data.draw(st.integers(0, n_bits))
    check(index.search(queries, radius=radius, ids=among, group=group), expected, radius=radius)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(["add", "replace", "remove", "search"]), st.integers(0, 2**31)), max_size=25))
def test_changes_in_any_order(steps):
    """Added, replaced, removed and added again, in and out of order: always what a dict would hold."""
    index, model = HammingIndex(12), {}
    for what, seed in steps:
        rng = np.random.default_rng(seed)
        ids = rng.choice(60, rng.integers(0, 12), replace=False) + (seed % 3) * 40
        codes, groups = draw_codes(rng, len(ids), 12), rng.integers(0, 2, len(ids))
        if what == "remove":
            known = sum(int(number) in model for number in ids)
            assert index.remove(ids, missing="ignore") == known
            for number in ids.tolist():
                model.pop(number, None)
        elif what == "search":
            compare(index, model)
        else:
            if what == "add":
                new = ~index.contains(ids)
                ids, codes, groups = ids[new], codes[new], groups[new]
            index.add(ids, codes, group=groups, replace=what == "replace")
            model.update(zip(ids.tolist(), zip(codes, groups.tolist(), strict=True), strict=True))
        assert len(index) == len(model)
    compare(index, model)


def compare(index, model):
    queries = draw_codes(np.random.default_rng(0), 2, index.n_bits)
    for group in (None, 0, 1):
        chosen = {number: code for number, (code, mine) in model.items() if group in (None, mine)}
        codes = np.array(list(chosen.values()), dtype=np.uint8).reshape(-1, n_bytes(index.n_bits))
        check(index.search(queries, k=7, group=group), brute_force(queries, list(chosen), codes), k=7)
        ids, stored = index.dump(group=group)
        assert ids.tolist() == sorted(chosen)
        assert all((chosen[number] == code).all() for number, code in zip(ids.tolist(), stored, strict=True))


@pytest.mark.parametrize("n_bits", [16, 64, 128, 256])
@pytest.mark.parametrize("direction", [1, -1])
def test_every_item_beats_the_last(n_bits, direction):
    """Distances that only fall (or only rise) along the database: the buffers overflow again and again."""
    n = 40 * CHUNK
    near = np.sort(np.random.default_rng(0).integers(0, n_bits + 1, n))[::-direction]
    codes = pack(np.arange(n_bits) < near[:, None])
    query = np.zeros((1, n_bits // 8), dtype=np.uint8)
    index = HammingIndex(n_bits)
    index.add(np.arange(n), codes)
    expected = list(brute_force(query, np.arange(n), codes))
    for k in (1, 3, 100, 3000):
        check(index.search(query, k=k), expected, k=k)


@pytest.mark.parametrize("n_queries", [1, 3, 300])
def test_threads_change_nothing(rng, monkeypatch, n_queries):
    monkeypatch.setattr("modalhash.index.walk.ALONE", 0)
    monkeypatch.setattr("modalhash.index.walk.TILE", 37)
    codes, queries = draw_codes(rng, 3000, 24, 0.1), draw_codes(rng, n_queries, 24)
    groups = rng.integers(0, 2, 3000)
    alone, threads = HammingIndex(24, n_threads=1), HammingIndex(24, n_threads=3)
    for index in (alone, threads):
        index.add(np.arange(3000), codes, group=groups)
    for search in ({"k": 40}, {"k": 4000}, {"radius": 4}, {"k": 5, "group": 1}):
        left, right = alone.search(queries, **search), threads.search(queries, **search)
        np.testing.assert_array_equal(left.ids, right.ids)
        np.testing.assert_array_equal(left.distances, right.distances)
    check(threads.search(queries, k=40), brute_force(queries, np.arange(3000), codes), k=40)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_threads_of_its_own(rng, monkeypatch):
    monkeypatch.setattr("modalhash.index.walk.ALONE", 0)
    codes = draw_codes(rng, 3000, 24)
    index = HammingIndex(24, n_threads=2)
    index.add(np.arange(3000), codes)
    index.search(codes[:50], k=1)
    child = os.fork()
    if not child:  # an answer, not a wait for threads that are only in the parent
        signal.alarm(20)
        os._exit(int((index.search(codes[:50], k=1).distances != 0).any()))
    assert os.waitpid(child, 0)[1] == 0


def test_empty_index_and_no_queries(rng):
    index = HammingIndex(10)
    hits = index.search(draw_codes(rng, 2, 10), k=3)
    assert (hits.ids == -1).all()
    assert hits.ids.shape == (2, 3)
    assert index.search(draw_codes(rng, 2, 10), radius=3).offsets.tolist() == [0, 0, 0]
    assert index.search(draw_codes(rng, 0, 10), k=3).ids.shape == (0, 3)
    assert len(index.search(draw_codes(rng, 0, 10), radius=3)) == 0
    index.add([], draw_codes(rng, 0, 10))
    assert len(index) == 0
    assert index.dump()[1].shape == (0, 2)
    assert index.remove([]) == 0


@pytest.mark.parametrize("n_bits", N_BITS)
@pytest.mark.parametrize("n", [1, CHUNK, CHUNK + 1])
def test_dump_gives_back_what_came(rng, n_bits, n):
    codes = draw_codes(rng, n, n_bits)
    index = HammingIndex(n_bits)
    index.add(np.arange(n), codes)
    ids, stored = index.dump()
    np.testing.assert_array_equal(ids, np.arange(n))
    np.testing.assert_array_equal(stored, codes)


def test_extreme_ids(rng):
    ids = np.array([2**63 - 1, -(2**63), 0, -1])
    codes = draw_codes(rng, 4, 64, 0.0)
    index = HammingIndex(64)
    index.add(ids, codes)
    assert index.search(codes[:1], k=4).ids.tolist() == [sorted(ids.tolist())]
    assert -1 in index
    assert 5 not in index


def test_duplicates_are_refused_whole(rng):
    index = HammingIndex(16)
    index.add([1, 2], draw_codes(rng, 2, 16))
    with pytest.raises(ValueError, match=r"1 of 2 are in the index already \(first: 2\)"):
        index.add([3, 2], draw_codes(rng, 2, 16), group=1)
    assert 3 not in index
    with pytest.raises(ValueError, match="5 is given 2 times"):
        index.add([5, 5], draw_codes(rng, 2, 16), replace=True)
    with pytest.raises(ValueError, match="not in the index"):
        index.remove([1, 9])
    assert len(index) == 2
    index.add([2], draw_codes(rng, 1, 16), group=3, replace=True)
    assert index.groups == {0: 1, 3: 1}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda index, code: index.search(code), ValueError, "expected one of them"),
        (lambda index, code: index.search(code, k=1, radius=1), ValueError, "expected one of them"),
        (lambda index, code: index.search(code, k=0), ValueError, "k is 0"),
        (lambda index, code: index.search(code, radius=-1), ValueError, "radius is -1"),
        (lambda index, code: index.search(code[:, :1], k=1), ValueError, "12 bits need"),
        (lambda index, code: index.search(code | 1, k=1), ValueError, "padding bits are set"),
        (lambda index, code: index.search(code.astype(int), k=1), TypeError, "packed uint8"),
        (lambda index, code: index.add([1, 2], code), ValueError, "1 rows for 2 ids"),
        (lambda index, code: index.add([1.5], code), TypeError, "row of integers"),
        (lambda index, code: index.add(np.array([2**63], np.uint64), code), ValueError, "signed 64-bit"),
        (lambda index, code: index.add([1], code, group=-1), ValueError, "integers ≥ 0"),
        (lambda index, code: index.add([1], code, group=[1, 2]), ValueError, "one per item"),
        (lambda index, code: index.search(code, k=1, group="image"), ValueError, "integers ≥ 0"),
        (lambda index, code: HammingIndex(0), ValueError, "n_bits is 0"),
    ],
)
def test_errors_say_what_came(call, error, message):
    with pytest.raises(error, match=message):
        call(HammingIndex(12), np.zeros((1, 2), dtype=np.uint8))


@pytest.mark.parametrize("tables", [False, True])
def test_searches_run_while_others_write(rng, tables):
    """A search sees one state: every batch it finds, it finds whole."""
    index, batch, wrong = HammingIndex(64), 50, []
    code = np.zeros((batch, 8), dtype=np.uint8)
    index.add(np.arange(batch), code)
    if tables:  # enough items that they are used
        index.add(np.arange(20_000) + 10**6, pack(rng.random((20_000, 64)) < 0.5))
        index.build_radius(1)
    stop = threading.Event()

    def read():
        while not stop.is_set():
            found = len(index.search(code[:1], radius=0).ids)
            if found % batch:
                wrong.append(found)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for step in range(1, 40):
        index.add(np.arange(batch) + step * batch, code)
        if step % 3 == 0:
            index.remove(np.arange(batch) + (step - 2) * batch)
        if step % 5 == 0:
            index.add(np.arange(batch) - step * batch, code)
    stop.set()
    for reader in readers:
        reader.join()
    assert not wrong


def test_growth_is_amortised(rng):
    """Ids that fall are the worst order: few of the additions may copy the table."""
    rows, copies = Rows(1, np.uint64), 0
    settle = rows._settle

    def counted(*more):
        nonlocal copies
        copies += 1
        settle(*more)

    rows._settle = counted
    codes = to_rows(draw_codes(rng, 20_000, 64), 64)
    for i in range(20_000):
        rows.add(np.array([-i]), codes[i : i + 1])
    assert len(rows) == 20_000
    assert copies <= 5
    assert rows.table().ids.tolist() == list(range(-19_999, 1))


def test_short_codes_lie_in_short_words():
    assert [np.dtype(word_type(bits)).itemsize for bits in (1, 16, 17, 32, 33, 500)] == [2, 2, 4, 4, 8, 8]
