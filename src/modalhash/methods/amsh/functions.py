r"""AMSH, step 2: hash functions from features to the codes of step 1.

Eq. (25) with the ridge ρ of the authors' code, for one modality:

.. math:: \min_{F,\,M\ge 0}\ \lVert B + B\circ M - \Phi F\rVert^2 + \rho\lVert F\rVert^2

The best M turns the first term into :math:`\sum\max(0, 1 - B\circ\Phi F)^2`: r linear SVMs with squared hinge loss
over one constant Gram matrix. Alternating Eq. (26) for F and Eq. (27) for M is then exactly

.. math:: F \leftarrow F + (\Phi^T\Phi + \rho I)^{-1}(\Phi^T R - \rho F),\qquad R = B\circ\max(0, 1 - B\circ\Phi F)

(put M into Eq. (26) and subtract F = G⁻¹GF). This form needs one pass over the data per iteration and no M, and its
fixed point does not depend on the accuracy of the factor, so that the rounding of float32 blocks does not accumulate.

This step is short, because it counts all items although about half of them soon satisfy the margin of a bit. An
accelerated iteration goes to the lowest point of the plane of this step p and the last step d of the bit,

.. math:: \min_{a,c}\ {-2}\,(ap + cd)^Tg + \tfrac n{|s|}\bigl(h_s(F + ap + cd) - h_s(F) - (ap + cd)^T\nabla h_s(F)\bigr)
          + \rho\lVert ap + cd\rVert^2

where g = ΦᵀR − ρF is half the negative gradient over all items, and h_s the squared hinge of a sample s of a thousand
items. The sample only gives the change of the gradient along the way; the gradient at F is exact, so the fixed point is
that of all items. A few Newton steps find a and c of each bit without a pass over the data, and four iterations go as
low as fifteen plain ones. This is a subspace method, like nonlinear conjugate gradients. A bit whose objective would
increase is reset and takes the plain step, which cannot increase it.

Bits are independent here, so codes of several lengths for the same items can share each pass over the data.

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

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from modalhash.core.blocks import FeatureRows, product, row_slices
from modalhash.core.linalg import has_converged
from modalhash.core.typing import Array

STRIP_BYTES = 2**21
"""Bytes of features per strip, which stay in the cache from ΦF to ΦᵀR."""
SAMPLE = 1024
"""Items from which an iteration finds its step length; with half of them, it reaches a few thousandths less."""
NEWTON_STEPS = 3
PARALLEL = 1e-4
"""Squared sine of the angle between two steps below which they are treated as parallel."""


class HashFunctions:
    """The hash functions F of one modality during their optimisation.

    Parameters
    ----------
    phi : Φ, in blocks
    B : (n, r) codes, ±1; 0 for an item without a target
    ridge : ρ
    margins : False is AMSH-m, where M = 0 and one plain step solves the ridge regression
    accelerated : take longer steps
    sample : rows from which accelerated steps find their length, by default :func:`sample_rows`

    Attributes
    ----------
    F : (d, r), initially 0; the functions with the lowest objective of each bit
    trace : the objective after each iteration; it never increases, and the last value is that of F
    """

    def __init__(
        self,
        phi: FeatureRows,
        B: Array,
        *,
        ridge: float,
        margins: bool = True,
        accelerated: bool = True,
        sample: Array | None = None,
    ) -> None:
        self._phi, self._B, self._ridge, self._margins = phi, np.asarray(B, dtype=np.int8), ridge, margins
        rows = sample_rows(phi.n) if sample is None else sample
        self._sample = _Sample(phi, self._B, rows, ridge) if accelerated and margins else None
        F = np.zeros((phi.width, B.shape[1]))
        Z = np.zeros((0, B.shape[1])) if self._sample is None else np.zeros_like(self._sample.B)
        self._at = _Point(F, *hinge_pass(phi, self._B, F, first=True), Z)
        self._last: _Point | None = None
        self._next, self._went_back = (F, Z), False
        self.trace: list[float] = []

    @property
    def F(self) -> Array:
        return self._at.F

    def update_F(self, inverse: Array) -> None:
        """Take the step of Eq. (26), or a longer one, for the best M; ``inverse`` is (ΦᵀΦ + ρI)⁻¹."""
        step = product(inverse, self._at.gradient)
        if self._sample is None:
            self._next = self._at.F + step, self._at.Z
        else:
            self._next = self._sample.lowest(self._at, step, self._last)

    def update_M(self, *, final: bool = False) -> None:
        """Compute the gradient and the objective for the best M of Eq. (27), in one pass over the data.

        A bit whose objective increased is reset. The ``final`` iteration computes no gradient.
        """
        F, Z = self._next
        gradient, values = hinge_pass(self._phi, self._B, F, margins=self._margins, gradient=not final)
        new = _Point(F, gradient - self._ridge * F, values + self._ridge * _squares(F), Z)
        if self._sample is None:
            _check(new.values, self._phi.n)
        lowest = new if self._sample is None else new.unless_above(self._at)
        self._at, self._last, self._went_back = lowest, self._at, lowest is not new
        self.trace.append(float(lowest.values.sum()))

    def has_converged(self, tol: float) -> bool:
        """Return whether the last iteration lowered the objective by at most a fraction ``tol`` > 0.

        Return False after a reset, because the plain step may still lower the objective.
        """
        return tol > 0 and not self._went_back and has_converged(self.trace, tol)


def learn_functions(
    phi: FeatureRows,
    B: Array,
    inverse: Callable[[], Array],
    *,
    max_iter: int,
    tol: float = 0.0,
    report: Callable[[int, int, float], None] = lambda step, total, objective: None,
    **options: Any,
) -> HashFunctions:
    """Run lines 9-12 of Algorithm 1 for other methods; ``options`` are those of :class:`HashFunctions`."""
    functions = HashFunctions(phi, B, **options)
    max_iter = max_iter if options.get("margins", True) else 1
    for step in range(1, max_iter + 1):
        functions.update_F(inverse())  # Eq. (26)
        functions.update_M(final=step == max_iter)  # Eq. (27)
        report(step, max_iter, functions.trace[-1])
        if functions.has_converged(tol):
            break
    return functions


def hinge_pass(
    phi: FeatureRows, B: Array, F: Array, *, margins: bool = True, first: bool = False, gradient: bool = True
) -> tuple[Array, Array]:
    """Return ΦᵀR, and ‖R‖² of each bit, at F; ``first`` if F is zero, so that R = B."""
    work = partial(hinge_terms, margins=margins, first=first, gradient=gradient)
    total, values = phi.total(work, per_item=(B,), shared=(F.astype(phi.dtype),))
    return total, values


def hinge_terms(block: Array, B: Array, F: Array, *, margins: bool, first: bool, gradient: bool) -> tuple[Array, Array]:
    """Return φᵀR, and ‖R‖² of each bit, of one block φ with codes B, computed strip by strip."""
    dtype = F.dtype
    zeros = np.zeros(F.shape[1], dtype=dtype)  # a row, because numpy's maximum with a scalar is not vectorised
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
                np.maximum(R, zeros, out=R)  # Eq. (27)
            values += _squares(R)
            R *= target
        if gradient:
            total += features.T @ R
    return total, values


def _squares(X: Array) -> Array:
    return _dots(X, X)


def _check(values: Array, start: int) -> None:
    """Raise if a plain step exceeded the objective at F = 0, because the factor is then not a majoriser."""
    if not np.all(values <= 2 * start):
        raise ValueError(
            "the hash functions diverge: features are nearly dependent and the ridge is too small for their "
            "precision; pass a larger ridge, or precision='float64'"
        )


@dataclass(frozen=True)
class _Point:
    """Functions, their negative gradient, the objective of each bit, and ΦF of the sample."""

    F: Array
    gradient: Array
    values: Array
    Z: Array

    def unless_above(self, last: _Point) -> _Point:
        """Return this point, with the bits of the last point that were lower."""
        above = ~(self.values <= last.values)  # NaN counts as above
        if not above.any():
            return self
        pairs = ((last.F, self.F), (last.gradient, self.gradient), (last.values, self.values), (last.Z, self.Z))
        return _Point(*(np.where(above, *pair) for pair in pairs))


def sample_rows(n: int) -> Array:
    """Return up to :data:`SAMPLE` of ``n`` rows, evenly spaced."""
    count = min(n, SAMPLE)
    return np.arange(count) * n // count


class _Sample:
    """A sample of items, which estimates how the gradient of each bit changes along a step."""

    def __init__(self, phi: FeatureRows, B: Array, rows: Array, ridge: float) -> None:
        self._features, self.B = phi.take(rows), B[rows].astype(phi.dtype)
        counted, all_of_them = (int(codes.any(axis=1).sum()) for codes in (self.B, B))  # items with targets
        self._weight = all_of_them / max(1, counted)
        self._ridge = ridge

    def lowest(self, at: _Point, p: Array, last: _Point | None) -> tuple[Array, Array]:
        """Return the lowest point of each bit in the plane of p and the last step, and ΦF of the sample there.

        A bit that was reset takes the step p.
        """
        d, Zd = (np.zeros_like(p), np.zeros_like(self.B)) if last is None else (at.F - last.F, at.Z - last.Z)
        went_back = False if last is None else ~d.any(axis=0)
        Zp = self._features @ p.astype(self.B.dtype)
        A, C, M = self.B * Zp, self.B * Zd, 1 - self.B * at.Z
        pp, pd, dd = (self._ridge * _dots(*pair) for pair in ((p, p), (p, d), (d, d)))
        zeros, weight = np.zeros(len(pp), dtype=M.dtype), self._weight
        R = np.maximum(M, zeros)
        u, v = _dots(p, at.gradient) - weight * _dots(A, R), _dots(d, at.gradient) - weight * _dots(C, R)
        a, c = np.ones(len(pp)), np.zeros(len(pp))  # the plain step
        for newton in range(NEWTON_STEPS):
            R = M - A * a.astype(M.dtype)
            if last is not None:
                R -= C * c.astype(M.dtype)
            np.maximum(R, zeros, out=R)
            if not newton:
                _check(_squares(R), len(R))
            active = R > 0
            inA, inC = A * active, C * active
            aa, ac, cc = (weight * _dots(*pair) + own for pair, own in (((inA, A), pp), ((inA, C), pd), ((inC, C), dd)))
            down_p = u + weight * _dots(A, R) - (a * pp + c * pd)
            down_d = v + weight * _dots(C, R) - (a * pd + c * dd)
            area = aa * cc - ac**2
            both = area > PARALLEL * aa * cc
            area = np.where(both, area, 1.0)
            alone = np.divide(down_p, aa, out=np.zeros_like(aa), where=aa > 0)
            a += np.where(both, (cc * down_p - ac * down_d) / area, alone)
            c += np.where(both, (aa * down_d - ac * down_p) / area, 0.0)
        a, c = np.where(went_back, 1.0, a), np.where(went_back, 0.0, c)
        return at.F + (p * a + d * c), at.Z + (Zp * a.astype(M.dtype) + Zd * c.astype(M.dtype))


def _dots(X: Array, Y: Array) -> Array:
    return np.asarray(np.einsum("ij,ij->j", X, Y))
