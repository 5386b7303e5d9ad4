r"""SMFH-T: collective factorisation with a graph of features and labels (Tang, Wang & Shao, TIP 2016).

=======================  =====================  ====================================================
paper (columns)          here (rows are items)  is
=======================  =====================  ====================================================
:math:`X_t`              ``X[t]`` (n, d)        features, centred with the training mean
:math:`S`                ``S`` (n, r)           latent rows; their signs are the codes
:math:`U_t`              ``U[t]`` (r, d)        factors, X ≈ S U
:math:`P_t`              ``P[t]`` (d, r)        projections, S ≈ X P
:math:`\mathcal L`       ``graph``              Laplacian, see :mod:`._smfh_graph`
:math:`\alpha, 1-\alpha` ``w.balance``          weights of the two factorisations
:math:`\beta`            ``w.coupling``         weight of ‖S − X P‖²
:math:`\gamma`           ``w.graph``            weight of tr(Sᵀ𝓛S)
:math:`\lambda`          ``w.ridge``
=======================  =====================  ====================================================

Every update is the exact minimiser of the objective in its block, so the objective never rises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from modalhash._typing import Array
from modalhash.linalg import RidgeFactor
from modalhash.methods._factors import Rows, cross, factor_residual, projection_residual, square
from modalhash.methods._smfh_graph import Graph


@dataclass(frozen=True)
class TangWeights:
    """The trade-offs of the objective."""

    balance: tuple[float, float]  # α, 1 − α
    coupling: float  # β
    graph: float  # γ
    ridge: float  # λ


@dataclass
class TangState:
    """The unknowns, and what of the data the updates need."""

    X: list[Rows]
    graph: Graph
    S: Array
    P: list[Array]
    w: TangWeights
    U: list[Array] = field(init=False)
    XtS: list[Array] = field(init=False)
    grams: list[Array] = field(init=False)
    ridges: list[RidgeFactor] = field(init=False)  # (XᵀX + (λ/β)I)⁻¹: constant, factored once

    def __post_init__(self) -> None:
        self.grams = [X.gram() for X in self.X]
        self.ridges = [RidgeFactor(G, self.w.ridge / self.w.coupling) for G in self.grams]
        self.XtS = [cross(X, self.S) for X in self.X]


def learn_tang(state: TangState, *, max_iter: int, tol: float, report: Callable[[int, float], None]) -> list[float]:
    """Sweep until the objective falls by less than ``tol``; its trace."""
    trace: list[float] = []
    for sweep in range(1, max_iter + 1):
        update_U_tang(state)  # step 1
        update_S(state)  # step 2
        update_P_tang(state)  # step 3
        trace.append(objective(state))
        report(sweep, trace[-1])
        if tol and sweep > 1 and trace[-2] - trace[-1] < tol:
            break
    return trace


def update_U_tang(state: TangState) -> None:
    """U_t = (SᵀS + (λ/α_t)I)⁻¹ SᵀX_t."""
    StS = state.S.T @ state.S
    state.U = [
        RidgeFactor(StS, state.w.ridge / alpha).solve(XtS.T)
        for XtS, alpha in zip(state.XtS, state.w.balance, strict=True)
    ]


def update_S(state: TangState) -> None:
    """S A + γ𝓛S = C with A = Σ α_tU_tU_tᵀ + (2β + λ)I and C = Σ X_t(α_tU_tᵀ + βP_t)."""
    w = state.w
    A = (2 * w.coupling + w.ridge) * np.eye(state.S.shape[1])
    C = np.zeros_like(state.S)
    for X, U, P, alpha in zip(state.X, state.U, state.P, w.balance, strict=True):
        A += alpha * U @ U.T
        C += X.project(alpha * U.T + w.coupling * P)
    state.S = state.graph.sylvester(A, C, w.graph, state.S)
    state.XtS = [cross(X, state.S) for X in state.X]


def update_P_tang(state: TangState) -> None:
    """P_t = (X_tᵀX_t + (λ/β)I)⁻¹ X_tᵀS."""
    state.P = [ridge.solve(XtS) for ridge, XtS in zip(state.ridges, state.XtS, strict=True)]


def objective(state: TangState) -> float:
    """Σ α_t‖X_t − SU_t‖² + β‖S − X_tP_t‖² + λ(‖U_t‖² + ‖P_t‖²), + γ tr(Sᵀ𝓛S) + λ‖S‖²."""
    w, S = state.w, state.S
    StS = S.T @ S
    value = w.graph * float(np.vdot(S, state.graph.laplacian(S))) + w.ridge * float(np.trace(StS))
    for G, XtS, U, P, alpha in zip(state.grams, state.XtS, state.U, state.P, w.balance, strict=True):
        value += alpha * factor_residual(G, XtS, StS, U) + w.coupling * projection_residual(G, XtS, StS, P)
        value += w.ridge * (square(U) + square(P))
    return value
