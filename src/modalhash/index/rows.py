"""Codes of one group in ascending order of id, in the layout that :mod:`modalhash.index.scan` walks over.

Most changes are cheap and put off: ids above all others are appended, other new rows wait beside the
table, removed ones are only marked. :meth:`Rows.table` settles what waits, by making new arrays; arrays
that were handed out stay as they were, so a search that is under way sees one state from start to end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from modalhash._typing import Array, Codes

CHUNK = 128  # codes that are looked at together; see modalhash.index.scan
WAITING = 4096  # rows out of order that may wait, or an eighth of the table if that is more


class Table(NamedTuple):
    """Rows ready to be searched: ``words (chunks, words, CHUNK)``, of which the first ``n`` rows are filled."""

    ids: Array
    words: Array
    n: int

    def part(self, first: int, last: int) -> Table:
        """The rows of chunks ``first`` to ``last``."""
        start, stop = first * CHUNK, min(self.n, last * CHUNK)
        return Table(self.ids[start:stop], self.words[first:last], stop - start)

    def places(self, ids: Array) -> tuple[Array, Array]:
        """Where each of ``ids`` is, and whether it is there at all."""
        return find(self.ids[: self.n], ids)

    def only(self, ids: Array) -> Table:
        """The rows whose id is among ``ids`` (ascending, distinct)."""
        places, there = self.places(ids)
        places = places[there]
        if len(places) == self.n:
            return self
        chunk, place = np.divmod(places, CHUNK)
        rows = self.words[chunk, :, place]
        return Table(self.ids[places], in_chunks(rows, -(-len(places) // CHUNK)), len(places))


def word_type(n_bits: int) -> type[np.unsignedinteger]:
    """Short codes lie in short words: twice as many of them fit an instruction."""
    for kind in (np.uint16, np.uint32):
        if n_bits <= 8 * np.dtype(kind).itemsize:
            return kind
    return np.uint64


def to_rows(codes: Codes, n_bits: int) -> Array:
    """Packed codes as ``(n, words)`` of :func:`word_type`, zero-padded."""
    kind = np.dtype(word_type(n_bits))
    n_words = -(-codes.shape[1] // kind.itemsize)
    padded = np.zeros((len(codes), n_words * kind.itemsize), dtype=np.uint8)
    padded[:, : codes.shape[1]] = codes
    return padded.view(kind)


def find(ascending: Array, wanted: Array) -> tuple[Array, Array]:
    """Where each of ``wanted`` is in ``ascending``, and whether it is there at all."""
    places = np.searchsorted(ascending, wanted)
    there = places < len(ascending)
    there[there] = ascending[places[there]] == wanted[there]
    return places, there


def new_words(n_chunks: int, n_words: int, kind: np.dtype[np.unsignedinteger]) -> Array:
    """Zeros whose chunks begin at a cache line: a vector that spans two lines costs twice."""
    size = n_chunks * n_words * CHUNK * kind.itemsize
    space = np.zeros(size + 64, dtype=np.uint8)
    start = -space.ctypes.data % 64
    return space[start : start + size].view(kind).reshape(n_chunks, n_words, CHUNK)


def in_chunks(rows: Array, n_chunks: int) -> Array:
    """``(n, words)`` as chunks, with room for ``n_chunks`` of them."""
    words = new_words(n_chunks, rows.shape[1], rows.dtype)
    place_in(words, 0, rows)
    return words


def place_in(words: Array, start: int, rows: Array) -> None:
    """Write ``(n, words)`` into chunks from row ``start`` on: what completes a chunk, whole chunks, the rest."""
    chunk, place = divmod(start, CHUNK)
    head = min(len(rows), -start % CHUNK)
    if head:
        words[chunk, :, place : place + head] = rows[:head].T
        chunk += 1
    full = (len(rows) - head) // CHUNK
    stop = head + full * CHUNK
    words[chunk : chunk + full] = rows[head:stop].reshape(full, CHUNK, rows.shape[1]).transpose(0, 2, 1)
    if stop < len(rows):
        words[chunk + full, :, : len(rows) - stop] = rows[stop:].T


def in_rows(words: Array, n: int) -> Array:
    """The first ``n`` rows of chunks, as ``(n, words)``."""
    return np.ascontiguousarray(words.transpose(0, 2, 1)).reshape(-1, words.shape[1])[:n]


class Rows:
    """The rows of one group. Not safe for threads by itself: :class:`~modalhash.index.index.HammingIndex` locks."""

    def __init__(self, n_words: int, kind: type[np.unsignedinteger]) -> None:
        self._ids = np.empty(0, dtype=np.int64)
        self._words = new_words(0, n_words, np.dtype(kind))
        self._n = 0
        self._dead: Array | None = None
        self._n_dead = 0
        self._waiting: dict[int, Array] = {}

    def __len__(self) -> int:
        return self._n - self._n_dead + len(self._waiting)

    def contains(self, ids: Array) -> Array:
        """Whether each id is here."""
        places, there = find(self._ids[: self._n], ids)
        if self._dead is not None:
            there[there] = ~self._dead[places[there]]
        if self._waiting:
            there |= np.fromiter((number in self._waiting for number in ids.tolist()), dtype=bool, count=len(ids))
        return there

    def add(self, ids: Array, rows: Array) -> None:
        """Add rows whose ids ascend and are not here."""
        if not len(ids):
            return
        if not self._waiting and (self._n == 0 or ids[0] > self._ids[self._n - 1]):
            self._append(ids, rows)
        elif len(self._waiting) + len(ids) <= max(WAITING, self._n // 8):
            self._waiting.update(zip(ids.tolist(), rows.copy(), strict=True))
        else:
            self._settle(ids, rows)

    def remove(self, ids: Array) -> Array:
        """Take out those of ``ids`` that are here; says which were."""
        here = self.contains(ids)
        for number in ids[here].tolist() if self._waiting else ():
            self._waiting.pop(number, None)
        places, there = find(self._ids[: self._n], ids)
        places = places[there]
        if self._dead is None and len(places):
            self._dead = np.zeros(self._n, dtype=bool)
        if self._dead is not None:
            self._dead[places] = True
            self._n_dead = int(np.count_nonzero(self._dead))
        return here

    def table(self) -> Table:
        """All rows, settled."""
        if self._waiting or self._n_dead:
            self._settle()
        return Table(self._ids[: self._n], self._words[: -(-self._n // CHUNK)], self._n)

    def _append(self, ids: Array, rows: Array) -> None:
        stop = self._n + len(ids)
        if stop > len(self._ids):
            n_chunks = max(-(-stop // CHUNK), len(self._words) * 3 // 2)
            grown_ids = np.empty(n_chunks * CHUNK, dtype=np.int64)
            grown_ids[: self._n] = self._ids[: self._n]
            grown = new_words(n_chunks, self._words.shape[1], self._words.dtype)
            grown[: len(self._words)] = self._words
            self._ids, self._words = grown_ids, grown
        place_in(self._words, self._n, rows)
        self._ids[self._n : stop] = ids
        if self._dead is not None:
            self._dead = np.concatenate([self._dead, np.zeros(len(ids), dtype=bool)])
        self._n = stop

    def _settle(self, *more: Array) -> None:
        """Make new arrays without the dead and with what waited, and with ``more`` (ids and rows)."""
        ids, rows = self._ids[: self._n], in_rows(self._words, self._n)
        if self._dead is not None:
            ids, rows = ids[~self._dead], rows[~self._dead]
        parts = [(ids, rows)]
        if self._waiting:
            parts.append((np.fromiter(self._waiting, dtype=np.int64), np.stack(list(self._waiting.values()))))
        if more:
            parts.append((more[0], more[1]))
        if len(parts) > 1:
            ids, rows = (np.concatenate(columns) for columns in zip(*parts, strict=True))
            ascending = np.argsort(ids, kind="stable")
            ids, rows = ids[ascending], rows[ascending]
        n_chunks = -(-len(ids) // CHUNK)
        self._words = in_chunks(rows, n_chunks)
        self._ids = np.zeros(n_chunks * CHUNK, dtype=np.int64)
        self._n = len(ids)
        self._ids[: self._n] = ids
        self._dead, self._n_dead, self._waiting = None, 0, {}
