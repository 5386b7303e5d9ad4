r"""CRE: Collective Reconstructive Embeddings (Hu et al., IEEE TIP 2019). A re-implementation.

Neither the authors' code nor the full text of the paper was available. From its abstract: one code per pair, with
balanced and uncorrelated bits, reconstructs cosine similarities of texts and Euclidean distances of images in one
common form. The equations below are derived from that and are not the authors'; results may differ from theirs.

The common form is b_i·b_j / r ≈ cos(y_i, y_j) for texts. For images of length 1 the Hamming distance (r − b_i·b_j) / 2
should be proportional to ‖x_i − x_j‖² / 2 = 1 − x_i·x_j, which is again b_i·b_j / r ≈ x_i·x_j. Both are rS ≈ BBᵀ with
S = FFᵀ of low rank, which is never formed; one B is replaced by a real-valued Z that carries the constraints.

=================  ========================  ==========================================================
symbol             here                      is
=================  ========================  ==========================================================
:math:`F_t`        ``F[name]`` (n, d)        rows of length 1, not centred, because Z is balanced
:math:`\phi_t`     ``phi[name]`` (n, q)      centred features of the hash functions
:math:`B`          ``B`` (n, r)              codes, ±1
:math:`Z`          ``Z`` (n, r)              ZᵀZ = nI, Zᵀ1 = 0
:math:`P_t`        ``P[name]`` (q, r)        hash functions
:math:`a_t`        ``weight``                share of a modality in the similarity
:math:`\omega`     ``quantization``          ‖B − Z‖²
:math:`\rho, \xi`  ``fit_weight``, ``ridge``  hash functions within the sweeps; their ridge
=================  ========================  ==========================================================
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

import numpy as np

from modalhash.core.features import AnchorKernel, FeatureMap, Linear
from modalhash.core.linalg import RidgeFactor, balanced_procrustes, ridge_regression, sign
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, root_seed, row_keys, stream
from modalhash.core.typing import Array, Matrix, PerModality
from modalhash.core.validation import Count, NonNegative, per_modality
from modalhash.methods.base import PairCodes, PairedHasher


@dataclass(eq=False, repr=False)
class CRE(PairedHasher):
    r"""Unsupervised codes that reconstruct similarities of features: a re-implementation of Hu et al. (2019).

    Derived from the abstract of the paper (see the module); not the authors' equations.

    .. math::
        \min_{B, Z, P}\; \sum_t a_t\lVert rF_tF_t^T - BZ^T\rVert^2 + \omega\lVert B - Z\rVert^2
        + \rho\sum_t\left(\lVert B - \phi_tP_t\rVert^2 + \xi\lVert P_t\rVert^2\right)

    subject to B = ±1, ZᵀZ = nI, Zᵀ1 = 0. Each step is an exact minimiser, so the objective never increases.

    Parameters
    ----------
    n_bits : length of the codes, below the number of pairs. Bits beyond the rank of the similarity are noise
    weight : a, of a modality's similarity; or a dict by modality
    quantization : ω, how closely codes follow Z. The similarity term grows with the number of pairs and outweighs it
    fit_weight : ρ, how closely codes follow the hash functions; at 0 these are fitted once, at the end
    affinity : "cosine" of the features, or "rbf", of their similarities to anchors; or a dict by modality
    kernel : "rbf" (hash functions of similarities to anchors) or None (linear ones); or a dict by modality
    n_anchors : anchors of both uses of "rbf"; or a dict by modality
    ridge : ξ of the hash functions
    max_iter : sweeps
    random_state : int, Generator or None

    Attributes
    ----------
    objective_ : the objective after every sweep, less the constant :math:`\sum_t a_tr^2\lVert F_tF_t^T\rVert^2`
    """

    supervised: ClassVar[bool] = False

    n_bits: int = 64
    _: KW_ONLY
    weight: PerModality[NonNegative] = 0.5
    quantization: NonNegative = 1.0
    fit_weight: NonNegative = 0.0
    affinity: PerModality[Literal["cosine", "rbf"]] = "cosine"
    kernel: PerModality[Literal["rbf", None]] = "rbf"
    n_anchors: PerModality[int] = 1000
    ridge: NonNegative = 0.01
    max_iter: Count = 20
    random_state: RandomState = None

    def _fit_pairs(self, X: dict[str, Matrix], L: Array, n_bits: int, report: Reporter) -> PairCodes:
        weights = per_modality(self.weight, X, "weight")
        omega, rho, xi = self.quantization, self.fit_weight, self.ridge
        seed = root_seed(self.random_state)
        maps = self._function_maps(X, seed)
        F = self._similarity_features(X, seed, weights)
        functions = Functions({name: fitted(maps[name], X[name]) for name in X}, xi) if rho else None
        report("features", 1, 1)

        keys = np.add.reduce([row_keys(values, seed) for values in X.values()])
        rng, n = stream(seed, keys), len(keys)
        start = np.empty((n, n_bits))
        start[np.argsort(keys, kind="stable")] = rng.standard_normal((n, n_bits))  # in the order of the keys
        Z = balanced_procrustes(start, rng)
        B, trace = sign(Z), []
        for step in range(self.max_iter):
            before = B
            B = sign(n_bits * similarity(F, Z) + omega * Z + (rho * functions.sum if functions else 0))
            reconstructed = n_bits * similarity(F, B)
            Z = balanced_procrustes(reconstructed + omega * B, rng)
            value = 2 * n_bits * n * omega - 2 * float(np.vdot(Z, reconstructed + omega * B))
            value += sum(weights.values()) * n**2 * n_bits  # ‖BZᵀ‖² = n²r because ZᵀZ = nI
            if functions:
                functions.fit(B)
                value += rho * functions.loss(B)
            trace.append(value)
            report("codes", step + 1, self.max_iter, value)
            if step and np.array_equal(B, before):
                break
        del F
        if functions is None:  # once, at the end
            P = {name: ridge_regression(fitted(maps[name], X[name]), B, xi) for name in X}
        else:
            P = functions.P
        # contiguous, as a loaded model has it: the same projections to the last bit
        P = {name: np.ascontiguousarray(values) for name, values in P.items()}
        return B, {"maps_": maps, "functions_": P, "objective_": trace}

    def _function_maps(self, X: dict[str, Matrix], seed: int) -> dict[str, FeatureMap]:
        anchors = per_modality(self.n_anchors, X, "n_anchors")
        maps: dict[str, FeatureMap] = {}
        for name, kernel in per_modality(self.kernel, X, "kernel").items():
            if kernel is None:
                maps[name] = Linear(dtype="float64")
            else:
                maps[name] = AnchorKernel(anchors[name], dtype="float64", random_state=seed)
        return maps

    def _similarity_features(self, X: dict[str, Matrix], seed: int, weights: dict[str, float]) -> list[Array]:
        """Return √a F of every modality, so that Σ a S M is Σ F (Fᵀ M)."""
        anchors = per_modality(self.n_anchors, X, "n_anchors")
        F = []
        for name, affinity in per_modality(self.affinity, X, "affinity").items():
            values = X[name]
            if affinity == "rbf":
                values = fitted(AnchorKernel(anchors[name], centred=False, dtype="float64", random_state=seed), values)
            unit = fitted(Linear(rows="unit", centred=False, dtype="float64"), values)
            unit *= np.sqrt(weights[name])
            F.append(unit)
        return F


class Functions:
    """Hash functions P_t of all modalities, fitted to B in every sweep."""

    def __init__(self, phi: dict[str, Array], ridge: float) -> None:
        self.phi, self.ridge = phi, ridge
        self.factors = {name: RidgeFactor(values.T @ values, ridge) for name, values in phi.items()}
        self.P: dict[str, Array] = {}
        self.projected: dict[str, Array] = {}
        self.sum: Array | float = 0.0
        """Σ φP; 0 before the first fit."""

    def fit(self, B: Array) -> None:
        """Set P = (φᵀφ + ξI)⁻¹ φᵀB."""
        self.P = {name: self.factors[name].solve(values.T @ B) for name, values in self.phi.items()}
        self.projected = {name: values @ self.P[name] for name, values in self.phi.items()}
        self.sum = np.add.reduce(list(self.projected.values()))

    def loss(self, B: Array) -> float:
        """Return Σ ‖B − φP‖² + ξ‖P‖²."""
        fits = sum(float(np.linalg.norm(B - values)) ** 2 for values in self.projected.values())
        return fits + self.ridge * sum(float(np.linalg.norm(P)) ** 2 for P in self.P.values())


def fitted(feature_map: FeatureMap, X: Matrix) -> Array:
    return feature_map.fit_blocks(X).whole()


def similarity(F: list[Array], M: Array) -> Array:
    """Return S M = Σ F (Fᵀ M) without forming S."""
    total = np.zeros_like(M)
    for values in F:
        total += values @ (values.T @ M)
    return total
