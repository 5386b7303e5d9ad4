"""The codes of one group in ascending order of id, in the layout that :mod:`modalhash.index._kernels` scans.

Codes lie in chunks, ``words (chunks, words, CHUNK)``: one chunk is CHUNK codes, word by word. Most changes are cheap
and deferred: ids above all others are appended, other new rows are held beside the arrays, removed rows are only
marked. :meth:`GroupRows.table` applies what was deferred by making new arrays; arrays that were handed out never
change, so that a search under way sees one state from start to end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from modalhash._typing import Array, Codes

CHUNK = 128  # codes that a kernel compares together
MIN_DEFERRED = 4096  # rows out of order that may be held beside the arrays, or an eighth of the group if that is more


class Table(NamedTuple):
    """Rows ready to be searched: ids in ascending order, and words in chunks, whose first ``n`` rows are filled."""

    ids: Array
    words: Array
    n: int

    def chunks(self, first: int, last: int) -> Table:
        """Return the rows of chunks ``first`` to ``last``, without copying them."""
        start, stop = first * CHUNK, min(self.n, last * CHUNK)
        return Table(self.ids[start:stop], self.words[first:last], stop - start)

    def contains(self, ids: Array) -> Array:
        """Return for each id whether it is here."""
        return find_sorted(self.ids[: self.n], ids)[1]

    def select(self, ids: Array) -> Table:
        """Return a table of the rows whose id is among ``ids`` (ascending, distinct)."""
        rows, present = find_sorted(self.ids[: self.n], ids)
        rows = rows[present]
        if len(rows) == self.n:
            return self
        chunk, column = np.divmod(rows, CHUNK)
        return Table(self.ids[rows], to_chunks(self.words[chunk, :, column], chunks_for(len(rows))), len(rows))


class GroupRows:
    """The rows of one group, which change. Callers hold a lock: :class:`~modalhash.index.hamming.HammingIndex` does."""

    def __init__(self, n_words: int, dtype: type[np.unsignedinteger]) -> None:
        self._ids = np.empty(0, dtype=np.int64)
        self._words = new_words(0, n_words, np.dtype(dtype))
        self._n = 0
        self._removed: Array | None = None
        self._n_removed = 0
        self._deferred: dict[int, Array] = {}

    def __len__(self) -> int:
        return self._n - self._n_removed + len(self._deferred)

    def contains(self, ids: Array) -> Array:
        """Return for each id whether it is here."""
        rows, present = find_sorted(self._ids[: self._n], ids)
        if self._removed is not None:
            present[present] = ~self._removed[rows[present]]
        if self._deferred:
            present |= np.fromiter((number in self._deferred for number in ids.tolist()), dtype=bool, count=len(ids))
        return present

    def add(self, ids: Array, rows: Array) -> None:
        """Add rows whose ids ascend and are not here."""
        if not len(ids):
            return
        if not self._deferred and (self._n == 0 or ids[0] > self._ids[self._n - 1]):
            self._append(ids, rows)
        elif len(self._deferred) + len(ids) <= max(MIN_DEFERRED, self._n // 8):
            self._deferred.update(zip(ids.tolist(), rows.copy(), strict=True))
        else:
            self._rebuild(ids, rows)

    def remove(self, ids: Array) -> Array:
        """Remove those of ``ids`` that are here, and return for each id whether it was."""
        here = self.contains(ids)
        for number in ids[here].tolist() if self._deferred else ():
            self._deferred.pop(number, None)
        rows, present = find_sorted(self._ids[: self._n], ids)
        rows = rows[present]
        if self._removed is None and len(rows):
            self._removed = np.zeros(self._n, dtype=bool)
        if self._removed is not None:
            self._removed[rows] = True
            self._n_removed = int(np.count_nonzero(self._removed))
        return here

    def table(self) -> Table:
        """Return all rows as they are now, with deferred changes applied."""
        if self._deferred or self._n_removed:
            self._rebuild()
        return Table(self._ids[: self._n], self._words[: chunks_for(self._n)], self._n)

    def _append(self, ids: Array, rows: Array) -> None:
        stop = self._n + len(ids)
        if stop > len(self._ids):
            capacity = max(chunks_for(stop), len(self._words) * 3 // 2)
            grown_ids = np.empty(capacity * CHUNK, dtype=np.int64)
            grown_ids[: self._n] = self._ids[: self._n]
            grown = new_words(capacity, self._words.shape[1], self._words.dtype)
            grown[: len(self._words)] = self._words
            self._ids, self._words = grown_ids, grown
        write_rows(self._words, self._n, rows)
        self._ids[self._n : stop] = ids
        if self._removed is not None:
            self._removed = np.concatenate([self._removed, np.zeros(len(ids), dtype=bool)])
        self._n = stop

    def _rebuild(self, *new: Array) -> None:
        """Make new arrays without removed rows and with the deferred ones, and with ``new`` (ids and rows)."""
        ids, rows = self._ids[: self._n], to_rows(self._words, self._n)
        if self._removed is not None:
            ids, rows = ids[~self._removed], rows[~self._removed]
        parts = [(ids, rows)]
        if self._deferred:
            parts.append((np.fromiter(self._deferred, dtype=np.int64), np.stack(list(self._deferred.values()))))
        if new:
            parts.append((new[0], new[1]))
        if len(parts) > 1:
            ids, rows = (np.concatenate(columns) for columns in zip(*parts, strict=True))
            ascending = np.argsort(ids, kind="stable")
            ids, rows = ids[ascending], rows[ascending]
        capacity = chunks_for(len(ids))
        self._words = to_chunks(rows, capacity)
        self._ids = np.zeros(capacity * CHUNK, dtype=np.int64)
        self._n = len(ids)
        self._ids[: self._n] = ids
        self._removed, self._n_removed, self._deferred = None, 0, {}


def word_type(n_bits: int) -> type[np.unsignedinteger]:
    """Return the type of a code's words. Short codes get short words: more of them fit a vector instruction."""
    for dtype in (np.uint16, np.uint32):
        if n_bits <= 8 * np.dtype(dtype).itemsize:
            return dtype
    return np.uint64


