r"""SDMCH: Supervised Discrete Manifold-embedded Cross-modal Hashing (Luo et al., IJCAI 2018). A re-implementation.

Only the first page of the paper was available, without code. It says that the manifold of each modality is embedded by
the relative distances of neighbours, that the objective includes labels, and that discrete codes are learned by
alternating steps. The equations below are reconstructed from that and from a note about the method; constants, the
order of the steps and the hash functions are not the authors', and results may differ from theirs.

A companion F of the codes is smooth over the neighbour graphs of both modalities; the codes B stay close to it, predict
the labels, and are predicted from kernel features.

=======================  ========================  ======================================================
symbol                   here                      is
=======================  ========================  ======================================================
:math:`P^t`              ``weights`` (n, k)        weights that reconstruct an item from its k nearest, sum 1
:math:`S^t`              --                        |Pᵗ| + |Pᵗ|ᵀ
:math:`L^t`              (n, n), CSR               Laplacian of Sᵗ
--                       ``A`` (n, n), CSR         Σλ_t Lᵗ + αI
:math:`B, F`             ``B``, ``F`` (n, r)       codes of the pairs, ±1, and their smooth companion
:math:`Y`                ``Y`` (n, c)              labels, 0/1
:math:`G`                ``G`` (r, c)              from codes to labels
:math:`\phi_t`           ``phi[name]`` (n, m)      kernel features, centred
:math:`W_t`              ``functions_[name]``      features → codes, (m, r)
:math:`\lambda_t, \alpha`  ``manifold``, ``quantization``
:math:`\beta, \nu, \mu_t, \xi`  ``label_weight``, ``label_ridge``, ``function_weight``, ``ridge``
=======================  ========================  ======================================================

Choices where the reconstruction is open: hash functions are learned with the codes (μ > 0) or afterwards (μ = 0); the
start is random or the signs of principal components of the kernel features (``init``); hash functions use kernel
features, as in the note, and neighbours the features themselves; ν is multiplied by β and ξ by μ, so that G and W are
ridge regressions.

The F-step uses conjugate gradients and the B-step optimises bit by bit; all other steps are exact minimisers. No step
increases the objective.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import numpy as np
from scipy import sparse

from modalhash.core.blocks import row_slices
from modalhash.core.features import pair_features
from modalhash.core.linalg import RidgeFactor, principal_directions, ridge_regression, sign, squared
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, root_seed
from modalhash.core.typing import Array, Matrix, PerModality
from modalhash.core.validation import Count, NonNegative, Positive, per_modality
from modalhash.methods.base import PairCodes, PairedHasher
from modalhash.methods.fitted import BLOCK_VALUES
from modalhash.methods.smfh import conjugate_gradients

GRAM_RIDGE = 1e-3
"""Ridge of the local Gram matrices, as a share of their trace."""
SWEEPS = 3
"""Sweeps over the bits in one B-step."""
CG_ITER, CG_TOLERANCE = 500, 1e-8


@dataclass(eq=False, repr=False)
class SDMCH(PairedHasher):
    r"""Discrete codes from labels and the neighbour graphs of both modalities: a re-implementation.

    Reconstructed from the first page of Luo et al. (2018) and a note (see the module); not the authors' equations.

    .. math::
        \min_{B, F, G, W}\ \sum_t\lambda_t\operatorname{tr}(F^TL^tF) + \alpha\lVert B - F\rVert^2
        + \beta\left(\lVert Y - BG\rVert^2 + \nu\lVert G\rVert^2\right)
        + \sum_t\mu_t\left(\lVert B - \phi_tW_t\rVert^2 + \xi\lVert W_t\rVert^2\right),\quad B = \pm1

    Parameters
    ----------
    manifold : λ, how smooth codes are over a modality's graph; or a dict by modality
    quantization : α > 0, how closely codes follow their smooth companion
    label_weight : β > 0, how well codes predict the labels
    label_ridge : ν > 0
    function_weight : μ, how closely codes follow the hash functions (0: fitted afterwards); or a dict by modality
    n_neighbors : k of the graphs, capped at the number of other pairs
    ridge : ξ > 0 of the hash functions
    init : "pca" or "random" codes to start from
    max_iter : most rounds
    n_bits, kernel, n_anchors, random_state : as for :class:`~modalhash.methods.base.CrossModalHasher`
    """

    n_bits: int = 64
    _: KW_ONLY
    manifold: PerModality[NonNegative] = 0.5
    quantization: Positive = 1.0
    label_weight: Positive = 100.0
    label_ridge: Positive = 1.0
    function_weight: PerModality[NonNegative] = 0.1
    n_neighbors: Count = 10
    kernel: PerModality[str | None] = "rbf"
    n_anchors: PerModality[int] = 1000
    ridge: Positive = 0.01
    init: Literal["pca", "random"] = "random"
    max_iter: Count = 15
    random_state: RandomState = None

    def _fit_pairs(self, X: dict[str, Matrix], L: Array, n_bits: int, report: Reporter) -> PairCodes:
        lam = per_modality(self.manifold, X, "manifold")
        mu = per_modality(self.function_weight, X, "function_weight")
        alpha, beta, nu, xi = self.quantization, self.label_weight, self.label_ridge, self.ridge
        k = min(self.n_neighbors, len(L) - 1)
        seed = root_seed(self.random_state)
        maps, phi = pair_features(X, L, self.kernel, self.n_anchors, seed)
        factors = {name: RidgeFactor(features.T @ features, xi) for name, features in phi.items()}
        report("features", 1, 1)
        A = alpha * sparse.eye_array(len(L), format="csr")
        for name, values in X.items():
            if lam[name]:
                A = A + lam[name] * laplacian(values, k)
        report("graph", 1, 1)

        Y = L.astype(np.float64)
        B = F = self._start(phi, n_bits, np.random.default_rng([seed, 0]))
        trace: list[float] = []
        for step in range(self.max_iter):
            G = ridge_regression(B, Y, nu)  # 1.
            F = smooth(A, alpha * B, F)  # 2.
            W = {name: factors[name].solve(phi[name].T @ B) for name in X if mu[name]}  # 3.
            drawn = alpha * F + sum((mu[name] * (phi[name] @ w) for name, w in W.items()), np.zeros_like(B))
            before, B = B, update_B(B, beta * (Y @ G.T) + drawn, beta * (G @ G.T))  # 4.
            value = float(np.vdot(F, A @ F)) + alpha * (B.size - 2 * float(np.vdot(B, F)))
            value += beta * (squared(Y - B @ G) + nu * squared(G))
            value += sum(mu[name] * (squared(B - phi[name] @ w) + xi * squared(w)) for name, w in W.items())
            trace.append(value)
            report("codes", step + 1, self.max_iter, value)
            if np.array_equal(B, before):
                break  # G, F and W are functions of B: a fixed point
        functions = {name: factors[name].solve(phi[name].T @ B) for name in X}
        return B, {"functions_": functions, "maps_": maps, "objective_": trace}

    def _start(self, phi: dict[str, Array], n_bits: int, rng: np.random.Generator) -> Array:
        start = rng.standard_normal((len(next(iter(phi.values()))), n_bits))
        if self.init == "pca":
            both = np.hstack(list(phi.values()))
            components = both @ principal_directions(both, n_bits)
            start[:, : components.shape[1]] = components  # the rest stays random
        return sign(start)


def laplacian(X: Matrix, k: int) -> sparse.csr_array:
    """Return the Laplacian of |P| + |P|ᵀ, P the weights that reconstruct every item from its k nearest."""
    n = X.shape[0]
    neighbours = nearest(X, k)
    weights = np.abs(reconstruction_weights(X, neighbours))
    P = sparse.csr_array((weights.ravel(), neighbours.ravel(), np.arange(0, n * k + 1, k)), shape=(n, n))
    S = (P + P.T).tocsr()
    return (sparse.diags_array(np.asarray(S.sum(axis=1)).ravel()) - S).tocsr()


def nearest(X: Matrix, k: int) -> Array:
    """Return the k nearest other items of every item (n, k), by Euclidean distance.

    Dense and CSR features give the same result. scikit-learn's search breaks ties differently for the two, and short
    texts have many ties.
    """
    n = X.shape[0]
    X = X.astype(np.float64)
    half = np.asarray((X * X).sum(axis=1)).ravel() / 2
    found = np.empty((n, k), dtype=np.int64)
    for rows in row_slices(n, max(1, BLOCK_VALUES // n)):
        product = X[rows] @ X.T
        away = half - (product.toarray() if sparse.issparse(product) else product)  # half of ‖xᵢ − xⱼ‖² − ‖xᵢ‖²
        away[np.arange(len(away)), np.arange(n)[rows]] = np.inf
        found[rows] = np.argpartition(away, k - 1, axis=1)[:, :k]
    return found


def reconstruction_weights(X: Matrix, neighbours: Array) -> Array:
    """Return P (n, k), the minimiser of ‖xᵢ − Σ Pᵢⱼ xⱼ‖² with Σⱼ Pᵢⱼ = 1, as in locally linear embedding."""
    n, k = neighbours.shape
    P = np.empty((n, k))
    for rows in row_slices(n, max(1, BLOCK_VALUES // (k * X.shape[1]))):
        own, others = X[rows], X[neighbours[rows].ravel()]
        if sparse.issparse(X):
            own, others = own.toarray(), others.toarray()
        offsets = others.reshape(len(own), k, -1).astype(np.float64) - own[:, None]
        gram = offsets @ offsets.transpose(0, 2, 1)
        trace = np.einsum("ijj->i", gram)
        gram += (GRAM_RIDGE * np.where(trace > 0, trace, 1))[:, None, None] * np.eye(k)  # 0 if all neighbours are equal
        w = np.linalg.solve(gram, np.ones((len(own), k, 1)))[:, :, 0]
        P[rows] = w / w.sum(axis=1, keepdims=True)
    return P


def smooth(A: sparse.csr_array, right: Array, start: Array) -> Array:
    """Return A⁻¹ right for a positive definite A, preconditioned by its diagonal."""
    inverse = 1 / A.diagonal()[:, None]
    return conjugate_gradients(lambda F: A @ F, right, lambda R: inverse * R, start, tol=CG_TOLERANCE, max_iter=CG_ITER)


def update_B(B: Array, Q: Array, H: Array) -> Array:
    """Lower tr(BHBᵀ) − 2tr(BᵀQ) over B = ±1, bit by bit: b_l = sgn(q_l − Σ_{k≠l} b_k H_kl)."""
    B = B.copy()
    for _ in range(SWEEPS):
        for bit in range(B.shape[1]):
            others = H[:, bit].copy()
            others[bit] = 0
            B[:, bit] = sign(Q[:, bit] - B @ others)
    return B
