"""Train an engine: read and encode unpaired items, fit codes, refinement vectors and confidence, store the items."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from modalhash.core.codes import pack_signs
from modalhash.core.progress import Callback, Reporter
from modalhash.core.typing import Array, Codes, Matrix
from modalhash.core.validation import check_fewer_bits
from modalhash.data import ReadLimits, label_matrix, label_names
from modalhash.encoders import NAMES, NOUNS
from modalhash.engine.items.item import (
    HOME,
    Item,
    ItemBatch,
    ItemFiles,
    OnProblem,
    Problem,
    ProblemCode,
    ReadOptions,
    group_problems,
)
from modalhash.engine.items.photos import reader_of, searching_text, with_picture_text
from modalhash.engine.items.sources import choose_encoders, open_source, read_batches
from modalhash.engine.reports.expected_quality import measure_expected_quality, near_chance, unknown_quality
from modalhash.engine.search.confidence import (
    HELD_OUT,
    MIN_HELD_OUT,
    Confidence,
    LabelWords,
    confidence_of_names,
    fit_confidence,
    hold_out,
    search_held_out,
)
from modalhash.engine.search.photo_words import TEXT, find_named_labels, learn_word_codes, suggest_words, words_for
from modalhash.engine.search.refinement import (
    Learned,
    Refinement,
    learn_refinement,
    model_features,
    sharing_modalities,
)
from modalhash.engine.settings import TrainSettings
from modalhash.engine.storage.feature_cache import FeatureCache, encode_cached
from modalhash.engine.storage.folder import new_folder, write_parts
from modalhash.engine.storage.ingest import CodedItems
from modalhash.engine.storage.location import SQLITE, StoreLocation, create_store
from modalhash.engine.training.code_length import AUTO, Fitted, fit_with_length
from modalhash.engine.training.label_check import LabelCheck
from modalhash.methods import registry
from modalhash.store import Record, Store

if TYPE_CHECKING:
    from modalhash.encoders import Encoder
    from modalhash.methods.base import CrossModalHasher

WITH_LABELS, WITHOUT_LABELS = "rlh", "itq"
"""Default methods."""
ASKED = "labels_asked"
"""Configuration entry with the requested ``labels``, if training found none."""
STORE_BATCH_SIZE = 10_000


class EncodedItems(NamedTuple):
    """Items of one modality and their features."""

    items: list[Item]
    features: Matrix


class TrainingData(NamedTuple):
    """Training items, features and labels by modality."""

    class_names: list[str]
    items: dict[str, list[Item]]
    features: dict[str, Matrix]
    labels: dict[str, Array] | None
    """None if the method does not learn from labels."""


class WordReader(NamedTuple):
    """The encoders of an engine, and the one for words if it has pictures and no texts."""

    encoders: Mapping[str, Encoder]
    words: Encoder | None
    """None if texts are a modality, or if no encoder maps words into the space of the pictures."""
    pictures: str | None
    """The modality that words are searched in; None if texts are a modality."""

    @property
    def by_names(self) -> bool:
        """Whether words are encoded in the space of names."""
        return self.pictures is not None and getattr(self.words, "space", None) == NAMES

    @property
    def sharing(self) -> list[str]:
        """The modalities whose encoders share a space."""
        return sharing_modalities(self.in_space)

    @property
    def in_space(self) -> dict[str, Encoder]:
        """The encoders of modalities and of words."""
        return {**self.encoders, **({} if self.words is None else {TEXT: self.words})}


class TrainedEngine(NamedTuple):
    """A complete engine in a scratch folder, before it gets its name."""

    folder: Path
    place: StoreLocation
    model: CrossModalHasher
    encoders: dict[str, Encoder]
    refinement: Refinement
    class_names: list[str]


@contextmanager
def train_engine(
    source: Any,
    folder: Path,
    settings: TrainSettings,
    *,
    overwrite: bool,
    report: OnProblem,
    callback: Callback | None,
) -> Iterator[TrainedEngine]:
    """Train an engine in a scratch folder, which replaces ``folder`` at the end of the block."""
    begin = time.perf_counter()
    text_reader = reader_of(settings.read_text)
    searched_fields = list(settings.searched_fields)
    if text_reader is not None:
        searched_fields = searching_text(searched_fields)
    with (
        create_store(folder, settings.store, variable=settings.store_variable) as place,
        new_folder(folder, overwrite=overwrite) as fresh,  # raises for an existing folder before the work
    ):
        files = ItemFiles(folder.resolve(), relative=place.kind == SQLITE)
        seconds: dict[str, float] = {}
        left_out: list[Problem] = []

        def note(problem: Problem) -> None:
            left_out.append(problem)
            report(problem)

        notes: list[str] = []
        read = read_training_items(source, settings, note, notes.append)
        chosen, hasher, asked, labels, codes = read.encoders, read.hasher, settings.labels, read.labels, settings.codes
        if labels == "none" and not type(hasher).needs_pairs:
            codes = "hashed"  # codes depend on features alone
        supervised = type(hasher).supervised
        check_learnable(settings, read, left_out)
        caches = FeatureCache(folder), FeatureCache(fresh)
        encoded = _encode_all(read, note, caches, workers=settings.workers, callback=callback)
        if not encoded:
            raise no_usable_item(left_out)
        seconds["encode"] = time.perf_counter() - begin
        if text_reader is not None:
            for modality, part in encoded.items():
                if chosen[modality].reads == "image":
                    part.items[:] = with_picture_text(part.items, text_reader, Reporter(callback))
            seconds["read text"] = time.perf_counter() - begin - sum(seconds.values())
        training = training_rows(hasher, encoded)
        data = _training_data(hasher, encoded, training)
        own = {modality: chosen[modality] for modality in encoded}
        hasher, collisions, tried = _fit(hasher, settings.n_bits, data, own, callback)
        seconds["learn"] = time.perf_counter() - begin - sum(seconds.values())
        seed = settings.method_parameters["random_state"]
        seed = seed if isinstance(seed, int) else 0
        reader = _read_words(own, chosen.get(TEXT), data.class_names)
        learned = _learn_vectors(hasher, data, reader, seed)
        seconds["refine"] = time.perf_counter() - begin - sum(seconds.values())
        confidence, expected = _learn_confidence(hasher, data, reader, seed, Reporter(callback))
        if text := near_chance(expected):
            warnings.warn(text, UserWarning, stacklevel=4)  # the caller of Engine.train
        seconds["confidence"] = time.perf_counter() - begin - sum(seconds.values())
        more = {
            **({} if collisions is None else collisions.to_config()),
            **({"bits_tried": tried} if settings.n_bits == "auto" else {}),
            "method": read.method,
            "codes": codes,
            "labels": labels,
            **({} if asked == labels else {ASKED: asked}),
            **({"named_labels": read.named} if read.named else {}),
            **({"notes": notes} if notes else {}),
            **({"label_overlap": read.label_check().to_config()} if supervised and len(encoded) > 1 else {}),
            "class_names": data.class_names,
            "searched_fields": searched_fields,
            **place.to_config(),
            "expected": expected,
            "trained_on": {modality: len(rows) for modality, rows in training.items()},
            HOME: str(files.folder),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        with place.create(fresh, n_bits=hasher.n_bits, searched_fields=searched_fields) as items:
            progress = Reporter(callback)
            for modality, part in encoded.items():
                kinds, packed = _codes_of(hasher, own[modality], modality, part, training[modality], codes)
                vectors = learned.refinement.vectors(modality, part.features)
                for from_labels in (False, True):
                    rows = np.flatnonzero([(kinds[row] == "learned") == from_labels for row in training[modality]])
                    posteriors = learned.training_posteriors(modality, labels=from_labels)[rows]
                    vectors[training[modality][rows], : posteriors.shape[1]] = posteriors
                _store_all(items, CodedItems(part.items, packed, vectors).records(kinds, files), progress)
                if modality == reader.pictures:
                    counts = Counter(label for item in part.items for label in item.labels)
                    more["examples"] = suggest_words(learned.refinement, vectors, counts)
        seconds["store"] = time.perf_counter() - begin - sum(seconds.values())
        more["seconds"] = {name: round(value, 2) for name, value in seconds.items()}
        write_parts(fresh, hasher, own, more, learned.refinement, confidence, reader.words)
        yield TrainedEngine(fresh, place, hasher, own, learned.refinement, data.class_names)


class ReadItems(NamedTuple):
    """The items of a source, a batch per modality, and how to learn from them."""

    source: Any
    encoders: dict[str, Encoder]
    """Of all possible modalities."""
    batches: list[ItemBatch]
    named: dict[str, dict[str, Any]]
    """Labels that unlabelled texts name, by modality; empty unless requested."""
    labels: str
    """The requested one, or "none" because no item has labels."""
    method: str
    hasher: CrossModalHasher

    @property
    def by_modality(self) -> dict[str, ItemBatch]:
        return {batch.modality: batch for batch in self.batches}

    def label_check(self) -> LabelCheck:
        return LabelCheck.of(
            {batch.modality: [item.training_labels for item in batch.items if item.training] for batch in self.batches}
        )


def choose_method(method: str | None, parameters: Mapping[str, Any], labels: str) -> tuple[str, CrossModalHasher]:
    """Return the name of the method, or of the default one, and a new hasher."""
    method = method or (WITHOUT_LABELS if labels == "none" else WITH_LABELS)
    hasher = _make_hasher(method, parameters)
    _check_method(method, type(hasher), labels)
    return method, hasher


def read_training_items(
    source: Any, settings: TrainSettings, report: OnProblem, note: Callable[[str], None]
) -> ReadItems:
    """Read all items of a source; ``note`` is called with notes on the reading.

    If ``labels`` is "names", unlabelled texts get the labels that they name. If no item has labels and no method is
    given, features alone are learned from.
    """
    labels, parameters = settings.labels, settings.method_parameters
    how = ReadOptions(settings.fields, settings.table, labels == "folders", settings.exif, note)
    name, hasher = choose_method(settings.method, parameters, labels)
    opened = open_source(source, fields=how.fields, table=how.table)
    chosen = choose_encoders(opened, settings.encoders, quality=settings.quality, download=settings.download)
    limit = LabelLimit(opened) if type(hasher).supervised else None
    batches = _read_all(opened, chosen, report, limit, how, every=settings.learn_from == "all")
    named = _name_labels(batches, chosen, limit) if labels == "names" else {}
    unlabelled = not any(item.labels for batch in batches for item in batch.items)
    if labels in ("given", "folders") and settings.method is None and unlabelled:
        labels = "none"
        name, hasher = choose_method(None, parameters, labels)
    return ReadItems(opened, chosen, batches, named, labels, name, hasher)


def check_learnable(settings: TrainSettings, read: ReadItems, left_out: Sequence[Problem]) -> None:
    """Raise ValueError for items that cannot be learned from, before any work."""
    hasher = read.hasher
    if not read.batches:
        raise no_usable_item(left_out)
    _set_space(
        hasher, settings.method_parameters, {batch.modality: read.encoders[batch.modality] for batch in read.batches}
    )
    if type(hasher).supervised:
        _check_labelled(read.batches)
        if not type(hasher).needs_pairs:
            read.label_check().check_shared()
    sizes = {modality: len(rows) for modality, rows in training_rows(hasher, read.by_modality).items()}
    check_fewer_bits(1 if settings.n_bits == AUTO else settings.n_bits, sizes)


def no_usable_item(left_out: Sequence[Problem]) -> ValueError:
    """Return the error for a source without usable items, with the reasons and an example of each."""
    if not left_out:
        return ValueError("no usable item: the source has none; expected at least one text or picture")
    reasons = "; ".join(f"{len(group)} × {what}, e.g. {group[0]}" for what, group in group_problems(left_out).items())
    return ValueError(f"no usable item: all {len(left_out):,} were left out. {reasons}")


def _check_method(name: str, method: type[CrossModalHasher], labels: str) -> None:
    """Raise if a supervised method gets no labels, or an unsupervised one is to learn from named labels."""
    if labels == "none" and method.supervised:
        raise ValueError(
            f"{name} learns from labels, and with labels='none' (--labels none) it gets none. Omit the method, "
            f"which selects {WITHOUT_LABELS}, or choose another that is unsupervised (`modalhash methods`)"
        )
    if labels == "names" and not method.supervised:
        raise ValueError(
            f"{name} does not learn from labels, so labels='names' (--labels names) has no effect; omit the "
            "method or this option"
        )


def _make_hasher(method: str, parameters: Mapping[str, Any]) -> CrossModalHasher:
    hasher = registry.get(method)()
    known = hasher.get_params(deep=False)
    if "n_bits" in parameters:
        raise ValueError("the code length is not a method parameter; give it as n_bits=… (--bits)")
    if unknown := [name for name in parameters if name not in (*known, "random_state")]:
        raise ValueError(f"{method} has no parameter {unknown[0]!r}; it has {', '.join(known)}")
    hasher.set_params(**{name: value for name, value in parameters.items() if name in known})
    return hasher


def _read_all(
    source: Any,
    encoders: Mapping[str, Encoder],
    report: OnProblem,
    limit: LabelLimit | None,
    how: ReadOptions,
    *,
    every: bool,
) -> list[ItemBatch]:
    """Return all items of a source, a batch per modality.

    ``every`` makes all of them training items, regardless of their field ``split``.
    """
    input_kinds = {modality: encoder.reads for modality, encoder in encoders.items()}
    batches = []
    for batch in read_batches(source, input_kinds, report, how):
        if every:
            batch.items[:] = [replace(item, training=True) for item in batch.items]
        if limit is not None:
            limit.take(item for item in batch.items if item.training)
        batches.append(batch)
    return batches


def _name_labels(
    batches: Sequence[ItemBatch], encoders: Mapping[str, Encoder], limit: LabelLimit | None
) -> dict[str, dict[str, Any]]:
    """Give unlabelled texts the labels that they name, for training; return statistics by modality."""
    names = label_names(item.labels for batch in batches for item in batch.items if item.training)
    found = {}
    for batch in batches:
        rows = [
            row for row, item in enumerate(batch.items) if item.training and not item.labels and item.text is not None
        ]
        if not rows or encoders[batch.modality].reads != "text":
            continue
        named = find_named_labels([batch.items[row].text or "" for row in rows], names, encoders[batch.modality])
        for row, own in zip(rows, named.labels, strict=True):
            batch.items[row] = replace(batch.items[row], named_labels=own)
        if limit is not None:
            limit.take(batch.items[row] for row in rows)
        found[batch.modality] = named.to_config()
    if not found:
        raise ValueError(
            "labels='names' (--labels names) labels unlabelled texts by the labels they name, and there is no such text"
        )
    return found


def _set_space(hasher: CrossModalHasher, parameters: Mapping[str, Any], encoders: Mapping[str, Encoder]) -> None:
    """Set ``space="shared"`` on a method that has this parameter, if the encoders share a space.

    Several modalities without a common space raise, because nothing relates pictures to texts.
    """
    if "space" not in hasher.get_params(deep=False) or len(encoders) < 2:
        return
    spaces = {getattr(encoder, "space", None) for encoder in encoders.values()}
    if parameters.get("space") != "shared" and (None in spaces or len(spaces) > 1):
        names = " and ".join(map(repr, encoders))
        raise ValueError(
            f"nothing relates {names}: there are no labels and no pairs, and their encoders share no space. Three "
            "solutions: give labels to some items of each and omit labels='none' (--labels none); give related items "
            "the same id and choose a method that learns from pairs (--method cre); or use one encoder with comparable "
            "vectors for all, such as CLIP (see docs/without-labels.md). A single modality needs none of them"
        )
    hasher.set_params(space="shared")


def _check_labelled(batches: Sequence[ItemBatch]) -> None:
    """Raise ValueError for a modality without labelled training items."""
    names = label_names(item.labels for batch in batches for item in batch.items if item.training)
    for batch in batches:
        if any(item.training and item.training_labels for item in batch.items):
            continue
        ways = ["Give labels to some"]
        if len(batches) > 1:
            ways.append("leave this modality out of the manifest")
        texts = [item.text for item in batch.items if item.training and item.text is not None]
        if n := sum(map(bool, find_named_labels(texts, names).labels)):
            ways.append(
                f"use labels='names' (--labels names), because {n:,} of {len(texts):,} texts name labels of the others"
            )
        ways.append("learn without labels with labels='none' (--labels none)")
        raise ValueError(
            f"{batch.modality!r}: none of {len(batch.items)} items has a label. {', '.join(ways[:-1])}, or {ways[-1]}"
        )


def _encode_all(
    read: ReadItems,
    report: OnProblem,
    caches: tuple[FeatureCache, FeatureCache],
    *,
    workers: int | None,
    callback: Callback | None,
) -> dict[str, EncodedItems]:
    """Fit each encoder to the training items, encode all items, and report those that fail.

    ``caches`` belong to the engine that is replaced, if any, and to the new one.
    """
    by_modality = {}
    for batch in read.batches:
        encoder = read.encoders[batch.modality]
        fit_encoder_to(encoder, batch, supervised=type(read.hasher).supervised)
        encoded = encode_cached(
            encoder, batch.contents, *caches, workers=workers, progress=callback, stage=f"encode: {batch.modality}"
        )
        for failure in encoded.failures:
            report(batch.items[failure.row].problem(ProblemCode.UNREADABLE, failure.reason))
        if len(encoded.ok_rows):
            items = [batch.items[row] for row in encoded.ok_rows.tolist()]
            by_modality[batch.modality] = EncodedItems(items, encoded.features)
    return by_modality


def fit_encoder_to(encoder: Encoder, batch: ItemBatch, *, supervised: bool) -> None:
    """Fit an encoder to the training items of a batch, with labels if it takes them."""
    from modalhash.encoders import fit_encoder

    rows = [row for row, item in enumerate(batch.items) if item.training]
    labels = None
    if supervised and hasattr(encoder, "fit_labelled"):
        own = [batch.items[row].training_labels for row in rows]
        labels = label_matrix(own, label_names(own))
    contents = batch.contents if len(rows) == len(batch.items) else batch.contents_of(rows)
    fit_encoder(encoder, contents, labels)


class LabelLimit:
    """Limits the size of the label matrix of manifest files, because every short line may have a new label."""

    def __init__(self, source: Any) -> None:
        paths = source if isinstance(source, list) and all(isinstance(one, Path) for one in source) else []
        self._files = [path for path in paths if path.is_file()]
        self._names: set[str] = set()
        self._n_items = 0

    def take(self, items: Iterable[Item]) -> None:
        """Count the labels of some items; raise ReadError if the matrix becomes too large."""
        if not self._files:
            return
        for item in items:
            self._names.update(item.training_labels)
            self._n_items += bool(item.training_labels)
        largest = max(self._files, key=lambda path: path.stat().st_size)
        what = f"a matrix of {len(self._names):,} labels of {self._n_items:,} items"
        ReadLimits().check(self._n_items * len(self._names), largest, what)


def _training_data(
    hasher: CrossModalHasher, encoded: Mapping[str, EncodedItems], training: Mapping[str, Array]
) -> TrainingData:
    """Return the training items; raise ValueError for a modality without any."""
    for modality, rows in training.items():
        if not len(rows):
            what = "has a label" if type(hasher).supervised else "is for training"
            raise ValueError(
                f"{modality!r}: none of {len(encoded[modality].items)} items {what}. Give labels to some, "
                "leave this modality out of the manifest, or learn without labels (labels='none', --labels none)"
            )
    features = {modality: encoded[modality].features[rows] for modality, rows in training.items()}
    items = {modality: [encoded[modality].items[row] for row in rows] for modality, rows in training.items()}
    supervised = type(hasher).supervised
    class_names = label_names(item.training_labels for some in items.values() for item in some) if supervised else []
    labels = None
    if supervised:
        labels = {
            modality: label_matrix([item.training_labels for item in some], class_names)
            for modality, some in items.items()
        }
    return TrainingData(class_names, items, features, labels)


def _fit(
    hasher: CrossModalHasher,
    n_bits: int | str,
    data: TrainingData,
    encoders: Mapping[str, Encoder],
    callback: Callback | None,
) -> Fitted:
    pairs = _pairs_of(data.items) if type(hasher).needs_pairs else None
    hasher = _with_anchors(hasher, data)
    X = {name: model_features(hasher, encoders[name], values) for name, values in data.features.items()}
    return fit_with_length(hasher, n_bits, X, data.labels, pairs=pairs, callback=callback)


def _codes_of(
    hasher: CrossModalHasher, encoder: Encoder, modality: str, part: EncodedItems, training: Array, codes: str
) -> tuple[list[str], Codes]:
    """Return kind and code of each item: learned for training items if requested, hashed for the others.

    Items trained with labels that they only name are hashed, so that these labels do not determine their codes.
    """
    features = model_features(hasher, encoder, part.features)
    packed = pack_signs(hasher.decision_function({modality: features})[modality])
    learned = np.zeros(len(packed), dtype=bool)
    if codes == "learned":
        own = np.array([not part.items[row].named_labels for row in training], dtype=bool)
        packed[training[own]] = hasher.codes_[modality][own]
        learned[training[own]] = True
    return ["learned" if own else "hashed" for own in learned], packed


def _store_all(store: Store, records: list[Record], progress: Reporter) -> None:
    for start in range(0, len(records), STORE_BATCH_SIZE):
        store.add(records[start : start + STORE_BATCH_SIZE])
        progress(f"store: {records[0].modality}", min(start + STORE_BATCH_SIZE, len(records)), len(records))


def training_rows(hasher: CrossModalHasher, parts: Mapping[str, EncodedItems | ItemBatch]) -> dict[str, Array]:
    """Return the training rows: not held out by a split, and labelled if the method is supervised."""
    needs_labels = type(hasher).supervised
    return {
        modality: np.flatnonzero(
            [item.training and (bool(item.training_labels) or not needs_labels) for item in part.items]
        )
        for modality, part in parts.items()
    }


def _read_words(encoders: Mapping[str, Encoder], given: Encoder | None, class_names: Sequence[str]) -> WordReader:
    """Choose the encoder for words as queries."""
    pictures = next((name for name, encoder in encoders.items() if encoder.reads == "image"), None)
    if pictures is None or TEXT in encoders or any(encoder.reads == "text" for encoder in encoders.values()):
        return WordReader(encoders, None, None)
    return WordReader(encoders, words_for(encoders[pictures], given, class_names), pictures)


def _learn_vectors(hasher: CrossModalHasher, data: TrainingData, reader: WordReader, seed: int) -> Learned:
    """Learn refinement vectors, and codes of words if texts are not a modality."""
    sharing = list(data.features) if getattr(hasher, "space", None) == "shared" else reader.sharing
    learned = learn_refinement(hasher, data.features, data.labels, seed=seed, encoders=reader.in_space, sharing=sharing)
    name = reader.pictures
    if name is None or not (learned.refinement.knows_labels or learned.refinement.meaning):
        return learned
    posteriors = learned.training_posteriors(name, labels=False)
    vectors = learned.refinement.joined(name, posteriors, data.features[name])
    made = learn_word_codes(learned.refinement, vectors, hasher.codes_[name], hasher.n_bits)
    return learned._replace(refinement=made)


def _learn_confidence(
    hasher: CrossModalHasher, data: TrainingData, reader: WordReader, seed: int, progress: Reporter
) -> tuple[Confidence | None, dict[str, Any]]:
    """Refit the method to most of the training items, and learn confidence from searches for the others.

    Return the expected quality for new items too, or the reason why it is unknown.
    """
    from sklearn.base import clone

    names = confidence_of_names(str(reader.pictures)) if reader.by_names else None
    if data.labels is None:
        return names, unknown_quality("it was trained without labels, so it is unknown which hits are right")
    held = hold_out(data.features, seed)
    fewest = min(held.held_out, key=lambda name: len(held.held_out[name]))
    if len(held.held_out[fewest]) < MIN_HELD_OUT:
        return names, unknown_quality(
            f"{len(data.items[fewest]):,} labelled {fewest} items are too few to hold some out for measuring; "
            f"about {HELD_OUT * MIN_HELD_OUT} of each modality are needed"
        )
    rest = TrainingData(
        data.class_names,
        {name: [items[row] for row in held.learned[name].tolist()] for name, items in data.items.items()},
        {name: values[held.learned[name]] for name, values in data.features.items()},
        {name: values[held.learned[name]] for name, values in data.labels.items()},
    )
    progress("confidence", 0, 2)
    pairs = _pairs_of(rest.items) if type(hasher).needs_pairs else None
    model = _with_anchors(clone(hasher), rest).fit(rest.features, rest.labels, pairs=pairs)
    progress("confidence", 1, 2)
    known = {}
    for name, encoder in reader.encoders.items():
        texts = [item.text for item in data.items.get(name, ())]
        if encoder.reads == "text" and texts and all(text is not None for text in texts):
            known[name] = _known_words(encoder, texts, held.learned[name], held.held_out[name])
    words = None
    if reader.pictures is not None:
        everyday = np.array([name.casefold() in NOUNS for name in data.class_names])
        words = LabelWords(None if reader.words is None else reader.words.encode(data.class_names), everyday)
    vectors = _learn_vectors(model, rest, reader, seed)
    searches = search_held_out(model, data.features, data.labels, held, vectors, known=known, words=words, seed=seed)
    ids = {name: [item.id for item in items] for name, items in data.items.items()}
    if reader.pictures is not None:
        ids[TEXT] = data.class_names
    learned, expected = fit_confidence(searches), measure_expected_quality(searches, data.features, ids)
    if reader.by_names:
        learned = confidence_of_names(str(reader.pictures), learned)
    progress("confidence", 2, 2)
    return learned, expected


def _known_words(encoder: Encoder, texts: Sequence[str | None], learned: Array, held_out: Array) -> Array:
    """Return the fraction of known words of held-out texts, for an encoder fitted to the others."""
    if not hasattr(encoder, "known"):
        return np.ones(len(held_out))
    other = deepcopy(encoder).fit([texts[row] for row in learned.tolist()])
    return np.asarray(other.known([texts[row] for row in held_out.tolist()]))


def _with_anchors(hasher: CrossModalHasher, data: TrainingData) -> CrossModalHasher:
    """Cap the number of anchors at the number of items, which avoids a warning of the method."""
    anchors = hasher.get_params(deep=False).get("n_anchors")
    if isinstance(anchors, int):
        anchors = dict.fromkeys(data.items, anchors)
    if isinstance(anchors, Mapping):
        hasher.set_params(n_anchors={name: min(n, len(data.items[name])) for name, n in anchors.items()})
    return hasher


def _pairs_of(items: Mapping[str, list[Item]]) -> Array:
    """Return the rows of the items that have the same id in every modality."""
    rows = [{item.id: row for row, item in enumerate(some)} for some in items.values()]
    shared = [id for id in rows[0] if all(id in others for others in rows[1:])]
    if not shared:
        raise ValueError("this method learns from pairs, and no id is in every modality; choose rlh, which needs none")
    return np.array([[own[id] for own in rows] for id in shared])
