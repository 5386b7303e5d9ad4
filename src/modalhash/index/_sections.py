"""A file of arrays to be mapped into memory: what is in it can be used at once, and every block has a checksum.

=============  =======================================================================================
magic          8 bytes
sections       the values of each array as they lie in memory, from a page's start on, with room after them
checksums      CRC-32 of every block of every section, uint32, one section after the other
header         JSON: what the writer says of the arrays, and their names, types, shapes, places and blocks
end            place and size of the header, its SHA-256, the size of the file, the magic again
=============  =======================================================================================

The header comes last so that a file is written in one pass, and a file that was cut has none. There is no pickle, and
nothing in the file is believed before its checksum was compared: that of the header when the file is opened, those of
most sections by :meth:`MappedSections.check`, those of the others as they are read (:class:`BlockCheck`), so that
nobody waits until gigabytes were read of which a search needs a few rows.

Arrays are mapped privately: writing to one changes this process's copy of a page and never the file. Compiled kernels
thereby take them as they take any other array, and rows can be appended in the room after the values, which takes no
place on the disk.
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

from modalhash._files import write_atomically
from modalhash._typing import Array

MAGIC = b"MHARRAY\x01"
FORMAT = 1
PAGE = 4096
BLOCK = 2**20
"""Bytes of a block of a section that is compared as a whole."""
SMALL_BLOCK = 2**13
"""Bytes of a block of a section that is compared as it is read: few, but enough for zlib to leave the interpreter."""
MAX_HEADER = 2**24
MAX_THREADS = 4
_END = struct.Struct("<QQ32sQ8s")
_TYPES = ("<i8", "<i4", "|i1", "<u8", "<u4", "<u2", "|u1")


class SnapshotError(ValueError):
    """A snapshot cannot be used; the message says why. What it is a copy of has everything."""


class NewSection(NamedTuple):
    """An array to be written."""

    values: Array
    capacity: int = 0
    """Rows that there is room for, if more than the array has."""
    as_read: bool = False
    """Whether blocks are compared when rows of them are read, rather than all before the first use."""


@dataclass(frozen=True)
class _Section:
    """Where an array lies in a file."""

    dtype: str
    shape: tuple[int, ...]
    capacity: int
    offset: int
    block: int
    first: int
    """Which checksum is that of its first block."""
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


# -- writing


def write_sections(path: Path, facts: Mapping[str, Any], sections: Mapping[str, NewSection]) -> int:
    """Write arrays and what there is to say of them (``facts``, as JSON) into a file; return its size.

    Readers see the old file or the whole new one. It does not wait for the disk: after a power cut the checksums tell.
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
    place = -(-place // PAGE) * PAGE  # what was passed over is zeros, which most file systems do not store
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


# -- reading


def read_facts(path: Path) -> tuple[dict[str, Any], int]:
    """Return what the writer of a file said of its arrays, and the size of the file, without reading the arrays."""
    with _opened(path) as file:
        header, size = _read_header(file, path)
        return header["facts"], size


class MappedSections:
    """A file of arrays that is mapped into memory.

    Parameters
    ----------
    path : Path
        The file. SnapshotError if it is not whole, or was not written by :func:`write_sections`.
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
        """Return an array with the room after its rows, and how many rows there are."""
        one = self._section(name)
        shape = (one.capacity, *one.shape[1:])
        if one.as_read and hasattr(mmap, "MADV_RANDOM"):  # one row here and one there: no reading ahead
            with suppress(OSError, ValueError):
                length = one.capacity * one.row_bytes
                self._map.madvise(mmap.MADV_RANDOM, one.offset, length)
        values: Array = np.ndarray(shape, one.dtype, buffer=self._map, offset=one.offset)
        return values, one.shape[0]

    def names(self) -> list[str]:
        """Return the names of the arrays."""
        return list(self._sections)

    def start_check(self) -> None:
        """Begin to compare what :meth:`check` will wait for, in threads beside the caller."""
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
        """Compare all sections but those that are compared as they are read; SnapshotError if one is damaged."""
        self.start_check()
        for thread in self._threads:
            thread.join()
        if self._damage:
            raise SnapshotError(self._damage[0])

    def check_all(self) -> None:
        """Compare all sections, whichever way they would be."""
        self.check()
        for name, one in self._sections.items():
            if one.as_read:
                self.block_check(name).check(None)

    def block_check(self, name: str) -> BlockCheck:
        """Return what compares the blocks of a section as they are read."""
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
    """Compares the blocks of a mapped array with their checksums, each when a row of it is read for the first time."""

    def __init__(self, values: memoryview, checksums: Array, block: int, block_rows: int, path: str) -> None:
        self._values, self._checksums, self._path = values, checksums, path
        self._block, self._block_rows = block, block_rows
        self._known = np.zeros(len(checksums), dtype=bool)

    def check(self, rows: Array | None) -> None:
        """Compare the blocks of some rows, or of all; SnapshotError if one is not as it was written.

        Rows that were appended after the file was written are passed over. Any number of threads may call this.
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
    """Return the header of a file and the file's size; SnapshotError if it is not whole, or something else."""
    no_file = f"{path} was cut, is damaged, or is something else"
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
        raise SnapshotError(f"{path} has a format that this version does not know")
    if sys.byteorder != "little":
        raise SnapshotError(f"{path} has numbers in another order of bytes than this machine")
    return header, size


def _read_sections(header: Mapping[str, Any], size: int, path: Path) -> dict[str, _Section]:
    """Return the sections of a header, every one of which lies in the file."""
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
        raise SnapshotError(f"{path} has a header that makes no sense: {error}") from None
    return sections


def _read_checksums(
    described: Mapping[str, Any], values: memoryview, sections: Mapping[str, _Section], path: Path
) -> Array:
    start, n = int(described["offset"]), int(described["n"])
    part = values[start : start + 4 * n]
    if any(one.first + one.n_blocks > n for one in sections.values()) or zlib.crc32(part) != described["crc32"]:
        raise SnapshotError(f"{path} is damaged: its checksums are not as they were written")
    return np.frombuffer(part, dtype="<u4")
