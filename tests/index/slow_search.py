"""The obvious search, all distances sorted by (distance, id), that the index is compared with."""

from __future__ import annotations

import numpy as np

from modalhash.core.codes import n_bytes, pack
from modalhash.index import HammingIndex, Hits
from modalhash.index.layout import PackedRows, chunks_for, pack_words, to_chunks


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


def change_alike(what, seed, plain, fast, draw_bits):
    """Add, replace or remove some items, or search for nothing, in both of two indexes; return the ids."""
    rng = np.random.default_rng(seed)
    some = rng.choice(3500, rng.integers(1, 40), replace=False)
    codes = pack(draw_bits(rng, len(some)))
    if what == "add":
        new = ~plain.contains(some)
        some, codes = some[new], codes[new]
    for index in (plain, fast):
        if what == "remove":
            index.remove(some, missing="ignore")
        elif what != "search":
            index.add(some, codes, group=some % 3, replace=what == "replace")
    return some


def same(left: Hits, right: Hits):
    np.testing.assert_array_equal(left.ids, right.ids)
    np.testing.assert_array_equal(left.distances, right.distances)
    assert (left.offsets is None) == (right.offsets is None)
    if left.offsets is not None:
        np.testing.assert_array_equal(left.offsets, right.offsets)


def table_of(codes, n_bits) -> PackedRows:
    """Codes in the layout that kernels read, with their row as id."""
    words = pack_words(codes, n_bits)
    return PackedRows(np.arange(len(codes)), to_chunks(words, chunks_for(len(codes))), len(codes))


def finish_builds(index: HammingIndex) -> None:
    """Wait for tables that the index builds in a thread."""
    with index._lock:
        index._builder.wait()
