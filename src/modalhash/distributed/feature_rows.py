"""Features on Dask workers: the :class:`modalhash.core.blocks.FeatureRows` of a fit beyond one machine.

A *part* is a group of blocks (:func:`modalhash.core.blocks.block_groups`), the same that a fit in one process adds up
first. Its raw rows are the result of a task and stay on one worker. Beside them is a :class:`BlockCache`, which holds
as many of the part's feature blocks as the worker's memory allows; the others are computed anew in every pass. A pass
is one task per part, and sums of parts are added on workers in the order of the parts: the result is that of one
process, bit for bit where both have the same BLAS.

Whatever a task needs is the result of another task, so that Dask can make it anew when a worker is lost. A cache
changes after its task has ended, and a task may run twice: what it holds depends on nothing but the rows and the map.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from modalhash.core.blocks import FeatureRows, ordered_sum
from modalhash.core.typing import Array
from modalhash.distributed.cluster import Cluster

FAN_IN = 8
"""Sums that one task adds to those before."""


class _Ledger:
    """Bytes that the caches of this process have set aside, by the fit they belong to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: dict[str, int] = {}

    def take(self, owner: str, wanted: int, unit: int, own_limit: int | None, limit: int | None) -> int:
        """Set aside up to ``wanted`` units; return how many fit under the limits of this fit and of the process."""
        with self._lock:
            own, total = self._taken.get(owner, 0), sum(self._taken.values())
            for most, taken in ((own_limit, own), (limit, total)):
                if most is not None:
                    wanted = min(wanted, max(0, most - taken) // unit)
            if wanted:
                self._taken[owner] = own + wanted * unit
        return wanted

    def give_back(self, owner: str, size: int) -> None:
        with self._lock:
            self._taken[owner] -= size
            if not self._taken[owner]:
                del self._taken[owner]


_ledger = _Ledger()


class BlockCache:
    """Feature blocks of one part that stay in a worker's memory.

    Parameters
    ----------
    n_blocks, block_bytes : of the part
    owner : the fit that it belongs to
    own_limit, limit : bytes for all caches of this fit in one process, and of all fits; None for no limit
    """

    def __init__(self, n_blocks: int, block_bytes: int, owner: str, own_limit: int | None, limit: int | None) -> None:
        self._arguments = n_blocks, block_bytes, owner, own_limit, limit
        self._lock = threading.Lock()
        self._blocks: dict[int, tuple[Array, bool]] = {}  # features, and whether the mean is subtracted
        self._room = _ledger.take(owner, n_blocks, block_bytes, own_limit, limit)
        self._size = self._room * block_bytes
        if self._size:
            weakref.finalize(self, _ledger.give_back, owner, self._size)

    def __reduce__(self) -> tuple[Any, ...]:
        """Blocks are not sent anywhere, nor to disk: they are computed anew."""
        return BlockCache, self._arguments

    def __sizeof__(self) -> int:
        """Return what was set aside; Dask asks before it is filled."""
        return object.__sizeof__(self) + self._size

    def block(self, i: int, rows: Array, where: slice, feature_map: Any) -> Array:
        """Return the features of block ``i``, which are those of ``rows[where]``."""
        centred = bool(feature_map.mean_.any())
        with self._lock:
            block, is_centred = self._blocks.get(i, (None, False))
            if block is not None and centred and not is_centred:
                block -= feature_map.mean_
                self._blocks[i] = block, True
            elif block is None or centred != is_centred:
                block = np.asarray(feature_map._compute(rows, where))
                if i in self._blocks or len(self._blocks) < self._room:
                    self._blocks[i] = block, centred
            return block


def sum_of_part(
    work: Callable[..., Any],
    slices: Sequence[slice],
    rows: Array,
    cache: BlockCache,
    feature_map: Any,
    per_item: Sequence[Array],
    shared: Sequence[Any],
) -> Any:
    """Return the sum of the work over the blocks of a part."""
    shared = [own(value) for value in shared]
    return ordered_sum(
        work(cache.block(i, rows, where, feature_map), *(values[where] for values in per_item), *shared)
        for i, where in enumerate(slices)
    )


def rows_of_part(
    work: Callable[..., Array],
    slices: Sequence[slice],
    rows: Array,
    cache: BlockCache,
    feature_map: Any,
    per_item: Sequence[Array],
    shared: Sequence[Any],
) -> Array:
    """Return what the work makes of the blocks of a part, one after the other."""
    shared = [own(value) for value in shared]
    return np.concatenate(
        [
            work(cache.block(i, rows, where, feature_map), *(values[where] for values in per_item), *shared)
            for i, where in enumerate(slices)
        ]
    )


def own(value: Any) -> Any:
    """Return a copy of an array, in memory as numpy allocates it.

    One that came over the net lies where its message has it, and some products of BLAS round by that.
    """
    return np.array(value) if isinstance(value, np.ndarray) else value


def head_of_part(rows: Array, cache: BlockCache, feature_map: Any, where: slice, size: int) -> Array:
    """Return the first rows of the first block."""
    return cache.block(0, rows, where, feature_map)[:size]


def added(*sums: Any) -> Any:
    """Return the sum of sums in the order given."""
    return ordered_sum(iter(sums))


def total_of(cluster: Cluster, sums: Sequence[Any]) -> Any:
    """Return a future of the sum of these futures, added on workers in their order, a few at a time."""
    total = sums[0]
    for i in range(1, len(sums), FAN_IN):
        total = cluster.submit(added, total, *sums[i : i + FAN_IN])
    return total


class DaskParts(FeatureRows):
    """The features of rows that lie on workers.

    Parameters
    ----------
    cluster : where they are
    rows : futures of the raw rows of each part
    runs : slices of the blocks of each part of each run, as :func:`modalhash.core.blocks.block_groups` has them
    take : returns raw rows by their numbers
    feature_map : a map whose ``_compute`` makes the features; sent anew when its mean has been learned
    width, dtype : of the features
    caches : futures of a cache for each part
    """

    def __init__(
        self,
        cluster: Cluster,
        rows: Sequence[Any],
        runs: Sequence[Sequence[Sequence[slice]]],
        take: Callable[[Array], Array],
        feature_map: Any,
        *,
        width: int,
        dtype: np.dtype[Any],
        caches: Sequence[Any],
    ) -> None:
        groups = [group for run in runs for group in run]
        self.n, self.width, self.dtype = groups[-1][-1].stop, width, dtype
        self._cluster, self._rows, self._caches = cluster, rows, caches
        self._extents = [slice(group[0].start, group[-1].stop) for group in groups]
        self._slices = [
            [slice(block.start - group[0].start, block.stop - group[0].start) for block in group] for group in groups
        ]
        self._run_ends = np.cumsum([len(run) for run in runs])
        self._take, self._map = take, feature_map
        self._sent: Any = None
        self._cut: dict[int, tuple[Array, list[Any]]] = {}

    def total(self, work: Callable[..., Any], *, per_item: Sequence[Array] = (), shared: Sequence[Any] = ()) -> Any:
        """Return the sum of the work's results over all blocks; see :meth:`FeatureRows.total`."""
        sums = self._submit(sum_of_part, work, per_item, shared)
        return added(
            self._cluster.result(total_of(self._cluster, sums))
        )  # a copy: what comes over the net is read-only

    def run_totals(
        self, work: Callable[..., Any], *, per_item: Sequence[Array] = (), shared: Sequence[Any] = ()
    ) -> list[Any]:
        """Return the sum of the work's results over the blocks of each run; see :meth:`FeatureRows.run_totals`."""
        sums = self._submit(sum_of_part, work, per_item, shared)
        starts = [0, *self._run_ends[:-1]]
        totals = [total_of(self._cluster, sums[a:b]) for a, b in zip(starts, self._run_ends, strict=True)]
        del sums  # nothing but the totals is kept
        return [added(total) for total in self._cluster.results(totals)]

    def map(self, work: Callable[..., Array], *, per_item: Sequence[Array] = (), shared: Sequence[Any] = ()) -> Array:
        """Return the rows that the work makes of every block; see :meth:`FeatureRows.map`."""
        return np.concatenate(self._cluster.results(self._submit(rows_of_part, work, per_item, shared)))

    def head(self, size: int) -> Array:
        """Return up to ``size`` of the first rows: no more than the first block has."""
        first = self._rows[0], self._caches[0], self._feature_map(), self._slices[0][0], size
        return np.asarray(own(self._cluster.result(self._cluster.submit(head_of_part, *first))))

    def take(self, rows: Array) -> Array:
        """Return the features of a few rows, in the order given; they are made here."""
        return np.asarray(self._map._compute(self._take(rows), slice(None)))

    def subtract(self, row: Array) -> None:
        """Have the caches subtract the mean that the map has from now on."""
        self._sent = None

    def _feature_map(self) -> Any:
        if self._sent is None:
            self._sent = self._cluster.share(self._map)
        return self._sent

    def _submit(
        self, function: Callable[..., Any], work: Callable[..., Any], per_item: Sequence[Array], shared: Sequence[Any]
    ) -> list[Any]:
        """Futures of the function's value for every part."""
        feature_map, common = self._feature_map(), [self._cluster.share(value) for value in shared]
        cut = [self._cut_to_parts(values) for values in per_item]
        return [
            self._cluster.submit(
                function, work, slices, rows, cache, feature_map, [values[i] for values in cut], common
            )
            for i, (slices, rows, cache) in enumerate(zip(self._slices, self._rows, self._caches, strict=True))
        ]

    def _cut_to_parts(self, values: Array) -> list[Any]:
        """Futures of the values of each part's items; the same array is sent once."""
        if id(values) not in self._cut:
            self._cut[id(values)] = values, [self._cluster.share(values[extent]) for extent in self._extents]
        return self._cut[id(values)][1]
