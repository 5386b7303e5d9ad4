r"""TECH: Two-stEp Cross-modal Hashing (Chen et al., ACM Multimedia 2019). A re-implementation.

Neither the authors' code nor the full text of the paper was available. According to the abstract, codes are learned
first, from labels, their correlations and similarities in the original space, and hash functions second, preserving the
similarity as well. The equations below are reconstructed from that, from the code of FCMH, of the same group, for the
correlations, and from ALECH, a later method, for step 2; results may differ from the authors'.

=======================  =======================  ======================================================
symbol                   here                     is
=======================  =======================  ======================================================
:math:`L`                ``L`` (n, c)             labels, 0/1
:math:`\tilde L`         ``G`` (n, c)             labels with rows of length 1
:math:`S`                --                       2GGᵀ − 11ᵀ, similarity by labels; never formed
:math:`C`                ``C`` (c, c)             correlations of labels: cosines of the columns of L
:math:`D`                ``C.sum(axis=0)``        their sums
:math:`V`                ``V`` (n, r)             latent representation, VᵀV = nI, Vᵀ1 = 0
:math:`B`                ``B`` (n, r)             codes of the pairs, ±1
:math:`R`                ``R`` (r, r)             rotation
:math:`P`                ``P`` (r, c)             prototypes of the classes
:math:`\phi_t, U_t`      ``phi``, ``U`` (r, m)    kernel features, centred, and their reconstruction φ ≈ VU
:math:`F_t`              ``functions_[name]``     features → codes, (m, r)
:math:`\alpha, \eta`     ``similarity``, ``feature_weight``
:math:`\beta, \gamma, \lambda, \xi`  ``correlation``, ``prototype_ridge``, ``code_weight``, ``ridge``
=======================  =======================  ======================================================

Choices where the reconstruction is open: in step 1 V reconstructs the kernel features with weight η, as in BATCH, of
the same group (0 by default); γ is multiplied by β, so that P is one quotient; the start is random; sgn(0) = −1. As in
FCMH, the V-step omits the part of the class term in ‖vᵢ‖²; no step increases the objective without that part, which is
``objective_``.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np

from modalhash.core.features import pair_features
from modalhash.core.linalg import (
    RidgeFactor,
    balanced_procrustes,
    orthogonal_procrustes,
    ridge_regression,
    sign,
    similarity_times,
    squared,
    squared_similarity,
    unit_rows,
)
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, root_seed
from modalhash.core.typing import Array, Matrix, PerModality
from modalhash.core.validation import Count, NonNegative, Positive
from modalhash.methods.base import PairCodes, PairedHasher
from modalhash.methods.fcmh import column_cosines


@dataclass(eq=False, repr=False)
class TECH(PairedHasher):
    r"""Codes from labels and their correlations, functions that preserve similarity: a re-implementation.

    Reconstructed from the abstract of Chen et al. (2019) and related methods (see the module); not the authors'
    equations. Step 1 minimises

    .. math::
        \lVert B - VR\rVert^2 + \alpha\lVert VB^T - rS\rVert^2
        + \beta\Big(\sum_i\sum_{k,j}C_{kj}\lVert L_{ik}v_i - p_j\rVert^2 + \gamma\lVert P\rVert^2\Big)
        + \eta\sum_t\left(\lVert\phi_t - VU_t\rVert^2 + \lVert U_t\rVert^2\right)

    subject to B = ±1, VᵀV = nI, Vᵀ1 = 0, RᵀR = I; step 2, for each modality,

    .. math::
        \lVert \phi FB^T - rS\rVert^2 + \lambda\lVert B - \phi F\rVert^2 + \xi\lVert F(B^TB + \lambda I)^{1/2}\rVert^2.

    Parameters
    ----------
    similarity : α, similarity by labels. Its term grows with the number of pairs and far outweighs the rest
    correlation : β, correlations of labels
    prototype_ridge : γ > 0
    feature_weight : η, reconstruction of the features in step 1; 0 omits it
    code_weight : λ of step 2, how closely functions follow the codes, relative to the similarity
    ridge : ξ > 0 of step 2
    max_iter : sweeps of step 1
    n_bits, kernel, n_anchors, random_state : as for :class:`~modalhash.methods.base.CrossModalHasher`

    Attributes
    ----------
    objective_ : the objective of step 1 after every sweep, less Σ C_kj ‖L_ik v_i‖², which the V-step omits
    """

    n_bits: int = 64
    _: KW_ONLY
    similarity: NonNegative = 0.1
    correlation: NonNegative = 1e-3
    prototype_ridge: Positive = 0.1
    feature_weight: NonNegative = 0.0
    code_weight: NonNegative = 1e4
    ridge: Positive = 0.01
    kernel: PerModality[str | None] = "rbf"
    n_anchors: PerModality[int] = 1000
    max_iter: Count = 10
    random_state: RandomState = None

    def _fit_pairs(self, X: dict[str, Matrix], L: Array, n_bits: int, report: Reporter) -> PairCodes:
        seed = root_seed(self.random_state)
        maps, phi = pair_features(X, L, self.kernel, self.n_anchors, seed)
        report("features", 1, 1)

        problem = TECHCodes(
            L.astype(np.float64),
            list(phi.values()) if self.feature_weight else [],
            alpha=self.similarity,
            beta=self.correlation,
            gamma=self.prototype_ridge,
            eta=self.feature_weight,
        )
        rng = np.random.default_rng([seed, 0])
        V = balanced_procrustes(rng.standard_normal((len(L), n_bits)), rng)
        B, R = sign(V), np.eye(n_bits)
        trace: list[float] = []
        for sweep in range(self.max_iter):
            P, U = problem.update_P(V), problem.update_U(V)  # 1.
            V = balanced_procrustes(problem.pull_of_V(B, R, P, U), rng)  # 2.
            B = sign(problem.pull_of_B(V, R))  # 3.
            R = orthogonal_procrustes(V.T @ B, near=R)  # 4.
            trace.append(problem.objective(V, B, R, P, U))
            report("codes", sweep + 1, self.max_iter, trace[-1])

        functions = {name: hash_functions(F, B, problem.G, self.code_weight, self.ridge) for name, F in phi.items()}
        return B, {"functions_": functions, "maps_": maps, "objective_": trace}


class TECHCodes:
    """Updates and objective of step 1."""

    def __init__(self, L: Array, targets: list[Array], *, alpha: float, beta: float, gamma: float, eta: float) -> None:
        self.L, self.G, self.targets = L, unit_rows(L), targets
        self.alpha, self.beta, self.gamma, self.eta = alpha, beta, gamma, eta
        self.C = column_cosines(L)
        self.D = self.C.sum(axis=0)

    def update_P(self, V: Array) -> Array:
        """Return P = VᵀLC (nD + γI)⁻¹."""
        P: Array = (V.T @ self.L) @ self.C / (len(V) * self.D + self.gamma)
        return P

    def update_U(self, V: Array) -> list[Array]:
        """Return U = (VᵀV + I)⁻¹ Vᵀφ of every modality."""
        return [ridge_regression(V, F, 1.0) for F in self.targets]

    def similarity_pull(self, X: Array) -> Array:
        """Return αrSX."""
        return self.alpha * X.shape[1] * similarity_times(self.G, self.G, X)

    def pull_of_V(self, B: Array, R: Array, P: Array, U: list[Array]) -> Array:
        """Return BRᵀ + αrSB + βLCPᵀ + ηΣφUᵀ."""
        pull = B @ R.T + self.similarity_pull(B) + self.beta * (self.L @ (self.C @ P.T))
        for F, u in zip(self.targets, U, strict=True):
            pull += self.eta * (F @ u.T)
        return pull

    def pull_of_B(self, V: Array, R: Array) -> Array:
        """Return VR + αrSV."""
        return V @ R + self.similarity_pull(V)

    def objective(self, V: Array, B: Array, R: Array, P: Array, U: list[Array]) -> float:
        """Return the objective for feasible V, without the part that the V-step omits.

        By VᵀV = nI, ‖VBᵀ − rS‖² = n‖B‖² − 2r⟨SV, B⟩ + r²‖S‖², and because labels are 0 or 1,
        Σ C_kj‖L_ik v_i − p_j‖² = Σ C_kj‖L_ik v_i‖² − 2⟨VᵀLC, P⟩ + n Σ D_j‖p_j‖².
        """
        n, r = B.shape
        similarity = n * squared(B) + r * r * squared_similarity(self.G, self.G)
        similarity -= 2 * r * float(np.vdot(similarity_times(self.G, self.G, V), B))
        correlation = float(((n * self.D + self.gamma) * P**2).sum() - 2 * np.vdot((V.T @ self.L) @ self.C, P))
        features = sum(squared(F - V @ u) + squared(u) for F, u in zip(self.targets, U, strict=True))
        return squared(B - V @ R) + self.alpha * similarity + self.beta * correlation + self.eta * features


def hash_functions(F: Array, B: Array, G: Array, lam: float, xi: float) -> Array:
    """Return (φᵀφ + ξI)⁻¹ φᵀ(rSB + λB) (BᵀB + λI)⁻¹ (step 2)."""
    targets = F.T @ (B.shape[1] * similarity_times(G, G, B) + lam * B)
    codes = RidgeFactor(B.T @ B, lam)
    return np.ascontiguousarray(codes.solve(RidgeFactor(F.T @ F, xi).solve(targets).T).T)
