"""Dask arrays as features and labels of a fit, and as input of a fitted model.

Dask arrays are told by their protocol (``__dask_graph__``): nothing of Dask is imported for who has none. A fit reads
the chunks of an array three times: to check them, to hash their rows, and to place the rows on workers, where they
then stay in groups of blocks (:mod:`modalhash.distributed.feature_rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np

from modalhash.core.blocks import PlacedRows, RemoteItems, block_groups
from modalhash.core.imports import require
from modalhash.core.typing import Array
from modalhash.core.validation import check_features, check_form, check_magnitude
from modalhash.distributed.cluster import Cluster
from modalhash.distributed.feature_rows import BlockCache, DaskParts, total_of

if TYPE_CHECKING:
    from modalhash.methods.base import CrossModalHasher

SAMPLE_SIZE = 64
"""Rows, spread over all, that are brought here for a look at what was learned."""
WORKER_SHARE = 0.5
"""Of a worker's memory limit, for raw rows and cached features. Dask begins to write to disk at .6."""


def is_dask(value: Any) -> bool:
    """Return whether a value is a Dask collection."""
    return hasattr(value, "__dask_graph__")


def any_dask(values: Any) -> bool:
    """Return whether a mapping holds a Dask collection."""
    return isinstance(values, Mapping) and any(is_dask(value) for value in values.values())


def rows_of(X: Mapping[str, Any]) -> dict[str, RemoteItems]:
    """Return checked features by modality, all of them dask arrays, for a fit on the current client's workers."""
    if others := [name for name, values in X.items() if not is_dask(values)]:
        given = ", ".join(repr(name) for name in others)
        raise TypeError(
            f"X has dask arrays, but {given} is none; pass all modalities as dask arrays, e.g. "
            f"dask.array.from_array(X[{others[0]!r}], chunks=(10_000, -1)), or none"
        )
    arrays = {name: _checked_array(values, name) for name, values in X.items()}
    cluster = Cluster()
    return {name: DaskItems.of(cluster, array, name) for name, array in arrays.items()}


def in_memory(Y: Any) -> Any:
    """Return labels by modality with dask arrays as arrays of this process; anything else as it is."""
    if not any_dask(Y):
        return Y
    cluster = Cluster()
    futures = {
        name: cluster.client.compute(_known(values, name, "labels")) for name, values in Y.items() if is_dask(values)
    }
    return {name: cluster.result(futures[name]) if name in futures else values for name, values in Y.items()}


