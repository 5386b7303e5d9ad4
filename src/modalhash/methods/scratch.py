r"""SCRATCH: Scalable disCRete mATrix faCtorization Hashing (Li et al., ACM MM 2018; Chen et al., TCSVT 2020).

Labels and kernel features of both modalities are factorised over one latent representation of the pairs, which hash
functions predict from features and an orthogonal rotation maps to binary codes. No similarities between items are
computed, so a sweep costs O(n).

======================  ==========================  ================================================
paper (transposed)      here (rows are items)       is
======================  ==========================  ================================================
:math:`X, Y`            ``phi[name]`` (n, m)        RBF similarities to anchors, centred
:math:`L`               ``L`` (n, c)                labels, 0/1
:math:`V`               ``V`` (n, r)                latent representation of the pairs
:math:`U_x, U_y, G`     ``U[name]`` (r, m), ``G`` (r, c)  bases of features and of labels
:math:`W_x, W_y`        ``W[name]`` (m, r)          from features to V
:math:`R`               ``R`` (r, r)                rotation, B ≈ V Rᵀ
:math:`B`               ``B`` (n, r)                codes of the pairs, ±1
:math:`\lambda_x, \lambda_y`  ``reconstruction``    weight of the features
:math:`\alpha`          ``label_weight``            weight of the labels
:math:`\mu`             ``regression``              weight of the hash functions
:math:`\gamma`          ``ridge``                   of all but B and R
======================  ==========================  ================================================

``variant="one-step"`` is the released code (SCRATCH-o). ``"two-step"`` (SCRATCH-t) is reconstructed from the abstract
of the 2020 paper: the same factorisation without W, then ridge regression of the codes on the features. Departures from
the authors' code: the objective includes the γ terms that the updates minimise, so it falls in every sweep (theirs
omits them). Where the best R is not unique, the one nearest to the previous R is taken (see :func:`rotation`). A bit is
1 where the projection is > 0 (theirs: ≥ 0).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import numpy as np

from modalhash.core.features import pair_features
from modalhash.core.linalg import RidgeFactor, orthogonal_procrustes, sign, squared
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, root_seed
from modalhash.core.typing import Array, Matrix, PerModality
from modalhash.core.validation import Count, NonNegative, Positive, per_modality
from modalhash.methods.base import PairCodes, PairedHasher

INITIAL = 1
"""Random stream of the initial V and R."""


@dataclass(eq=False, repr=False)
class SCRATCH(PairedHasher):
    r"""Codes by discrete matrix factorisation, after Li et al. (2018).

    Minimises, over B = ±1, R with RᵀR = I, V, U, G and W (rows are items; the second line is the paper's
    regularisation),

    .. math::
        &\sum_m \bigl(\lambda_m\lVert X_m - VU_m\rVert^2 + \mu\lVert V - X_mW_m\rVert^2\bigr)
        + \alpha\lVert L - VG\rVert^2 + \lVert B - VR^T\rVert^2 \\
        &+ \gamma\Bigl(\lVert V\rVert^2 + \lVert G\rVert^2 + \sum_m\lVert U_m\rVert^2 + \lVert W_m\rVert^2\Bigr)

    The two-step variant drops the terms with W here and minimises
    :math:`\mu\lVert B - X_mW_m\rVert^2 + \gamma\lVert W_m\rVert^2` afterwards.

    Parameters
    ----------
    variant : "one-step" (SCRATCH-o, the released code) or "two-step" (SCRATCH-t, a reconstruction)
    reconstruction : λ; or a dict by modality (the authors' λ_y is 1 − λ_x)
    label_weight : α
    regression : μ; ridge / regression is the ridge of the hash functions
    ridge : γ
    max_iter : sweeps; there is no test of convergence
    n_bits, kernel, n_anchors, random_state : as for :class:`~modalhash.methods.base.CrossModalHasher`

    Attributes
    ----------
    objective_ : the objective after every sweep; in the two-step variant without the terms of W
    functions_ : hash functions (m, r), the rotation included, by modality
    """

    n_bits: int = 64
    _: KW_ONLY
    variant: Literal["one-step", "two-step"] = "one-step"
    reconstruction: PerModality[NonNegative] = 0.5
    label_weight: NonNegative = 500.0
    regression: Positive = 1000.0
    ridge: Positive = 5.0
    kernel: PerModality[str | None] = "rbf"
    n_anchors: PerModality[int] = 500
    max_iter: Count = 20
    random_state: RandomState = None

    def _fit_pairs(self, X: dict[str, Matrix], L: Array, n_bits: int, report: Reporter) -> PairCodes:
        features = per_modality(self.reconstruction, X, "reconstruction")
        weights = SCRATCHWeights(features, self.label_weight, self.regression, self.ridge)
        one_step = self.variant == "one-step"
        seed = root_seed(self.random_state)
        # the authors also centre the raw features, which changes no distance
        maps, phi = pair_features(X, L, self.kernel, self.n_anchors, seed)
        hashers = {name: Regression(values, weights.regression, weights.ridge) for name, values in phi.items()}
        L = L.astype(np.float64)

        rng = np.random.default_rng([seed, INITIAL])
        V = rng.standard_normal((len(L), n_bits))
        R = np.linalg.svd(rng.standard_normal((n_bits, n_bits)))[0]
        W: dict[str, Array] = {}
        trace = []
        for step in range(self.max_iter):
            B = sign(V @ R.T)  # 1
            U = {name: Regression(V, weights.features[name], weights.ridge).fit(phi[name]) for name in phi}  # 2
            G = Regression(V, weights.labels, weights.ridge).fit(L)
            if one_step:
                W = {name: hashers[name].fit(V) for name in phi}  # 3
            V = latent(phi, L, U, G, W, B, R, weights)  # 4
            R = rotation(B, V, R)  # 5
            trace.append(objective(phi, L, U, G, W, V, B - V @ R.T, weights))
            report("sweeps", step + 1, self.max_iter, trace[-1])
        # as in the authors' code, B is not updated after the last V and R
        functions = {name: W[name] @ R.T if one_step else hashers[name].fit(B) for name in phi}
        return B, {"functions_": functions, "maps_": maps, "objective_": trace}


@dataclass(frozen=True)
class SCRATCHWeights:
    """λ by modality, α, μ and γ."""

    features: dict[str, float]
    labels: float
    regression: float
    ridge: float


class Regression:
    """Solve min κ‖T − XC‖² + γ‖C‖² for one X and any T: C = κ(κXᵀX + γI)⁻¹XᵀT (steps 2 and 3)."""

    def __init__(self, X: Array, weight: float, ridge: float) -> None:
        self._X, self._weight = X, weight
        self._factor = RidgeFactor(weight * (X.T @ X), ridge)

    def fit(self, T: Array) -> Array:
        return self._factor.solve(self._weight * (self._X.T @ T))


def latent(
    phi: dict[str, Array],
    L: Array,
    U: dict[str, Array],
    G: Array,
    W: dict[str, Array],
    B: Array,
    R: Array,
    weights: SCRATCHWeights,
) -> Array:
    """Return the best V (step 4). RᵀR = I and every W adds μI to the ridge; W is empty in the two-step variant."""
    left = weights.labels * (G @ G.T)
    right = weights.labels * (L @ G.T) + B @ R
    for name, X in phi.items():
        left += weights.features[name] * (U[name] @ U[name].T)
        right += weights.features[name] * (X @ U[name].T)
    for name in W:
        right += weights.regression * (phi[name] @ W[name])
    return RidgeFactor(left, 1 + len(W) * weights.regression + weights.ridge).solve(right.T).T


def rotation(B: Array, V: Array, R: Array) -> Array:
    """Return the best rotation (step 5), and of several the one nearest to the previous R.

    With more bits than classes some columns of B become equal and BᵀV loses rank. Its SVD would then depend on
    rounding, and the hash functions on the machine, as in the authors' code.
    """
    return orthogonal_procrustes(B.T @ V, near=R)


def objective(
    phi: dict[str, Array],
    L: Array,
    U: dict[str, Array],
    G: Array,
    W: dict[str, Array],
    V: Array,
    unrotated: Array,
    weights: SCRATCHWeights,
) -> float:
    """Return the objective, including the γ terms; ``unrotated`` is B − VRᵀ."""
    value = weights.labels * squared(L - V @ G) + squared(unrotated)
    value += weights.ridge * sum(squared(M) for M in (V, G, *U.values(), *W.values()))
    for name, X in phi.items():
        value += weights.features[name] * squared(X - V @ U[name])
    for name in W:
        value += weights.regression * squared(V - phi[name] @ W[name])
    return value
