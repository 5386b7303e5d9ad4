"""Linear algebra that several methods share.

Rows are items; ``w`` weights the rows (the weight of a label pattern is its number of items), None for 1 each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from modalhash.core.typing import Array, Matrix


@dataclass(frozen=True, eq=False)
class PrincipalComponents:
    """A mean and orthonormal axes, by descending variance, fitted on training items.

    The axes are eigenvectors of the covariance matrix, which is computed without making a sparse matrix dense. The
    largest entry of each axis is positive, which fixes the signs.

    Examples
    --------
    >>> found = PrincipalComponents.fit(np.array([[0.0, 0.0], [2.0, 0.1], [4.0, 0.0]]), 1)
    >>> found.transform(np.array([[3.0, 0.0]])).round(3)
    array([[1.]], dtype=float32)
    """

    mean: Array
    axes: Array  # ``(features, components)``

    @classmethod
    def fit(cls, X: Matrix, n_components: int, where: str = "features") -> PrincipalComponents:
        """Fit to the rows of ``X``; ``where`` is the prefix of error messages."""
        n, width = X.shape
        if not 1 <= n_components <= min(n - 1, width):
            raise ValueError(
                f"{where}: {n_components} principal components of {n} training items with {width} features; "
                f"expected at most {max(0, min(n - 1, width))}"
            )
        values = X.astype(np.float64)
        gram = values.T @ values
        mean: Array = np.asarray(values.mean(axis=0)).ravel()
        covariance = (gram.toarray() if scipy.sparse.issparse(gram) else gram) / n - np.outer(mean, mean)
        _, axes = scipy.linalg.eigh(covariance, subset_by_index=[width - n_components, width - 1])
        axes = axes[:, ::-1]
        largest = np.abs(axes).argmax(axis=0)
        axes = axes * np.sign(axes[largest, np.arange(n_components)])
        return cls(mean, axes)

    def transform(self, X: Matrix) -> Array:
        components: Array = X @ self.axes - self.mean @ self.axes
        return components.astype(np.float32)


class CentredFeatures:
    """F = X − 1mᵀ for dense or CSR X, in float64, without making a CSR matrix dense.

    For CSR only products are computed: F W = XW − 1(mᵀW), FᵀT = XᵀT − m(1ᵀT) and FᵀF. A bag of words with 1 % of its
    values set stays that much smaller and faster.
    """

    def __init__(self, X: Matrix, mean: Array) -> None:
        self.n, self.width = X.shape
        self._mean = mean.astype(np.float64)
        if scipy.sparse.issparse(X):
            self._X = X.astype(np.float64)
        else:
            self._X = np.subtract(X, self._mean, dtype=np.float64)
            self._mean = np.zeros(self.width)

    def times(self, W: Array) -> Array:
        return np.asarray(self._X @ W - self._mean @ W)

    def transposed_times(self, T: Array) -> Array:
        return np.asarray(self._X.T @ T - np.multiply.outer(self._mean, T.sum(axis=0)))

    def cross(self, other: CentredFeatures) -> Array:
        """Return FᵀH for features H of the same items; with itself, the Gram matrix FᵀF."""
        product = self._X.T @ other._X
        product = product.toarray() if scipy.sparse.issparse(product) else np.asarray(product)
        product -= np.outer(self._mean, other._X.sum(axis=0))
        product -= np.outer(self._X.sum(axis=0) - self.n * self._mean, other._mean)
        return np.asarray(product)


def canonical_directions(X: Array, Y: Array, count: int, ridge: float) -> tuple[Array, Array, Array]:
    """Return the leading canonical directions of centred X and Y, and their correlations.

    With Cxx = XᵀX/n + εI (and Cyy in the same way), projections have unit variance and each is correlated only with
    its partner.

    Parameters
    ----------
    X, Y : (n, d) centred features of pairs
    count : number of directions, at most the features of the narrower modality
    ridge : ε as a fraction of the mean variance of a feature
    """
    n = len(X)
    Lx, Ly = (ridged_cholesky(F.T @ F / n, ridge) for F in (X, Y))
    return leading_directions(X.T @ Y / n, Lx, Ly, count)


def leading_directions(Cxy: Array, Lx: Array, Ly: Array, count: int) -> tuple[Array, Array, Array]:
    """Return Wx and Wy that maximise tr(Wxᵀ Cxy Wy) subject to WᵀLLᵀW = I, and the values of the pairs, descending.

    With the SVD Lx⁻¹ Cxy Ly⁻ᵀ = U diag(ρ) Vᵀ the directions are Lx⁻ᵀU and Ly⁻ᵀV.
    """
    U, values, Vt = np.linalg.svd(whitened(Cxy, Lx, Ly), full_matrices=False)
    U, V = U[:, :count], Vt[:count].T
    flip = np.sign(U[np.abs(U).argmax(axis=0), np.arange(U.shape[1])])  # make the sign of each direction unique
    Wx = scipy.linalg.solve_triangular(Lx, U * flip, lower=True, trans="T")
    Wy = scipy.linalg.solve_triangular(Ly, V * flip, lower=True, trans="T")
    return Wx, Wy, values[:count]


def whitened(Cxy: Array, Lx: Array, Ly: Array) -> Array:
    T = scipy.linalg.solve_triangular(Lx, Cxy, lower=True)
    return np.asarray(scipy.linalg.solve_triangular(Ly, T.T, lower=True).T)


def ridged_cholesky(covariance: Array, ridge: float) -> Array:
    """Return L with LLᵀ = C + εI, where ε is ``ridge`` times the mean of C's diagonal; C is overwritten."""
    d = len(covariance)
    covariance[np.diag_indices(d)] += ridge * np.trace(covariance) / d
    try:
        return np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        raise ValueError(f"features are linearly dependent and the ridge of CCA is {ridge:g}: increase it") from None


