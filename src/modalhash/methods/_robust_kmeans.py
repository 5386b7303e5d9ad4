r"""Robust k-means over several views of the same items (Cai, Nie and Huang, IJCAI 2013): the groups of FCMH.

Minimises, over groups, centres f of each view and weights a of the views,

.. math:: \sum_v a_v^{\gamma} \sum_i \lVert x_i^v - f_{g(i)}^v\rVert,\qquad \gamma = \tfrac12

by re-weighting: with w = a^γ / 2‖x − f‖ of the round before, centres are weighted means and an item goes where its
weighted squared distances, summed over the views, are least. Distances are not squared in the objective, so that items
far from everything do not draw the centres.

As in the authors' code, a view weighs the more the larger its residuals are, a ∝ (Σ‖x − f‖ / 2)². Where this departs
from it: an empty group is dropped (theirs divides 0 by 0), and the rounds end by the relative fall of the objective
alone (theirs: or by the absolute one, which depends on the units).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import sparse

from modalhash._typing import Array

TOLERANCE = 1e-3
MAX_ROUNDS = 100
LEAST = 1e-6
"""Of a view's weight, and of a residual relative to the size of the features: an item may be its group's centre."""


def robust_kmeans(views: Sequence[Array], n_groups: int, rng: np.random.Generator) -> Array:
    """The group of every item, 0, 1, …; fewer than ``n_groups`` where some became empty."""
    n = len(views[0])
    groups = np.resize(rng.permutation(n_groups), n)
    weights = [np.full(n, np.sqrt(1 / len(views))) for _ in views]
    squares = [np.einsum("ij,ij->i", X, X)[:, None] for X in views]
    scale = [float(np.sqrt(norms.mean())) for norms in squares]
    before = np.inf
    for _ in range(MAX_ROUNDS):
        distances = [
            np.maximum(norms - 2 * (X @ F.T) + np.einsum("ij,ij->i", F, F), 0)
            for X, norms, F in zip(views, squares, centres(views, groups, weights), strict=True)
        ]
        groups = np.sum([w[:, None] * d for w, d in zip(weights, distances, strict=True)], axis=0).argmin(axis=1)
        residuals = [np.sqrt(d[np.arange(n), groups]) for d in distances]
        sizes = np.array([residual.sum() for residual in residuals])
        shares = (sizes / 2) ** 2 / max(float(((sizes / 2) ** 2).sum()), np.finfo(float).tiny)
        objective = float(np.sqrt(shares) @ sizes)
        groups = np.unique(groups, return_inverse=True)[1]
        if before - objective <= TOLERANCE * objective:
            break
        before = objective
        weights = [
            max(np.sqrt(a), LEAST) / (2 * np.maximum(e, LEAST * size))
            for a, e, size in zip(shares, residuals, scale, strict=True)
        ]
    return groups


def centres(views: Sequence[Array], groups: Array, weights: Sequence[Array]) -> list[Array]:
    """The weighted means of the groups, for each view."""
    n = len(groups)
    found = []
    for X, w in zip(views, weights, strict=True):
        members = sparse.csr_array((w, (groups, np.arange(n))))
        found.append((members @ X) / members.sum(axis=1)[:, None])
    return found
