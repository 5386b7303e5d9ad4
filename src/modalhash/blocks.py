"""Row blocks: how work over many items keeps its memory small.

:class:`FeatureBlocks` walks the features of a modality block by block. A block is kept while the
memory limit allows and computed anew on every walk when it does not; the result is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from modalhash._typing import Array, Matrix

BLOCK_BYTES = 32 * 2**20
LEAST_BYTES = 2**20
"""A block is never smaller, however small the limit: rows one by one would take for ever."""


def row_slices(n: int, size: int) -> Iterator[slice]:
    """Consecutive slices of at most ``size`` rows that cover ``range(n)``."""
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


class FeatureBlocks:
    """The rows of ``compute(X)``, block by block.

    Parameters
    ----------
    X : (n, d) array or CSR
    compute : function of ``(X, rows)`` that returns the features of these rows as a new array
    width : number of features
    dtype : of the features
    memory_limit : bytes that cached blocks and the block at hand may take together; None for no limit
    block_rows : rows per block; by default what makes a block 32 MiB, or an eighth of the limit, and at least 1 MiB
    """

    def __init__(
        self,
        X: Matrix,
        compute: Callable[[Matrix, slice | Array], Array],
        *,
        width: int,
        dtype: np.dtype[np.generic],
        memory_limit: int | None = None,
        block_rows: int | None = None,
    ) -> None:
        self.n, self.width, self.dtype = X.shape[0], width, dtype
        row_bytes = width * np.dtype(dtype).itemsize
        if block_rows is None:
            target = BLOCK_BYTES if memory_limit is None else min(BLOCK_BYTES, memory_limit // 8)
            block_rows = max(1, max(target, LEAST_BYTES) // row_bytes)
        self._slices = list(row_slices(self.n, block_rows))
        block_bytes = block_rows * row_bytes
        self._room = (
            len(self._slices)
            if memory_limit is None or self.n * row_bytes <= memory_limit
            else max(0, (memory_limit - block_bytes) // block_bytes)  # one block is always at hand
        )
        self._X, self._compute = X, compute
        self._cache: dict[int, Array] = {}

    def __iter__(self) -> Iterator[tuple[slice, Array]]:
        for i, rows in enumerate(self._slices):
            block = self._cache.get(i)
            if block is None:
                block = self._compute(self._X, rows)
                if i < self._room:
                    self._cache[i] = block
            yield rows, block

    @property
    def cached(self) -> float:
        """Share of the blocks that are kept."""
        return min(self._room, len(self._slices)) / len(self._slices)

    def whole(self) -> Array:
        """All rows as one array, for methods that keep them."""
        blocks = [block for _, block in self]
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)

    def mean(self) -> Array:
        """Column means, in float64."""
        total = np.zeros(self.width)
        for _, block in self:
            total += np.add.reduce(block, axis=0, dtype=np.float64)
        return total / self.n

    def subtract(self, row: Array) -> None:
        """Take a row from the blocks kept so far; ``compute`` has to do it for all others."""
        for block in self._cache.values():
            block -= row

    def gram(self) -> Array:
        """Σ φᵀφ in float64; each block's product is one SYRK in the blocks' own precision."""
        total = np.zeros((self.width, self.width))
        for _, block in self:
            total += block.T @ block
        return total

    def take(self, rows: Array) -> Array:
        """The features of a few rows, in the order given."""
        return self._compute(self._X, rows)

    def project(self, W: Array) -> Array:
        """Φ W, row by row."""
        out = np.empty((self.n, W.shape[1]), dtype=self.dtype)
        W = W.astype(self.dtype)
        for rows, block in self:
            np.matmul(block, W, out=out[rows])
        return out
