"""The engine: train or open one, add, remove and search items."""

from __future__ import annotations

import base64
import contextlib
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

import numpy as np

from modalhash.core.archives import ArchiveMember, find_member
from modalhash.core.codes import n_bytes
from modalhash.core.label_names import LabelNames
from modalhash.core.progress import Callback
from modalhash.core.typing import Matrix
from modalhash.core.validation import check_choice, check_int, check_number
from modalhash.engine.items.item import ItemFiles, OnProblem, Problem, ProblemCollector, ReadOptions
from modalhash.engine.items.photos import Reader, reader_of
from modalhash.engine.search.hits import ConfidenceScorer, Hit, HitFinder
from modalhash.engine.search.near_duplicates import (
    DUPLICATE_RADIUS,
    DUPLICATE_THRESHOLD,
    DuplicateFinder,
    DuplicateGroup,
    SameHits,
    find_unique,
)
from modalhash.engine.search.ordering import Ranker
from modalhash.engine.search.photo_words import TEXT, PhotoWords
from modalhash.engine.search.picture_prints import PrintKeeper
from modalhash.engine.search.query import (
    Asked,
    Query,
    check_filter,
    encode_contents,
    encode_features,
    encode_records,
    the_only_argument,
    unknown_warning,
)
from modalhash.engine.settings import (
    AddOptions,
    AddOptionValues,
    EncodeOptions,
    EncodeOptionValues,
    OptionValues,
    RetrainOptionValues,
    RetrainOverrides,
    SearchOptions,
    TrainOptionValues,
    TrainSettings,
)
from modalhash.engine.storage.backup import remove_leftovers
from modalhash.engine.storage.code_files import engine_identity
from modalhash.engine.storage.folder import (
    SQLITE,
    EngineError,
    Generation,
    StoreLocation,
    built_in_reads,
    delete_media,
    describe_engine,
    model_digest,
    read_config,
    read_config_with_items,
    read_parts,
    recover_engine,
    sweep_unfinished,
    why_no_confidence,
)
from modalhash.engine.storage.index_snapshot import SnapshotKeeper, freeze_engine
from modalhash.engine.storage.published import follow
from modalhash.index import Frozen, HammingIndex, Index
from modalhash.methods.registry import Method, info as method_info
from modalhash.store import PICTURE_TEXT, Filter, Record, Revision, Store, StoreError

if TYPE_CHECKING:  # what changes an engine is imported by the method that needs it, because a search does not
    from modalhash.engine.storage.encode_to import EncodedSource
    from modalhash.engine.storage.folder_sync import FolderSync, Synced
    from modalhash.engine.storage.ingest import Added, ItemCoder
    from modalhash.engine.storage.relabel import Relabelled
    from modalhash.methods.base import CrossModalHasher

T = TypeVar("T")

TEXT_NOT_SEARCHED = (
    "this engine does not search the text in pictures, because its searched_fields do not name picture_text; the text "
    "is stored, and found after modalhash retrain"
)
NUMPY_ITEMS = 1_000_000
"""Items up to which one search by numpy (.08 s for 64 values of each vector) beats loading compiled code (.4 s)."""
ONE_PIXEL_GIF = base64.b64decode("R0lGODlhAQABAIAAAP///wAAACwAAAAAAQABAAACAkQBADs=")


def refresh(index: Index, store: Store, since: Revision | None = None) -> Revision:
    r"""Update ``index`` to the state of ``store`` and return its revision, for the next call.

    Reads what any process added or removed after ``since``. Items are indexed by row id, in the group of their modality
    (:meth:`Store.modalities`). Not thread-safe. If the store fails halfway, the rows that were added are removed again,
    so that the call can be repeated.

    Examples
    --------
    >>> import tempfile
    >>> from modalhash.index import HammingIndex
    >>> from modalhash.store import Record, SqliteStore
    >>> folder = tempfile.TemporaryDirectory()
    >>> store, index = SqliteStore(Path(folder.name) / "items.db", n_bits=8), HammingIndex(8)
    >>> reached = refresh(index, store)
    >>> numbers = store.add([Record("boat", "text", b"\xa0"), Record("sea", "text", b"\x0a")])
    >>> reached = refresh(index, store, reached)
    >>> len(index)
    2
    >>> store.close(); folder.cleanup()
    """
    if index.n_bits != store.n_bits:
        raise ValueError(f"the index holds codes of {index.n_bits} bits, the store codes of {store.n_bits}")
    target = store.revision()
    if target == since:
        return target
    if since is not None:
        index.remove(store.removed(since, target), missing="ignore")
    added = []
    try:
        for numbers, groups, codes in store.codes(since=since, until=target):
            index.add(numbers, codes, group=groups)
            added.append(numbers)
    except BaseException:
        for numbers in added:
            index.remove(numbers)
        raise
    return target


