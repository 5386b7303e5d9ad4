r"""AMSH, step 2: hash functions from features to the codes of step 1.

Eq. (25) with the ridge ρ of the authors' code, for one modality:

.. math:: \min_{F,\,M\ge 0}\ \lVert B + B\circ M - \Phi F\rVert^2 + \rho\lVert F\rVert^2

The best M turns the first term into :math:`\sum\max(0, 1 - B\circ\Phi F)^2`: r linear SVMs with squared
hinge loss over one constant Gram matrix. Alternating Eq. (26) for F and Eq. (27) for M is then

.. math:: F \leftarrow F + (\Phi^T\Phi + \rho I)^{-1}(\Phi^T R - \rho F),\qquad R = B\circ\max(0, 1 - B\circ\Phi F)

exactly (put M into Eq. (26) and subtract F = G⁻¹GF). This form needs one walk over the data per iteration,
no M, and repairs the rounding of float32 blocks: its fixed point does not depend on the factor's accuracy.
The curvature being constant, Nesterov's extrapolation costs nothing and needs about half the iterations.

=============  ================  ==============================================
paper          here              is
=============  ================  ==============================================
:math:`\phi(X)`  ``phi`` (n, d)  kernel features, walked in blocks
:math:`B`      ``B`` (n, r)      codes, ±1
:math:`F`      ``F`` (d, r)      the hash functions
:math:`B\circ M`  inside ``R``   R = B + B∘M − ΦF, with the best M
=============  ================  ==============================================
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from modalhash._typing import Array
from modalhash.blocks import FeatureBlocks
from modalhash.linalg import RidgeFactor


def learn_functions(
    phi: FeatureBlocks,
    B: Array,
    factor: RidgeFactor,
    *,
    ridge: float,
    max_iter: int,
    tol: float,
    margins: bool = True,
    accelerated: bool = True,
    report: Callable[[int, float], None] = lambda step, objective: None,
) -> tuple[Array, list[float]]:
    """Algorithm 1, lines 9-12. Returns F and the objective after each iteration.

    With ``accelerated`` a value of the trace belongs to the extrapolated point from which the next
    iteration starts; the last one always belongs to the F that is returned.
    """
    d, r = phi.width, B.shape[1]
    if not margins:  # AMSH-m: M = 0, plain ridge regression
        max_iter = 1
    F = previous = point = np.zeros((d, r))
    momentum = np.ones(r)
    inverse = factor.inverse()
    trace: list[float] = []
    for step in range(max_iter):
        gradient, value = hinge_pass(phi, B, point, margins=margins, first=step == 0)
        if step:
            trace.append(value + ridge * float(np.vdot(point, point)))
            report(step, trace[-1])
            if tol > 0 and step > 1 and trace[-2] - trace[-1] <= tol * trace[-2]:
                F = point
                break
        gradient -= ridge * point
        previous, F = F, point + inverse @ gradient  # Eq. (26) with the best M of Eq. (27)
        point = F
        if accelerated:
            point, momentum = extrapolate(F, previous, gradient, momentum)
    else:
        value = hinge_pass(phi, B, F, margins=margins, gradient=False)[1]
        trace.append(value + ridge * float(np.vdot(F, F)))
        report(max_iter, trace[-1])
    return F, trace


def hinge_pass(
    phi: FeatureBlocks, B: Array, F: Array, *, margins: bool = True, first: bool = False, gradient: bool = True
) -> tuple[Array, float]:
    """One walk over the data: Φᵀ R and ‖R‖² at F. ``first``: F is zero, so R = B."""
    F = F.astype(phi.dtype)
    total = np.zeros(F.shape)
    value = 0.0
    for rows, block in phi:
        target = B[rows]
        if first:
            R = target
            value += float(target.size)
        else:
            R = block @ F
            np.multiply(R, target, out=R)
            np.subtract(1, R, out=R)
            if margins:
                np.maximum(R, 0, out=R)  # B∘M takes what exceeds the code: Eq. (27)
            value += float(np.vdot(R, R))
            np.multiply(R, target, out=R)
        if gradient:
            total += block.T @ R
    return total, value


def extrapolate(F: Array, previous: Array, gradient: Array, momentum: Array) -> tuple[Array, Array]:
    """Nesterov's point beyond F, bit by bit; a bit whose momentum points uphill starts afresh."""
    step = F - previous
    downhill = np.einsum("ij,ij->j", gradient, step) >= 0  # gradient: descent direction at the last point
    momentum = np.where(downhill, momentum, 1.0)
    following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
    return F + step * ((momentum - 1) / following), following
