r"""FSH: Fusion Similarity Hashing (Liu et al., CVPR 2017).

Unsupervised, from pairs. Similarities of pairs are computed through a few anchor pairs, in a graph that takes the
neighbours of an item from one modality and the neighbours of the anchors from the other. Codes of pairs and anchors
agree with that fused graph and are linear in the features of each modality.

===========================  ===========================  ==================================================
paper and released code      here                         is
===========================  ===========================  ==================================================
:math:`X, Y`                 ``F[name]`` (n, d)           rows of length 1, then centred
:math:`N_x`                  ``N`` (n, m), CSR            1 at the k nearest anchors of an item
:math:`J_x`                  ``J`` (m, m), CSR            1 at the k nearest anchors of an anchor, itself included
:math:`K_x`                  ``K`` (m, m)                 :math:`\exp(-d/2)`, d the distance, not squared
:math:`A_1, A_2`             ``A`` (n, m), two of them    cross-diffused affinities
:math:`D`                    ``D`` (n, m)                 :math:`\eta A_1 + (1-\eta) A_2`
:math:`\eta`                 ``eta``                      share of the first modality's graph
:math:`B, B_s`               ``B`` (n, r), ``Bs`` (m, r)  codes of pairs and of anchors, ±1
:math:`W_x, W_y`             ``W[name]`` (d, r)           linear hash functions
:math:`\lambda, \tau`        ``fit_weight``, :data:`TAU`
===========================  ===========================  ==================================================

The equations are those of the authors' released code, which they describe as a rewrite of the paper's. Departures:
affinities are two matrix products instead of a double loop (:func:`affinity`, the same values); the W-step has a tiny
ridge (the release inverts a singular matrix if a feature is constant); anchors are drawn by content, so that the order
of the pairs does not matter; the sweeps stop at a fixed point. The release discards B and hashes its database, which is
``transform``; here B is the learned codes.
"""

from __future__ import annotations

import warnings
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

import numpy as np
from scipy import sparse
from scipy.spatial.distance import cdist

from modalhash.core.features import Linear
from modalhash.core.linalg import RidgeFactor, canonical_directions, sign
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, root_seed, row_keys, stream
from modalhash.core.typing import Array, Matrix
from modalhash.core.validation import Count, NonNegative
from modalhash.methods.base import PairCodes, PairedHasher

TAU = 0.5
"""τ of the η-step, whose exponent is 1/(1 − τ) = 2."""
CCA_RIDGE = 1e-6
KMEANS_ITER = 10