def _open_folder(
    folder: Path, read: Callable[[], T], *, read_only: bool, database: str | None
) -> tuple[Generation, T, StoreLocation, Store]:
    """Read one generation of the engine and open its store; retry if it is replaced meanwhile."""
    if not read_only:
        recover_engine(folder)
        if not folder.exists():
            sweep_unfinished(folder, StoreLocation(database=database))
    while True:
        generation = Generation(folder)
        try:
            if not read_only and follow(folder, database=database):
                continue
            parts, config = read(), read_config(folder)
            place = StoreLocation.of(config, database=database)
            fields, model = config["searched_fields"], str(config["model"])
            store = place.open(folder, searched_fields=fields, read_only=read_only, model=model)
        except (EngineError, StoreError, OSError):
            if generation.is_current():
                raise
            continue
        if generation.is_current():
            return generation, parts, place, store
        store.close()


def engine_info(path: str | Path, *, trust: bool = False, read_only: bool = False) -> dict[str, Any]:
    """Return the same as :meth:`Engine.info`, in less time because model, encoders and index are not loaded.

    Use :func:`verify_engine` to find out whether they are intact. If the model or an encoder is of another package, the
    engine is opened.

    Parameters
    ----------
    path, trust, read_only : as for :meth:`Engine.open`
    """
    folder = Path(path)
    read = partial(read_config_with_items, folder)
    _, config, _, store = _open_folder(folder, read, read_only=read_only, database=None)
    with store:
        reads = built_in_reads(folder, config)
        if reads is not None and ":" not in config["method"]:
            return _describe(folder, config, store, reads)
    with Engine(folder, trust=trust, read_only=read_only) as engine:
        return engine.info()


def _describe(folder: Path, config: Mapping[str, Any], store: Store, reads: Mapping[str, str]) -> dict[str, Any]:
    return {
        **describe_engine(folder, config, store.counts(), reads),
        "snapshot": SnapshotKeeper(folder, store, read_only=True).describe(),
    }


