"""Search an engine in its folder, without changing its items."""

from __future__ import annotations

import base64
import contextlib
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

import numpy as np

from modalhash.core.archives import ArchiveMember, find_member
from modalhash.core.codes import n_bytes
from modalhash.core.label_names import LabelNames
from modalhash.core.typing import Matrix
from modalhash.core.validation import check_int, check_number
from modalhash.engine.items.item import ItemFiles, Problem
from modalhash.engine.search.hits import ConfidenceScorer, Hit, HitFinder
from modalhash.engine.search.near_duplicates import (
    DUPLICATE_RADIUS,
    DUPLICATE_THRESHOLD,
    DuplicateFinder,
    DuplicateGroup,
    SameHits,
    find_unique,
)
from modalhash.engine.search.ordering import Ranker, refresh, vector_width
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
from modalhash.engine.search.refinement import EMBEDDING_DIMENSIONS
from modalhash.engine.settings import OpenOptions, OpenOptionValues, OptionValues, SearchOptions
from modalhash.engine.storage.backup import remove_leftovers
from modalhash.engine.storage.folder import EngineError, model_digest, read_parts, why_no_confidence
from modalhash.engine.storage.index_snapshot import SnapshotKeeper, freeze_engine
from modalhash.engine.storage.location import SQLITE, follow
from modalhash.engine.storage.opening import describe, open_folder
from modalhash.index import CollectionGoneError, Frozen, HammingIndex, IndexUnavailableError, VectorTable
from modalhash.methods.registry import Method, info as method_info
from modalhash.store import Filter, Record, Revision

if TYPE_CHECKING:  # what changes an engine is imported by the method that needs it, because a search does not
    from modalhash.engine.storage.milvus_follower import MilvusFollower
    from modalhash.index import MilvusIndex, Reached
    from modalhash.methods.base import CrossModalHasher

NUMPY_ITEMS = 1_000_000
"""Items up to which one search by numpy (.08 s for 64 values of each vector) beats loading compiled code (.4 s)."""
ONE_PIXEL_GIF = base64.b64decode("R0lGODlhAQABAIAAAP///wAAACwAAAAAAQABAAACAkQBADs=")


