"""Feature maps that have been learned, which map new items; :mod:`modalhash.core.features` learns them.

They need numpy and scipy's sparse matrices alone, so that a search does not wait for scikit-learn.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import scipy

from modalhash.core.randomness import RandomState
from modalhash.core.typing import Array, Matrix

STRIP_BYTES = 2**18  # of kernel values, which fit in the L2 cache
STRIP_ROWS = 16  # anchors that are transposed at a time, a third of the time of all together
DENSE = 1 / 8  # fraction of set values above which a dense product of a CSR block is faster


class FittedMap(ABC):
    """Base of the maps; parameters and learned attributes are those of :class:`modalhash.core.features.FeatureMap`."""

    rows: str
    centred: bool
    bias: bool
    dtype: Any
    origin_: Array
    mean_: Array
    n_features_in_: int

    def map(self, X: Matrix) -> Array:
        return self._compute(X, slice(0, X.shape[0]))

    @property
    @abstractmethod
    def width(self) -> int:
        """Return the number of mapped features."""

    @abstractmethod
    def _map(self, block: Matrix, mean: Array) -> Array:
        """Return the features of prepared rows minus ``mean`` as a new array, without the bias."""

    def _compute(self, X: Matrix, rows: slice | Array) -> Array:
        out = self._map(self._prepared(X, rows), self.mean_[: self.width - self.bias])
        return np.column_stack([out, np.ones(len(out), dtype=out.dtype)]) if self.bias else out

    def _prepared(self, X: Matrix, rows: slice | Array) -> Matrix:
        """Return rows scaled as ``rows`` says; CSR stays CSR unless its rows are centred."""
        dtype = self.origin_.dtype
        whole = scipy.sparse.issparse(X) and isinstance(rows, slice) and rows == slice(0, X.shape[0])
        block = X if whole else X[rows]  # a slice of CSR is a copy
        if self.rows == "raw":
            return block.astype(dtype, copy=False)
        if scipy.sparse.issparse(block) and self.rows != "centred unit":
            block = block.astype(dtype)
            norms = np.sqrt(_squared_lengths(block))
        else:
            block = np.array(block.toarray() if scipy.sparse.issparse(block) else block, dtype=dtype)
            if self.rows == "centred unit":
                block -= self.origin_
            norms = np.sqrt(np.einsum("ij,ij->i", block, block))
        scale = (1 / np.where(norms > 0, norms, 1)).astype(dtype)  # a row of zeros stays zero
        return scipy.sparse.diags_array(scale) @ block if scipy.sparse.issparse(block) else block * scale[:, None]


class FittedLinear(FittedMap):
    """The features themselves, centred."""

    def __init__(self, *, rows: str = "raw", centred: bool = True, bias: bool = False, dtype: Any = None) -> None:
        self.rows = rows
        self.centred = centred
        self.bias = bias
        self.dtype = dtype

    @property
    def width(self) -> int:
        return self.n_features_in_ + self.bias

    def _map(self, block: Matrix, mean: Array) -> Array:
        if not scipy.sparse.issparse(block):
            return np.asarray(block - mean)
        out = block.toarray()
        out -= mean
        return np.asarray(out)


class FittedKernel(FittedMap):
    """RBF similarities to a few training items, centred."""

    anchors_: Array
    bandwidth_: float
    _terms: dict[tuple[bool, float], tuple[Array, Array]]

    def __init__(
        self,
        n_anchors: int = 1500,
        *,
        anchors: str = "random",
        squared: bool = True,
        bandwidth: float | str = "anchors",
        power: float = 1.0,
        rows: str = "raw",
        centred: bool = True,
        bias: bool = False,
        dtype: Any = None,
        random_state: RandomState = None,
    ) -> None:
        self.n_anchors = n_anchors
        self.anchors = anchors
        self.squared = squared
        self.bandwidth = bandwidth
        self.power = power
        self.rows = rows
        self.centred = centred
        self.bias = bias
        self.dtype = dtype
        self.random_state = random_state

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_terms"}  # recomputed when needed

    @property
    def width(self) -> int:
        return int(self.anchors_.shape[0]) + self.bias

    def _prepared(self, X: Matrix, rows: slice | Array) -> Matrix:
        if self.power == 1:
            return super()._prepared(X, rows)
        block = signed_roots(X[rows])
        return super()._prepared(block, slice(0, block.shape[0]))

    def _shifted(self, block: Matrix) -> Matrix:
        """Subtract the mean from raw dense rows, where differences of squares lose the fewest digits."""
        return block - self.origin_ if self.rows == "raw" and not scipy.sparse.issparse(block) else block

    def _distances(self, block: Matrix) -> Array:
        """Return ‖x − a‖², clipped at 0."""
        out, norms, squares = self._products(block)
        out -= norms
        out -= squares
        return np.negative(np.minimum(out, 0, out=out), out=out)

    def _products(self, block: Matrix, scale: float = 1.0) -> tuple[Array, Array, Array]:
        """Return 2 xᵀa, ‖x‖² and ‖a‖², each times ``scale``. CSR rows stay sparse unless they are dense in values."""
        from_csr = scipy.sparse.issparse(block)
        if from_csr:
            norms = _squared_lengths(block)
            if block.nnz > DENSE * block.shape[0] * block.shape[1]:
                block = block.toarray()
        else:
            block = self._shifted(block)
            norms = np.einsum("ij,ij->i", block, block)
        anchors, squares = self._anchor_terms(from_csr, scale)
        return block @ anchors, (norms * scale).astype(self.anchors_.dtype)[:, None], squares

    def _anchor_terms(self, for_csr: bool, scale: float) -> tuple[Array, Array]:
        """Return 2·scale·Aᵀ and scale·‖a‖², cached because computing them costs more than a single query."""
        terms = self.__dict__.setdefault("_terms", {})  # missing in a loaded map
        if (for_csr, scale) not in terms:
            A = self.anchors_ if for_csr else self._shifted(self.anchors_)
            squares = (np.einsum("ij,ij->i", A, A) * scale).astype(A.dtype)
            scaled = np.empty(A.shape[::-1], A.dtype)
            for start in range(0, len(A), STRIP_ROWS):
                rows = slice(start, start + STRIP_ROWS)
                scaled[:, rows] = (A[rows] * A.dtype.type(2 * scale)).T
            terms[for_csr, scale] = scaled, squares
        return terms[for_csr, scale]

    def _map(self, block: Matrix, mean: Array) -> Array:
        if self.squared:
            out, norms, squares = self._products(block, scale=0.5 / self.bandwidth_)
        else:
            out = self._distances(block)
        zeros = np.zeros_like(mean)  # a row, because numpy's minimum with a scalar is not vectorised
        size = max(1, STRIP_BYTES // (out.itemsize * out.shape[1]))  # of strips that stay in the cache
        for start in range(0, len(out), size):
            rows = slice(start, start + size)
            strip = out[rows]
            if self.squared:
                strip -= norms[rows]
                strip -= squares
                np.minimum(strip, zeros, out=strip)
            else:
                np.sqrt(strip, out=strip)
                strip *= out.dtype.type(-0.5 / self.bandwidth_**2)
            np.exp(strip, out=strip)
            strip -= mean
        return out


def signed_roots(X: Matrix) -> Matrix:
    """Return sign(x) √|x| of every value, as a new matrix."""
    if not scipy.sparse.issparse(X):
        return np.sign(X) * np.sqrt(np.abs(X))
    roots = X.copy()
    roots.data = signed_roots(roots.data)
    return roots


def _squared_lengths(rows: scipy.sparse.csr_array) -> Array:
    """Return ‖x‖² of CSR rows without building a matrix, which would dominate the time of a single query."""
    squares = rows.data * rows.data
    if not rows.has_canonical_format or not squares.all():
        return np.asarray(rows.multiply(rows).sum(axis=1)).ravel()
    out = np.zeros(rows.shape[0], dtype=squares.dtype)
    filled = np.flatnonzero(rows.indptr[1:] > rows.indptr[:-1])
    out[filled] = np.add.reduceat(squares, rows.indptr[filled]) if len(filled) else 0
    return out
