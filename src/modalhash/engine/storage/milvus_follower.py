"""Keep an engine's codes in Milvus in step with its items in PostgreSQL, which stay the truth.

Collections of :mod:`modalhash.index.milvus_collection` hold codes, sketches and meanings. One of the processes that
have the engine open, the *leader*, holds a lock of the database; if it dies, another takes over. It deletes in Milvus
what was removed from the store and inserts what was added, in batches, and records the revision after each. A batch
that was not recorded is deleted before the next leader writes it again.

All processes read the recorded revisions and search the collections up to these, and what came later in memory.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from modalhash.core.typing import Array
from modalhash.engine.search.ordering import Ranker, refresh, sketches_of, vector_width
from modalhash.engine.search.refinement import EMBEDDING_DIMENSIONS, Refinement
from modalhash.engine.storage.folder import EngineError
from modalhash.engine.storage.location import StoreLocation
from modalhash.index import (
    CollectionGoneError,
    FoundRows,
    IndexUnavailableError,
    Milvus,
    MilvusCollection,
    MilvusIndex,
    MilvusView,
    Reached,
    VectorTable,
    largest,
)
from modalhash.store import PostgresStore, Revision, StoreError

MAX_RECENT = 4_000_000
"""Items that a process holds in memory until they are in Milvus, some 100 MB; with more, searches are unavailable."""
FEW_RECENT = 50_000
"""Items in memory that are read again whenever Milvus has caught up a little; more, only when their number halves."""
BATCH = 25_000
RECORD_SECONDS = 1.0
"""Seconds after which a revision is recorded while there is more to write."""
POLL_SECONDS, LOCK_SECONDS, VERIFY_SECONDS = 0.5, 2.0, 60.0
"""Pauses between looks at the revisions, attempts to lead, and counts of the items in Milvus."""
COMPARED = 1_000
"""Number of the newest items whose codes a new leader compares with those of the store."""
Rows = tuple[Array, Array, Array]  # row ids, groups, and codes or vectors


@dataclass
class Followed:
    """A collection, the rows of the store that belong into it, and what it is known to hold."""

    collection: MilvusCollection
    rows: Callable[[Revision, Revision], Iterator[Rows]]
    state: Reached | None = None

    def known(self) -> Reached:
        """Return the last state that was read; an empty one if there is no collection yet."""
        if self.state is None:
            try:
                self.state = self.collection.find()
            except CollectionGoneError:
                return Reached()
        return self.state

    def held(self) -> Reached:
        """Return the state that the leader wrote; CollectionGoneError if a search found the collection gone since."""
        if self.state is None:
            raise CollectionGoneError(f"{self.collection.prefix}: the collection is gone")
        return self.state


class Taken(NamedTuple):
    """Indexes of what collections hold and, in memory, of the rest, with their revision and the collections' states."""

    codes: MilvusIndex
    ranker: Ranker
    revision: Revision
    states: tuple[Reached, ...]


