"""Train an engine from a source, or retrain one from its stored items and replace it while it is in use.

A new engine is trained in a scratch folder. For a retraining, changes that other processes make to the old store
meanwhile are replayed by revision: first concurrently, then a last time under the store's write lock, after which the
folders are exchanged. So every acknowledged change is in the new engine, and later writes to the old one raise
:class:`~modalhash.engine.EngineReplacedError`. A killed process leaves either the old engine or the new one.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from modalhash.core.archives import ArchiveMember
from modalhash.core.codes import pack_signs
from modalhash.core.files import link_tree, sync_tree
from modalhash.core.progress import Callback, Reporter
from modalhash.core.typing import Codes
from modalhash.engine.items.item import HOME, Item, ItemFiles, OnProblem, Problem, ProblemCode, ProblemCollector
from modalhash.engine.items.photos import Reader, reader_of, with_picture_text
from modalhash.engine.search.photo_words import TEXT, suggest_words
from modalhash.engine.search.refinement import Refinement, model_features
from modalhash.engine.settings import TrainSettings
from modalhash.engine.storage.folder import (
    MEDIA,
    EngineError,
    EngineFiles,
    describe_engine,
    new_folder,
    read_config,
    write_parts,
)
from modalhash.engine.storage.ingest import CodedItems, FeatureCache, ItemCoder, encode_cached
from modalhash.engine.storage.location import SQLITE, StoreLocation, create_store, publish
from modalhash.engine.storage.relabel import LabelCoder
from modalhash.engine.training.corpus import (
    AUTO,
    Corpus,
    TrainingInput,
    check_learnable,
    no_usable_item,
    read_training_input,
)
from modalhash.engine.training.expected_quality import near_chance
from modalhash.engine.training.learn import Trained, learn
from modalhash.store import PICTURE_TEXT, Key, Record, Revision, Store, StoreError

if TYPE_CHECKING:
    from modalhash.encoders import Encoder
    from modalhash.engine.settings import RetrainOverrides
    from modalhash.methods.base import CrossModalHasher

ASKED = "labels_asked"
"""Configuration entry with the requested ``labels``, if training found none."""
STORE_BATCH_SIZE = 10_000
ROUNDS = 5
"""Times that changes are replayed before the write lock is taken."""


@dataclass(frozen=True)
class TrainedEngine:
    """An engine that was trained; :meth:`Engine.open` opens it."""

    folder: Path
    scratch: Path
    """The folder in which it was trained, before it replaced ``folder``."""
    place: StoreLocation
    model: CrossModalHasher
    encoders: Mapping[str, Encoder]
    refinement: Refinement
    class_names: list[str]
    sizes: Counter[tuple[str, str]]
    """Number of items by modality and kind of code."""
    problems: tuple[Problem, ...]
    """Items that were left out."""

    def info(self) -> dict[str, Any]:
        """Return the same as :meth:`Engine.info`."""
        reads = {modality: encoder.reads for modality, encoder in self.encoders.items()}
        if self.refinement.word_codes is not None:
            reads[TEXT] = "text"
        return {**describe_engine(self.folder, read_config(self.folder), self.sizes, reads), "snapshot": None}


def train_engine(
    source: Any,
    folder: str | Path,
    settings: TrainSettings,
    *,
    overwrite: bool = False,
    strict: bool = False,
    callback: Callback | None = None,
    on_problem: OnProblem | None = None,
) -> TrainedEngine:
    """Train an engine without opening it; parameters as for :meth:`Engine.train`."""
    report = ProblemCollector(on_problem, strict=strict)
    with _training(source, Path(folder), settings, overwrite=overwrite, report=report, callback=callback) as trained:
        pass  # the folder is created at the end of the block
    report.warn(stacklevel=4)  # the caller of Engine.train
    return trained


@contextmanager
def _training(
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
        trained = learn(given, corpus, settings, callback, journal.end)
        if text := near_chance(trained.expected):
            warnings.warn(text, UserWarning, stacklevel=5)  # the caller of Engine.train or Engine.retrain
        model, reader, refinement = trained.hasher, trained.reader, trained.vectors.refinement
        files = ItemFiles(folder.resolve(), relative=place.kind == SQLITE)
        config = _config(given, corpus, trained, settings) | place.to_config() | {HOME: str(files.folder)}
        if journal.notes:
            config["notes"] = journal.notes
        with place.create(fresh, n_bits=model.n_bits, searched_fields=config["searched_fields"]) as store:
            examples, sizes = _store(store, corpus, trained, files, config["codes"], Reporter(callback))
        journal.end("store")
        config |= {**examples, "seconds": journal.seconds}
        write_parts(fresh, model, reader.encoders, config, refinement, trained.confidence, reader.words)
        publish(fresh, place)
        names, left_out = corpus.class_names, tuple(journal.left_out)
        yield TrainedEngine(folder, fresh, place, model, reader.encoders, refinement, names, sizes, left_out)


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


def _config(given: TrainingInput, corpus: Corpus, trained: Trained, settings: TrainSettings) -> dict[str, Any]:
    """Return what the configuration of an engine says of its training."""
    by_features = given.labels == "none" and not type(trained.hasher).needs_pairs  # codes depend on features alone
    return {
        **({} if trained.collisions is None else trained.collisions.to_config()),
        **({"bits_tried": trained.lengths} if settings.n_bits == AUTO else {}),
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
) -> tuple[dict[str, Any], Counter[tuple[str, str]]]:
    """Store all items with their codes and vectors.

    Return words that find pictures, for the configuration, and the number of items by modality and kind of code.
    """
    examples, sizes = {}, Counter[tuple[str, str]]()
    for modality, items in corpus.items.items():
        coded, kinds = _code(modality, corpus, trained, codes)
        records = coded.records(kinds, files)
        sizes.update((modality, kind) for kind in kinds)
        for start in range(0, len(records), STORE_BATCH_SIZE):
            store.add(records[start : start + STORE_BATCH_SIZE])
            progress(f"store: {modality}", min(start + STORE_BATCH_SIZE, len(records)), len(records))
        if modality == trained.reader.pictures and coded.vectors is not None:
            counts = Counter(label for item in items for label in item.labels)
            examples["examples"] = suggest_words(trained.vectors.refinement, coded.vectors, counts)
    return examples, sizes


def _code(modality: str, corpus: Corpus, trained: Trained, codes: str) -> tuple[CodedItems, list[str]]:
    """Return the items of a modality with codes and vectors, and the kind of each code.

    Training items have learned codes if requested, the others hashed ones. Items trained with labels that they only
    name are hashed, so that these labels do not determine their codes.
    """
    hasher, refinement = trained.hasher, trained.vectors.refinement
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


@dataclass(frozen=True, kw_only=True)
class StoredItem(Item):
    """An item of a store, with its record."""

    record: Record

    def to_record(self, code: bytes | Codes, kind: str) -> Record:
        labels = self.record.labels if self.labels == tuple(map(str, self.record.labels)) else self.labels
        return replace(self.record, code=code, kind=kind, labels=labels, refinement=None)


def retrain_engine(
    folder: Path,
    stored: StoredItems,
    settings: TrainSettings,
    check_current: Callable[[], None],
    callback: Callback | None,
    training: Callable[..., AbstractContextManager[TrainedEngine]] | None = None,
) -> None:
    """Retrain an engine and replace it. See :meth:`Engine.retrain`.

    ``training`` replaces learning from all items, which fits the encoders of ``settings``, so they must not be in use
    elsewhere. ``check_current`` raises if another process replaced the engine.
    """
    store = stored.store
    _check_encoders(settings.encoders or {}, store)
    begun = store.revision()
    items = stored.read(begun)
    with (
        ExitStack() as held,  # released after the folders are exchanged
        (training or _training)(
            items, folder, settings, overwrite=True, report=stored.problem, callback=callback
        ) as made,
    ):
        with made.place.open(made.scratch) as new:
            replayer = _ChangeReplayer(store, new, made, stored, begun, Reporter(callback))
            for _ in range(ROUNDS):
                if not replayer.catch_up():
                    break
            link_tree(folder / MEDIA, made.scratch / MEDIA)
            sync_tree(made.scratch)  # so that little is left to do under the write lock
            replace_by = held.enter_context(store.lock_writes())
            check_current()
            replayer.catch_up()
        if store.revision() != replayer.reached:
            raise StoreError(
                f"{folder}: the store was changed during the exchange, because the connection with the write "
                "lock was lost; nothing was replaced. Run it again"
            )
        replace_by(made.place.schema)  # before the folders: if this process is killed now, the next one fetches it


def settings_again(parts: EngineFiles, overrides: RetrainOverrides, *, database: str | None) -> TrainSettings:
    """Return the settings of the last training with the overrides applied."""
    config = parts.config
    before = config["labels"]
    given = {name: value for name, value in vars(overrides).items() if value is not None}
    labels = overrides.labels or config.get(ASKED, before)
    method = overrides.method or (config["method"] if labels == before else None)
    parameters = parameters_of(parts.model, config["trained_on"])
    if method != config["method"]:
        parameters = {name: value for name, value in parameters.items() if name == "random_state"}
    settings: dict[str, Any] = {
        "n_bits": "auto" if method is None else config["n_bits"],
        "codes": config["codes"],
        "searched_fields": tuple(dict.fromkeys([*config["searched_fields"], PICTURE_TEXT])),
        "store": database,
        "exif": False,  # stored fields are kept
        **{name: value for name, value in given.items() if name in TrainSettings.options},
        "method": method,
        "labels": labels,
        "parameters": {**parameters, **(overrides.parameters or {})},
        "encoders": {**parts.encoders, **(overrides.encoders or {})},
    }
    return TrainSettings(**settings)


def parameters_of(model: CrossModalHasher, trained_on: Mapping[str, int]) -> dict[str, Any]:
    """Return the parameters to retrain a model with.

    Training caps the number of anchors at the number of items. A modality that was capped gets the method's default, so
    that it can use more anchors when it has more items.
    """
    parameters: dict[str, Any] = model.get_params(deep=False)
    del parameters["n_bits"]
    anchors = parameters.get("n_anchors")
    if isinstance(anchors, Mapping):
        default = type(model)().get_params(deep=False)["n_anchors"]
        parameters["n_anchors"] = {name: default if n == trained_on.get(name) else n for name, n in anchors.items()}
    return parameters


def _check_encoders(encoders: Mapping[str, Any], store: Store) -> None:
    """Raise EngineError for modalities with given features, which are not stored."""
    for modality, encoder in encoders.items():
        if getattr(encoder, "reads", None) == "array" and store.count(modality):
            raise EngineError(
                f"the features of {modality!r} were given as arrays, and an engine does not store features, so it "
                "cannot be retrained from its items. Train again from the data set (modalhash train … --overwrite)"
            )


@dataclass
class StoredItems:
    """Reads the items of a store for retraining.

    Items that cannot be read are reported; unless ``drop_missing``, the first one raises EngineError.
    """

    store: Store
    content_of: Callable[[Record], str | Path | ArchiveMember | None]
    """Returns the encoder's input of an item."""
    files: ItemFiles
    report: OnProblem
    _: KW_ONLY
    drop_missing: bool = False
    workers: int | None = None
    codes_stay: bool = False
    """Whether learned codes remain valid, so that their items need not be readable."""
    keys: dict[int, Key] = field(default_factory=dict)
    """Keys of the items read, by row id."""

    def read(self, until: Revision) -> list[StoredItem]:
        """Return the items of the store; raise EngineError if some are missing and ``drop_missing`` is false."""
        items: list[StoredItem] = []
        lost: list[Problem] = []
        for record in self.records(None, until):
            item = self._bare(record) if self.codes_stay and record.kind == "learned" else self.item(record)
            if not isinstance(item, Problem):
                items.append(item)
            elif self._is_there(item):
                lost.append(item)
                self.report(item)
        if lost and not self.drop_missing:
            raise EngineError(
                f"{len(lost):,} of {len(lost) + len(items):,} items can no longer be read, and their codes "
                f"are not valid for a new model; nothing was changed. The first: {lost[0]}. Restore the files, remove "
                "the items (modalhash remove), or leave them out with drop_missing=True (--drop-missing)"
            )
        return items

    def records(self, since: Revision | None, until: Revision) -> list[Record]:
        """Return the records added between two revisions that still exist, and remember their row ids."""
        found = []
        for numbers, _, _ in self.store.codes(since=since, until=until):
            for start in range(0, len(numbers), STORE_BATCH_SIZE):
                records = self.store.records(numbers[start : start + STORE_BATCH_SIZE])
                self.keys.update((number, records[number].key) for number in records)
                found += [records[number] for number in sorted(records)]
        return found

    def _bare(self, record: Record) -> StoredItem:
        """Return an item without its content."""
        record = replace(record, uri=self.files.whole(record.uri))  # the new engine's home is its current folder
        return StoredItem(record.modality, record.id, labels=tuple(map(str, record.labels)), record=record)

    def item(self, record: Record) -> StoredItem | Problem:
        content, item = self.content_of(record), self._bare(record)
        if isinstance(content, str):
            return replace(item, text=content)
        if content is None:
            return item.problem(ProblemCode.EMPTY, "it has neither a text nor a file")
        item = replace(item, path=content)
        return item if content.is_file() else item.problem(ProblemCode.MISSING_FILE, "no such file")

    def problem(self, problem: Problem) -> None:
        """Report an item that cannot be encoded; raise unless ``drop_missing``."""
        if not self._is_there(problem):
            return
        self.report(problem)
        if not self.drop_missing:
            raise EngineError(
                f"an item can no longer be read, and its code is not valid for a new model; nothing was changed: "
                f"{problem}. Restore the file, remove the item (modalhash remove), or leave out unreadable items "
                "with drop_missing=True (--drop-missing)"
            )

    def _is_there(self, problem: Problem) -> bool:
        """Return whether the item is still stored as it was read.

        If its picture is missing because the item was just removed or replaced, that change is replayed later.
        """
        current = self.store.row_ids([(str(problem.modality), str(problem.id))])
        return any(number in self.keys for number in current.values())


