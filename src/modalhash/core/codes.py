"""Binary codes, packed as ``uint8 (n, ceil(n_bits / 8))``; a bit is 1 where the projection is > 0.

The bit order is that of :func:`numpy.packbits` (the first bit is the highest of the first byte) and padding bits are 0.
This module does not need numba; :mod:`modalhash.core.bit_kernels` counts bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from modalhash.core.typing import Array, Codes


def n_bytes(n_bits: int) -> int:
    return -(-n_bits // 8)


def pack(bits: Array) -> Codes:
    """Pack an ``(n, n_bits)`` array of truth values.

    Examples
    --------
    >>> pack(np.array([[True, False, False, False, False, False, False, True, True]]))
    array([[129, 128]], dtype=uint8)
    """
    bits = np.asarray(bits)
    if bits.ndim != 2:
        raise ValueError(f"bits have {bits.ndim} dimension(s); expected 2: (items, bits)")
    return np.packbits(bits.astype(bool, copy=False), axis=1)


def pack_signs(projections: Array) -> Codes:
    """Pack real-valued projections: sgn(x) is +1 where x > 0 and −1 elsewhere, including 0."""
    return pack(np.asarray(projections) > 0)


def unpack(codes: Codes, n_bits: int) -> Array:
    check_codes(codes, n_bits)
    return np.unpackbits(codes, axis=1, count=n_bits).astype(bool)


def unpack_signs(codes: Codes, n_bits: int, dtype: type = np.float32) -> Array:
    signs: Array = np.unpackbits(check_codes(codes, n_bits), axis=1, count=n_bits).astype(dtype)
    signs *= 2
    signs -= 1
    return signs


def to_words(codes: Codes) -> Array:
    """Return the same bits as ``uint64 (n, words)``, zero-padded, for the kernels."""
    codes = np.ascontiguousarray(codes)
    n, width = codes.shape
    words = -(-width // 8) or 1
    if width == 8 * words:
        return codes.view(np.uint64)
    padded = np.zeros((n, 8 * words), dtype=np.uint8)
    padded[:, :width] = codes
    return padded.view(np.uint64)


def check_codes(codes: Codes, n_bits: int, name: str = "codes") -> Codes:
    """Return the codes if they are packed codes of ``n_bits``; raise TypeError or ValueError if not."""
    if not isinstance(codes, np.ndarray) or codes.dtype != np.uint8:
        kind = f"dtype {codes.dtype}" if isinstance(codes, np.ndarray) else type(codes).__name__
        raise TypeError(f"{name}: got {kind}; expected packed uint8 codes (see modalhash.core.codes.pack)")
    if codes.ndim != 2 or codes.shape[1] != n_bytes(n_bits):
        raise ValueError(
            f"{name}: got shape {codes.shape}; {n_bits} bits need (n, {n_bytes(n_bits)}). "
            "Pack truth values with modalhash.core.codes.pack"
        )
    spare = -n_bits % 8
    if spare and np.any(codes[:, -1] & ((1 << spare) - 1)):
        raise ValueError(f"{name}: padding bits are set; were they packed for more than {n_bits} bits?")
    return codes


def check_ids(ids: Any) -> Array:
    """Return ids as int64, or raise if they are not a 1-D array of integers that fit."""
    numbers = np.asarray(list(ids) if isinstance(ids, set | frozenset | range) else ids)
    if numbers.size == 0:
        numbers = numbers.reshape(-1).astype(np.int64)
    if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
        raise TypeError(f"ids: got {numbers.dtype} of shape {numbers.shape}; expected a row of integers")
    if numbers.dtype == np.uint64 and numbers.max() > np.iinfo(np.int64).max:
        raise ValueError(f"ids: {numbers.max()} does not fit a signed 64-bit integer")
    return numbers.astype(np.int64)


def distinct_ids(ids: Any) -> Array:
    """Return checked ids, ascending and distinct; no sorting if they already are."""
    numbers = check_ids(ids)
    if np.all(numbers[1:] > numbers[:-1]):
        return numbers
    numbers.sort()
    return numbers[np.concatenate([[True], numbers[1:] != numbers[:-1]])]


def check_groups(group: Any, n: int | None) -> Array:
    """Return group numbers as int64, one per item if ``n`` is given; raise if they are not integers ≥ 0."""
    numbers = np.asarray(list(group) if isinstance(group, set | frozenset) else group)
    if not (np.issubdtype(numbers.dtype, np.integer) or numbers.size == 0) or (numbers.size and numbers.min() < 0):
        raise ValueError(f"group: got {group!r}; expected integers ≥ 0")
    numbers = numbers.astype(np.int64)
    if n is None:
        return numbers
    if numbers.ndim and numbers.shape != (n,):
        raise ValueError(f"group: got shape {numbers.shape} for {n} items; expected one number, or one per item")
    return np.broadcast_to(numbers, (n,))
