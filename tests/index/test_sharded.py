"""Several indexes as one: the hits of a single index, ties included, and no short answer where a shard is down."""

from __future__ import annotations

import numpy as np
import pytest

from modalhash.index import HammingIndex, ShardedHits, ShardedIndex, ShardError

N_BITS = 12  # few, so that most distances are ties


class Flaky(HammingIndex):
    """A shard that can be out of reach."""

    error: OSError | None = None

    def search(self, *arguments, **options):
        if self.error is not None:
            raise self.error
        return super().search(*arguments, **options)

    def shortlist(self, *arguments, **options):
        if self.error is not None:
            raise self.error
        return super().shortlist(*arguments, **options)


def random_items(rng, n):
    codes = rng.integers(0, 256, (n, 2), dtype=np.uint8)
    codes[:, 1] &= 0xF0
    return rng.permutation(10 * n)[:n] - 4 * n, codes, rng.integers(0, 3, n)


@pytest.fixture
def flaky(rng):
    shards = [Flaky(N_BITS) for _ in range(3)]
    index = ShardedIndex(shards)
    ids, codes, groups = random_items(rng, 300)
    index.add(ids, codes, group=groups)
    yield index
    index.close()


def assert_same(found, expected):
    assert isinstance(found, ShardedHits)
    assert not found.partial
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.distances, expected.distances)
    assert (found.offsets is None) == (expected.offsets is None)
    if expected.offsets is not None:
        np.testing.assert_array_equal(found.offsets, expected.offsets)


@pytest.mark.parametrize("n_shards", [1, 2, 5])
def test_hits_are_those_of_one_index(rng, n_shards):
    one, many = HammingIndex(N_BITS), ShardedIndex([HammingIndex(N_BITS) for _ in range(n_shards)])
    ids, codes, groups = random_items(rng, 400)
    for index in (one, many):
        index.add(ids, codes, group=groups)
        index.add(ids[:40], codes[40:80], group=1, replace=True)
        assert index.remove(ids[100:150]) == 50
    queries = codes[:7]
    for options in (
        {},
        {"group": 1},
        {"group": [0, 2]},
        {"ids": rng.permutation(ids)[:60]},
        {"ids": ids[:9], "group": 1},
        {"group": 9},
    ):
        for k in (1, 20, 500):
            assert_same(many.search(queries, k, **options), one.search(queries, k, **options))
            expected = one.shortlist(queries, k, max_hits=2 * k, **options)
            assert_same(many.shortlist(queries, k, max_hits=2 * k, **options), expected)
        for radius in (0, 3, N_BITS):
            assert_same(many.search(queries, radius=radius, **options), one.search(queries, radius=radius, **options))
    assert_same(many.search(queries[:0], 3), one.search(queries[:0], 3))
    asked = np.concatenate([ids[:200], [-(10**9)]])
    np.testing.assert_array_equal(many.contains(asked), one.contains(asked))
    np.testing.assert_array_equal(many.distances(queries[0], asked), one.distances(queries[0], asked))
    np.testing.assert_array_equal(many.distances(queries[0], asked, group=2), one.distances(queries[0], asked, group=2))
    assert (len(many), many.groups) == (len(one), one.groups)
    many.close()


def test_shards_that_were_filled_elsewhere(rng):
    """However the items are spread over them, one of them empty."""
    ids, codes, groups = random_items(rng, 200)
    one, shards = HammingIndex(N_BITS), [HammingIndex(N_BITS) for _ in range(4)]
    one.add(ids, codes, group=groups)
    where = rng.integers(0, 3, len(ids))
    for number in range(3):
        own = where == number
        shards[number].add(ids[own], codes[own], group=groups[own])
    many = ShardedIndex(shards)
    assert_same(many.search(codes, 30), one.search(codes, 30))
    with pytest.raises(ValueError, match="1 of 1 are in the index already"):
        many.add([ids[0]], codes[:1])
    many.add([ids[0]], codes[1:2], replace=True)
    one.add([ids[0]], codes[1:2], replace=True)
    assert_same(many.search(codes, radius=2), one.search(codes, radius=2))


@pytest.mark.parametrize("error", [ConnectionRefusedError("refused"), TimeoutError("5 s are over"), OSError()])
def test_a_shard_that_is_down_is_an_error(flaky, error):
    flaky.shards[1].error = error
    query = np.zeros((1, 2), np.uint8)
    for search in (
        lambda: flaky.search(query, 3),
        lambda: flaky.search(query, radius=0),
        lambda: flaky.shortlist(query, 3, max_hits=9),
    ):
        with pytest.raises(ShardError, match=r"1 of 3 shards did not answer \(first: shard 1") as raised:
            search()
        assert raised.value.reasons == {"shard 1": str(error) or "OSError"}
    flaky.shards[1].error = None
    assert len(flaky.search(query, 3)[0][0]) == 3


def test_or_an_answer_that_says_so(flaky):
    flaky.missing = "partial"
    query = np.zeros((2, 2), np.uint8)
    whole = flaky.search(query, 300)
    flaky.shards[1].error = ConnectionResetError("reset")
    hits = flaky.search(query, 300)
    assert [hits.missing, hits.partial] == [("shard 1",), True]
    held = flaky.shards[1].contains(whole.ids[0])
    assert hits[0][0].tolist() == whole.ids[0][~held].tolist(), "the others in their order"
    assert flaky.search(query, radius=3).partial
    assert flaky.shortlist(query, 3, max_hits=9).partial
    for shard in flaky.shards:
        shard.error = ConnectionResetError("reset")
    with pytest.raises(ShardError, match="3 of 3 shards"):
        flaky.search(query, 3)


def test_errors_about_the_question_are_no_failures_of_shards(flaky):
    flaky.missing = "partial"
    with pytest.raises(ValueError, match="k=None and radius=None"):
        flaky.search(np.zeros((1, 2), np.uint8))
    with pytest.raises(ValueError, match="k is 0"):
        flaky.search(np.zeros((1, 2), np.uint8), 0)


def test_an_id_in_two_shards_is_refused():
    shards = [HammingIndex(8), HammingIndex(8)]
    for shard in shards:
        shard.add([1, 2], np.array([[7], [9]], np.uint8))
    index = ShardedIndex(shards)
    query = np.array([[7]], np.uint8)
    for search in (lambda: index.search(query, 2), lambda: index.search(query, radius=8)):
        with pytest.raises(ValueError, match="two shards hold the id 1"):
            search()


def test_the_same_id_found_by_two_queries_is_no_double():
    index = ShardedIndex([HammingIndex(8), HammingIndex(8)])
    index.add([1], np.array([[7]], np.uint8))
    assert index.search(np.array([[7], [7], [0], [7]], np.uint8), radius=1).ids.tolist() == [1, 1, 1]


def test_what_cannot_be_sharded():
    with pytest.raises(ValueError, match="no shards"):
        ShardedIndex([])
    with pytest.raises(ValueError, match=r"codes of \[8, 16\] bits"):
        ShardedIndex([HammingIndex(8), HammingIndex(16)])
    with pytest.raises(ValueError, match="missing is 'ignore'"):
        ShardedIndex([HammingIndex(8)], missing="ignore")
    index = ShardedIndex([HammingIndex(8)])
    with pytest.raises(ValueError, match="none twice"):
        index.add([1, 1], np.zeros((2, 1), np.uint8))
    with pytest.raises(ValueError, match="1 of 1 are not in the index"):
        index.remove([5])