def lazily(model: CrossModalHasher, X: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Return the dask arrays that a method of a fitted model, ``"transform"`` say, would make of dask arrays."""
    delayed = require("dask", extra="dask", why="codes of dask arrays").delayed
    light = copy(model)
    del light.codes_  # of no use for new items, and large
    shared = delayed(light, traverse=False)
    found = {}
    for name, values in X.items():
        rows = partial(_lazy_rows, model=shared, like=light) if is_dask(values) else partial(model_rows, model=light)
        found[name] = rows(values, modality=name, method=method)
    return found


def model_rows(values: Array, *, model: CrossModalHasher, modality: str, method: str) -> Array:
    """Return what a model's method makes of the features of one modality; a chunk of an array may have no rows."""
    if not len(values):
        row = np.zeros((1, values.shape[1]), dtype=values.dtype)
        return model_rows(row, model=model, modality=modality, method=method)[:0]
    return np.asarray(getattr(model, method)({modality: values})[modality])


def _lazy_rows(values: Any, *, model: Any, like: CrossModalHasher, modality: str, method: str) -> Any:
    """The same of a dask array, for a delayed model; ``like`` is the model itself."""
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


def _known(values: Any, name: str, what: str) -> Any:
    """The array, unless it is not known how many rows its chunks have."""
    if not (hasattr(values, "chunks") and hasattr(values, "ndim")):
        raise TypeError(f"{name!r}: {what} are a {type(values).__name__}; expected a dask array, e.g. .to_dask_array()")
    if np.isnan(values.shape).any():
        raise ValueError(
            f"{name!r}: the chunks of the dask array of {what} have unknown sizes, shape {values.shape}. Let Dask "
            "count them first: X.compute_chunk_sizes()"
        )
    return values


def _checked_array(values: Any, name: str) -> Any:
    """Two-dimensional, of known chunks and real numbers, and with whole rows in every chunk."""
    array = _known(values, name, "features")
    if not isinstance(array._meta, np.ndarray):
        raise TypeError(
            f"{name!r}: the chunks of the dask array are {type(array._meta).__name__}; expected numpy arrays"
        )
    check_form(array.shape, array.dtype, name)
    array = array.rechunk({1: -1})
    return array if array.dtype == np.float32 else array.astype(np.float64)


class DaskItems(RemoteItems):
    """The rows of a dask array; each pass reads its chunks anew."""

    def __init__(
        self, cluster: Cluster, array: Any, sample: tuple[Array, Array], largest: float, order: Array | None = None
    ) -> None:
        self.shape, self.dtype = array.shape, np.dtype(array.dtype)
        self._cluster, self._array, self._order = cluster, array, order
        self.sample, self.largest = sample, largest

    @classmethod
    def of(cls, cluster: Cluster, array: Any, name: str) -> DaskItems:
        """Check all rows where they are."""
        n = array.shape[0]
        looked_at = np.unique(np.linspace(0, n - 1, min(n, SAMPLE_SIZE)).astype(int))
        delayed = require("dask", extra="dask", why="a fit on dask arrays").delayed(checked_chunk)
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
        """Return a dask array of these rows, in chunks like those of the features."""
        from_array = require("dask.array", extra="dask", why="codes as dask arrays").from_array
        return from_array(values, chunks=(self._array.chunks[0], -1))

    def total(self, work: Callable[..., Any], *, shared: Sequence[Any] = ()) -> Any:
        """Return the sum of the work's results over all chunks."""
        return self._cluster.result(total_of(self._cluster, self._apply(work, shared)))

    def map(self, work: Callable[..., Array], *, shared: Sequence[Any] = ()) -> Array:
        """Return what the work makes of all chunks, as one array."""
        return np.concatenate(self._cluster.results(self._apply(work, shared)))

    def __getitem__(self, rows: Array) -> Array:
        """Return a few rows, in the order given."""
        pieces, places = self._pieces([rows])
        return assembled(self._cluster.results(self._cluster.client.compute(pieces)), places[0])

    def ordered(self, order: Array) -> DaskItems:
        """Return the rows in another order."""
        return DaskItems(self._cluster, self._array, self.sample, self.largest, order)

    def placed(self, *, block_rows: int, run_rows: int | None = None) -> DaskGroups:
        """Return the rows in groups of blocks, shared out among the workers of the cluster and kept there."""
        runs = block_groups(self.shape[0], block_rows, run_rows)
        numbers = np.arange(self.shape[0]) if self._order is None else self._order
        extents = [slice(group[0].start, group[-1].stop) for run in runs for group in run]
        pieces, places = self._pieces([numbers[extent] for extent in extents])
        futures = iter(self._cluster.client.compute(pieces))
        workers = self._cluster.workers()
        turns = [worker.address for worker in workers for _ in range(worker.threads)]
        groups = [
            self._cluster.submit(assembled, [next(futures) for _ in place], place, worker=turns[i % len(turns)])
            for i, place in enumerate(places)
        ]
        return DaskGroups(self._cluster, groups, runs, self.shape, self.dtype)

    def _apply(self, work: Callable[..., Any], shared: Sequence[Any]) -> list[Any]:
        delayed = require("dask", extra="dask", why="a fit on dask arrays").delayed(work)
        common = [self._cluster.share(value) for value in shared]
        chunks = [chunk for chunk, n in zip(self._array.to_delayed()[:, 0], self._array.chunks[0], strict=True) if n]
        return list(self._cluster.client.compute([delayed(chunk, *common) for chunk in chunks]))

    def _pieces(self, groups: Sequence[Array]) -> tuple[list[Any], list[list[Array | slice]]]:
        """Tasks that cut the rows of each group from chunks, and for every group the places of its pieces in it."""
        delayed = require("dask", extra="dask", why="a fit on dask arrays").delayed(rows_taken)
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


class DaskGroups(PlacedRows):
    """Rows in groups of blocks that stay on workers: a future of each group."""

    def __init__(
        self,
        cluster: Cluster,
        groups: list[Any],
        runs: list[list[list[slice]]],
        shape: tuple[int, int],
        dtype: np.dtype[Any],
    ) -> None:
        self.shape, self.dtype = shape, dtype
        self._cluster, self._groups, self._runs = cluster, groups, runs
        self._ends = np.array([group[-1].stop for run in runs for group in run])

    def total(self, work: Callable[..., Any], *, shared: Sequence[Any] = ()) -> Any:
        """Return the sum of the work's results over all groups."""
        return self._cluster.result(total_of(self._cluster, self._apply(work, shared)))

    def map(self, work: Callable[..., Array], *, shared: Sequence[Any] = ()) -> Array:
        """Return what the work makes of all groups, as one array."""
        return np.concatenate(self._cluster.results(self._apply(work, shared)))

    def __getitem__(self, rows: Array) -> Array:
        """Return a few rows, in the order given."""
        owner = np.searchsorted(self._ends, rows, side="right")
        starts = np.concatenate([[0], self._ends[:-1]])
        places = [np.flatnonzero(owner == group) for group in np.unique(owner)]
        pieces = [
            self._cluster.submit(rows_taken, self._groups[group], rows[place] - starts[group])
            for group, place in zip(np.unique(owner), places, strict=True)
        ]
        return assembled(self._cluster.results(pieces), places)

    def features(self, feature_map: Any, *, width: int, dtype: np.dtype[Any], memory_limit: int | None) -> DaskParts:
        """Return the features that the map makes, with a cache beside every group."""
        workers, owner = self._cluster.workers(), uuid4().hex
        raw = self.shape[0] * self.shape[1] * self.dtype.itemsize // len(workers)
        limits = [worker.memory_limit for worker in workers if worker.memory_limit]
        limit = max(0, int(WORKER_SHARE * min(limits)) - raw) if limits else None
        groups = [group for run in self._runs for group in run]
        block_bytes = max(rows.stop - rows.start for rows in groups[0]) * width * np.dtype(dtype).itemsize
        caches = [
            self._cluster.submit(cache_beside, rows, len(group), block_bytes, owner, memory_limit, limit)
            for rows, group in zip(self._groups, groups, strict=True)
        ]
        return DaskParts(
            self._cluster,
            self._groups,
            self._runs,
            self.__getitem__,
            feature_map,
            width=width,
            dtype=dtype,
            caches=caches,
        )

    def _apply(self, work: Callable[..., Any], shared: Sequence[Any]) -> list[Any]:
        common = [self._cluster.share(value) for value in shared]
        return [self._cluster.submit(work, group, *common) for group in self._groups]


def checked_chunk(chunk: Array, name: str, start: int, looked_at: Array) -> tuple[float, bool, Array, Array]:
    """Return a chunk's largest magnitude, whether its rows differ, its first row and those looked at."""
    values = check_features({name: chunk}, first_row=start)[name]
    largest = float(max(values.max(), -values.min()))
    return largest, bool(np.any(values != values[0])), values[0].copy(), values[looked_at]


def rows_taken(chunk: Array, rows: Array | slice) -> Array:
    """Return these rows of a chunk, as an array of their own."""
    return np.array(chunk[rows])


def assembled(pieces: Sequence[Array], places: Sequence[Array | slice]) -> Array:
    """Return the pieces as one array, each at its places."""
    n = sum(len(piece) for piece in pieces)
    rows = np.empty((n, pieces[0].shape[1]), dtype=pieces[0].dtype)
    for piece, place in zip(pieces, places, strict=True):
        rows[place] = piece
    return rows


def cache_beside(rows: Array, *arguments: Any) -> BlockCache:
    """Return an empty cache on the worker that has the rows."""
    return BlockCache(*arguments)


def _compact(numbers: Array) -> Array | slice:
    """Consecutive numbers as a slice."""
    if len(numbers) == int(numbers[-1]) - int(numbers[0]) + 1 and np.all(np.diff(numbers) == 1):
        return slice(int(numbers[0]), int(numbers[-1]) + 1)
    return numbers
