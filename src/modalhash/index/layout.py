"""The codes of one group in ascending order of id, in the layouts of ``kernels/README.md``.

In a :class:`PackedRows` each row is an item. If many items share a code, as learned codes of items with the same labels
do, a :class:`DistinctCodes` holds each code once, so that the cost of a scan depends on the number of distinct codes.

Most changes are cheap and deferred: ids above all others are appended, other new rows are kept in a dict, removed rows
are only marked. :meth:`GroupRows.tables` applies deferred changes to new arrays. Returned arrays never change, so that
each search sees one state.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from modalhash.core.typing import Array, Codes

CHUNK = 128  # codes per chunk
CACHE_LINE = 64  # bytes
ROW_BITS = np.uint64(40)  # low bits of an encoded hit; the distance is above, so that hits sort by (distance, row)
MIN_DEFERRED = 4096  # deferred rows, or an eighth of the group if that is more
MIN_NUMBERED = 16384  # rows below which codes are not deduplicated
ITEMS_PER_CODE = 16  # mean from which DistinctCodes takes no more memory than PackedRows
NO_STARTS = np.empty(0, np.int64)  # of PackedRows: every row is one item


class PackedRows(NamedTuple):
    """Ids in ascending order and codes in chunks, of which the first ``n`` rows are filled."""

    ids: Array
    words: Array
    n: int

    def chunks(self, first: int, last: int) -> PackedRows:
        start, stop = first * CHUNK, min(self.n, last * CHUNK)
        return PackedRows(self.ids[start:stop], self.words[first:last], stop - start)

    def contains(self, ids: Array) -> Array:
        return find_sorted(self.ids[: self.n], ids)[1]

    def select(self, ids: Array) -> PackedRows:
        rows, present = find_sorted(self.ids[: self.n], ids)
        rows = rows[present]
        if len(rows) == self.n:
            return self
        chunk, column = np.divmod(rows, CHUNK)
        return PackedRows(self.ids[rows], to_chunks(self.words[chunk, :, column], chunks_for(len(rows))), len(rows))


class DistinctCodes(NamedTuple):
    """Each distinct code once, in the order of its first row, with the rows that have it."""

    first_id: int
    offsets: Array
    """Ids minus ``first_id``, ascending, as uint32; int64 ids and ``first_id`` 0 if their range is too large."""
    numbers: Array
    """Position of each row's code."""
    words: Array
    n_codes: int
    starts: Array
    """Rows of code c are ``rows[starts[c]:starts[c + 1]]``, ascending."""
    rows: Array

    @property
    def n(self) -> int:
        return int(self.starts[-1] - self.starts[0])

    @property
    def ids(self) -> Array:
        return self.ids_of(slice(None))

    @property
    def last_id(self) -> int:
        return self.first_id + int(self.offsets[-1])

    def ids_of(self, rows: Array | slice) -> Array:
        return self.offsets[rows].astype(np.int64) + self.first_id

    def codes(self) -> Array:
        return to_rows(self.words, self.n_codes)[self.numbers]

    def chunks(self, first: int, last: int) -> DistinctCodes:
        start, stop = first * CHUNK, min(self.n_codes, last * CHUNK)
        return self._replace(words=self.words[first:last], n_codes=stop - start, starts=self.starts[start : stop + 1])

    def find(self, ids: Array) -> tuple[Array, Array]:
        possible = (ids >= self.first_id + int(self.offsets[0])) & (ids <= self.last_id)
        wanted = np.where(possible, ids, self.last_id) - self.first_id
        rows, present = find_sorted(self.offsets, wanted.astype(self.offsets.dtype))
        return rows, present & possible

    def keep(self, kept: Array) -> DistinctCodes:
        """Return the table of the ``kept`` rows (bool) without comparing codes; codes without rows are dropped."""
        numbers, offsets = self.numbers[kept], self.offsets[kept]
        starts, rows = items_by_code(numbers, self.n_codes, self.rows.dtype)
        present = np.flatnonzero(np.diff(starts))
        firsts = rows[starts[present]]
        if len(present) == self.n_codes and np.all(firsts[1:] > firsts[:-1]):
            return self._replace(offsets=offsets, numbers=numbers, starts=starts, rows=rows)
        order = present[np.argsort(firsts)]  # codes stay in the order of their first row
        renumbered = np.zeros(self.n_codes, numbers.dtype)
        renumbered[order] = np.arange(len(order), dtype=numbers.dtype)
        numbers = renumbered[numbers]
        starts, rows = items_by_code(numbers, len(order), rows.dtype)
        words = to_chunks(to_rows(self.words, self.n_codes)[order], chunks_for(len(order)))
        return DistinctCodes(self.first_id, offsets, numbers, words, len(order), starts, rows)

    def select(self, ids: Array) -> PackedRows:
        rows, present = self.find(ids)
        rows = rows[present]
        chunk, column = np.divmod(self.numbers[rows].astype(np.int64), CHUNK)
        words = to_chunks(self.words[chunk, :, column], chunks_for(len(rows)))
        return PackedRows(self.ids_of(rows), words, len(rows))