def pack_words(codes: Codes, n_bits: int) -> Array:
    """Return packed codes as rows ``(n, words)`` of :func:`word_type`, zero-padded."""
    dtype = np.dtype(word_type(n_bits))
    n_words = -(-codes.shape[1] // dtype.itemsize)
    padded = np.zeros((len(codes), n_words * dtype.itemsize), dtype=np.uint8)
    padded[:, : codes.shape[1]] = codes
    return padded.view(dtype)


def chunks_for(n: int) -> int:
    """Return how many chunks ``n`` rows take."""
    return -(-n // CHUNK)


def new_words(n_chunks: int, n_words: int, dtype: np.dtype[np.unsignedinteger]) -> Array:
    """Return zeros whose chunks begin at a cache line: a vector that spans two lines costs twice."""
    size = n_chunks * n_words * CHUNK * dtype.itemsize
    space = np.zeros(size + 64, dtype=np.uint8)
    start = -space.ctypes.data % 64
    return space[start : start + size].view(dtype).reshape(n_chunks, n_words, CHUNK)


def to_chunks(rows: Array, n_chunks: int) -> Array:
    """Return rows ``(n, words)`` in ``n_chunks`` chunks, of which the last ones may stay empty."""
    words = new_words(n_chunks, rows.shape[1], rows.dtype)
    write_rows(words, 0, rows)
    return words


def to_rows(words: Array, n: int) -> Array:
    """Return the first ``n`` rows of chunks, as ``(n, words)``."""
    return np.ascontiguousarray(words.transpose(0, 2, 1)).reshape(-1, words.shape[1])[:n]


def write_rows(words: Array, start: int, rows: Array) -> None:
    """Write rows ``(n, words)`` into chunks from row ``start`` on: what completes a chunk, whole chunks, the rest."""
    chunk, column = divmod(start, CHUNK)
    head = min(len(rows), -start % CHUNK)
    if head:
        words[chunk, :, column : column + head] = rows[:head].T
        chunk += 1
    full = (len(rows) - head) // CHUNK
    stop = head + full * CHUNK
    words[chunk : chunk + full] = rows[head:stop].reshape(full, CHUNK, rows.shape[1]).transpose(0, 2, 1)
    if stop < len(rows):
        words[chunk + full, :, : len(rows) - stop] = rows[stop:].T


def find_sorted(ascending: Array, wanted: Array) -> tuple[Array, Array]:
    """Return the row of each of ``wanted`` in ``ascending``, and whether it is there at all."""
    rows = np.searchsorted(ascending, wanted)
    present = rows < len(ascending)
    present[present] = ascending[rows[present]] == wanted[present]
    return rows, present
