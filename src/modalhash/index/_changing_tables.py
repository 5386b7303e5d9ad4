"""Tables of a group that goes on changing: built from its rows once, and what has changed since beside them."""

from __future__ import annotations

from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from modalhash._typing import Array
from modalhash.index._layout import PackedRows, find_sorted

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
