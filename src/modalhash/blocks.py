"""Row blocks: how work over many items keeps its memory small.

:class:`FeatureBlocks` walks the features of a modality block by block. A block is kept while the
memory limit allows and computed anew on every walk when it does not; the result is the same.
Blocks are worked on side by side, one thread each: what is done to a block element by element then uses
all cores as well, and no core waits for another inside a product. The result does not depend on the
number of threads: every block is one thread's, and sums are taken in the order of the blocks.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

from modalhash._typing import Array, Matrix

S = TypeVar("S")
T = TypeVar("T")

BLOCK_BYTES = 8 * 2**20
LEAST_BYTES = 2**20
"""A block is never smaller, however small the limit: rows one by one would take for ever."""
PRODUCT_ROWS = 512
DEFLATED = 4
"""Directions that a Gram matrix in float32 takes apart, see :meth:`FeatureBlocks.gram`."""


def row_slices(n: int, size: int) -> Iterator[slice]:
    """Consecutive slices of at most ``size`` rows that cover ``range(n)``."""
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


def blas_threads() -> int:
    """Threads that BLAS may use: OPENBLAS_NUM_THREADS or the like, or what a surrounding limit leaves.

    The fewest of all that are loaded: limits of an OpenMP one, such as FAISS brings, do not reach other threads.
    """
    return min((library["num_threads"] for library in _controller().select(user_api="blas").info()), default=1)


class _Team(threading.local):
    """The threads that the current thread may give work to."""

    pool: ThreadPoolExecutor | None = None
    size: int = 1


_team = _Team()


@contextmanager
def workers() -> Iterator[None]:
    """Give the threads of BLAS to :func:`side_by_side` for a while; BLAS itself has one then.

    Its own threads spin for a while after every product. Beside ours they took a third of the time.
    """
    threads = blas_threads()
    if threads == 1 or _team.pool is not None:
        yield
        return
    with _controller().limit(limits=1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
        _team.pool, _team.size = pool, threads
        try:
            yield
        finally:
            _team.pool, _team.size = None, 1


def side_by_side(function: Callable[[S], T], arguments: Sequence[S]) -> Iterator[T]:
    """The function's values in order, several at a time: as many threads as BLAS has, each with a BLAS of one."""
    if len(arguments) == 1:
        yield function(arguments[0])
        return
    with workers():
        if _team.pool is None:
            yield from map(function, arguments)
            return
        waiting: deque[Future[T]] = deque()
        for argument in arguments:
            waiting.append(_team.pool.submit(function, argument))
            if len(waiting) > 2 * _team.size:  # values that nobody has taken yet take memory
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def product(A: Array, B: Array) -> Array:
    """A B, some rows of A beside others."""
    out = np.empty((len(A), B.shape[1]), dtype=np.result_type(A, B))
    for _ in side_by_side(lambda rows: np.matmul(A[rows], B, out=out[rows]), list(row_slices(len(A), PRODUCT_ROWS))):
        pass
    return out


class FeatureBlocks:
    """The rows of ``compute(X)``, block by block.

    Parameters
    ----------
    X : (n, d) array or CSR
    compute : function of ``(X, rows)`` that returns the features of these rows as a new array
    width : number of features
    dtype : of the features
    memory_limit : bytes that cached blocks and those at hand may take together; None for no limit
    block_rows : rows per block; by default what makes a block 8 MiB, or a sixteenth of the limit, and at least 1 MiB
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
            target = BLOCK_BYTES if memory_limit is None else min(BLOCK_BYTES, memory_limit // 16)
            block_rows = max(1, max(target, LEAST_BYTES) // row_bytes)
            block_rows = -(-self.n // -(-self.n // block_rows))  # as many blocks, but alike
        self._slices = list(row_slices(self.n, block_rows))
        block_bytes = block_rows * row_bytes
        at_hand = min(max(blas_threads(), _team.size), len(self._slices))
        self._room = (
            len(self._slices)
            if memory_limit is None or self.n * row_bytes <= memory_limit
            else max(0, memory_limit // block_bytes - at_hand)
        )
        self._X, self._compute = X, compute
        self._cache: dict[int, Array] = {}

    def __iter__(self) -> Iterator[tuple[slice, Array]]:
        for i, rows in enumerate(self._slices):
            yield rows, self._block(i)

    def _block(self, i: int) -> Array:
        block = self._cache.get(i)
        if block is None:
            block = self._compute(self._X, self._slices[i])
            if i < self._room:
                self._cache[i] = block
        return block

    def map(self, function: Callable[[slice, Array], T]) -> Iterator[T]:
        """``function(rows, block)`` of every block, in order, several blocks at a time."""
        yield from side_by_side(lambda i: function(self._slices[i], self._block(i)), range(len(self._slices)))

    @property
    def cached(self) -> float:
        """Share of the blocks that are kept."""
        return min(self._room, len(self._slices)) / len(self._slices)

    def whole(self) -> Array:
        """All rows as one array, for methods that keep them."""
        blocks = list(self.map(lambda rows, block: block))
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)

    def mean(self) -> Array:
        """Column means, in float64."""
        sums = self.map(lambda rows, block: np.add.reduce(block, axis=0, dtype=np.float64))
        return np.asarray(sum(sums, start=np.zeros(self.width)) / self.n)

    def subtract(self, row: Array) -> None:
        """Take a row from the blocks kept so far; ``compute`` has to do it for all others."""
        for block in self._cache.values():
            block -= row

    def gram(self) -> Array:
        """Σ φᵀφ in float64; each block's product is one SYRK in the blocks' own precision.

        In float32 the few directions in which the features vary most are taken apart first: Φ = Ψ + AQᵀ,
        ΦᵀΦ = ΨᵀΨ + QAᵀΨ + ΨᵀAQᵀ + QAᵀAQᵀ. Else the rounding of one large eigenvalue can exceed the small
        ones and a ridge: with many equal rows, texts of few words say, it did so by a factor of a hundred.
        """
        total = np.zeros((self.width, self.width))
        if self.dtype != np.float32:
            for product in self.map(lambda rows, block: block.T @ block):
                total += product
            return total
        Q = self._leading()
        mixed, square = np.zeros((self.width, Q.shape[1])), np.zeros((Q.shape[1], Q.shape[1]))

        def products(rows: slice, block: Array) -> tuple[Array, Array, Array]:
            A = block @ Q
            rest = A @ -Q.T
            rest += block
            wide = A.astype(np.float64)
            return rest.T @ rest, rest.T @ A, wide.T @ wide

        for own, cross, outer in self.map(products):
            total += own
            mixed += cross
            square += outer
        side = (mixed + Q @ (square / 2)) @ Q.T.astype(np.float64)
        total += side
        total += side.T
        return total

    def _leading(self) -> Array:
        """About the leading eigenvectors of ΦᵀΦ, from the first rows; any orthonormal columns would be right."""
        rows = self._block(0)[:1024]
        Q = np.eye(self.width, min(DEFLATED, self.width))
        Q += 1 / self.width  # so that no start is orthogonal to what all features share
        for _ in range(8):
            Q = np.linalg.qr(rows.T @ (rows @ Q.astype(self.dtype)))[0]
        return np.asarray(Q, dtype=self.dtype)

    def take(self, rows: Array) -> Array:
        """The features of a few rows, in the order given."""
        return self._compute(self._X, rows)

    def project(self, W: Array) -> Array:
        """Φ W, row by row."""
        out = np.empty((self.n, W.shape[1]), dtype=self.dtype)
        W = W.astype(self.dtype)
        for _ in self.map(lambda rows, block: np.matmul(block, W, out=out[rows])):
            pass
        return out
