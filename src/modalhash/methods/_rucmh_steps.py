"""RUCMH's state and updates: the equations of this re-implementation, one function each.

Notation in :mod:`modalhash.methods.rucmh`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from modalhash._typing import Array
from modalhash.blocks import FeatureBlocks, row_slices
from modalhash.linalg import RidgeFactor, balanced_procrustes, orthogonal_procrustes, sign, squared
from modalhash.methods._factors import cross


@dataclass(frozen=True)
class Weights:
    """The trade-offs of the objective."""

    features: float  # a
    quantization: float  # b
    reconstruction: float  # g
    pairing: float  # h
    ridge: float


@dataclass
class View:
    """State of one modality."""

    phi: FeatureBlocks
    V: Array
    rng: np.random.Generator
    anchors: Array  # rows of V that others are reconstructed from
    scale: float  # of the features
    square: float  # ‖X‖²
    pairs: Array  # rows in a pair; entry k of every modality is pair k
    B: Array = field(init=False)
    W: Array = field(init=False)
    omega: Array = field(init=False)

    def __post_init__(self) -> None:
        self.B = sign(self.V)
        self.omega = np.full(len(self.V), 0.5 / np.sqrt(self.V.shape[1]))

    def blocks(self) -> Iterator[tuple[slice, Array]]:
        """X, block by block."""
        for rows, block in self.phi:
            yield rows, block * self.scale


def align(views: list[View]) -> None:
    """V is free up to a rotation: the one that brings pairs together, or the sign that makes the skewness ≥ 0."""
    first = views[0]
    for view in views:
        if len(view.pairs) == 0:
            view.V *= np.where(np.sum(view.V**3, axis=0) < 0, -1.0, 1.0)
        elif view is not first:
            view.V = view.V @ orthogonal_procrustes(view.V[view.pairs].T @ first.V[first.pairs])
        view.B = sign(view.V)


def update_W(view: View, w: Weights) -> None:
    """W = (XᵀΩX + ridge I)⁻¹ XᵀΩB, then Ω = 1 / (2‖b − xW‖)."""
    d, r = view.phi.width, view.B.shape[1]
    gram, right = np.zeros((d, d)), np.zeros((d, r))
    for rows, X in view.blocks():
        weighted = X * view.omega[rows, None]
        gram += weighted.T @ X
        right += weighted.T @ view.B[rows]
    view.W = RidgeFactor(gram, w.ridge).solve(right)
    view.omega = 1 / (2 * residuals(view) + 1e-8)


def residuals(view: View) -> Array:
    """‖b − xW‖ of every item."""
    length: Array = np.linalg.norm(view.B - view.phi.project(view.W * view.scale), axis=1)
    return length


def update_V(view: View, others: list[View], w: Weights, neighbors: int) -> float:
    """The balanced V nearest to all that it is drawn to; returns the terms of the objective with V but without B.

    As VᵀV = nI, every term but that of the pairs is linear in V; so is that of the pairs where all are paired.
    """
    n = len(view.V)
    D = cross(view.phi, view.V).T * (view.scale / n)
    rebuilt = view.phi.project(np.ascontiguousarray(D.T) * view.scale)  # XDᵀ
    means = [nearest_mean(view.V, other.V[other.anchors], neighbors) for other in others]
    Z = w.features * rebuilt + w.quantization * view.B
    for other, mean in zip(others, means, strict=True):
        Z += w.reconstruction * mean
        Z[view.pairs] += w.pairing * other.V[other.pairs]
    view.V = balanced_procrustes(Z, view.rng)
    value = w.features * (view.square - 2 * float(np.vdot(rebuilt, view.V)) + n * squared(D))
    for other, mean in zip(others, means, strict=True):
        value += w.reconstruction * squared(view.V - mean)
        apart = view.V[view.pairs] - other.V[other.pairs]
        value += 0.5 * w.pairing * squared(apart)  # the other half comes with the other modality
    return value


def nearest_mean(V: Array, anchors: Array, neighbors: int) -> Array:
    """C A: the mean of the nearest anchors of every row; a sparse C, so that it says something."""
    k = min(neighbors, len(anchors))
    half = 0.5 * np.einsum("ij,ij->i", anchors, anchors)
    out = np.empty_like(V)
    for rows in row_slices(len(V), max(1, 2**22 // len(anchors))):
        nearest = np.argpartition(half - V[rows] @ anchors.T, k - 1, axis=1)[:, :k]
        out[rows] = anchors[nearest].mean(axis=1)
    return out


def update_B(view: View, w: Weights) -> float:
    """B = sgn(bV + ΩXW); returns the terms of the objective with B."""
    projected = view.phi.project(view.W * view.scale)
    view.B = sign(w.quantization * view.V + view.omega[:, None] * projected)
    loss = float(np.linalg.norm(view.B - projected, axis=1).sum())
    return loss + w.quantization * squared(view.B - view.V)
