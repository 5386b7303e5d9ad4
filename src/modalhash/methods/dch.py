r"""DCH: Discriminative (Discrete) Cross-modal Hashing (Xu et al., IEEE TIP 2017).

Labels are regressed on codes, as in supervised discrete hashing, and codes on the features of both modalities. Codes
stay binary throughout: discrete cyclic coordinate descent (DCC) optimises one bit of all items at a time, exactly.

======================  ==========================  ================================================
paper                   here (rows are items)       is
======================  ==========================  ================================================
:math:`Y`               ``Y`` (n, c)                labels, 0/1
:math:`B`               ``B`` (n, r)                codes of the pairs, ±1
:math:`W`               ``W`` (r, c)                classifier of the codes, ``classifier_``
:math:`P_x, P_t`        ``P[name]`` (d, r)          hash functions, ``functions_``
:math:`\phi(X)`         ``phi[name]`` (n, d)        features, centred, or RBF similarities to anchors
:math:`\lambda_G`       ``label_ridge``             ridge of W
:math:`\lambda_F`       ``ridge``                   ridge of the P
:math:`\nu, \mu`        ``feature_weight``          how far features shape the codes
======================  ==========================  ================================================

No repository of the authors was found; the equations are those of a public copy derived from their code. Departures:
that copy has DCC commented out and uses a relaxed step instead, which is not the paper's method (``b_step="relaxed"``),
and sets ν = μ = 0; here DCC is the default, with ν = μ = 1e-5 as in supervised discrete hashing, because the paper's
values are not known. The RBF map has a bandwidth fixed "for normalised data", so its rows are centred and scaled to
length 1. The copy sets a bit where the projection is ≥ 0 (here > 0). As in the copy, every B-step starts from B = 0, so
the objective falls within a sweep but need not fall from sweep to sweep.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np

from modalhash.core.features import Linear, kernel_maps
from modalhash.core.linalg import RidgeFactor, ridge_regression, sign
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, root_seed
from modalhash.core.typing import Array, Matrix, PerModality
from modalhash.core.validation import Count, NonNegative, Positive, per_modality
from modalhash.methods.base import PairCodes, PairedHasher

INITIAL = 1
"""Random stream of the initial codes."""


@dataclass(eq=False, repr=False)
class DCH(PairedHasher):
    r"""Codes from which labels can be classified, after Xu et al. (2017).

    Minimises, over B = ±1, W and the P,

    .. math::
        \lVert Y - BW\rVert^2 + \lambda_G\lVert W\rVert^2
        + \sum_{m\in\{x,t\}} \nu_m\bigl(\lVert B - \phi_m(X_m)P_m\rVert^2 + \lambda_F\lVert P_m\rVert^2\bigr)

    Parameters
    ----------
    b_step : "dcc" (the paper) or "relaxed", the sign of the ridge solution without features (the public copy)
    kernel : None (centred features), "paper" (:math:`\exp(-\lVert x - a\rVert^2/2\sigma^2)` between centred unit rows,
        and a bias), another name in :data:`modalhash.core.features.KERNELS` or "auto"; or a dict by modality
    bandwidth : σ of the kernel "paper"
    feature_weight : ν and μ; or a dict by modality. At 0, items with the same labels get the same code
    label_ridge : λ_G
    ridge : λ_F, of the hash functions, and of the relaxed B-step as in the public copy
    max_iter : sweeps; there is no test of convergence
    max_passes : most passes of DCC over the bits in one sweep; it stops once no bit changes
    n_bits, n_anchors, random_state : as for :class:`~modalhash.methods.base.CrossModalHasher`

    Attributes
    ----------
    classifier_ : W
    """

    n_bits: int = 64
    _: KW_ONLY
    b_step: Literal["dcc", "relaxed"] = "dcc"
    kernel: PerModality[str | None] = None
    n_anchors: PerModality[int] = 1000
    bandwidth: Positive = 0.4
    feature_weight: PerModality[NonNegative] = 1e-5
    label_ridge: Positive = 1.0
    ridge: Positive = 0.01
    max_iter: Count = 5
    max_passes: Count = 10
    random_state: RandomState = None

    def _fit_pairs(self, X: dict[str, Matrix], L: Array, n_bits: int, report: Reporter) -> PairCodes:
        nu, lg, lf = per_modality(self.feature_weight, X, "feature_weight"), self.label_ridge, self.ridge
        seed = root_seed(self.random_state)
        options: dict[str, Any] = {"seed": seed, "centred": False, "bias": True, "dtype": "float64"}
        options["paper"] = {"bandwidth": float(self.bandwidth) ** 2, "rows": "centred unit"}
        maps = kernel_maps(X, dict.fromkeys(X, L), kernel=self.kernel, n_anchors=self.n_anchors, **options)
        maps = {name: Linear(dtype="float64") if isinstance(found, Linear) else found for name, found in maps.items()}
        phi = {name: maps[name].fit_blocks(X[name]).whole() for name in X}
        factors = {name: RidgeFactor(values.T @ values, lf) for name, values in phi.items()}  # independent of B
        Y = L.astype(np.float64)

        B = sign(np.random.default_rng([seed, INITIAL]).standard_normal((len(Y), n_bits)))
        W = ridge_regression(B, Y, lg)
        P = {name: factors[name].solve(values.T @ B) for name, values in phi.items()}
        fitted = {name: values @ P[name] for name, values in phi.items()}
        trace = []
        for step in range(self.max_iter):
            B = self._codes(Y, W, fitted, nu)  # B-step
            W = ridge_regression(B, Y, lg)  # G-step
            P = {name: factors[name].solve(values.T @ B) for name, values in phi.items()}  # F-step
            fitted = {name: values @ P[name] for name, values in phi.items()}
            trace.append(objective(Y, B, W, P, fitted, nu, label_ridge=lg, ridge=lf))
            report("sweeps", step + 1, self.max_iter, trace[-1])
        return B, {"functions_": P, "maps_": maps, "classifier_": W, "objective_": trace}

    def _codes(self, Y: Array, W: Array, fitted: dict[str, Array], nu: dict[str, float]) -> Array:
        if self.b_step == "relaxed":
            return relaxed_codes(Y, W, self.ridge)
        Q = Y @ W.T
        for name, values in fitted.items():
            Q += nu[name] * values
        return discrete_codes(Q, W, self.max_passes)


def discrete_codes(Q: Array, W: Array, max_passes: int = 10) -> Array:
    """Run DCC: from B = 0, set b_k = sgn(q_k − B₋ₖ W₋ₖ w_kᵀ), bit by bit, until no bit changes.

    B₋ₖ W₋ₖ w_kᵀ is B times the k-th column of WWᵀ without its diagonal, which takes O(nr) per bit.
    """
    others = W @ W.T
    np.fill_diagonal(others, 0.0)
    B = np.zeros(Q.shape, order="F")  # bits are read and written column by column
    for _ in range(max_passes):
        before = B.copy(order="F")
        for k in range(Q.shape[1]):
            B[:, k] = sign(Q[:, k] - B @ others[:, k])
        if np.array_equal(B, before):  # the copy compares norms with a tolerance of 1e-6
            break
    return B


def relaxed_codes(Y: Array, W: Array, ridge: float) -> Array:
    """Return the sign of (WWᵀ + λ_F I)⁻¹ W Yᵀ, transposed; it depends on labels only."""
    return sign(Y @ RidgeFactor(W @ W.T, ridge).solve(W).T)


def objective(
    Y: Array,
    B: Array,
    W: Array,
    P: dict[str, Array],
    fitted: dict[str, Array],
    nu: dict[str, float],
    *,
    label_ridge: float,
    ridge: float,
) -> float:
    """Return the objective; ``fitted`` is φP by modality."""
    value = np.sum((Y - B @ W) ** 2) + label_ridge * np.sum(W**2)
    for name, weight in nu.items():
        value += weight * (np.sum((B - fitted[name]) ** 2) + ridge * np.sum(P[name] ** 2))
    return float(value)
