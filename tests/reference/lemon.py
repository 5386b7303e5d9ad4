"""LEMON, slow and obvious, in plain numpy and float64: all earlier codes kept, S as a matrix, inverses written out."""

from __future__ import annotations

import numpy as np


def similarity(L, L2):
    """S = 2 G Gᵀ − 1 1ᵀ of two sets of label rows."""
    G, G2 = (rows / np.sqrt((rows**2).sum(axis=1, keepdims=True)) for rows in (L, L2))
    return 2 * G @ G2.T - 1


def objective(chunk, old, P, R, alpha, beta, gamma):
    """Eq. (8); ``chunk`` and ``old`` are L, B and V of the new chunk and of all earlier ones."""
    (L, B, V), (oL, oB, oV), r = chunk, old, R.shape[0]
    value = np.sum((B - V @ R) ** 2) + np.sum((oB - oV @ R) ** 2)
    value += alpha * np.sum((V @ oB.T - r * similarity(L, oL)) ** 2)
    value += alpha * np.sum((oV @ B.T - r * similarity(oL, L)) ** 2)
    value += alpha * np.sum((V @ B.T - r * similarity(L, L)) ** 2)
    return value + beta * (np.sum((L - V @ P) ** 2) + np.sum((oL - oV @ P) ** 2) + gamma * np.sum(P**2))


def step_1(chunk, old, gamma):
    (L, _, V), (oL, _, oV) = chunk, old
    r = V.shape[1]
    return np.linalg.inv(V.T @ V + oV.T @ oV + gamma * np.eye(r)) @ (V.T @ L + oV.T @ oL)


def step_2(chunk, old, P, R, alpha, beta):
    """V = √n times the polar factor of the centred Z, by a thin SVD; Z must have full rank."""
    (L, B, _), (oL, oB, _) = chunk, old
    n, r = B.shape
    Z = B @ R.T + beta * L @ P.T + alpha * r * (similarity(L, oL) @ oB + similarity(L, L) @ B)
    U, _, Wt = np.linalg.svd(Z - Z.mean(axis=0), full_matrices=False)
    return np.sqrt(n) * U @ Wt


def step_3(chunk, old):
    (_, B, V), (_, oB, oV) = chunk, old
    A, _, Ct = np.linalg.svd(oB.T @ oV + B.T @ V)
    return Ct.T @ A.T


def step_4(chunk, old, R, alpha):
    (L, B, V), (oL, _, oV) = chunk, old
    r = B.shape[1]
    return np.where(alpha * r * (similarity(L, oL) @ oV + similarity(L, L) @ V) + V @ R > 0, 1.0, -1.0)


def ridge(X, B, xi):
    """W and the intercept of the regression of all rows at once: features and codes are centred."""
    F, T = X - X.mean(axis=0), B - B.mean(axis=0)
    W = np.linalg.inv(F.T @ F + xi * np.eye(X.shape[1])) @ F.T @ T
    return W, B.mean(axis=0) - X.mean(axis=0) @ W
