"""The engine: train or open one, add, remove and search items."""

from __future__ import annotations

import base64
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from modalhash.core.archives import ArchiveMember
from modalhash.core.progress import Callback
from modalhash.engine.items.item import OnProblem, ProblemCollector, ReadOptions
from modalhash.engine.items.photos import Reader, reader_of
from modalhash.engine.searching import SearchEngine
from modalhash.engine.settings import (
    AddOptions,
    AddOptionValues,
    EncodeOptions,
    EncodeOptionValues,
    RetrainOptionValues,
    RetrainOverrides,
    TrainOptionValues,
    TrainSettings,
)
from modalhash.engine.storage.code_files import engine_identity
from modalhash.engine.storage.folder import EngineError, delete_media, read_parts
from modalhash.engine.storage.location import SQLITE
from modalhash.index import IndexUnavailableError
from modalhash.store import PICTURE_TEXT, Record, StoreError

if TYPE_CHECKING:  # what changes an engine is imported by the method that needs it, because a search does not
    from modalhash.engine.storage.audit import AuditLog
    from modalhash.engine.storage.encode_to import EncodedSource
    from modalhash.engine.storage.folder_sync import FolderSync, Synced
    from modalhash.engine.storage.ingest import Added, ItemCoder
    from modalhash.engine.storage.relabel import Relabelled

UNAVAILABLE = (IndexUnavailableError, StoreError)
"""Errors of an index or a store after a change, which has happened nevertheless."""
TEXT_NOT_SEARCHED = (
    "this engine does not search the text in pictures, because its searched_fields do not name picture_text; the text "
    "is stored, and found after modalhash retrain"
)


