r"""SAPMH's codes: the updates derived by zero gradient, none of which raises the objective.

S = 2LLᵀ − o11ᵀ over all items never exists as a matrix: SM = 2L(LᵀM) − o1(1ᵀM).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from modalhash._typing import Array
from modalhash.linalg import RidgeFactor, sign, squared
from modalhash.methods._apmh import PROXIMAL, PartialLayout, PartialState, update_H, update_mu, update_U

CYCLES = 3
"""Rounds over the bits in each B-step."""


@dataclass(frozen=True)
class SAPMHWeights:
    """The trade-offs of the objective."""

    theta: float  # ‖B − HW‖²
    rho: float  # ‖rS − B(HW)ᵀ‖²
    ridge: float = 0.0  # ‖H‖²; that of ‖U‖² is with the views


class Similarity:
    """S = 2LLᵀ − offset · 11ᵀ."""

    def __init__(self, L: Array, offset: float | None = None) -> None:
        n, counts = len(L), L.sum(axis=0)
        self.L = L
        mean = 2 * float(counts @ counts) / n**2
        self.offset = mean if offset is None else offset  # None: S sums to 0
        gram = L.T @ L
        self.square = 4 * squared(gram) + n**2 * (self.offset**2 - 2 * self.offset * mean)  # ‖S‖²

    def times(self, M: Array) -> Array:
        """S M."""
        product: Array = 2 * (self.L @ (self.L.T @ M)) - self.offset * M.sum(axis=0)
        return product

    def within(self, rows: slice, M: Array) -> Array:
        """(S restricted to a block of rows and columns) M."""
        product: Array = 2 * (self.L[rows] @ (self.L[rows].T @ M[rows])) - self.offset * M[rows].sum(axis=0)
        return product


def balanced_step(layout: PartialLayout, state: PartialState, S: Similarity, w: SAPMHWeights) -> float:
    """One round of exact (or proximal) minimisers; returns the objective, which has not risen."""
    r = state.B.shape[1]
    right, gram = code_target(state.B, S, w)
    state.H = update_H(layout, state.H, right @ state.W.T, state.W @ gram @ state.W.T, w.ridge)  # step 1
    for view in layout.views.values():
        update_U(view, state.H)  # step 2
        update_mu(view)  # step 5
    state.W = update_W(state.H, right, gram, state.W)  # step 3
    Y = state.H @ state.W
    state.B = update_B(state.B, Y, S, w)  # step 4
    A = Y.T @ Y
    quantization = squared(state.B - Y)
    semantic = r**2 * S.square - 2 * r * float(np.vdot(S.times(state.B), Y)) + float(np.vdot(state.B.T @ state.B, A))
    features = sum(view.residual + view.ridge * squared(view.U) for view in layout.views.values())
    return features + w.theta * quantization + w.rho * semantic + w.ridge * squared(state.H)


def code_target(B: Array, S: Similarity, w: SAPMHWeights) -> tuple[Array, Array]:
    """θB + ρrSB and θI + ρBᵀB: the objective is quadratic in Y = HW with these."""
    r = B.shape[1]
    return w.theta * B + w.rho * r * S.times(B), w.theta * np.eye(r) + w.rho * (B.T @ B)


def update_W(H: Array, right: Array, gram: Array, W: Array | None = None) -> Array:
    """W = (HᵀH)⁻¹ Hᵀ right gram⁻¹, proximal to the W before."""
    HtH = H.T @ H
    step = PROXIMAL * float(np.trace(HtH)) / len(HtH)
    goal = RidgeFactor(gram, 0.0).solve(right.T @ H).T
    return RidgeFactor(HtH, step).solve(goal if W is None else goal + step * W)


def update_B(B: Array, Y: Array, S: Similarity, w: SAPMHWeights) -> Array:
    """Minimises ρ tr(BABᵀ) − 2 tr Bᵀ(θY + ρrSY) with A = YᵀY, one bit after the other, each exactly.

    The authors split B from a copy of it with multipliers; bit by bit there is no penalty weight, which
    would have to be on the scale of ρA.
    """
    D, A = w.theta * Y + w.rho * B.shape[1] * S.times(Y), w.rho * (Y.T @ Y)
    B = B.copy()
    for _ in range(CYCLES):
        for bit in range(B.shape[1]):
            others = B @ A[:, bit] - B[:, bit] * A[bit, bit]
            B[:, bit] = sign(D[:, bit] - others)
    return B
