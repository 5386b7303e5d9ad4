r"""FCMH: Fast Cross-Modal Hashing with global and local similarity embedding (Wang et al., IEEE TCYB 2021).

The pairs are grouped by their features. A latent representation V, balanced and uncorrelated within every group,
reproduces with the codes B the similarity by labels between all pairs and, separately, within each group; it is also
drawn towards points of the classes, weighted by their co-occurrence. A rotation maps V to B. The hash functions are
ridge regressions to B, fitted afterwards.

==============================  ==========================  ====================================================
paper                           here                        is
==============================  ==========================  ====================================================
:math:`B`                       ``B`` (n, r)                codes of the pairs, ±1; rows ordered by group
:math:`V`                       ``V`` (n, r)                latent, VₘᵀVₘ = nₘI and Vₘᵀ1 = 0 in each group m
:math:`R`                       ``R`` (r, r)                rotation, B ≈ V R
:math:`L`                       ``L`` (n, c)                labels, 0/1
:math:`\tilde G`                ``G`` (n, c)                labels with rows of length 1
:math:`S`                       never formed                2GGᵀ − 11ᵀ
:math:`C, C_m`                  in ``A[m]`` (c, c)          cosines of label columns, of all pairs and of a group:
                                                            Aₘ = β₁C + β₂Cₘ
:math:`D, D_m`                  ``size`` (c,)               Σ nₘ colsum(Aₘ) + γ
:math:`P`                       ``P`` (r, c)                one point for each class
:math:`p, \gamma, \xi`           ``n_groups``, ``regularization``, ``ridge``
:math:`\alpha_1, \alpha_2, \beta_1, \beta_2`  ``global_weight``, ``local_weight``, ``global_classes``, ``local_classes``
==============================  ==========================  ====================================================

The class term is Σ Aₘ[k, j] ‖L[i, k] vᵢ − pⱼ‖² over the pairs i of a group and the classes k, j. The V-step, as the
authors', omits its part in ‖vᵢ‖². No step increases the objective without that part, which is ``objective_``.

Departures from the authors' code: an empty group is dropped, and a group with no more pairs than bits is merged with
another (theirs fails). So is a group whose pairs all have the same labels, because V is balanced within it and its
codes would be noise. The V-step is that of :mod:`modalhash.methods.batch`; a class that is absent from a group
correlates with nothing there (theirs: 0/0); sgn(0) = −1 in every sweep (theirs only after the last). As in their code,
features are not centred unless ``centred=True``.

The groups come from robust k-means over several views (Cai, Nie and Huang, IJCAI 2013), which minimises, over groups,
centres f of each view and weights a of the views,

.. math:: \sum_v a_v^{\gamma} \sum_i \lVert x_i^v - f_{g(i)}^v\rVert,\qquad \gamma = \tfrac12

by re-weighting with w = a^γ / 2‖x − f‖ of the round before: centres are weighted means, and an item joins the group
with the least weighted squared distance, summed over the views. Unsquared distances in the objective reduce the
influence of outliers. As in the authors' code, views with larger residuals get larger weights, a ∝ (Σ‖x − f‖ / 2)².
Departures: an empty group is dropped (theirs divides 0 by 0), and only the relative fall of the objective ends the
rounds (theirs also the absolute one, which depends on the units).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np
from scipy import linalg, sparse

from modalhash.core.features import Linear
from modalhash.core.linalg import (
    CentredFeatures,
    RidgeFactor,
    balanced_procrustes,
    orthogonal_procrustes,
    sign,
    similarity_times,
    squared,
    squared_similarity,
    unit_rows,
)
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, root_seed
from modalhash.core.typing import Array, Matrix, PerModality
from modalhash.core.validation import Count, Flag, NonNegative, Positive, per_modality
from modalhash.methods.amsh.codes import label_patterns
from modalhash.methods.base import PairCodes, PairedHasher

TOLERANCE = 1e-3
MAX_ROUNDS = 100
LEAST = 1e-6
"""Lower bound of a view's weight, and of a residual as a share of the features' root mean square."""


def robust_kmeans(views: Sequence[Array], n_groups: int, rng: np.random.Generator) -> Array:
    """Return the group of every item, 0, 1, …; empty groups are dropped."""
    n = len(views[0])
    groups = np.resize(rng.permutation(n_groups), n)
    weights = [np.full(n, np.sqrt(1 / len(views))) for _ in views]
    squares = [np.einsum("ij,ij->i", X, X)[:, None] for X in views]
    scale = [float(np.sqrt(norms.mean())) for norms in squares]
    before = np.inf
    for _ in range(MAX_ROUNDS):
        distances = [
            np.maximum(norms - 2 * (X @ F.T) + np.einsum("ij,ij->i", F, F), 0)
            for X, norms, F in zip(views, squares, centres(views, groups, weights), strict=True)
        ]
        groups = np.sum([w[:, None] * d for w, d in zip(weights, distances, strict=True)], axis=0).argmin(axis=1)
        residuals = [np.sqrt(d[np.arange(n), groups]) for d in distances]
        sizes = np.array([residual.sum() for residual in residuals])
        shares = (sizes / 2) ** 2 / max(float(((sizes / 2) ** 2).sum()), np.finfo(float).tiny)
        objective = float(np.sqrt(shares) @ sizes)
        groups = np.unique(groups, return_inverse=True)[1]
        if before - objective <= TOLERANCE * objective:
            break
        before = objective
        weights = [
            max(np.sqrt(a), LEAST) / (2 * np.maximum(e, LEAST * size))
            for a, e, size in zip(shares, residuals, scale, strict=True)
        ]
    return groups


def centres(views: Sequence[Array], groups: Array, weights: Sequence[Array]) -> list[Array]:
    n = len(groups)
    found = []
    for X, w in zip(views, weights, strict=True):
        members = sparse.csr_array((w, (groups, np.arange(n))))
        found.append((members @ X) / members.sum(axis=1)[:, None])
    return found


MAX_GROUPS = 25
REDUCED_FROM = 5000
"""Number of pairs above which groups are based on principal components, as in the authors' code."""
N_COMPONENTS = 200
"""Principal components of each modality in that case."""


