"""Principal components of a feature matrix, fitted on the training items of a split."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import linalg, sparse

from modalhash._typing import Array, Matrix


@dataclass(frozen=True, eq=False)
class PrincipalComponents:
    """A mean and orthonormal axes, by descending variance.

    The axes are eigenvectors of the covariance matrix, which a sparse matrix yields without becoming dense. Their
    signs are fixed by making the largest entry of each axis positive.

    Examples
    --------
    >>> found = PrincipalComponents.fit(np.array([[0.0, 0.0], [2.0, 0.1], [4.0, 0.0]]), 1)
    >>> found.transform(np.array([[3.0, 0.0]])).round(3)
    array([[1.]], dtype=float32)
    """

    mean: Array
    axes: Array
    """``(features, components)``."""

    @classmethod
    def fit(cls, X: Matrix, n_components: int, where: str = "features") -> PrincipalComponents:
        """Fit to the rows of ``X``; ``where`` is named in errors."""
        n, width = X.shape
        if not 1 <= n_components <= min(n - 1, width):
            raise ValueError(
                f"{where}: {n_components} principal components of {n} training items with {width} features; "
                f"expected at most {max(0, min(n - 1, width))}"
            )
        values = X.astype(np.float64)
        gram = values.T @ values
        mean: Array = np.asarray(values.mean(axis=0)).ravel()
        covariance = (gram.toarray() if sparse.issparse(gram) else gram) / n - np.outer(mean, mean)
        _, axes = linalg.eigh(covariance, subset_by_index=[width - n_components, width - 1])
        axes = axes[:, ::-1]
        largest = np.abs(axes).argmax(axis=0)
        axes = axes * np.sign(axes[largest, np.arange(n_components)])
        return cls(mean, axes)

    def transform(self, X: Matrix) -> Array:
        """Return the components of rows, as float32."""
        components: Array = X @ self.axes - self.mean @ self.axes
        return components.astype(np.float32)
