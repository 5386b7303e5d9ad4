"""Retrain an engine from its stored items and replace it while it is in use.

The new engine is trained in a scratch folder. Changes that other processes make to the old store meanwhile are
replayed by revision: first concurrently, then a last time under the store's write lock, after which the folders are
exchanged. So every acknowledged change is in the new engine, and later writes to the old one raise
:class:`~modalhash.engine.EngineReplacedError`. A killed process leaves either the old engine or the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modalhash.core.archives import ArchiveMember
from modalhash.core.files import link_tree, sync_tree
from modalhash.core.progress import Callback, Reporter
from modalhash.core.typing import Codes
from modalhash.engine.items.item import Item, ItemFiles, OnProblem, Problem, ProblemCode
from modalhash.engine.settings import RetrainOverrides, TrainSettings
from modalhash.engine.storage.feature_cache import FeatureCache
from modalhash.engine.storage.folder import MEDIA, EngineError, EngineFiles
from modalhash.engine.storage.ingest import ItemCoder
from modalhash.engine.storage.relabel import LabelCoder
from modalhash.engine.training.train import ASKED, STORE_BATCH_SIZE, TrainedEngine, train_engine
from modalhash.store import PICTURE_TEXT, Key, Record, Revision, Store, StoreError

if TYPE_CHECKING:
    from modalhash.methods.base import CrossModalHasher

ROUNDS = 5
"""Times that changes are replayed before the write lock is taken."""


@dataclass(frozen=True)
class _StoredItem(Item):
    record: Record | None = None

    def to_record(self, code: bytes | Codes, kind: str) -> Record:
        assert self.record is not None
        return replace(self.record, code=code, kind=kind, refinement=None)


def retrain_engine(
    folder: Path,
    stored: StoredItems,
    settings: TrainSettings,
    check_current: Callable[[], None],
    callback: Callback | None,
) -> None:
    """Retrain an engine and replace it. See :meth:`Engine.retrain`.

    The encoders of ``settings`` are fitted, so they must not be in use elsewhere. ``check_current`` raises if another
    process replaced the engine.
    """
    store = stored.store
    _check_encoders(settings.encoders or {}, store)
    begun = store.revision()
    items = stored.read(begun)
    with (
        ExitStack() as held,  # released after the folders are exchanged
        train_engine(items, folder, settings, overwrite=True, report=stored.problem, callback=callback) as made,
    ):
        with made.place.open(made.folder) as new:
            replayer = _ChangeReplayer(store, new, made, stored, begun, Reporter(callback))
            for _ in range(ROUNDS):
                if not replayer.catch_up():
                    break
            link_tree(folder / MEDIA, made.folder / MEDIA)
            sync_tree(made.folder)  # so that little is left to do under the write lock
            held.enter_context(store.lock_writes())
            check_current()
            replayer.catch_up()
        if store.revision() != replayer.reached:
            raise StoreError(
                f"{folder}: the store was changed during the exchange, because the connection with the write "
                "lock was lost; nothing was replaced. Run it again"
            )


def settings_again(parts: EngineFiles, overrides: RetrainOverrides, *, database: str | None) -> TrainSettings:
    """Return the settings of the last training with the overrides applied."""
    config = parts.config
    before = config["labels"]
    labels = overrides.labels or config.get(ASKED, before)
    method = overrides.method or (config["method"] if labels == before else None)
    parameters = parameters_of(parts.model, config["trained_on"])
    if method != config["method"]:
        parameters = {name: value for name, value in parameters.items() if name == "random_state"}
    return TrainSettings(
        n_bits=overrides.n_bits or ("auto" if method is None else config["n_bits"]),
        method=method,
        parameters={**parameters, **(overrides.parameters or {})},
        encoders={**parts.encoders, **(overrides.encoders or {})},
        download=overrides.download,
        labels=labels,
        codes=overrides.codes or config["codes"],
        searched_fields=tuple(dict.fromkeys([*config["searched_fields"], PICTURE_TEXT])),
        store=database,
        exif=False,  # stored fields are kept
        workers=overrides.workers,
    )


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
    keys: dict[int, Key] = field(default_factory=dict)
    """Keys of the items read, by row id."""

    def read(self, until: Revision) -> list[Item]:
        """Return the items of the store; raise EngineError if some are missing and ``drop_missing`` is false."""
        items: list[Item] = []
        lost: list[Problem] = []
        for record in self.records(None, until):
            item = self.item(record)
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

    def item(self, record: Record) -> Item | Problem:
        content = self.content_of(record)
        record = replace(record, uri=self.files.whole(record.uri))  # the new engine's home is its current folder
        item = _StoredItem(record.modality, record.id, labels=tuple(map(str, record.labels)), record=record)
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
        cache = FeatureCache(made.folder)
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
