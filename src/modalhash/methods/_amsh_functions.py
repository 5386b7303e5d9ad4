r"""AMSH, step 2: hash functions from features to the codes of step 1.

Eq. (25) with the ridge ρ of the authors' code, for one modality:

.. math:: \min_{F,\,M\ge 0}\ \lVert B + B\circ M - \Phi F\rVert^2 + \rho\lVert F\rVert^2

The best M turns the first term into :math:`\sum\max(0, 1 - B\circ\Phi F)^2`: r linear SVMs with squared
hinge loss over one constant Gram matrix. Alternating Eq. (26) for F and Eq. (27) for M is then

.. math:: F \leftarrow F + (\Phi^T\Phi + \rho I)^{-1}(\Phi^T R - \rho F),\qquad R = B\circ\max(0, 1 - B\circ\Phi F)

exactly (put M into Eq. (26) and subtract F = G⁻¹GF). This form needs one pass over the data per iteration,
no M, and repairs the rounding of float32 blocks: its fixed point does not depend on the factor's accuracy.

The step is short: it counts all items, though about half of them soon satisfy the margin of a bit and no longer matter
to it. The last steps, and how far the gradient changed along them, tell the true curvature in the plane that they span.
An accelerated iteration goes to the lowest point of that plane first and takes the step from there,

.. math:: F \leftarrow F + Dc + (\Phi^T\Phi + \rho I)^{-1}(g - Yc),\qquad D^TYc = D^Tg

for each bit on its own, where g = ΦᵀR − ρF is the negative gradient, D holds the bit's last two steps and Y how much g
fell along each. This is Anderson's mixing with a Galerkin condition. It costs no further pass over the data, and five
iterations go as low as fifteen plain ones. A bit whose objective would rise goes back and takes the plain step, which
cannot rise.

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
from dataclasses import dataclass
from functools import partial

import numpy as np

from modalhash._typing import Array
from modalhash.blocks import Parts, product, row_slices

STRIP_BYTES = 2**21
"""Features worked on at once: from ΦF to ΦᵀR they stay in the cache."""
PARALLEL = 1e-6
"""Squared sine of the angle between two steps below which they span no plane worth the name."""


def learn_functions(
    phi: Parts,
    codes: Sequence[Array],
    inverse: Array | Callable[[], Array],
    *,
    ridge: float,
    max_iter: int,
    tol: float,
    margins: bool = True,
    accelerated: bool = True,
    report: Callable[[int, float], None] = lambda step, objective: None,
) -> list[tuple[Array, list[float]]]:
    """Algorithm 1, lines 9-12, for codes of one or several lengths. Returns F and its trace for each.

    ``inverse`` is (ΦᵀΦ + ρI)⁻¹, or a function that waits for it: the first pass over the data does not need it yet. A
    trace holds the objective after each iteration and never rises; its last value belongs to the F that is returned.
    """
    if tol > 0 and len(codes) > 1:  # each ends at an iteration of its own
        learn = partial(
            learn_functions, ridge=ridge, max_iter=max_iter, tol=tol, margins=margins, accelerated=accelerated
        )
        return [learn(phi, [B], inverse, report=report)[0] for B in codes]
    if not margins:  # AMSH-m: M = 0, plain ridge regression
        max_iter = 1
    B = np.asarray(codes[0] if len(codes) == 1 else np.hstack(codes), dtype=np.int8)
    at = _Point(np.zeros((phi.width, B.shape[1])), np.zeros(0), np.full(B.shape[1], np.inf))
    F, plane = at.F, _Plane()
    trace: list[Array] = []
    for step in range(max_iter + 1):
        gradient, values = hinge_pass(phi, B, F, margins=margins, first=step == 0, gradient=step < max_iter)
        gradient -= ridge * F
        new = _Point(F, gradient, _checked(values + ridge * _squares(F), phi.n, plane.used))
        at, last = new.unless_above(at) if accelerated else new, at
        if step:
            trace.append(at.values)
            report(step, float(at.values.sum()))
            fell = float(last.values.sum() - at.values.sum())
            if tol > 0 and step > 1 and fell <= tol * float(last.values.sum()) and at is new:
                break
        if step == max_iter:
            break
        if accelerated and step:
            plane.add(at.F - last.F, last.gradient - at.gradient)
        F, gradient = plane.lowest(at.F, at.gradient)
        F = F + product(inverse() if callable(inverse) else inverse, gradient)  # Eq. (26) with the best M of Eq. (27)
    F = at.F
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
    return _dots(X, X)


def _checked(values: Array, start: int, accelerated: Array | bool) -> Array:
    """The objective of each bit, unless a plain step left that at F = 0 behind: then the factor is no majoriser."""
    if not np.all(accelerated | (values <= 2 * start)):
        raise ValueError(
            "the hash functions diverge: features are nearly dependent and the ridge is too small for their "
            "precision; pass a larger ridge, or precision='float64'"
        )
    return values


@dataclass(frozen=True)
class _Point:
    """Functions, the negative gradient there, and the objective of each bit."""

    F: Array
    gradient: Array
    values: Array

    def unless_above(self, last: _Point) -> _Point:
        """Return this point, with the last one in the bits that were lower there."""
        above = ~(self.values <= last.values)  # what is not a number is above too
        if not above.any():
            return self
        pairs = ((last.F, self.F), (last.gradient, self.gradient), (last.values, self.values))
        return _Point(*(np.where(above, *pair) for pair in pairs))


class _Plane:
    """The last two steps of each bit, and how far the negative gradient fell along each."""

    def __init__(self) -> None:
        self.used: Array | bool = False
        """The bits whose last step began elsewhere than where they were."""
        self._steps: list[Array] = []
        self._falls: list[Array] = []

    def add(self, step: Array, fall: Array) -> None:
        """Remember a step; a bit that went back has a step of zeros, which spans nothing."""
        self._steps, self._falls = [step, *self._steps[:1]], [fall, *self._falls[:1]]

    def lowest(self, F: Array, gradient: Array) -> tuple[Array, Array]:
        """Return the lowest point of each bit in its plane through F, by the curvature seen, and the gradient there."""
        if not self._steps:
            return F, gradient
        D, Y = self._steps, self._falls
        a, u = _dots(D[0], Y[0]), _dots(D[0], gradient)
        self.used = a > 0
        c = np.divide(u, a, out=np.zeros_like(a), where=self.used)  # the newest step alone
        if len(D) == 1:
            return F + D[0] * c, gradient - Y[0] * c
        b, d, e, v = _dots(D[0], Y[1]), _dots(D[1], Y[0]), _dots(D[1], Y[1]), _dots(D[1], gradient)
        area = a * e - b * d
        both = self.used & (e > 0) & (area > PARALLEL * a * e)
        area = np.where(both, area, 1.0)
        c, second = np.where(both, (e * u - b * v) / area, c), np.where(both, (a * v - d * u) / area, 0.0)
        return F + (D[0] * c + D[1] * second), gradient - (Y[0] * c + Y[1] * second)


def _dots(X: Array, Y: Array) -> Array:
    return np.asarray(np.einsum("ij,ij->j", X, Y))
