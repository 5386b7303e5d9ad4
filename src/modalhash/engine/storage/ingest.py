"""Encode, hash and store items in batches, one transaction each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from modalhash.core.codes import pack_signs
from modalhash.core.files import shared_lock
from modalhash.core.progress import Callback, Reporter
from modalhash.core.typing import Array, Codes
from modalhash.engine.items.item import Item, ItemBatch, ItemFiles, OnProblem, Problem, ProblemCode, ReadOptions
from modalhash.engine.items.photos import Reader, with_picture_text
from modalhash.engine.items.sources import count_items, open_source, read_batches
from modalhash.engine.search.refinement import model_features
from modalhash.engine.storage.code_files import Identity, code_files, count_rows, read_codes
from modalhash.engine.storage.feature_cache import FeatureCache, encode_cached
from modalhash.engine.storage.folder import MEDIA, EngineReplacedError, delete_media, save_media
from modalhash.store import Key, Record, StoreBusyError, StoreError, StoreFullError

if TYPE_CHECKING:
    from modalhash.encoders import Encoder
    from modalhash.engine.search.refinement import Refinement
    from modalhash.methods.fitted import FittedHasher
    from modalhash.store import Store

BATCH_SIZE = 1024
TEXT_BATCH_SIZE = 32
"""Batch size if the text in pictures is read, which takes about a second each."""


NOT_SHARED = (
    "the items of this engine are in a database that machines share, and others could not read the picture; "
    "save it where all of them can, and add it by its path"
)
"""Why an engine in a shared database does not save pictures."""


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

    def hash(self, modality: str, items: list[Item], contents: Any) -> CodedItems:
        """Encode and hash items of one modality, except those that cannot be encoded."""
        encoded = encode_cached(self.encoders[modality], contents, self.cache, self.cache, workers=self.workers)
        for failure in encoded.failures:
            self.report(items[failure.row].problem(ProblemCode.UNREADABLE, failure.reason))
        kept = [items[row] for row in encoded.ok_rows.tolist()]
        if not kept:
            return CodedItems([], np.zeros((0, 0), dtype=np.uint8), None)
        features = model_features(self.model, self.encoders[modality], encoded.features)
        codes = pack_signs(self.model.decision_function({modality: features})[modality])
        return CodedItems(kept, codes, self.refinement.vectors(modality, encoded.features))


@dataclass(frozen=True)
class Ingester:
    """Adds items to the store of an engine."""

    store: Store
    coder: ItemCoder
    files: ItemFiles
    how: ReadOptions
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
        """Add the items of a source; return the number of added items, and of these that replaced others."""
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
            new, old = self._store_codes(records)
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
        items = [batch.items[row] for row in rows]
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
        try:
            items += (
                item if item.data is None else replace(item, uri=save_media(folder, item.data)) for item in coded.items
            )
            done = self._store(replace(coded, items=items))
            used = {record.uri for record in self._stored(items)}
            return done
        except (EngineReplacedError, StoreBusyError, StoreFullError):
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
                delete_media(folder, uri)

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
