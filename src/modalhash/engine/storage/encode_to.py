"""Encode all parts of a source into files: in this process, in local processes, or on the workers of a Dask scheduler.

Parts are created lazily and submitted a few at a time, so that a source may be larger than memory. Parts whose file
exists are skipped. Tasks are pure and picklable: parts of a worker that dies are encoded again by others, and a task
that runs twice writes the same file.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import socket
import time
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits

from modalhash.core.archives import MAX_MEMBER_BYTES, ArchiveMember, find_member, too_large
from modalhash.core.codes import pack_signs
from modalhash.core.imports import require
from modalhash.core.progress import Callback, Reporter
from modalhash.core.typing import Matrix
from modalhash.engine.items.bulk_inputs import (
    MAX_TEXT_BYTES,
    InputPart,
    count_inputs,
    decode_text,
    list_parts,
    open_sources,
    tar_items,
)
from modalhash.engine.items.item import Item, Problem, ProblemCode
from modalhash.engine.items.urls import (
    EXTRA,
    OutsideError,
    exists,
    file_system,
    inside,
    is_folder,
    is_remote,
    join,
    location,
    names_in,
    opened,
    read_files,
    sweep_folder,
    write_whole,
)
from modalhash.engine.search.refinement import model_features
from modalhash.engine.settings import EncodeOptions
from modalhash.engine.storage.code_files import CodeRow, Identity, codes_as_bytes, difference

if TYPE_CHECKING:
    from modalhash.encoders import Encoder
    from modalhash.engine.search.refinement import Refinement
    from modalhash.methods.fitted import FittedHasher

_PART = re.compile(r"part-(\d+)-[0-9a-f]+\.parquet")
KIND, FORMAT = "modalhash codes", 1
WHY = "encoding on several processes"
RETRIES = 2
"""Retries of a part whose files could not be read or written."""
AHEAD = 3
"""Submitted parts per worker thread."""
PROCESSES_FROM = 2000
"""Inputs from which starting local processes is worthwhile."""
CHECK_SECONDS = 2.0
LOST_SECONDS = 60.0
"""Seconds to wait for a scheduler without workers."""


_GONE = "the scheduler is gone; restart it and run this again to continue"


class EncodeError(ValueError):
    """Encoding stopped early; the same call continues with the remaining parts."""


@dataclass(frozen=True)
class EncodedSource:
    """Result of :meth:`modalhash.engine.Engine.encode_to`."""

    parts: int
    present: int
    inputs: int
    """Rows of the files written, one per input."""
    n_problems: int
    """Rows with a problem instead of a code."""
    problems: tuple[Problem, ...]


def encode_source(
    coder: Coder, source: Any, out: str | os.PathLike[str], options: EncodeOptions, callback: Callback | None = None
) -> EncodedSource:
    """Encode a source into a folder of Parquet files; see :meth:`modalhash.engine.Engine.encode_to`."""
    scheduler, workers, fields = options.scheduler, options.workers, options.fields
    if workers is not None and scheduler is not None:
        raise ValueError("workers is for local processes; a scheduler has its own workers")
    require("pyarrow.parquet", extra=EXTRA, why="writing codes")
    sources, folder = open_sources(source), location(out)
    base = None if options.root is None else location(options.root)
    note = {
        "kind": KIND,
        "format": FORMAT,
        "engine": coder.identity,
        "sources": [one.where for one in sources],
        "fields": dict(fields or {}),
        "root": base,
        "part_size": options.part_size,
    }
    _claim(folder, note)
    run = _Run(folder, Reporter(callback), count_inputs(sources, coder.input_kinds))
    how: dict[str, Any] = {"fields": fields, "root": base, "size": options.part_size, "table": options.table}
    parts = run.missing(list_parts(sources, coder.input_kinds, **how))
    first = next(parts, None)
    if first is not None:
        if scheduler is None and workers is None and run.total < PROCESSES_FROM:
            workers = 1
        with _workers(scheduler, workers) as client:
            for done in _results(client, coder, chain([first], parts), folder, fields):
                run.take(done)
    return run.finish()


@dataclass
class _Run:
    folder: str
    report: Reporter
    total: int
    """Estimated number of inputs to encode."""
    parts: int = 0
    present: int = 0
    inputs: int = 0
    n_problems: int = 0
    problems: list[Problem] = field(default_factory=list)
    _names: dict[int, str] = field(default_factory=dict)
    _guesses: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._there: dict[int, set[str]] = {}
        for name in names_in(self.folder):
            if found := _PART.fullmatch(name):
                self._there.setdefault(int(found[1]), set()).add(name)

    def missing(self, parts: Iterator[InputPart]) -> Iterator[InputPart]:
        """Yield the parts without a file; EncodeError if there are files of other inputs."""
        for part in parts:
            if there := self._there.pop(part.number, None):
                if there != {part.file_name}:
                    raise self._changed(min(there - {part.file_name}))
                self.present += 1
                self.total -= part.n_inputs
                continue
            self._names[part.number], self._guesses[part.number] = part.file_name, part.n_inputs
            yield part

    def take(self, done: PartDone) -> None:
        self.parts += 1
        self.inputs += done.inputs
        self.n_problems += done.n_problems
        self.problems += done.examples[: MAX_EXAMPLES - len(self.problems)]
        self.total += done.inputs - self._guesses.pop(done.part)
        self._show()

    def finish(self) -> EncodedSource:
        """Check that exactly the files of all parts exist, and remove temporary files of killed workers."""
        if self._there:
            raise self._changed(min(min(names) for names in self._there.values()))
        lost = set(self._names.values()) - set(names_in(self.folder))
        if lost:
            raise EncodeError(
                f"{self.folder}: {len(lost)} files were written and are missing (first: {min(lost)}). Do all workers "
                "see the same folder? Give --out a URL or a folder that they share"
            )
        sweep_folder(self.folder)
        self.total = 0  # blank lines were counted too
        self._show()
        return EncodedSource(self.parts, self.present, self.inputs, self.n_problems, tuple(self.problems))

    def _show(self) -> None:
        self.report("encode", self.inputs, max(self.total, self.inputs))

    def _changed(self, name: str) -> EncodeError:
        return EncodeError(
            f"{self.folder}: {name} does not belong to these inputs, because the source has changed. Encode it "
            "into another folder, or delete this one"
        )


def _claim(folder: str, note: Mapping[str, Any]) -> None:
    """Write the settings into an empty folder, or check that it has the same settings."""
    names = names_in(folder)
    if NOTE not in names:
        if any(not name.startswith(".") for name in names):
            raise EncodeError(f"{folder} is not empty and was not created by `modalhash encode`; give another folder")
        if is_remote(folder):
            fs, path = file_system(folder)
            fs.makedirs(path, exist_ok=True)
        write_whole(join(folder, NOTE), json.dumps(note, indent=1).encode() + b"\n")
        return
    with opened(join(folder, NOTE)) as file:
        try:
            before = json.loads(file.read())
            made_by = dict(before["engine"])
        except (ValueError, KeyError, TypeError):
            raise EncodeError(f"{join(folder, NOTE)} is damaged; give another folder, or delete this one") from None
    if made_by != note["engine"]:
        raise EncodeError(
            f"{folder} has codes of another engine ({difference(made_by, note['engine'])}); give another folder"
        )
    for name in ("kind", "format", "sources", "fields", "root", "part_size"):
        if before.get(name) != note[name]:
            raise EncodeError(
                f"{folder} was started with different {name.replace('_', ' ')}: {_short(before.get(name))}, not "
                f"{_short(note[name])}; continue with those, or give another folder"
            )


def _short(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 200 else f"{text[:199]}…"


@contextmanager
def _workers(scheduler: Any, workers: int | None) -> Iterator[Any]:
    """Give a client of a Dask scheduler, given or local; None to work in this process."""
    if scheduler is None and workers == 1:
        yield None
        return
    distributed = require("distributed", extra=EXTRA, why=WHY)
    if isinstance(scheduler, distributed.Client):
        yield scheduler
        return
    if scheduler is not None:
        try:
            client = distributed.Client(str(scheduler), set_as_default=False, timeout=30)
        except (OSError, ValueError) as error:
            raise EncodeError(f"no answer from a scheduler at {scheduler}: {error}") from error
        with client:
            yield client
        return
    n = workers or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    with (
        distributed.LocalCluster(
            n_workers=n,
            threads_per_worker=1,
            host="127.0.0.1",
            scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
            silence_logs=logging.ERROR,
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


def _results(
    client: Any, coder: Coder, parts: Iterator[InputPart], out: str, fields: Mapping[str, str] | None
) -> Iterator[PartDone]:
    if client is None:
        yield from (encode_part(coder, part, out, fields) for part in parts)
        return
    distributed = require("distributed", extra=EXTRA, why=WHY)
    _wait_for_workers(client)
    # A task, because scattered data would be lost with the worker that holds it.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sending large graph")  # sent once for all parts
        sent = client.submit(_same, coder, key=f"modalhash-coder-{secrets.token_hex(8)}")
    waiting: dict[Any, InputPart] = {}
    try:
        while True:
            room = AHEAD * max(1, _n_threads(client)) - len(waiting)
            for part in islice(parts, max(0, room)):
                future = client.submit(encode_part, sent, part, out, fields, pure=False, retries=RETRIES)
                waiting[future] = part
            if not waiting:
                return
            for future in _first_done(distributed, client, waiting):
                part = waiting.pop(future)
                try:
                    yield future.result()
                except distributed.KilledWorker as error:
                    raise EncodeError(
                        f"part {part.number} was given to {error.allowed_failures + 1} workers, and each died. Is "
                        "their memory too small? Smaller parts (--part-size) take less"
                    ) from error
    finally:
        client.cancel(list(waiting), force=True)
        sent.release()


def _n_threads(client: Any) -> int:
    try:
        return sum(client.nthreads().values())
    except OSError as error:  # no answer
        raise EncodeError(_GONE) from error


def _same(value: Coder) -> Coder:
    return value


def _first_done(distributed: Any, client: Any, waiting: Mapping[Any, InputPart]) -> list[Any]:
    """Wait for parts to complete or fail and return them; EncodeError if no worker is left."""
    lost_since: float | None = None
    while True:
        try:
            with client.as_current():
                return list(distributed.wait(list(waiting), timeout=CHECK_SECONDS, return_when="FIRST_COMPLETED").done)
        except TimeoutError:
            lost = client.status != "running"
        except CancelledError:  # of all submitted parts, when the connection breaks
            lost = True
        if lost:
            raise EncodeError(_GONE)
        if _n_threads(client):
            lost_since = None
        elif lost_since is None:
            lost_since = time.monotonic()
        elif time.monotonic() - lost_since > LOST_SECONDS:
            raise EncodeError(
                f"the scheduler has had no worker for {LOST_SECONDS:.0f} s; start some, and run this again to continue"
            )


def _wait_for_workers(client: Any) -> None:
    try:
        client.wait_for_workers(1, timeout=LOST_SECONDS)
    except TimeoutError:
        raise EncodeError(
            f"the scheduler at {client.scheduler.address} has no worker; start one: dask worker "
            f"{client.scheduler.address}"
        ) from None


NOTE = "encoding.json"
"""File with the settings, next to the parts."""
READ_TOGETHER = 64
"""Files in memory at a time."""
CODED_TOGETHER = 1024
MAX_EXAMPLES = 20
"""Problems returned for a part; its file has all."""


@dataclass(frozen=True)
class Coder:
    """The parts of an engine that compute codes."""

    identity: Identity
    model: FittedHasher
    encoders: Mapping[str, Encoder]
    refinement: Refinement

    @property
    def input_kinds(self) -> dict[str, str]:
        """``"text"``, ``"image"`` or ``"array"`` by modality."""
        return {modality: encoder.reads for modality, encoder in self.encoders.items()}


@dataclass(frozen=True)
class PartDone:
    """Result of a part."""

    part: int
    inputs: int
    n_problems: int
    examples: tuple[Problem, ...]


def encode_part(coder: Coder, part: InputPart, out: str, fields: Mapping[str, str] | None = None) -> PartDone:
    """Encode the inputs of a part and write its file; inputs that cannot be encoded become rows with a problem.

    Codes do not depend on the machine, because one thread computes them in fixed batches.
    """
    _check_sight(part, out)
    rows: list[CodeRow] = []
    coding = {modality: _Coding(coder, modality, rows) for modality in coder.encoders}
    with threadpool_limits(1):
        for item, content in _contents(part, coder.input_kinds, fields):
            if isinstance(content, Problem):
                rows.append(CodeRow(item, content))
                continue
            assert item is not None  # only problems have no item
            rows.append(CodeRow(replace(item, data=None)))
            coding[item.modality].add(len(rows) - 1, content)
        for one in coding.values():
            one.finish()
    write_whole(join(out, part.file_name), codes_as_bytes(rows, coder.identity))
    problems = [row.problem for row in rows if row.problem is not None]
    return PartDone(part.number, len(rows), len(problems), tuple(problems[:MAX_EXAMPLES]))


@dataclass
class _Coding:
    coder: Coder
    modality: str
    rows: list[CodeRow]
    _waiting: list[tuple[int, Any]] = field(default_factory=list)
    _features: list[Matrix] = field(default_factory=list)
    _numbers: list[int] = field(default_factory=list)

    def add(self, row: int, content: Any) -> None:
        self._waiting.append((row, content))
        if len(self._waiting) == READ_TOGETHER:
            self._encode()
        if len(self._numbers) >= CODED_TOGETHER:
            self._code()

    def finish(self) -> None:
        self._encode()
        self._code()

    def _encode(self) -> None:
        from modalhash.encoders import encode_items

        if not self._waiting:
            return
        numbers = [row for row, _ in self._waiting]
        encoded = encode_items(self.coder.encoders[self.modality], [item for _, item in self._waiting], workers=1)
        for failure in encoded.failures:
            row = numbers[failure.row]
            item = self.rows[row].item
            assert item is not None
            self.rows[row] = CodeRow(item, item.problem(ProblemCode.UNREADABLE, failure.reason))
        self._features.append(encoded.features)
        self._numbers += [numbers[row] for row in encoded.ok_rows.tolist()]
        self._waiting.clear()

    def _code(self) -> None:
        if not self._numbers:
            return
        features = _stacked(self._features)
        projected = model_features(self.coder.model, self.coder.encoders[self.modality], features)
        codes = pack_signs(self.coder.model.decision_function({self.modality: projected})[self.modality])
        vectors = self.coder.refinement.vectors(self.modality, features)
        for row, code, vector in zip(self._numbers, codes, vectors, strict=True):
            self.rows[row] = replace(self.rows[row], code=code, refinement=vector)
        self._features.clear()
        self._numbers.clear()


def _stacked(parts: list[Matrix]) -> Matrix:
    if any(sparse.issparse(rows) for rows in parts):
        return sparse.csr_array(sparse.vstack(parts, format="csr"))
    return np.concatenate(parts)


def _check_sight(part: InputPart, out: str) -> None:
    """Raise FileNotFoundError if inputs or output are not visible from this machine."""
    where = socket.gethostname()
    if not exists(join(out, NOTE)):
        raise FileNotFoundError(f"{out} does not exist on {where}; give --out a URL or a folder that all workers share")
    in_archive = any(isinstance(entry, Item) and entry.path is not None for entry in part.entries)
    if not (exists(part.root) if part.tar_bytes is not None or in_archive else is_folder(part.root)):
        raise FileNotFoundError(f"{part.root} does not exist on {where}; give a URL or a path that all workers share")


def _contents(
    part: InputPart, input_kinds: Mapping[str, str], fields: Mapping[str, str] | None
) -> Iterator[tuple[Item | None, Any]]:
    if part.tar_bytes is not None:
        for entry in tar_items(part.root, input_kinds, fields):
            yield (None, entry) if isinstance(entry, Problem) else (entry, entry.content)
        return
    entries = iter(part.entries)
    read = _read_remote if is_remote(part.root) else _read_local
    while some := list(islice(entries, READ_TOGETHER)):
        located = [_located(entry, part.root) for entry in some]
        yield from read(located, input_kinds)


def _located(entry: Item | Problem, root: str) -> tuple[Item | None, Any]:
    """Return an item with its text or the location of its file, or with a problem."""
    if isinstance(entry, Problem):
        return None, entry
    if entry.text is not None:
        return entry, entry.text
    if entry.path is not None:  # a member of an archive
        return entry, entry.path
    assert entry.uri is not None  # a list has paths or texts
    try:
        if not is_remote(root) and (member := find_member(entry.uri)) is not None:
            return entry, replace(member, archive=Path(inside(root, str(member.archive))))
        return entry, Path(inside(root, entry.uri)) if not is_remote(root) else inside(root, entry.uri)
    except OutsideError as error:
        return entry, entry.problem(ProblemCode.OUTSIDE, str(error))
    except OSError as error:  # a name too long
        return entry, entry.problem(ProblemCode.MISSING_FILE, error.strerror or str(error))
    except (ValueError, RuntimeError) as error:  # a NUL, a loop of links
        return entry, entry.problem(ProblemCode.MISSING_FILE, f"{entry.uri!r} is not a path: {error}")


def _read_local(
    located: list[tuple[Item | None, Any]], input_kinds: Mapping[str, str]
) -> Iterator[tuple[Item | None, Any]]:
    for item, content in located:
        if item is not None and isinstance(content, ArchiveMember):
            item = replace(item, path=content, uri=None)
        if item is None or not isinstance(content, Path):
            yield item, content
            continue
        item = replace(item, path=content, uri=None)
        try:
            if content.is_dir():
                yield item, item.problem(ProblemCode.NOT_A_FILE, "a folder; expected a file")
            elif not content.is_file():
                yield item, item.problem(ProblemCode.MISSING_FILE, "no such file")
            elif input_kinds[item.modality] == "image":
                yield item, content
            else:
                with content.open("rb") as file:
                    yield _with_text(replace(item, path=None, uri=str(content)), file.read(MAX_TEXT_BYTES + 1))
        except OSError as error:
            yield item, item.problem(ProblemCode.MISSING_FILE, error.strerror or str(error))


def _read_remote(
    located: list[tuple[Item | None, Any]], input_kinds: Mapping[str, str]
) -> Iterator[tuple[Item | None, Any]]:
    wanted = [row for row, (item, one) in enumerate(located) if item and item.text is None and isinstance(one, str)]
    contents = dict(zip(wanted, read_files([located[row][1] for row in wanted], MAX_MEMBER_BYTES), strict=True))
    for row, (item, given) in enumerate(located):
        if item is None or row not in contents:
            yield item, given
            continue
        item, content = replace(item, uri=given), contents[row]
        if isinstance(content, FileNotFoundError):
            yield item, item.problem(ProblemCode.MISSING_FILE, "no such file")
        elif isinstance(content, IsADirectoryError):
            yield item, item.problem(ProblemCode.NOT_A_FILE, "a folder; expected a file")
        elif isinstance(content, PermissionError):
            yield item, item.problem(ProblemCode.MISSING_FILE, "no permission to read it")
        elif isinstance(content, Exception):  # the storage may be available when the part is retried
            raise content
        elif len(content) > MAX_MEMBER_BYTES:
            yield item, item.problem(ProblemCode.UNREADABLE, too_large(len(content), MAX_MEMBER_BYTES))
        elif input_kinds[item.modality] == "image":
            yield item, content
        else:
            yield _with_text(item, content)


def _with_text(item: Item, data: bytes) -> tuple[Item, Any]:
    try:
        text = decode_text(data)
    except ValueError as error:
        return item, item.problem(ProblemCode.UNREADABLE, str(error))
    if not text.strip():
        return item, item.problem(ProblemCode.EMPTY, "the text is empty")
    return replace(item, text=text), text
