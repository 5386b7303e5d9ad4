"""Encode, hash and store items in batches, one transaction each.

Features of pictures are cached in the engine's folder, so that retraining does not encode them again. A row is
identified by the path, size and modification time of the file and by the encoder. The cache may be deleted.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from modalhash.core.archives import ArchiveMember
from modalhash.core.codes import pack_signs
from modalhash.core.files import shared_lock
from modalhash.core.label_names import LabelNames
from modalhash.core.progress import Callback, Reporter
from modalhash.core.typing import Array, Codes, Matrix
from modalhash.encoders import Encoded, Failure, encode_items
from modalhash.engine.items.item import Item, ItemBatch, ItemFiles, OnProblem, Problem, ProblemCode, ReadOptions
from modalhash.engine.items.photos import Reader, with_picture_text
from modalhash.engine.items.sources import count_items, open_source, read_batches
from modalhash.engine.search.refinement import model_features
from modalhash.engine.storage.code_files import Identity, code_files, count_rows, read_codes
from modalhash.engine.storage.folder import FEATURES, MEDIA, EngineReplacedError, delete_media, save_media
from modalhash.store import Key, Record, StoreBusyError, StoreError, StoreFullError, StoreReplacedError

if TYPE_CHECKING:
    from modalhash.encoders import Encoder
    from modalhash.engine.search.refinement import Refinement
    from modalhash.methods.fitted import FittedHasher
    from modalhash.store import Store

SomeItem = TypeVar("SomeItem", bound=Item)

KEYS_PER_QUERY = 500


class FeatureCache:
    """Feature vectors by file and encoder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FEATURES

    def get(self, keys: Sequence[str]) -> dict[str, Array]:
        """Return the cached rows; none if the file is missing or damaged."""
        found: dict[str, Array] = {}
        if not self._path.is_file():
            return found
        try:
            with self._open() as database:
                for start in range(0, len(keys), KEYS_PER_QUERY):
                    some = keys[start : start + KEYS_PER_QUERY]
                    marks = ",".join("?" * len(some))
                    rows = database.execute(f"SELECT key, row FROM feature WHERE key IN ({marks})", some)
                    found.update((key, np.frombuffer(row, np.float32)) for key, row in rows)
        except sqlite3.Error:
            return {}
        return found

    def put(self, keys: Sequence[str], rows: Array) -> None:
        """Store rows; write errors are ignored."""
        data = ((key, row.tobytes()) for key, row in zip(keys, rows.astype(np.float32, copy=False), strict=True))
        try:
            with self._open() as database:
                database.executemany("INSERT OR REPLACE INTO feature VALUES (?, ?)", data)
        except sqlite3.Error:
            return

    def copy_to(self, folder: Path) -> FeatureCache:
        """Return a copy in another folder, empty if this one cannot be read."""
        copy = FeatureCache(folder)
        if self._path.is_file():
            with suppress(sqlite3.Error), self._open() as source, copy._open() as target:
                source.backup(target)
        return copy

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, timeout=10)) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS feature (key TEXT PRIMARY KEY, row BLOB)")
            yield database


def encode_cached(
    encoder: Encoder,
    contents: Sequence[Any],
    known: FeatureCache | None,
    kept: FeatureCache | None,
    *,
    workers: int | None = None,
    progress: Callback | None = None,
    stage: str | None = None,
) -> Encoded:
    """Encode items like :func:`modalhash.encoders.encode_items`, except pictures in ``known``; add rows to ``kept``."""
    keys = [_key(encoder, content) for content in contents] if encoder.reads == "image" else []
    own = [key for key in keys if key is not None]
    if not own or (known is None and kept is None):
        return encode_items(encoder, contents, workers=workers, progress=progress, stage=stage)
    found = {} if known is None else known.get(own)
    found = {key: row for key, row in found.items() if len(row) == encoder.dim}
    missing = [row for row, key in enumerate(keys) if key is None or key not in found]
    fresh = encode_items(encoder, [contents[row] for row in missing], workers=workers, progress=progress, stage=stage)
    failures = [Failure(missing[one.row], one.where, one.reason) for one in fresh.failures]
    rows = dict(zip((missing[row] for row in fresh.ok_rows.tolist()), np.asarray(fresh.features), strict=True))
    rows.update((row, found[key]) for row, key in enumerate(keys) if key is not None and key in found)
    ok = sorted(rows)
    features = np.array([rows[row] for row in ok], dtype=np.float32).reshape(len(ok), encoder.dim)
    if kept is not None:
        new = set(missing) if kept is known else set(ok)
        lasting = [place for place, row in enumerate(ok) if row in new and keys[row] is not None]
        kept.put([str(keys[ok[place]]) for place in lasting], features[lasting])
    return Encoded(features, np.array(ok, dtype=np.int64), failures)


