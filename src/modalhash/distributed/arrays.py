"""Dask arrays as features and labels of a fit, and as input of a fitted model.

Dask arrays are recognised by their protocol (``__dask_graph__``), so Dask is imported only if one is passed. A fit
reads the chunks of an array three times: to check them, to hash their rows, and to place the rows on workers.

There the rows stay in *parts*: groups of blocks (:func:`modalhash.core.blocks.block_groups`), the same that a fit in
one process adds up first. Each part has a :class:`BlockCache` with the feature blocks that fit in the worker's memory;
the other blocks are recomputed in every pass. A pass is one task per part. The sums of parts are added on workers in
the order of the parts, so the result equals that of a single process, bit for bit if both use the same BLAS.

The input of a task is the result of another task, so that Dask can recompute it when a worker is lost. A cache changes
after its task has ended, and a task may run twice. Neither matters because the content of a cache depends only on the
rows and the feature map.

Dask recomputes the results of a lost worker from the tasks that made them. Values that all workers need are therefore
submitted as tasks (:meth:`Cluster.share`), never scattered.
"""

from __future__ import annotations

import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np

from modalhash.core.blocks import FeatureRows, PlacedRows, RemoteItems, RemoteRows, block_groups, ordered_sum
from modalhash.core.imports import require
from modalhash.core.typing import Array
from modalhash.core.validation import check_features, check_form, check_magnitude

if TYPE_CHECKING:
    from modalhash.methods.base import CrossModalHasher

from collections.abc import Iterable
from concurrent.futures import CancelledError
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar

T = TypeVar("T")

ASK_EVERY = 2.0
"""Seconds between checks for workers while a result is pending."""
PATIENCE = 30.0
"""Seconds without workers after which a fit fails. A nanny restarts a worker in a few seconds."""


class ClusterError(RuntimeError):
    """A fit cannot continue without a client, workers or a scheduler. The message says what to do."""


@dataclass(frozen=True)
class Worker:
    """A worker process; ``memory_limit`` is in bytes, 0 for none."""

    address: str
    threads: int
    memory_limit: int


class Cluster:
    """The cluster of the current Dask client."""

    def __init__(self) -> None:
        distributed = require("distributed", extra="dask", why="a fit on dask arrays")
        try:
            self.client: Any = distributed.default_client()
        except ValueError:
            raise ClusterError(
                "dask arrays need a Dask client. Make one before the fit: "
                "client = distributed.Client('tcp://scheduler:8786'), or distributed.Client() for workers on this "
                "machine. To fit in this process instead, pass arrays: X['image'].compute()"
            ) from None
        if self.client.asynchronous:
            raise ClusterError(
                "the current Dask client is asynchronous; a fit needs a synchronous distributed.Client(...)"
            )

    def workers(self) -> list[Worker]:
        """Return the current workers by address; wait up to :data:`PATIENCE` seconds for the first one."""
        begin = monotonic()
        while True:
            if found := self._ask(self.client.scheduler_info, n_workers=-1)["workers"]:
                return [Worker(name, found[name]["nthreads"], found[name]["memory_limit"]) for name in sorted(found)]
            try:
                self.client.wait_for_workers(1, timeout=ASK_EVERY)
            except TimeoutError:
                if monotonic() - begin > PATIENCE:
                    raise self._no_workers() from None
            except (OSError, CancelledError) as error:
                raise self._lost() from error

    def share(self, value: Any) -> Any:
        """Return a future of a value for tasks on any worker; it survives the loss of a worker."""
        return self.submit(identity, value)

    def submit(self, function: Callable[..., Any], *arguments: Any, worker: str | None = None) -> Any:
        """Return a future of the function's value. ``worker`` is the preferred address."""
        where = {} if worker is None else {"workers": [worker], "allow_other_workers": True}
        return self.client.submit(function, *arguments, pure=False, **where)

    def result(self, future: Any) -> Any:
        """Return a future's value; raise :class:`ClusterError` if no worker is left to compute it."""
        begin, timeout = None, ASK_EVERY
        while True:
            try:
                return future.result(timeout=timeout)
            except TimeoutError:
                if future.status == "finished":
                    timeout *= 2  # computed, and being transferred
            except CancelledError as error:
                raise self._lost() from error
            if self._ask(self.client.nthreads):
                begin = None
            else:
                begin = begin or monotonic()
                if monotonic() - begin > PATIENCE:
                    raise self._no_workers()

    def results(self, futures: Iterable[Any]) -> list[Any]:
        return [self.result(future) for future in futures]

    def _ask(self, question: Callable[..., Any], **options: Any) -> Any:
        try:
            return question(**options)
        except (OSError, CancelledError) as error:  # a TimeoutError is an OSError
            raise self._lost() from error

    def _lost(self) -> ClusterError:
        return ClusterError(
            "the connection to the Dask scheduler was lost during the fit. Start a scheduler and workers, make a new "
            "client, and fit again"
        )

    def _no_workers(self) -> ClusterError:
        return ClusterError(
            f"the Dask scheduler {self.client.scheduler.address} has had no workers for {PATIENCE:.0f} s: all of them "
            "died or were stopped. Look into their logs (too little memory?), start workers, and fit again"
        )


