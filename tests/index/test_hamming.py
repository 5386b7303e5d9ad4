"""The index against the obvious: all distances, sorted by (distance, id)."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from slow_search import brute_force, check, draw_codes

from modalhash.core.codes import n_bytes, pack
from modalhash.index import HammingIndex, layout as _layout
from modalhash.index.layout import CHUNK

N_BITS = (1, 7, 8, 9, 16, 17, 32, 33, 63, 64, 65, 128, 130, 200, 256, 321, 520)


@pytest.fixture(autouse=True, scope="module", params=["items", "codes"])
def layout(request):
    """Everything twice: each row an item, and each code once with its items behind it, however few there are."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "codes":
            patch.setattr(_layout, "MIN_NUMBERED", 1)
            patch.setattr(_layout, "ITEMS_PER_CODE", 1)
        yield


@pytest.mark.slow
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


def test_searches_run_while_others_write():
    """A search sees one state: every batch it finds, it finds whole."""
    index, batch, wrong = HammingIndex(64), 50, []
    code = np.zeros((batch, 8), dtype=np.uint8)
    index.add(np.arange(batch), code)
    stop = threading.Event()

    def read():
        while not stop.is_set():
            n_hits = len(index.search(code[:1], radius=0).ids)
            if n_hits % batch:
                wrong.append(n_hits)

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
