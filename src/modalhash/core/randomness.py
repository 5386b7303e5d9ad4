"""Random draws that depend on the seed and on the content of items, not on their positions.

A row is drawn by a keyed hash of its content, so shuffling rows, renaming modalities or adding another modality does
not change any draw.
"""

from __future__ import annotations

import numpy as np
import scipy

from modalhash.core.blocks import RemoteRows, row_slices
from modalhash.core.typing import Array, Matrix

RandomState = int | np.random.Generator | None


def root_seed(random_state: RandomState) -> int:
    """Return the 63-bit number from which every random stream of a fit is derived."""
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1, np.uint64)[0] >> np.uint64(1))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**63))
    if isinstance(random_state, int | np.integer) and not isinstance(random_state, bool):
        if random_state < 0:
            raise ValueError(f"random_state is {random_state}; expected an integer ≥ 0")
        return int(random_state)
    raise TypeError(f"random_state is {type(random_state).__name__}; expected an int, a numpy.random.Generator or None")


def row_keys(X: Matrix, seed: int) -> Array:
    """Return a 64-bit hash of every row, the same for dense and CSR, float32 and float64 input."""
    if isinstance(X, RemoteRows):
        return X.map(row_keys, shared=(seed,))
    multipliers = np.random.default_rng([seed, X.shape[1]]).integers(
        2**64, size=X.shape[1], dtype=np.uint64, endpoint=False
    ) | np.uint64(1)
    if scipy.sparse.issparse(X):
        words = scipy.sparse.csr_array((_float_bits(X.data), X.indices, X.indptr), shape=X.shape)
        keys = words @ multipliers
    else:
        keys = np.empty(X.shape[0], dtype=np.uint64)
        for rows in row_slices(X.shape[0], max(1, 2**18 // X.shape[1])):
            keys[rows] = np.einsum("ij,j->i", _float_bits(X[rows]), multipliers)  # integers have no BLAS
    return _mix(keys)


def draw(X: Matrix, count: int, seed: int) -> Array:
    """Return the indices of ``count`` rows drawn by content, in the order of the draw."""
    return draw_by_key(row_keys(X, seed), count)


def draw_by_key(keys: Array, count: int) -> Array:
    """Return the positions of the ``count`` smallest keys, in ascending order, after mixing equal ones.

    Each copy of a row counts as an item, so duplicates (e.g. untagged texts) are drawn in proportion to their number.
    """
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.concatenate([[True], keys[1:] != keys[:-1]])
    position = np.arange(len(keys))
    copy = (position - np.maximum.accumulate(np.where(first, position, 0))).astype(np.uint64)
    keys = np.where(copy > 0, _mix(keys + copy * np.uint64(0x9E3779B97F4A7C15)), keys)
    return order[np.argsort(keys, kind="stable")[:count]]


def stream(seed: int, keys: Array) -> np.random.Generator:
    # a sum does not depend on the order of the items
    return np.random.default_rng([seed, int(np.add.reduce(keys, dtype=np.uint64))])


def _float_bits(values: Array) -> Array:
    # + 0 turns −0 into 0, so that a stored zero equals an absent one
    return (values.astype(np.float32) + np.float32(0)).view(np.uint32).astype(np.uint64)


def _mix(keys: Array) -> Array:
    """Apply the finaliser of splitmix64, so that neighbouring sums become unrelated keys."""
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys ^ (keys >> np.uint64(31))