class Engine:
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

    def __init__(
        self,
        path: str | Path,
        *,
        backend: str = "exact",
        n_threads: int | None = None,
        trust: bool = False,
        read_only: bool = False,
        database: str | None = None,
        compiled: bool | None = True,
    ) -> None:
        self.path, self.read_only = Path(path), read_only
        self._options: dict[str, Any] = {
            "backend": check_choice(backend, "backend", ("exact", "clusters")),
            "n_threads": n_threads,
            "trust": trust,
            "read_only": read_only,
            "database": database,
            "compiled": compiled,
        }
        self._generation, parts, self._place, self.store = _open_folder(
            self.path, partial(read_parts, self.path, trust=trust), read_only=read_only, database=database
        )
        self.config = parts.config
        self._parts, self._hasher = parts, parts.hasher
        self.encoders = parts.encoders
        self.problems: tuple[Problem, ...] = ()
        self._lock = threading.Lock()
        self._revision: Revision | None = None
        self._labels: tuple[Revision, dict[str, int]] | None = None
        self.refinement = parts.refinement
        self._groups: dict[str, int] = {}
        """Group of the index of each modality."""
        self._compiled = self.store.revision().items > NUMPY_ITEMS if compiled is None else compiled
        self.index, self._ranker = self._make_index()
        self._snapshots = SnapshotKeeper(self.path, self.store, read_only=read_only)
        self.words: PhotoWords | None = None
        if parts.refinement.word_codes is not None:
            self.words = PhotoWords(parts.words, self.config["class_names"], parts.refinement)
        self.confidence = parts.confidence
        self._scorer: ConfidenceScorer | None = None
        if parts.confidence is not None:
            self._scorer = ConfidenceScorer(parts.confidence, parts.refinement, self.n_bits)
        self._files = ItemFiles.of(self.path, self.config, relative=self._place.kind == SQLITE)
        prints = PrintKeeper(None if read_only else self.path)
        self._duplicates = DuplicateFinder(self.store, parts.refinement, self._files, prints)
        try:
            if self.store.n_bits != self.n_bits:
                name = self._place.name(self.path)
                raise EngineError(f"{name} holds codes of {self.store.n_bits} bits, the model makes {self.n_bits}")
            if not read_only:
                remove_leftovers(self.path, self.store, self._place)
            self._revision = self._snapshots.load(self.index, self._ranker)
            self.refresh()
            if backend == "clusters":
                self.index.build_clusters()
        except BaseException:
            self.store.close()
            raise

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        backend: str = "exact",
        n_threads: int | None = None,
        trust: bool = False,
        read_only: bool = False,
        database: str | None = None,
        compiled: bool | None = True,
    ) -> Self:
        """Open an engine that :meth:`train` made.

        Parameters
        ----------
        path : its folder
        backend : ``"exact"``, or ``"clusters"``, which is also exact and faster for millions of items, but opens in
            half a second per million items and takes 12 bytes per item, twice that while clusters are rebuilt
        n_threads : the number of threads of one large search
        trust : import encoders of other packages that the engine names, which runs their code
        read_only : never write into the folder; changes raise. Otherwise, files that killed processes left are removed
        database : the URL of the PostgreSQL database of the items, if they are in one; by default read from the
            environment variable that the engine names
        compiled : whether searches use compiled code. Loading it takes half a second, so a process that searches once
            is quicker with None, which uses it only above a million items; the hits are the same
        """
        return cls(
            path,
            backend=backend,
            n_threads=n_threads,
            trust=trust,
            read_only=read_only,
            database=database,
            compiled=compiled,
        )

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

    @property
    def why_no_confidence(self) -> str | None:
        """The reason that hits have no confidence; None if they have one."""
        return why_no_confidence(self.config)

    @property
    def model(self) -> CrossModalHasher:
        """The fitted method; searching and adding do not need it."""
        return self._parts.model

    @cached_property
    def method(self) -> Method:
        """The properties of the method."""
        return method_info(self.config["method"])

    @property
    def n_bits(self) -> int:
        return int(self.config["n_bits"])

    @property
    def modalities(self) -> tuple[str, ...]:
        return tuple(self.encoders)

    @property
    def reads(self) -> dict[str, str]:
        """What a query of each modality is: ``"text"``, ``"image"`` or ``"array"``.

        An engine of pictures alone may take words as queries, but not as items.
        """
        reads = {modality: encoder.reads for modality, encoder in self.encoders.items()}
        return reads if self.words is None else {**reads, TEXT: "text"}

    def __len__(self) -> int:
        return self.store.count()

    def __repr__(self) -> str:
        return f"Engine({str(self.path)!r}): {self.n_bits} bits, {len(self)} items of {', '.join(self.modalities)}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store and free the index; write a snapshot first if one is due (:meth:`save_snapshot`)."""
        self._snapshots.finish()
        if self._is_snapshot_due(now=True):
            self._snapshots.save(*self._freeze())
        self.store.close()
        with self._lock:
            self.index, self._ranker = self._make_index()
            self._revision = None

    @cached_property
    def model_digest(self) -> str:
        """The digest of the model; engines with the same digest can be searched together."""
        return model_digest(self.config)

    @property
    def saves_media(self) -> bool:
        """Whether pictures given as bytes can be saved in the folder: only if the items are stored there too."""
        return self._place.kind == SQLITE

    @property
    def generation(self) -> str | None:
        """The id of this engine; an engine that replaces it has another."""
        return self._generation.id

    @property
    def replaced(self) -> bool:
        """Whether another engine replaced this one, or the folder is gone; cheap to read before every search."""
        return not self._generation.is_current()

    def fetch_replacement(self) -> bool:
        """Fetch the engine that replaced this one on another machine into the folder; return whether there is one.

        Only engines whose items are in a database can be replaced there. :attr:`replaced` is then true, and
        :meth:`reopen` returns the new one. Opening an engine does so too, unless it is opened read-only.
        """
        if self.store.successor() is None:
            return False
        if not self.replaced:  # no other process of this machine has fetched it
            follow(self.path, database=self._options["database"])
        return True

    def reopen(self) -> Self:
        """Open the engine that is in the folder now, with the same options. This one stays open."""
        return type(self).open(self.path, **self._options)

    @property
    def is_at_rest(self) -> bool:
        """Whether a search would not wait: the index is up to date, and no change is in progress in this process.

        Always false if the store is on another machine.
        """
        return (
            not self._lock.locked()
            and self._revision is not None
            and self._ranker.revision == self._revision
            and self.store.revision_if_ready() == self._revision
        )

    def refresh(self) -> None:
        """Update the index with the changes of all processes. Searches do so themselves."""
        with self._lock:
            before = self._revision
            self._revision = refresh(self.index, self.store, before)
            if not self.index.groups.keys() <= set(self._groups.values()):  # never change, but may be new
                self._groups = self.store.modalities()
            self._ranker.refresh(self.store, self._revision)
        if (self._revision != before or self._snapshots.is_waiting) and self._is_snapshot_due():
            self._snapshots.start(*self._freeze())

    def save_snapshot(self) -> int | None:
        """Write a snapshot of the index, from which the engine opens fast, and return its size in bytes.

        Engines of 50,000 items and more do so themselves, in the background once 1 of 32 items has changed, and when
        they are closed. Return None, with a warning, if it cannot be written.

        A snapshot is a copy that may be deleted at any time. What is missing in it is read from the store.
        """
        if self.read_only or self.replaced:
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
            self.refresh()
        problems.warn()
        notes += filter(None, [names.describe_joined()])
        return Added(added, replaced, tuple(problems.problems), tuple(notes))

    def _label_names(self) -> LabelNames:
        return LabelNames(self.config["class_names"], self.labels)

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
        self.refresh()
        for record in gone.values():
            delete_media(self.path, record.uri)
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
            self.refresh()
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
        from modalhash.engine.training.train import StoredItems, retrain_engine, settings_again

        self._check_writable()
        overrides = RetrainOverrides(**changes)
        problems = ProblemCollector(on_problem, strict=False)
        parts = read_parts(self.path, trust=bool(self._options["trust"]))  # its own encoders, because they are fitted
        settings = settings_again(parts, overrides, database=self._options["database"])
        reader = StoredItems(
            self.store, self._content_of, self._files, problems, drop_missing=drop_missing, workers=settings.workers
        )
        retrain_engine(self.path, reader, settings, self._generation.check, callback)
        problems.warn()
        engine = self.reopen()
        engine.problems = tuple(problems.problems)
        return engine

    def get(self, id: str, *, modality: str | None = None) -> Hit:
        """Return the item with this id; ``modality`` is needed if the id is in several."""
        return self.with_paths([Hit.from_record(self.records([str(id)], modality)[0], 0)])[0]

    def records(self, ids: Sequence[str], modality: str | None = None) -> list[Record]:
        """Return stored items; KeyError for an unknown id, ValueError for one in several modalities."""
        names = self.modalities if modality is None else self.check_modalities(modality)
        numbers = self.store.row_ids((name, id) for id in ids for name in names)
        stored = {record.key: record for record in self.store.records(list(numbers.values())).values()}
        found = []
        for id in ids:
            own = [record for name in names if (record := stored.get((name, id))) is not None]
            if not own:
                raise KeyError(f"no item has the id {id!r}" + (f" in {modality!r}" if modality else ""))
            if len(own) > 1:
                where = " and ".join(record.modality for record in own)
                raise ValueError(f"the id {id!r} is in {where}; say which with modality=…")
            found.append(own[0])
        return found

    def path_of(self, item: Hit | Record) -> Path | ArchiveMember | None:
        """Return the path of an item's file, which may not exist; None without a file, or if it is at a URL.

        Relative paths are resolved against the engine's folder, then against the folder where it was made. A file in an
        archive has ``read()`` for its bytes; its text is like ``photos.zip!/red/1.jpg``.
        """
        return self._files.find(item.uri)

    def with_paths(self, hits: Iterable[Hit]) -> list[Hit]:
        """Return hits whose ``uri`` is the current path of their file, as :meth:`search` returns them."""
        return [hit if (file := self.path_of(hit)) is None else hit.changed(uri=str(file)) for hit in hits]

    def sizes(self) -> dict[str, int]:
        """Return the number of items of each modality at the last search, without reading the store."""
        sizes = self.index.groups
        return {name: sizes.get(self._groups.get(name, -1), 0) for name in self.modalities}

    def search(
        self,
        query: Any = None,
        *,
        text: str | None = None,
        image: str | Path | bytes | None = None,
        id: str | None = None,
        features: Matrix | None = None,
        modality: str | None = None,
        options: SearchOptions | None = None,
        **changes: Unpack[OptionValues],
    ) -> list[Hit]:
        """Return the nearest items to one query, the nearest first.

        Codes find them and refinement vectors order them (``refine=False``: by distance, then in the order of adding).
        The query itself, if it is an item, and its duplicates come first.

        Parameters
        ----------
        text, image, id, features, query : one of them: a text; the path or the bytes of a picture; the id of an item of
            the engine (which is not among the hits); a row of features; or any input of the encoder of ``modality``. A
            text may be combined with ``image`` or ``id``: this picture, but at night
        modality : of ``query`` or ``features``, or of ``id`` if it is in several
        options, changes : the options, and single ones by name, e.g. ``k=5, want="image"``: see :class:`SearchOptions`
        """
        given = {"text": text, "image": image, "id": id, "query": query}
        one: dict[str, Any] = {name: [value] for name, value in given.items() if value is not None}
        return self.search_many(**one, features=features, modality=modality, options=options, **changes)[0]

    def search_many(
        self,
        query: Sequence[Any] | None = None,
        *,
        text: Sequence[str] | None = None,
        image: Sequence[str | Path | bytes] | None = None,
        id: Sequence[str] | None = None,
        features: Matrix | None = None,
        modality: str | None = None,
        options: SearchOptions | None = None,
        **changes: Unpack[OptionValues],
    ) -> list[list[Hit]]:
        """Return the hits of several queries of one kind; like :meth:`search`, and faster than one by one."""
        wanted = replace(options or SearchOptions(), **changes)  # type: ignore[arg-type]
        self.check_options(wanted)
        queries = self.prepare(
            query, text=text, image=image, id=id, features=features, modality=modality, asymmetric=wanted.asymmetric
        )
        if warning := unknown_warning(queries):
            warnings.warn(warning, UserWarning, stacklevel=2)
        return [self.with_paths(hits) for hits in self.answer(queries, wanted)]

    def prepare(
        self,
        query: Sequence[Any] | None = None,
        *,
        text: Sequence[str] | None = None,
        image: Sequence[str | Path | bytes] | None = None,
        id: Sequence[str] | None = None,
        features: Matrix | None = None,
        modality: str | None = None,
        asymmetric: bool = False,
    ) -> list[Query]:
        """Encode queries of one kind for :meth:`answer`. A text may be combined with a picture or an id each."""
        if text is not None and (image is not None or id is not None):
            pictures = self.prepare(image=image, id=id, modality=modality, asymmetric=asymmetric)
            words = self.prepare(text=text, asymmetric=asymmetric)
            if len(pictures) != len(words):
                raise ValueError(f"{len(words)} texts and {len(pictures)} pictures; expected the same number of both")
            return [picture.with_words(own) for picture, own in zip(pictures, words, strict=True)]
        name, values = the_only_argument({"text": text, "image": image, "id": id, "features": features, "query": query})
        if isinstance(values, str | bytes | Path):
            raise TypeError(
                f"{name} is a {type(values).__name__}; search_many takes a sequence of them, search takes one"
            )
        if name == "id":
            records = self.records(list(map(str, values)), modality)
            return encode_records(self._hasher, self.encoders, records, files=self._files, asymmetric=asymmetric)
        of = name if name in ("text", "image") and modality is None else modality
        if of is None:
            raise TypeError(f"{name} needs modality=…, one of {', '.join(map(repr, self.modalities))}")
        if of == TEXT and name in ("text", "query") and self.words is not None:
            return self.words.read(values)
        self.check_modalities(of)
        if name != "features" and self.encoders[of].reads == "image":
            values = [find_member(str(one)) or one if isinstance(one, str | Path) else one for one in values]
        encode: Callable[..., list[Query]] = encode_features if name == "features" else encode_contents
        return encode(
            self._hasher,
            self.encoders[of],
            of,
            values,
            asymmetric=asymmetric,
            refinement=self.refinement,
            confidence=self.confidence,
        )

    def answer(
        self, queries: Sequence[Query], options: SearchOptions | Sequence[SearchOptions] | None = None
    ) -> list[list[Hit]]:
        """Return the hits of each query, with as few scans as possible.

        ``options`` are for all queries, or one for each. The ``uri`` of a hit is the stored one; :meth:`path_of` and
        :meth:`with_paths` resolve it.
        """
        if options is None or isinstance(options, SearchOptions):
            options = [options or SearchOptions()] * len(queries)
        asked = list(zip(queries, options, strict=True))
        if any(own.unique for own in options):
            return find_unique(asked, self._find, SameHits(self.refinement, self._duplicates.remembered()))
        return self._find(asked)

    def warm_up(self) -> None:
        """Load models and compiled kernels before the first search.

        Loading kernels takes half a second, or about 20 s if they have to be compiled first.
        """
        code = np.zeros(n_bytes(self.n_bits), np.uint8)
        refinement = self.refinement
        vectors = {name: np.ones(refinement.width(name), np.int8) for name in refinement.components}
        query = Query(code)
        plain = [SearchOptions(), *(SearchOptions(want=(name,)) for name in self.modalities)]
        self.answer([query] * (len(plain) + 1), [*plain, SearchOptions(radius=0, limit=1)])
        self.answer([Query(code, name, vector=vector) for name, vector in vectors.items()])
        for name, reads in self.reads.items():
            with contextlib.suppress(ValueError):  # an encoder of another package may refuse these
                if reads == "text":
                    self.prepare(text=["a"], modality=name)
                elif reads == "image":
                    self.prepare(image=[ONE_PIXEL_GIF], modality=name)

    def duplicates(
        self,
        *,
        modality: str | Sequence[str] | None = None,
        radius: int = DUPLICATE_RADIUS,
        threshold: float = DUPLICATE_THRESHOLD,
        pixels: bool = True,
        where: Filter | str | Mapping[str, Any] | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[DuplicateGroup]:
        """Return groups of near-duplicates within a modality: exact ones first, then by decreasing similarity.

        All items of a group are near to its first, the oldest. The first call takes seconds per 100,000 items and reads
        the files of all photos; the result is kept until the store changes.

        Parameters
        ----------
        modality : one or several; all by default
        radius : in how many of 64 bits the sketches of near items may differ; more takes longer and finds a little more
        threshold : the least cosine of the embeddings of near items, at most 1; above the default it is also the least
            correlation of pixels
        pixels : also compare small copies of photos, which finds mirrored, turned and cropped ones
        where : a filter, as for :class:`SearchOptions`
        limit, offset : the number of groups to return, and to skip first
        """
        names = self.modalities if modality is None else tuple(dict.fromkeys(self.check_modalities(modality)))
        check_int(radius, "radius", at_least=0)
        if check_number(threshold, "threshold", positive=True) > 1:
            raise ValueError(f"threshold is {threshold}; expected a cosine, at most 1")
        check_int(offset, "offset", at_least=0)
        if limit is not None:
            check_int(limit, "limit", at_least=1)
        groups = self._duplicates.find(
            names,
            radius=radius,
            threshold=float(threshold),
            pixels=pixels,
            where=None if where is None else self.check_filter(where),
            limit=limit,
            offset=offset,
        )
        return [replace(group, items=tuple(self.with_paths(group.items))) for group in groups]

    def items(self) -> Iterator[Record]:
        """Iterate over all stored items in insertion order; concurrent changes are skipped."""
        return self.store.scan()

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

    def info(self) -> dict[str, Any]:
        """Return the engine's configuration and the numbers of its items.

        ``label_sets`` is the number of distinct label sets of the training items. ``collisions`` counts the ``codes``,
        the ``pairs`` of label sets that share one, those of them that are ``conflicting`` (less than half of their
        labels in common) or ``disjoint``, and the training ``items`` that are ``misplaced``: whose code is that of
        items with conflicting labels. Methods that do not learn from labels have None for both. ``snapshot`` has the
        size, age in seconds and number of items of the index's snapshot, and the changes since; None without one.
        """
        return _describe(self.path, self.config, self.store, self.reads)

    def labels(self) -> dict[str, int]:
        """Return the number of items of each label, the most frequent first; labels are strings here."""
        revision = self.store.revision()
        if self._labels is None or self._labels[0] != revision:
            self._labels = revision, self.store.labels()
        return dict(self._labels[1])

    def check_options(self, options: SearchOptions) -> None:
        """Raise ValueError if the options name a modality, label or kind that the engine does not have."""
        if options.want is not None:
            self.check_modalities(options.want)
        if options.min_confidence is not None and self.confidence is None:
            raise ValueError(f"min_confidence cannot be applied: {self.why_no_confidence}")
        if options.filter is not None:
            self.check_filter(options.filter)

    def check_filter(self, where: Filter | str | Mapping[str, Any]) -> Filter:
        """Return a filter given in any form; ValueError if it names a label, kind or modality that no item has."""
        wanted = Filter.of(where)
        trained = self.config["class_names"]
        check_filter(wanted, trained_labels=trained, all_labels=self.labels, modalities=self.modalities)
        return wanted

    def check_modalities(self, names: str | Sequence[str]) -> tuple[str, ...]:
        """Return the names as a tuple; ValueError for an unknown one."""
        wanted = (names,) if isinstance(names, str) else tuple(names)
        for name in wanted:
            if name not in self.encoders:
                raise ValueError(f"the engine has no modality {name!r}; it has {', '.join(map(repr, self.modalities))}")
        return wanted

    def _find(self, asked: Sequence[Asked]) -> list[list[Hit]]:
        self.refresh()
        return HitFinder(self.index, self.store, self._groups, self._ranker, self._scorer).find(asked)

    def _make_index(self) -> tuple[HammingIndex, Ranker]:
        how: dict[str, Any] = {"n_threads": self._options["n_threads"], "compiled": self._compiled}
        folder = None if self.read_only else self.path
        ranker = Ranker(self.refinement, self.config["class_names"], folder=folder, **how)
        return HammingIndex(self.n_bits, **how), ranker

    def _is_snapshot_due(self, *, now: bool = False) -> bool:
        revision = self._revision
        if revision is None or self._ranker.revision != revision:
            return False  # closed, or the store failed before all vectors were read
        return self._snapshots.is_due(revision, self.index, now=now) and not self.replaced

    def _freeze(self) -> tuple[Frozen, Revision, int]:
        with self._lock:
            assert self._revision is not None
            return freeze_engine(self.index, self._ranker), self._revision, len(self.index)

    def _content_of(self, record: Record) -> str | Path | ArchiveMember | None:
        """Return the encoder's input for an item; None if only its features are known."""
        if self.encoders[record.modality].reads == "array":
            return None
        return record.text if record.text is not None else self.path_of(record)

    def _check_writable(self) -> None:
        if self.read_only:
            raise EngineError(f"{self.path} is opened read-only; items cannot be added or removed")
        self._generation.check()
