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

The clusters of a group are rebuilt in a background thread when much of it has changed. A build reads rows that never
change (:mod:`modalhash.index.layout`). Until the new tables are ready, searches use the old ones, or a scan. Concurrent
changes are recorded for both, so that every search returns what a scan returns.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from itertools import repeat
from math import isqrt
from typing import NamedTuple

import numpy as np

from modalhash.core.parallel import numba_threads, pool_map
from modalhash.core.typing import Array
from modalhash.index.layout import CHUNK, GroupRows, PackedRows, decode_hits, find_sorted, to_rows, word_type
from modalhash.index.scan import AnyTable, RadiusPart, Scanner, for_all_queries, stack_tiles, tiles_of

MIN_ROWS = 2**18  # codes below which a scan is as fast
MAX_CLUSTERS = 2048  # or twice the square root of the number of codes if that is less
SAMPLED_PER_CLUSTER = 32  # codes in the sample from which centres are learned
MAJORITY_STEPS = 3
ASSIGNED_AT_ONCE = 2**16  # codes per task
SCANNED_SHARE = 8  # a query may be compared with 1 / SCANNED_SHARE of the codes before it falls back to a scan
TRIED_QUERIES, TRIED_K = 64, 100  # searches that measure whether clusters are faster
REBUILD_SHARE = 32  # tables are rebuilt if more than 1 / REBUILD_SHARE of the rows have changed
MIN_CHANGES_FOR_REBUILD = 4096  # scanning fewer rows is cheap
TILE = 16  # queries per task
MIN_TILES_FOR_THREADS = 4
NOTHING = np.empty(0, np.int64)


def worth_trying(n: int, n_bits: int) -> bool:
    """Return whether clusters can be faster than a scan; not for few codes, or codes shorter than a word."""
    return n >= MIN_ROWS and np.dtype(word_type(n_bits)).itemsize == 8


class Shells(NamedTuple):
    """Codes and rows by cluster and shell, as the compiled loops read them."""

    centres: Array
    radii: Array
    """Largest distances from the centres; -1 of an empty cluster."""
    starts: Array
    codes: Array
    rows: Array


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
        pool_map(lambda part: assign(codes[part], centres, clusters[part], distances[part]), parts, n_threads=n_threads)
        row_type = np.uint32 if source.n < 2**32 else np.uint64
        n_clusters, n_shells = centres.shape[1], n_bits + 1
        starts = np.zeros(n_clusters * n_shells + 2, dtype=row_type)
        ordered, rows = np.empty((codes.shape[1], source.n), dtype=codes.dtype), np.empty(source.n, dtype=row_type)
        fill_shells(codes, clusters, distances, n_shells, starts, ordered, rows)
        sizes = np.diff(starts[:-1].astype(np.int64)).reshape(n_clusters, n_shells)
        radii = np.where(sizes.any(axis=1), n_bits - (sizes[:, ::-1] > 0).argmax(axis=1), -1)
        self._shells = Shells(centres, radii, starts, ordered, rows)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._shells)

    @property
    def pays(self) -> bool:
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

        budget = self.source.n // SCANNED_SHARE if budget is None else budget
        hits, offsets, left_out = nearest_in_shells(queries, self._shells, gone, k, max_hits, self._n_bits, budget)
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


# -- rebuilding


class TableView(NamedTuple):
    """One state of a group."""

    tables: ShellTables
    stale_rows: Array
    """Rows of the tables that were removed or replaced, ascending."""
    added: PackedRows
    """Rows added since the build."""
    current: PackedRows


