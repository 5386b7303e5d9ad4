"""All items within a radius: by tables made for that where there are any, by a walk over the codes elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from modalhash._typing import Array
from modalhash.index.hits import Found, widen, without
from modalhash.index.rows import Rows, Table
from modalhash.index.walk import TILE, default_threads, in_threads, stack, walk

if TYPE_CHECKING:
    from modalhash.index.radius_tables import Prepared, View


class RadiusSearch:
    """Radius searches in the groups of an index, which guards everything but :meth:`found` by its lock.

    Parameters
    ----------
    n_bits : int
        Length of the codes.
    groups : dict
        The rows of each group: the index's own, as it is when a search begins.
    """

    def __init__(self, n_bits: int, groups: dict[int, Rows]) -> None:
        self.radius: int | None = None
        self._n_bits = n_bits
        self._groups = groups
        self._prepared: dict[int, Prepared | None] = {}  # None: tables would not pay

    def build(self, radius: int | None) -> int:
        """Make tables of all groups, or forget them (None); returns the bytes they take."""
        self.radius, self._prepared = radius, {}
        for group in self._groups if radius is not None else ():
            self._prepare(group)
        return sum(ready.tables.nbytes for ready in self._prepared.values() if ready is not None)

    def touch(self, group: int, ids: Array) -> None:
        """Ids of a group that were added or removed."""
        ready = self._prepared.get(group)
        if ready is not None and len(ids):
            ready.touch(ids)

    def views(self, groups: list[int]) -> list[View | Table]:
        """What to search for each group: its tables where it has some, made anew if much has changed."""
        views: list[View | Table] = []
        for group in groups:
            ready = self._prepared.get(group)
            if ready is None or ready.outdated:
                self._prepare(group)
                ready = self._prepared[group]
            table = self._groups[group].table()
            views.append(table if ready is None else ready.view(table))
        return views

    def found(self, queries: Array, views: list[View | Table], radius: int, n_threads: int | None) -> list[Found]:
        """What lies within ``radius`` of the queries, in several parts."""
        found = self.scan(queries, [view for view in views if isinstance(view, Table)], radius, n_threads)
        for view in views:
            if isinstance(view, Table):
                continue
            parts, left = self._probe(queries, view, radius, n_threads)
            if left.any():
                walked = self.scan(queries[left], [view.tables.table], radius, n_threads)
                parts += [widen(part, left) for part in walked]
            found += [without(part, view.tables.table.ids[view.gone]) for part in parts]
            found += self.scan(queries, [view.fresh], radius, n_threads)
        return [part for part in found if len(part[0])] or found[:1]

    def scan(self, queries: Array, tables: list[Table], radius: int, n_threads: int | None) -> list[Found]:
        """The same by walks over tables."""
        from modalhash.index.scan_within import all_within

        def work(tile: Array, table: Table) -> Found:
            places, distances, offsets = all_within(tile, table, radius, self._n_bits)
            return table.ids[places], distances, offsets

        filled = [table for table in tables if table.n]
        return [stack(part) for part in walk(queries, filled, work, n_threads=n_threads)]

    def _probe(self, queries: Array, view: View, radius: int, n_threads: int | None) -> tuple[list[Found], Array]:
        """What the tables find, and which queries are left to a walk."""
        tables = view.tables
        tiles = [(queries[start : start + TILE],) for start in range(0, len(queries), TILE)]
        threads = 1 if len(tiles) < 4 else n_threads or default_threads()
        done = in_threads(lambda tile: tables.within(tile, radius), tiles, threads)
        answered = [each for each in done if each is not None]
        if not answered:  # known of the radius alone, so for all tiles
            return [], np.ones(len(queries), dtype=bool)
        part = stack([(tables.table.ids[places], near, offsets) for places, near, offsets, _ in answered])
        return [part], np.concatenate([left for *_, left in answered])

    def _prepare(self, group: int) -> None:
        from modalhash.index.radius_tables import Prepared, worthwhile

        self._prepared[group] = None  # the old ones go first: both together might not fit
        table = self._groups[group].table()
        if self.radius is not None and worthwhile(table.n, self._n_bits, self.radius):
            self._prepared[group] = Prepared(table, self._n_bits, self.radius)
