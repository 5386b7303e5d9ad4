"""Searches within a small radius without a walk over the database: multi-index hashing (Norouzi et al., 2012).

Codes are cut into parts, and the rows are sorted by each part. If two codes differ in at most r bits, and parts i
may differ in up to t_i bits with Σ (t_i + 1) > r, then at least one part differs in no more than that: looking
up the values near the query's parts finds every row within r, and others, which the whole distance tells apart.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, comb, log2
from typing import NamedTuple

import numpy as np

from modalhash._typing import Array
from modalhash.index.rows import WAITING, Table, word_type

MOST_PARTS = 4  # each takes 4 bytes per row
LONGEST = 26  # bits of a part: 4 bytes for each value
CHANGED = 32  # a share of the rows: once so many have changed, tables are made anew
WORTH = 256  # codes of 64 bits that a walk passes in the time of one look at a value or at a row; more of shorter ones


class RadiusTables:
    """Rows of a table sorted by the parts of their codes. Never changed; ``table`` is what they were made from.

    Parameters
    ----------
    table : Table
        With at least one row.
    n_bits : int
        Length of the codes.
    radius : int
        That the number of parts is chosen for; other radii can be searched as well.
    """

    def __init__(self, table: Table, n_bits: int, radius: int) -> None:
        from modalhash.index import buckets

        self.table, self._n_bits = table, n_bits
        self.lengths = plan(table.n, n_bits, radius)[1]
        self._pieces = cut_bits(n_bits, self.lengths)
        kind = np.uint32 if table.n < 2**32 else np.uint64
        sizes = [2**length + 2 for length in self.lengths]  # two more than values: see buckets.fill
        self._bases = np.concatenate([[0], np.cumsum(sizes)])[:-1]
        self._offsets = np.zeros(sum(sizes), dtype=kind)
        self._rows = np.empty((len(sizes), table.n), dtype=kind)
        for part, (base, size) in enumerate(zip(self._bases, sizes, strict=True)):
            mine = self._pieces[self._pieces[:, 0] == part]
            buckets.fill(table.words, table.n, mine, self._offsets[base : base + size], self._rows[part])

    @property
    def nbytes(self) -> int:
        """Memory beside the table's own."""
        return int(self._offsets.nbytes + self._rows.nbytes)

    def within(
        self, queries: Array, radius: int, *, budget: int | None = None
    ) -> tuple[Array, Array, Array, Array] | None:
        """Rows and distances within ``radius``, offsets, and which queries are better answered by a walk.

        A query is left to the walk if it takes more than ``budget`` looks at values or rows: by default a 256th of
        the number of rows. None where that is known of all queries.
        """
        from modalhash.index import buckets

        budget = affordable(self.table.n, self._n_bits) if budget is None else budget
        reaches = spread(radius, self.lengths)
        n_probes = sum(ball(length, reach) for length, reach in zip(self.lengths, reaches, strict=True))
        if n_probes > budget:
            return None
        near = [masks(length, reach) for length, reach in zip(self.lengths, reaches, strict=True)]
        starts = np.concatenate([[0], np.cumsum([len(part) for part in near])])
        hits, ends, left = buckets.probe(
            queries,
            self.table.words,
            radius,
            self._pieces,
            np.array(reaches),
            np.concatenate(near),
            starts,
            self._offsets,
            self._bases,
            self._rows,
            budget - n_probes,
        )
        rows = (hits & ((np.uint64(1) << buckets.ROW_BITS) - np.uint64(1))).astype(np.int64)
        return rows, (hits >> buckets.ROW_BITS).astype(np.int32), ends, left


