"""Codes in Milvus answer as codes in memory do, whatever part of them is in which."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
from slow_search import draw_codes, same

from milvus_server import milvus  # noqa: F401  (a fixture)
from modalhash.index import (
    CollectionGoneError,
    HammingIndex,
    IndexUnavailableError,
    Milvus,
    MilvusCollection,
    MilvusIndex,
    MilvusView,
    milvus_view as module,
)

pytestmark = pytest.mark.slow
_numbers = count()


@pytest.fixture(scope="session")
def server(milvus):  # noqa: F811
    server = Milvus(milvus.uri)
    yield server
    server.close()


@pytest.fixture
def make_collection(server):
    collections = []

    def make_one(n_bits, metric="HAMMING"):
        collections.append(MilvusCollection(server, f"test_{next(_numbers)}", n_bits, {"engine": "test"}, metric))
        return collections[-1]

    yield make_one
    for collection in collections:
        for name in collection.names():
            collection.drop(name)


@pytest.fixture
def make(make_collection):
    """Make pairs of indexes with the same items: in memory, and in Milvus and memory."""
    return lambda n_bits: Pair(n_bits, make_collection(n_bits))


class Pair:
    """The same items in a HammingIndex and in a MilvusIndex."""

    def __init__(self, n_bits, collection):
        self.plain, self.collection = HammingIndex(n_bits), collection
        self.index = MilvusIndex(collection, collection.create())

    def add(self, ids, codes, groups):
        self.plain.add(ids, codes, group=groups)
        self.index.add(ids, codes, group=groups)

    def remove(self, ids):
        assert self.plain.remove(ids) == self.index.remove(ids)

    def write(self):
        """Write everything to the collection, so that nothing is in memory."""
        state = self.index.state
        here = [(group, *self.plain.dump(group=group)) for group in self.plain.groups]
        for group, ids, codes in here:
            new = ids > state.items
            self.collection.write(state.name, ids[new], codes[new], np.full(np.count_nonzero(new), group))
        self.collection.delete(state.name, self.index._hidden)
        last = max([state.items, *(int(ids.max()) for _, ids, _ in here)])
        state = self.collection.record(state._replace(items=last, groups={group: len(ids) for group, ids, _ in here}))
        self.index = MilvusIndex(self.collection, state)

    def check(self, queries, rng):
        ids = np.arange(1, 500)
        chosen = rng.choice(ids, 60)
        for group in (None, 1, (0, 2), 9):
            for among in (None, chosen):
                for k in (1, 7, 300):
                    same(
                        self.index.search(queries, k=k, ids=among, group=group),
                        self.plain.search(queries, k=k, ids=among, group=group),
                    )
                for radius in (0, self.plain.n_bits // 3):
                    same(
                        self.index.search(queries, radius=radius, ids=among, group=group),
                        self.plain.search(queries, radius=radius, ids=among, group=group),
                    )
            same(
                self.index.shortlist(queries, 5, max_hits=40, group=group),
                self.plain.shortlist(queries, 5, max_hits=40, group=group),
            )
            for query in queries[:2]:
                assert (
                    self.index.distances(query, chosen, group=group).tolist()
                    == self.plain.distances(query, chosen, group=group).tolist()
                )
        assert (self.index.contains(ids) == self.plain.contains(ids)).all()
        assert len(self.index) == len(self.plain)
        assert self.index.groups == self.plain.groups


@pytest.mark.parametrize(("n_bits", "density"), [(7, 0.5), (64, 0.5), (130, 0.02)])  # the last: mostly ties
def test_hits_are_those_of_codes_in_memory(make, rng, n_bits, density):
    pair = make(n_bits)
    queries = draw_codes(rng, 4, n_bits, density)
    pair.check(queries, rng)
    for first in (1, 151, 301):
        ids = np.arange(first, first + 150)
        pair.add(ids, draw_codes(rng, 150, n_bits, density), rng.integers(0, 3, 150))
        pair.check(queries, rng)
        pair.remove(rng.choice(ids, 30, replace=False))
        pair.check(queries, rng)
        if first != 301:
            pair.write()
            pair.check(queries, rng)


def test_ties_beyond_the_limit_of_milvus(make, rng, monkeypatch):
    """Limits are small here, so that ranges of ids are needed as at 16,384."""
    monkeypatch.setattr(module, "FEWEST_HITS", 5)
    monkeypatch.setattr(module, "MOST_HITS", 12)
    pair = make(16)
    pair.add(np.arange(1, 401), draw_codes(rng, 400, 16, 0.04), rng.integers(0, 3, 400))
    pair.write()
    pair.remove(np.arange(3, 200, 2))
    pair.check(draw_codes(rng, 4, 16, 0.04), rng)
    pair.write()
    pair.add(np.arange(401, 500), draw_codes(rng, 99, 16, 0.04), rng.integers(0, 3, 99))
    pair.check(draw_codes(rng, 4, 16, 0.04), rng)


@pytest.mark.parametrize("limits", [None, (5, 12)])
def test_inner_products_with_ties(make_collection, rng, monkeypatch, limits):
    if limits:
        monkeypatch.setattr(module, "FEWEST_HITS", limits[0])
        monkeypatch.setattr(module, "MOST_HITS", limits[1])
    collection = make_collection(4, "IP")
    vectors, groups = rng.integers(-1, 2, (400, 4), dtype=np.int8), rng.integers(0, 3, 400)
    vectors[:20] = [[100, -100, 100, 100]]
    ids, state = np.arange(1, 401), collection.create()
    collection.write(state.name, ids, vectors, groups)
    state = collection.record(state._replace(items=390))
    hidden = np.arange(3, 200, 2)
    queries = np.array([[1, -1, 1, 0], [-120, 5, 3, 7]], np.int8)
    for group in (None, (0, 2), 1):
        view = MilvusView(collection, state, hidden, group)
        there = (ids <= 390) & ~np.isin(ids, hidden) & np.isin(groups, np.arange(3) if group is None else group)
        for k in (1, 8, 30, 280):
            for query, (found, distances) in zip(queries, view.nearest(queries, k, k), strict=True):
                products = vectors[there].astype(int) @ query
                order = np.argsort(-products, kind="stable")[:k]
                assert found[:k].tolist() == ids[there][order].tolist()
                assert (-distances[:k]).tolist() == products[order].tolist()


def test_what_another_process_is_writing_is_not_found(make, rng):
    pair = make(32)
    pair.add(np.arange(1, 51), draw_codes(rng, 50, 32), 0)
    pair.write()
    codes = draw_codes(rng, 50, 32)
    pair.collection.write(pair.index.state.name, np.arange(51, 101), codes, np.zeros(50, np.int64))  # not recorded
    pair.check(codes[:3], rng)
    pair.collection.clean(pair.index.state)
    assert pair.collection.count(pair.index.state.name) == 50


def test_a_batch_that_was_not_finished_is_written_again(make, rng):
    pair = make(32)
    codes = draw_codes(rng, 50, 32)
    pair.add(np.arange(1, 51), codes, 1)
    pair.collection.write(pair.index.state.name, np.arange(1, 31), codes[:30], np.ones(30, np.int64))
    pair.collection.clean(pair.index.state)
    pair.write()
    assert pair.collection.count(pair.index.state.name) == pair.collection.count(pair.index.state.name, 1) == 50
    pair.check(codes[:3], rng)


def test_a_collection_that_was_dropped_or_is_of_another_engine(make, server, rng):
    pair = make(32)
    pair.add(np.arange(1, 51), draw_codes(rng, 50, 32), 0)
    pair.write()
    other = MilvusCollection(server, pair.collection.prefix, 32, {"engine": "other"})
    with pytest.raises(IndexUnavailableError, match="is of another engine"):
        other.find()
    assert pair.collection.find() == pair.index.state
    pair.collection.drop(pair.index.state.name)
    with pytest.raises(CollectionGoneError):
        pair.index.search(draw_codes(rng, 1, 32), k=3)
    pair.collection.create()
    with pytest.raises(CollectionGoneError):  # its successor is empty, which is not an answer
        pair.index.search(draw_codes(rng, 1, 32), k=3)


def test_items_are_found_before_there_is_a_collection(rng):
    """Everything is in memory, so Milvus is not asked."""
    index, plain = MilvusIndex(MilvusCollection(Milvus("http://127.0.0.1:1"), "test", 16)), HammingIndex(16)
    codes, queries = draw_codes(rng, 50, 16), draw_codes(rng, 2, 16)
    for each in (index, plain):
        each.add(np.arange(1, 51), codes)
    same(index.search(queries, k=5), plain.search(queries, k=5))
    same(index.search(queries, radius=5), plain.search(queries, radius=5))
    assert index.distances(queries[0], [3, 99]).tolist() == plain.distances(queries[0], [3, 99]).tolist()
    assert index.remove([3, 4]) == 2
    assert index.groups == {0: 48}


def test_no_server():
    collection = MilvusCollection(Milvus("http://127.0.0.1:1"), "test", 32)
    with pytest.raises(IndexUnavailableError, match=r"Milvus at http://127\.0\.0\.1:1 does not answer"):
        collection.find()


def test_a_password_is_not_shown():
    assert "secret" not in repr(Milvus("http://user:secret@10.0.0.1:19530"))


def test_errors_say_what_came(make, rng):
    index = make(16).index
    with pytest.raises(ValueError, match="expected one of them"):
        index.search(draw_codes(rng, 1, 16))
    with pytest.raises(ValueError, match="ids ≥ 0"):
        index.add([-1], draw_codes(rng, 1, 16))
    with pytest.raises(KeyError, match="1 of 1 ids are not in the index"):
        index.remove([5])