@dataclass
class _ChangeReplayer:
    old: Store
    new: Store
    made: TrainedEngine
    reader: StoredItems
    reached: Revision
    progress: Reporter
    _n: int = 0

    def catch_up(self) -> bool:
        """Apply the changes since the last call; return whether there were any."""
        target = self.old.revision()
        if target == self.reached:
            return False
        keys = self.reader.keys
        gone = [keys.pop(number) for number in self.old.removed(self.reached, target).tolist() if number in keys]
        self.new.remove(dict.fromkeys(gone), missing="ignore")
        records = self.reader.records(self.reached, target)
        for start in range(0, len(records), STORE_BATCH_SIZE):
            self.new.add(self._coded(records[start : start + STORE_BATCH_SIZE]), replace=True)
        self._n += len(gone) + len(records)
        self.progress("changes meanwhile", self._n, self._n)
        self.reached = target
        return True

    def _coded(self, records: list[Record]) -> list[Record]:
        """Return records with codes of the new model, from labels if they had learned codes."""
        made, coded = self.made, []
        cache = FeatureCache(made.scratch)
        coder = ItemCoder(made.model, made.encoders, made.refinement, self.reader.problem, self.reader.workers, cache)
        labels = LabelCoder(made.model, made.class_names, made.refinement, self.new)
        items: dict[str, list[Item]] = {}
        for record in records:
            item = self.reader.item(record)
            if isinstance(item, Problem):
                self.reader.problem(item)
            elif item.modality not in made.encoders:  # the modality is new, and the model does not have it
                reason = "the first items of this modality were added during training; add them again"
                self.reader.problem(item.problem(ProblemCode.UNKNOWN_MODALITY, reason))
            else:
                items.setdefault(item.modality, []).append(item)
        old = {record.key: record for record in records}
        for modality, some in items.items():
            hashed = coder.hash(modality, some, [item.content for item in some]).records("hashed", self.reader.files)
            known = [labels.known(one.labels) if old[one.key].kind == "learned" else [] for one in hashed]
            codes = labels.codes(modality, known)
            rows = [row for row, code in enumerate(codes) if code is not None]
            with_labels = [hashed[row] for row in rows]
            learned = labels.learn(with_labels, [codes[row] or b"" for row in rows], with_labels)
            coded += [*(one for row, one in enumerate(hashed) if codes[row] is None), *learned]
        return coded
