"""Rows of PostgreSQL's binary ``COPY`` as structured arrays.

A row is the number of its fields and, for each, its length and its bytes. Where all columns have a fixed width, numpy
reads the rows without a Python object for each value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from modalhash.core.typing import Array

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"


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