class MilvusFollower:
    """Brings collections to the revision of a store, in a thread, and says what they hold.

    Parameters
    ----------
    store : the items
    parts : the collections
    is_gone : called with the prefix of a replaced engine's collections; returns whether no process needs them
    replaced : prefixes of the collections of replaced engines, which are dropped once they are gone
    lead : whether this process may write; otherwise it only reads what others recorded
    """

    def __init__(
        self,
        store: PostgresStore,
        parts: Sequence[Followed],
        *,
        replaced: Mapping[str, Callable[[], bool]],
        lead: bool,
    ) -> None:
        self.parts, self.problem = parts, ""
        self.store, self._replaced, self._may_lead = store, replaced, lead
        self._stop, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="milvus follower", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._wake.set()
        self._thread.join(2 * POLL_SECONDS)

    def wake(self) -> None:
        """Bring the collections to the store's revision now."""
        self._wake.set()

    def forget(self) -> None:
        """Read the states again, because a collection is gone."""
        for part in self.parts:
            part.state = None

    def newer(self, old: tuple[Reached, ...] | None) -> tuple[Reached, ...] | None:
        """Return the states from which to make new indexes; None if those made from ``old`` states do.

        IndexUnavailableError if too much is missing in Milvus.
        """
        states = tuple(part.known() for part in self.parts)
        if old is not None and all(one[:3] == other[:3] for one, other in zip(old, states, strict=True)):
            return None
        items = self.store.revision().items
        missing = max(items - state.items for state in states)
        if missing > MAX_RECENT:
            raise IndexUnavailableError(
                f"Milvus is being filled and lacks {missing:,} of {items:,} items; searches work from "
                f"{MAX_RECENT:,} on{f' ({self.problem})' if self.problem else ''}"
            )
        if old is None or any(one.name != other.name for one, other in zip(old, states, strict=True)):
            return states
        return states if missing <= max(FEW_RECENT, max(items - state.items for state in old) // 2) else None

    def take(
        self, old: tuple[Reached, ...] | None, refinement: Refinement, class_names: Sequence[str], **how: Any
    ) -> Taken | None:
        """Return new indexes if Milvus has more than when those of ``old`` states were made; ``how`` is theirs."""
        if (states := self.newer(old)) is None:
            return None
        own, *rest = (part.collection for part in self.parts)
        since = Revision(min(one.items for one in states[1:]), min(one.removals for one in states[1:]))
        common = [one._replace(items=since.items, removals=since.removals) for one in states[1:]]
        meanings = rest[1] if len(rest) > 1 else None
        width, compiled = vector_width(refinement), how["compiled"]
        vectors = StoredVectors(self.store, width, meanings, common[-1], compiled=compiled)
        ranker = Ranker(refinement, class_names, vectors=vectors, sketches=MilvusIndex(rest[0], common[0], **how))
        ranker.resume(since)
        codes = MilvusIndex(own, states[0], **how)
        revision = refresh(codes, self.store, Revision(*states[0][1:3]))
        ranker.refresh(self.store, revision)
        return Taken(codes, ranker, revision, states)

    # -- the thread

    def _run(self) -> None:
        attempt = 0.0
        while not self._stop.is_set():
            try:
                if self._may_lead and time.monotonic() >= attempt:
                    attempt = time.monotonic() + LOCK_SECONDS
                    with self.store.follower_lock() as check:
                        if check is not None:
                            self._lead(check)
                for part in self.parts:
                    part.state = part.collection.find()
                self.problem = ""
            except CollectionGoneError:
                self.forget()
                attempt = 0.0
            except (StoreError, IndexUnavailableError) as error:
                self.problem = str(error)
            except Exception as error:  # the thread continues, because searches depend on it
                self.problem = f"{type(error).__name__}: {error}"
                warnings.warn(f"following the store in Milvus failed: {self.problem}", UserWarning, stacklevel=2)
            self._pause()

    def _pause(self) -> None:
        self._wake.wait(POLL_SECONDS)
        self._wake.clear()

    def _lead(self, check: Callable[[], None]) -> None:
        """Write until this process ends or loses the lock; ``check`` raises if it did."""
        for part in self.parts:
            part.state = self._begin(part)
        for prefix, is_gone in self._replaced.items():
            if is_gone():
                for name in MilvusCollection(self.parts[0].collection.server, prefix, 1).names():
                    self.parts[0].collection.drop(name)
        verified = time.monotonic()
        while not self._stop.is_set():
            check()
            changed = [self._advance(part, check) for part in self.parts]
            self.problem = ""
            if not any(changed):
                if time.monotonic() >= verified + VERIFY_SECONDS:
                    verified = time.monotonic()
                    self._verify()
                self._pause()

    def _begin(self, part: Followed) -> Reached:
        """Return the state of the collection that is there, without an unfinished batch, or of a new one."""
        collection = part.collection
        try:
            state = collection.find()
        except CollectionGoneError:
            return self._create(part)
        collection.load(state.name)
        collection.clean(state)
        if reason := self._difference(part, state):
            warnings.warn(f"{state.name} in Milvus is filled again, because {reason}", UserWarning, stacklevel=2)
            return self._create(part)
        for name in set(collection.names()) - {state.name}:
            collection.drop(name)
        return state._replace(groups={group: collection.count(state.name, group) for group in state.groups})

    def _create(self, part: Followed) -> Reached:
        for name in part.collection.names():
            part.collection.drop(name)
        return part.collection.create()

    def _difference(self, part: Followed, state: Reached) -> str | None:
        """Return why a collection cannot be of this store, which may have been restored; None if it can."""
        revision, reached = self.store.revision(), Revision(*state[1:3])
        if reached.items > revision.items or reached.removals > revision.removals:
            return f"it is at revision {tuple(reached)} and the store at {tuple(revision)}"
        gone = self.store.removed(reached, revision)  # some of them may have been deleted
        total, there = sum(state.groups.values()), part.collection.count(state.name)
        if not total - len(gone) <= there <= total:
            return f"it has {there:,} items instead of {total:,}"
        newest = part.rows(reached._replace(items=max(0, reached.items - COMPARED)), reached)
        ids, groups, codes = _joined(newest)
        stored = part.collection.codes(state.name, ids)
        if stored != {
            number: (code.tobytes(), group)
            for number, group, code in zip(ids.tolist(), groups.tolist(), codes, strict=True)
        }:
            return "its newest items are not those of the store"
        return None

    def _verify(self) -> None:
        """Count the items in Milvus; a collection with a wrong number is filled again."""
        for part in self.parts:
            state = part.held()
            there, total = part.collection.count(state.name), sum(state.groups.values())
            if there != total:
                reason = f"it has {there:,} items instead of {total:,}"
                warnings.warn(f"{state.name} in Milvus is filled again, because {reason}", UserWarning, stacklevel=2)
                part.state = self._create(part)

    def _advance(self, part: Followed, check: Callable[[], None]) -> bool:
        """Bring a collection to the store's revision; return whether it was behind."""
        state, target = part.held(), self.store.revision()
        since = Revision(*state[1:3])
        if since == target:
            return False
        collection, groups = part.collection, Counter(state.groups)
        gone = self.store.removed(since, target)
        gone = gone[gone <= state.items]
        if len(gone):
            groups.subtract(Counter(collection.groups(state, gone).values()))
            collection.delete(state.name, gone)
        recorded = time.monotonic()
        for ids, own, codes in part.rows(since, target):
            for start in range(0, len(ids), BATCH):
                check()
                rows = slice(start, start + BATCH)
                collection.write(state.name, ids[rows], codes[rows], own[rows])
                groups.update(own[rows].tolist())
                if self._stop.is_set():
                    return True
                if time.monotonic() > recorded + RECORD_SECONDS:
                    part.state = self._record(part, target._replace(items=int(ids[rows][-1])), groups)
                    recorded = time.monotonic()
        part.state = self._record(part, target, groups)
        return True

    def _record(self, part: Followed, reached: Revision, groups: Counter[int]) -> Reached:
        state = part.held()._replace(items=reached.items, removals=reached.removals, groups=dict(+groups))
        return part.collection.record(state)


def follow_in_milvus(
    store: Any, place: StoreLocation, refinement: Refinement, facts: Mapping[str, str], *, read_only: bool
) -> MilvusFollower:
    """Follow the store of an engine.

    Parameters
    ----------
    facts : properties of the collections, which say whose they are
    read_only : only read what other processes write to Milvus
    """
    if not isinstance(store, PostgresStore):
        raise EngineError("search on Milvus needs an engine whose items are in PostgreSQL: modalhash train --store …")
    server = Milvus()

    def codes(since: Revision, until: Revision) -> Iterator[Rows]:
        return store.codes(since=since, until=until)

    def sketches(since: Revision, until: Revision) -> Iterator[Rows]:
        for numbers, groups, vectors, present in store.refinements(since=since, until=until):
            yield sketches_of(refinement, numbers[present], groups[present], vectors[present])

    values = refinement.meaning_values

    def meanings(since: Revision, until: Revision) -> Iterator[Rows]:
        for numbers, groups, vectors, present in store.refinements(since=since, until=until):
            yield numbers[present], groups[present], np.ascontiguousarray(vectors[present, values])

    parts = [
        Followed(MilvusCollection(server, f"{place.schema}_codes", store.n_bits, facts), codes),
        Followed(MilvusCollection(server, f"{place.schema}_sketches", EMBEDDING_DIMENSIONS, facts), sketches),
    ]
    if values.stop > values.start:
        length = values.stop - values.start
        parts.append(Followed(MilvusCollection(server, f"{place.schema}_meanings", length, facts, "IP"), meanings))
    replaced = {schema: partial(_is_gone, place, schema) for schema in place.replaces}
    return MilvusFollower(store, parts, replaced=replaced, lead=not read_only)


def _is_gone(place: StoreLocation, schema: str) -> bool:
    return place.drop(schema, only_look=True) is None


def _joined(pages: Iterator[Rows]) -> Rows:
    first = next(pages, None)
    if first is None:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, 1), np.uint8)
    ids, groups, codes = (np.concatenate(columns) for columns in zip(*chain([first], pages), strict=True))
    return ids, groups, codes


