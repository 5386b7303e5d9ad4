r"""SCM: Semantic Correlation Maximization (Zhang and Li, AAAI 2014).

Learns linear projections of both modalities such that products of their signs reproduce the similarity by labels.
Relaxed, this is canonical correlation analysis with label similarity instead of pairs. Bits learned together are
orthogonal directions, of which the later ones carry little information; bits learned sequentially each fit the residual
of the signs before them.

==========================  ==========================  =========================================================
paper                       here                        is
==========================  ==========================  =========================================================
:math:`c`                   ``n_bits``
:math:`X, Y`                ``Fx``, ``Fy`` (n, d)       centred features
:math:`\tilde L`            ``Gx``, ``Gy`` (n, classes)  labels with rows of length 1
:math:`\tilde S`            never formed                2GxGyᵀ − 11ᵀ, between the items of both modalities
:math:`W_x, W_y`            ``Wx``, ``Wy`` (d, c)       features → codes
:math:`C_{xx}, C_{yy}`      LxLxᵀ, LyLyᵀ (d, d)         XᵀX + ridge, YᵀY + ridge
:math:`C_{xy}`              ``C`` (dx, dy)              c XᵀSY
==========================  ==========================  =========================================================

The paper's sequential update with C − Xᵀsgn(Xw_x)sgn(Yw_y)ᵀY works here on the whitened L_x⁻¹CL_y⁻ᵀ, so that a bit
costs one singular pair and a rank-one update instead of a generalised eigenproblem.

Departures from the authors' code: the ridge is a share of the mean variance of a feature, which makes it independent of
units (theirs is an absolute 1e-6); sgn(0) = −1 in the deflation (theirs: 0), and a bit is 1 where the projection is > 0
(theirs: ≥ 0). Bits in excess of the features of the narrower modality are constant (theirs: rounding noise). Without
pairs, bits that the sequential solver does not reach are orthogonal directions instead of CCA directions.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from scipy import linalg
from scipy.sparse.linalg import svds

from modalhash.core.codes import pack_signs
from modalhash.core.features import Linear
from modalhash.core.linalg import (
    CentredFeatures,
    leading_directions,
    ridged_cholesky,
    sign,
    similarity_times,
    squared_similarity,
    unit_rows,
    whitened,
)
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, root_seed
from modalhash.core.typing import Array
from modalhash.core.validation import NonNegative
from modalhash.methods.base import CrossModalHasher, Training

DENSE_BELOW = 64
"""Features of the narrower modality up to which a full SVD is as fast as computing its leading pair."""
NOISE = 1e-8
"""Share of the leading singular value below which a direction is rounding error."""


@dataclass(eq=False, repr=False)
class SCM(CrossModalHasher):
    r"""Linear codes whose products are the similarity by labels, after Zhang and Li (2014).

    Minimises, with S the similarity of label rows between −1 and 1,

    .. math::
        \lVert \mathrm{sgn}(XW_x)\,\mathrm{sgn}(YW_y)^T - cS\rVert^2

    either for all bits together without the signs (``"orthogonal"``, subject to :math:`W_x^TX^TXW_x = I` and the same
    for Y), or bit by bit, each for the residual of the signs before it (``"sequential"``).

    Pairs are optional. Learned codes are hashed codes.

    Parameters
    ----------
    n_bits : length of the codes, below the number of items of each modality
    solver : "sequential" (SCM-seq, the better one) or "orthogonal" (SCM-orth)
    ridge : added to the diagonals of XᵀX and YᵀY, as a share of their means
    random_state : int, Generator or None, for the start of the search for a direction; it does not change the result

    Attributes
    ----------
    objective_ : the objective after every bit
    n_directions_ : bits learned from labels. They are followed by canonical correlations of the pairs (without pairs:
        orthogonal directions) and then by constant bits
    """

    max_modalities: ClassVar[int | None] = 2

    n_bits: int = 64
    _: KW_ONLY
    solver: Literal["sequential", "orthogonal"] = "sequential"
    ridge: NonNegative = 1e-6
    random_state: RandomState = None

    def _fit(self, data: Training, report: Reporter) -> dict[str, Any]:
        labels = data.Y or {}
        if len(labels) < 2:
            raise ValueError(f"SCM learns from the similarity between modalities and needs two; got {list(labels)}")
        rng = np.random.default_rng([root_seed(self.random_state), 0])
        maps = {name: Linear(dtype="float64").fit(X) for name, X in data.X.items()}
        Fx, Fy = (CentredFeatures(X, maps[name].mean_) for name, X in data.X.items())
        Gx, Gy = (unit_rows(L) for L in labels.values())
        Lx, Ly = (ridged_cholesky(F.cross(F), self.ridge) for F in (Fx, Fy))
        C = 2 * data.n_bits * Fx.transposed_times(Gx) @ Fy.transposed_times(Gy).T  # −11ᵀ of S vanishes
        report("features", 1, 1)

        if self.solver == "sequential":
            Wx, Wy = sequential_directions(Fx, Fy, C, Lx, Ly, data.n_bits, rng, report)
        else:
            Wx, Wy = orthogonal_directions(C, Lx, Ly, data.n_bits)
        n_directions = Wx.shape[1]
        if n_directions < data.n_bits and (data.pairs is not None or self.solver == "sequential"):
            if data.pairs is not None:  # CCA
                rows = dict(zip(data.X, data.pairs.T, strict=True))
                Px, Py = (CentredFeatures(X[rows[name]], maps[name].mean_) for name, X in data.X.items())
                C = Px.cross(Py)
            Vx, Vy = orthogonal_directions(C, Lx, Ly, data.n_bits - n_directions)
            # strongest last, as in the authors' code
            Wx, Wy = np.hstack([Wx, Vx[:, ::-1]]), np.hstack([Wy, Vy[:, ::-1]])
        functions = {name: padded(W, data.n_bits) for name, W in zip(data.X, (Wx, Wy), strict=True)}
        projections = {name: F.times(functions[name]) for name, F in zip(data.X, (Fx, Fy), strict=True)}
        Bx, By = (sign(values) for values in projections.values())
        trace = objective(Bx, By, Gx, Gy)
        report("codes", 1, 1, trace[-1])
        return {
            "codes_": {name: pack_signs(values) for name, values in projections.items()},
            "functions_": functions,
            "maps_": maps,
            "objective_": trace,
            "n_directions_": n_directions,
        }


def orthogonal_directions(C: Array, Lx: Array, Ly: Array, count: int) -> tuple[Array, Array]:
    """Return the leading directions of C, at most its rank (SCM-orth)."""
    Wx, Wy, values = leading_directions(C, Lx, Ly, count)
    kept = values > NOISE * values[0]
    return Wx[:, kept], Wy[:, kept]


def sequential_directions(
    Fx: CentredFeatures,
    Fy: CentredFeatures,
    C: Array,
    Lx: Array,
    Ly: Array,
    count: int,
    rng: np.random.Generator,
    report: Reporter,
) -> tuple[Array, Array]:
    """Return directions learned sequentially, each from the residual of the signs before it (SCM-seq).

    Stops when a direction is stronger than the one before, because the residual is then dominated by sign errors.
    """
    M = whitened(C, Lx, Ly)
    Wx, Wy = np.empty((Fx.width, count)), np.empty((Fy.width, count))
    before = np.inf
    for t in range(count):
        u, value, v = leading_pair(M, rng)
        if value > before:
            return Wx[:, :t], Wy[:, :t]
        before = value
        Wx[:, t] = linalg.solve_triangular(Lx, u, lower=True, trans="T")
        Wy[:, t] = linalg.solve_triangular(Ly, v, lower=True, trans="T")
        # C ← C − Xᵀ sgn(X w_x) sgn(Y w_y)ᵀ Y, whitened
        explained_x = linalg.solve_triangular(Lx, Fx.transposed_times(sign(Fx.times(Wx[:, t]))), lower=True)
        explained_y = linalg.solve_triangular(Ly, Fy.transposed_times(sign(Fy.times(Wy[:, t]))), lower=True)
        M -= np.outer(explained_x, explained_y)
        report("bits", t + 1, count)
    return Wx, Wy


def leading_pair(M: Array, rng: np.random.Generator) -> tuple[Array, float, Array]:
    """Return the largest singular value and its vectors; the largest entry of the first is positive."""
    if min(M.shape) <= DENSE_BELOW or not M.any():  # ARPACK refuses a matrix of zeros
        U, values, Vt = np.linalg.svd(M, full_matrices=False)
    else:
        U, values, Vt = svds(M, k=1, v0=rng.standard_normal(min(M.shape)))
    u, v = U[:, 0], Vt[0]
    flip = np.sign(u[np.abs(u).argmax()])
    return u * flip, float(values[0]), v * flip


def padded(W: Array, count: int) -> Array:
    """Return W padded with columns of zeros (constant bits)."""
    return np.ascontiguousarray(np.pad(W, ((0, 0), (0, count - W.shape[1]))))


def objective(Bx: Array, By: Array, Gx: Array, Gy: Array) -> Array:
    """Return ‖Σ b_x b_yᵀ − cS‖² after every bit, where c is the number of all bits."""
    c = Bx.shape[1]
    agreement = np.einsum("ij,ij->j", Bx, similarity_times(Gx, Gy, By))
    overlap = (Bx.T @ Bx) * (By.T @ By)
    so_far = overlap.cumsum(axis=0).cumsum(axis=1).diagonal()
    return np.asarray(c**2 * squared_similarity(Gx, Gy) - 2 * c * agreement.cumsum() + so_far)
