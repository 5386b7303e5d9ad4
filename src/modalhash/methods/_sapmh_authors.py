"""SAPMH as the authors' code has it, slips included: for comparison, not for use.

Where it leaves the zero-gradient form is said at the line. On Wiki the codes never leave their random start:
what labels and features say in the B-step is 1e-9 to 7e-8, against multipliers of .01 to 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from modalhash._typing import Array
from modalhash.linalg import RidgeFactor, sign, squared
from modalhash.methods._apmh import SMALLEST, PartialLayout, PartialState, PartialView, update_H, update_mu
from modalhash.methods._factors import cross
from modalhash.methods._sapmh_codes import SAPMHWeights, Similarity

B_PENALTY, Z_PENALTY = 0.01, 0.1
"""e of the multiplier method: one value in the step of B, another in those of Z and G."""

NO_RIDGE = 1e-12
"""The code inverts without any. A proximal share of 1e-6 alone lifts hashed codes on Wiki from .12 to .16 and more."""


@dataclass
class Multipliers:
    """The splitting of B: a copy Z, random at the start, and multipliers G = B − Z."""

    Z: Array
    G: Array


def authors_step(
    layout: PartialLayout, state: PartialState, S: Similarity, w: SAPMHWeights, split: Multipliers
) -> float:
    """One round; returns the value that the code watches."""
    r, B, views = state.B.shape[1], state.B, list(layout.views.values())
    right = w.theta * B
    for rows, _ in layout.blocks:
        right[rows] += w.rho * S.within(rows, B)  # no similarity between blocks, no factor r
    gram = w.theta * np.eye(r) + w.rho * (B.T @ B)
    state.H = update_H(layout, state.H, right @ state.W.T, state.W @ gram @ state.W.T)
    for view in views:
        authors_U(view, state.H, layout.n_pairs, views[0].mu)
    state.W = authors_W(state.H, B, S, w, views[-1].mu)
    Y = state.H @ state.W
    A = Y.T @ Y
    data = 2 * w.theta * Y + 2 * w.rho * r * S.times(Y)  # the only line with the factor r
    state.B = B = sign(data - w.rho * (split.Z @ A) + B_PENALTY * split.Z - split.G)
    split.Z = sign(-w.rho * (B @ A) + Z_PENALTY * B + split.G)
    split.G = split.G + Z_PENALTY * (B - split.Z)
    semantic = S.square - 2 * float(np.vdot(S.times(B), Y)) + float(np.vdot(B.T @ B, A))  # S without r
    watched = w.theta * squared(B - Y) + w.rho * semantic
    for view in views:
        watched += view.mu * view.residual**2 + view.ridge * squared(view.U)
        update_mu(view)
    return watched


def authors_U(view: PartialView, H: Array, n_pairs: int, first_mu: float) -> None:
    """As ``update_U``, but items without a pair weigh as much as in the first modality."""
    faced = H[view.rows]
    weighted = faced * np.where(view.rows < n_pairs, view.mu, first_mu)[:, None]
    view.U = RidgeFactor(faced.T @ weighted, view.ridge).solve(cross(view.phi, weighted).T)
    gram, HtPhi = faced.T @ faced, cross(view.phi, faced).T
    left = view.square - 2 * float(np.vdot(HtPhi, view.U)) + float(np.vdot(gram, view.U @ view.U.T))
    view.residual = float(np.sqrt(max(left, SMALLEST * view.square)))


def authors_W(H: Array, B: Array, S: Similarity, w: SAPMHWeights, last_mu: float) -> Array:
    """W with μ of the last modality where ρ belongs, which makes HW tiny, and no factor r; HᵀH has no ridge."""
    right = w.theta * B + w.rho * S.times(B)
    gram = w.theta * np.eye(B.shape[1]) + last_mu * (B.T @ B)
    return RidgeFactor(H.T @ H, 0.0).solve(RidgeFactor(gram, 0.0).solve(right.T @ H).T)