class StoredVectors:
    """Refinement vectors that are read from the store for each search, in one query.

    The values that are compared with the query's for all items are in a collection, and in memory for recent items. The
    methods are those of :class:`~modalhash.index.VectorTable` that the order of hits needs.
    """

    def __init__(
        self, store: PostgresStore, width: int, collection: MilvusCollection | None, state: Reached, *, compiled: bool
    ) -> None:
        self.width, self.last_id, self._collection, self._state = width, state.items, collection, state
        self._store, self._compiled = store, compiled
        self._recent = VectorTable(width, compiled=compiled)
        self._hidden = np.empty(0, np.int64)

    def add(self, ids: Any, vectors: Array, *, group: Any = 0) -> None:
        if self._collection is not None:
            self._recent.add(ids, vectors, group=group)

    def remove(self, ids: Any) -> None:
        self._recent.remove(ids)
        self._hidden = np.union1d(self._hidden, ids[ids <= self._state.items])

    def find(self, ids: Array) -> FoundRows:
        """Return the vectors of some ids."""
        wanted = np.asarray(ids, dtype=np.int64)
        numbers, groups, vectors = self._store.vectors(wanted)
        rows = np.searchsorted(numbers, wanted)
        present = rows < len(numbers)
        present[present] = numbers[rows[present]] == wanted[present]
        table = np.ascontiguousarray(vectors[:, : self.width])
        rows = rows[present]
        return FoundRows(table, rows, groups[rows], present, self._compiled)

    def nearest(self, query: Array, start: int, stop: int, groups: Sequence[int] | None, k: int) -> tuple[Array, Array]:
        """Return ids and products as :meth:`VectorTable.nearest` does."""
        view = None
        if self._collection is not None:
            view = MilvusView(self._collection, self._state, self._hidden, groups)
        ids, products = self._recent.nearest(query, start, stop, groups, k)
        if view is not None:
            ((there, distances),) = view.nearest(query[None, start:stop], k, k)
            ids, products = np.append(ids, there), np.append(products, -distances)
            order = np.argsort(ids)
            ids, products = ids[order], products[order]
        best = largest(products, k)
        return ids[best], products[best]
