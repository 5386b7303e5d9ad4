"""Binary codes, packed as ``uint8 (n, ceil(n_bits / 8))``; a bit is 1 where the projection is > 0.

The bit order is that of :func:`numpy.packbits` (the first bit is the highest of the first byte) and padding bits are 0.
This module does not need numba; :mod:`modalhash.core.bit_kernels` counts bits.
"""

from __future__ import annotations

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
