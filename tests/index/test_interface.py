"""What every index shares: its ids, and the hits of parts merged into one answer."""

from __future__ import annotations

import numpy as np
import pytest

from modalhash.core.codes import distinct_ids
from modalhash.index import HammingIndex, Hits
from modalhash.index.scan import merge_nearest, merge_within

PAIRS = ((3, 0), (9, 1), (1, 2), (5, 2))  # (id, distance) in canonical order


def test_hits_of_one_query():
    padded = Hits(np.array([[-1, 4, -1]]), np.array([[0, 2, -1]]))  # an id may be -1 too
    assert [column.tolist() for column in padded[0]] == [[-1, 4], [0, 2]]
    flat = Hits(np.array([7, 8, 9]), np.array([1, 1, 3]), np.array([0, 2, 2, 3]))
    assert [flat[query][0].tolist() for query in (0, 1, 2, -1)] == [[7, 8], [], [9], [9]]
    for hits in (padded, flat):
        with pytest.raises(IndexError, match=f"of {len(hits)}"):
            hits[len(hits)]


def columns(pairs):
    return np.array([id for id, _ in pairs], np.int64), np.array([distance for _, distance in pairs], np.int32)


@pytest.mark.parametrize("split", range(len(PAIRS) + 1))
def test_parts_are_merged_in_canonical_order(split):
    ids, distances = columns(PAIRS)
    halves = [columns(PAIRS[split:]), columns(PAIRS[:split])]
    hits = merge_nearest([(part[0][None], part[1][None]) for part in halves], 1, 3)
    assert (hits.ids.tolist(), hits.distances.tolist()) == ([ids[:3].tolist()], [distances[:3].tolist()])
    hits = merge_nearest([(part[0][None], part[1][None]) for part in halves], 1, 6)
    assert (hits.ids[0, 4:].tolist(), hits.distances[0, 4:].tolist()) == ([-1, -1], [-1, -1])
    offsets = [np.array([0, len(part[0]), len(part[0])]) for part in halves]  # the second query has no hits
    hits = merge_within([(*part, ends) for part, ends in zip(halves, offsets, strict=True)], 2)
    np.testing.assert_array_equal(hits[0][0], ids)
    assert len(hits[1][0]) == 0


@pytest.mark.parametrize("ids", [[], [3], [1, 5, 9], [5, 1, 9, 1, 5], [7, 7], [-(2**63), 2**63 - 1, 0]])
def test_distinct_ids_ascend(ids):
    given = np.array(ids, dtype=np.int64)
    assert distinct_ids(given).tolist() == sorted(set(ids))
    assert given.tolist() == ids, "what was given stays as it is"


def test_ids_that_ascend_are_not_sorted(monkeypatch):
    """A store gives them so, ten million at a time."""
    index = HammingIndex(8)
    index.add(np.arange(6), np.arange(6, dtype=np.uint8)[:, None])

    def refuse(*arguments, **options):
        raise AssertionError("sorted again")

    with monkeypatch.context() as patch:
        for name in ("sort", "argsort", "unique"):
            patch.setattr(np, name, refuse)
        hits = index.search(np.array([[0]], dtype=np.uint8), k=2, ids=np.array([1, 2, 4]))
    assert hits.ids.tolist() == [[1, 2]]
