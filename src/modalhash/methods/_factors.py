"""Rows and residuals of the collective factorisations (CMFH, SMFH), with one latent V (n, r) for both modalities.

Residuals are computed from Gram matrices, without a matrix of the size of X. Centred sparse features stay sparse, which
on bags of words is a hundred times less work per sweep. If there are fewer items than features, the features are
rotated into the space that the items span.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self, TypeAlias

import numpy as np
from scipy import sparse

from modalhash.core.blocks import FeatureBlocks, row_slices
from modalhash.core.features import Linear
from modalhash.core.typing import Array, Matrix

SPARSE_BELOW = 0.1
"""Fraction of nonzero values above which CSR features are faster as dense blocks."""
CACHE = 2**30
"""Bytes of dense features held in memory during a fit, per modality."""
BLOCK_VALUES = 2**22


class SparseRows:
    """Sparse features minus a row (their mean, or 0), with the interface of :class:`FeatureBlocks`."""

    def __init__(self, X: Matrix, mean: Array, block_rows: int | None = None) -> None:
        self.n, self.width = X.shape
        self._X, self._mean = X, mean
        self._block_rows = block_rows or max(1, BLOCK_VALUES // self.width)

    def __iter__(self) -> Iterator[tuple[slice, Array]]:
        for rows in row_slices(self.n, self._block_rows):
            yield rows, self._X[rows].toarray() - self._mean

    def gram(self) -> Array:
        """Return (X − 1mᵀ)ᵀ(X − 1mᵀ)."""
        G: Array = (self._X.T @ self._X).toarray()
        half = np.outer(self._mean, self._X.sum(axis=0) - 0.5 * self.n * self._mean)
        return G - half - half.T

    def project(self, W: Array) -> Array:
        """Return (X − 1mᵀ) W."""
        return np.asarray(self._X @ W - self._mean @ W)

    def cross(self, V: Array) -> Array:
        """Return (X − 1mᵀ)ᵀ V."""
        return np.asarray(self._X.T @ V - np.outer(self._mean, V.sum(axis=0)))

    def take(self, rows: Array) -> Array:
        """Return rows, dense, in the given order."""
        return np.asarray(self._X[rows].toarray() - self._mean)


Rows: TypeAlias = FeatureBlocks | SparseRows


def fit_rows(feature_map: Linear, X: Matrix, *, block_rows: int | None = None) -> Rows:
    """Fit the map and return the mapped rows in float64."""
    if not sparse.issparse(X) or X.nnz > SPARSE_BELOW * X.shape[0] * X.shape[1]:
        return feature_map.fit_blocks(X, memory_limit=CACHE, block_rows=block_rows)
    feature_map.fit_blocks(X, memory_limit=1, block_rows=block_rows)
    X = X.astype(np.float64)
    if feature_map.rows == "unit":
        norms = np.sqrt(X.multiply(X).sum(axis=1))
        X = sparse.csr_array(sparse.diags_array(1 / np.where(norms > 0, norms, 1)) @ X)
    return SparseRows(X, feature_map.mean_, block_rows)


@dataclass(frozen=True)
class OwnSpace:
    """Rows Z of X = ZQᵀ, with Q (d, k) orthonormal and k the rank, if there are fewer items than features.

    Both factorisations use only XᵀV and XP, so U = U_zQᵀ and P = QP_z are the same with all their norms, and Gram
    matrices are no larger than the number of items. Otherwise, Z is X.
    """

    rows: Rows
    basis: Array | None = None  # Q

    @classmethod
    def of(cls, X: Rows, *, block_rows: int | None = None) -> Self:
        if X.n >= X.width:
            return cls(X)
        dense = np.vstack([block for _, block in X])
        squares, E = np.linalg.eigh(dense @ dense.T)
        kept = squares > len(squares) * np.finfo(np.float64).eps * squares[-1]
        if not kept.any():  # all rows are equal
            return cls(X)
        lengths, E = np.sqrt(squares[kept]), E[:, kept]
        basis = dense.T @ E
        basis /= lengths
        blocks = FeatureBlocks(
            E * lengths,
            lambda rows, part: rows[part],
            width=len(lengths),
            dtype=np.dtype(np.float64),
            memory_limit=CACHE,
            block_rows=block_rows,
        )
        return cls(blocks, basis)

    def enter(self, P: Array) -> Array:
        """Return P_z = QᵀP."""
        return P if self.basis is None else self.basis.T @ P

    def leave(self, P: Array) -> Array:
        """Return P = QP_z."""
        return P if self.basis is None else self.basis @ P


def cross(X: Rows, V: Array) -> Array:
    """Return XᵀV (d, r)."""
    if isinstance(X, SparseRows):
        return X.cross(V)
    total = np.zeros((X.width, V.shape[1]))
    for rows, block in X:
        total += block.T @ V[rows]
    return total


def factor_residual(G: Array, XtV: Array, VtV: Array, U: Array) -> float:
    """Return ‖X − V U‖² for U (r, d), from G = XᵀX, XᵀV and VᵀV."""
    return max(0.0, float(np.trace(G) - 2 * np.vdot(XtV, U.T) + np.vdot(VtV, U @ U.T)))


def projection_residual(G: Array, XtV: Array, VtV: Array, P: Array) -> float:
    """Return ‖V − X P‖² for P (d, r), from G = XᵀX, XᵀV and VᵀV."""
    return max(0.0, float(np.trace(VtV) - 2 * np.vdot(XtV, P) + np.vdot(P, G @ P)))


def square(A: Array) -> float:
    """Return ‖A‖²."""
    return float(np.vdot(A, A))
