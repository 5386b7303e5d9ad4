"""Pairs of directions that agree most, by regularised covariances: CCA-ITQ, SCM, and a start of FSH."""

from __future__ import annotations

import numpy as np
from scipy import linalg

from modalhash._typing import Array


def canonical_directions(X: Array, Y: Array, count: int, ridge: float) -> tuple[Array, Array, Array]:
    """The leading canonical directions of centred X and Y, and their correlations.

    With Cxx = XᵀX/n + εI (Cyy alike), projections have unit variance and each is correlated with its partner alone.

    Parameters
    ----------
    X, Y : (n, d) centred features, row k of both belongs together
    count : directions wanted; no more than the narrower modality has features can be found
    ridge : ε as a share of the mean variance of a feature, so that units do not matter
    """
    n = len(X)
    Lx, Ly = (ridged_cholesky(F.T @ F / n, ridge) for F in (X, Y))
    return leading_directions(X.T @ Y / n, Lx, Ly, count)


def leading_directions(Cxy: Array, Lx: Array, Ly: Array, count: int) -> tuple[Array, Array, Array]:
    """Wx and Wy that maximise tr(Wxᵀ Cxy Wy) subject to WᵀLLᵀW = I, and the values of the pairs, descending.

    With the SVD Lx⁻¹ Cxy Ly⁻ᵀ = U diag(ρ) Vᵀ the directions are Lx⁻ᵀU and Ly⁻ᵀV.
    """
    U, values, Vt = np.linalg.svd(whitened(Cxy, Lx, Ly), full_matrices=False)
    U, V = U[:, :count], Vt[:count].T
    flip = np.sign(U[np.abs(U).argmax(axis=0), np.arange(U.shape[1])])  # a sign of its own for every direction
    Wx = linalg.solve_triangular(Lx, U * flip, lower=True, trans="T")
    Wy = linalg.solve_triangular(Ly, V * flip, lower=True, trans="T")
    return Wx, Wy, values[:count]


def whitened(Cxy: Array, Lx: Array, Ly: Array) -> Array:
    """Lx⁻¹ Cxy Ly⁻ᵀ."""
    T = linalg.solve_triangular(Lx, Cxy, lower=True)
    return np.asarray(linalg.solve_triangular(Ly, T.T, lower=True).T)


def ridged_cholesky(covariance: Array, ridge: float) -> Array:
    """L with LLᵀ = C + εI, ε the share ``ridge`` of the mean of C's diagonal; C is overwritten."""
    d = len(covariance)
    covariance[np.diag_indices(d)] += ridge * np.trace(covariance) / d
    try:
        return np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        raise ValueError(f"features are linearly dependent and the ridge of CCA is {ridge:g}: take more") from None