RANK_TOLERANCE = 1e-12
"""Singular or eigenvalues below this fraction of the total are rounding noise."""
DRIFT = 1e-9
"""Mean of a balanced column, in standard deviations, above which it is subtracted."""
PROXIMAL = 1e-9
"""Weight of ``near`` relative to ‖M‖: far below the data, far above rounding."""


def sign(X: Array) -> Array:
    """Return ±1, never 0: sgn(x) = 1 where x > 0 and −1 elsewhere, as the paper defines it."""
    signs = np.multiply(X > 0, 2.0)  # six times faster than np.where
    signs -= 1
    return np.asarray(signs)


def squared(X: Array) -> float:
    return float(np.vdot(X, X))


def unit_rows(L: Array) -> Array:
    L = np.asarray(L, dtype=np.float64)
    norms = np.sqrt(np.einsum("ij,ij->i", L, L))
    return L / np.where(norms > 0, norms, 1.0)[:, None]


def similarity_times(Gx: Array, Gy: Array, M: Array) -> Array:
    """Return S M for S = 2GxGyᵀ − 11ᵀ, the similarity by label rows of length 1, which is never formed."""
    product = Gx @ (2 * (Gy.T @ M))
    product -= M.sum(axis=0)
    return np.asarray(product)


def squared_similarity(Gx: Array, Gy: Array) -> float:
    """Return ‖S‖²."""
    overlap = float(np.vdot(Gx.T @ Gx, Gy.T @ Gy))
    total = float(Gx.sum(axis=0) @ Gy.sum(axis=0))
    return 4 * overlap - 4 * total + len(Gx) * len(Gy)


def balanced_procrustes(Z: Array, rng: np.random.Generator, w: Array | None = None) -> Array:
    """Return V that maximises tr(Zᵀ W V) subject to Vᵀ W V = n I and wᵀ V = 0, with n = Σ w.

    The paper's Theorem III.1 (rows are items here): from the eigenvectors N of Zᵀ J Z, K = J Z N ∇^{-1/2} and
    V = √n [K, K̄] [N, N̄]ᵀ. The authors' code violates the constraints by up to 3 % in two places, which differ here:
    the rank test is relative (theirs: eigenvalue > 1e-4), and K̄ is orthogonal to K and to the mean (theirs: only
    orthonormal in itself).
    """
    n = float(len(Z) if w is None else w.sum())
    root = np.ones(len(Z)) if w is None else np.sqrt(w)
    mean = (Z.sum(axis=0) if w is None else w @ Z) / n
    Y = Z - mean
    if w is not None:
        Y *= root[:, None]  # W^{1/2} J Z
    K, right = procrustes_factors(Y, Y.T @ Y, root, mean, rng)
    V = K @ right
    if np.abs(drift := root @ V / n).max() > DRIFT:
        V -= root[:, None] * drift
    if w is not None:
        V /= root[:, None]
    return np.asarray(V)


