r"""SMFH-L: non-negative collective factorisation with a label graph (Liu, Ji, Wu & Hua, IJCAI 2016).

=========================  =====================  ====================================================
authors' code              here                   is
=========================  =====================  ====================================================
:math:`X_t`                ``X[t]`` (n, d)        features ≥ 0, rows of length 1, not centred
:math:`\hat S`             ``L`` (n, c)           labels, rows of length 1; similarity is ŜŜᵀ
:math:`V`                  ``V`` (n, r)           latent rows ≥ 0, columns of length 1
:math:`U_t`                ``U[t]`` (d, r)        factors ≥ 0, X ≈ V Uᵀ
:math:`P_t^T`              ``P[t]`` (d, r)        projections, V ≈ X P
:math:`\lambda, 1-\lambda` ``w.balance``          weights of the two factorisations
:math:`\mu`                ``w.coupling``         weight of ‖V − X P‖²
:math:`\alpha`             ``w.graph``            weight of tr(Vᵀ(D − ŜŜᵀ)V), on a sample of rows
:math:`\gamma`             ``w.ridge``            of P
:math:`\gamma_1`           ``w.orthogonality``    weight of ‖VᵀV − I‖²
:math:`\eta`               ``w.smoothness``       weight of the label graph over X P
:math:`N_s, \rho`          ``sample``, ``scale``  rows drawn in every sweep; ρ = N_s^(−0.1)
=========================  =====================  ====================================================

Kept as released: only U of the first modality takes up the scale of V; V may turn negative where X P does;
the sweep before the one that stops is returned. Features below 0 make it diverge and never get here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from modalhash._typing import Array
from modalhash.linalg import RidgeFactor
from modalhash.methods._factors import Rows, cross, factor_residual, projection_residual

FIRST_STOP = 6
"""The stop rules are not looked at before this sweep."""
SMALL_GRAPH = 100.0
"""The authors stop when ‖Vₛᵀ(D − ŜŜᵀ)Vₛ‖ is below this."""
TINY = 1e-10


@dataclass(frozen=True)
class LiuWeights:
    """The trade-offs of the objective."""

    balance: tuple[float, float]  # λ, 1 − λ
    coupling: float  # μ
    graph: float  # α
    ridge: float  # γ
    orthogonality: float  # γ1
    smoothness: float  # η


@dataclass
class LiuState:
    """The unknowns, and what of the data the updates need."""

    X: list[Rows]
    L: Array
    V: Array
    U: list[Array]
    P: list[Array]
    w: LiuWeights
    grams: list[Array] = field(init=False)
    XtV: list[Array] = field(init=False)

    def __post_init__(self) -> None:
        self.grams = [X.gram() for X in self.X]
        self.XtV = [cross(X, self.V) for X in self.X]
        normalise(self)


def learn_liu(
    state: LiuState,
    n_samples: int,
    rng: np.random.Generator,
    *,
    max_iter: int,
    tol: float,
    report: Callable[[int, float], None],
) -> tuple[Array, list[Array], list[float]]:
    """V and P of the sweep before a stop rule fires, and the objective's trace up to there."""
    trace: list[float] = []
    best = state.V, state.P
    for sweep in range(1, max_iter + 1):
        sample = np.sort(rng.choice(len(state.V), n_samples, replace=False))
        update_V(state, sample)  # step 1
        update_U_liu(state)  # step 2
        normalise(state)  # step 3
        update_P_liu(state, sample)  # step 4
        value, graph = watched(state, sample)
        if tol and sweep >= FIRST_STOP and (trace[-1] - value < tol or graph < SMALL_GRAPH):
            break
        best = state.V, state.P
        trace.append(value)
        report(sweep, value)
    return *best, trace


def update_V(state: LiuState, sample: Array) -> None:
    """V ← V ∘ numerator / denominator, the label graph acting on the sampled rows."""
    V, w = state.V, state.w
    numerator = 4 * w.orthogonality * V
    inner = 4 * w.orthogonality * (V.T @ V) + 2 * w.coupling * np.eye(V.shape[1])
    for X, U, P, weight in zip(state.X, state.U, state.P, w.balance, strict=True):
        numerator += X.project(weight * U + w.coupling * P)
        inner += weight * (U.T @ U)
    denominator = V @ inner
    L, scale = state.L[sample], w.graph * len(sample) ** -0.1
    numerator[sample] += scale * (L @ (L.T @ V[sample]))
    denominator[sample] += scale * degrees(L)[:, None] * V[sample]
    state.V = V * (numerator / np.maximum(denominator, TINY))


def update_U_liu(state: LiuState) -> None:
    """U_t ← U_t ∘ (X_tᵀV) / (U_tVᵀV)."""
    VtV = state.V.T @ state.V
    state.XtV = [cross(X, state.V) for X in state.X]
    state.U = [U * (XtV / np.maximum(U @ VtV, TINY)) for U, XtV in zip(state.U, state.XtV, strict=True)]


def normalise(state: LiuState) -> None:
    """Columns of V to length 1; the first U takes up their lengths, the second does not (as released)."""
    lengths = np.maximum(np.linalg.norm(state.V, axis=0), 1e-15)
    state.V = state.V / lengths
    state.XtV = [XtV / lengths for XtV in state.XtV]
    state.U = [state.U[0] * lengths, *state.U[1:]]


def update_P_liu(state: LiuState, sample: Array) -> None:
    """P_t = (X_tᵀX_t + ηρ X_sᵀL̂X_s + γI)⁻¹ X_tᵀV with L̂ = I − D^{-1/2}ŜŜᵀD^{-1/2}."""
    L, scale = state.L[sample], state.w.smoothness * len(sample) ** -0.1
    half = L / np.sqrt(degrees(L))[:, None]
    P = []
    for X, G, XtV in zip(state.X, state.grams, state.XtV, strict=True):
        rows = X.take(sample)
        low_rank = half.T @ rows
        P.append(RidgeFactor(G + scale * (rows.T @ rows - low_rank.T @ low_rank), state.w.ridge).solve(XtV))
    state.P = P


def watched(state: LiuState, sample: Array) -> tuple[float, float]:
    """The objective in unsquared norms that the authors watch, and its graph term alone."""
    w, L, V = state.w, state.L[sample], state.V[sample]
    LtV = L.T @ V
    graph = float(np.linalg.norm(V.T @ (degrees(L)[:, None] * V) - LtV.T @ LtV))
    value, VtV = w.graph * graph, state.V.T @ state.V
    for G, XtV, U, P, weight in zip(state.grams, state.XtV, state.U, state.P, w.balance, strict=True):
        value += weight * np.sqrt(factor_residual(G, XtV, VtV, U.T))
        value += w.coupling * np.sqrt(projection_residual(G, XtV, VtV, P)) + w.ridge * float(np.linalg.norm(P))
    return float(value), graph


def degrees(L: Array) -> Array:
    """Row sums of ŜŜᵀ."""
    total: Array = L @ L.sum(axis=0)
    return total
