"""Learn from items that were labelled since the last training, chunk by chunk, without learning the others again.

The method needs ``partial_fit``. Encoders, feature maps, learned codes, refinement vectors of other items, confidence
and the expected quality stay as they are. Hash functions change, so the codes of all items without labels follow.
Labels that are new get codes, but refinement vectors do not know them before a full training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from modalhash.core.label_names import LabelNames
from modalhash.core.progress import Callback, Reporter
from modalhash.data import label_matrix
from modalhash.engine.items.item import HOME, ItemFiles, OnProblem
from modalhash.engine.search.refinement import model_features
from modalhash.engine.settings import RetrainOverrides, TrainSettings
from modalhash.engine.storage.folder import EngineError, EngineFiles, new_folder, write_parts
from modalhash.engine.storage.ingest import BATCH_SIZE, FeatureCache, ItemCoder, with_uri
from modalhash.engine.storage.location import SQLITE, create_store, publish
from modalhash.engine.storage.relabel import LabelCoder
from modalhash.engine.training.train import STORE_BATCH_SIZE, Journal, StoredItem, TrainedEngine
from modalhash.store import Key, Record

CHUNK_SIZE = 2000
"""Items of a chunk, for methods without a ``chunk_size``."""
WRITTEN = (
    *("kind", "format", "generation", "modalhash", "n_bits", "model", "modalities", "refinement", "words"),
    *("confidence", "store"),
)
"""Entries of the configuration that are written with the parts of an engine."""


def check_online(parts: EngineFiles, overrides: RetrainOverrides) -> None:
    """Raise if an engine cannot learn from new items alone, or if settings are to change."""
    if changed := [name for name, value in vars(overrides).items() if value and name not in ("online", "workers")]:
        raise ValueError(
            f"online=True (--online) keeps the settings of the last training, and got {changed[0]}; omit one of the two"
        )
    if not hasattr(parts.model, "partial_fit"):
        raise EngineError(
            f"{parts.config['method']} cannot learn from new items alone, because it has no partial_fit; retrain from "
            "all items without online=True (--online), or choose lemon (--method lemon), which can from then on"
        )
    if parts.config["codes"] != "learned":
        raise EngineError(
            "all codes of this engine are hashed, so it is unknown which items were learned from; retrain from all "
            "items without online=True (--online)"
        )


@contextmanager
def learn_online(
    items: Sequence[StoredItem],
    folder: Path,
    settings: TrainSettings,
    *,
    overwrite: bool,
    report: OnProblem,
    callback: Callback | None,
    parts: EngineFiles,
) -> Iterator[TrainedEngine]:
    """Make an engine that has learned from the new items too, which replaces ``folder`` at the end of the block."""
    journal, progress = Journal(report, callback), Reporter(callback)
    new = [item for item in items if item.labels and item.record.kind != "learned"]
    spelling = LabelNames(parts.config["class_names"])
    names = list(
        dict.fromkeys([*parts.config["class_names"], *(one for item in new for one in spelling.of(item.labels))])
    )
    basis = parts.refinement.basis
    refinement = replace(parts.refinement, basis=np.pad(basis, ((0, len(names) - len(basis)), (0, 0))))
    with (
        create_store(folder, settings.store, variable=settings.store_variable) as place,
        new_folder(folder, overwrite=overwrite) as fresh,
    ):
        cache = FeatureCache(folder).copy_to(fresh)
        files = ItemFiles(folder.resolve(), relative=place.kind == SQLITE)
        coder = ItemCoder(parts.model, parts.encoders, refinement, journal.problem, settings.workers, cache)
        fields = parts.config["searched_fields"]
        with place.create(fresh, n_bits=parts.model.n_bits, searched_fields=fields) as store:
            labels = LabelCoder(parts.model, names, refinement, store)
            records = {item.key: item.record for item in items if item.record.kind == "learned"}
            learned = _learn(new, coder, labels, progress)
            journal.end("learn")
            records |= learned
            records |= _hash([item for item in items if not item.labels and item.key not in records], coder, progress)
            journal.end("hash")
            ordered = [with_uri(records[item.key], files) for item in items if item.key in records]
            for start in range(0, len(ordered), STORE_BATCH_SIZE):
                store.add(ordered[start : start + STORE_BATCH_SIZE])
            journal.end("store")
        taught = Counter(modality for modality, _ in learned)
        config = {
            **{name: value for name, value in parts.config.items() if name not in WRITTEN},
            **place.to_config(),
            HOME: str(files.folder),
            "class_names": names,
            "trained_on": {name: n + taught[name] for name, n in parts.config["trained_on"].items()},
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": journal.seconds,
        }
        write_parts(fresh, parts.model, parts.encoders, config, refinement, parts.confidence, parts.words)
        publish(fresh, place)
        sizes = Counter((record.modality, record.kind) for record in ordered)
        left_out = tuple(journal.left_out)
        yield TrainedEngine(folder, fresh, place, parts.model, parts.encoders, refinement, names, sizes, left_out)


def _learn(new: Sequence[StoredItem], coder: ItemCoder, labels: LabelCoder, progress: Reporter) -> dict[Key, Record]:
    """Learn from new items in shuffled chunks; return their records with learned codes."""
    model: Any = coder.model
    size = getattr(model, "chunk_size", CHUNK_SIZE)
    order = np.random.default_rng(0).permutation(len(new))
    learned: dict[Key, Record] = {}
    for chunk in np.split(order, np.arange(1, len(new) // size) * size):  # the last one takes the rest
        X, items = {}, {}
        for modality, some in _by_modality(new[row] for row in chunk.tolist()).items():
            features, items[modality] = coder.encode(modality, some, [item.content for item in some])
            X[modality] = model_features(model, coder.encoders[modality], features)
        X = {modality: values for modality, values in X.items() if items[modality]}
        if not X:
            continue
        known = {modality: [labels.known(item.labels) for item in items[modality]] for modality in X}
        model.partial_fit(X, {modality: label_matrix(rows, labels.class_names) for modality, rows in known.items()})
        for modality in X:
            before = [item.record for item in items[modality]]
            codes = [code.tobytes() for code in model.codes_[modality]]
            learned |= {record.key: record for record in labels.learn(before, codes, before)}
        progress("learn", len(learned), max(len(learned), len(new)))
    return learned


def _hash(items: Sequence[StoredItem], coder: ItemCoder, progress: Reporter) -> dict[Key, Record]:
    """Return the records of items with new hashed codes."""
    hashed: dict[Key, Record] = {}
    for modality, some in _by_modality(items).items():
        for start in range(0, len(some), BATCH_SIZE):
            part = some[start : start + BATCH_SIZE]
            coded = coder.hash(modality, part, [item.content for item in part])
            hashed |= {record.key: record for record in coded.records("hashed")}
            progress(f"hash: {modality}", start + len(part), len(some))
    return hashed


def _by_modality(items: Iterable[StoredItem]) -> dict[str, list[StoredItem]]:
    found: dict[str, list[StoredItem]] = {}
    for item in items:
        found.setdefault(item.modality, []).append(item)
    return found
