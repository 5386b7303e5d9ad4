r"""EDMH: Enhanced Discrete Multi-modal Hashing (Chen et al., IEEE TKDE 2022). A re-implementation.

Neither the authors' code nor the full text of the paper was available. The equations are reconstructed from its
abstract and from SCDH, the single-modal method of the same authors that it extends; results may differ from the
authors'.

Codes of one modality times a real-valued companion of another's codes reproduce the similarity by labels. The
companions carry the constraints, balanced and uncorrelated bits, so that every step has a closed form. The hash
functions are learned jointly with the codes.

=======================  ====================  ====================================================
symbol                   here                  is
=======================  ====================  ====================================================
:math:`\tilde L_v`       ``Lt[v]`` (n_v, c)    labels with rows of length 1
:math:`S_{uv}`           --                    similarity by labels; never formed
:math:`\Phi_v`           ``view.phi`` (n_v, m)  kernel features and a column of ones
:math:`B_v`              ``B[v]`` (n_v, r)     codes, ±1
:math:`Z_v`              ``Z[v]`` (n_v, r)     companions, ZᵀZ = n_v I, 1ᵀZ = 0
:math:`P_v`              ``P[v]`` (m, r)       hash functions
:math:`\alpha`           ``quantization``      ‖B − Z‖²
:math:`\lambda`          ``regression``        ‖ΦP − B‖²
:math:`\beta`            ``ridge``             ‖P‖²
:math:`\omega`           ``intra``             similarity within a modality
=======================  ====================  ====================================================

Choices where the reconstruction is open:

- ω. With ω = 0 and two modalities, the problems of (B₁, Z₂) and (B₂, Z₁) are coupled by α alone, which n outweighs, and
  retrieval between modalities is near chance (Wiki, 16 bits, learned database: .21 and .18; .35 and .74 with ω = 1).
  Therefore SCDH's terms within a modality are included by default.
- With more than two modalities the sum is over all ordered pairs; every step stays exact.
- Pairs are not used; the paper's variant with one code per pair is not implemented.
- P is fitted again after the last sweep, to the codes that are returned.
- sgn(0) = −1 (SCDH: +1).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from scipy import sparse

from modalhash.core.features import kernel_maps
from modalhash.core.linalg import balanced_procrustes, sign, squared
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, root_seed
from modalhash.core.typing import Array, PerModality
from modalhash.core.validation import Count, MemoryLimit, NonNegative, Positive, check_memory
from modalhash.methods.base import CrossModalHasher, Training
from modalhash.methods.fmh import label_views, squared_products


@dataclass(eq=False, repr=False)
class EDMH(CrossModalHasher):
    r"""Codes from similarity by labels, with their functions, after Chen et al. (2022): a re-implementation.

    Reconstructed from the abstract and from the authors' earlier SCDH (see the module). Minimises

    .. math::
        \sum_{u,v} \omega_{uv}\lVert rS_{uv} - B_uZ_v^T\rVert^2
        + \sum_v \lambda\lVert\Phi_vP_v - B_v\rVert^2 + \alpha\lVert B_v - Z_v\rVert^2 + \beta\lVert P_v\rVert^2

    over ordered pairs of modalities, with :math:`\omega_{uv}` = 1 between modalities and ω within one, subject to
    B = ±1, ZᵀZ = nI, 1ᵀZ = 0. Each step is an exact minimiser, so the objective never increases.

    Parameters
    ----------
    intra : ω, similarity within a modality. 0 leaves the codes of two modalities unaligned
    quantization : α, how closely codes follow their companions
    regression : λ, how closely codes follow the hash functions; for many items the similarity outweighs α and λ
    ridge : β
    kernel : "paper", :math:`\exp(-\lVert x - a\rVert/2\sigma^2)` between rows of length 1, as in SCDH;
        another name in :data:`modalhash.core.features.KERNELS` or "auto"; or a dict by modality
    bandwidth : σ of the kernel "paper"
    n_anchors : anchors of the kernel, capped at the number of items; or a dict by modality. With nearly as
        many anchors as items the functions memorise the training items (Wiki, text to image: mAP .72, new items .24)
    max_iter : sweeps
    n_bits, memory_limit, random_state : as for :class:`~modalhash.methods.base.CrossModalHasher`
    """

    n_bits: int = 64
    _: KW_ONLY
    intra: NonNegative = 1.0
    quantization: NonNegative = 0.1
    regression: Positive = 10.0
    ridge: NonNegative = 1.0
    kernel: PerModality[str | None] = "paper"
    bandwidth: Positive = 0.4
    n_anchors: PerModality[int] = 2000
    max_iter: Count = 10
    memory_limit: MemoryLimit = "2GB"
    random_state: RandomState = None

    def _fit(self, data: Training, report: Reporter) -> dict[str, Any]:
        omega, alpha, lam, beta = self.intra, self.quantization, self.regression, self.ridge
        if omega == 0 and len(data.X) == 1:
            raise ValueError("EDMH: with one modality and intra=0 there is no similarity to learn from; pass intra=1")
        seed = root_seed(self.random_state)
        options: dict[str, Any] = {"seed": seed, "centred": False, "bias": True, "dtype": "float64"}
        options["paper"] = {"squared": False, "bandwidth": float(self.bandwidth), "rows": "unit"}
        maps = kernel_maps(data.X, data.Y, kernel=self.kernel, n_anchors=self.n_anchors, **options)
        ridge = dict.fromkeys(maps, beta / lam)  # λΦᵀΦ + βI, divided by λ
        views = label_views(data, maps, ridge, seed, check_memory(self.memory_limit))
        report("features", 1, 1)

        Lt = [view.Lt for view in views]
        Z = [balanced_procrustes(v.rng.standard_normal((v.n, data.n_bits)), v.rng) for v in views]
        B = [sign(z) for z in Z]
        constant = similarity_size(Lt, data.n_bits, omega)
        trace: list[float] = []
        for sweep in range(self.max_iter):
            P = [view.regress(b) for view, b in zip(views, B, strict=True)]  # 1.
            H = [view.predict(p) for view, p in zip(views, P, strict=True)]
            pulls = similarity_pulls(Lt, B, omega)
            Z = [update_Z(s, b, alpha, view.rng) for s, b, view in zip(pulls, B, views, strict=True)]  # 2.
            pulls = similarity_pulls(Lt, Z, omega)
            B = [update_B(s, z, h, alpha, lam) for s, z, h in zip(pulls, Z, H, strict=True)]  # 3.
            fit = sum(lam * squared(h - b) + beta * squared(p) for h, b, p in zip(H, B, P, strict=True))
            trace.append(constant + code_objective(pulls, B, Z, alpha) + fit)
            report("codes", sweep + 1, self.max_iter, trace[-1])

        names = list(data.X)
        return {
            "codes_": {name: view.codes(b) for name, view, b in zip(names, views, B, strict=True)},
            "functions_": {name: view.regress(b) for name, view, b in zip(names, views, B, strict=True)},
            "maps_": maps,
            "objective_": trace,
        }


def similarity_pulls(Lt: list[sparse.csr_array], X: list[Array], omega: float) -> list[Array]:
    """Return Σ_u ω_vu r S_vu X_u for every v, without the 11ᵀ of S, which changes no step."""
    r = X[0].shape[1]
    sums = [labels.T @ x for labels, x in zip(Lt, X, strict=True)]
    total = np.sum(sums, axis=0)
    return [2 * r * (labels @ (total - (1 - omega) * own)) for labels, own in zip(Lt, sums, strict=True)]


def update_Z(pull: Array, B: Array, alpha: float, rng: np.random.Generator) -> Array:
    """Return the exact minimiser: ‖B_u Z_vᵀ‖² = n_v‖B_u‖² is constant, and the rest is linear in Z."""
    return balanced_procrustes(pull + alpha * B, rng)


def update_B(pull: Array, Z: Array, H: Array, alpha: float, lam: float) -> Array:
    """Return the exact minimiser, for the same reason; H = ΦP."""
    return sign(pull + alpha * Z + lam * H)


def code_objective(pulls: list[Array], B: list[Array], Z: list[Array], alpha: float) -> float:
    """Return the terms in B and Z less the constant ones; ``pulls`` are Σ ω r S_vu Z_u."""
    return sum(alpha * squared(b - z) - 2 * float(np.vdot(pull, b)) for pull, b, z in zip(pulls, B, Z, strict=True))


def similarity_size(Lt: list[sparse.csr_array], r: int, omega: float) -> float:
    """Return Σ ω_uv (r²‖S_uv‖² + ‖B_u Z_vᵀ‖²), the constant part of the objective."""
    return sum(
        (1.0 if u != v else omega) * (r**2 * squared_products(Lu, Lv) + float(r) * Lu.shape[0] * Lv.shape[0])
        for u, Lu in enumerate(Lt)
        for v, Lv in enumerate(Lt)
    )
