"""Snapshots of indexes and vectors in one file, from which a process fills its memory faster than from a store.

=======  ====================================================================================
magic    8 bytes; another one for every memory layout
header   its size (uint64); JSON: facts, and the names, types and shapes of the arrays
arrays   their values as in memory, in the order of the header
digest   SHA-256 of the header and of the CRC-32 of every 8 MiB of an array
=======  ====================================================================================

A snapshot is only a copy, so its reader ignores one that is missing, outdated or damaged, and reads the source. The
file is read into memory and verified completely before anything of it is used, and is never mapped: what happens to it
later changes no answer. There is no pickle, and every value that compiled kernels use as an index is compared with the
size of its array, so that even a forged file cannot cause an access out of bounds.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from modalhash.core.codes import n_bytes
from modalhash.core.files import write_atomically
from modalhash.core.typing import Array
from modalhash.index.hamming import HammingIndex
from modalhash.index.layout import CHUNK, DistinctCodes, FrozenRows, PackedRows, aligned_zeros, chunks_for, pack_words
from modalhash.index.vectors import VectorTable, VectorView

MAGIC = b"MHINDEX\x01"
PIECE = 2**23
"""Bytes of an array that are read together and have one CRC-32. Smaller pieces cost more switches of threads."""
MIN_SPARE, SPARE_SHARE = 4096, 8
"""Spare capacity after the last row: at least 4,096 rows, or n / 8. Appends use it without copying."""
_START = struct.Struct("<8sQ")
_BASE_PARTS = ("offsets", "numbers", "words", "starts", "rows")
_VECTOR_PARTS = ("ids", "groups", "rows")


class SnapshotError(ValueError):
    """A snapshot cannot be used; the message gives the reason. The source still has all data."""


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
    """Write a frozen state and ``facts`` (as JSON) atomically into a file; return its size.

    It does not wait for the disk, because the digest reveals a file that a power cut damaged.
    """
    arrays: dict[str, _NewArray] = {}
    described: dict[str, Any] = {}
    for name, groups in frozen.indexes.items():
        listed = [_add_group(f"{name}/{group}", group, rows, arrays) for group, rows in groups.items()]
        described[name] = {"n_bits": frozen.n_bits[name], "groups": listed}
    for name, view in frozen.vectors.items():
        for part in _VECTOR_PARTS:
            arrays[f"{name}/{part}"] = _NewArray(getattr(view, part), view.n + _spare(view.n))
    shapes = {
        name: {"dtype": values.dtype.str, "shape": values.shape, "capacity": capacity}
        for name, (values, capacity) in arrays.items()
    }
    header = json.dumps({"facts": dict(facts), "indexes": described, "arrays": shapes}).encode()
    values = [one.values for one in arrays.values()]
    write_atomically(path, partial(_write, header, values), sync=False)
    return _size(header, values)


def read_snapshot_facts(path: str | Path) -> tuple[dict[str, Any], int]:
    """Return the facts and the size of a snapshot without reading its arrays, and thus without verifying its digest."""
    path = Path(path)
    with _opened(path) as file:
        _, header = _read_header(file, path)
        return header["facts"], os.fstat(file.fileno()).st_size


class Snapshot:
    """A snapshot in memory, verified.

    Parameters
    ----------
    path : str or Path
        The file; :class:`SnapshotError` if it cannot be used. It may change or disappear later.

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
        with _opened(self.path) as file:
            text, header = _read_header(file, self.path)
            try:
                self._arrays = {name: _allocate(**one) for name, one in header["arrays"].items()}
            except (LookupError, TypeError, ValueError, AttributeError, OverflowError, MemoryError) as error:
                raise SnapshotError(f"{self.path} is damaged: its header is invalid ({error})") from None
            self.facts, self._indexes = header["facts"], header["indexes"]
            values = [space[:n] for space, n in self._arrays.values()]
            self.size = _size(text, values)
            if self.size != os.fstat(file.fileno()).st_size:
                raise SnapshotError(f"{self.path} is truncated or damaged: its size is not that of its arrays")
            _fill(file, text, values, self.path)

    def thaw(self, indexes: Mapping[str, HammingIndex], vectors: Mapping[str, VectorTable]) -> None:
        """Move the snapshot into empty indexes and vector tables, which own its memory from then on.

        On SnapshotError they stay empty.
        """
        try:
            found = {name: self._index(name, index.n_bits) for name, index in indexes.items()}
            views = {name: self._vectors(name, table.width) for name, table in vectors.items()}
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            if isinstance(error, SnapshotError):
                raise
            raise SnapshotError(f"{self.path} is invalid: {error}") from error
        for name, index in indexes.items():
            index._thaw(found[name])
        for name, table in vectors.items():
            table._thaw(views[name])

    def _index(self, name: str, n_bits: int) -> dict[int, FrozenRows]:
        described = self._indexes[name]
        if described["n_bits"] != n_bits:
            raise SnapshotError(f"{self.path} has codes of {described['n_bits']} bits; expected {n_bits}")
        words = pack_words(np.empty((0, n_bytes(n_bits)), np.uint8), n_bits)
        return {int(one["group"]): self._rows(f"{name}/{one['group']}", one, words) for one in described["groups"]}

    def _rows(self, name: str, described: Mapping[str, Any], like: Array) -> FrozenRows:
        base = table = None
        if described["base"] is not None:
            parts = {part: self._arrays[f"{name}/base/{part}"][0] for part in _BASE_PARTS}
            base = DistinctCodes(
                int(described["base"]["first_id"]), parts["offsets"], parts["numbers"], parts["words"],
                int(described["base"]["n_codes"]), parts["starts"], parts["rows"],
            )  # fmt: skip
            _check_base(base, like, self.path)
        if described["table"] is not None:
            n = int(described["table"])
            (ids, n_ids), (words, _) = self._arrays[f"{name}/ids"], self._arrays[f"{name}/words"]
            _expect(ids.dtype == np.int64 and ids.ndim == 1 and len(ids) == len(words) * CHUNK, self.path)
            _expect(words.dtype == like.dtype and words.shape[1:] == (like.shape[1], CHUNK), self.path)
            _expect(n == n_ids, self.path)
            table = PackedRows(ids, words, n)
        return FrozenRows(base, table, int(described["n_tried"]))

    def _vectors(self, name: str, width: int) -> VectorView:
        (ids, n), (groups, n_groups), (rows, n_rows) = (self._arrays[f"{name}/{part}"] for part in _VECTOR_PARTS)
        _expect(n == n_groups == n_rows and len(ids) == len(groups) == len(rows), self.path)
        _expect(ids.dtype == np.int64 and groups.dtype == np.int32 and rows.dtype == np.int8, self.path)
        _expect(ids.ndim == groups.ndim == 1 and rows.shape[1:] == (width,), self.path)
        return VectorView(ids, groups, rows, n)


