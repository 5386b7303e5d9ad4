"""The snapshot of an engine's index: when it is used, when it is written, and what it has to agree with.

The store is the truth, and the snapshot (``index.snapshot`` in the engine's folder) is a copy of what was read from it
up to one revision: codes, ids, sketches and refinement vectors, as :mod:`modalhash.index.snapshot` writes them. It is
used if it belongs to this store:

- it names the generation of the engine and the digest of its model, so that it is of no engine that lay there before;
- its revision is not beyond that of the store, which may have been put back from a copy;
- its *witnesses* are as in the store: the last items and removals up to its revision, and some items in between, so
  that it is of no copy of this engine that has gone its own way. Numbers of items are never used twice, so an item
  that has the number and another code was added elsewhere.

What came after its revision is then read from the store. A snapshot that does not fit, or is damaged, is passed over:
everything is read from the store, and a new one is written.

It is written beside the searches, from arrays that never change, whenever enough has changed since the last one.
Several processes may do so; each file is whole, and the last one stays. One that cannot be written costs a warning.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from modalhash.core.files import is_being_written
from modalhash.engine.search.ordering import Ranker
from modalhash.engine.storage.folder import SNAPSHOT as FILE
from modalhash.index import (
    Frozen,
    HammingIndex,
    Snapshot,
    SnapshotError,
    freeze,
    read_snapshot_facts,
    write_snapshot,
)
from modalhash.store import Revision, Store, StoreError

MIN_ITEMS = 50_000
"""Items below which reading them from the store takes a tenth of a second, and no snapshot is written."""
CHANGED_SHARE = 32
"""A snapshot is written once one item in so many was added or removed since the last one."""
MIN_PAUSE, PAUSE_SHARE = 60.0, 20
"""Seconds between two snapshots of a process, and how many times as long as writing the last one took."""
N_WITNESSES = 32
"""Items that are compared with the store: so many of the last ones, and so many in between; and removals."""


class SnapshotOwner(NamedTuple):
    """The engine that a snapshot belongs to."""

    generation: str | None
    model_digest: str


def open_snapshot(folder: Path) -> Snapshot | None:
    """Open the snapshot of an engine, whose checksums are compared from now on; None without one that can be used."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        return Snapshot(path)
    except SnapshotError as error:
        _warn_of_damage(error)
        return None