@dataclass(eq=False, repr=False)
class FCMH(PairedHasher):
    r"""Codes of pairs from similarities over all pairs and within groups, after Wang et al. (2021).

    Minimises, with the pairs in groups m,

    .. math::
        \lVert B - VR\rVert^2 + \alpha_1\lVert VB^T - rS\rVert^2
        + \sum_m\Bigl(\alpha_2\lVert V_mB_m^T - rS_{mm}\rVert^2
        + \sum_{i\in m}\sum_{kj}(\beta_1C + \beta_2C_m)_{kj}\lVert L_{ik}v_i - p_j\rVert^2\Bigr)
        + \gamma\lVert P\rVert^2

    subject to B = ±1, RᵀR = I, and VᵀV = nI, Vᵀ1 = 0 in each group.

    Parameters
    ----------
    global_weight : α₁, similarity between all pairs
    local_weight : α₂, similarity within a group
    global_classes : β₁, correlations of classes over all pairs
    local_classes : β₂, correlations of classes within a group
    regularization : γ, of the classes' points
    n_groups : groups of pairs; None is the number of classes, at most 25
    centred : subtract the mean of the features before the hash functions; the authors do not
    ridge : ξ of the hash functions; or a dict by modality
    max_iter : sweeps
    n_bits, random_state : as for :class:`~modalhash.methods.base.CrossModalHasher`

    Attributes
    ----------
    objective_ : the objective without the part in ‖v‖² of its class term, one value per sweep
    n_groups_ : groups after merging
    """

    n_bits: int = 64
    _: KW_ONLY
    global_weight: NonNegative = 100.0
    local_weight: NonNegative = 10.0
    global_classes: NonNegative = 10.0
    local_classes: NonNegative = 10.0
    regularization: Positive = 0.1
    n_groups: Count | None = None
    centred: Flag = False
    ridge: PerModality[NonNegative] = 1.0
    max_iter: Count = 5
    random_state: RandomState = None

    def _fit_pairs(self, X: dict[str, Matrix], L: Array, n_bits: int, report: Reporter) -> PairCodes:
        alpha, beta = (self.global_weight, self.local_weight), (self.global_classes, self.local_classes)
        ridge = per_modality(self.ridge, X, "ridge")
        n_groups = min(L.shape[1], MAX_GROUPS) if self.n_groups is None else self.n_groups
        rng = np.random.default_rng([root_seed(self.random_state), 0])

        maps = {name: Linear(centred=self.centred, dtype="float64").fit(values) for name, values in X.items()}
        F = {name: CentredFeatures(values, maps[name].mean_) for name, values in X.items()}
        grams = {name: values.cross(values) for name, values in F.items()}
        groups = robust_kmeans([components(F[name], grams[name]) for name in F], min(n_groups, len(L)), rng)
        groups = merge_groups(groups, label_patterns(L)[1], n_bits)
        order = np.argsort(groups, kind="stable")
        ends = np.cumsum(np.bincount(groups))
        parts = [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
        report("groups", 1, 1)

        L = L[order].astype(np.float64)
        problem = FCMHProblem(L, parts, alpha, beta, self.regularization)
        V = rng.standard_normal((len(L), n_bits))  # not feasible before the first V-step
        B = sign(rng.standard_normal((len(L), n_bits)))
        R = np.linalg.svd(rng.standard_normal((n_bits, n_bits)))[0]
        trace: list[float] = []
        for sweep in range(self.max_iter):
            P = problem.update_P(V)  # 1.
            V = problem.update_V(B, R, P, rng)  # 2.
            B = sign(V @ R + problem.similarity_pull(V))  # 3.
            R = orthogonal_procrustes(V.T @ B, near=R)  # 4.
            trace.append(problem.objective(V, B, R, P))
            report("codes", sweep + 1, self.max_iter, trace[-1])

        codes = np.empty_like(B)
        codes[order] = B
        functions = {
            name: RidgeFactor(grams[name], ridge[name]).solve(values.transposed_times(codes))
            for name, values in F.items()
        }
        return codes, {"functions_": functions, "maps_": maps, "objective_": trace, "n_groups_": len(parts)}


class FCMHProblem:
    """Steps of a sweep over pairs that are ordered by group; ``parts`` are the groups' rows."""

    def __init__(
        self, L: Array, parts: list[slice], alpha: tuple[float, float], beta: tuple[float, float], gamma: float
    ) -> None:
        self.L, self.G, self.parts = L, unit_rows(L), parts
        self.alpha = alpha
        C = column_cosines(L)
        self.A = [beta[0] * C + beta[1] * column_cosines(L[rows]) for rows in parts]
        self.size = gamma + sum(len(L[rows]) * A.sum(axis=0) for rows, A in zip(parts, self.A, strict=True))

    def update_P(self, V: Array) -> Array:
        """Return P = [Σ Vₘᵀ Lₘ Aₘ] [Σ nₘ Dₘ + γI]⁻¹, D diagonal."""
        total = np.sum([V[rows].T @ self.L[rows] @ A for rows, A in zip(self.parts, self.A, strict=True)], axis=0)
        return np.asarray(total / self.size)

    def update_V(self, B: Array, R: Array, P: Array, rng: np.random.Generator) -> Array:
        """Return the balanced, uncorrelated V, group by group, nearest to the pull of all terms."""
        drawn = B @ R.T + self.similarity_pull(B) + self.class_pull(P)
        return np.concatenate([balanced_procrustes(drawn[rows], rng) for rows in self.parts])

    def similarity_pull(self, M: Array) -> Array:
        """Return α₁rSM + α₂rSₘₘMₘ, the pull of B on V and of V on B."""
        everywhere, within = (weight * M.shape[1] for weight in self.alpha)
        total = everywhere * similarity_times(self.G, self.G, M)
        for rows in self.parts:
            total[rows] += within * similarity_times(self.G[rows], self.G[rows], M[rows])
        return total

    def class_pull(self, P: Array) -> Array:
        """Return Lₘ Aₘ Pᵀ."""
        return np.concatenate([self.L[rows] @ (A @ P.T) for rows, A in zip(self.parts, self.A, strict=True)])

    def objective(self, V: Array, B: Array, R: Array, P: Array) -> float:
        """Return the objective for feasible V without the part in ‖v‖² of its class term.

        By VᵀV = nI, ‖VBᵀ − rS‖² = n²r − 2r⟨SB, V⟩ + r²‖S‖², and the same holds within a group.
        """
        r = B.shape[1]
        value = squared(B - V @ R) - 2 * float(np.vdot(self.similarity_pull(B), V))
        for weight, parts in zip(self.alpha, ([slice(None)], self.parts), strict=True):
            for G in (self.G[rows] for rows in parts):
                value += weight * (r * len(G) ** 2 + r**2 * squared_similarity(G, G))
        return value - 2 * float(np.vdot(self.class_pull(P), V)) + float(self.size @ (P**2).sum(axis=0))


def column_cosines(L: Array) -> Array:
    """Return the cosines between the columns of L, 0 for a column of zeros."""
    columns = unit_rows(L.T)
    return columns @ columns.T


def components(F: CentredFeatures, gram: Array) -> Array:
    """Return the features that pairs are grouped by, or their principal components if there are many pairs."""
    if F.n <= REDUCED_FROM or F.width <= N_COMPONENTS:
        return F.times(np.eye(F.width))
    mean = F.transposed_times(np.ones(F.n)) / F.n
    covariance = gram - F.n * np.outer(mean, mean)
    last = F.width - 1
    _, W = linalg.eigh(covariance, subset_by_index=[last - N_COMPONENTS + 1, last], check_finite=False)
    return F.times(W) - mean @ W


def merge_groups(groups: Array, patterns: Array, n_bits: int) -> Array:
    """Merge groups until each has more than ``n_bits`` items and more than one label pattern.

    The smallest group that does not is merged with the smallest other group.
    """
    while groups.max():
        counts = np.bincount(groups)
        uniform = [len(np.unique(patterns[groups == m])) == 1 for m in range(len(counts))]
        order = np.argsort(counts, kind="stable")
        wrong = [m for m in order if counts[m] <= n_bits or uniform[m]]
        if not wrong:
            break
        other = next(m for m in order if m != wrong[0])
        groups = np.unique(np.where(groups == wrong[0], other, groups), return_inverse=True)[1]
    return groups
