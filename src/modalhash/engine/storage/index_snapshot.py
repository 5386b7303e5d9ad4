"""Snapshot of an engine's index: when it is used and written.

``index.snapshot`` in the engine's folder is a copy of the codes, ids, sketches and refinement vectors up to one
revision of the store, in the format of :mod:`modalhash.index.snapshot`. It names a random *mark*, which its writer
stored in the store before, so it is valid if the store has its mark: another engine, a copy of this one that has
changed separately, or a store that was restored from an older copy does not have it. Later changes are read from the
store. If the snapshot is invalid or damaged, everything is read from the store, and a new one is written.

Snapshots are written concurrently with searches, from immutable arrays. Several processes may write them; each file is
written atomically, and the last one stays. Write errors cause a warning.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
import warnings
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from modalhash.core.files import is_being_written
from modalhash.engine.search.ordering import Ranker
from modalhash.engine.storage.folder import SNAPSHOT as FILE
from modalhash.index import (
    Frozen,
    HammingIndex,
    Index,
    Snapshot,
    SnapshotError,
    VectorTable,
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


def snapshot_problem(folder: Path, store: Store) -> str | None:
    """Read the entire snapshot and return why it is invalid; None if it is valid or missing."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        snapshot = Snapshot(path)
    except SnapshotError as error:
        return str(error)
    if _reached(snapshot.facts, store) is None:
        return f"{path} does not belong to the current state of this engine"
    return None


def _reached(facts: Mapping[str, Any], store: Store) -> Revision | None:
    """Return the revision of a snapshot of this store; None if it belongs to another one."""
    try:
        return Revision(*map(int, facts["revision"])) if store.has_mark(facts["mark"]) else None
    except (LookupError, TypeError, ValueError):
        return None


class SnapshotKeeper:
    """Loads the snapshot of an engine, and writes a new one when enough has changed."""

    def __init__(self, folder: Path, store: Store, *, read_only: bool) -> None:
        self.path = folder / FILE
        self._store, self._read_only = store, read_only
        self._saved: Revision | None = None
        self._not_before = 0.0
        self.is_waiting = False
        """Whether a snapshot is due as soon as the pause after the last one is over."""
        self._writer: threading.Thread | None = None
        self._lock = threading.Lock()

    def load(self, index: Index, ranker: Ranker) -> Revision | None:
        """Fill an empty index and ranker from the snapshot and return its revision; None without a valid one."""
        if not self.path.exists():
            return None
        try:
            snapshot = Snapshot(self.path)
            revision = _reached(snapshot.facts, self._store)
            if revision is None:
                return None
            snapshot.thaw(*_in_memory(index, ranker))
        except SnapshotError as error:
            warnings.warn(
                f"{error}. All items are read from the store instead, which takes longer; a new snapshot will be "
                "written",
                UserWarning,
                stacklevel=2,
            )
            if not self._read_only:
                with contextlib.suppress(OSError):
                    self.path.unlink()
            return None
        ranker.resume(revision)
        self._saved = revision
        return revision

    def describe(self) -> dict[str, Any] | None:
        """Return size, age and number of changes since the snapshot on disk; None without one."""
        try:
            facts, size = read_snapshot_facts(self.path)
            revision = _reached(facts, self._store)
            if revision is None:
                return None
            created = datetime.fromisoformat(facts["created"])
            return {
                "bytes": size,
                "items": int(facts["items"]),
                "created": facts["created"],
                "age": max(0.0, round((datetime.now(UTC) - created).total_seconds(), 1)),
                "changes_since": _changes(revision, self._store.revision()),
            }
        except (SnapshotError, LookupError, TypeError, ValueError):
            return None

    def is_due(self, revision: Revision, index: Index, *, now: bool = False) -> bool:
        """Return whether a snapshot should be written; ``now`` ignores the pause."""
        if self._read_only:
            return False
        n_changes = revision.items if self._saved is None else _changes(self._saved, revision)
        if CHANGED_SHARE * n_changes < MIN_ITEMS:  # nearly always, without counting the items
            return False
        n = len(index)
        enough = n >= MIN_ITEMS and CHANGED_SHARE * n_changes >= n
        self.is_waiting = enough and not now and time.monotonic() < self._not_before
        return enough and not self.is_waiting

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
        writer = self._writer
        if writer is not None and writer is not threading.current_thread():
            writer.join()

    def save(self, frozen: Frozen, revision: Revision, n_items: int, *, anyway: bool = False) -> int | None:
        """Write a snapshot and return its size; None on errors, or if another process has written one.

        ``anyway`` writes even if the snapshot of another process is recent enough.
        """
        begin = time.monotonic()
        mark = secrets.token_hex(8)
        facts = {
            "mark": mark,
            "revision": list(revision),
            "items": n_items,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        try:
            if not self.path.parent.is_dir() or (not anyway and self._is_done_by_others(revision, n_items)):
                return None
            self._store.add_mark(mark)  # first, so that the snapshot is valid as soon as it has its name
            size = write_snapshot(self.path, frozen, facts)
            with contextlib.suppress(StoreError):  # closed or busy; the next save tries again
                self._store.optimize()
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
        """Return whether another process is writing a snapshot, or has written a recent one."""
        if is_being_written(self.path):
            return True
        try:
            theirs = _reached(read_snapshot_facts(self.path)[0], self._store)
        except SnapshotError:
            return False
        if theirs is None or CHANGED_SHARE * _changes(theirs, revision) >= n_items:
            return False
        self._saved = theirs
        return True


def freeze_engine(index: Index, ranker: Ranker) -> Frozen:
    return freeze(*_in_memory(index, ranker))


def _in_memory(index: Index, ranker: Ranker) -> tuple[dict[str, HammingIndex], dict[str, VectorTable]]:
    """Return the codes and vectors by name; those in Milvus have no snapshot."""
    sketches, vectors = ranker.sketches, ranker.vectors
    assert isinstance(index, HammingIndex)
    assert isinstance(sketches, HammingIndex)
    assert isinstance(vectors, VectorTable)
    return {"codes": index, "sketches": sketches}, {"vectors": vectors}


def _changes(since: Revision, until: Revision) -> int:
    return abs(until.items - since.items) + abs(until.removals - since.removals)
