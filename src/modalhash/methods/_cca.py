"""Canonical correlation analysis by regularised covariances: what CCA-ITQ is built on and FSH may start from."""

from __future__ import annotations

import numpy as np
from scipy import linalg

from modalhash._typing import Array


def canonical_directions(X: Array, Y: Array, count: int, ridge: float) -> tuple[Array, Array, Array]:
    """The leading canonical directions of centred X and Y, and their correlations.

    With Cxx = XᵀX/n + εI = LxLxᵀ (Cyy alike) and the SVD Lx⁻¹ Cxy Ly⁻ᵀ = U diag(ρ) Vᵀ, the directions
    are Lx⁻ᵀU and Ly⁻ᵀV: projections of unit variance, each correlated with its partner alone.

    Parameters
    ----------
    X, Y : (n, d) centred features, row k of both belongs together
    count : directions wanted; no more than the narrower modality has features can be found
    ridge : ε as a share of the mean variance of a feature, so that units do not matter
    """
    n = len(X)
    Lx, Ly = (_cholesky(F.T @ F / n, ridge) for F in (X, Y))
    T = linalg.solve_triangular(Lx, X.T @ Y / n, lower=True)
    T = linalg.solve_triangular(Ly, T.T, lower=True).T
    U, correlations, Vt = np.linalg.svd(T, full_matrices=False)
    U, V = U[:, :count], Vt[:count].T
    flip = np.sign(U[np.abs(U).argmax(axis=0), np.arange(U.shape[1])])  # a sign of its own for every direction
    Wx = linalg.solve_triangular(Lx, U * flip, lower=True, trans="T")
    Wy = linalg.solve_triangular(Ly, V * flip, lower=True, trans="T")
    return Wx, Wy, correlations[:count]


def _cholesky(covariance: Array, ridge: float) -> Array:
    d = len(covariance)
    covariance[np.diag_indices(d)] += ridge * np.trace(covariance) / d
    try:
        return np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        raise ValueError(f"features are linearly dependent and the ridge of CCA is {ridge:g}: take more") from None