class _NewArray(NamedTuple):
    """An array to write, and the number of rows that its reader allocates."""

    values: Array
    capacity: int


def _add_group(name: str, group: int, rows: FrozenRows, arrays: dict[str, _NewArray]) -> dict[str, Any]:
    """Add the arrays of a group to ``arrays``, and return their description."""
    base, table = None, None
    if rows.base is not None:
        base = {"first_id": rows.base.first_id, "n_codes": rows.base.n_codes}
        for part in _BASE_PARTS:
            values = getattr(rows.base, part)
            arrays[f"{name}/base/{part}"] = _NewArray(values, len(values))
    if rows.table is not None:
        table = rows.table.n
        capacity = chunks_for(table + _spare(table))
        arrays[f"{name}/ids"] = _NewArray(rows.table.ids[:table], capacity * CHUNK)
        arrays[f"{name}/words"] = _NewArray(rows.table.words[: chunks_for(table)], capacity)
    return {"group": group, "base": base, "table": table, "n_tried": rows.n_tried}


def _spare(n: int) -> int:
    return max(MIN_SPARE, n // SPARE_SHARE)


def _size(header: bytes, arrays: list[Array]) -> int:
    return _START.size + len(header) + sum(one.nbytes for one in arrays) + hashlib.sha256().digest_size


def _write(header: bytes, arrays: list[Array], file: BinaryIO) -> None:
    digest = hashlib.sha256(header)
    file.write(_START.pack(MAGIC, len(header)) + header)
    for piece in map(bytes, _pieces(arrays)):  # copied, because rows may be appended in the last chunk meanwhile
        digest.update(_checksum(piece))
        file.write(piece)
    file.write(digest.digest())


def _pieces(arrays: list[Array]) -> Iterator[memoryview]:
    for values in arrays:
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
        yield from (data[start : start + PIECE] for start in range(0, len(data), PIECE))


def _checksum(piece: bytes | memoryview) -> bytes:
    return zlib.crc32(piece).to_bytes(4, "little")


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise SnapshotError(f"{path} cannot be read: {error.strerror or error}") from error


def _read_header(file: BinaryIO, path: Path) -> tuple[bytes, dict[str, dict[str, Any]]]:
    start = file.read(_START.size)
    magic, length = _START.unpack(start) if len(start) == _START.size else (b"", 0)
    if magic != MAGIC or length > os.fstat(file.fileno()).st_size:
        raise SnapshotError(f"{path} is truncated, damaged, or not a snapshot of this version")
    text = file.read(length)
    try:
        header = json.loads(text)
        return text, {name: dict(header[name]) for name in ("facts", "indexes", "arrays")}
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        raise SnapshotError(f"{path} is truncated or damaged: its header is invalid ({error})") from None


def _allocate(dtype: str, shape: list[int], capacity: int) -> tuple[Array, int]:
    """Return an array with spare capacity, and the number of rows to read into it."""
    n, *rest = shape
    if np.dtype(dtype).kind not in "iu" or min(shape) < 0 or capacity < n:
        raise ValueError(f"{dtype}, {shape}, {capacity}")
    return aligned_zeros((capacity, *rest), np.dtype(dtype)), n


def _fill(file: BinaryIO, header: bytes, arrays: list[Array], path: Path) -> None:
    """Read the arrays of a file, and compare its digest with theirs."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        checksums = []
        for piece in _pieces(arrays):
            file.readinto(piece)  # type: ignore[attr-defined]
            checksums.append(pool.submit(_checksum, piece))
        digest = hashlib.sha256(header + b"".join(one.result() for one in checksums)).digest()
    if file.read() != digest:
        raise SnapshotError(f"{path} is damaged: its digest differs")


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