class FrozenRows(NamedTuple):
    """One state of a group: rows of distinct codes, and later rows or all rows."""

    base: DistinctCodes | None
    table: PackedRows | None
    n_tried: int
    """Number of rows at the last attempt to deduplicate codes."""


class GroupRows:
    """The rows of one group, which change. Callers hold the lock of the index.

    If codes repeat, the rows at the last deduplication are a :class:`DistinctCodes`, and later rows, whose ids are
    larger, a :class:`PackedRows`. Otherwise all rows are a :class:`PackedRows`. Row numbers run through both. Compiled
    code finds codes that repeat, so without it (``compiled=False``) none are looked for.
    """

    def __init__(self, n_words: int, dtype: type[np.unsignedinteger], *, compiled: bool = True) -> None:
        self._compiled = compiled
        self._base: DistinctCodes | None = None
        self._ids = np.empty(0, dtype=np.int64)
        self._words = new_words(0, n_words, np.dtype(dtype))
        self._n = 0
        self._rows_at_last_dedup = 0
        self._removed: Array | None = None
        self._n_removed = 0
        self._deferred: dict[int, Array] = {}

    @classmethod
    def of_tables(
        cls, n_words: int, dtype: type[np.unsignedinteger], frozen: FrozenRows, *, compiled: bool = True
    ) -> GroupRows:
        """Return the rows of :meth:`freeze` without copying; spare capacity of the table is used."""
        rows = cls(n_words, dtype, compiled=compiled)
        rows._base, rows._rows_at_last_dedup = frozen.base, frozen.n_tried
        if frozen.table is not None:
            rows._ids, rows._words, rows._n = frozen.table
        return rows

    def freeze(self) -> FrozenRows:
        """Return all current rows as arrays that never change up to their number of rows."""
        tables = self.tables()
        base = next((table for table in tables if isinstance(table, DistinctCodes)), None)
        table = next((table for table in tables if isinstance(table, PackedRows)), None)
        return FrozenRows(base, table, self._rows_at_last_dedup)

    def __len__(self) -> int:
        return self._n_base + self._n - self._n_removed + len(self._deferred)

    @property
    def nbytes(self) -> int:
        """Bytes of ids and codes, without deferred rows."""
        base = () if self._base is None else (part for part in self._base if isinstance(part, np.ndarray))
        return sum(part.nbytes for part in (self._ids, self._words, *base))

    @property
    def _n_base(self) -> int:
        return 0 if self._base is None else self._base.n

    def contains(self, ids: Array) -> Array:
        rows, present = self._find(ids)
        if self._removed is not None:
            present[present] = ~self._removed[rows[present]]
        if self._deferred:
            present |= np.fromiter((number in self._deferred for number in ids.tolist()), dtype=bool, count=len(ids))
        return present

    def add(self, ids: Array, codes: Array) -> None:
        if not len(ids):
            return
        if not self._deferred and ids[0] > self._last_id():
            self._append(ids, codes)
        elif len(self._deferred) + len(ids) <= max(MIN_DEFERRED, (self._n_base + self._n) // 8):
            self._deferred.update(zip(ids.tolist(), codes.copy(), strict=True))
        else:
            self._rebuild(ids, codes)

    def remove(self, ids: Array) -> Array:
        """Remove ids and return for each whether it was present."""
        here = self.contains(ids)
        for number in ids[here].tolist() if self._deferred else ():
            self._deferred.pop(number, None)
        rows, present = self._find(ids)
        rows = rows[present]
        if self._removed is None and len(rows):
            self._removed = np.zeros(self._n_base + self._n, dtype=bool)
        if self._removed is not None:
            self._removed[rows] = True
            self._n_removed = int(np.count_nonzero(self._removed))
        return here

    def tables(self) -> list[PackedRows | DistinctCodes]:
        """Apply deferred changes and return all rows."""
        grown = self._base is not None and self._n > max(MIN_NUMBERED, self._base.n // 8)
        if self._n_removed and not (self._deferred or grown):
            self._drop_removed()
        if self._deferred or self._n_removed or grown:
            self._rebuild()
        elif self._base is None and self._n >= max(MIN_NUMBERED, 2 * self._rows_at_last_dedup):
            self._number_codes(self._ids[: self._n], to_rows(self._words, self._n))
        tables: list[PackedRows | DistinctCodes] = [] if self._base is None else [self._base]
        if self._n or not tables:
            tables.append(PackedRows(self._ids[: self._n], self._words[: chunks_for(self._n)], self._n))
        return tables

    def _last_id(self) -> float:
        """Return the largest id in the arrays, or minus infinity."""
        if self._n:
            return int(self._ids[self._n - 1])
        return -np.inf if self._base is None else self._base.last_id

    def _find(self, ids: Array) -> tuple[Array, Array]:
        rows, present = find_sorted(self._ids[: self._n], ids)
        if self._base is None:
            return rows, present
        base_rows, in_base = self._base.find(ids)
        return np.where(in_base, base_rows, rows + self._base.n), present | in_base

    def _append(self, ids: Array, codes: Array) -> None:
        stop = self._n + len(ids)
        if stop > len(self._ids):
            capacity = max(chunks_for(stop), len(self._words) * 3 // 2)
            grown_ids = np.empty(capacity * CHUNK, dtype=np.int64)
            grown_ids[: self._n] = self._ids[: self._n]
            grown = new_words(capacity, self._words.shape[1], self._words.dtype)
            grown[: len(self._words)] = self._words
            self._ids, self._words = grown_ids, grown
        write_rows(self._words, self._n, codes)
        self._ids[self._n : stop] = ids
        if self._removed is not None:
            self._removed = np.concatenate([self._removed, np.zeros(len(ids), dtype=bool)])
        self._n = stop

    def _rebuild(self, *new: Array) -> None:
        """Create new arrays without removed rows and with deferred ones and ``new`` (ids, codes)."""
        ids, codes = self._ids[: self._n], to_rows(self._words, self._n)
        if self._base is not None:
            ids, codes = np.concatenate([self._base.ids, ids]), np.concatenate([self._base.codes(), codes])
        if self._removed is not None:
            ids, codes = ids[~self._removed], codes[~self._removed]
        parts = [(ids, codes)]
        if self._deferred:
            parts.append((np.fromiter(self._deferred, dtype=np.int64), np.stack(list(self._deferred.values()))))
        if new:
            parts.append((new[0], new[1]))
        if len(parts) > 1:
            ids, codes = (np.concatenate(columns) for columns in zip(*parts, strict=True))
            ascending = np.argsort(ids, kind="stable")
            ids, codes = ids[ascending], codes[ascending]
        self._removed, self._n_removed, self._deferred = None, 0, {}
        numbered = self._base is not None or len(ids) >= 2 * self._rows_at_last_dedup
        self._base = None
        if not (numbered and len(ids) >= MIN_NUMBERED and self._number_codes(ids, codes)):
            self._set_table(ids, codes)

    def _drop_removed(self) -> None:
        """Drop removed rows from distinct codes if enough rows are left; otherwise do nothing."""
        if self._base is None or self._removed is None or not self._compiled:
            return
        kept = ~self._removed[: self._base.n]
        if np.count_nonzero(kept) < max(1, ITEMS_PER_CODE * self._base.n_codes):
            return
        rest = ~self._removed[self._base.n :]
        if not kept.all():
            self._base = self._base.keep(kept)
        if not rest.all():
            self._set_table(self._ids[: self._n][rest], to_rows(self._words, self._n)[rest])
        self._removed, self._n_removed = None, 0

    def _set_table(self, ids: Array, codes: Array) -> None:
        capacity = chunks_for(len(ids))
        self._words = to_chunks(codes, capacity)
        self._ids = np.zeros(capacity * CHUNK, dtype=np.int64)
        self._n = len(ids)
        self._ids[: self._n] = ids

    def _number_codes(self, ids: Array, codes: Array) -> bool:
        """Store each code of all rows once if codes repeat; return whether they do."""
        if not self._compiled:
            return False
        self._rows_at_last_dedup = len(ids)
        table = number_rows(ids, codes)
        if table is None:
            return False
        self._base = table
        self._set_table(ids[:0], codes[:0])
        return True


def number_rows(ids: Array, codes: Array) -> DistinctCodes | None:
    """Return rows (ids ascending) as distinct codes, or None if there are too many to gain from it."""
    n = len(ids)
    numbered = _first_rows(codes, n // ITEMS_PER_CODE)
    if numbered is None:
        return None
    firsts, numbers = numbered
    n_codes = len(firsts)
    near = int(ids[-1]) - int(ids[0]) < 2**32
    first_id = int(ids[0]) if near else 0
    starts, rows = items_by_code(numbers, n_codes, np.dtype(np.uint32 if n < 2**32 else np.int64))
    words = to_chunks(codes[firsts], chunks_for(n_codes))
    offsets = (ids - first_id).astype(np.uint32 if near else np.int64)
    short = numbers.astype(np.uint16) if n_codes <= 2**16 else numbers
    return DistinctCodes(first_id, offsets, short, words, n_codes, starts, rows)


def _first_rows(codes: Array, most: int) -> tuple[Array, Array] | None:
    """Return the first row of each distinct code, ascending, and each row's position among them.

    None if there are more than ``most`` distinct codes.
    """
    from modalhash.core.bit_kernels import number_codes

    slots = np.full(2 << most.bit_length(), -1, dtype=np.int32)
    firsts, numbers = np.empty(most, np.int64), np.empty(len(codes), np.uint32)
    n_codes = number_codes(np.ascontiguousarray(codes), most, slots, firsts, numbers)
    return None if n_codes < 0 else (firsts[:n_codes], numbers)


def items_by_code(numbers: Array, n_codes: int, dtype: np.dtype[np.generic]) -> tuple[Array, Array]:
    """Return rows sorted by code: the start of each code's rows, and the rows as ``dtype``."""
    from modalhash.core.bit_kernels import fill_items

    starts, rows = np.zeros(n_codes + 1, np.int64), np.empty(len(numbers), dtype)
    fill_items(numbers, starts, rows)
    return starts, rows


def word_type(n_bits: int) -> type[np.unsignedinteger]:
    """Return the word type of a code; short codes get short words, so that more fit a vector register."""
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
    return -(-n // CHUNK)


def new_words(n_chunks: int, n_words: int, dtype: np.dtype[np.unsignedinteger]) -> Array:
    return aligned_zeros((n_chunks, n_words, CHUNK), dtype)


def aligned_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return zeros aligned to cache lines, because a vector that spans two lines costs twice."""
    size = math.prod(shape) * dtype.itemsize
    space = np.zeros(size + CACHE_LINE, dtype=np.uint8)
    start = -space.ctypes.data % CACHE_LINE
    return space[start : start + size].view(dtype).reshape(shape)


def to_chunks(rows: Array, n_chunks: int) -> Array:
    """Return rows ``(n, words)`` in ``n_chunks`` chunks, of which the last may stay empty."""
    words = new_words(n_chunks, rows.shape[1], rows.dtype)
    write_rows(words, 0, rows)
    return words


def to_rows(words: Array, n: int) -> Array:
    return np.ascontiguousarray(words.transpose(0, 2, 1)).reshape(-1, words.shape[1])[:n]


def write_rows(words: Array, start: int, rows: Array) -> None:
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


def decode_hits(hits: Array) -> tuple[Array, Array]:
    """Return the rows and distances of encoded hits (:data:`ROW_BITS`)."""
    rows = hits & ((np.uint64(1) << ROW_BITS) - np.uint64(1))
    return rows.astype(np.int64), (hits >> ROW_BITS).astype(np.int32)


def find_sorted(ascending: Array, wanted: Array) -> tuple[Array, Array]:
    """Return the position of each of ``wanted`` in ``ascending``, and whether it is present."""
    rows = np.searchsorted(ascending, wanted)
    present = rows < len(ascending)
    present[present] = ascending[rows[present]] == wanted[present]
    return rows, present
