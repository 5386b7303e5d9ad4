"""Tables for each group of an index, built anew in a thread beside the searches when much of a group has changed.

A build reads rows that never change (see :mod:`modalhash.index.layout`). Searches go on with the old tables, or with a
scan where there are none, until the new ones are there. What changes in the meantime is recorded for both, so that
every search finds what a scan finds.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from modalhash.core.typing import Array
from modalhash.index.layout import GroupRows, PackedRows, find_sorted
from modalhash.index.scan import AnyTable

# -- Tables of a group that goes on changing: built from its rows once, and what has changed since beside them.

REBUILD_SHARE = 32  # tables are rebuilt once more than one row in 32 has changed, but …
MIN_CHANGES_FOR_REBUILD = 4096  # … not before so many changes: to scan these rows takes no time


class BuiltTables(Protocol):
    """Tables of rows that never change."""

    source: PackedRows

    @property
    def nbytes(self) -> int:
        """The memory of the tables, without that of the rows they were built from."""


Tables = TypeVar("Tables", bound=BuiltTables)


class TableView(NamedTuple, Generic[Tables]):
    """One state of a group."""

    tables: Tables
    stale_ids: Array
    """The ids in the tables that no longer count, ascending."""
    stale_rows: Array
    """The rows of these."""
    added: PackedRows
    """The rows that came since."""
    current: PackedRows
    """All rows."""


class ChangingTables(Generic[Tables]):
    """Tables of a group as it was once, and the ids that have changed since, whose rows are scanned instead."""

    def __init__(self, tables: Tables, changed: list[Array]) -> None:
        self.tables = tables
        self._n_changed = sum(map(len, changed))
        self._changed = changed
        self._view: TableView[Tables] | None = None

    @property
    def outdated(self) -> bool:
        """Whether so much has changed that the tables should be rebuilt."""
        return self._n_changed > max(MIN_CHANGES_FOR_REBUILD, self.tables.source.n // REBUILD_SHARE)

    def record_changes(self, ids: Array) -> None:
        """Take note of ids that were added or removed."""
        self._changed.append(ids)
        self._view = None
        self._n_changed += len(ids)
        if len(self._changed) > 1000:
            self._changed = [np.concatenate(self._changed)]

    def view(self, current: PackedRows) -> TableView[Tables]:
        """Return what to search in order to find the rows of ``current``."""
        if self._view is None:
            ids = np.unique(np.concatenate([np.empty(0, np.int64), *self._changed]))
            rows, present = find_sorted(self.tables.source.ids[: self.tables.source.n], ids)
            self._changed = [ids]
            self._view = TableView(self.tables, ids[present], rows[present], current.select(ids), current)
        return self._view


class BackgroundBuilder:
    """Builds one thing at a time, in a thread that ends with it. Callers hold the lock of the index."""

    def __init__(self, lock: threading.RLock) -> None:
        self.lock = lock
        self._finished = threading.Condition(lock)
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a build is under way."""
        return self._thread is not None and self._thread.is_alive()  # that of a parent process is not

    def start(self, build: Callable[[], None]) -> None:
        """Start a build, which takes the lock itself when it has a result; none may be under way."""
        # at exit, the interpreter does not wait for a daemon
        self._thread = threading.Thread(target=self._run, args=(build,), name="table builder", daemon=True)
        with contextlib.suppress(RuntimeError):  # there are no more threads: the next search tries again
            self._thread.start()

    def wait(self) -> None:
        """Wait for the build that is under way, without the lock."""
        self._finished.wait_for(lambda: not self.is_busy)

    def _run(self, build: Callable[[], None]) -> None:
        try:
            build()
        finally:
            with self._finished:
                self._thread = None
                self._finished.notify_all()


class _Build(NamedTuple):
    """A build that is under way."""

    group: int
    source: PackedRows
    changed: list[Array]
    """Ids that were added or removed since it began."""