def identity(value: T) -> T:
    return value


SAMPLE_SIZE = 64
"""Evenly spaced rows that are transferred to check what was learned."""
WORKER_SHARE = 0.5
"""Fraction of a worker's memory limit for raw rows and cached features. Dask spills to disk at 0.6."""
Runs = Sequence[Sequence[Sequence[slice]]]
"""Slices of the blocks of each part of each run, see :func:`modalhash.core.blocks.block_groups`."""
FAN_IN = 8
"""Sums that one task adds to the previous total."""


def is_dask(value: Any) -> bool:
    return hasattr(value, "__dask_graph__")


def any_dask(values: Any) -> bool:
    return isinstance(values, Mapping) and any(is_dask(value) for value in values.values())


def rows_of(X: Mapping[str, Any]) -> dict[str, RemoteItems]:
    """Return checked features by modality, all dask arrays, for a fit on the current client's workers."""
    if others := [name for name, values in X.items() if not is_dask(values)]:
        given = ", ".join(repr(name) for name in others)
        raise TypeError(
            f"X has dask arrays, but {given} is not one; pass all modalities as dask arrays, e.g. "
            f"dask.array.from_array(X[{others[0]!r}], chunks=(10_000, -1)), or none"
        )
    arrays = {name: _checked_array(values, name) for name, values in X.items()}
    cluster = Cluster()
    return {name: DaskItems.of(cluster, array, name) for name, array in arrays.items()}


def in_memory(Y: Any) -> Any:
    """Return labels by modality with dask arrays loaded into this process; anything else unchanged."""
    if not any_dask(Y):
        return Y
    cluster = Cluster()
    futures = {
        name: cluster.client.compute(_known(values, name, "labels")) for name, values in Y.items() if is_dask(values)
    }
    return {name: cluster.result(futures[name]) if name in futures else values for name, values in Y.items()}