class Engine(SearchEngine):
    """Search across modalities by the Hamming distance of learned codes.

    An engine is a folder, made by :meth:`train` and opened by :meth:`open`. Searches see the changes of other processes
    and may run in several threads. An item is identified by its modality and id.

    If :meth:`train` or :meth:`retrain` replaces the engine, this object keeps searching the old one, :attr:`replaced`
    is true, changes raise :class:`EngineReplacedError`, and :meth:`reopen` returns the new one.

    Examples
    --------
    >>> engine = Engine.train("items.csv", "engine")  # doctest: +SKIP
    >>> engine.search(text="red boat", want="image", k=5)  # doctest: +SKIP
    """

    @classmethod
    def train(
        cls,
        source: Any,
        folder: str | Path,
        *,
        overwrite: bool = False,
        strict: bool = False,
        callback: Callback | None = None,
        on_problem: OnProblem | None = None,
        **settings: Unpack[TrainOptionValues],
    ) -> Self:
        """Learn codes from items, which need not be paired, and store all of them in a new engine.

        Items without labels, and held-out items, are not learned from. They are hashed, and are found.

        Parameters
        ----------
        source : a manifest (``.jsonl``, ``.csv``, ``.tsv``, ``.xlsx``, ``.parquet``, ``.feather``), a folder of
            pictures whose subfolders are labels, or an archive of such (``.zip``, ``.tar``, ``.tar.gz``); or a list of
            these, where a manifest's row for a picture of a folder is the same item; a
            :class:`~modalhash.data.Dataset`, a file that :func:`~modalhash.data.read` recognises, or the name of a data
            set; a pandas or polars frame, or a ``datasets.Dataset``; or dicts such as
            ``{"path": "a.jpg", "labels": ["boat"]}``, ``{"text": "a red boat", "labels": ["boat"]}``
        folder : created atomically
        overwrite : replace an existing engine
        strict : raise at the first bad item instead of skipping it
        callback : called with the progress
        on_problem : called for every skipped item; without it, there is a warning
        settings : options by name, e.g. ``n_bits=64, labels="names"``: see :class:`TrainSettings`
        """
        from modalhash.engine.training.train import train_engine

        wanted = TrainSettings(**settings)
        trained = train_engine(
            source, folder, wanted, overwrite=overwrite, strict=strict, callback=callback, on_problem=on_problem
        )
        engine = cls(folder, trust=True, database=trained.place.database)
        engine.problems = trained.problems
        return engine

    @cached_property
    def audit_log(self) -> AuditLog:
        """The audit log, which the command line and the service write."""
        from modalhash.engine.storage.location import audit_log

        return audit_log(self.path, database=self._options.database)

    @property
    def saves_media(self) -> bool:
        """Whether pictures given as bytes can be saved: with the items in the folder, or at a media URL."""
        return self._place.kind == SQLITE or self._files.media_url is not None

    def save_snapshot(self) -> int | None:
        """Write a snapshot of the index, from which the engine opens fast, and return its size in bytes.

        Engines of 50,000 items and more do so themselves, in the background once 1 of 32 items has changed, and when
        they are closed. Return None, with a warning, if it cannot be written.

        A snapshot is a copy that may be deleted at any time. What is missing in it is read from the store.
        """
        if self.read_only or self.replaced or self._follower is not None:
            return None
        self._snapshots.finish()
        self.refresh()
        self._snapshots.finish()  # one that refresh may have started
        return self._snapshots.save(*self._freeze(), anyway=True)

    def add(
        self,
        source: Any,
        *,
        callback: Callback | None = None,
        on_problem: OnProblem | None = None,
        **options: Unpack[AddOptionValues],
    ) -> Added:
        """Add items, labelled or not, with hashed codes and without training; parameters as for :meth:`train`.

        Items are stored in atomic batches. ``options`` are named, e.g. ``replace=True``: see :class:`AddOptions`.

        Parquet files that :meth:`encode_to` wrote are added without encoding; files of another engine are refused.
        """
        from modalhash.engine.storage.ingest import NOT_SHARED, Added, Ingester

        self._check_writable()
        wanted = AddOptions(**options)
        text_reader = reader_of(wanted.read_text)
        if text_reader is not None and PICTURE_TEXT not in self.config["searched_fields"]:
            warnings.warn(TEXT_NOT_SEARCHED, UserWarning, stacklevel=2)
        problems = ProblemCollector(on_problem, strict=wanted.strict)
        notes: list[str] = []
        every_folder = self.config["labels"] == "folders"
        names = self._label_names()
        ingester = Ingester(
            self.store,
            self._item_coder(problems, wanted.workers),
            self._files,
            ReadOptions(wanted.fields, wanted.table, every_folder, wanted.exif, notes.append),
            names,
            wanted.replace,
            media_folder=self.path if wanted.keep and self.saves_media else None,
            data_problem=NOT_SHARED if wanted.keep and not self.saves_media else None,
            identity=engine_identity(self.config),
            check_current=self._generation.check,
            text_reader=text_reader,
        )
        try:
            added, replaced = ingester.add(source, callback)
        finally:
            self._refresh_unless(*UNAVAILABLE)
        problems.warn()
        notes += filter(None, [names.describe_joined()])
        return Added(added, replaced, tuple(problems.problems), tuple(notes))

    def _item_coder(self, report: OnProblem, workers: int | None) -> ItemCoder:
        from modalhash.engine.storage.ingest import FeatureCache, ItemCoder

        return ItemCoder(self._hasher, self.encoders, self.refinement, report, workers, FeatureCache(self.path))

    def encode_to(
        self,
        source: Any,
        out: str | Path,
        *,
        callback: Callback | None = None,
        **options: Unpack[EncodeOptionValues],
    ) -> EncodedSource:
        """Encode pictures and texts into Parquet files, on several processes or machines, without adding them.

        There is one row per input, with its code or its problem. :meth:`add` takes the files. Existing files are kept,
        so that an interrupted call can be repeated. Needs the extra ``dask``. In a script, processes of this machine
        need ``if __name__ == "__main__":``.

        Parameters
        ----------
        source : a folder (pictures, and ``.txt`` files as texts), a manifest (``.jsonl``, ``.csv``, ``.tsv``,
            ``.xlsx``, ``.feather``), a Parquet file with the columns of a manifest, a ``.tar`` of photos or in
            WebDataset's layout, or a ``.zip`` or ``.tar.gz`` of photos; a path, an fsspec URL (not for the last two), a
            pattern with ``*``, or a list of such
        out : a folder for the files, a path or a URL; new, or begun by the same call
        callback : as for :meth:`train`
        options : by name, e.g. ``workers=4``: see :class:`EncodeOptions`
        """
        from modalhash.engine.storage.encode_to import Coder, encode_source

        coder = Coder(engine_identity(self.config), self._hasher, self.encoders, self.refinement)
        return encode_source(coder, source, out, EncodeOptions(**options), callback)

    def remove(self, ids: Iterable[str], *, modality: str | None = None, missing: str = "error") -> int:
        """Remove items by id, in all modalities or in one, and return how many were removed.

        An unknown id is a KeyError, and nothing is removed, unless ``missing="ignore"``.
        """
        self._check_writable()
        if isinstance(ids, str):
            raise TypeError(f"ids is the text {ids!r}; expected several ids, e.g. [{ids!r}]")
        wanted = list(dict.fromkeys(map(str, ids)))
        names = self.modalities if modality is None else self.check_modalities(modality)
        keys = {id: [(name, id) for name in names] for id in wanted}
        known = self.store.row_ids([key for some in keys.values() for key in some])
        lost = [id for id, some in keys.items() if not any(key in known for key in some)]
        if lost and missing == "error":
            raise KeyError(
                f"no item has the id {lost[0]!r} ({len(lost)} of {len(wanted)} unknown); nothing was removed"
            )
        gone = self.store.records(list(known.values()))
        n = self.store.remove(known, missing="ignore")
        self._generation.check()
        self._refresh_unless(*UNAVAILABLE)
        for record in gone.values():
            delete_media(self.path, record.uri, self._files.media_url)
        return n

    def sync(
        self,
        folder: str | Path,
        *,
        dry_run: bool = False,
        allow_empty: bool = False,
        workers: int | None = None,
        callback: Callback | None = None,
        on_problem: OnProblem | None = None,
        read_text: bool | Reader = False,
    ) -> Synced:
        """Make the engine agree with a folder of photos: add new, replace changed and remove deleted ones.

        Only items whose file is in the folder are replaced or removed, and no file is changed. A file is read if it is
        new, or if its size or modification time differs from the last sync; the first sync reads every file once. A
        changed photo keeps its labels and other fields. A moved photo keeps its code too, unless its subfolders give it
        other labels.

        Parameters
        ----------
        folder : of the photos; its subfolders are labels, as for :meth:`add`
        dry_run : change nothing, and return what would be done
        allow_empty : remove all items of the folder if it is missing or has no pictures; otherwise raise
            :class:`EmptyFolderError`, because a disk may not be mounted
        workers, callback, on_problem, read_text : as for :meth:`train`
        """
        sync = self.folder_sync(folder, allow_empty=allow_empty)
        plan = sync.look()
        if dry_run:
            return plan.expected()
        return sync.apply(plan, workers=workers, callback=callback, on_problem=on_problem, read_text=read_text)

    def folder_sync(self, folder: str | Path, *, allow_empty: bool = False, settle: bool = False) -> FolderSync:
        """Return an object that compares this engine with a folder of photos, repeatedly if needed."""
        from modalhash.engine.storage.folder_sync import FolderSync

        return FolderSync(self, self._files, self._check_writable, folder, allow_empty=allow_empty, settle=settle)

    def relabel(
        self,
        source: Any,
        *,
        fields: Mapping[str, str] | None = None,
        strict: bool = False,
        workers: int | None = None,
        callback: Callback | None = None,
        on_problem: OnProblem | None = None,
    ) -> Relabelled:
        """Change labels of items; learned codes, refinement vectors, counts and filters follow.

        An item gets the code of its new labels, as if it had been trained with them, or a hashed code if none of them
        was learned. Labels that are new to the model are stored, and affect codes after :meth:`retrain`. Batches are
        atomic.

        Parameters
        ----------
        source : a manifest (``.jsonl``, ``.csv``, ``.tsv``), or several, with the fields ``id`` and ``labels`` and, to
            change one modality only, ``modality``; or dicts of these. Empty labels remove all
        fields : the names of the manifest's fields, e.g. ``{"id": "photo", "labels": "keywords"}``
        strict, workers, callback, on_problem : as for :meth:`train`
        """
        from modalhash.engine.storage.relabel import LabelCoder, Relabeller

        self._check_writable()
        problems = ProblemCollector(on_problem, strict=strict)
        relabeller = Relabeller(
            self.store,
            self.modalities,
            LabelCoder(self.model, self.config["class_names"], self.refinement, self.store),
            self._item_coder(problems, workers),
            self._label_names(),
            self._content_of,
            follows=self.method.supervised and self.config["codes"] == "learned",
            report=problems,
            check_current=self._generation.check,
        )
        try:
            done = relabeller.relabel(source, fields=fields, callback=callback)
        finally:
            self._refresh_unless(*UNAVAILABLE)
        problems.warn()
        return replace(done, problems=tuple(problems.problems))

    def retrain(
        self,
        *,
        drop_missing: bool = False,
        callback: Callback | None = None,
        on_problem: OnProblem | None = None,
        **changes: Unpack[RetrainOptionValues],
    ) -> Self:
        """Retrain the engine from all its items, replace it, and return the new one.

        Items that were added or relabelled since, and those that were held out, take part. Encoders are fitted again.
        This object stays open, searches the old engine and is :attr:`replaced`. Acknowledged changes of other processes
        are in the new engine; later ones raise :class:`EngineReplacedError`. A killed process leaves the old engine or
        the new one.

        With ``online=True`` it learns only from items that were labelled since, chunk by chunk; see
        :class:`RetrainOverrides`.

        An engine of given features (a data set without texts or pictures) cannot be retrained, because they are not
        stored.

        Parameters
        ----------
        drop_missing : drop items whose text or picture cannot be read; otherwise raise :class:`EngineError` and change
            nothing
        callback : called with the progress
        on_problem : called for every item that cannot be read; without it, there is a warning
        changes : options that differ from the last training, e.g. ``n_bits=64, labels="names"``: see
            :class:`RetrainOverrides`. Another method starts with its default parameters
        """
        from modalhash.engine.training.online import check_online, learn_online
        from modalhash.engine.training.train import StoredItems, retrain_engine, settings_again

        self._check_writable()
        overrides = RetrainOverrides(**changes)
        problems = ProblemCollector(on_problem, strict=False)
        parts = read_parts(self.path, trust=self._options.trust)  # its own encoders, because they are fitted
        settings = settings_again(parts, overrides, database=self._options.database)
        training = None
        if overrides.online:
            check_online(parts, overrides)
            training = partial(learn_online, parts=parts)
        reader = StoredItems(
            self.store,
            self._content_of,
            self._files,
            problems,
            drop_missing=drop_missing,
            workers=settings.workers,
            codes_stay=overrides.online,
        )
        retrain_engine(self.path, reader, settings, self._generation.check, callback, training)
        problems.warn()
        engine = self.reopen()
        engine.problems = tuple(problems.problems)
        return engine

    def export(self) -> Iterator[dict[str, Any]]:
        """Iterate over all items as lines of a manifest, with ``code`` in hexadecimal, ``refinement`` in base64."""
        for record in self.items():
            file = self.path_of(record)
            path = record.uri if file is None else str(file)
            line = {"id": record.id, "modality": record.modality, "text": record.text, "path": path}
            line = {key: value for key, value in line.items() if value is not None}
            code = bytes(record.code).hex()
            if record.refinement is not None:
                line["refinement"] = base64.b64encode(record.refinement).decode("ascii")
            yield {**record.extra, **line, "labels": list(record.labels), "kind": record.kind, "code": code}

    def _content_of(self, record: Record) -> str | Path | ArchiveMember | None:
        """Return the encoder's input for an item; None if only its features are known."""
        if self.encoders[record.modality].reads == "array":
            return None
        return record.text if record.text is not None else self.path_of(record)

    def _check_writable(self) -> None:
        if self.read_only:
            raise EngineError(f"{self.path} is opened read-only; items cannot be added or removed")
        self._generation.check()
