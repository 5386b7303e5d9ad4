from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from modalhash.core import codes


@given(n=st.integers(0, 20), n_bits=st.integers(1, 140), seed=st.integers(0, 999))
def test_packing_is_undone_by_unpacking(n, n_bits, seed):
    bits = np.random.default_rng(seed).random((n, n_bits)) < 0.5
    packed = codes.pack(bits)
    assert packed.shape == (n, codes.n_bytes(n_bits))
    np.testing.assert_array_equal(codes.unpack(packed, n_bits), bits)
    np.testing.assert_array_equal(codes.unpack_signs(packed, n_bits), np.where(bits, 1, -1))
    words = codes.to_words(packed)
    assert words.dtype == np.uint64
    assert words.shape == (n, -(-n_bits // 64))
    np.testing.assert_array_equal(np.bitwise_count(words).sum(axis=1), bits.sum(axis=1))


def test_zero_is_a_zero_bit():
    np.testing.assert_array_equal(codes.pack_signs(np.array([[0.0, -0.0, 1e-30, -1.0]])), [[0b00100000]])


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ([[1]], TypeError, "got list; expected packed uint8"),
        (np.ones((2, 2), dtype=np.int64), TypeError, "got dtype int64"),
        (np.ones((2, 2), dtype=np.uint8), ValueError, r"got shape \(2, 2\); 24 bits need \(n, 3\)"),
        (np.ones(3, dtype=np.uint8), ValueError, r"got shape \(3,\)"),
    ],
)
def test_what_is_no_code_is_refused(value, error, message):
    with pytest.raises(error, match=message):
        codes.check_codes(value, 24)


def test_set_padding_bits_are_refused():
    with pytest.raises(ValueError, match="padding bits are set"):
        codes.check_codes(np.array([[1]], dtype=np.uint8), 7)
    with pytest.raises(ValueError, match="expected 2: "):
        codes.pack(np.ones(3))