class ChangingTables:
    """Tables of an earlier state of a group, and the ids changed since, whose rows are scanned."""

    def __init__(self, tables: ShellTables, changed: list[Array]) -> None:
        self.tables = tables
        self._n_changed = sum(map(len, changed))
        self._changed = changed
        self._view: TableView | None = None

    @property
    def outdated(self) -> bool:
        return self._n_changed > max(MIN_CHANGES_FOR_REBUILD, self.tables.source.n // REBUILD_SHARE)

    def record_changes(self, ids: Array) -> None:
        """Record ids that were added or removed."""
        self._changed.append(ids)
        self._view = None
        self._n_changed += len(ids)
        if len(self._changed) > 1000:
            self._changed = [np.concatenate(self._changed)]

    def view(self, current: PackedRows) -> TableView:
        """Return what to search in order to find the rows of ``current``."""
        if self._view is None:
            ids = np.unique(np.concatenate([np.empty(0, np.int64), *self._changed]))
            rows, present = find_sorted(self.tables.source.ids[: self.tables.source.n], ids)
            self._changed = [ids]
            self._view = TableView(self.tables, rows[present], current.select(ids), current)
        return self._view


class BackgroundBuilder:
    """Runs one build at a time in a thread. Callers hold the lock of the index."""

    def __init__(self, lock: threading.RLock) -> None:
        self.lock = lock
        self._finished = threading.Condition(lock)
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()  # the thread of a parent process is not alive

    def start(self, build: Callable[[], None]) -> None:
        """Start a build, which takes the lock when it has a result; none may be in progress."""
        # a daemon, so that the interpreter does not wait for it at exit
        self._thread = threading.Thread(target=self._run, args=(build,), name="table builder", daemon=True)
        with contextlib.suppress(RuntimeError):  # no more threads; the next search tries again
            self._thread.start()

    def wait(self) -> None:
        self._finished.wait_for(lambda: not self.is_busy)

    def _run(self, build: Callable[[], None]) -> None:
        try:
            build()
        finally:
            with self._finished:
                self._thread = None
                self._finished.notify_all()


class _Build(NamedTuple):
    """A build in progress."""

    group: int
    source: PackedRows
    changed: list[Array]
    """Ids added or removed since its start."""


class ClusterIndex:
    """Clusters per group of an index, and searches that use them where they are faster than a scan.

    The index holds its lock around every method except :meth:`search`, which works on views that never change.
    """

    def __init__(self, n_bits: int, builder: BackgroundBuilder) -> None:
        self.is_built = False
        self._n_bits, self._builder = n_bits, builder
        self._tables: dict[int, ChangingTables] = {}
        self._rows_at_last_attempt: dict[int, int] = {}
        """Rows, at the last attempt, of groups whose tables were slower than a scan or failed to build."""
        self._pending: _Build | None = None
        """The current build. A cancelled one runs to its end, but its result is not used."""

    def build(self, groups: Mapping[int, GroupRows], *, n_threads: int | None) -> int:
        """Build the clusters of all groups in which they are faster than a scan; return their size in bytes."""
        self._builder.wait()
        self.drop()  # first, because both might not fit in memory
        self.is_built = True
        for group, rows in groups.items():
            source = rows.tables()[0]
            if isinstance(source, PackedRows) and worth_trying(source.n, self._n_bits):
                self._install(group, source.n, self._make(source, n_threads=n_threads), [])
        return sum(built.tables.nbytes for built in self._tables.values())

    def drop(self) -> None:
        self.is_built, self._tables, self._rows_at_last_attempt, self._pending = False, {}, {}, None

    def record_changes(self, group: int, ids: Array) -> None:
        if not len(ids):
            return
        if group in self._tables:
            self._tables[group].record_changes(ids)
        if self._pending is not None and self._pending.group == group:
            self._pending.changed.append(ids)

    def views(self, groups: Mapping[int, GroupRows]) -> list[TableView | AnyTable]:
        """Return what to search for each group, tables or rows to scan; start a build if much has changed."""
        views: list[TableView | AnyTable] = []
        for group, rows in groups.items():
            current = rows.tables()
            source = current[0]
            if not isinstance(source, PackedRows):  # repeated codes were deduplicated
                self._drop_group(group)
                views += current
                continue
            built = self._tables.get(group)
            if built is None or built.outdated:
                self._renew(group, source)
                built = self._tables.get(group)
            views.append(source if built is None else built.view(source))
        return views

    def search(
        self, queries: Array, views: list[TableView | AnyTable], k: int, max_hits: int, scanner: Scanner
    ) -> list[RadiusPart]:
        """Return the k nearest of each query and all ties with the k-th, up to ``max_hits``, in several parts."""
        if not len(queries):
            return []
        scanned = [view for view in views if not isinstance(view, TableView) and view.n]
        parts = scanner.with_ties(queries, scanned, k, max_hits) if scanned else []
        for view in views:
            if not isinstance(view, TableView):
                continue
            part, left_out = _look_up(queries, view, k, max_hits, scanner.n_threads)
            parts.append(part)
            for chosen, table in ((left_out, view.current), (~left_out, view.added)):
                if table.n and chosen.any():
                    scanned_parts = scanner.with_ties(queries[chosen], [table], k, max_hits)
                    parts += [for_all_queries(part, chosen) for part in scanned_parts]
        return parts

    def _renew(self, group: int, source: PackedRows) -> None:
        """Start to build new tables of a group, or drop those of a group that is too small.

        If tables were slower than a scan, the next attempt is made when the group has doubled. If another build is in
        progress, a later search tries again.
        """
        if not worth_trying(source.n, self._n_bits):
            self._drop_group(group)
        elif self.is_built and source.n >= 2 * self._rows_at_last_attempt.get(group, 0) and not self._builder.is_busy:
            self._pending = _Build(group, source, [])
            self._builder.start(partial(self._rebuild, self._pending))

    def _rebuild(self, build: _Build) -> None:
        """Build tables and install them, unless the build was cancelled meanwhile."""
        tables, failure = None, None
        try:
            tables = self._make(build.source, n_threads=1)  # leave the other threads to searches
        except Exception as error:  # a scan always works
            failure = error
        with self._builder.lock:
            if self._pending is not build:
                return
            self._pending = None
            self._install(build.group, build.source.n, tables, build.changed)
        if failure is not None:
            warnings.warn(
                f"the tables of group {build.group} could not be rebuilt ({failure!r}). Searches return the same "
                "hits, but scan this group until it has doubled or tables are built on request",
                RuntimeWarning,
                stacklevel=2,
            )

    def _install(self, group: int, n: int, tables: ShellTables | None, changed: list[Array]) -> None:
        """Set the tables of a group that had ``n`` rows and has changed since; None for a scan."""
        self._drop_group(group)
        if tables is None:
            self._rows_at_last_attempt[group] = n
        else:
            self._rows_at_last_attempt.pop(group, None)
            self._tables[group] = ChangingTables(tables, changed)

    def _drop_group(self, group: int) -> None:
        self._tables.pop(group, None)
        if self._pending is not None and self._pending.group == group:
            self._pending = None

    def _make(self, source: PackedRows, *, n_threads: int | None) -> ShellTables | None:
        tables = ShellTables(source, self._n_bits, n_threads=n_threads)
        return tables if tables.pays else None


def _look_up(queries: Array, view: TableView, k: int, max_hits: int, n_threads: int | None) -> tuple[RadiusPart, Array]:
    """Return the hits from clusters, and which queries need a scan."""
    tables = view.tables
    tiles = tiles_of(queries, TILE)
    n_threads = 1 if len(tiles) < MIN_TILES_FOR_THREADS else n_threads or numba_threads()
    results = pool_map(tables.search, tiles, repeat(k), repeat(max_hits), repeat(view.stale_rows), n_threads=n_threads)
    hits = [(tables.source.ids[rows], distances, offsets) for rows, distances, offsets, _ in results]
    return stack_tiles(hits), np.concatenate([left_out for *_, left_out in results])