def _key(encoder: Encoder, content: Any) -> str | None:
    """Return the cache key of a picture in a file; None for other contents."""
    file = content.archive if isinstance(content, ArchiveMember) else content
    if not isinstance(file, Path):
        return None
    try:
        status = os.stat(file)
    except OSError:
        return None
    digest = getattr(encoder, "feature_digest", encoder.digest)
    named = f"{digest}\0{os.path.abspath(file)}\0{getattr(content, 'name', '') if file is not content else ''}"
    return sha256(f"{named}\0{status.st_size}\0{status.st_mtime_ns}".encode("utf-8", "surrogateescape")).hexdigest()


BATCH_SIZE = 1024
TEXT_BATCH_SIZE = 32
"""Batch size if the text in pictures is read, which takes about a second each."""


NOT_SHARED = (
    "the items of this engine are in a database that machines share, and others could not read the picture; "
    "set MODALHASH_MEDIA_URL to a shared folder or a URL such as s3://bucket/media, or save it where all of them can "
    "read it, and add it by its path"
)
"""Why an engine in a shared database does not save pictures unless it has a media URL."""


@dataclass(frozen=True)
class Added:
    """Result of :meth:`modalhash.engine.Engine.add`."""

    added: int
    replaced: int
    problems: tuple[Problem, ...]
    notes: tuple[str, ...] = ()
    """Notes on the reading, such as how many rows of a table name photos."""


@dataclass(frozen=True)
class CodedItems:
    """Items of one modality with codes and refinement vectors."""

    items: list[Item]
    codes: Codes
    vectors: Array | None
    """int8, if the engine has refinement vectors."""

    def records(self, kinds: str | Iterable[str], files: ItemFiles | None = None) -> list[Record]:
        """Return records with one kind of code for all items, or one each; ``files`` converts paths to URIs."""
        each = repeat(kinds, len(self.items)) if isinstance(kinds, str) else kinds
        vectors = repeat(None, len(self.items)) if self.vectors is None else (row.tobytes() for row in self.vectors)
        return [
            replace(with_uri(item.to_record(code, kind), files), refinement=vector)
            for item, code, kind, vector in zip(self.items, self.codes, each, vectors, strict=True)
        ]


def with_uri(record: Record, files: ItemFiles | None) -> Record:
    return record if record.uri is None or files is None else replace(record, uri=files.uri(record.uri))


@dataclass(frozen=True)
class ItemCoder:
    """Computes codes and refinement vectors of items from their features."""

    model: FittedHasher
    encoders: Mapping[str, Encoder]
    refinement: Refinement
    report: OnProblem
    workers: int | None = None
    cache: FeatureCache | None = None

    def hash(self, modality: str, items: Sequence[Item], contents: Any) -> CodedItems:
        """Encode and hash items of one modality, except those that cannot be encoded."""
        encoded, kept = self.encode(modality, items, contents)
        if not kept:
            return CodedItems([], np.zeros((0, 0), dtype=np.uint8), None)
        features = model_features(self.model, self.encoders[modality], encoded)
        codes = pack_signs(self.model.decision_function({modality: features})[modality])
        return CodedItems(kept, codes, self.refinement.vectors(modality, encoded))

    def encode(self, modality: str, items: Sequence[SomeItem], contents: Any) -> tuple[Matrix, list[SomeItem]]:
        """Return the features of the items that can be encoded, and these items; report the others."""
        encoded = encode_cached(self.encoders[modality], contents, self.cache, self.cache, workers=self.workers)
        for failure in encoded.failures:
            self.report(items[failure.row].problem(ProblemCode.UNREADABLE, failure.reason))
        return encoded.features, [items[row] for row in encoded.ok_rows.tolist()]


