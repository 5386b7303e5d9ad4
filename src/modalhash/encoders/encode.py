"""Encode many items in batches and in parallel, and report those that cannot be read.

On two cores, two threads encode 1.3 times as many pictures as one, two processes 1.9 times, but processes take about a
second to start. So large inputs use processes and small ones threads.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import scipy

from modalhash.core.archives import ArchiveMember, archive_entries, is_archive, read_members
from modalhash.core.blocks import row_slices
from modalhash.core.progress import Callback, Reporter
from modalhash.core.typing import Array, Matrix
from modalhash.core.validation import check_int, check_sparse
from modalhash.encoders.encoder import Encoder, ItemError, fit_encoder

if TYPE_CHECKING:
    from modalhash.data import Dataset

SHOWN = 80
PROCESSES_FROM = 2000  # number of items from which processes are used instead of threads
IDLE_SECONDS = 10  # idle time after which worker processes end
THREAD_GAIN, PROCESS_GAIN, PROCESS_START = 0.3, 0.9, 1.0
"""Speed-up per core beyond the first, and start-up seconds of processes, as measured."""


@dataclass(frozen=True)
class Failure:
    """An item that could not be encoded."""

    row: int
    """Index of the item."""
    where: str
    """Its path, its line in a manifest, or the item itself, shortened."""
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


class Encoded(NamedTuple):
    """The result of :func:`encode_items`: ``features[i]`` belongs to ``items[ok_rows[i]]``."""

    features: Matrix
    """float32 ``(len(ok_rows), dim)``, dense or CSR."""
    ok_rows: Array
    """Indices of the items that were encoded, ascending."""
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
    """Encode items; those that cannot be read are reported and do not stop the others.

    Parameters
    ----------
    encoder
        fitted if it learns anything
    items
        a sequence of raw items, or the rows of an array or CSR matrix
    where
        names of the items in reports, e.g. ``"photos.csv, line 12"``; by default their paths or texts
    batch_size
        items per call of the encoder
    workers
        by default one per core if ``encoder.parallel``, otherwise one. They are threads, or processes from 2,000 items
    progress
        called with a :class:`modalhash.core.progress.Progress` after every batch
    stage
        name of the stage in progress reports; ``"encode: NAME"`` by default
    strict
        raise :class:`modalhash.encoders.ItemError` at the first bad item, in the order of the items

    Notes
    -----
    Only ``ValueError`` and ``OSError`` count as faults of an item. Results do not depend on ``batch_size`` and
    ``workers``.
    """
    if scipy.sparse.issparse(items):
        check_sparse(items, "items")
    n = items.shape[0] if hasattr(items, "shape") else len(items)
    if where is not None and len(where) != n:
        raise ValueError(f"{n} items and {len(where)} entries in where; expected equal numbers")
    check_int(batch_size, "batch_size", at_least=1)
    dim = encoder.dim  # raises here, not once per item, if the encoder is not fitted
    if workers is None:
        workers = _cores() if getattr(encoder, "parallel", False) else 1
    report = Reporter(progress)
    label = f"encode: {encoder.name}" if stage is None else stage
    parts: list[Matrix] = []
    ok: list[int] = []
    failures: list[Failure] = []
    with closing(_batches(encoder, items, where, row_slices(n, batch_size), dim, workers, n)) as batches:
        for stop, features, good, bad in batches:
            if bad and strict:
                raise ItemError(bad[0].reason, bad[0].where)
            parts.append(features)
            ok.extend(good)
            failures.extend(bad)
            report(label, stop, n)
    return Encoded(_stacked(parts, dim), np.array(ok, dtype=np.int64), failures)


def encode_batch(encoder: Encoder, items: Sequence[Any]) -> Matrix:
    """Return the features of a few items, float32 (items, dim); raise if one cannot be read.

    Examples
    --------
    >>> from modalhash.encoders import get_encoder
    >>> encode_batch(get_encoder("hashing", columns=64), ["a red boat", "two boats"]).shape
    (2, 64)
    """
    return _checked(encoder, read_members(items), encoder.dim)


def encoding_seconds(encoder: Encoder, n: int, seconds_each: float, *, workers: int | None = None) -> float:
    """Estimate the time of :func:`encode_items` for ``n`` items from the seconds per item on one core.

    Examples
    --------
    >>> from modalhash.encoders import get_encoder
    >>> encoding_seconds(get_encoder("image"), 4500, 0.002, workers=1)
    9.0
    """
    if workers is None:
        workers = _cores() if getattr(encoder, "parallel", False) else 1
    if workers == 1:
        return n * seconds_each
    if n < PROCESSES_FROM:
        return n * seconds_each / (1 + THREAD_GAIN * (workers - 1))
    return PROCESS_START + n * seconds_each / (1 + PROCESS_GAIN * (workers - 1))


def encode_dataset(
    dataset: Dataset,
    modality: str,
    encoder: Encoder,
    *,
    files: str | Path | None = None,
    progress: Callback | None = None,
) -> Dataset:
    """Return the data set with features of ``modality`` computed from its raw items.

    Parameters
    ----------
    dataset
        with ``raw`` items of that modality: texts, or names of pictures
    modality
        whose features are replaced
    encoder
        fitted to the training items of the data set's split, or to all items without one
    files
        folder or archive (zip, tar) with the files that the raw items name; None if they are texts or paths
    progress
        called with a :class:`modalhash.core.progress.Progress` after every batch

    Raises
    ------
    ItemError
        for the first item that cannot be read, because dropping it would change the data set

    Examples
    --------
    >>> import numpy as np
    >>> from modalhash.data import Dataset
    >>> from modalhash.encoders import get_encoder
    >>> texts = np.array(["a red boat", "two boats", "a house"])
    >>> dataset = Dataset({"text": np.zeros((3, 1))}, raw={"text": texts}, name="tiny")
    >>> encode_dataset(dataset, "text", get_encoder("hashing", columns=64))
    Dataset('tiny': text 3×64, no labels)
    """
    if modality not in dataset.raw:
        known = ", ".join(dataset.raw) or "none"
        raise ValueError(f"data set {dataset.name!r} has no raw items of {modality!r} to encode; it has: {known}")
    names = dataset.raw[modality].tolist()
    items = names if files is None else _contents(Path(files), names)
    rows = _training_rows(dataset, modality)
    labels = dataset.labels.get(modality)
    fit_encoder(
        encoder,
        [names[row] for row in rows] if files is None else _contents(Path(files), [names[row] for row in rows]),
        None if labels is None else np.asarray(labels)[rows],
    )
    made = encode_items(encoder, items, where=names, progress=progress, strict=True).features
    old = [note for note in dataset.provenance.get("notes", ()) if not note.startswith(f"{modality}:")]
    notes = [*old, f"{modality}: encoder {encoder.name}, digest {encoder.digest[:16]}"]
    provenance = {**dataset.provenance, "notes": notes}
    if dataset.kind == "original":
        provenance["kind"] = "recomputed features"
    features = {**dataset.features, modality: made}
    components = {name: n for name, n in dataset.components.items() if name != modality}
    return replace(dataset, features=features, components=components, provenance=provenance)


Done: TypeAlias = tuple[int, Matrix, list[int], list[Failure]]
"""Result of a batch: the row after its last, features, rows that are good, failures."""


def _batches(
    encoder: Encoder, items: Any, where: Sequence[str] | None, slices: Iterator[slice], dim: int, workers: int, n: int
) -> Generator[Done, None, None]:
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
        for _ in results:  # wait for the batches in flight
            pass


def _encode_batch(encoder: Encoder, batch: Any, rows: slice, dim: int, where: Sequence[str] | None) -> Done:
    """Encode a batch; if that fails, encode its items one by one to find the bad ones."""
    numbers = range(rows.start, rows.stop)
    with suppress(ValueError, OSError):
        if len(numbers) > 1:  # a bad item alone is read only once, which may take long
            return rows.stop, _checked(encoder, read_members(batch), dim), list(numbers), []
    parts, ok, failures = [], [], []
    for i, row in enumerate(numbers):
        item = batch[i : i + 1]
        try:
            parts.append(_checked(encoder, read_members(item), dim))
            ok.append(row)
        except (ValueError, OSError) as error:
            name = _name(item, row) if where is None else str(where[i])
            failures.append(Failure(row, name, getattr(error, "reason", None) or str(error) or type(error).__name__))
    return rows.stop, _stacked(parts, dim), ok, failures


def _checked(encoder: Encoder, batch: Any, dim: int) -> Matrix:
    n = batch.shape[0] if hasattr(batch, "shape") else len(batch)
    features = encoder.encode(batch)
    shape, dtype = getattr(features, "shape", None), getattr(features, "dtype", None)
    if shape != (n, dim) or dtype != np.float32:
        raise TypeError(f"encoder {encoder.name!r} returned {dtype} {shape}; expected float32 {(n, dim)}")
    if scipy.sparse.issparse(features):
        check_sparse(features, f"encoder {encoder.name!r}")
    return features


def _stacked(parts: list[Matrix], dim: int) -> Matrix:
    parts = [rows for rows in parts if rows.shape[0]] or parts[:1]
    if not parts:
        return np.empty((0, dim), dtype=np.float32)
    if len(parts) == 1 and isinstance(parts[0], scipy.sparse.csr_array) and parts[0].dtype == np.float32:
        return parts[0]
    if any(scipy.sparse.issparse(rows) for rows in parts):
        return scipy.sparse.csr_array(scipy.sparse.vstack(parts, format="csr", dtype=np.float32))
    return np.concatenate(parts)


def _name(item: Any, row: int) -> str:
    content = item[0] if not scipy.sparse.issparse(item) else None
    if isinstance(content, os.PathLike | ArchiveMember):  # not shortened, because its end has the file name
        return str(content)
    if isinstance(content, str) and content.strip():
        return content if len(content) <= SHOWN else f"{content[: SHOWN - 1]}…"
    return f"item {row}"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _contents(source: Path, names: Sequence[str]) -> Sequence[Any]:
    """Return files of a folder as paths, or of an archive as members; names cannot leave the folder."""
    if source.is_dir():
        root = source.resolve()
        paths = [(root / name).resolve() for name in names]
        if outside := [name for name, path in zip(names, paths, strict=True) if not path.is_relative_to(root)]:
            raise ValueError(f"{source}: {outside[0]!r} is not inside this folder")
        return paths
    if not is_archive(source) or not source.is_file():
        raise ValueError(f"{source}: expected a folder or an archive (.zip, .tar, .tar.gz) that holds the files")
    if missing := sorted(set(names) - {entry.name for entry in archive_entries(source)}):
        raise ValueError(f"{source}: {len(missing)} files are missing, e.g. {missing[0]!r}")
    return [ArchiveMember(source, name) for name in names]


def _training_rows(dataset: Dataset, modality: str) -> list[int]:
    if dataset.split is None:
        return list(range(len(dataset.raw[modality])))
    wanted = set(dataset.split.training[modality].tolist())
    return [row for row, key in enumerate(dataset.ids[modality].tolist()) if key in wanted]
