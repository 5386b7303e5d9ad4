"""Multi-index hashing: exact radius search without a scan of the database (Norouzi, Punjani and Fleet, 2012).

A hash table of whole codes would need a lookup for every code within radius r of the query: 679,121 lookups for 64 bits
and r = 4, nearly all in empty buckets. Instead, each code is cut into m substrings, with a hash table for each: the
rows sorted by the value of that substring, where the rows with one value form a bucket.

If two codes differ in at most r bits, and Σ (rᵢ + 1) > r, then for at least one i their substrings i differ in at most
rᵢ bits; otherwise they would differ in Σ (rᵢ + 1) bits or more. So a search looks up, in each table i, the values
within rᵢ of the query's substring. The rows in those buckets are the candidates, which include every row within r; the
distance of the whole codes then selects the hits. For r = 2 and m = 3 all rᵢ are 0, which takes three lookups per
query.

The best m depends on the number of rows: few long substrings take many lookups in nearly empty buckets, many short ones
few lookups in full buckets. A query falls back to a scan if lookups and candidates would take longer, which is known
for a radius in advance and for a query after its lookups.

Reference: M. Norouzi, A. Punjani, D. J. Fleet. Fast search in Hamming space with multi-index hashing. CVPR 2012.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import repeat
from math import ceil, comb, log2

import numpy as np

from modalhash.core.parallel import numba_threads, pool_map
from modalhash.core.typing import Array
from modalhash.index.interface import RadiusPart, for_all_queries, offsets_of
from modalhash.index.layout import GroupRows, PackedRows, decode_hits, word_type
from modalhash.index.rebuild import GroupTables, TableView
from modalhash.index.scan import AnyTable, scan_within, stack_tiles, tiles_of

MAX_SUBSTRINGS = 4  # 4 bytes per row each
MAX_SUBSTRING_BITS = 26  # 4 bytes per value of the substring
SCANNED_PER_LOOKUP = 256  # 64-bit codes scanned in the time of one lookup or candidate; more if shorter
MIN_TILES_FOR_THREADS = 4  # with fewer tiles of queries, threads cost more than they save


# -- substrings


def _plan(n: int, n_bits: int, radius: int) -> tuple[float, list[int]]:
    """Choose the substrings for a search of ``n`` random codes.

    Returns the expected number of lookups and candidates per query, and the lengths of the substrings. A substring is
    at most log₂ ``n`` bits long, which gives about one row per bucket; further bits are not used.
    """
    longest = min(MAX_SUBSTRING_BITS, max(1, ceil(log2(n))))
    plans = []
    for n_substrings in range(1, min(radius + 1, MAX_SUBSTRINGS, n_bits) + 1):
        lengths = [min(longest, len(part)) for part in np.array_split(np.arange(n_bits), n_substrings)]
        cost = 0.0
        for length, reach in zip(lengths, _substring_radii(radius, lengths), strict=True):
            cost += _ball_size(length, reach) * (1 + n / 2**length)
        plans.append((cost, lengths))
    return min(plans)


def _substring_radii(radius: int, lengths: list[int]) -> list[int]:
    """Return the radius rᵢ of each substring, with Σ (rᵢ + 1) = radius + 1; −1 if it needs no lookup."""
    share, rest = divmod(radius + 1, len(lengths))
    return [min(share + (i < rest) - 1, length) for i, length in enumerate(lengths)]


def _ball_size(length: int, radius: int) -> int:
    """Return the number of values of ``length`` bits within ``radius`` of a given one."""
    return sum(comb(length, k) for k in range(radius + 1))


@lru_cache(maxsize=16)
def _flip_masks(length: int, radius: int) -> Array:
    """Return all values of ``length`` bits with up to ``radius`` bits set."""
    single = np.uint64(1) << np.arange(length, dtype=np.uint64)
    levels = [np.zeros(1 if radius >= 0 else 0, dtype=np.uint64)]
    for _ in range(radius):
        above = single[None, :] > levels[-1][:, None]  # bits above the highest set bit
        levels.append((levels[-1][:, None] | single[None, :])[above])
    return np.concatenate(levels)


def _substring_pieces(n_bits: int, lengths: list[int]) -> Array:
    """Return the positions of each substring's bits in a code's words, as the kernels take them."""
    width = 8 * np.dtype(word_type(n_bits)).itemsize
    bit = np.arange(n_bits)
    positions = np.sort(bit // 8 * 8 + 7 - bit % 8)  # the first bit of a byte is its highest
    pieces = []
    for substring, (bits, length) in enumerate(zip(np.array_split(positions, len(lengths)), lengths, strict=True)):
        bits = bits[:length]
        starts = np.flatnonzero((np.diff(bits, prepend=-2) != 1) | (bits % width == 0))
        for start, stop in zip(starts, [*starts[1:], length], strict=True):
            word, shift = divmod(int(bits[start]), width)
            pieces.append((substring, word, shift, 2 ** int(stop - start) - 1, start))
    return np.array(pieces, dtype=np.int64)


def _scan_cost(n: int, n_bits: int) -> int:
    """Return how many lookups and candidates take as long as a scan of ``n`` codes."""
    return n * np.dtype(word_type(n_bits)).itemsize // (8 * SCANNED_PER_LOOKUP)


def _worthwhile(n: int, n_bits: int, radius: int) -> bool:
    """Return whether hash tables are faster than a scan for ``n`` random codes."""
    return n > 0 and _plan(n, n_bits, radius)[0] <= _scan_cost(n, n_bits)


class SubstringTables:
    """A hash table of rows for each substring of their codes.

    Parameters
    ----------
    source : PackedRows
        The rows, at least one.
    n_bits : int
        Length of the codes.
    radius : int
        The radius that the substrings are chosen for; other radii can be searched as well.
    """

    def __init__(self, source: PackedRows, n_bits: int, radius: int) -> None:
        from modalhash.index.kernels.lookup_tables import fill_buckets

        self.source, self._n_bits = source, n_bits
        self.lengths = _plan(source.n, n_bits, radius)[1]
        self._pieces = _substring_pieces(n_bits, self.lengths)
        row_type = np.uint32 if source.n < 2**32 else np.uint64
        sizes = [2**length + 2 for length in self.lengths]  # one for the end, one for fill_buckets
        self._bases = offsets_of(np.array(sizes))[:-1]
        self._offsets = np.zeros(sum(sizes), dtype=row_type)
        self._rows = np.empty((len(sizes), source.n), dtype=row_type)
        for i, (base, size) in enumerate(zip(self._bases, sizes, strict=True)):
            pieces = self._pieces[self._pieces[:, 0] == i]
            fill_buckets(source.words, source.n, pieces, self._offsets[base : base + size], self._rows[i])

    @property
    def nbytes(self) -> int:
        return int(self._offsets.nbytes + self._rows.nbytes)

    def search(self, queries: Array, radius: int, *, budget: int | None = None) -> tuple[Array, Array, Array, Array]:
        """Return rows, distances and offsets of all rows within ``radius``, and which queries need a scan.

        A query needs a scan, and gets no hits, if it takes more than ``budget`` lookups and candidates, by default the
        cost of the scan.
        """
        from modalhash.index.kernels.lookup_tables import probe_buckets

        budget = _scan_cost(self.source.n, self._n_bits) if budget is None else budget
        radii = _substring_radii(radius, self.lengths)
        balls = list(zip(self.lengths, radii, strict=True))
        n_lookups = sum(_ball_size(length, reach) for length, reach in balls)
        if n_lookups > budget:
            nothing = np.empty(0, np.int64), np.empty(0, np.int32), np.zeros(len(queries) + 1, np.int64)
            return *nothing, np.ones(len(queries), dtype=bool)
        masks = [_flip_masks(length, reach) for length, reach in balls]
        hits, offsets, left_out = probe_buckets(
            queries,
            self.source.words,
            radius,
            self._pieces,
            np.array(radii),
            np.concatenate(masks),
            offsets_of(np.array([len(part) for part in masks])),
            self._offsets,
            self._bases,
            self._rows,
            budget - n_lookups,
        )
        return *decode_hits(hits), offsets, left_out


class MultiIndex(GroupTables[SubstringTables]):
    """Hash tables per group of an index, and radius searches that use them where they are faster than a scan.

    The index holds its lock around every method except :meth:`search`, which works on views that never change.
    """

    _radius = 0

    def build(self, groups: Mapping[int, GroupRows], radius: int) -> int:
        """Build the tables of all groups in which they are faster than a scan; return their size in bytes."""
        self._radius = radius
        return self._build_all(groups)

    def search(
        self,
        queries: Array,
        views: list[TableView[SubstringTables] | AnyTable],
        radius: int,
        *,
        n_threads: int | None = None,
    ) -> list[RadiusPart]:
        """Return all items within ``radius`` of each query, in several parts."""

        def scan(queries: Array, tables: list[AnyTable]) -> list[RadiusPart]:
            return scan_within(queries, tables, radius, self._n_bits, n_threads=n_threads)

        if not len(queries):
            return []
        parts = scan(queries, [view for view in views if not isinstance(view, TableView)])
        for view in views:
            if not isinstance(view, TableView):
                continue
            part, left_out = _look_up(queries, view.tables, radius, n_threads)
            from_tables = [part]
            if left_out.any():
                scanned = scan(queries[left_out], [view.tables.source])
                from_tables += [for_all_queries(part, left_out) for part in scanned]
            parts += [_without(part, view.stale_ids) for part in from_tables]
            parts += scan(queries, [view.added])
        return [part for part in parts if len(part[0])] or parts[:1]

    def _worthwhile(self, n: int) -> bool:
        return _worthwhile(n, self._n_bits, self._radius)

    def _make(self, source: PackedRows, *, n_threads: int | None) -> SubstringTables:
        return SubstringTables(source, self._n_bits, self._radius)


def _look_up(queries: Array, tables: SubstringTables, radius: int, n_threads: int | None) -> tuple[RadiusPart, Array]:
    """Return the hits from tables, and which queries need a scan."""
    tiles = tiles_of(queries)
    n_threads = 1 if len(tiles) < MIN_TILES_FOR_THREADS else n_threads or numba_threads()
    results = pool_map(tables.search, tiles, repeat(radius), n_threads=n_threads)
    hits = [(tables.source.ids[rows], distances, offsets) for rows, distances, offsets, _ in results]
    return stack_tiles(hits), np.concatenate([left_out for *_, left_out in results])


def _without(part: RadiusPart, stale_ids: Array) -> RadiusPart:
    ids, distances, offsets = part
    if not len(stale_ids):
        return part
    nearest = np.minimum(np.searchsorted(stale_ids, ids), len(stale_ids) - 1)
    valid = stale_ids[nearest] != ids
    return ids[valid], distances[valid], offsets_of(valid)[offsets]
