"""Snapshot of an engine's index: when it is valid, used and written.

``index.snapshot`` in the engine's folder is a copy of the codes, ids, sketches and refinement vectors up to one
revision of the store, in the format of :mod:`modalhash.index.snapshot`. It is valid if

- it has the generation and the model digest of the engine;
- its revision is not later than that of the store, which may have been restored from a copy;
- its *witnesses* agree with the store: the last items and removals up to its revision, and items in between. Row ids
  are never reused, so a row id with another code belongs to a diverged copy of the engine.

Later changes are read from the store. If the snapshot is invalid or damaged, everything is read from the store, and a
new one is written.

Snapshots are written concurrently with searches, from immutable arrays. Several processes may write them; each file is
written atomically, and the last one stays. Write errors cause a warning.
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
"""Items below which no snapshot is written, because reading them from the store takes 0.1 s."""
CHANGED_SHARE = 32
"""A snapshot is written when 1 / CHANGED_SHARE of the items changed since the last one."""
MIN_PAUSE, PAUSE_SHARE = 60.0, 20
"""Seconds between two snapshots of a process, and multiple of the time that the last one took."""
N_WITNESSES = 32
"""Number of last items, of items in between, and of removals that are compared with the store."""


class SnapshotOwner(NamedTuple):
    """The engine that a snapshot belongs to."""

    generation: str | None
    model_digest: str


def open_snapshot(folder: Path) -> Snapshot | None:
    """Open the snapshot of an engine; None if it is missing or damaged."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        return Snapshot(path)
    except SnapshotError as error:
        _warn_of_damage(error)
        return None


def snapshot_problem(folder: Path, owner: SnapshotOwner, store: Store) -> str | None:
    """Read the entire snapshot and return why it is invalid; None if it is valid or missing."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        snapshot = Snapshot(path)
        snapshot.check()
    except SnapshotError as error:
        return str(error)
    return (
        None
        if _reached(snapshot.facts, owner, store) is not None
        else f"{path} does not belong to the current state of this engine"
    )


def _reached(facts: dict[str, Any], owner: SnapshotOwner, store: Store) -> Revision | None:
    """Return the revision of a snapshot of this store; None if it belongs to another one."""
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
        recorded = None if witnesses["removals"] is None else list(map(int, witnesses["removals"]))
        return revision if last is None or recorded is None or last == recorded else None
    except (LookupError, TypeError, ValueError):
        return None


def _digests(store: Store, numbers: list[int]) -> dict[int, int]:
    """Return checksums of code and vector by row id, of the items in the store."""
    records = store.records(numbers)
    return {number: zlib.crc32(bytes(one.code) + (one.refinement or b"")) for number, one in records.items()}


def _last_removals(store: Store, until: Revision) -> list[int] | None:
    """Return the row ids of the last removals up to a revision; None if the store has dropped them."""
    since = until._replace(removals=max(0, until.removals - N_WITNESSES))
    removed: list[int] = store.removed(since, until).tolist()
    return removed if len(removed) == until.removals - since.removals else None


class SnapshotKeeper:
    """Loads the snapshot of an engine, and writes a new one when enough has changed."""

    def __init__(self, folder: Path, owner: SnapshotOwner, store: Store, *, read_only: bool) -> None:
        self.path = folder / FILE
        self._owner, self._store, self._read_only = owner, store, read_only
        self._saved: Revision | None = None
        self._used: tuple[int, int] | None = None
        self._not_before = 0.0
        self._writer: threading.Thread | None = None
        self._lock = threading.Lock()

    def load(self, snapshot: Snapshot | None, index: HammingIndex, ranker: Ranker) -> Revision | None:
        """Fill an empty index and ranker from a snapshot and return its revision; None if it is invalid."""
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
        """Delete the loaded snapshot because it is damaged."""
        _warn_of_damage(error)
        self._saved, self._not_before = None, 0.0
        if self._read_only:
            return
        try:
            status = self.path.stat()
            if (status.st_dev, status.st_ino) == self._used:  # not replaced by another process
                self.path.unlink()
        except OSError:  # deleted, or read-only; the next process to open it finds the damage
            pass

    def describe(self) -> dict[str, Any] | None:
        """Return size, age and number of changes since the snapshot on disk; None without one."""
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

    def is_due(self, revision: Revision, index: HammingIndex, *, now: bool = False) -> bool:
        """Return whether a snapshot should be written; ``now`` ignores the pause."""
        if self._read_only:
            return False
        n_changes = revision.items if self._saved is None else _changes(self._saved, revision)
        if CHANGED_SHARE * n_changes < MIN_ITEMS:  # nearly always, without counting the items
            return False
        n = len(index)
        return n >= MIN_ITEMS and CHANGED_SHARE * n_changes >= n and (now or time.monotonic() >= self._not_before)

    def start(self, frozen: Frozen, revision: Revision, n_items: int) -> None:
        """Write a snapshot in a thread, unless one is being written."""
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
        """Write a snapshot and return its size; None on errors, or if another process has written one.

        ``anyway`` writes even if the snapshot of another process is recent enough.
        """
        begin = time.monotonic()
        try:
            if not self.path.parent.is_dir() or (not anyway and self._is_done_by_others(revision, n_items)):
                return None
            size = write_snapshot(self.path, frozen, self._facts(revision, n_items))
            with contextlib.suppress(StoreError):  # closed or busy; the next save tries again
                self._store.optimize()
        except SnapshotError as error:  # in mapped vectors; the next search reads the store
            _warn_of_damage(error)
            return None
        except StoreError:  # closed meanwhile, or unavailable
            return None
        except OSError as error:
            warnings.warn(
                f"{self.path} could not be written ({error.strerror or error}); nothing is lost, but the engine takes "
                "longer to open. Free some space, or open it read-only",
                UserWarning,
                stacklevel=2,
            )
            return None
        finally:
            self._not_before = time.monotonic() + max(MIN_PAUSE, PAUSE_SHARE * (time.monotonic() - begin))
        self._saved = revision
        return size

    def _is_done_by_others(self, revision: Revision, n_items: int) -> bool:
        """Return whether another process is writing a snapshot, or has a recent one."""
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
            return False  # it exists and was invalid
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
    return freeze({"codes": index, "sketches": ranker.sketches}, {"vectors": ranker.vectors})


def _changes(since: Revision, until: Revision) -> int:
    return abs(until.items - since.items) + abs(until.removals - since.removals)


def _warn_of_damage(error: SnapshotError) -> None:
    warnings.warn(
        f"{error}. All items are read from the store instead, which takes longer; a new snapshot will be written",
        UserWarning,
        stacklevel=3,
    )
