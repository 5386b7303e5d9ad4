"""New items into an engine's store: hashed, in portions, each whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modalhash.codes import pack_signs
from modalhash.engine.kept import forget, keep
from modalhash.engine.raw_items import Item, Problem, Report
from modalhash.engine.sources import Portion, opened, portions, total_of
from modalhash.engine.training import as_record
from modalhash.progress import Callback, Reporter
from modalhash.store import Record

if TYPE_CHECKING:
    from modalhash.base import CrossModalHasher
    from modalhash.encoders import Encoder
    from modalhash.store import Store

PORTION = 1024
"""Items that are encoded and stored together: what a killed process may have to do again."""


@dataclass(frozen=True)
class Added:
    """What became of the items of :meth:`modalhash.engine.engine.Engine.add`."""

    added: int
    replaced: int
    problems: tuple[Problem, ...]
    """Items that were left out, and why."""


@dataclass(frozen=True)
class Adder:
    """Adds items to a store with the encoders and the hasher of an engine."""

    store: Store
    model: CrossModalHasher
    encoders: Mapping[str, Encoder]
    reads: Mapping[str, str]
    report: Report
    replace: bool = False
    workers: int | None = None
    keep_in: Path | None = None
    """The engine's folder, where pictures that come as bytes are kept."""

    def add(self, source: Any, *, fields: Mapping[str, str] | None, callback: Callback | None) -> tuple[int, int]:
        """How many items of a source were added, and how many of these took the place of others."""
        found = opened(source)
        progress, total = Reporter(callback), total_of(found)
        added = replaced = done = 0
        for portion in portions(found, self.reads, self.report, fields=fields, size=PORTION):
            new, old = self._portion(portion)
            added, replaced, done = added + new, replaced + old, done + len(portion.items)
            progress("add", done, max(total, done))
        if total:
            progress("add", total, total)
        return added, replaced

    def _portion(self, portion: Portion) -> tuple[int, int]:
        from modalhash.encoders import encode_items

        items = portion.items
        there = set() if self.replace else self._there(items)
        rows = [row for row, item in enumerate(items) if item.id not in there]
        for item in items:
            if item.id in there:
                self._tell_there(item)
        if not rows:
            return 0, 0
        contents = portion.contents
        some = contents[rows] if hasattr(contents, "shape") else [contents[row] for row in rows]
        encoded = encode_items(self.encoders[portion.modality], some, workers=self.workers)
        for failure in encoded.failures:
            self.report(items[rows[failure.row]].problem(failure.reason))
        kept = [items[rows[row]] for row in encoded.ok_rows.tolist()]
        if not kept:
            return 0, 0
        packed = pack_signs(self.model.decision_function({portion.modality: encoded.features})[portion.modality])
        if self.keep_in is None:
            return self._store([as_record(item, code, "hashed") for item, code in zip(kept, packed, strict=True)], kept)
        old = {record.uri for record in self._records(kept)}
        kept = [self._with_file(item) for item in kept]
        try:
            return self._store([as_record(item, code, "hashed") for item, code in zip(kept, packed, strict=True)], kept)
        finally:
            used = {record.uri for record in self._records(kept)}
            for uri in {*old, *(item.uri for item in kept)} - used:  # replaced, or not stored after all
                forget(self.keep_in, uri)

    def _with_file(self, item: Item) -> Item:
        assert self.keep_in is not None
        return item if item.data is None else replace(item, uri=keep(self.keep_in, item.data))

    def _records(self, items: Iterable[Item]) -> Iterable[Record]:
        numbers = self.store.numbers((item.modality, item.id) for item in items)
        return self.store.records(list(numbers.values())).values()

    def _store(self, records: list[Record], items: list[Item]) -> tuple[int, int]:
        """Store the records; where another process was quicker with some of them, the others."""
        while True:
            there = self._there(items)
            if not self.replace:
                for item in items:
                    if item.id in there:
                        self._tell_there(item)
                chosen = [place for place, item in enumerate(items) if item.id not in there]
                records, items = [records[place] for place in chosen], [items[place] for place in chosen]
            try:
                self.store.add(records, replace=self.replace)
            except ValueError:
                if self.replace or not self._there(items):
                    raise
                continue
            return len(records), len(there) if self.replace else 0

    def _there(self, items: Iterable[Item]) -> set[str]:
        return {id for _, id in self.store.numbers((item.modality, item.id) for item in items)}

    def _tell_there(self, item: Item) -> None:
        self.report(item.problem(f"the id {item.id!r} is in the engine already; replace=True (--replace) replaces it"))