class SearchEngine:
    """The part of :class:`Engine` that opens and searches one, without changing its items."""

    def __init__(self, path: str | Path, **options: Unpack[OpenOptionValues]) -> None:
        self._options = wanted = OpenOptions(**options)
        self.path, self.read_only = Path(path), wanted.read_only
        self._generation, parts, self._place, self.store = open_folder(
            self.path,
            partial(read_parts, self.path, trust=wanted.trust),
            read_only=wanted.read_only,
            database=wanted.database,
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
        compiled = self.store.revision().items > NUMPY_ITEMS if wanted.compiled is None else wanted.compiled
        self._scans: dict[str, Any] = {"n_threads": wanted.n_threads, "compiled": compiled}
        self._follower: MilvusFollower | None = None
        self._in_milvus: tuple[Reached, ...] | None = None
        self.index: HammingIndex | MilvusIndex
        self.index, self._ranker = self._make_index()
        self._snapshots = SnapshotKeeper(self.path, self.store, read_only=self.read_only)
        self.words: PhotoWords | None = None
        if parts.refinement.word_codes is not None:
            self.words = PhotoWords(parts.words, self.config["class_names"], parts.refinement)
        self.confidence = parts.confidence
        self._scorer: ConfidenceScorer | None = None
        if parts.confidence is not None:
            self._scorer = ConfidenceScorer(parts.confidence, parts.refinement, self.n_bits)
        self._files = ItemFiles.of(self.path, self.config, relative=self._place.kind == SQLITE)
        prints = PrintKeeper(None if self.read_only else self.path)
        self._duplicates = DuplicateFinder(self.store, parts.refinement, self._files, prints)
        try:
            if self.store.n_bits != self.n_bits:
                name = self._place.name(self.path)
                raise EngineError(f"{name} holds codes of {self.store.n_bits} bits, the model makes {self.n_bits}")
            if not self.read_only:
                remove_leftovers(self.path, self.store, self._place)
            if wanted.backend == "milvus":
                self._follower = self._follow_in_milvus()
            else:
                self._revision = self._snapshots.load(self.index, self._ranker)
            self._refresh_unless(IndexUnavailableError)
            if isinstance(self.index, HammingIndex) and wanted.backend == "clusters":
                self.index.build_clusters()
        except BaseException:
            self.store.close()
            raise

    @classmethod
    def open(cls, path: str | Path, **options: Unpack[OpenOptionValues]) -> Self:
        """Open an engine that :meth:`train` made.

        Parameters
        ----------
        path : its folder
        options : by name, e.g. ``read_only=True``: see :class:`OpenOptions`
        """
        return cls(path, **options)

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
        return self._parts.reads

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
        if self._follower is not None:
            self._follower.close()
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
            follow(self.path, database=self._options.database)
        return True

    def reopen(self) -> Self:
        """Open the engine that is in the folder now, with the same options. This one stays open."""
        return type(self)(self.path, **vars(self._options))

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
            self._take_from_milvus()
            before = self._revision
            self._revision = refresh(self.index, self.store, before)
            if not self.index.groups.keys() <= set(self._groups.values()):  # never change, but may be new
                self._groups = self.store.modalities()
            self._ranker.refresh(self.store, self._revision)
        if (self._revision != before or self._snapshots.is_waiting) and self._is_snapshot_due():
            self._snapshots.start(*self._freeze())

    def _label_names(self) -> LabelNames:
        return LabelNames(self.config["class_names"], self.labels)

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
        with contextlib.suppress(IndexUnavailableError):  # Milvus may come later
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

    def info(self) -> dict[str, Any]:
        """Return the engine's configuration and the numbers of its items.

        ``label_sets`` is the number of distinct label sets of the training items. ``collisions`` counts the ``codes``,
        the ``pairs`` of label sets that share one, those of them that are ``conflicting`` (less than half of their
        labels in common) or ``disjoint``, and the training ``items`` that are ``misplaced``: whose code is that of
        items with conflicting labels. Methods that do not learn from labels have None for both. ``snapshot`` has the
        size, age in seconds and number of items of the index's snapshot, and the changes since; None without one.
        """
        return describe(self.path, self.config, self.store, self.reads)

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
        try:
            return self._finder().find(asked)
        except CollectionGoneError:  # what its successor in Milvus does not have yet is in memory then
            assert self._follower is not None
            self._follower.forget()
            self.refresh()
            return self._finder().find(asked)

    def _finder(self) -> HitFinder:
        with self._lock:
            return HitFinder(self.index, self.store, self._groups, self._ranker, self._scorer)

    def _make_index(self) -> tuple[HammingIndex, Ranker]:
        folder = None if self.read_only else self.path
        vectors = VectorTable(vector_width(self.refinement), folder=folder, compiled=self._scans["compiled"])
        sketches = HammingIndex(EMBEDDING_DIMENSIONS, **self._scans)
        ranker = Ranker(self.refinement, self.config["class_names"], vectors=vectors, sketches=sketches)
        return HammingIndex(self.n_bits, **self._scans), ranker

    def _follow_in_milvus(self) -> MilvusFollower:
        from modalhash.engine.storage.milvus_follower import follow_in_milvus

        facts = {"engine": str(self.generation), "model": self.model_digest}
        return follow_in_milvus(self.store, self._place, self.refinement, facts, read_only=self.read_only)

    def _take_from_milvus(self) -> None:
        """Search what Milvus has by now, and the rest in memory; callers hold the lock."""
        if self._follower is None:
            return
        taken = self._follower.take(self._in_milvus, self.refinement, self.config["class_names"], **self._scans)
        if taken is not None:
            self.index, self._ranker, self._revision, self._in_milvus = taken

    def _refresh_unless(self, *errors: type[Exception]) -> None:
        """Update the index; on these errors leave that to the next search."""
        if self._follower is not None:
            self._follower.wake()
        with contextlib.suppress(*errors):
            self.refresh()

    def _is_snapshot_due(self, *, now: bool = False) -> bool:
        revision = self._revision
        if self._follower is not None or revision is None or self._ranker.revision != revision:
            return False  # closed, or the store failed before all vectors were read
        return self._snapshots.is_due(revision, self.index, now=now) and not self.replaced

    def _freeze(self) -> tuple[Frozen, Revision, int]:
        with self._lock:
            assert self._revision is not None
            return freeze_engine(self.index, self._ranker), self._revision, len(self.index)
