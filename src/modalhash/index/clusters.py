"""Clusters and shells: exact k nearest codes without a full scan, if codes form clusters (iDistance).

Codes of items with similar labels are near each other. They are assigned to clusters, each with a centre, and within a
cluster to shells by their distance from the centre. For a query q, a code x and its centre c, the triangle inequality
bounds the distance:

    |d(q, c) − d(x, c)| ≤ d(q, x)

If the k nearest codes so far are within t of the query, only shells d(q, c) − t to d(q, c) + t of a cluster can contain
nearer ones. Clusters are visited nearest first, so t soon becomes small and most other clusters are skipped. The hits
and their order are those of a scan.

The gain grows with the number of codes, because the k nearest are then nearer. It vanishes for random codes, so it is
measured when the clusters are built, and a query that would be compared with an eighth of all codes falls back to a
scan. A centre is the bitwise majority of its cluster, learned from a sample; there are up to 2,048. The assignment of
codes to centres affects only the speed.

Reference: H. V. Jagadish, B. C. Ooi, K.-L. Tan, C. Yu, R. Zhang. iDistance: an adaptive B⁺-tree based indexing method
for nearest neighbor search. ACM Transactions on Database Systems 30(2), 2005.
"""

from __future__ import annotations

from math import isqrt

import numpy as np

from modalhash.core.parallel import pool_map
from modalhash.core.typing import Array
from modalhash.index.layout import CHUNK, PackedRows, decode_hits, to_rows, word_type

MIN_ROWS = 2**18  # codes below which a scan is as fast
MAX_CLUSTERS = 2048  # or twice the square root of the number of codes if that is less
SAMPLED_PER_CLUSTER = 32  # codes in the sample from which centres are learned
MAJORITY_STEPS = 3
ASSIGNED_AT_ONCE = 2**16  # codes per task
SCANNED_SHARE = 8  # a query may be compared with 1 / SCANNED_SHARE of the codes before it falls back to a scan
TRIED_QUERIES, TRIED_K = 64, 100  # searches that measure whether clusters are faster
NOTHING = np.empty(0, np.int64)


def worth_trying(n: int, n_bits: int) -> bool:
    """Return whether clusters can be faster than a scan; not for few codes, or codes shorter than a word."""
    return n >= MIN_ROWS and np.dtype(word_type(n_bits)).itemsize == 8


class ShellTables:
    """The rows of a table by cluster and shell.

    Parameters
    ----------
    source : PackedRows
        The rows, at least one, of 64-bit words.
    n_bits : int
        Length of the codes.
    n_threads : int, optional
        Threads that assign codes to clusters.
    """

    def __init__(self, source: PackedRows, n_bits: int, *, n_threads: int | None = None) -> None:
        from modalhash.index.kernels.shells import assign, fill_shells

        self.source, self._n_bits = source, n_bits
        codes = to_rows(source.words, source.n)
        centres = _learn_centres(codes, min(MAX_CLUSTERS, 2 * isqrt(source.n)))
        clusters, distances = np.empty((2, source.n), np.uint16)
        parts = [slice(start, start + ASSIGNED_AT_ONCE) for start in range(0, source.n, ASSIGNED_AT_ONCE)]
        pool_map(
            lambda part: assign(codes[part], centres, clusters[part], distances[part]),
            parts,
            n_threads=n_threads,
        )
        row_type = np.uint32 if source.n < 2**32 else np.uint64
        n_clusters, n_shells = centres.shape[1], n_bits + 1
        self._starts = np.zeros(n_clusters * n_shells + 2, dtype=row_type)
        self._codes = np.empty((codes.shape[1], source.n), dtype=codes.dtype)
        self._rows = np.empty(source.n, dtype=row_type)
        fill_shells(codes, clusters, distances, n_shells, self._starts, self._codes, self._rows)
        self._centres = centres
        sizes = np.diff(self._starts[:-1].astype(np.int64)).reshape(n_clusters, n_shells)
        self._radii = np.where(sizes.any(axis=1), n_bits - (sizes[:, ::-1] > 0).argmax(axis=1), -1)

    @property
    def nbytes(self) -> int:
        arrays = (self._starts, self._codes, self._rows, self._centres, self._radii)
        return sum(array.nbytes for array in arrays)

    @property
    def pays(self) -> bool:
        """Whether most queries near the codes need no scan."""
        chunks, columns = np.divmod(np.linspace(0, self.source.n - 1, TRIED_QUERIES).astype(np.int64), CHUNK)
        *_, left_out = self.search(self.source.words[chunks, :, columns], TRIED_K, TRIED_K)
        return bool(left_out.mean() <= 1 / 4)

    def search(
        self, queries: Array, k: int, max_hits: int, gone: Array = NOTHING, *, budget: int | None = None
    ) -> tuple[Array, Array, Array, Array]:
        """Return rows, distances and offsets of the k nearest and their ties, and which queries need a scan.

        Parameters
        ----------
        queries : (queries, words)
            Codes.
        k, max_hits : int
            Minimum number of rows, and maximum including ties with the k-th.
        gone : int64, optional
            Rows to ignore, ascending.
        budget : int, optional
            Codes that a query may be compared with before it needs a scan, by default an eighth of all.
        """
        from modalhash.index.kernels.shells import nearest_in_shells

        hits, offsets, left_out = nearest_in_shells(
            queries,
            self._centres,
            self._radii,
            self._starts,
            self._codes,
            self._rows,
            gone,
            k,
            max_hits,
            self._n_bits,
            self.source.n // SCANNED_SHARE if budget is None else budget,
        )
        return *decode_hits(hits), offsets, left_out


def _learn_centres(codes: Array, n: int) -> Array:
    """Return ``n`` centres (words, n), each the majority of the sampled codes nearest to it."""
    from modalhash.index.kernels.shells import assign

    rng = np.random.default_rng(0)
    sample = codes[np.sort(rng.choice(len(codes), min(len(codes), SAMPLED_PER_CLUSTER * n), replace=False))]
    centres = sample[rng.choice(len(sample), n, replace=len(sample) < n)].T.copy()
    bits = np.unpackbits(sample.view(np.uint8), axis=1)
    members, distances = np.empty((2, len(sample)), np.uint16)
    for _ in range(MAJORITY_STEPS):
        assign(sample, centres, members, distances)
        sizes = np.bincount(members, minlength=n)
        filled = np.flatnonzero(sizes)
        ascending = bits[np.argsort(members, kind="stable")]
        ones = np.add.reduceat(ascending, (np.cumsum(sizes) - sizes)[filled], axis=0, dtype=np.int64)
        centres[:, filled] = np.packbits(2 * ones > sizes[filled, None], axis=1).view(codes.dtype).T
    return centres