@dataclass(frozen=True)
class Ingester:
    """Adds items to the store of an engine."""

    store: Store
    coder: ItemCoder
    files: ItemFiles
    how: ReadOptions
    names: LabelNames
    replace: bool = False
    media_folder: Path | None = None
    """The engine's folder, if pictures given as bytes are saved in it."""
    data_problem: str | None = None
    """Why pictures given as bytes cannot be saved."""
    identity: Identity | None = None
    """Required identity of files of codes."""
    check_current: Callable[[], None] = lambda: None
    """Raises if the engine was replaced, so that lost items are not reported as added."""
    text_reader: Reader | None = None

    def add(self, source: Any, callback: Callback | None) -> tuple[int, int]:
        if (files := code_files(source)) is not None:
            if self.how.fields:
                raise ValueError("fields are for manifests; files of codes have fixed columns")
            return self._add_codes(files, Reporter(callback))
        opened = open_source(source, fields=self.how.fields, table=self.how.table)
        progress, total = Reporter(callback), count_items(opened)
        input_kinds = {modality: encoder.reads for modality, encoder in self.coder.encoders.items()}
        added = replaced = done = 0
        size = BATCH_SIZE if self.text_reader is None else TEXT_BATCH_SIZE
        for batch in read_batches(opened, input_kinds, self.coder.report, self.how, size=size):
            new, old = self._add_batch(batch)
            added, replaced, done = added + new, replaced + old, done + len(batch.items)
            progress("add", done, max(total, done))
        if total:
            progress("add", total, total)
        return added, replaced

    def _add_codes(self, files: list[str], progress: Reporter) -> tuple[int, int]:
        """Add files of ``modalhash encode``; all must belong to this engine."""
        assert self.identity is not None
        total = count_rows(files, self.identity)
        added = replaced = done = 0
        for n_rows, records in read_codes(files, self.identity, self.coder.report):
            new, old = self._store_codes([replace(one, labels=self.names.of(one.labels)) for one in records])
            added, replaced, done = added + new, replaced + old, done + n_rows
            progress("add", done, total)
        return added, replaced

    def _store_codes(self, records: list[Record]) -> tuple[int, int]:
        """Store records; look for existing items only if the store rejects them."""
        first: dict[Key, Record] = {}
        for record in records:
            if first.setdefault(record.key, record) is not record:
                reason = f"the id {record.id!r} is given twice; the first one is used"
                self.coder.report(Item(*record.key).problem(ProblemCode.DUPLICATE, reason))
        records = [with_uri(record, self.files) for record in first.values()]
        replaced = len(self._existing(Item(*key) for key in first)) if self.replace else 0
        while records:
            try:
                self.store.add(records, replace=self.replace)
                break
            except ValueError:
                existing = set() if self.replace else self._report_existing(Item(*record.key) for record in records)
                if not existing:
                    raise
                records = [record for record in records if record.key not in existing]
        self.check_current()
        return len(records), replaced

    def _add_batch(self, batch: ItemBatch) -> tuple[int, int]:
        existing = set() if self.replace else self._report_existing(batch.items)
        if self.data_problem is not None:
            for item in (item for item in batch.items if item.data is not None and item.key not in existing):
                self.coder.report(item.problem(ProblemCode.NOT_SHARED, self.data_problem))
                existing = existing | {item.key}
        rows = [row for row, item in enumerate(batch.items) if item.key not in existing]
        if not rows:
            return 0, 0
        items = [replace(batch.items[row], labels=self.names.of(batch.items[row].labels)) for row in rows]
        coded = self.coder.hash(batch.modality, items, batch.contents_of(rows))
        if not coded.items:
            return 0, 0
        if self.text_reader is not None and self.coder.encoders[batch.modality].reads == "image":
            coded = replace(coded, items=with_picture_text(coded.items, self.text_reader))
        if self.media_folder is None:
            return self._store(coded)
        try:
            (self.media_folder / MEDIA).mkdir(exist_ok=True)
            with shared_lock(self.media_folder / MEDIA):  # so that they are not removed before being stored
                return self._store_with_media(coded, self.media_folder)
        except FileNotFoundError:  # the folder was replaced
            self.check_current()
            raise

    def _store_with_media(self, coded: CodedItems, folder: Path) -> tuple[int, int]:
        before = {record.uri for record in self._stored(coded.items)}
        items: list[Item] = []
        used: set[str | None] = set()
        url = self.files.media_url
        try:
            items += (
                item if item.data is None else replace(item, uri=save_media(folder, item.data, url))
                for item in coded.items
            )
            done = self._store(replace(coded, items=items))
            used = {record.uri for record in self._stored(items)}
            return done
        except (EngineReplacedError, StoreBusyError, StoreFullError, StoreReplacedError):
            used = before  # not stored, or only in the replaced engine
            raise
        except StoreError:  # after a disk error, some may be stored
            used = {*before, *(item.uri for item in items)}
            raise
        except BaseException:
            used = {record.uri for record in self._stored(coded.items)}
            raise
        finally:
            for uri in {*before, *(item.uri for item in items)} - used:  # replaced or not stored
                delete_media(folder, uri, url)

    def _store(self, coded: CodedItems) -> tuple[int, int]:
        """Store the items that another process has not added meanwhile."""
        records = coded.records("hashed", self.files)
        while True:
            if self.replace:
                existing = self._existing(coded.items)
            else:
                existing = self._report_existing(item for item in coded.items if item.key in {r.key for r in records})
                records = [record for record in records if record.key not in existing]
            try:
                self.store.add(records, replace=self.replace)
            except ValueError:
                if self.replace or not self.store.row_ids(record.key for record in records):
                    raise
                continue
            self.check_current()
            return len(records), len(existing) if self.replace else 0

    def _stored(self, items: Iterable[Item]) -> Iterable[Record]:
        numbers = self.store.row_ids(item.key for item in items)
        return self.store.records(list(numbers.values())).values()

    def _existing(self, items: Iterable[Item]) -> set[Key]:
        return set(self.store.row_ids(item.key for item in items))

    def _report_existing(self, items: Iterable[Item]) -> set[Key]:
        items = list(items)
        existing = self._existing(items)
        for item in items:
            if item.key in existing:
                reason = f"the id {item.id!r} is already in the engine; replace=True (--replace) replaces it"
                self.coder.report(item.problem(ProblemCode.EXISTS, reason))
        return existing