@dataclass(eq=False, repr=False)
class FSH(PairedHasher):
    r"""Unsupervised codes from a fused anchor graph, after Liu et al. (2017).

    .. math::
        \min_{B, B_s, W}\; \lambda\sum_t\lVert B - X_tW_t\rVert^2 - \operatorname{tr}(B^TDB_s),
        \qquad D = \eta A_1 + (1-\eta)A_2,\quad B, B_s = \pm 1

    Each step except that of η is an exact minimiser; η follows the rule of the release, so the objective may increase
    when η changes.

    Parameters
    ----------
    fit_weight : λ, how closely codes follow the linear functions. At 300 these far outweigh the graph
    n_anchors : m, capped at the number of pairs, with a warning
    n_neighbors : k, capped at the number of anchors, with a warning
    anchors : "random" pairs (the release's default), or "kmeans" centres of the concatenated features
    fusion : "released", η = (p₁ / (p₁ + p₂))², which is ¼ and not ½ for equal p and so favours the second modality's
        graph; "normalised", η = p₁² / (p₁² + p₂²); or "equal", η = ½
    init : "random" start of W, or "cca" directions (padded with random ones)
    ridge : of the W-step, on features whose rows have length 1
    max_iter : most sweeps
    n_bits, random_state : as for :class:`~modalhash.methods.base.CrossModalHasher`

    Attributes
    ----------
    fusion_weight_ : the last η
    """

    supervised: ClassVar[bool] = False

    n_bits: int = 64
    _: KW_ONLY
    fit_weight: NonNegative = 300.0
    n_anchors: Count = 50
    n_neighbors: Count = 10
    anchors: Literal["random", "kmeans"] = "random"
    fusion: Literal["released", "normalised", "equal"] = "released"
    init: Literal["random", "cca"] = "random"
    ridge: NonNegative = 1e-6
    max_iter: Count = 100
    random_state: RandomState = None

    def _fit_pairs(self, X: dict[str, Matrix], L: Array, n_bits: int, report: Reporter) -> PairCodes:
        lam, seed = self.fit_weight, root_seed(self.random_state)
        keys = np.add.reduce([row_keys(values, seed) for values in X.values()])
        rng = stream(seed, keys)
        maps = {name: Linear(rows="unit", dtype="float64") for name in X}
        F = {name: maps[name].fit_blocks(X[name]).whole() for name in X}
        anchors = self._anchors(F, np.argsort(keys, kind="stable"), rng)
        A1, A2 = fused_affinities(F, anchors, self._neighbours(len(anchors[0])))
        factors = {name: RidgeFactor(features.T @ features, self.ridge) for name, features in F.items()}
        report("graph", 1, 1)

        W = self._initial(F, n_bits, rng)
        P = [features @ W[name] for name, features in F.items()]
        Bs, eta = anchors[1] @ list(W.values())[1], 0.5  # anchor codes are real-valued in the first sweep
        B, trace = np.zeros_like(P[0]), []
        for step in range(self.max_iter):
            D = eta * A1 + (1 - eta) * A2
            before, B = (B, Bs), sign(D @ Bs + 2 * lam * (P[0] + P[1]))
            Bs = sign(D.T @ B)
            W = {name: factors[name].solve(features.T @ B) for name, features in F.items()}
            P = [features @ W[name] for name, features in F.items()]
            trace.append(objective(B, Bs, D, P, lam))
            eta = self._fusion_weight(B, Bs, A1, A2)
            report("codes", step + 1, self.max_iter, trace[-1])
            if np.array_equal(B, before[0]) and np.array_equal(Bs, before[1]):
                break  # W and η are functions of B and Bs: a fixed point
        return B, {
            "maps_": maps,
            # contiguous, as a loaded model has them: the same projections to the last bit
            "functions_": {name: np.ascontiguousarray(values) for name, values in W.items()},
            "fusion_weight_": eta,
            "objective_": trace,
        }

    def _anchors(self, F: dict[str, Array], order: Array, rng: np.random.Generator) -> list[Array]:
        """Return the anchor pairs, one array per modality; ``order`` is a random order of the rows by content."""
        m = self.n_anchors
        if m > len(order):
            warnings.warn(f"n_anchors is {m}, but there are {len(order)} pairs; using all", UserWarning, stacklevel=5)
            m = len(order)
        if self.anchors == "random":
            return [features[order[:m]] for features in F.values()]
        from sklearn.cluster import KMeans

        both = np.hstack([features[order] for features in F.values()])
        seed = int(rng.integers(2**31))
        centres = KMeans(m, n_init=1, max_iter=KMEANS_ITER, random_state=seed).fit(both).cluster_centers_
        return np.hsplit(centres, [next(iter(F.values())).shape[1]])

    def _neighbours(self, m: int) -> int:
        if self.n_neighbors > m:
            message = f"n_neighbors is {self.n_neighbors}, but there are {m} anchors; using all"
            warnings.warn(message, UserWarning, stacklevel=5)
        return min(self.n_neighbors, m)

    def _initial(self, F: dict[str, Array], n_bits: int, rng: np.random.Generator) -> dict[str, Array]:
        W = {name: rng.standard_normal((features.shape[1], n_bits)) for name, features in F.items()}
        if self.init == "cca":
            X, Y = F.values()
            for start, directions in zip(W.values(), canonical_directions(X, Y, n_bits, CCA_RIDGE), strict=False):
                start[:, : directions.shape[1]] = directions
        return W

    def _fusion_weight(self, B: Array, Bs: Array, A1: Array, A2: Array) -> float:
        """Return η from p = tr K − tr(Bsᵀ AᵀB), where tr K = m."""
        p1, p2 = (len(Bs) - float(np.vdot(Bs, A.T @ B)) for A in (A1, A2))
        power = 1 / (1 - TAU)
        if self.fusion == "equal" or p1 + p2 == 0:
            return 0.5
        if self.fusion == "normalised":
            return abs(p1) ** power / (abs(p1) ** power + abs(p2) ** power)
        return float(np.clip(p1 / (p1 + p2), 0, 1)) ** power  # outside [0, 1] if p1 and p2 have opposite signs


def affinity(N: Matrix, K: Array, J: Matrix, k: int) -> Array:
    """Return A = N K Jᵀ / k², the mean kernel between an item's k anchors and an anchor's k anchors."""
    return np.asarray(N @ (J @ K.T).T) / k**2


def fused_affinities(F: dict[str, Array], anchors: list[Array], k: int) -> tuple[Array, Array]:
    """Return A₁ and A₂: items' neighbours and kernel from one modality, anchors' neighbours from the other."""
    N = [nearest(cdist(features, own), k) for features, own in zip(F.values(), anchors, strict=True)]
    between = [cdist(own, own) for own in anchors]
    K, J = [np.exp(-d / 2) for d in between], [nearest(d, k) for d in between]
    return affinity(N[0], K[0], J[1], k), affinity(N[1], K[1], J[0], k)


def nearest(distances: Array, k: int) -> sparse.csr_array:
    """Return a matrix with 1 at the k smallest values of every row."""
    n, m = distances.shape
    columns = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return sparse.csr_array((np.ones(n * k), columns.ravel(), np.arange(0, n * k + 1, k)), shape=(n, m))


def objective(B: Array, Bs: Array, D: Array, P: list[Array], lam: float) -> float:
    """Return λ Σ‖B − P‖² − tr(Bᵀ D Bs), where P is XW of each modality."""
    return lam * float(sum(np.linalg.norm(B - values) ** 2 for values in P)) - float(np.vdot(B, D @ Bs))
