r"""GSPH, step 1: codes from labels, by the factorisation qS ≈ ABᵀ.

For modalities i < j with codes A,

.. math:: \min_{A_i\in[-1,1]^{n_i\times q}}\ \sum_{i<j}\lVert qS_{ij} - A_iA_j^T\rVert^2

column by column: with all else fixed, the best column of A is a clipped quotient, whatever the others are. It needs
the other modalities only through two small matrices, G = Σ AⱼᵀAⱼ and C = Σ L̃ⱼᵀAⱼ, so that S is never formed.

Step 1 sees nothing of an item but its labels. Rows here are *label patterns*: distinct label rows, each weighted
with the number of items that carry it.

================  ====================  ================================================================
paper             here                  is
================  ====================  ================================================================
:math:`q`         ``q``                 bits
:math:`S`         L̃ᵢ L̃ⱼᵀ                cosine of the label rows; 0 or 1 where items have one label each
--                ``Lt`` (rows, c)      labels with rows of length 1, CSR where sparse
--                ``w`` (rows,)         items behind each row
:math:`A, B`      ``A`` (rows, q)       codes of one modality, between −1 and 1 until the end
================  ====================  ================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from modalhash._typing import Array, Matrix
from modalhash.blocks import row_slices
from modalhash.linalg import unit_rows

SPARSE_BELOW = 0.15
"""Share of ones below which labels are kept as CSR."""
ROWS, COLUMNS = 1024, 8
"""What one step of a sweep works on: small enough for the cache, wide enough for a matrix product."""


@dataclass
class View:
    """Step 1's state of one modality."""

    Lt: Matrix
    w: Array
    A: Array

    @classmethod
    def start(cls, L: Array, w: Array, q: int, rng: np.random.Generator) -> View:
        """Random signs for every row of L."""
        Lt = unit_rows(L)
        A = rng.choice([-1.0, 1.0], size=(len(L), q))
        return cls(sparse.csr_array(Lt) if L.mean() < SPARSE_BELOW else Lt, np.asarray(w, dtype=np.float64), A)

    def gram(self) -> Array:
        """AᵀWA (q, q)."""
        product: Array = self.A.T @ (self.w[:, None] * self.A)
        return product

    def semantic_sum(self) -> Array:
        """L̃ᵀWA (c, q): with it, SA = L̃ (L̃ᵀWA)."""
        return np.asarray(self.Lt.T @ (self.w[:, None] * self.A))

    def label_gram(self) -> Array:
        """L̃ᵀWL̃ (c, c): the only trace of S in the objective."""
        Lt = self.Lt.toarray() if sparse.issparse(self.Lt) else self.Lt
        return np.asarray(self.Lt.T @ (self.w[:, None] * Lt))


def learn_codes(
    views: list[View],
    *,
    max_iter: int,
    tol: float,
    report: Callable[[int, float], None] = lambda step, objective: None,
) -> list[float]:
    """Alternate over the modalities. Returns the trace of the objective's square root, which never rises."""
    label_grams = [view.label_gram() for view in views]
    grams, sums = [view.gram() for view in views], [view.semantic_sum() for view in views]
    trace: list[float] = []
    for step in range(max_iter):
        for i, view in enumerate(views):
            others = [j for j in range(len(views)) if j != i]
            G, C = sum_of([grams[j] for j in others]), sum_of([sums[j] for j in others])
            sweep(view.A, view.Lt, G, C)  # A from B, then B from the new A
            grams[i], sums[i] = view.gram(), view.semantic_sum()
        trace.append(objective(grams, sums, label_grams))
        report(step + 1, trace[-1])
        if step and trace[-2] - trace[-1] <= tol * trace[-2]:
            break
    return trace


def sweep(A: Array, Lt: Matrix, G: Array, C: Array) -> None:
    """One pass over the columns of A, in place.

    A_l ← clip((q S B_l − Σ_{k≠l} A_k B_kᵀB_l) / ‖B_l‖²) = clip(A_l + H_l / G_ll) with H = q L̃ C − A G, in which
    the columns before l are new already. A few columns of H are formed at once and corrected as A changes.
    """
    q = A.shape[1]
    size = np.maximum(np.diag(G), np.finfo(float).tiny)  # a column of zeros has nothing to say: H_l is 0, too
    for rows in row_slices(A.shape[0], ROWS):
        a, target = A[rows], q * (Lt[rows] @ C)
        for columns in row_slices(q, COLUMNS):
            H = target[:, columns] - a @ G[:, columns]
            for k, column in enumerate(range(columns.start, columns.stop)):
                new = np.clip(a[:, column] + H[:, k] / size[column], -1, 1)
                H[:, k + 1 :] -= (new - a[:, column])[:, None] * G[column, column + 1 : columns.stop]
                a[:, column] = new


def objective(grams: list[Array], sums: list[Array], label_grams: list[Array]) -> float:
    """The root of Σ_{i<j} ‖qSᵢⱼ − AᵢAⱼᵀ‖², from q × q and c × c products."""
    total, q = 0.0, len(grams[0])
    for i in range(len(grams)):
        for j in range(i):
            labels = q * q * float(np.vdot(label_grams[i], label_grams[j]))
            total += labels - 2 * q * float(np.vdot(sums[i], sums[j])) + float(np.vdot(grams[i], grams[j]))
    return float(np.sqrt(max(total, 0.0)))  # an exact fit leaves rounding of either sign


def sum_of(matrices: list[Array]) -> Array:
    """Σ of one or more matrices."""
    return np.add.reduce(matrices)