def lazily(model: CrossModalHasher, X: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Return the result of a fitted model's method, e.g. ``"transform"``, on dask arrays as dask arrays."""
    delayed = require("dask", extra="dask", why="codes of dask arrays").delayed
    light = copy(model)
    del light.codes_  # large, and not needed for new items
    shared = delayed(light, traverse=False)
    found = {}
    for name, values in X.items():
        rows = partial(_lazy_rows, model=shared, like=light) if is_dask(values) else partial(model_rows, model=light)
        found[name] = rows(values, modality=name, method=method)
    return found


def model_rows(values: Array, *, model: CrossModalHasher, modality: str, method: str) -> Array:
    """Return the result of a model's method on one modality; a chunk may have no rows."""
    if not len(values):
        row = np.zeros((1, values.shape[1]), dtype=values.dtype)
        return model_rows(row, model=model, modality=modality, method=method)[:0]
    return np.asarray(getattr(model, method)({modality: values})[modality])


def _lazy_rows(values: Any, *, model: Any, like: CrossModalHasher, modality: str, method: str) -> Any:
    """Like :func:`model_rows` for a dask array and a delayed model; ``like`` is the model itself."""
    if values.ndim != 2 or np.isnan(values.shape[1]):
        raise ValueError(f"{modality!r}: got a dask array of shape {values.shape}; expected (items, features)")
    example = model_rows(np.empty((0, values.shape[1]), values.dtype), model=like, modality=modality, method=method)
    return values.rechunk({1: -1}).map_blocks(
        model_rows,
        model=model,
        modality=modality,
        method=method,
        dtype=example.dtype,
        chunks=(values.chunks[0], (example.shape[1],)),
        meta=example,
    )


def _delayed(function: Callable[..., Any]) -> Callable[..., Any]:
    made: Callable[..., Any] = require("dask", extra="dask", why="a fit on dask arrays").delayed(function)
    return made


def _known(values: Any, name: str, what: str) -> Any:
    """Return the array; raise if the sizes of its chunks are unknown."""
    if not (hasattr(values, "chunks") and hasattr(values, "ndim")):
        raise TypeError(f"{name!r}: {what} are a {type(values).__name__}; expected a dask array, e.g. .to_dask_array()")
    if np.isnan(values.shape).any():
        raise ValueError(
            f"{name!r}: the chunks of the dask array of {what} have unknown sizes, shape {values.shape}. Let Dask "
            "count them first: X.compute_chunk_sizes()"
        )
    return values


def _checked_array(values: Any, name: str) -> Any:
    """Return a 2-D array of real numbers with known chunks of complete rows."""
    array = _known(values, name, "features")
    if not isinstance(array._meta, np.ndarray):
        kind = type(array._meta).__name__
        raise TypeError(f"{name!r}: the chunks of the dask array are {kind}; expected numpy arrays")
    check_form(array.shape, array.dtype, name)
    array = array.rechunk({1: -1})
    return array if array.dtype == np.float32 else array.astype(np.float64)


class _Tasks(RemoteRows):
    """Rows on workers, with a task for each chunk or group of them."""

    cluster: Cluster

    @abstractmethod
    def _apply(self, work: Callable[..., Any], shared: Sequence[Any]) -> list[Any]:
        """Return futures of the work's results, in the order of the rows."""

    def total(self, work: Callable[..., Any], *, shared: Sequence[Any] = ()) -> Any:
        return self.cluster.result(total_of(self.cluster, self._apply(work, shared)))

    def map(self, work: Callable[..., Array], *, shared: Sequence[Any] = ()) -> Array:
        return np.concatenate(self.cluster.results(self._apply(work, shared)))


class DaskItems(_Tasks, RemoteItems):
    """The rows of a dask array; each pass reads its chunks again."""

    def __init__(
        self, cluster: Cluster, array: Any, sample: tuple[Array, Array], largest: float, order: Array | None = None
    ) -> None:
        self.shape, self.dtype = array.shape, np.dtype(array.dtype)
        self.cluster, self._array, self._order = cluster, array, order
        self.sample, self.largest = sample, largest

    @classmethod
    def of(cls, cluster: Cluster, array: Any, name: str) -> DaskItems:
        n = array.shape[0]
        looked_at = np.unique(np.linspace(0, n - 1, min(n, SAMPLE_SIZE)).astype(int))
        delayed = _delayed(checked_chunk)
        starts = np.cumsum([0, *array.chunks[0]])
        tasks = [
            delayed(chunk, name, start, looked_at[(looked_at >= start) & (looked_at < stop)] - start)
            for chunk, start, stop in zip(array.to_delayed()[:, 0], starts, starts[1:], strict=False)
            if stop > start
        ]
        largest, varied, first, sample = zip(*cluster.results(cluster.client.compute(tasks)), strict=True)
        check_magnitude(max(largest), name)
        if not any(varied) and all(np.array_equal(row, first[0]) for row in first):
            raise ValueError(f"{name!r}: all {n} items are equal; there is nothing to learn from")
        return cls(cluster, array, (looked_at, np.concatenate(sample)), max(largest))

    def beside(self, values: Array) -> Any:
        from_array = require("dask.array", extra="dask", why="codes as dask arrays").from_array
        return from_array(values, chunks=(self._array.chunks[0], -1))

    def __getitem__(self, rows: Array) -> Array:
        pieces, places = self._pieces([rows])
        return assembled(self.cluster.results(self.cluster.client.compute(pieces)), places[0])

    def ordered(self, order: Array) -> DaskItems:
        return DaskItems(self.cluster, self._array, self.sample, self.largest, order)

    def placed(self, *, block_rows: int, run_rows: int | None = None) -> DaskGroups:
        runs = block_groups(self.shape[0], block_rows, run_rows)
        numbers = np.arange(self.shape[0]) if self._order is None else self._order
        extents = [slice(group[0].start, group[-1].stop) for run in runs for group in run]
        pieces, places = self._pieces([numbers[extent] for extent in extents])
        futures = iter(self.cluster.client.compute(pieces))
        workers = self.cluster.workers()
        turns = [worker.address for worker in workers for _ in range(worker.threads)]
        groups = [
            self.cluster.submit(assembled, [next(futures) for _ in place], place, worker=turns[i % len(turns)])
            for i, place in enumerate(places)
        ]
        return DaskGroups(self.cluster, groups, runs, self.shape, self.dtype)

    def _apply(self, work: Callable[..., Any], shared: Sequence[Any]) -> list[Any]:
        delayed = _delayed(work)
        common = [self.cluster.share(value) for value in shared]
        chunks = [chunk for chunk, n in zip(self._array.to_delayed()[:, 0], self._array.chunks[0], strict=True) if n]
        return list(self.cluster.client.compute([delayed(chunk, *common) for chunk in chunks]))

    def _pieces(self, groups: Sequence[Array]) -> tuple[list[Any], list[list[Array | slice]]]:
        """Return tasks that cut the rows of each group from chunks, and the positions of the pieces in each group."""
        delayed = _delayed(rows_taken)
        chunks, ends = self._array.to_delayed()[:, 0], np.cumsum(self._array.chunks[0])
        pieces: list[Any] = []
        places: list[list[Array | slice]] = []
        for numbers in groups:
            owner = np.searchsorted(ends, numbers, side="right")
            places.append([])
            for chunk in np.unique(owner):
                place = np.flatnonzero(owner == chunk)
                start = ends[chunk] - self._array.chunks[0][chunk]
                pieces.append(delayed(chunks[chunk], _compact(numbers[place] - start)))
                places[-1].append(_compact(place))
        return pieces, places


class DaskGroups(_Tasks, PlacedRows):
    """Rows in groups of blocks that stay on workers, a future per group."""

    def __init__(
        self, cluster: Cluster, groups: list[Any], runs: Runs, shape: tuple[int, int], dtype: np.dtype[Any]
    ) -> None:
        self.shape, self.dtype = shape, dtype
        self.cluster, self.groups, self.runs = cluster, groups, runs
        self._ends = np.array([group[-1].stop for run in runs for group in run])

    def __getitem__(self, rows: Array) -> Array:
        owner = np.searchsorted(self._ends, rows, side="right")
        starts = np.concatenate([[0], self._ends[:-1]])
        places = [np.flatnonzero(owner == group) for group in np.unique(owner)]
        pieces = [
            self.cluster.submit(rows_taken, self.groups[group], rows[place] - starts[group])
            for group, place in zip(np.unique(owner), places, strict=True)
        ]
        return assembled(self.cluster.results(pieces), places)

    def features(self, feature_map: Any, *, width: int, dtype: np.dtype[Any], memory_limit: int | None) -> DaskParts:
        workers, owner = self.cluster.workers(), uuid4().hex
        raw = self.shape[0] * self.shape[1] * self.dtype.itemsize // len(workers)
        limits = [worker.memory_limit for worker in workers if worker.memory_limit]
        limit = max(0, int(WORKER_SHARE * min(limits)) - raw) if limits else None
        groups = [group for run in self.runs for group in run]
        block_bytes = max(rows.stop - rows.start for rows in groups[0]) * width * np.dtype(dtype).itemsize
        caches = [
            self.cluster.submit(cache_beside, rows, len(group), block_bytes, owner, memory_limit, limit)
            for rows, group in zip(self.groups, groups, strict=True)
        ]
        return DaskParts(self, feature_map, caches, width=width, dtype=dtype)

    def _apply(self, work: Callable[..., Any], shared: Sequence[Any]) -> list[Any]:
        common = [self.cluster.share(value) for value in shared]
        return [self.cluster.submit(work, group, *common) for group in self.groups]


def checked_chunk(chunk: Array, name: str, start: int, looked_at: Array) -> tuple[float, bool, Array, Array]:
    """Return a chunk's largest magnitude, whether its rows differ, its first row and its sampled rows."""
    values = check_features({name: chunk}, first_row=start)[name]
    largest = float(max(values.max(), -values.min()))
    return largest, bool(np.any(values != values[0])), values[0].copy(), values[looked_at]


def rows_taken(chunk: Array, rows: Array | slice) -> Array:
    return np.array(chunk[rows])


def assembled(pieces: Sequence[Array], places: Sequence[Array | slice]) -> Array:
    n = sum(len(piece) for piece in pieces)
    rows = np.empty((n, pieces[0].shape[1]), dtype=pieces[0].dtype)
    for piece, place in zip(pieces, places, strict=True):
        rows[place] = piece
    return rows


def cache_beside(rows: Array, *arguments: Any) -> BlockCache:  # runs on the worker that has the rows
    return BlockCache(*arguments)


def _compact(numbers: Array) -> Array | slice:
    if len(numbers) == int(numbers[-1]) - int(numbers[0]) + 1 and np.all(np.diff(numbers) == 1):
        return slice(int(numbers[0]), int(numbers[-1]) + 1)
    return numbers


class _Ledger:
    """Bytes reserved by the caches of this process, by fit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: dict[str, int] = {}

    def take(self, owner: str, wanted: int, unit: int, own_limit: int | None, limit: int | None) -> int:
        """Reserve up to ``wanted`` units; return how many fit the limits of this fit and of the process."""
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
    """Feature blocks of one part in a worker's memory.

    Parameters
    ----------
    n_blocks, block_bytes : of the part
    owner : the fit that it belongs to
    own_limit, limit : bytes for all caches in one process of this fit, and of all fits; None for no limit
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
        """Pickle without blocks, which are recomputed instead of being sent or written to disk."""
        return BlockCache, self._arguments

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + self._size  # as reserved, because Dask asks before the cache is filled

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


def part_results(
    work: Callable[..., Any],
    slices: Sequence[slice],
    rows: Array,
    cache: BlockCache,
    feature_map: Any,
    per_item: Sequence[Array],
    shared: Sequence[Any],
) -> Iterator[Any]:
    """Yield the work's result for each block of a part."""
    shared = [own(value) for value in shared]
    for i, where in enumerate(slices):
        yield work(cache.block(i, rows, where, feature_map), *(values[where] for values in per_item), *shared)


def sum_of_part(*arguments: Any) -> Any:
    return ordered_sum(part_results(*arguments))


def rows_of_part(*arguments: Any) -> Array:
    return np.concatenate(list(part_results(*arguments)))


def own(value: Any) -> Any:
    """Return a copy of an array, aligned as numpy allocates it.

    A received array has the alignment of its message, and the rounding of some BLAS products depends on it.
    """
    return np.array(value) if isinstance(value, np.ndarray) else value


def head_of_part(rows: Array, cache: BlockCache, feature_map: Any, where: slice, size: int) -> Array:
    return cache.block(0, rows, where, feature_map)[:size]


def added(*sums: Any) -> Any:
    return ordered_sum(iter(sums))


def total_of(cluster: Cluster, sums: Sequence[Any]) -> Any:
    """Return a future of the sum of futures, added on workers in order, :data:`FAN_IN` at a time."""
    total = sums[0]
    for i in range(1, len(sums), FAN_IN):
        total = cluster.submit(added, total, *sums[i : i + FAN_IN])
    return total


class DaskParts(FeatureRows):
    """Features of rows on workers, by a map whose ``_compute`` returns them; ``caches`` has a future for each part."""

    def __init__(
        self, rows: DaskGroups, feature_map: Any, caches: Sequence[Any], *, width: int, dtype: np.dtype[Any]
    ) -> None:
        groups = [group for run in rows.runs for group in run]
        self.n, self.width, self.dtype = rows.shape[0], width, dtype
        self._cluster, self._rows, self._caches = rows.cluster, rows.groups, caches
        self._extents = [slice(group[0].start, group[-1].stop) for group in groups]
        self._slices = [
            [slice(block.start - group[0].start, block.stop - group[0].start) for block in group] for group in groups
        ]
        self._run_ends = np.cumsum([len(run) for run in rows.runs])
        self._take, self._map = rows.__getitem__, feature_map
        self._sent: Any = None  # the map; sent again when its mean has been learned
        self._cut: dict[int, tuple[Array, list[Any]]] = {}

    def total(self, work: Callable[..., Any], *, per_item: Sequence[Array] = (), shared: Sequence[Any] = ()) -> Any:
        sums = self._submit(sum_of_part, work, per_item, shared)
        return added(self._cluster.result(total_of(self._cluster, sums)))  # a copy; received arrays are read-only

    def run_totals(
        self, work: Callable[..., Any], *, per_item: Sequence[Array] = (), shared: Sequence[Any] = ()
    ) -> list[Any]:
        sums = self._submit(sum_of_part, work, per_item, shared)
        starts = [0, *self._run_ends[:-1]]
        totals = [total_of(self._cluster, sums[a:b]) for a, b in zip(starts, self._run_ends, strict=True)]
        del sums  # so that the workers keep only the totals
        return [added(total) for total in self._cluster.results(totals)]

    def map(self, work: Callable[..., Array], *, per_item: Sequence[Array] = (), shared: Sequence[Any] = ()) -> Array:
        return np.concatenate(self._cluster.results(self._submit(rows_of_part, work, per_item, shared)))

    def head(self, size: int) -> Array:
        first = self._rows[0], self._caches[0], self._feature_map(), self._slices[0][0], size
        return np.asarray(own(self._cluster.result(self._cluster.submit(head_of_part, *first))))

    def take(self, rows: Array) -> Array:
        return np.asarray(self._map._compute(self._take(rows), slice(None)))

    def subtract(self, row: Array) -> None:
        """Send the map again, so that the caches subtract its new mean."""
        self._sent = None

    def _feature_map(self) -> Any:
        if self._sent is None:
            self._sent = self._cluster.share(self._map)
        return self._sent

    def _submit(
        self, function: Callable[..., Any], work: Callable[..., Any], per_item: Sequence[Array], shared: Sequence[Any]
    ) -> list[Any]:
        feature_map, common = self._feature_map(), [self._cluster.share(value) for value in shared]
        cut = [self._cut_to_parts(values) for values in per_item]
        return [
            self._cluster.submit(
                function, work, slices, rows, cache, feature_map, [values[i] for values in cut], common
            )
            for i, (slices, rows, cache) in enumerate(zip(self._slices, self._rows, self._caches, strict=True))
        ]

    def _cut_to_parts(self, values: Array) -> list[Any]:
        """Return futures of the values of each part's items; the same array is sent once."""
        if id(values) not in self._cut:
            self._cut[id(values)] = values, [self._cluster.share(values[extent]) for extent in self._extents]
        return self._cut[id(values)][1]
