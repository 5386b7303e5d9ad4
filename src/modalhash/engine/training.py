"""From labelled, unpaired items to an engine's folder: encoders, codes, functions, store."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from modalhash import registry
from modalhash._typing import Array, Codes, Matrix
from modalhash.codes import pack_signs
from modalhash.engine.folder import ITEMS, new_folder, write_parts
from modalhash.engine.raw_items import Item, Report
from modalhash.engine.sources import choose_encoders, opened, portions
from modalhash.progress import Callback, Reporter
from modalhash.store import Record, SqliteStore, Store
from modalhash.validation import check_choice, check_int

if TYPE_CHECKING:
    from modalhash.base import CrossModalHasher
    from modalhash.encoders import Encoder

BATCH = 10_000
"""Items that are stored in one transaction."""


class Material(NamedTuple):
    """Encoded items of one modality."""

    items: list[Item]
    features: Matrix


def build(
    source: Any,
    folder: Path,
    *,
    n_bits: int,
    encoders: Mapping[str, Any] | None,
    method: str,
    parameters: Mapping[str, Any],
    codes: str,
    fields: Mapping[str, str] | None,
    report: Report,
    workers: int | None,
    overwrite: bool,
    callback: Callback | None,
) -> None:
    """Learn from a source and write the engine, which appears in its place when it is whole."""
    check_int(n_bits, "n_bits", at_least=1)
    check_choice(codes, "codes", ("learned", "hashed"))
    hasher = make_hasher(method, n_bits, parameters)
    begin = time.perf_counter()
    with new_folder(folder, overwrite=overwrite) as fresh:  # first: a place that is taken is told before the work
        found = opened(source)
        chosen = choose_encoders(found, encoders)
        seconds: dict[str, float] = {}
        material = encode_all(found, chosen, report, fields=fields, workers=workers, callback=callback)
        seconds["encode"] = time.perf_counter() - begin
        training = {modality: _training_rows(part, hasher) for modality, part in material.items()}
        class_names = fit(hasher, material, training, callback)
        seconds["learn"] = time.perf_counter() - begin - sum(seconds.values())
        more = {
            "method": method,
            "codes": codes,
            "class_names": class_names,
            "trained_on": {modality: len(rows) for modality, rows in training.items()},
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        with SqliteStore(fresh / ITEMS, n_bits=n_bits) as store:
            progress = Reporter(callback)
            for modality, part in material.items():
                kinds, packed = codes_of(hasher, modality, part, training[modality], codes)
                store_all(store, part.items, packed, kinds, progress)
        seconds["store"] = time.perf_counter() - begin - sum(seconds.values())
        more["seconds"] = {name: round(value, 2) for name, value in seconds.items()}
        write_parts(fresh, hasher, {modality: chosen[modality] for modality in material}, more)


def make_hasher(method: str, n_bits: int, parameters: Mapping[str, Any]) -> CrossModalHasher:
    """The method with its parameters; an unknown one is named."""
    hasher = registry.get(method)()
    known = hasher.get_params(deep=False)
    if unknown := [name for name in parameters if name not in (*known, "random_state")]:
        raise ValueError(f"{method} has no parameter {unknown[0]!r}; it has {', '.join(known)}")
    hasher.set_params(n_bits=n_bits, **{name: value for name, value in parameters.items() if name in known})
    return hasher


def encode_all(
    source: Any,
    encoders: Mapping[str, Encoder],
    report: Report,
    *,
    fields: Mapping[str, str] | None,
    workers: int | None,
    callback: Callback | None,
) -> dict[str, Material]:
    """Features of all readable items, with encoders that learned from the training items what they learn."""
    from modalhash.encoders import encode_items

    reads = {modality: encoder.reads for modality, encoder in encoders.items()}
    material = {}
    for portion in portions(source, reads, report, fields=fields):
        encoder = encoders[portion.modality]
        places = [place for place, item in enumerate(portion.items) if item.training]
        everything = len(places) == len(portion.items)
        encoder.fit(portion.contents if everything else _some(portion.contents, places))
        encoded = encode_items(
            encoder, portion.contents, workers=workers, progress=callback, stage=f"encode: {portion.modality}"
        )
        for failure in encoded.failures:
            report(portion.items[failure.row].problem(failure.reason))
        if len(encoded.ok_rows):
            kept = [portion.items[row] for row in encoded.ok_rows.tolist()]
            material[portion.modality] = Material(kept, encoded.features)
    if not material:
        raise ValueError("no usable item: every line was left out, for the reasons reported")
    return material


def fit(
    hasher: CrossModalHasher,
    material: Mapping[str, Material],
    training: Mapping[str, Array],
    callback: Callback | None,
) -> list[str]:
    """Fit the method to the training rows; returns the names of the classes."""
    for modality, rows in training.items():
        if not len(rows):
            what = "has a label" if type(hasher).supervised else "is for training"
            raise ValueError(
                f"{modality!r}: none of {len(material[modality].items)} items {what}. Give labels to some, "
                "leave this modality out of the manifest, or take an unsupervised method (`modalhash methods`)"
            )
    features = {modality: material[modality].features[rows] for modality, rows in training.items()}
    items = {modality: [material[modality].items[row] for row in rows] for modality, rows in training.items()}
    class_names = sorted({label for some in items.values() for item in some for label in item.labels})
    labels = None
    if type(hasher).supervised:
        column = {name: number for number, name in enumerate(class_names)}
        labels = {modality: _label_matrix(some, column) for modality, some in items.items()}
    pairs = _pairs(items) if type(hasher).needs_pairs else None
    anchors = hasher.get_params(deep=False).get("n_anchors")
    if isinstance(anchors, int):  # of few items all are anchors; that is no news to somebody who did not ask for any
        hasher.set_params(n_anchors={modality: min(anchors, len(rows)) for modality, rows in training.items()})
    hasher.fit(features, labels, pairs=pairs, callback=callback)
    return class_names


def codes_of(
    hasher: CrossModalHasher, modality: str, part: Material, training: Array, codes: str
) -> tuple[list[str], Codes]:
    """Kind and code of each item: learned ones for what was trained on if wanted, hashed ones for the rest."""
    packed = pack_signs(hasher.decision_function({modality: part.features})[modality])
    learned = np.zeros(len(packed), dtype=bool)
    if codes == "learned":
        packed[training] = hasher.codes_[modality]
        learned[training] = True
    return ["learned" if own else "hashed" for own in learned], packed


def store_all(
    store: Store, items: list[Item], packed: Codes, kinds: Iterable[str], progress: Reporter | None = None
) -> None:
    """Store items in batches, each whole or not at all."""
    records = [as_record(item, code, kind) for item, code, kind in zip(items, packed, kinds, strict=True)]
    for start in range(0, len(records), BATCH):
        store.add(records[start : start + BATCH])
        if progress is not None:
            progress(f"store: {items[0].modality}", min(start + BATCH, len(records)), len(records))


def as_record(item: Item, code: Codes, kind: str) -> Record:
    """What the store keeps of an item."""
    uri = str(item.path) if item.path is not None else item.uri
    return Record(item.id, item.modality, code, kind, item.text, uri, item.labels, item.extra)


def _training_rows(part: Material, hasher: CrossModalHasher) -> Array:
    """Items that may be learned from: not held out by a split, and labelled where the method learns from labels."""
    needs_labels = type(hasher).supervised
    chosen = [item.training and (bool(item.labels) or not needs_labels) for item in part.items]
    return np.flatnonzero(chosen)


def _label_matrix(items: list[Item], column: Mapping[str, int]) -> Array:
    labels = np.zeros((len(items), max(1, len(column))), dtype=bool)
    for row, item in enumerate(items):
        labels[row, [column[label] for label in item.labels]] = True
    return labels


def _pairs(items: Mapping[str, list[Item]]) -> Array:
    """Rows of the items that have the same id in every modality."""
    rows = [{item.id: row for row, item in enumerate(some)} for some in items.values()]
    shared = [id for id in rows[0] if all(id in others for others in rows[1:])]
    if not shared:
        raise ValueError(
            "this method learns from pairs, and no id stands in every modality; take amsh, which needs none"
        )
    return np.array([[own[id] for own in rows] for id in shared])


def _some(contents: Any, places: list[int]) -> Any:
    return contents[places] if hasattr(contents, "shape") else [contents[place] for place in places]
