"""Features from which a mean is subtracted without making a CSR matrix dense: for methods that are linear in them."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from modalhash._typing import Array, Matrix


class CentredFeatures:
    """F = X − 1mᵀ for dense or CSR X, in float64.

    Of a CSR matrix only products are ever taken, F W = XW − 1(mᵀW), FᵀT = XᵀT − m(1ᵀT) and FᵀF: a bag of words, of
    which one value in a hundred is set, stays that much smaller and faster.
    """

    def __init__(self, X: Matrix, mean: Array) -> None:
        self.n, self.width = X.shape
        self._mean = mean.astype(np.float64)
        if sparse.issparse(X):
            self._X = X.astype(np.float64)
        else:
            self._X = np.subtract(X, self._mean, dtype=np.float64)
            self._mean = np.zeros(self.width)

    def times(self, W: Array) -> Array:
        """F W."""
        return np.asarray(self._X @ W - self._mean @ W)

    def transposed_times(self, T: Array) -> Array:
        """FᵀT."""
        return np.asarray(self._X.T @ T - np.multiply.outer(self._mean, T.sum(axis=0)))

    def cross(self, other: CentredFeatures) -> Array:
        """FᵀH for the features H of as many items; with itself, the Gram matrix FᵀF."""
        product = self._X.T @ other._X
        product = product.toarray() if sparse.issparse(product) else np.asarray(product)
        product -= np.outer(self._mean, other._X.sum(axis=0))
        product -= np.outer(self._X.sum(axis=0) - self.n * self._mean, other._mean)
        return np.asarray(product)
