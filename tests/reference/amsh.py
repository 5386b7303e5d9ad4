"""AMSH as the paper prints it: columns are items, every matrix has its name, nothing is clever.

Equation numbers are those of the paper. R, E and M exist as matrices, the Gram matrix is formed and
solved in every iteration, as the authors' code is organised. The similarity S is never needed as a
matrix except in `objective`, which is for small data.
"""

from __future__ import annotations

import numpy as np


def normalized_labels(L):
    """Eq. (6): columns of length 1."""
    norms = np.linalg.norm(L, axis=0)
    return L / np.where(norms > 0, norms, 1)


def kernel_features(X, anchors):
    """Eq. (24) with squared distances, as in the authors' code; X (d, n), anchors (d, k) -> (k, n), centred."""
    squared = (anchors**2).sum(axis=0)[:, None] + (X**2).sum(axis=0)[None, :] - 2 * anchors.T @ X
    phi = np.exp(-np.maximum(squared, 0) / (2 * squared.mean()))
    return phi - phi.mean(axis=1, keepdims=True)


def update_P(L, R, E, V):
    """Eq. (12), for a V that need not be feasible yet."""
    return (L + R * E) @ V.T @ np.linalg.pinv(V @ V.T)


def update_V(i, L, R, E, P, B, V, eta, lam, beta, rng):
    """Theorem III.1 for modality i; V is the list of all modalities' V, the newest of each."""
    r = V[i].shape[0]
    Lt = [normalized_labels(labels) for labels in L]
    Z = P[i].T @ (L[i] + R[i] * E[i]) + eta * B[i] + lam * r * B[i] @ Lt[i].T @ Lt[i]
    for j in range(len(V)):
        if j != i:
            Z = Z + beta * r * V[j] @ Lt[j].T @ Lt[i]
    return theorem(Z, rng)


def theorem(Z, rng):
    """max tr(Z Vᵀ) subject to V Vᵀ = nI, V1 = 0, through the eigenvectors of Z J Zᵀ (Eqs. 14, 15)."""
    r, n = Z.shape
    ZJ = Z - Z.mean(axis=1, keepdims=True)
    left, values, right = np.linalg.svd(ZJ, full_matrices=False)
    rank = int((values > 1e-6 * values[0]).sum())
    K = right[:rank].T
    if rank < r:
        others = rng.standard_normal((n, r - rank))
        basis = np.linalg.qr(np.hstack([np.ones((n, 1)), K, others]))[0]
        K = np.hstack([K, basis[:, 1 + rank :]])
    return np.sqrt(n) * left @ K.T


def update_B(L, V, eta, lam):
    """Eq. (18)."""
    r = V.shape[0]
    Lt = normalized_labels(L)
    return np.where(eta * V + lam * r * V @ Lt.T @ Lt > 0, 1.0, -1.0)


def update_E(L, R, P, V):
    """Eq. (21)."""
    H = P @ V - L
    return np.maximum(R * H, 0)


def objective(L, R, E, P, B, V, eta, lam, beta):
    """Eq. (10) with every S as a matrix, over unordered pairs of modalities."""
    r = V[0].shape[0]
    Lt = [normalized_labels(labels) for labels in L]
    total = 0.0
    for i in range(len(V)):
        total += ((L[i] + R[i] * E[i] - P[i] @ V[i]) ** 2).sum()
        total += eta * ((B[i] - V[i]) ** 2).sum()
        total += lam * ((B[i].T @ V[i] - r * Lt[i].T @ Lt[i]) ** 2).sum()
        for j in range(i):
            total += beta * ((V[j].T @ V[i] - r * Lt[j].T @ Lt[i]) ** 2).sum()
    return total


def step_1(L, V, *, eta=1.0, lam=1e-3, beta=1e-3, iterations=15, margins=True, seed=0, watch=None):
    """Algorithm 1, lines 2-7. `watch(name, value of Eq. 10)` is called after every sub-step."""
    rng = np.random.default_rng(seed)
    m = range(len(L))
    V = [v.copy() for v in V]
    B = [np.where(v > 0, 1.0, -1.0) for v in V]
    R = [np.where(labels == 1, 1.0, -1.0) for labels in L]
    E = [np.zeros_like(labels) for labels in L]
    P = [None for _ in m]
    for _ in range(iterations):
        for i in m:
            P[i] = update_P(L[i], R[i], E[i], V[i])
        for i in m:
            V[i] = update_V(i, L, R, E, P, B, V, eta, lam, beta, rng)
        for i in m:
            B[i] = update_B(L[i], V[i], eta, lam)
            if margins:
                E[i] = update_E(L[i], R[i], P[i], V[i])
        if watch is not None:
            watch(objective(L, R, E, P, B, V, eta, lam, beta))
    return B, V


def step_2(B, phi, *, ridge=0.01, iterations=15, watch=None):
    """Eqs. (26) and (27), with the ridge of the authors' code."""
    M = np.zeros_like(B)
    for _ in range(iterations):
        F = (B + B * M) @ phi.T @ np.linalg.inv(phi @ phi.T + ridge * np.eye(len(phi)))
        M = np.maximum(B * (F @ phi - B), 0)
        if watch is not None:
            watch(((B + B * M - F @ phi) ** 2).sum() + ridge * (F**2).sum())
    return F


def fit(X, L, anchors, V, **parameters):
    """Both steps for lists of modalities; returns codes and hash functions."""
    B, _ = step_1(L, V, **parameters)
    return B, [step_2(b, kernel_features(x, a)) for b, x, a in zip(B, X, anchors, strict=True)]
