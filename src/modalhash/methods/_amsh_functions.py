r"""AMSH, step 2: hash functions from features to the codes of step 1.

Eq. (25) with the ridge ρ of the authors' code, for one modality:

.. math:: \min_{F,\,M\ge 0}\ \lVert B + B\circ M - \Phi F\rVert^2 + \rho\lVert F\rVert^2

The best M turns the first term into :math:`\sum\max(0, 1 - B\circ\Phi F)^2`: r linear SVMs with squared
hinge loss over one constant Gram matrix. Alternating Eq. (26) for F and Eq. (27) for M is then

.. math:: F \leftarrow F + (\Phi^T\Phi + \rho I)^{-1}(\Phi^T R - \rho F),\qquad R = B\circ\max(0, 1 - B\circ\Phi F)

exactly (put M into Eq. (26) and subtract F = G⁻¹GF). This form needs one pass over the data per iteration,
no M, and repairs the rounding of float32 blocks: its fixed point does not depend on the factor's accuracy.
The curvature being constant, Nesterov's extrapolation costs nothing and needs about half the iterations.

Bits know nothing of each other here. Codes of several lengths for the same items are learned together: each pass over
the data serves the bits of all of them.

=============  ================  ==============================================
paper          here              is
=============  ================  ==============================================
:math:`\phi(X)`  ``phi`` (n, d)  kernel features, in blocks
:math:`B`      ``B`` (n, r)      codes, ±1; those of several lengths next to each other
:math:`F`      ``F`` (d, r)      the hash functions
:math:`B\circ M`  inside ``R``   R = B + B∘M − ΦF, with the best M
=============  ================  ==============================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from modalhash._typing import Array
from modalhash.blocks import Parts, product, row_slices

STRIP_BYTES = 2**21
"""Features worked on at once: from ΦF to ΦᵀR they stay in the cache."""


def learn_functions(
    phi: Parts,
    codes: Sequence[Array],
    inverse: Array,
    *,
    ridge: float,
    max_iter: int,
    tol: float,
    margins: bool = True,
    accelerated: bool = True,
    report: Callable[[int, float], None] = lambda step, objective: None,
) -> list[tuple[Array, list[float]]]:
    """Algorithm 1, lines 9-12, for codes of one or several lengths. Returns F and its trace for each.

    ``inverse`` is (ΦᵀΦ + ρI)⁻¹. A trace holds the objective after each iteration. With ``accelerated`` a value
    belongs to the extrapolated point from which the next iteration starts; the last one always belongs to the F
    that is returned.
    """
    if tol > 0 and len(codes) > 1:  # each ends at an iteration of its own
        learn = partial(
            learn_functions, ridge=ridge, max_iter=max_iter, tol=tol, margins=margins, accelerated=accelerated
        )
        return [learn(phi, [B], inverse, report=report)[0] for B in codes]
    if not margins:  # AMSH-m: M = 0, plain ridge regression
        max_iter = 1
    B = np.asarray(codes[0] if len(codes) == 1 else np.hstack(codes), dtype=np.int8)
    F = previous = point = np.zeros((phi.width, B.shape[1]))
    momentum = np.ones(B.shape[1])
    trace: list[Array] = []
    for step in range(max_iter):
        gradient, values = hinge_pass(phi, B, point, margins=margins, first=step == 0)
        if step:
            trace.append(_checked(values + ridge * _squares(point), phi.n))
            report(step, float(trace[-1].sum()))
            if tol > 0 and step > 1 and trace[-2].sum() - trace[-1].sum() <= tol * trace[-2].sum():
                F = point
                break
        gradient -= ridge * point
        previous, F = F, point + product(inverse, gradient)  # Eq. (26) with the best M of Eq. (27)
        point = F
        if accelerated:
            point, momentum = extrapolate(F, previous, gradient, momentum)
    else:
        values = hinge_pass(phi, B, F, margins=margins, gradient=False)[1]
        trace.append(_checked(values + ridge * _squares(F), phi.n))
        report(max_iter, float(trace[-1].sum()))
    ends = np.cumsum([B.shape[1] for B in codes])[:-1]
    traces = [[float(step.sum()) for step in steps] for steps in zip(*(np.split(t, ends) for t in trace), strict=True)]
    return list(zip(np.split(F, ends, axis=1), traces, strict=True))


def hinge_pass(
    phi: Parts, B: Array, F: Array, *, margins: bool = True, first: bool = False, gradient: bool = True
) -> tuple[Array, Array]:
    """One pass over the data: Φᵀ R, and ‖R‖² of each bit, at F. ``first``: F is zero, so R = B."""
    work = partial(hinge_terms, margins=margins, first=first, gradient=gradient)
    total, values = phi.total(work, per_item=(B,), shared=(F.astype(phi.dtype),))
    return total, values


def hinge_terms(block: Array, B: Array, F: Array, *, margins: bool, first: bool, gradient: bool) -> tuple[Array, Array]:
    """φᵀR and ‖R‖² of each bit for one block φ, its codes B and the functions F, strip by strip."""
    dtype = F.dtype
    zeros = np.zeros(F.shape[1], dtype=dtype)  # a row: numpy's maximum with a single number is not vectorised
    size = max(1, STRIP_BYTES // (block.shape[1] * dtype.itemsize))
    total, values = np.zeros(F.shape, dtype=dtype), np.zeros(F.shape[1])
    for strip in row_slices(len(block), size):
        features, R = block[strip], B[strip].astype(dtype)
        if first:
            values += len(R)
        else:
            target = R
            R = features @ F
            R *= target
            np.subtract(1, R, out=R)
            if margins:
                np.maximum(R, zeros, out=R)  # B∘M takes what exceeds the code: Eq. (27)
            values += _squares(R)
            R *= target
        if gradient:
            total += features.T @ R
    return total, values


def _squares(X: Array) -> Array:
    return np.asarray(np.einsum("ij,ij->j", X, X))


def _checked(values: Array, start: int) -> Array:
    """The objective of each bit, unless it has left the value at F = 0 behind: then the factor is no majoriser."""
    if not np.all(values <= 2 * start):
        raise ValueError(
            "the hash functions diverge: features are nearly dependent and the ridge is too small for their "
            "precision; pass a larger ridge, or precision='float64'"
        )
    return values


def extrapolate(F: Array, previous: Array, gradient: Array, momentum: Array) -> tuple[Array, Array]:
    """Nesterov's point beyond F, bit by bit; a bit whose momentum points uphill starts afresh."""
    step = F - previous
    downhill = np.einsum("ij,ij->j", gradient, step) >= 0  # gradient: descent direction at the last point
    momentum = np.where(downhill, momentum, 1.0)
    following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
    return F + step * ((momentum - 1) / following), following
