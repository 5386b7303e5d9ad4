"""Many items through an encoder: in batches, in parallel, and past the ones that cannot be read.

Pictures on two cores: two threads encode 1.3 times as many as one, two processes 1.9 times; but processes take about a
second to start. So many items go to processes and few to threads.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from scipy import sparse

from modalhash._typing import Array, Matrix
from modalhash.blocks import row_slices
from modalhash.encoders.protocol import Encoder, ItemError
from modalhash.progress import Callback, Reporter
from modalhash.validation import check_int

SHOWN = 80
PROCESSES_FROM = 2000
"""Items from which on starting processes pays."""
IDLE_SECONDS = 10
"""After which processes that have nothing more to do end."""


@dataclass(frozen=True)
class Failure:
    """An item that could not be encoded."""

    row: int
    """Its place among the items."""
    where: str
    """Its path, its line in a manifest, or the item itself, shortened."""
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


class Encoded(NamedTuple):
    """What came out: ``features[i]`` belongs to ``items[ok_rows[i]]``."""

    features: Matrix
    """float32 ``(len(ok_rows), dim)``, dense or CSR."""
    ok_rows: Array
    """Rows of the items that were encoded, ascending."""
    failures: list[Failure]


def encode_items(
    encoder: Encoder,
    items: Sequence[Any] | Matrix,
    *,
    where: Sequence[str] | None = None,
    batch_size: int = 64,
    workers: int | None = None,
    progress: Callback | None = None,
    stage: str | None = None,
    strict: bool = False,
) -> Encoded:
    """Encode items; those that cannot be read are reported, not fatal.

    Parameters
    ----------
    encoder
        fitted where it learns anything
    items
        a sequence of raw items, or the rows of an array or CSR matrix
    where
        what to call each item in a report, e.g. ``"photos.csv, line 12"``; by default its path or its text
    batch_size
        items per call of the encoder
    workers
        by default one per core for encoders that gain by it (``encoder.parallel``), otherwise one. They are threads,
        or processes from 2,000 items on
    progress
        called with a :class:`modalhash.progress.Progress` after every batch
    stage
        how progress calls this work; ``"encode: NAME"`` by default
    strict
        raise :class:`modalhash.encoders.ItemError` at the first bad item, in the order of the items

    Only ``ValueError`` and ``OSError`` are taken as the fault of an item. Results do not depend on
    ``batch_size`` and ``workers``.
    """
    n = items.shape[0] if hasattr(items, "shape") else len(items)
    if where is not None and len(where) != n:
        raise ValueError(f"{n} items and {len(where)} entries in where; expected as many")
    check_int(batch_size, "batch_size", at_least=1)
    dim = encoder.dim  # an encoder that is not fitted says so here, and not once per item
    if workers is None:
        workers = _cores() if getattr(encoder, "parallel", False) else 1
    report = Reporter(progress)
    label = f"encode: {encoder.name}" if stage is None else stage
    found: list[Matrix] = []
    ok: list[int] = []
    failures: list[Failure] = []
    with closing(_batches(encoder, items, where, row_slices(n, batch_size), dim, workers, n)) as batches:
        for stop, features, good, bad in batches:
            if bad and strict:
                raise ItemError(bad[0].reason, bad[0].where)
            found.append(features)
            ok.extend(good)
            failures.extend(bad)
            report(label, stop, n)
    return Encoded(_stacked(found, dim), np.array(ok, dtype=np.int64), failures)


Done: TypeAlias = tuple[int, Matrix, list[int], list[Failure]]
"""Of a batch: the row after its last, features, rows that are good, failures."""


def _batches(
    encoder: Encoder,
    items: Any,
    where: Sequence[str] | None,
    slices: Iterator[slice],
    dim: int,
    workers: int,
    n: int,
) -> Generator[Done, None, None]:
    """Encoded batches in the order of the items."""
    stopped = False

    def tasks() -> Iterator[tuple[Any, ...]]:
        for rows in slices:
            if stopped:
                return
            yield encoder, items[rows], rows, dim, None if where is None else where[rows]

    if check_int(workers, "workers", at_least=1) == 1:
        yield from (_encode_batch(*task) for task in tasks())
        return
    from joblib import Parallel, delayed

    backend: dict[str, Any] = {"backend": "threading"}
    if n >= PROCESSES_FROM:
        backend = {"backend": "loky", "idle_worker_timeout": IDLE_SECONDS}
    results = Parallel(workers, return_as="generator", batch_size=1, **backend)(
        delayed(_encode_batch)(*task) for task in tasks()
    )
    try:
        for result in results:  # noqa: UP028 - "yield from" would close joblib's generator midway, and it warns
            yield result
    finally:
        stopped = True
        for _ in results:  # the few batches that are under way
            pass


def _encode_batch(encoder: Encoder, batch: Any, rows: slice, dim: int, where: Sequence[str] | None) -> Done:
    """The batch at once, or, if that fails, item by item to find the bad ones."""
    numbers = range(rows.start, rows.stop)
    try:
        return rows.stop, _checked(encoder, batch, dim), list(numbers), []
    except (ValueError, OSError):
        pass
    found, ok, failures = [], [], []
    for place, row in enumerate(numbers):
        item = batch[place : place + 1]
        try:
            found.append(_checked(encoder, item, dim))
            ok.append(row)
        except (ValueError, OSError) as error:
            name = _name(item, row) if where is None else str(where[place])
            failures.append(Failure(row, name, getattr(error, "reason", None) or str(error) or type(error).__name__))
    return rows.stop, _stacked(found, dim), ok, failures


def _checked(encoder: Encoder, batch: Any, dim: int) -> Matrix:
    n = batch.shape[0] if hasattr(batch, "shape") else len(batch)
    features = encoder.encode(batch)
    shape, dtype = getattr(features, "shape", None), getattr(features, "dtype", None)
    if shape != (n, dim) or dtype != np.float32:
        raise TypeError(f"encoder {encoder.name!r} returned {dtype} {shape}; expected float32 {(n, dim)}")
    return features


def _stacked(found: list[Matrix], dim: int) -> Matrix:
    found = [part for part in found if part.shape[0]] or found[:1]
    if not found:
        return np.empty((0, dim), dtype=np.float32)
    if any(sparse.issparse(part) for part in found):
        return sparse.csr_array(sparse.vstack(found, format="csr", dtype=np.float32))
    return np.concatenate(found)


def _name(item: Any, row: int) -> str:
    content = item[0] if not sparse.issparse(item) else None
    if isinstance(content, str | os.PathLike):
        text = os.fspath(content)
        if text.strip():
            return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
    return f"item {row}"


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
