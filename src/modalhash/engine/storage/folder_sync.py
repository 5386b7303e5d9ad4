"""Synchronize an engine with a folder of photos: add new ones, replace changed ones, drop missing ones.

``synced.json`` in the engine's folder has the size, modification time and digest of each file when it was encoded.
Files with the same size and time are not read; otherwise the digest decides. If ``synced.json`` is missing, as in an
engine that was never synchronized, existing files are assumed to be unchanged.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from modalhash.core import files as _config
from modalhash.core.files import sha256_of, write_atomically
from modalhash.core.label_names import label_key
from modalhash.core.progress import Callback, Reporter
from modalhash.engine.items.item import Item, ItemFiles, OnProblem, Problem, ProblemCode, ProblemCollector
from modalhash.engine.items.photos import FolderLabels, Reader, picture_files, picture_items, reader_of
from modalhash.engine.storage.folder import SYNCED, EngineError
from modalhash.engine.storage.ingest import BATCH_SIZE, TEXT_BATCH_SIZE
from modalhash.store import PICTURE_TEXT, Key, Record, Revision

if TYPE_CHECKING:
    from modalhash.engine.engine import Engine

KIND = "modalhash synced files"
FORMAT = 1
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class EmptyFolderError(EngineError):
    """A folder with items is missing or has no pictures; possibly a disk is not mounted."""


class FileState(NamedTuple):
    """Recorded state of a file."""

    size: int
    mtime_ns: int
    digest: str | None = None
    """SHA-256 of the content; None if it was never read."""

    def is_like(self, other: FileState | None) -> bool:
        """Return whether size and time are the same."""
        return other is not None and self[:2] == other[:2]


@dataclass(frozen=True)
class Synced:
    """Ids that :meth:`modalhash.engine.Engine.sync` changed, or would change."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    """New ids of items whose file has another path and the same content."""
    gone: tuple[str, ...] = ()
    unchanged: int = 0
    waiting: int = 0
    """Files that may still be written; see :class:`FolderSync`."""
    problems: tuple[Problem, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.moved or self.gone or self.problems)

    def __str__(self) -> str:
        counts = {"added": self.added, "changed": self.changed, "moved": self.moved, "gone": self.gone}
        parts = [f"{len(ids):,} {what}" for what, ids in counts.items() if ids or what != "moved"]
        parts.append(f"{self.unchanged:,} as before")
        waiting = f"; {self.waiting:,} waiting because they may still be written" if self.waiting else ""
        return ", ".join(parts) + waiting + (f"; {len(self.problems):,} left out" if self.problems else "")


class _SyncedFile(NamedTuple):
    path: Path
    state: FileState


@dataclass
class SyncPlan:
    """Changes that synchronize an engine with a folder; see :meth:`FolderSync.look`."""

    added: list[Item] = field(default_factory=list)
    changed: list[Item] = field(default_factory=list)
    moved: list[tuple[str, Key, Record]] = field(default_factory=list)
    """Previous path, key, and new record of each moved item."""
    gone: dict[str, list[Key]] = field(default_factory=dict)
    states: dict[str, FileState] = field(default_factory=dict)
    """States of files to encode, and of those with another time and the same content."""
    unknown: dict[str, FileState] = field(default_factory=dict)
    """Files of items without a recorded state."""
    unchanged: int = 0
    waiting: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def changes_items(self) -> bool:
        return bool(self.added or self.changed or self.moved or self.gone)

    def expected(self) -> Synced:
        """Return the result of applying this plan."""
        return Synced(
            tuple(item.id for item in self.added),
            tuple(item.id for item in self.changed),
            tuple(record.id for _, _, record in self.moved),
            tuple(key[1] for keys in self.gone.values() for key in keys),
            self.unchanged,
            self.waiting,
            tuple(self.problems),
        )


class FolderSync:
    """Compares an engine with a folder of photos and synchronizes it, repeatedly if the folder is watched.

    Parameters
    ----------
    check_writable : callable
        Raises if the engine is read-only or was replaced.
    folder : str or Path
        Folder of the photos. Subfolders are labels, as for :meth:`Engine.add`.
    allow_empty : bool
        Drop all items of the folder if it is missing or has no pictures.
    settle : bool
        Wait until two successive looks find a new or changed file in the same state, because it may be half-written.
        Unreadable files are retried when they change.
    """

    def __init__(
        self,
        engine: Engine,
        files: ItemFiles,
        check_writable: Callable[[], None],
        folder: str | Path,
        *,
        allow_empty: bool = False,
        settle: bool = False,
    ) -> None:
        self.folder, self.root, self._own = Path(folder), Path(folder).resolve(), engine.path.resolve()
        self._engine, self._files, self._check_writable = engine, files, check_writable
        self._allow_empty, self._settle = allow_empty, settle
        self._labels = FolderLabels(every=engine.config["labels"] == "folders")
        self._places = [replace(files, home=None)]
        if files.home is not None:
            self._places.append(replace(files, folder=files.home, home=None))
        remembered = ((self._path_of(uri), state) for uri, state in read_states(engine.path).items())
        self._remembered = {path: state for path, state in remembered if path is not None}
        self._seen: dict[str, _SyncedFile] = {}
        self._failed: dict[str, FileState] = {}
        self._scanned: tuple[Revision, dict[str, list[Key]]] | None = None

    def look(self) -> SyncPlan:
        """Compare the engine with the folder and return the plan, without changing anything.

        Files are read only if their size or time changed, or if they may have been moved.
        """
        present, stored = self._present(), self._stored()
        inside = {path: keys for path, keys in stored.items() if path in present or self._is_inside(path)}
        plan = SyncPlan(gone={path: inside[path] for path in inside if path not in present and _is_gone(path)})
        self._check_emptied(present, inside, plan.gone)
        new = {path: file for path, file in present.items() if path not in stored and not self._waits(path, file, plan)}
        for path, file in present.items():
            if path in stored:
                self._compare(path, file, stored[path], plan)
        self._plan_new(new, plan)
        self._seen = present
        plan.unchanged = sum(map(len, inside.values())) - len(plan.changed) - len(plan.moved)
        plan.unchanged -= sum(map(len, plan.gone.values()))
        return plan

    def _present(self) -> dict[str, _SyncedFile]:
        """Return the pictures of the folder by resolved path; raise if a subfolder cannot be read."""
        if self.root.exists() and not self.root.is_dir():
            raise NotADirectoryError(f"{self.folder} is a file; expected a folder of photos")
        found: dict[str, _SyncedFile] = {}
        for path in picture_files(self.root) if self.root.is_dir() else ():
            status = _status(path) if self._is_inside(str(path)) else None
            if status is not None and stat.S_ISREG(status.st_mode):
                file = path.resolve() if path.is_symlink() else path
                found.setdefault(str(file), _SyncedFile(path, FileState(status.st_size, status.st_mtime_ns)))
        return found

    def _stored(self) -> dict[str, list[Key]]:
        """Return the keys of the items with a file, by path; cached until the store changes."""
        revision = self._engine.store.revision()
        if self._scanned is None or self._scanned[0] != revision:
            found: dict[str, list[Key]] = {}
            for record in self._engine.items():
                if (path := self._path_of(record.uri)) is not None:
                    found.setdefault(path, []).append(record.key)
            self._scanned = revision, found
        return self._scanned[1]

    def _path_of(self, uri: str | None) -> str | None:
        """Return the path of a stored URI; None for archive members and URLs.

        A relative URI refers to a file in this folder if possible, even if another copy exists elsewhere.
        """
        for place in self._places:
            file = place.find(uri)
            if isinstance(file, Path) and self._is_inside(str(file)):
                return str(file)
        file = self._files.find(uri)
        return str(file) if isinstance(file, Path) else None

    def _is_inside(self, path: str) -> bool:
        return path.startswith(os.path.join(self.root, "")) and not path.startswith(os.path.join(self._own, ""))

    def _check_emptied(
        self, present: Mapping[str, _SyncedFile], inside: Mapping[str, list[Key]], gone: Mapping[str, list[Key]]
    ) -> None:
        """Raise for a missing folder, and before all items of a folder would be dropped."""
        missing = not self.root.is_dir()
        if inside and len(gone) == len(inside) and not present and not self._allow_empty:
            what = "no such folder" if missing else "no pictures in it"
            n = sum(map(len, gone.values()))
            raise EmptyFolderError(
                f"{self.folder}: {what}, and the engine has {n:,} {'item' if n == 1 else 'items'} from it. Nothing was "
                "changed. If a disk is not mounted, mount it; if the photos were deleted, allow_empty=True "
                "(--allow-empty) drops the items"
            )
        if missing and not inside:
            raise FileNotFoundError(f"{self.folder}: no such folder; expected a folder of photos")

    def _waits(self, path: str, file: _SyncedFile, plan: SyncPlan) -> bool:
        """Return whether a new or changed file is postponed, and count it."""
        if file.state.is_like(self._failed.get(path)):
            return True
        before = self._seen.get(path)
        waits = self._settle and not (before is not None and file.state.is_like(before.state))
        plan.waiting += waits
        return waits

    def _compare(self, path: str, file: _SyncedFile, keys: list[Key], plan: SyncPlan) -> None:
        before = self._remembered.get(path)
        if file.state.is_like(before):
            return
        if before is None:
            plan.unknown[path] = file.state
            return
        if self._waits(path, file, plan):
            return
        state = _with_digest(path, file.state)
        plan.states[path] = state
        if state.digest is None or state.digest != before.digest:
            plan.changed += self._changed_items(path, keys)

    def _changed_items(self, path: str, keys: list[Key]) -> list[Item]:
        """Return the items of a file to encode again, with their fields except the recognized text."""
        input_kinds, store = self._engine.reads, self._engine.store
        items = []
        for record in store.records(list(store.row_ids(keys).values())).values():
            if input_kinds[record.modality] == "image":
                extra = {name: value for name, value in record.extra.items() if name != PICTURE_TEXT}
                items.append(Item(*record.key, path=Path(path), labels=tuple(map(str, record.labels)), extra=extra))
        return items

    def _plan_new(self, new: Mapping[str, _SyncedFile], plan: SyncPlan) -> None:
        if not new:
            return
        only = {file.path for file in new.values()}
        items = {str(item.path): item for item in picture_items(self.root, self._engine.reads, self._labels, only=only)}
        states = {path: file.state for path, file in new.items() if path in items}
        for old, path in self._find_moves(states, plan.gone):
            record = self._moved_record(old, plan.gone[old][0], items[path])
            if record is not None:
                plan.moved.append((old, plan.gone.pop(old)[0], record))
                plan.states[path] = states[path]
                del items[path]
        free = {key for keys in plan.gone.values() for key in keys}
        taken = self._engine.store.row_ids(item.key for item in items.values()).keys() - free
        for path, item in items.items():
            if item.key in taken:
                other = self._path_of(self._engine.store.get(item.id, modality=item.modality).uri)
                reason = (
                    f"the id {item.id!r} belongs to another item ({other or 'without a file'}); remove that one, or "
                    "rename the folder"
                )
                plan.problems.append(item.problem(ProblemCode.EXISTS, reason))
                self._failed[path] = states[path]
            else:
                plan.added.append(item)
                plan.states[path] = states[path]

    def _find_moves(self, states: dict[str, FileState], gone: Mapping[str, list[Key]]) -> list[tuple[str, str]]:
        """Return pairs of a missing path and a new one with the same content; add digests to ``states``."""
        lost: dict[tuple[int, str], list[str]] = {}
        for path, keys in gone.items():
            before = self._remembered.get(path)
            if before is not None and before.digest is not None and len(keys) == 1:
                lost.setdefault((before.size, before.digest), []).append(path)
        sizes, pairs = {size for size, _ in lost}, []
        for path, state in states.items():
            if state.size not in sizes:
                continue
            states[path] = _with_digest(path, state)
            if same := lost.get((state.size, str(states[path].digest))):
                pairs.append((same.pop(), path))
        return pairs

    def _moved_record(self, old: str, key: Key, item: Item) -> Record | None:
        """Return the new record of a moved file; None if it must be encoded again.

        That is the case if it had the labels of its folder, and the new folder has others.
        """
        within = Path(old).relative_to(self.root)
        store = self._engine.store
        record = store.get(key[1], modality=key[0])
        stored, before, now = (
            {label_key(label) for label in labels}
            for labels in (record.labels, self._labels.of(within.parts[:-1]), item.labels)
        )
        if stored == before != now:
            return None
        named_by_path = record.id == f"{self.root.name}/{within.as_posix()}"
        new = replace(record, id=item.id if named_by_path else record.id, uri=self._files.uri(str(item.path)))
        return None if new.key != key and new.key in store else new

    def apply(
        self,
        plan: SyncPlan,
        *,
        workers: int | None = None,
        callback: Callback | None = None,
        on_problem: OnProblem | None = None,
        read_text: bool | Reader = False,
    ) -> Synced:
        """Apply a plan and record the files; the parameters are those of :meth:`Engine.sync`.

        If interrupted, stored items are kept, and the next look finds the rest.
        """
        self._check_writable()
        problems, progress = ProblemCollector(on_problem, strict=False), Reporter(callback)
        for problem in plan.problems:
            problems(problem)
        text_reader = reader_of(read_text) if plan.added or plan.changed else None
        size = BATCH_SIZE if text_reader is None else TEXT_BATCH_SIZE
        states = dict(self._remembered)
        encoded = {str(item.path) for item in (*plan.added, *plan.changed)}
        states |= {path: state for path, state in plan.states.items() if path not in encoded}
        added: list[str] = []
        changed: list[str] = []
        try:
            for old, key, record in plan.moved:
                self._move(key, record)
                states.pop(old, None)
            self._drop(plan.gone, states)
            n_items, n_done = len(plan.added) + len(plan.changed), 0
            for items, ids, again in ((plan.changed, changed, True), (plan.added, added, False)):
                for start in range(0, len(items), size):
                    batch = items[start : start + size]
                    files = {str(item.path): plan.states[str(item.path)] for item in batch}
                    options = {"replace": again, "workers": workers, "read_text": text_reader or False}
                    ids += self._encode(batch, files, states, problems, options)
                    n_done += len(batch)
                    progress("add", n_done, n_items)
            for number, (path, state) in enumerate(plan.unknown.items(), 1):
                states[path] = _with_digest(path, state)
                progress("read for the first time", number, len(plan.unknown))
        finally:
            self._remember(states)
        problems.warn()
        done = plan.expected()
        return replace(done, added=tuple(added), changed=tuple(changed), problems=tuple(problems.problems))

    def _remember(self, states: dict[str, FileState]) -> None:
        """Write changed states; keep those that other processes wrote for other folders."""
        before, self._remembered = self._remembered, states
        changed = {self._files.uri(path): state for path, state in states.items() if before.get(path) != state}
        lost = {self._files.uri(path) for path in before.keys() - states.keys()}
        if changed or lost:
            current = {**read_states(self._engine.path), **changed}
            files = {uri: list(state) for uri, state in current.items() if uri not in lost}
            data = _config.config_bytes({"kind": KIND, "format": FORMAT, "files": files})
            write_atomically(self._engine.path / SYNCED, data)

    def _move(self, key: Key, record: Record) -> None:
        same = record.key == key
        self._engine.store.add([record], replace=same)
        self._check_writable()
        if not same:
            self._engine.remove([key[1]], modality=key[0], missing="ignore")

    def _drop(self, gone: Mapping[str, list[Key]], states: dict[str, FileState]) -> None:
        by_modality: dict[str, list[str]] = {}
        for path, keys in gone.items():
            states.pop(path, None)
            for modality, id in keys:
                by_modality.setdefault(modality, []).append(id)
        for modality, ids in by_modality.items():
            self._engine.remove(ids, modality=modality, missing="ignore")

    def _encode(
        self,
        items: list[Item],
        files: Mapping[str, FileState],
        states: dict[str, FileState],
        problems: ProblemCollector,
        options: dict[str, Any],
    ) -> list[str]:
        """Encode and store items, record the files of those that succeeded, and return their ids.

        Digests are computed first, so that a concurrent change is detected the next time.
        """
        read = {path: _with_digest(path, state) for path, state in files.items()}
        done = self._engine.add(items, on_problem=problems, **options)
        failed = {problem.path for problem in done.problems}
        for path, state in read.items():
            (self._failed if path in failed else states)[path] = state
        return [item.id for item in items if str(item.path) not in failed]


def read_states(engine: Path) -> dict[str, FileState]:
    """Return recorded file states by URI; empty if the engine was never synchronized."""
    path = engine / SYNCED
    if not path.exists():
        return {}
    try:
        config = _config.read_config(path, kind=KIND, format=FORMAT, required=("files",), error=EngineError)
        return {uri: FileState(int(size), int(time), digest) for uri, (size, time, digest) in config["files"].items()}
    except _config.NONSENSE as error:
        raise EngineError(
            f"{path} cannot be used: {error}. Delete it; files are then assumed to be unchanged"
        ) from None


def _status(path: str | Path) -> os.stat_result | None:
    """Return the status of a file; None if it does not exist. Other errors raise."""
    try:
        return os.stat(path)
    except OSError as error:
        if error.errno in _NOT_THERE:
            return None
        raise


def _is_gone(path: str) -> bool:
    with suppress(OSError):
        return _status(path) is None
    return False


def _with_digest(path: str, state: FileState) -> FileState:
    if state.digest is not None:
        return state
    with suppress(OSError):
        return state._replace(digest=sha256_of([Path(path)]))
    return state
