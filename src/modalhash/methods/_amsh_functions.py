r"""AMSH, step 2: hash functions from features to the codes of step 1.

Eq. (25) with the ridge ρ of the authors' code, for one modality:

.. math:: \min_{F,\,M\ge 0}\ \lVert B + B\circ M - \Phi F\rVert^2 + \rho\lVert F\rVert^2

The best M turns the first term into :math:`\sum\max(0, 1 - B\circ\Phi F)^2`: r linear SVMs with squared
hinge loss over one constant Gram matrix. Alternating Eq. (26) for F and Eq. (27) for M is then

.. math:: F \leftarrow F + (\Phi^T\Phi + \rho I)^{-1}(\Phi^T R - \rho F),\qquad R = B\circ\max(0, 1 - B\circ\Phi F)

exactly (put M into Eq. (26) and subtract F = G⁻¹GF). This form needs one pass over the data per iteration,
no M, and repairs the rounding of float32 blocks: its fixed point does not depend on the factor's accuracy.

The step is short: it counts all items, though about half of them soon satisfy the margin of a bit and no longer matter
to it. An accelerated iteration goes as far as pays, along this step p and along the last one d of the bit: to the
lowest point of the plane that they span,

.. math:: \min_{a,c}\ {-2}\,(ap + cd)^Tg + \tfrac n{|s|}\bigl(h_s(F + ap + cd) - h_s(F) - (ap + cd)^T\nabla h_s(F)\bigr)
          + \rho\lVert ap + cd\rVert^2

where g = ΦᵀR − ρF is half the negative gradient over all items, and h_s the squared hinge of a sample s of a thousand.
Only how the gradient changes on the way is taken from the sample; what it is at F is exact, so the iterations end where
those over all items end. A few Newton steps find a and c of each bit without a pass over the data, and four iterations
go as low as fifteen plain ones. This is a subspace method, as nonlinear conjugate gradients are. A bit whose objective
would rise goes back and takes the plain step, which cannot rise.

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
SAMPLE = 1024
"""Items on which an iteration finds how far to go; with half as many, iterations reach a few thousandths less."""
NEWTON_STEPS = 3
PARALLEL = 1e-4
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
    sample: Array | None = None,
    report: Callable[[int, float], None] = lambda step, objective: None,
) -> list[tuple[Array, list[float]]]:
    """Algorithm 1, lines 9-12, for codes of one or several lengths. Returns F and its trace for each.

    ``inverse`` is (ΦᵀΦ + ρI)⁻¹, or a function that waits for it: the first pass over the data does not need it yet. A
    trace holds the objective after each iteration and never rises; its last value belongs to the F that is returned.
    ``sample`` holds the rows on which accelerated iterations find how far to go, by default :func:`sample_rows`.
    """
    if tol > 0 and len(codes) > 1:  # each ends at an iteration of its own
        learn = partial(
            learn_functions, ridge=ridge, max_iter=max_iter, tol=tol, margins=margins, accelerated=accelerated
        )
        return [learn(phi, [B], inverse, sample=sample, report=report)[0] for B in codes]
    if not margins:  # AMSH-m: M = 0, plain ridge regression, which one plain step solves
        max_iter, accelerated = 1, False
    B = np.asarray(codes[0] if len(codes) == 1 else np.hstack(codes), dtype=np.int8)
    few = _Sample(phi, B, sample_rows(phi.n) if sample is None else sample, ridge) if accelerated else None
    at = _Point(np.zeros((phi.width, B.shape[1])), np.zeros(0), np.full(B.shape[1], np.inf), np.zeros((0, B.shape[1])))
    F, Z = at.F, at.Z if few is None else np.zeros_like(few.B)
    trace: list[Array] = []
    for step in range(max_iter + 1):
        gradient, values = hinge_pass(phi, B, F, margins=margins, first=step == 0, gradient=step < max_iter)
        gradient -= ridge * F
        new = _Point(F, gradient, values + ridge * _squares(F), Z)
        if few is None:
            _check(new.values, phi.n)
        at, last = new if few is None else new.unless_above(at), at
        if step:
            trace.append(at.values)
            report(step, float(at.values.sum()))
            fell = float(last.values.sum() - at.values.sum())
            if tol > 0 and step > 1 and fell <= tol * float(last.values.sum()) and at is new:
                break
        if step == max_iter:
            break
        change = product(inverse() if callable(inverse) else inverse, at.gradient)  # Eq. (26), best M of Eq. (27)
        if few is None:
            F = at.F + change
        else:
            F, Z = few.lowest(at, change, last if step else None)
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


def _check(values: Array, start: int) -> None:
    """Raise where a plain step left the objective at F = 0 behind: then the factor is no majoriser."""
    if not np.all(values <= 2 * start):
        raise ValueError(
            "the hash functions diverge: features are nearly dependent and the ridge is too small for their "
            "precision; pass a larger ridge, or precision='float64'"
        )


@dataclass(frozen=True)
class _Point:
    """Functions, the negative gradient there, the objective of each bit, and ΦF of the sample."""

    F: Array
    gradient: Array
    values: Array
    Z: Array

    def unless_above(self, last: _Point) -> _Point:
        """Return this point, with the last one in the bits that were lower there."""
        above = ~(self.values <= last.values)  # what is not a number is above too
        if not above.any():
            return self
        pairs = ((last.F, self.F), (last.gradient, self.gradient), (last.values, self.values), (last.Z, self.Z))
        return _Point(*(np.where(above, *pair) for pair in pairs))


def sample_rows(n: int) -> Array:
    """Return :data:`SAMPLE` of ``n`` rows, evenly spaced; all of them where there are no more."""
    count = min(n, SAMPLE)
    return np.arange(count) * n // count


class _Sample:
    """A few items, which tell how the gradient of each bit changes on the way from a point."""

    def __init__(self, phi: Parts, B: Array, rows: Array, ridge: float) -> None:
        self._features, self.B = phi.take(rows), B[rows].astype(phi.dtype)
        counted, all_of_them = (int(codes.any(axis=1).sum()) for codes in (self.B, B))  # items that have targets
        self._weight = all_of_them / max(1, counted)
        self._ridge = ridge

    def lowest(self, at: _Point, p: Array, last: _Point | None) -> tuple[Array, Array]:
        """Return the lowest point of each bit in the plane of p and its last step, and ΦF of the sample there.

        A bit that went back has no last step: it takes p as it is.
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
