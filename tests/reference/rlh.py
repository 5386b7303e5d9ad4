"""RLH, slow and obvious, in plain numpy and float64: explicit folds, explicit loops over pairs."""

from __future__ import annotations

import numpy as np


def unit(L):
    """Label rows of length 1; a row without labels stays zero."""
    out = np.zeros(L.shape)
    for i, row in enumerate(np.asarray(L, dtype=float)):
        if row.any():
            out[i] = row / np.sqrt((row**2).sum())
    return out


def posteriors(phi, L, fold, ridge):
    """For every fold: forget its items, regress the labels of the others on their features, predict its items."""
    T, out = unit(L), np.zeros(L.shape)
    for f in np.unique(fold):
        others, own = fold != f, fold == f
        P = phi[others]
        W = np.linalg.solve(P.T @ P + ridge * np.eye(P.shape[1]), P.T @ T[others])
        out[own] = phi[own] @ W
    return out


def probability(u, v, gain, offset):
    return 1 / (1 + np.exp(-(gain * sum(a * b for a, b in zip(u, v, strict=True)) / len(u) + offset)))


def pair_loss(U, L, V, L2, gain, offset, graded=0.0):
    """Mean of −log P(R) over all pairs of smooth codes U with labels L and smooth codes V with labels L2."""
    values = []
    for u, labels in zip(U, L, strict=True):
        for v, other in zip(V, L2, strict=True):
            R = 0.0
            if (labels & other).any():
                R = 1 - graded + graded * (labels & other).sum() / (labels | other).sum()
            p = probability(u, v, gain, offset)
            values.append(-R * np.log(p) - (1 - R) * np.log(1 - p))
    return np.mean(values)


def loss(A, b, alpha, kinds, graded=0.0):
    """Weighted sum over the kinds of the mean, over all their pairs, of −log P(R).

    ``kinds``: (first vectors, first labels, second vectors, second labels, gain, offset, weight) each.
    """
    total = 0.0
    for S, L, S2, L2, gain, offset, weight in kinds:
        U, V = (np.tanh(alpha * (vectors @ A + b)) for vectors in (S, S2))
        total += weight * pair_loss(U, L, V, L2, gain, offset, graded)
    return total


def slope(function, x, step=1e-6):
    """Central differences, one number at a time."""
    x = np.array(x, dtype=float)
    out = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i] += step
        down[i] -= step
        out[i] = (function(up) - function(down)) / (2 * step)
    return out


def adam(slopes, rate):
    """Where Adam gets from 0, given the slope of every step."""
    x, first, second = 0.0, 0.0, 0.0
    for t, g in enumerate(slopes, 1):
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
        x = x - rate * (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)
    return x
