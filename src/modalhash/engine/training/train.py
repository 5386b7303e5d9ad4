"""Train an engine: read and encode unpaired items, fit codes, refinement vectors and confidence, store the items."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from modalhash.core.codes import pack_signs
from modalhash.core.progress import Callback, Reporter
from modalhash.core.typing import Array
from modalhash.encoders import NAMES, NOUNS
from modalhash.engine.items.item import HOME, Item, ItemFiles, OnProblem, Problem, ProblemCode
from modalhash.engine.items.photos import Reader, reader_of, with_picture_text
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
from modalhash.engine.search.photo_words import TEXT, learn_word_codes, suggest_words, words_for
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
from modalhash.engine.training.corpus import (
    Corpus,
    TrainingInput,
    check_learnable,
    no_usable_item,
    read_training_input,
)
from modalhash.store import Store

if TYPE_CHECKING:
    from modalhash.encoders import Encoder
    from modalhash.methods.base import CrossModalHasher

ASKED = "labels_asked"
"""Configuration entry with the requested ``labels``, if training found none."""
STORE_BATCH_SIZE = 10_000


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
    encoders: Mapping[str, Encoder]
    refinement: Refinement
    class_names: list[str]


class Trained(NamedTuple):
    """What was learned from a corpus."""

    rows: dict[str, Array]
    """Of the corpus, by modality, that were learned from."""
    fitted: Fitted
    reader: WordReader
    vectors: Learned
    confidence: Confidence | None
    expected: dict[str, Any]


@dataclass
class Journal:
    """Records what happens in a training."""

    report: OnProblem
    callback: Callback | None
    left_out: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    """By stage."""
    _begun: float = field(default_factory=time.perf_counter)

    def problem(self, problem: Problem) -> None:
        self.left_out.append(problem)
        self.report(problem)

    def end(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage], self._begun = round(now - self._begun, 2), now


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
    journal = Journal(report, callback)
    read_text = reader_of(settings.read_text)
    with (
        create_store(folder, settings.store, variable=settings.store_variable) as place,
        new_folder(folder, overwrite=overwrite) as fresh,  # raises for an existing folder before the work
    ):
        given = read_training_input(source, settings, journal.problem, journal.notes.append)
        check_learnable(settings, given, journal.left_out)
        corpus = _encode(given, (FeatureCache(folder), FeatureCache(fresh)), settings.workers, journal)
        if read_text is not None:
            _read_pictures(corpus, given.encoders, read_text, journal)
        trained = _learn(given, corpus, settings, journal)
        if text := near_chance(trained.expected):
            warnings.warn(text, UserWarning, stacklevel=4)  # the caller of Engine.train
        model, reader, refinement = trained.fitted.hasher, trained.reader, trained.vectors.refinement
        files = ItemFiles(folder.resolve(), relative=place.kind == SQLITE)
        config = _config(given, corpus, trained, settings) | place.to_config() | {HOME: str(files.folder)}
        if journal.notes:
            config["notes"] = journal.notes
        with place.create(fresh, n_bits=model.n_bits, searched_fields=config["searched_fields"]) as store:
            config |= _store(store, corpus, trained, files, config["codes"], Reporter(callback))
        journal.end("store")
        config["seconds"] = journal.seconds
        write_parts(fresh, model, reader.encoders, config, refinement, trained.confidence, reader.words)
        yield TrainedEngine(fresh, place, model, reader.encoders, refinement, corpus.class_names)


def _encode(
    given: TrainingInput, caches: tuple[FeatureCache, FeatureCache], workers: int | None, journal: Journal
) -> Corpus:
    """Fit each encoder to the training items and encode all items; items that fail are reported and left out.

    ``caches`` belong to the engine that is replaced, if any, and to the new one.
    """
    corpus, rows, features = given.corpus, {}, {}
    for modality, items in corpus.items.items():
        encoder = given.encoders[modality]
        corpus.fit_encoder(encoder, modality)
        encoded = encode_cached(
            encoder,
            corpus.contents[modality],
            *caches,
            workers=workers,
            progress=journal.callback,
            stage=f"encode: {modality}",
        )
        for failure in encoded.failures:
            journal.problem(items[failure.row].problem(ProblemCode.UNREADABLE, failure.reason))
        if len(encoded.ok_rows):
            rows[modality], features[modality] = encoded.ok_rows, encoded.features
    if not rows:
        raise no_usable_item(journal.left_out)
    journal.end("encode")
    return replace(corpus, contents={}).take(rows).with_features(features)


def _read_pictures(corpus: Corpus, encoders: Mapping[str, Encoder], read: Reader, journal: Journal) -> None:
    """Add the text in pictures to their items."""
    for modality, items in corpus.items.items():
        if encoders[modality].reads == "image":
            items[:] = with_picture_text(items, read, Reporter(journal.callback))
    journal.end("read text")


def _learn(given: TrainingInput, corpus: Corpus, settings: TrainSettings, journal: Journal) -> Trained:
    """Learn codes, then refinement vectors, then confidence from the training items."""
    rows = corpus.training_rows()
    _check_training(corpus, rows)
    taught = corpus.take(rows)
    encoders = {modality: given.encoders[modality] for modality in corpus.items}
    seed = settings.method_parameters["random_state"]
    seed = seed if isinstance(seed, int) else 0
    fitted = _fit(given.hasher, settings.n_bits, taught, encoders, journal.callback)
    journal.end("learn")
    reader = _read_words(encoders, given.encoders.get(TEXT), corpus.class_names)
    vectors = _learn_vectors(fitted.hasher, taught, reader, seed)
    journal.end("refine")
    confidence, expected = _learn_confidence(fitted.hasher, taught, reader, seed, Reporter(journal.callback))
    journal.end("confidence")
    return Trained(rows, fitted, reader, vectors, confidence, expected)


def _config(given: TrainingInput, corpus: Corpus, trained: Trained, settings: TrainSettings) -> dict[str, Any]:
    """Return what the configuration of an engine says of its training."""
    hasher, collisions, tried = trained.fitted
    by_features = given.labels == "none" and not type(hasher).needs_pairs  # codes depend on features alone
    return {
        **({} if collisions is None else collisions.to_config()),
        **({"bits_tried": tried} if settings.n_bits == AUTO else {}),
        "method": given.method,
        "codes": "hashed" if by_features else settings.codes,
        "labels": given.labels,
        **({} if settings.labels == given.labels else {ASKED: settings.labels}),
        **({"named_labels": given.named} if given.named else {}),
        **({"label_overlap": corpus.label_check().to_config()} if corpus.labels and len(corpus.items) > 1 else {}),
        "class_names": corpus.class_names,
        "searched_fields": settings.all_searched_fields,
        "expected": trained.expected,
        "trained_on": {modality: len(rows) for modality, rows in trained.rows.items()},
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _store(
    store: Store, corpus: Corpus, trained: Trained, files: ItemFiles, codes: str, progress: Reporter
) -> dict[str, Any]:
    """Store all items with their codes and vectors; return words that find pictures, for the configuration."""
    examples = {}
    for modality, items in corpus.items.items():
        coded, kinds = _code(modality, corpus, trained, codes)
        records = coded.records(kinds, files)
        for start in range(0, len(records), STORE_BATCH_SIZE):
            store.add(records[start : start + STORE_BATCH_SIZE])
            progress(f"store: {modality}", min(start + STORE_BATCH_SIZE, len(records)), len(records))
        if modality == trained.reader.pictures and coded.vectors is not None:
            counts = Counter(label for item in items for label in item.labels)
            examples["examples"] = suggest_words(trained.vectors.refinement, coded.vectors, counts)
    return examples


def _code(modality: str, corpus: Corpus, trained: Trained, codes: str) -> tuple[CodedItems, list[str]]:
    """Return the items of a modality with codes and vectors, and the kind of each code.

    Training items have learned codes if requested, the others hashed ones. Items trained with labels that they only
    name are hashed, so that these labels do not determine their codes.
    """
    hasher, refinement = trained.fitted.hasher, trained.vectors.refinement
    items, features, training = corpus.items[modality], corpus.features[modality], trained.rows[modality]
    projected = hasher.decision_function(
        {modality: model_features(hasher, trained.reader.encoders[modality], features)}
    )
    packed = pack_signs(projected[modality])
    vectors = refinement.vectors(modality, features)
    own = np.array([codes == "learned" and not items[row].named_labels for row in training.tolist()], dtype=bool)
    packed[training[own]] = hasher.codes_[modality][own]
    for from_labels, some in ((True, own), (False, ~own)):
        posteriors = trained.vectors.training_posteriors(modality, labels=from_labels)[some]
        vectors[training[some], : posteriors.shape[1]] = posteriors
    learned = np.isin(np.arange(len(items)), training[own])
    return CodedItems(items, packed, vectors), ["learned" if one else "hashed" for one in learned.tolist()]


def _check_training(corpus: Corpus, rows: Mapping[str, Array]) -> None:
    """Raise ValueError for a modality without training items."""
    for modality, some in rows.items():
        if not len(some):
            what = "is for training" if corpus.labels is None else "has a label"
            raise ValueError(
                f"{modality!r}: none of {len(corpus.items[modality])} items {what}. Give labels to some, "
                "leave this modality out of the manifest, or learn without labels (labels='none', --labels none)"
            )


def _fit(
    hasher: CrossModalHasher,
    n_bits: int | str,
    taught: Corpus,
    encoders: Mapping[str, Encoder],
    callback: Callback | None,
) -> Fitted:
    pairs = _pairs_of(taught.items) if type(hasher).needs_pairs else None
    hasher = _with_anchors(hasher, taught)
    X = {name: model_features(hasher, encoders[name], values) for name, values in taught.features.items()}
    return fit_with_length(hasher, n_bits, X, taught.label_arrays(), pairs=pairs, callback=callback)


def _read_words(encoders: Mapping[str, Encoder], given: Encoder | None, class_names: Sequence[str]) -> WordReader:
    """Choose the encoder for words as queries."""
    pictures = next((name for name, encoder in encoders.items() if encoder.reads == "image"), None)
    if pictures is None or TEXT in encoders or any(encoder.reads == "text" for encoder in encoders.values()):
        return WordReader(encoders, None, None)
    return WordReader(encoders, words_for(encoders[pictures], given, class_names), pictures)


def _learn_vectors(hasher: CrossModalHasher, taught: Corpus, reader: WordReader, seed: int) -> Learned:
    """Learn refinement vectors, and codes of words if texts are not a modality."""
    sharing = list(taught.features) if getattr(hasher, "space", None) == "shared" else reader.sharing
    labels = taught.label_arrays()
    learned = learn_refinement(hasher, taught.features, labels, seed=seed, encoders=reader.in_space, sharing=sharing)
    name = reader.pictures
    if name is None or not (learned.refinement.knows_labels or learned.refinement.meaning):
        return learned
    posteriors = learned.training_posteriors(name, labels=False)
    vectors = learned.refinement.joined(name, posteriors, taught.features[name])
    made = learn_word_codes(learned.refinement, vectors, hasher.codes_[name], hasher.n_bits)
    return learned._replace(refinement=made)


def _learn_confidence(
    hasher: CrossModalHasher, taught: Corpus, reader: WordReader, seed: int, progress: Reporter
) -> tuple[Confidence | None, dict[str, Any]]:
    """Refit the method to most of the training items, and learn confidence from searches for the others.

    Return the expected quality for new items too, or the reason why it is unknown.
    """
    from sklearn.base import clone

    names = confidence_of_names(str(reader.pictures)) if reader.by_names else None
    if taught.labels is None:
        return names, unknown_quality("it was trained without labels, so it is unknown which hits are right")
    held = hold_out(taught.features, seed)
    fewest = min(held.held_out, key=lambda name: len(held.held_out[name]))
    if len(held.held_out[fewest]) < MIN_HELD_OUT:
        return names, unknown_quality(
            f"{len(taught.items[fewest]):,} labelled {fewest} items are too few to hold some out for measuring; "
            f"about {HELD_OUT * MIN_HELD_OUT} of each modality are needed"
        )
    rest = taught.take(held.learned)
    progress("confidence", 0, 2)
    pairs = _pairs_of(rest.items) if type(hasher).needs_pairs else None
    model = _with_anchors(clone(hasher), rest).fit(rest.features, rest.label_arrays(), pairs=pairs)
    progress("confidence", 1, 2)
    known = {}
    for name, encoder in reader.encoders.items():
        texts = [item.text for item in taught.items.get(name, ())]
        if encoder.reads == "text" and texts and all(text is not None for text in texts):
            known[name] = _known_words(encoder, texts, held.learned[name], held.held_out[name])
    words = None
    if reader.pictures is not None:
        everyday = np.array([name.casefold() in NOUNS for name in taught.class_names])
        words = LabelWords(None if reader.words is None else reader.words.encode(taught.class_names), everyday)
    vectors, labels = _learn_vectors(model, rest, reader, seed), taught.label_arrays() or {}
    searches = search_held_out(model, taught.features, labels, held, vectors, known=known, words=words, seed=seed)
    ids = {name: [item.id for item in items] for name, items in taught.items.items()}
    if reader.pictures is not None:
        ids[TEXT] = taught.class_names
    learned, expected = fit_confidence(searches), measure_expected_quality(searches, taught.features, ids)
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


def _with_anchors(hasher: CrossModalHasher, taught: Corpus) -> CrossModalHasher:
    """Cap the number of anchors at the number of items, which avoids a warning of the method."""
    anchors = hasher.get_params(deep=False).get("n_anchors")
    if isinstance(anchors, int):
        anchors = dict.fromkeys(taught.items, anchors)
    if isinstance(anchors, Mapping):
        hasher.set_params(n_anchors={name: min(n, len(taught.items[name])) for name, n in anchors.items()})
    return hasher


def _pairs_of(items: Mapping[str, list[Item]]) -> Array:
    """Return the rows of the items that have the same id in every modality."""
    rows = [{item.id: row for row, item in enumerate(some)} for some in items.values()]
    shared = [id for id in rows[0] if all(id in others for others in rows[1:])]
    if not shared:
        raise ValueError("this method learns from pairs, and no id is in every modality; choose rlh, which needs none")
    return np.array([[own[id] for own in rows] for id in shared])
