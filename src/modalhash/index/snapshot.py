"""Snapshots of indexes and vectors in a memory-mapped file, so that a process can use millions of items immediately.

A snapshot is only a copy. Its reader compares the stored ``facts`` with the source, applies later changes, and ignores
a snapshot that is missing, outdated or damaged. Processes that open the same snapshot share its memory.

=============  =======================================================================================
magic          8 bytes
sections       the values of each array as in memory, aligned to pages, with spare capacity after them
checksums      CRC-32 of every block of every section, uint32, one section after the other
header         JSON: facts, and the names, types, shapes, offsets and blocks of the arrays
end            offset and size of the header, its SHA-256, the size of the file, the magic again
=============  =======================================================================================

The header is last, so that a file is written in one pass and a truncated file has none. There is no pickle, and nothing
is used before its checksum is verified: the header when the file is opened, most sections by
:meth:`MappedSections.check`, the others as they are read (:class:`BlockCheck`), so that no search waits for gigabytes
of which it needs a few rows. Every value that compiled kernels use as an index is compared with the size of its array,
so that even a forged file cannot cause an access out of bounds.

Arrays are mapped privately: writing changes this process's copy of a page, never the file. So compiled kernels take
them as any array, and rows can be appended in the spare capacity, which takes no space on disk.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import struct
import sys
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from modalhash.core.codes import n_bytes
from modalhash.core.files import write_atomically
from modalhash.core.typing import Array
from modalhash.index.hamming import HammingIndex
from modalhash.index.layout import CHUNK, DistinctCodes, FrozenRows, PackedRows, chunks_for, pack_words
from modalhash.index.vectors import VectorTable, VectorView

MAGIC = b"MHARRAY\x01"
FORMAT = 1
PAGE = 4096
BLOCK = 2**20
"""Bytes of a block of a section that is verified before use."""
SMALL_BLOCK = 2**13
"""Bytes of a block of a section that is verified as it is read: small, but large enough that zlib releases the GIL."""
MAX_HEADER = 2**24
MAX_THREADS = 4
_END = struct.Struct("<QQ32sQ8s")
_TYPES = ("<i8", "<i4", "|i1", "<u8", "<u4", "<u2", "|u1")


class SnapshotError(ValueError):
    """A snapshot cannot be used; the message gives the reason. The source still has all data."""


class NewSection(NamedTuple):
    """An array to write."""

    values: Array
    capacity: int = 0
    """Rows to reserve, if more than the array has."""
    as_read: bool = False
    """Whether blocks are verified as they are read, instead of before the first use."""


@dataclass(frozen=True)
class _Section:
    """Location of an array in a file."""

    dtype: str
    shape: tuple[int, ...]
    capacity: int
    offset: int
    block: int
    first: int
    """Position of its first checksum."""
    as_read: bool

    @property
    def row_bytes(self) -> int:
        return int(np.dtype(self.dtype).itemsize * math.prod(self.shape[1:]))

    @property
    def n_bytes(self) -> int:
        return self.shape[0] * self.row_bytes

    @property
    def n_blocks(self) -> int:
        return -(-self.n_bytes // self.block)


def write_sections(path: Path, facts: Mapping[str, Any], sections: Mapping[str, NewSection]) -> int:
    """Write arrays and ``facts`` (as JSON) atomically into a file; return its size.

    It does not wait for the disk, because the checksums reveal a file that a power cut damaged.
    """
    size = 0

    def write(file: BinaryIO) -> None:
        nonlocal size
        size = _write(file, facts, sections)

    write_atomically(path, write, sync=False)
    return size


def _write(file: BinaryIO, facts: Mapping[str, Any], sections: Mapping[str, NewSection]) -> int:
    file.write(MAGIC)
    place, listed = len(MAGIC), {}
    checksums: list[int] = []
    for name, (values, capacity, as_read) in sections.items():
        place = -(-place // PAGE) * PAGE
        file.seek(place)
        stored = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
        row_bytes = int(stored.dtype.itemsize * math.prod(stored.shape[1:]))
        block = max(1, SMALL_BLOCK // row_bytes) * row_bytes if as_read else BLOCK
        listed[name] = {
            "dtype": stored.dtype.str,
            "shape": list(stored.shape),
            "capacity": max(capacity, len(stored)),
            "offset": place,
            "block": block,
            "first": len(checksums),
            "as_read": as_read,
        }
        for part in _blocks(stored.reshape(-1).view(np.uint8).data, block):
            checksums.append(zlib.crc32(part))
            file.write(part)
        place += max(capacity, len(stored)) * row_bytes
    place = -(-place // PAGE) * PAGE  # the gap is zeros, which most file systems do not store
    file.seek(place)
    digests = np.array(checksums, dtype="<u4").tobytes()
    file.write(digests)
    header = {
        "format": FORMAT,
        "facts": dict(facts),
        "sections": listed,
        "checksums": {"offset": place, "n": len(checksums), "crc32": zlib.crc32(digests)},
    }
    text = json.dumps(header).encode()
    place += len(digests)
    file.write(text)
    size = place + len(text) + _END.size
    file.write(_END.pack(place, len(text), hashlib.sha256(text).digest(), size, MAGIC))
    return size


def _blocks(values: memoryview, size: int) -> Iterator[memoryview]:
    return (values[start : start + size] for start in range(0, len(values), size))


def read_facts(path: Path) -> tuple[dict[str, Any], int]:
    """Return the facts and the size of a file without reading its arrays."""
    with _opened(path) as file:
        header, size = _read_header(file, path)
        return header["facts"], size


class MappedSections:
    """A memory-mapped file of arrays.

    Parameters
    ----------
    path : Path
        The file. SnapshotError if it is incomplete or was not written by :func:`write_sections`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with _opened(path) as file:
            header, self.size = _read_header(file, path)
            self.facts: dict[str, Any] = header["facts"]
            self._sections = _read_sections(header, self.size, path)
            status = os.fstat(file.fileno())
            self.identity = status.st_dev, status.st_ino
            try:
                self._map = mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_COPY)
            except (OSError, ValueError) as error:
                raise SnapshotError(f"{path} cannot be mapped into memory: {error}") from error
        self._bytes = memoryview(self._map)
        self._checksums = _read_checksums(header["checksums"], self._bytes, self._sections, path)
        self._threads: list[threading.Thread] = []
        self._damage: list[str] = []

    def array(self, name: str) -> tuple[Array, int]:
        """Return an array with its spare capacity, and its number of rows."""
        one = self._section(name)
        shape = (one.capacity, *one.shape[1:])
        if one.as_read and hasattr(mmap, "MADV_RANDOM"):  # scattered rows: no read-ahead
            with suppress(OSError, ValueError):
                length = one.capacity * one.row_bytes
                self._map.madvise(mmap.MADV_RANDOM, one.offset, length)
        values: Array = np.ndarray(shape, one.dtype, buffer=self._map, offset=one.offset)
        return values, one.shape[0]

    def names(self) -> list[str]:
        return list(self._sections)

    def start_check(self) -> None:
        """Start to verify, in threads, the checksums that :meth:`check` waits for."""
        if self._threads:
            return
        tasks = [
            (name, number) for name, one in self._sections.items() if not one.as_read for number in range(one.n_blocks)
        ]
        n_threads = max(1, min(MAX_THREADS, os.cpu_count() or 1, len(tasks)))
        for share in np.array_split(np.arange(len(tasks)), n_threads):
            own = [tasks[i] for i in share.tolist()]
            thread = threading.Thread(target=self._compare, args=(own,), name="snapshot", daemon=True)
            thread.start()
            self._threads.append(thread)

    def check(self) -> None:
        """Verify all sections except those verified as they are read; SnapshotError if one is damaged."""
        self.start_check()
        for thread in self._threads:
            thread.join()
        if self._damage:
            raise SnapshotError(self._damage[0])

    def check_all(self) -> None:
        """Verify all sections."""
        self.check()
        for name, one in self._sections.items():
            if one.as_read:
                self.block_check(name).check(None)

    def block_check(self, name: str) -> BlockCheck:
        """Return the object that verifies the blocks of a section as they are read."""
        one = self._section(name)
        values = self._bytes[one.offset : one.offset + one.n_bytes]
        checksums = self._checksums[one.first : one.first + one.n_blocks]
        return BlockCheck(values, checksums, one.block, max(1, one.block // max(1, one.row_bytes)), str(self.path))

    def _section(self, name: str) -> _Section:
        try:
            return self._sections[name]
        except KeyError:
            raise SnapshotError(f"{self.path} has no {name}") from None

    def _compare(self, tasks: list[tuple[str, int]]) -> None:
        for name, number in tasks:
            if self._damage:
                return
            one = self._sections[name]
            start = one.offset + number * one.block
            stop = min(start + one.block, one.offset + one.n_bytes)
            if zlib.crc32(self._bytes[start:stop]) != self._checksums[one.first + number]:
                self._damage.append(f"{self.path} is damaged: {name} is not as it was written")


class BlockCheck:
    """Verifies the checksum of each block of a mapped array when one of its rows is first read."""

    def __init__(self, values: memoryview, checksums: Array, block: int, block_rows: int, path: str) -> None:
        self._values, self._checksums, self._path = values, checksums, path
        self._block, self._block_rows = block, block_rows
        self._known = np.zeros(len(checksums), dtype=bool)

    def check(self, rows: Array | None) -> None:
        """Verify the blocks of some rows, or of all; SnapshotError if one is damaged.

        Rows appended after the file was written are ignored. Thread-safe.
        """
        if rows is None:
            wanted = np.flatnonzero(~self._known)
        else:
            blocks = rows // self._block_rows
            blocks = blocks[blocks < len(self._known)] if len(rows) else blocks
            wanted = np.unique(blocks[~self._known[blocks]])
        for number in wanted.tolist():
            start = number * self._block
            if zlib.crc32(self._values[start : start + self._block]) != self._checksums[number]:
                raise SnapshotError(f"{self._path} is damaged: vectors are not as they were written")
            self._known[number] = True


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise SnapshotError(f"{path} cannot be read: {error.strerror or error}") from error


def _read_header(file: BinaryIO, path: Path) -> tuple[dict[str, Any], int]:
    """Return the header and the size of a file; SnapshotError if the file is invalid."""
    no_file = f"{path} is truncated, damaged, or not a snapshot"
    try:
        size = file.seek(0, os.SEEK_END)
        if size < len(MAGIC) + _END.size:
            raise SnapshotError(no_file)
        file.seek(size - _END.size)
        place, length, digest, expected, magic = _END.unpack(file.read(_END.size))
        if magic != MAGIC or expected != size or length > MAX_HEADER or place + length + _END.size != size:
            raise SnapshotError(no_file)
        file.seek(place)
        text = file.read(length)
    except OSError as error:
        raise SnapshotError(f"{path} cannot be read: {error.strerror or error}") from error
    if hashlib.sha256(text).digest() != digest:
        raise SnapshotError(f"{path} is damaged: its header is not as it was written")
    header = json.loads(text)
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise SnapshotError(f"{path} has a format unknown to this version")
    if sys.byteorder != "little":
        raise SnapshotError(f"{path} has another byte order than this machine")
    return header, size


def _read_sections(header: Mapping[str, Any], size: int, path: Path) -> dict[str, _Section]:
    """Return the sections of a header, after checking that each is within the file."""
    sections = {}
    try:
        for name, one in header["sections"].items():
            shape = tuple(map(int, one["shape"]))
            section = _Section(
                str(one["dtype"]),
                shape,
                int(one["capacity"]),
                int(one["offset"]),
                int(one["block"]),
                int(one["first"]),
                bool(one["as_read"]),
            )
            if section.dtype not in _TYPES or not shape or min(shape) < 0 or section.capacity < shape[0]:
                raise ValueError(name)
            if section.offset % PAGE or section.offset < PAGE or section.block < 1 or section.first < 0:
                raise ValueError(name)
            if section.offset + section.capacity * section.row_bytes > size:
                raise ValueError(name)
            sections[name] = section
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise SnapshotError(f"{path} has an invalid header: {error}") from None
    return sections


def _read_checksums(
    described: Mapping[str, Any], values: memoryview, sections: Mapping[str, _Section], path: Path
) -> Array:
    start, n = int(described["offset"]), int(described["n"])
    part = values[start : start + 4 * n]
    if any(one.first + one.n_blocks > n for one in sections.values()) or zlib.crc32(part) != described["crc32"]:
        raise SnapshotError(f"{path} is damaged: its checksums are not as they were written")
    return np.frombuffer(part, dtype="<u4")


LAYOUT = 1
"""Version of the memory layout; other snapshots are not used."""
MIN_SPARE, SPARE_SHARE = 4096, 8
"""Spare capacity after the last row: at least 4,096 rows, or n / 8. Appends use it without copying."""


class Frozen(NamedTuple):
    """One state of indexes and vector tables by name, without copies; later changes are not included."""

    n_bits: Mapping[str, int]
    indexes: Mapping[str, Mapping[int, FrozenRows]]
    vectors: Mapping[str, VectorView]


def freeze(indexes: Mapping[str, HammingIndex], vectors: Mapping[str, VectorTable]) -> Frozen:
    """Return the current state of indexes and vector tables, to be written while they change."""
    return Frozen(
        {name: index.n_bits for name, index in indexes.items()},
        {name: index._freeze() for name, index in indexes.items()},
        {name: table._freeze() for name, table in vectors.items()},
    )


def write_snapshot(path: str | Path, frozen: Frozen, facts: Mapping[str, Any]) -> int:
    """Write a frozen state and ``facts`` (as JSON) atomically into a file; return its size."""
    sections: dict[str, NewSection] = {}
    described: dict[str, Any] = {}
    for name, groups in frozen.indexes.items():
        listed = [_add_rows(f"{name}/{group}", group, rows, sections) for group, rows in groups.items()]
        described[name] = {"n_bits": frozen.n_bits[name], "groups": listed}
    for name, view in frozen.vectors.items():
        if view.check is not None:
            view.check(None)  # from another snapshot, whose damage must not be copied
        capacity = view.n + _spare(view.n)
        sections[f"{name}/ids"] = NewSection(view.ids, capacity)
        sections[f"{name}/groups"] = NewSection(view.groups, capacity)
        sections[f"{name}/rows"] = NewSection(view.rows, capacity, as_read=True)
    content = {"layout": LAYOUT, "chunk": CHUNK, "indexes": described, "vectors": list(frozen.vectors)}
    return write_sections(Path(path), {"content": content, "of": dict(facts)}, sections)


def read_snapshot_facts(path: str | Path) -> tuple[dict[str, Any], int]:
    """Return the facts and the size of a snapshot without mapping it into memory."""
    facts, size = read_facts(Path(path))
    return dict(facts.get("of", {})), size


class Snapshot:
    """An open snapshot, whose checksums are verified in the background.

    Parameters
    ----------
    path : str or Path
        The file; :class:`SnapshotError` if it cannot be used.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> index = HammingIndex(8)
    >>> index.add([1, 2], np.array([[7], [3]], dtype=np.uint8))
    >>> size = write_snapshot(f"{folder.name}/codes", freeze({"codes": index}, {}), {"revision": 2})
    >>> snapshot, copy = Snapshot(f"{folder.name}/codes"), HammingIndex(8)
    >>> snapshot.facts["revision"]
    2
    >>> snapshot.thaw({"codes": copy}, {})
    >>> copy.search(np.array([[3]], dtype=np.uint8), k=1).ids.tolist()
    [[2]]
    >>> folder.cleanup()
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file = MappedSections(self.path)
        self.facts: dict[str, Any] = dict(self._file.facts.get("of", {}))
        self.size = self._file.size
        self._file.start_check()

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode of the file, which change when another snapshot replaces it."""
        return self._file.identity

    def thaw(self, indexes: Mapping[str, HammingIndex], vectors: Mapping[str, VectorTable]) -> None:
        """Restore the snapshot into empty indexes and vector tables.

        On SnapshotError they stay empty. Rows of vectors are verified as they are read, so :meth:`VectorTable.find` may
        raise SnapshotError.
        """
        self._file.check()
        try:
            content = self._file.facts["content"]
            if content["layout"] != LAYOUT or content["chunk"] != CHUNK:
                raise SnapshotError(f"{self.path} was written by a version with another memory layout")
            found = {name: self._read_index(name, index.n_bits, content) for name, index in indexes.items()}
            views = {name: self._read_vectors(name, table.width) for name, table in vectors.items()}
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            if isinstance(error, SnapshotError):
                raise
            raise SnapshotError(f"{self.path} is invalid: {error}") from error
        for name, index in indexes.items():
            index._thaw(found[name])
        for name, table in vectors.items():
            table._thaw(views[name])

    def check(self) -> None:
        """Verify all checksums; SnapshotError if the file is damaged."""
        self._file.check_all()

    def _read_index(self, name: str, n_bits: int, content: Mapping[str, Any]) -> dict[int, FrozenRows]:
        described = content["indexes"][name]
        if described["n_bits"] != n_bits:
            raise SnapshotError(f"{self.path} has codes of {described['n_bits']} bits; expected {n_bits}")
        words = pack_words(np.empty((0, n_bytes(n_bits)), np.uint8), n_bits)
        return {int(one["group"]): self._read_rows(f"{name}/{one['group']}", one, words) for one in described["groups"]}

    def _read_rows(self, name: str, described: Mapping[str, Any], like: Array) -> FrozenRows:
        base = table = None
        if described["base"] is not None:
            arrays = {part: self._file.array(f"{name}/base/{part}")[0] for part in _BASE_PARTS}
            base = DistinctCodes(
                int(described["base"]["first_id"]), arrays["offsets"], arrays["numbers"], arrays["words"],
                int(described["base"]["n_codes"]), arrays["starts"], arrays["rows"],
            )  # fmt: skip
            _check_base(base, like, self.path)
        if described["table"] is not None:
            n = int(described["table"])
            (ids, _), (words, n_chunks) = self._file.array(f"{name}/ids"), self._file.array(f"{name}/words")
            _expect(ids.dtype == np.int64 and ids.ndim == 1 and len(ids) == len(words) * CHUNK, self.path)
            _expect(words.dtype == like.dtype and words.shape[1:] == (like.shape[1], CHUNK), self.path)
            _expect(0 <= n <= n_chunks * CHUNK, self.path)
            table = PackedRows(ids, words, n)
        return FrozenRows(base, table, int(described["n_tried"]))

    def _read_vectors(self, name: str, width: int) -> VectorView:
        (ids, n), (groups, n_groups) = self._file.array(f"{name}/ids"), self._file.array(f"{name}/groups")
        rows, n_rows = self._file.array(f"{name}/rows")
        _expect(n == n_groups == n_rows and len(ids) == len(groups) == len(rows), self.path)
        _expect(ids.dtype == np.int64 and groups.dtype == np.int32 and rows.dtype == np.int8, self.path)
        _expect(ids.ndim == groups.ndim == 1 and rows.shape[1:] == (width,), self.path)
        return VectorView(ids, groups, rows, n, self._file.block_check(f"{name}/rows").check)


_BASE_PARTS = ("offsets", "numbers", "words", "starts", "rows")


def _add_rows(name: str, group: int, rows: FrozenRows, sections: dict[str, NewSection]) -> dict[str, Any]:
    """Add the arrays of a group to ``sections``, and return their description."""
    base, table = None, None
    if rows.base is not None:
        base = {"first_id": rows.base.first_id, "n_codes": rows.base.n_codes}
        for part in _BASE_PARTS:
            sections[f"{name}/base/{part}"] = NewSection(getattr(rows.base, part))
    if rows.table is not None:
        table = rows.table.n
        capacity = chunks_for(table + _spare(table))
        sections[f"{name}/ids"] = NewSection(rows.table.ids[:table], capacity * CHUNK)
        sections[f"{name}/words"] = NewSection(rows.table.words[: chunks_for(table)], capacity)
    return {"group": group, "base": base, "table": table, "n_tried": rows.n_tried}


def _spare(n: int) -> int:
    return max(MIN_SPARE, n // SPARE_SHARE)


def _check_base(base: DistinctCodes, like: Array, path: Path) -> None:
    """Raise SnapshotError if an entry of distinct codes points outside its arrays."""
    n = len(base.offsets)
    _expect(base.n_codes > 0 and base.starts.shape == (base.n_codes + 1,) and base.starts.dtype == np.int64, path)
    _expect(base.offsets.shape == base.numbers.shape == base.rows.shape == (n,) and n > 0, path)
    _expect(base.offsets.dtype in (np.uint32, np.int64) and base.rows.dtype in (np.uint32, np.int64), path)
    _expect(base.numbers.dtype in (np.uint16, np.uint32), path)
    _expect(base.words.shape == (chunks_for(base.n_codes), like.shape[1], CHUNK), path)
    _expect(base.words.dtype == like.dtype, path)
    _expect(base.starts[0] == 0 and base.starts[-1] == n and bool(np.all(np.diff(base.starts) >= 0)), path)
    _expect(int(base.numbers.max()) < base.n_codes and int(base.rows.max()) < n and int(base.rows.min()) >= 0, path)


def _expect(is_so: bool, path: Path) -> None:
    if not is_so:
        raise SnapshotError(f"{path} is invalid: its arrays do not match")