def procrustes_factors(Y: Array, gram: Array, s: Array, mean: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return K and R with K R = s∘V, for V of :func:`balanced_procrustes`; s are the square roots of the weights.

    Y = s∘(Z − mean), and gram = YᵀY. Eigenvalues of a Gram matrix are accurate down to 1e-8 of the largest, so smaller
    ones are computed from what remains of Y without the vectors found, level by level. This uses only products and is
    four times faster than QR and SVD of a tall Y. If one level suffices, K is Y itself. sᵀKR is 0 up to rounding errors
    that grow with the mean; the caller subtracts what exceeds ``DRIFT``.
    """
    rows, r = Y.shape
    if rows <= r:
        raise ValueError(f"balanced_procrustes: {rows} rows cannot carry {r} uncorrelated, balanced bits")
    n = float(s @ s)
    values, U = np.linalg.eigh(gram)
    tolerance = RANK_TOLERANCE**2 * float(values.sum() + n * (mean @ mean))
    K, R, N = [s[:, None] / np.sqrt(n)], [], np.eye(r)  # K[0] is the direction that all others are orthogonal to
    while small := int((values <= max(1e-8 * values[-1], tolerance)).sum()):
        if small == len(values):  # K̄ and N̄ of the theorem
            K.append(_completion(np.hstack(K), small, rng))
            R.append(np.sqrt(n) * N.T)
            break
        K.append(Y @ (U[:, small:] / np.sqrt(values[small:])))
        R.append(np.sqrt(n) * (N @ U[:, small:]).T)
        Y, N = Y @ U[:, :small], N @ U[:, :small]
        for _ in range(2):  # once is not enough in floating point
            for known in K:
                Y -= known @ (known.T @ Y)
        values, U = np.linalg.eigh(Y.T @ Y)
    else:  # Y U ∇^{-1/2} Uᵀ
        K.append(Y)
        R.append((U * np.sqrt(n / values)) @ (N @ U).T)
    return (K[1], R[0]) if len(K) == 2 else (np.hstack(K[1:]), np.vstack(R))


def _completion(K: Array, columns: int, rng: np.random.Generator) -> Array:
    """Return random orthonormal columns, orthogonal to those of K."""
    A = rng.standard_normal((K.shape[0], columns))
    for _ in range(2):  # once is not enough in floating point
        A -= K @ (K.T @ A)
        A = np.linalg.qr(A)[0]
    return A


def principal_directions(X: Array, r: int) -> Array:
    """Return the top r eigenvectors of the covariance of X, or fewer if X has fewer; signs made unique."""
    X = X - X.mean(axis=0)
    n, d = X.shape
    if n < d:  # the eigenvectors of the small Gram matrix give those of the large one
        values, U = _top(X @ X.T, r)
        large = values > RANK_TOLERANCE * max(values[0], np.finfo(float).tiny)
        W = X.T @ (U[:, large] / np.sqrt(values[large]))
    else:
        values, U = _top(X.T @ X, r)
        W = U[:, values > RANK_TOLERANCE * max(values[0], np.finfo(float).tiny)]
    largest = np.abs(W).argmax(axis=0)
    W *= np.sign(W[largest, np.arange(W.shape[1])])
    return W


def _top(G: Array, r: int) -> tuple[Array, Array]:
    """Return the r largest eigenvalues of a symmetric matrix (or all) and their vectors."""
    n = len(G)
    values, U = scipy.linalg.eigh(G, subset_by_index=[max(0, n - r), n - 1], check_finite=False)
    return values[::-1], U[:, ::-1]


class RidgeFactor:
    """(G + ρI)⁻¹ for a constant Gram matrix, factored once and applied in every iteration."""

    def __init__(self, gram: Array, ridge: float) -> None:
        gram = np.array(gram, dtype=np.float64)
        gram[np.diag_indices_from(gram)] += ridge
        # G of float32 blocks has rounding noise; increase the ridge until it is positive definite
        jitter = np.finfo(np.float32).eps * float(np.trace(gram)) / len(gram)
        for _ in range(12):
            try:
                self._factor = scipy.linalg.cho_factor(gram, lower=True, check_finite=False)
                return
            except scipy.linalg.LinAlgError:
                gram[np.diag_indices_from(gram)] += jitter
                jitter *= 4
        raise ValueError("the features are linearly dependent and the ridge is 0: pass a ridge > 0")

    def inverse(self) -> Array:
        """Return the inverse itself, for loops whose next step corrects its rounding errors.

        numpy and scipy each have their own BLAS; calling scipy's once per iteration leaves its threads spinning, and
        numpy's products then take twice as long.
        """
        lower, info = scipy.linalg.lapack.dpotri(self._factor[0], lower=True)  # a third of the work of solving for I
        if info:
            raise ValueError("the features are linearly dependent and the ridge is 0: pass a ridge > 0")
        inverse = np.tril(lower, -1)
        inverse += inverse.T
        inverse[np.diag_indices_from(inverse)] = lower.diagonal()
        return inverse

    def solve(self, right: Array) -> Array:
        """Return (G + ρI)⁻¹ right, in float64 and C order, the layout that a saved model has when loaded."""
        return np.ascontiguousarray(scipy.linalg.cho_solve(self._factor, right, check_finite=False))


def ridge_regression(X: Array, T: Array, ridge: float) -> Array:
    return RidgeFactor(X.T @ X, ridge).solve(X.T @ T)


def orthogonal_procrustes(M: Array, near: Array | None = None) -> Array:
    """Return the orthogonal matrix R that maximises tr(Rᵀ M): UWᵀ of the SVD M = UΣWᵀ.

    If M is rank-deficient, R is not unique and the SVD's choice is rounding noise that differs between machines.
    ``near`` selects the best R that is nearest to it.
    """
    if near is not None:
        M = M + PROXIMAL * float(np.linalg.norm(M)) * near
    U, _, Wt = np.linalg.svd(M, full_matrices=False)
    return U @ Wt


def has_converged(trace: Sequence[float], tol: float) -> bool:
    """Return whether the last iteration lowered the objective by at most the fraction ``tol``; False if it is 0."""
    return tol > 0 and len(trace) > 1 and trace[-2] - trace[-1] <= tol * abs(trace[-2])
