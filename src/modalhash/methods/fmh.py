r"""FMH: Flexible Multi-modal Hashing (Zhu et al., ACM TIST 2020). A re-implementation.

Neither the authors' code nor the full text of the paper was available. The equations are reconstructed from its
abstract and from the code of FOMH, the online method of the same authors; results may differ from the authors'.

Every modality has its own codes. Their products with one real-valued companion matrix over all items of all modalities
reproduce the similarity by labels, without any n × n matrix. Each code also follows its modality's hash function, so
that a query may have any subset of the modalities.

=======================  ======================  ====================================================
symbol                   here                    is
=======================  ======================  ====================================================
:math:`\tilde L`         ``Lt`` (N, c)           labels of all items of all modalities, rows of length 1
:math:`S`                --                      similarity by labels; never formed
:math:`\Phi_v`           ``view.phi`` (n_v, m)   kernel features and a column of ones
:math:`B`                ``B`` (N, r)            codes, ±1; B_v the rows of a modality
:math:`D`                ``D`` (N, r)            companions, DᵀD = N I, 1ᵀD = 0
:math:`W_v`              ``W[v]`` (m, r)         hash functions
:math:`\alpha`           ``similarity``          ‖B Dᵀ − rS‖²
:math:`\beta`            ``quantization``        ‖B − D‖²
:math:`\gamma`           ``ridge``               ‖W‖²
=======================  ======================  ====================================================

Choices where the reconstruction is open:

- FOMH leaves D unconstrained and finds B by an augmented Lagrangian. Here D is balanced and uncorrelated, which makes
  the quadratic term constant and every step exact.
- α. FOMH's 1e-5 is for NUS-WIDE, about 370,000 items in two modalities, and does not scale with the number of items. On
  Wiki (4,346) it gives near-chance mAP, .14 and .14 at 16 bits, learned database; ``similarity="auto"`` .36 and .74.
- The kernel width is the mean squared distance; FOMH has fixed values for its data.
- Label rows in S have length 1; FOMH does not normalise them.
- W is fitted again after the last sweep, to the codes that are returned. Pairs are not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np
from scipy import sparse

from modalhash.core.blocks import FeatureBlocks
from modalhash.core.codes import pack_signs
from modalhash.core.features import FeatureMap, kernel_maps
from modalhash.core.linalg import RidgeFactor, balanced_procrustes, sign, squared, unit_rows
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, root_seed, row_keys, stream
from modalhash.core.typing import Array, Codes, PerModality
from modalhash.core.validation import Count, MemoryLimit, NonNegative, check_memory, per_modality
from modalhash.methods.base import CrossModalHasher, Training

FOMH_WEIGHT, FOMH_ITEMS = 1e-5, 370_000
"""α of FOMH, and the number of items of NUS-WIDE in both modalities."""
JOINT_ITER = 5
"""Rounds of :meth:`FMH.transform_together`, as in FOMH."""


@dataclass(frozen=True)
class LabelView:
    """Labels and kernel features of one modality."""

    Lt: sparse.csr_array
    phi: FeatureBlocks
    factor: RidgeFactor
    order: Array  # row ids of the data, in the order of the view
    rng: np.random.Generator

    @property
    def n(self) -> int:
        return len(self.order)

    def regress(self, B: Array) -> Array:
        """Return (ΦᵀΦ + ρI)⁻¹ ΦᵀB, the hash functions that fit the codes best."""
        B = self.in_data_order(B)
        right = np.zeros((self.phi.width, B.shape[1]))
        for rows, block in self.phi:
            right += block.T @ B[rows]
        return self.factor.solve(right)

    def predict(self, P: Array) -> Array:
        """Return Φ P, with rows in the order of the view."""
        return self.phi.project(P)[self.order]

    def codes(self, B: Array) -> Codes:
        return pack_signs(self.in_data_order(B))

    def in_data_order(self, X: Array) -> Array:
        out = np.empty_like(X)
        out[self.order] = X
        return out


def label_views(
    data: Training, maps: dict[str, FeatureMap], ridge: dict[str, float], seed: int, memory: int | None
) -> list[LabelView]:
    """Fit the feature maps and return the views; the features of all modalities share ``memory`` bytes."""
    assert data.Y is not None  # base checked
    share = None if memory is None else max(1, memory // len(maps))
    views = []
    for name, L in data.Y.items():
        phi = maps[name].fit_blocks(data.X[name], memory_limit=share)
        keys = row_keys(data.X[name], seed) ^ row_keys(L, seed)
        order = np.argsort(keys, kind="stable")
        Lt = sparse.csr_array(unit_rows(L[order]))
        views.append(LabelView(Lt, phi, RidgeFactor(phi.gram(), ridge[name]), order, stream(seed, keys)))
    return views


def squared_products(Lu: sparse.csr_array, Lv: sparse.csr_array) -> float:
    """Return ‖2 Lu Lvᵀ − 11ᵀ‖² from c × c sums."""
    cross = float((Lu.T @ Lu).multiply(Lv.T @ Lv).sum())
    return 4 * cross - 4 * float(Lu.sum(axis=0) @ Lv.sum(axis=0)) + float(Lu.shape[0]) * Lv.shape[0]


@dataclass(eq=False, repr=False)
class FMH(CrossModalHasher):
    r"""Codes per modality that reproduce label similarity to all items, after Zhu et al. (2020): a re-implementation.

    Reconstructed from the abstract and from the authors' FOMH (see the module). Minimises

    .. math::
        \sum_v\left(\lVert B_v - \Phi_vW_v\rVert^2 + \gamma\lVert W_v\rVert^2\right)
        + \alpha\lVert BD^T - rS\rVert^2 + \beta\lVert B - D\rVert^2

    subject to B = ±1, DᵀD = NI, 1ᵀD = 0, where B, D and S are over all N items of all modalities. Each step is its
    exact minimiser, so the objective never increases.

    Parameters
    ----------
    similarity : α. "auto" is FOMH's 1e-5 from 370,000 items (NUS-WIDE) up and grows as 370,000 / N below
    quantization : β, how closely codes follow D. Above α r times the items of a class, codes stay at their start
    ridge : γ; or a dict by modality
    max_iter : sweeps
    n_bits, kernel, n_anchors, memory_limit, random_state : as for :class:`~modalhash.methods.base.CrossModalHasher`
    """

    n_bits: int = 64
    _: KW_ONLY
    similarity: NonNegative | Literal["auto"] = "auto"
    quantization: NonNegative = 0.1
    ridge: PerModality[NonNegative] = 1e-3
    kernel: PerModality[str | None] = "rbf"
    n_anchors: PerModality[int] = 1000
    max_iter: Count = 10
    memory_limit: MemoryLimit = "2GB"
    random_state: RandomState = None

    def _fit(self, data: Training, report: Reporter) -> dict[str, Any]:
        alpha, beta, gamma = self._alpha(data), self.quantization, per_modality(self.ridge, data.X, "ridge")
        seed = root_seed(self.random_state)
        options: dict[str, Any] = {"seed": seed, "centred": False, "bias": True, "dtype": "float64"}
        maps = kernel_maps(data.X, data.Y, kernel=self.kernel, n_anchors=self.n_anchors, **options)
        views = label_views(data, maps, gamma, seed, check_memory(self.memory_limit))
        Lt = sparse.csr_array(sparse.vstack([view.Lt for view in views]))
        ends = np.cumsum([view.n for view in views])[:-1]
        report("features", 1, 1)

        N, r = Lt.shape[0], data.n_bits
        constant = alpha * (float(N) ** 2 * r + r**2 * squared_products(Lt, Lt))  # ‖BDᵀ‖² and ‖rS‖²
        B = np.vstack([sign(view.rng.standard_normal((view.n, r))) for view in views])
        rng = np.random.default_rng([seed, 0])
        trace: list[float] = []
        for sweep in range(self.max_iter):
            W = [view.regress(b) for view, b in zip(views, np.split(B, ends), strict=True)]  # 1.
            H = np.vstack([view.predict(w) for view, w in zip(views, W, strict=True)])
            D = balanced_procrustes(pull(B, Lt, alpha, beta), rng)  # 2.
            drawn = pull(D, Lt, alpha, beta)
            B = sign(H + drawn)  # 3.
            sizes = sum(g * squared(w) for g, w in zip(gamma.values(), W, strict=True))
            # β‖B − D‖² = 2βNr − 2β⟨B, D⟩; its second part is within ⟨drawn, B⟩, like that of the similarity
            trace.append(constant + squared(B - H) + sizes + 2 * beta * N * r - 2 * float(np.vdot(drawn, B)))
            report("codes", sweep + 1, self.max_iter, trace[-1])

        named = list(zip(data.X, views, np.split(B, ends), strict=True))
        return {
            "codes_": {name: view.codes(b) for name, view, b in named},
            "functions_": {name: view.regress(b) for name, view, b in named},
            "maps_": maps,
            "objective_": trace,
        }

    def transform_together(self, X: Mapping[str, Any]) -> Codes:
        """Return one code per item from several modalities; row k of every X is the same item.

        Five rounds alternate between the code and the modalities' weights for each item, 1 / 2‖b − Wφ‖.
        """
        H = list(self.decision_function(X).values())
        if len({len(h) for h in H}) > 1:
            counts = ", ".join(f"{name!r}: {len(h)}" for name, h in zip(X, H, strict=True))
            raise ValueError(f"transform_together needs as many items in every modality; got {counts}")
        together = np.sum(H, axis=0)
        for _ in range(JOINT_ITER):
            b = sign(together)
            distances = [np.linalg.norm(b - h, axis=1, keepdims=True) for h in H]
            together = np.sum([h / (2 * np.maximum(d, 1e-12)) for h, d in zip(H, distances, strict=True)], axis=0)
        return pack_signs(together)

    def _alpha(self, data: Training) -> float:
        if not isinstance(self.similarity, str):
            return self.similarity
        return FOMH_WEIGHT * max(1.0, FOMH_ITEMS / sum(X.shape[0] for X in data.X.values()))


def pull(X: Array, Lt: sparse.csr_array, alpha: float, beta: float) -> Array:
    """Return α r S X + β X without the 11ᵀ of S, the pull of B on D and of D on B."""
    return 2 * alpha * X.shape[1] * (Lt @ (Lt.T @ X)) + beta * X