class Prepared:
    """Tables of a group that goes on changing: what has changed since they were made is looked at apart."""

    def __init__(self, table: Table, n_bits: int, radius: int) -> None:
        self.tables = RadiusTables(table, n_bits, radius)
        self._n_touched = 0
        self._touched: list[Array] = []
        self._view: View | None = None

    @property
    def outdated(self) -> bool:
        """Whether so much has changed that they should be made anew."""
        return self._n_touched > max(WAITING, self.tables.table.n // CHANGED)

    def touch(self, ids: Array) -> None:
        """Ids that were added or removed."""
        self._touched.append(ids)
        self._view = None
        self._n_touched += len(ids)
        if len(self._touched) > 1000:
            self._touched = [np.concatenate(self._touched)]

    def view(self, now: Table) -> View:
        """What to search in order to find what is in ``now``."""
        if self._view is None:
            ids = np.unique(np.concatenate([np.empty(0, np.int64), *self._touched]))
            places, there = self.tables.table.places(ids)
            self._touched, self._view = [ids], View(self.tables, places[there], now.only(ids))
        return self._view


class View(NamedTuple):
    """Tables, those of their places that are gone (ascending), and the rows that came since."""

    tables: RadiusTables
    gone: Array
    fresh: Table


def worthwhile(n: int, n_bits: int, radius: int) -> bool:
    """Whether tables of ``n`` random codes would be used at all."""
    return n > 0 and plan(n, n_bits, radius)[0] <= affordable(n, n_bits)


def affordable(n: int, n_bits: int) -> int:
    """Looks that take as long as a walk over ``n`` codes."""
    return n * np.dtype(word_type(n_bits)).itemsize // (8 * WORTH)


def plan(n: int, n_bits: int, radius: int) -> tuple[float, list[int]]:
    """The fewest looks that a search among ``n`` random codes takes, and the lengths of the parts for that."""
    longest = min(LONGEST, max(1, ceil(log2(n))))
    plans = []
    for n_parts in range(1, min(radius + 1, MOST_PARTS, n_bits) + 1):
        lengths = [min(longest, len(part)) for part in np.array_split(np.arange(n_bits), n_parts)]
        reaches = spread(radius, lengths)
        balls = [ball(length, reach) for length, reach in zip(lengths, reaches, strict=True)]
        plans.append((sum(size * (1 + n / 2**length) for size, length in zip(balls, lengths, strict=True)), lengths))
    return min(plans)


def spread(radius: int, lengths: list[int]) -> list[int]:
    """How many bits each part may differ in, −1 where it need not be tried: with one more for each, radius + 1."""
    share, rest = divmod(radius + 1, len(lengths))
    return [min(share + (part < rest) - 1, length) for part, length in enumerate(lengths)]


def ball(length: int, reach: int) -> int:
    """How many values of ``length`` bits differ from a given one in up to ``reach``."""
    return sum(comb(length, k) for k in range(reach + 1))


@lru_cache(maxsize=16)
def masks(length: int, reach: int) -> Array:
    """All values of ``length`` bits of which up to ``reach`` are set."""
    single = np.uint64(1) << np.arange(length, dtype=np.uint64)
    levels = [np.zeros(1 if reach >= 0 else 0, dtype=np.uint64)]
    for _ in range(reach):
        above = single[None, :] > levels[-1][:, None]  # a bit above the highest that is set
        levels.append((levels[-1][:, None] | single[None, :])[above])
    return np.concatenate(levels)


def cut_bits(n_bits: int, lengths: list[int]) -> Array:
    """The pieces of each part, as :mod:`modalhash.index.buckets` takes them."""
    width = 8 * np.dtype(word_type(n_bits)).itemsize
    bit = np.arange(n_bits)
    places = np.sort(bit // 8 * 8 + 7 - bit % 8)  # the first bit of a byte is its highest
    pieces = []
    for part, (mine, length) in enumerate(zip(np.array_split(places, len(lengths)), lengths, strict=True)):
        mine = mine[:length]
        starts = np.flatnonzero((np.diff(mine, prepend=-2) != 1) | (mine % width == 0))
        for start, stop in zip(starts, [*starts[1:], length], strict=True):
            word, shift = divmod(int(mine[start]), width)
            pieces.append((part, word, shift, 2 ** int(stop - start) - 1, start))
    return np.array(pieces, dtype=np.int64)