class GroupTables(ABC, Generic[Tables]):
    """Tables for each group of an index for which they pay.

    The index holds its lock around every public method, except searches, which work on views that never change.
    """

    def __init__(self, n_bits: int, builder: BackgroundBuilder) -> None:
        self.is_built = False
        self._n_bits, self._builder = n_bits, builder
        self._tables: dict[int, ChangingTables[Tables]] = {}
        self._rows_at_last_dedup: dict[int, int] = {}
        """Rows of the groups for which tables did not pay, or could not be built, when it was tried."""
        self._under_way: _Build | None = None
        """The build whose result is wanted. One that was dropped runs to its end, but its result is not used."""

    @abstractmethod
    def _worthwhile(self, n: int) -> bool:
        """Return whether tables may pay for a group of so many rows, as far as can be said without building them."""

    @abstractmethod
    def _make(self, source: PackedRows, *, n_threads: int | None) -> Tables | None:
        """Return tables of rows; None if they do not pay."""

    def drop(self) -> None:
        """Forget all tables."""
        self.is_built, self._tables, self._rows_at_last_dedup, self._under_way = False, {}, {}, None

    def record_changes(self, group: int, ids: Array) -> None:
        """Take note of ids of a group that were added or removed."""
        if not len(ids):
            return
        if group in self._tables:
            self._tables[group].record_changes(ids)
        if self._under_way is not None and self._under_way.group == group:
            self._under_way.changed.append(ids)

    def views(self, groups: Mapping[int, GroupRows]) -> list[TableView[Tables] | AnyTable]:
        """Return what to search for each group, tables or rows to scan; where much has changed, start a build."""
        views: list[TableView[Tables] | AnyTable] = []
        for group, rows in groups.items():
            current = rows.tables()
            source = current[0]
            if not isinstance(source, PackedRows):  # codes that repeat have come to be held once
                self._drop_group(group)
                views += current
                continue
            built = self._tables.get(group)
            if built is None or built.outdated:
                self._renew(group, source)
                built = self._tables.get(group)
            views.append(source if built is None else built.view(source))
        return views

    def _build_all(self, groups: Mapping[int, GroupRows], *, n_threads: int | None = None) -> int:
        """Build the tables of all groups before returning, and return the bytes that they take."""
        self._builder.wait()
        self.drop()  # the old ones first: both together might not fit
        self.is_built = True
        for group, rows in groups.items():
            source = rows.tables()[0]
            if isinstance(source, PackedRows) and self._worthwhile(source.n):
                self._install(group, source.n, self._make(source, n_threads=n_threads), [])
        return sum(built.tables.nbytes for built in self._tables.values())

    def _renew(self, group: int, source: PackedRows) -> None:
        """Start to build new tables of a group, or drop those of one that has become too small.

        If tables did not pay, it is tried again when the group has doubled. While another build is under way nothing is
        done: a later search comes here again.
        """
        if not self._worthwhile(source.n):
            self._drop_group(group)
        elif self.is_built and source.n >= 2 * self._rows_at_last_dedup.get(group, 0) and not self._builder.is_busy:
            self._under_way = _Build(group, source, [])
            self._builder.start(partial(self._rebuild, self._under_way))

    def _rebuild(self, build: _Build) -> None:
        """Build tables and put them in place of the old ones, unless these were dropped or made anew meanwhile."""
        tables, failure = None, None
        try:
            tables = self._make(build.source, n_threads=1)  # searches would wait for threads that it took
        except Exception as error:  # whatever it is, there is a scan
            failure = error
        with self._builder.lock:
            if self._under_way is not build:
                return
            self._under_way = None
            self._install(build.group, build.source.n, tables, build.changed)
        if failure is not None:
            warnings.warn(
                f"the tables of group {build.group} could not be built anew ({failure!r}): searches find the same, but "
                "scan this group until it has doubled, or tables are built on request",
                RuntimeWarning,
                stacklevel=2,
            )

    def _install(self, group: int, n: int, tables: Tables | None, changed: list[Array]) -> None:
        """Make these the tables of a group, which had ``n`` rows then and has changed since; None: a scan has to do."""
        self._drop_group(group)
        if tables is None:
            self._rows_at_last_dedup[group] = n
        else:
            self._rows_at_last_dedup.pop(group, None)
            self._tables[group] = ChangingTables(tables, changed)

    def _drop_group(self, group: int) -> None:
        self._tables.pop(group, None)
        if self._under_way is not None and self._under_way.group == group:
            self._under_way = None
