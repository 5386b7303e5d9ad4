r"""CCA-ITQ: canonical correlation analysis with an iterative quantization rotation. A control.

A simple baseline from pairs to codes: project both modalities to where they correlate most, then rotate that space to
minimise the quantisation error.

==================  ====================  ==================================================================
Gong et al. (2013)  here                  is
==================  ====================  ==================================================================
:math:`W_x, W_y`    ``W[name]`` (d, p)    canonical directions times the p-th power of their correlations
:math:`V`           ``V`` (n, p)          mean of the two projections of a pair
:math:`R`           ``R`` (p, r)          the rotation, RRᵀ = I
:math:`B`           ``B`` (n, r)          codes, ±1
==================  ====================  ==================================================================

Gong et al. used labels as the second view; here it is the other modality, and the rotation is learned on the mean of
both, so that a pair has one code. With more bits than directions (at most the features of the narrower modality) R is
wide instead of square, and the bits are signs in a tight frame.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import numpy as np

from modalhash.core.features import Linear
from modalhash.core.linalg import canonical_directions, sign
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, root_seed
from modalhash.core.typing import Array, Matrix
from modalhash.core.validation import Count, NonNegative
from modalhash.methods.base import PairCodes, PairedHasher
from modalhash.methods.itq import learn_rotation


@dataclass(eq=False, repr=False)
class CCAITQ(PairedHasher):
    r"""Canonical correlations and a rotation, after Gong et al. (2013): a control, unsupervised.

    .. math:: \min_{B, R}\; \lVert B - VR\rVert^2 \quad\text{subject to}\quad B = \pm 1,\; RR^T = I

    Both steps are exact minimisers, so the objective never increases.

    Parameters
    ----------
    n_bits : length of the codes, below the number of pairs
    regularization : added to the covariances' diagonal, as a share of the mean variance of a feature
    power : exponent of the correlation that scales a direction; 0 weights all directions equally
    max_iter : sweeps of the rotation
    random_state : int, Generator or None, for the start of the rotation

    Attributes
    ----------
    correlations_ : canonical correlations of the directions used
    """

    supervised: ClassVar[bool] = False

    n_bits: int = 64
    _: KW_ONLY
    regularization: NonNegative = 1e-2
    power: NonNegative = 1.0
    max_iter: Count = 50
    random_state: RandomState = None

    def _fit_pairs(self, X: dict[str, Matrix], L: Array, n_bits: int, report: Reporter) -> PairCodes:
        rng = np.random.default_rng(root_seed(self.random_state))
        maps = {name: Linear(rows="unit", dtype="float64") for name in X}
        F = [maps[name].fit_blocks(X[name]).whole() for name in X]
        *W, correlations = canonical_directions(F[0], F[1], n_bits, self.regularization)
        W = [directions * correlations**self.power for directions in W]
        V = (F[0] @ W[0] + F[1] @ W[1]) / 2
        report("directions", 1, 1)

        R, trace = learn_rotation(
            V, n_bits, self.max_iter, rng, lambda step, value: report("rotation", step, self.max_iter, value)
        )
        return sign(V @ R), {
            "maps_": maps,
            "functions_": {name: directions @ R for name, directions in zip(X, W, strict=True)},
            "correlations_": correlations,
            "objective_": trace.tolist(),
        }
