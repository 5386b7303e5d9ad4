"""New items into an engine's store: hashed, in portions, each whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from modalhash.codes import pack_signs
from modalhash.progress import Callback, Reporter
from modalhash.search.answers import key_of
from modalhash.search.raw_items import Item, Problem, Report
from modalhash.search.records import Record
from modalhash.search.sources import Portion, opened, portions, total_of
from modalhash.search.training import as_record

if TYPE_CHECKING:
    from modalhash.base import CrossModalHasher
    from modalhash.encoders.protocol import Encoder
    from modalhash.search.store import Store

PORTION = 1024
"""Items that are encoded and stored together: what a killed process may have to do again."""


@dataclass(frozen=True)
class Added:
    """What became of the items of :meth:`modalhash.search.engine.Engine.add`."""

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
        return self._store([as_record(item, code, "hashed") for item, code in zip(kept, packed, strict=True)], kept)

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
        keys = {key_of(item.modality, item.id): item.id for item in items}
        return {keys[key] for key in self.store.numbers(keys)}

    def _tell_there(self, item: Item) -> None:
        self.report(item.problem(f"the id {item.id!r} is in the engine already; replace=True (--replace) replaces it"))
