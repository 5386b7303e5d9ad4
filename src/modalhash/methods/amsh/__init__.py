r"""AMSH: Adaptive Marginalized Semantic Hashing (Luo et al., IEEE TMM 2023).

Step 1 learns, from labels alone, balanced and uncorrelated codes for every modality, such that items that share labels
get close codes within and between modalities. Items of different modalities need not be paired. Step 2 learns, for each
modality, functions from features to these codes. Adaptive margins let both regressions overshoot their targets in the
right direction.

==================  ===============================================  =========================================
paper               here                                             where
==================  ===============================================  =========================================
:math:`r`           ``n_bits``
:math:`\eta`        ``quantization``                                 Eq. (10), ‖B − V‖²
:math:`\lambda`     ``intra``                                        Eq. (10), ‖BᵀV − rS‖² within a modality
:math:`\beta`       ``inter``                                        Eq. (10), ‖VᵀV − rS‖² between modalities
:math:`V, B, P, E`  :mod:`.codes`                                    step 1, Eqs. (10)-(21)
:math:`F, M`        :mod:`.functions`                                step 2, Eqs. (25)-(27)
:math:`\phi`        :class:`modalhash.core.features.AnchorKernel`    Eq. (24)
==================  ===============================================  =========================================

Where the paper and the authors' code differ, the kernel has squared distances and step 2 a ridge, as in the code
(``kernel="rbf-unsquared"`` and ``ridge=0`` are as printed), and V starts at random, as in the paper (``init="pca"``, as
in the code, has the same mAP on IAPR TC-12 and up to .03 less on Wiki). The completion and the rank test of Theorem
III.1 are improved over both, see :func:`modalhash.core.linalg.balanced_procrustes`. The sum over i ≠ j of Eq. (10) is
over unordered pairs, for which the printed updates are exact; ``cross_pairs="ordered"`` counts each pair twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from itertools import repeat
from typing import Any, Literal

import numpy as np

from modalhash.core.blocks import FeatureRows
from modalhash.core.codes import pack_signs
from modalhash.core.features import FeatureMap, kernel_maps
from modalhash.core.linalg import RidgeFactor, has_converged
from modalhash.core.parallel import parallel_map, submit, worker_threads
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, root_seed
from modalhash.core.typing import Array, Matrix, PerModality
from modalhash.core.validation import Count, Flag, MemoryLimit, NonNegative, check_memory, per_modality
from modalhash.methods.amsh.codes import (
    Start,
    View,
    Weights,
    objective,
    step_1_threads,
    update_B,
    update_E,
    update_P,
    update_V,
)
from modalhash.methods.amsh.functions import HashFunctions, sample_rows
from modalhash.methods.base import CrossModalHasher, Training

PAPER_WEIGHT, PAPER_ITEMS = 1e-3, 15_000
"""λ and β of the paper, and the approximate size of its smallest data set."""
PAPER_STEPS, ACCELERATED_STEPS = 15, 4
"""Iterations of step 2 in the paper, and accelerated iterations that reach its objective within .6 % on all data."""


class KernelFeatures:
    """Φ of each modality, computed on access, and (ΦᵀΦ + ρI)⁻¹.

    Parameters
    ----------
    X : features by modality
    maps : unfitted feature maps by modality
    memory_limit : bytes for features held in memory, or None
    keep : hold the features of all modalities, which then share the limit, for a start of V from them or for several
        code lengths
    """

    def __init__(
        self, X: Mapping[str, Matrix], maps: dict[str, FeatureMap], memory_limit: int | None, *, keep: bool
    ) -> None:
        self.maps, self._X, self._keep = maps, X, keep
        self._memory = memory_limit // len(maps) if keep and memory_limit is not None else memory_limit
        self._kept: dict[str, FeatureRows] = {}
        self._inverses: dict[str, Callable[[], Array]] = {}

    def __getitem__(self, name: str) -> FeatureRows:
        if name in self._kept:
            return self._kept[name]
        phi = self.maps[name].fit_parts(self._X[name], memory_limit=self._memory)
        if self._keep:
            self._kept[name] = phi
        return phi

    def __call__(self, name: str, ridge: float) -> tuple[FeatureRows, Callable[[], Array]]:
        """Return Φ, and a function that waits for (ΦᵀΦ + ρI)⁻¹, computed by a worker thread."""
        phi = self[name]
        if name in self._inverses:
            return phi, self._inverses[name]
        inverse = submit(_inverse, phi.gram(), ridge)
        if self._keep:
            self._inverses[name] = inverse
        return phi, inverse


def _inverse(gram: Array, ridge: float) -> Array:
    return RidgeFactor(gram, ridge).inverse()


@dataclass(eq=False, repr=False)
class AMSH(CrossModalHasher):
    r"""Adaptive Marginalized Semantic Hashing for unpaired modalities, after Luo et al. (2023).

    Step 1 minimises Eq. (10),

    .. math::
        \sum_i \lVert L_i + R_i\circ E_i - P_iV_i\rVert^2 + \eta\lVert B_i - V_i\rVert^2
        + \lambda\lVert B_i^TV_i - rS_{ii}\rVert^2 + \beta\sum_{i<j}\lVert V_j^TV_i - rS_{ji}\rVert^2

    subject to E ≥ 0, B = ±1, VVᵀ = nI, V1 = 0; step 2 minimises Eq. (25) with a ridge.

    Parameters
    ----------
    quantization : η, how closely codes follow the latent representation
    intra : λ, similarity by labels within a modality; 0 is the ablation AMSH-s. The weights do not scale with the
        number n of items of the smallest modality, so "auto" is the paper's 1e-3 from 15,000 items on, the size of its
        smallest data set, and 1e-3 · 15,000 / n below
    inter : β, similarity by labels between modalities, or "auto" as for ``intra``; 0 is AMSH-t, which leaves modalities
        unaligned
    margins : True; False is AMSH-m; "labels" or "bits" keeps only those of step 1 or step 2
    kernel : as for the base class; "rbf-unsquared" is as printed in the paper, and None is AMSH-k
    ridge : ρ of step 2; 0.01 in the authors' code, absent in the paper; or a dict by modality
    init : "random" start of V (paper), or "pca" of the kernel features (authors' code)
    solver : "samples" (paper: one row of V per item), "patterns" (items with the same labels share rows) or "auto",
        which is patterns if, in every modality, there are at least ``4 * n_bits`` of them with fewer rows than half the
        items, or fewer rows than a sixteenth of the items
    accelerated : longer steps in step 2; False is the paper's plain alternation
    code_iter : iterations of step 1
    function_iter : iterations of step 2; None for 15 plain ones (paper) or 4 accelerated ones, which go as low
    tol : of both steps, as for the base class
    cross_pairs : "unordered" or "ordered"
    precision : "float32" or "float64", of the large products in step 2; sums are float64 in both
    unlabelled : "error" or "allow", for items without any label
    n_bits, n_anchors, memory_limit, random_state : as for :class:`~modalhash.methods.base.CrossModalHasher`

    Attributes
    ----------
    objective_ : ``{"codes": trace of Eq. (10), "functions": {modality: trace of Eq. (25)}}``
    solver_ : "samples" or "patterns"

    Examples
    --------
    >>> from modalhash.data import generate
    >>> data = generate(n_items=200, seed=0)
    >>> model = AMSH(n_bits=16, n_anchors=100, random_state=0).fit(data.X, data.Y)
    >>> model.codes_["image"].shape, model.transform({"text": data.X["text"][:5]})["text"].shape
    ((200, 2), (5, 2))
    """

    distributed = True
    shares_lengths = True

    n_bits: int = 64
    _: KW_ONLY
    quantization: NonNegative = 1.0
    intra: NonNegative | Literal["auto"] = "auto"
    inter: NonNegative | Literal["auto"] = "auto"
    margins: Literal[True, False, "labels", "bits"] = True
    kernel: PerModality[str | None] = "rbf"
    n_anchors: PerModality[int] = 1500
    ridge: PerModality[NonNegative] = 0.01
    init: Literal["random", "pca"] = "random"
    solver: Literal["auto", "samples", "patterns"] = "auto"
    accelerated: Flag = True
    code_iter: Count = 15
    function_iter: Count | None = None
    tol: NonNegative = 0.0
    cross_pairs: Literal["unordered", "ordered"] = "unordered"
    precision: Literal["float32", "float64"] = "float32"
    memory_limit: MemoryLimit = "2GB"
    unlabelled: str = "error"
    random_state: RandomState = None

    @worker_threads()
    def _fit(self, data: Training, report: Reporter) -> dict[str, Any]:
        """Algorithm 1 of the paper."""
        weights, ridge, n_steps = self._weights(data), per_modality(self.ridge, data.X, "ridge"), self._n_steps()
        features, views = self._initialise(data)  # line 1
        solver, trace = "samples" if views[0].w is None else "patterns", []
        with step_1_threads(views):
            for step in range(1, self.code_iter + 1):  # lines 2-7
                for view in views:
                    update_P(view)  # Eq. (12)
                    update_V(view, views, weights)  # Theorem III.1
                    update_B(view, weights)  # Eq. (18)
                    update_E(view, weights)  # Eq. (21)
                trace.append(objective(views, weights))  # Eq. (10)
                report(f"codes ({solver})", step, self.code_iter, trace[-1])
                if has_converged(trace, self.tol):
                    break
        B, orders = [view.item_codes() for view in views], [view.order for view in views]
        del views, view
        F, traces = {}, {}
        for name, codes, order in zip(data.X, B, orders, strict=True):
            phi, inverse = features(name, ridge[name])  # line 8, Eq. (24); (ΦᵀΦ + ρI)⁻¹
            report("features", 1, 1)
            functions = HashFunctions(phi, codes, ridge=ridge[name], **self._step_2(order))  # F = 0, M = 0
            for step in range(1, n_steps + 1):  # lines 9-12
                functions.update_F(inverse())  # Eq. (26)
                functions.update_M(final=step == n_steps)  # Eq. (27)
                report(f"functions: {name}", step, n_steps, functions.trace[-1])
                if functions.has_converged(self.tol):
                    break
            F[name], traces[name] = functions.F.astype(self.precision), np.array(functions.trace)
            del phi, inverse, functions  # before the features of the next modality are computed
        return {
            "codes_": {name: pack_signs(codes) for name, codes in zip(data.X, B, strict=True)},
            "maps_": features.maps,
            "functions_": F,
            "solver_": solver,
            "objective_": {"codes": np.array(trace), "functions": traces},
            "n_iter_": {"codes": len(trace), "functions": {name: len(steps) for name, steps in traces.items()}},
        }

    def _initialise(self, data: Training) -> tuple[KernelFeatures, list[View]]:
        """Return the kernel features, computed on access, and the state of each modality with P = 0 and E = 0."""
        assert data.Y is not None
        seed, longest = data.once("start", lambda: (root_seed(self.random_state), data.n_bits))
        options: dict[str, Any] = {"kernel": self.kernel, "n_anchors": self.n_anchors, "dtype": self.precision}
        maps = data.once("maps", kernel_maps, data.X, data.Y, seed=seed, **options)
        keep = data.shared is not None or self.init == "pca"
        features = data.once("features", KernelFeatures, data.X, maps, check_memory(self.memory_limit), keep=keep)
        phi = [features[name] if self.init == "pca" else None for name in data.X]
        made = parallel_map(Start.of, data.X.values(), data.Y.values(), phi, repeat(longest), repeat(seed))
        starts: list[Start] = data.once("starts", list, made)
        shared = self.solver == "patterns"
        if self.solver == "auto":
            shared = all(start.worth_sharing(data.n_bits) for start in starts)
        return features, [start.view(data.n_bits, shared=shared) for start in starts]

    def _step_2(self, order: Array) -> dict[str, Any]:
        """Return the options of step 2, with a sample that is evenly spaced in the order of content."""
        sample = order[sample_rows(len(order))]
        return {"margins": self.margins in (True, "bits"), "accelerated": self.accelerated, "sample": sample}

    def _n_steps(self) -> int:
        """Return the number of iterations of step 2; without margins, one solves the ridge regression."""
        if self.margins not in (True, "bits"):
            return 1
        return self.function_iter or (ACCELERATED_STEPS if self.accelerated else PAPER_STEPS)

    def _weights(self, data: Training) -> Weights:
        """Return η, λ and β; "auto" is the paper's value, scaled up for smaller data sets."""
        automatic = PAPER_WEIGHT * max(1.0, PAPER_ITEMS / min(X.shape[0] for X in data.X.values()))
        intra, inter = (automatic if value == "auto" else float(value) for value in (self.intra, self.inter))
        return Weights(
            quantization=float(self.quantization),
            intra=intra,
            # ‖VⱼᵀVᵢ − rSⱼᵢ‖² and its transpose are equal, so ordered pairs have twice the weight
            inter=2 * inter if self.cross_pairs == "ordered" else inter,
            label_margins=self.margins in (True, "labels"),
        )
