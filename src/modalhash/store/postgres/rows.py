"""PostgreSQL's binary ``COPY``: rows of items as bytes on input, arrays of fixed width on output.

A row is the number of its fields and, for each, its length and its bytes; a length of −1 is NULL. Writing these bytes
directly is several times as fast as adapting each value.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from modalhash.core.typing import Array

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
TEXT, INTEGER = 25, 23
"""PostgreSQL's type ids of array elements."""
_CHUNK_ROWS = 500
_NULL = b"\xff\xff\xff\xff"
_length = struct.Struct(">i").pack


def write_rows(connection: Any, table: str, columns: Sequence[str], rows: Iterable[bytes]) -> None:
    """Append rows, given as their joined fields, to a table."""
    with connection.cursor().copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN (FORMAT binary)") as copy:
        start, chunk = struct.pack(">h", len(columns)), [HEADER]
        for one in rows:
            chunk += (start, one)
            if len(chunk) > 2 * _CHUNK_ROWS:
                copy.write(b"".join(chunk))
                chunk.clear()
        copy.write(b"".join((*chunk, TRAILER)))


def field(value: bytes | str | None) -> bytes:
    """Return a field of bytes, text or JSON."""
    if value is None:
        return _NULL
    data = value if isinstance(value, bytes) else value.encode()
    return _length(len(data)) + data


def bigint(value: int) -> bytes:
    return struct.pack(">iq", 8, value)


def integer(value: int) -> bytes:
    return struct.pack(">ii", 4, value)


def array(values: Sequence[bytes], kind: int) -> bytes:
    """Return an array field whose elements have the type ``kind``."""
    head = struct.pack(">iii", 1 if values else 0, 0, kind)
    size = struct.pack(">ii", len(values), 1) if values else b""
    return field(b"".join((head, size, *map(field, values))))


def read_rows(connection: Any, sql: str, values: Sequence[Any], columns: Sequence[tuple[str, int]]) -> Array:
    """Return the rows of a query as a structured array with columns of the given sizes in bytes, never NULL."""
    fields: list[Any] = [("n_fields", ">i2")]
    for name, size in columns:
        fields += [(f"{name}_size", ">i4"), (name, np.uint8, (size,))]
    with connection.cursor().copy(f"COPY ({sql}) TO STDOUT (FORMAT binary)", values or None) as copy:
        data = b"".join(copy)
    n_rows = (len(data) - len(HEADER) - len(TRAILER)) // np.dtype(fields).itemsize
    return np.frombuffer(data, dtype=np.dtype(fields), offset=len(HEADER), count=n_rows)


def integers(column: Array) -> Array:
    """Return an integer column of :func:`read_rows` as int64."""
    return np.ascontiguousarray(column).view(f">i{column.shape[1]}")[:, 0].astype(np.int64)