def snapshot_problem(folder: Path, owner: SnapshotOwner, store: Store) -> str | None:
    """Read all of an engine's snapshot and say why it cannot be used; None if it can, or there is none."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        snapshot = Snapshot(path)
        snapshot.check()
    except SnapshotError as error:
        return str(error)
    return None if _reached(snapshot.facts, owner, store) is not None else f"{path} is not of this engine as it is now"


def _reached(facts: dict[str, Any], owner: SnapshotOwner, store: Store) -> Revision | None:
    """Return the revision of a snapshot of this very store; None if it is of another one."""
    try:
        if (facts["generation"], facts["model_digest"]) != owner:
            return None
        revision, now = Revision(*map(int, facts["revision"])), store.revision()
        if revision.items > now.items or revision.removals > now.removals:
            return None
        witnesses = facts["witnesses"]
        items = {int(number): int(digest) for number, digest in witnesses["items"]}
        if any(items[number] != digest for number, digest in _digests(store, list(items)).items()):
            return None
        last = _last_removals(store, revision)
        told = None if witnesses["removals"] is None else list(map(int, witnesses["removals"]))
        return revision if last is None or told is None or last == told else None
    except (LookupError, TypeError, ValueError):
        return None


def _digests(store: Store, numbers: list[int]) -> dict[int, int]:
    """Return a digest of the code and the vector of each item that is in the store."""
    records = store.records(numbers)
    return {number: zlib.crc32(bytes(one.code) + (one.refinement or b"")) for number, one in records.items()}


def _last_removals(store: Store, until: Revision) -> list[int] | None:
    """Return the items that were removed last up to a revision; None if the store has forgotten them."""
    since = until._replace(removals=max(0, until.removals - N_WITNESSES))
    removed: list[int] = store.removed(since, until).tolist()
    return removed if len(removed) == until.removals - since.removals else None


class SnapshotKeeper:
    """Loads the snapshot of an engine, and writes a new one when enough has changed.

    Parameters
    ----------
    folder : Path
        Of the engine.
    owner : SnapshotOwner
        The engine.
    store : Store
        Of its items.
    read_only : bool
        Never write.
    """

    def __init__(self, folder: Path, owner: SnapshotOwner, store: Store, *, read_only: bool) -> None:
        self.path = folder / FILE
        self._owner, self._store, self._read_only = owner, store, read_only
        self._saved: Revision | None = None
        self._used: tuple[int, int] | None = None
        self._not_before = 0.0
        self._writer: threading.Thread | None = None
        self._lock = threading.Lock()

    # -- reading

    def load(self, snapshot: Snapshot | None, index: HammingIndex, ranker: Ranker) -> Revision | None:
        """Fill an empty index and ranker from a snapshot and return its revision; None if it cannot be used."""
        if snapshot is None:
            return None
        revision = _reached(snapshot.facts, self._owner, self._store)
        if revision is None:
            return None
        try:
            snapshot.thaw({"codes": index, "sketches": ranker.sketches}, {"vectors": ranker.vectors})
            ranker.resume(revision)
        except SnapshotError as error:
            _warn_of_damage(error)
            return None
        self._saved, self._used = revision, snapshot.identity
        return revision

    def drop(self, error: SnapshotError) -> None:
        """Forget the snapshot that was loaded, because it turned out to be damaged, and delete it."""
        _warn_of_damage(error)
        self._saved, self._not_before = None, 0.0
        if self._read_only:
            return
        try:
            status = self.path.stat()
            if (status.st_dev, status.st_ino) == self._used:  # and not one that another process wrote since
                self.path.unlink()
        except OSError:  # gone, or it may not be deleted; the next one to open it finds the damage too
            pass

    def describe(self) -> dict[str, Any] | None:
        """Return the size and the age of the snapshot on disk, and how much has changed since; None without one."""
        try:
            facts, size = read_snapshot_facts(self.path)
            if (facts["generation"], facts["model_digest"]) != self._owner:
                return None
            created = datetime.fromisoformat(facts["created"])
            return {
                "bytes": size,
                "items": int(facts["items"]),
                "created": facts["created"],
                "age": max(0.0, round((datetime.now(UTC) - created).total_seconds(), 1)),
                "changes_since": _changes(Revision(*map(int, facts["revision"])), self._store.revision()),
            }
        except (SnapshotError, LookupError, TypeError, ValueError):
            return None

    # -- writing

    def is_due(self, revision: Revision, index: HammingIndex, *, now: bool = False) -> bool:
        """Return whether a snapshot should be written; with ``now``, however short ago the last one was."""
        if self._read_only:
            return False
        n_changes = revision.items if self._saved is None else _changes(self._saved, revision)
        if CHANGED_SHARE * n_changes < MIN_ITEMS:  # nearly always: the number of items is not asked for
            return False
        n = len(index)
        return n >= MIN_ITEMS and CHANGED_SHARE * n_changes >= n and (now or time.monotonic() >= self._not_before)

    def start(self, frozen: Frozen, revision: Revision, n_items: int) -> None:
        """Write a snapshot in a thread of its own, unless one is being written."""
        with self._lock:
            if self._writer is not None and self._writer.is_alive():
                return
            self._not_before = time.monotonic() + MIN_PAUSE
            self._writer = threading.Thread(
                target=self.save, args=(frozen, revision, n_items), name="snapshot writer", daemon=True
            )
            self._writer.start()

    def finish(self) -> None:
        """Wait for the snapshot that is being written."""
        writer = self._writer
        if writer is not None and writer is not threading.current_thread():
            writer.join()

    def save(self, frozen: Frozen, revision: Revision, n_items: int, *, anyway: bool = False) -> int | None:
        """Write a snapshot and return its size; None if it could not be written, or another process did so just now.

        With ``anyway``, also if that of another process would do.
        """
        begin = time.monotonic()
        try:
            if not self.path.parent.is_dir() or (not anyway and self._is_done_by_others(revision, n_items)):
                return None
            size = write_snapshot(self.path, frozen, self._facts(revision, n_items))
            with contextlib.suppress(StoreError):  # it is closed, or busy for long: another time
                self._store.optimize()
        except SnapshotError as error:  # of vectors that were mapped: the next search reads the store
            _warn_of_damage(error)
            return None
        except StoreError:  # closed meanwhile, or out of reach: then without
            return None
        except OSError as error:
            warnings.warn(
                f"{self.path} could not be written ({error.strerror or error}): nothing is lost, but the engine takes "
                "longer to open. Make room, or open it read-only",
                UserWarning,
                stacklevel=2,
            )
            return None
        finally:
            self._not_before = time.monotonic() + max(MIN_PAUSE, PAUSE_SHARE * (time.monotonic() - begin))
        self._saved = revision
        return size

    def _is_done_by_others(self, revision: Revision, n_items: int) -> bool:
        """Return whether another process is writing a snapshot, or has written one that is recent enough."""
        if is_being_written(self.path):
            return True
        try:
            facts, _ = read_snapshot_facts(self.path)
            theirs = Revision(*map(int, facts["revision"]))
            if (facts["generation"], facts["model_digest"]) != self._owner:
                return False
        except (SnapshotError, LookupError, TypeError, ValueError):
            return False
        if self._saved is None and theirs == revision:
            return False  # it was there and could not be used
        if CHANGED_SHARE * _changes(theirs, revision) >= n_items:
            return False
        self._saved = theirs
        return True

    def _facts(self, revision: Revision, n_items: int) -> dict[str, Any]:
        last = range(max(1, revision.items - N_WITNESSES + 1), revision.items + 1)
        between = np.linspace(1, max(1, revision.items), N_WITNESSES).astype(int).tolist()
        numbers = sorted({*last, *between}) if revision.items else []
        return {
            "generation": self._owner.generation,
            "model_digest": self._owner.model_digest,
            "revision": list(revision),
            "items": n_items,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "witnesses": {
                "items": sorted(_digests(self._store, numbers).items()),
                "removals": _last_removals(self._store, revision),
            },
        }


def freeze_engine(index: HammingIndex, ranker: Ranker) -> Frozen:
    """Return what an engine's index and ranker hold now."""
    return freeze({"codes": index, "sketches": ranker.sketches}, {"vectors": ranker.vectors})


def _changes(since: Revision, until: Revision) -> int:
    return abs(until.items - since.items) + abs(until.removals - since.removals)


def _warn_of_damage(error: SnapshotError) -> None:
    warnings.warn(
        f"{error}. All items are read from the store instead, which takes longer; a new snapshot follows",
        UserWarning,
        stacklevel=3,
    )
