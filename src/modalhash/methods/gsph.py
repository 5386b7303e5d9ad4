r"""GSPH: Generalized Semantic Preserving Hashing (Mandal, Chaudhury & Biswas, CVPR 2017, IEEE TIP 2019).

Step 1 factorises the similarity by labels between two modalities into the product of their codes, which does not need
pairs. Step 2 fits, per modality and bit, a kernel logistic regression from features to codes. If pairs are given, the
regressions of both items vote on the code of a pair.

Step 1, for modalities i < j with codes A, is

.. math:: \min_{A_i\in[-1,1]^{n_i\times q}}\ \sum_{i<j}\lVert qS_{ij} - A_iA_j^T\rVert^2

column by column: with all else fixed, the best column of A is a clipped quotient. It depends on the other modalities
only through two small matrices, G = Σ AⱼᵀAⱼ and C = Σ L̃ⱼᵀAⱼ, so that S is never formed. It depends on an item only
through its labels, so its rows are *label patterns*: distinct label rows, weighted with their numbers of items.

====================  =====================  ============================================================
paper                 here                   is
====================  =====================  ============================================================
:math:`q`             ``n_bits``, ``q``
:math:`S`             L̃ᵢ L̃ⱼᵀ                 cosine of the label rows; 0 or 1 where items have one label each
--                    ``Lt`` (rows, c)       labels with rows of length 1, CSR where sparse
--                    ``w`` (rows,)          items behind each row
:math:`A, B`          ``A`` (rows, q)        codes of one modality: qS ≈ ABᵀ, within [−1, 1], signs at the end
:math:`K, K_0`        ``K``, ``K0``          exp(−d²/s) between items and anchors, anchors and anchors;
                                             s is the mean squared distance over all pairs of items
:math:`w_b`           ``functions_[name]``   logistic regressions, one column per bit (anchors, q)
:math:`C`             ``penalty``
====================  =====================  ============================================================

Departures from the authors' code:

- Items with the same labels start step 1 with the same random signs, so that it runs over distinct label rows. With
  separate starts they reach the same code anyway: on Wiki (16 and 64 bits) and on 5,000 items of IAPR TC-12 (16 bits)
  no bit differed between items with equal labels. On IAPR TC-12 both starts give the same objective and mAP of learned
  codes within .002; on Wiki the common start ends lower (779 against 862, 16 bits).
- The similarity matrix is never formed (theirs has n1 × n2 entries), so all items can be used for training. The authors
  train on 5,000 items: pass a sample to ``fit`` and ``transform`` the whole database.
- The logistic regressions of all bits are solved together (see :mod:`modalhash.methods.seph`), with the same optimum.
- Anchors are random items of each modality, not the same pairs in both. Their k-means centres, per-row Newton descent
  and bit flips ("do not use for comparison") are not implemented.
- sgn(0) = −1 (theirs keeps 0 in step 1).

With more than two modalities step 1 sums ‖qSᵢⱼ − AᵢAⱼᵀ‖² over all pairs of modalities, and all of them vote.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from scipy import sparse

from modalhash.core.blocks import row_slices
from modalhash.core.codes import pack_signs
from modalhash.core.linalg import unit_rows
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, root_seed
from modalhash.core.typing import Array, Matrix, PerModality
from modalhash.core.validation import Count, Flag, NonNegative
from modalhash.methods.amsh.codes import label_patterns
from modalhash.methods.base import Training
from modalhash.methods.seph import LogisticHasher, traced

SPARSE_BELOW = 0.15
"""Share of ones below which labels are stored as CSR."""
ROWS, COLUMNS = 1024, 8
"""Block size of one step of a sweep: small enough for the cache, wide enough for a matrix product."""


@dataclass(eq=False, repr=False)
class GSPH(LogisticHasher):
    r"""Codes whose products are the similarity by labels, after Mandal et al. (2017, 2019).

    Step 1 minimises the objective of the module, with S the cosine of the label rows; items without a common label get
    codes at half the largest distance. Step 2 minimises, for every modality and every bit b of its codes y,

    .. math:: \sum_i\log\left(1 + e^{-y_{ib}\,k(x_i)^Tw_b}\right) + C\,w_b^TK_0w_b.

    Pairs are not used for training. If they are given, the code of a pair is the sign of the sum of its items'
    projections (the log-odds of the bit), as in the authors' paired databases. Such codes use both items but no labels,
    and rank between hashed and learned ones (text→image on Wiki, 16 bits: hashed .43, unified .64, learned .73).

    Parameters
    ----------
    penalty : C > 0 of the logistic regressions
    unify : whether learned codes of paired items are the votes, from features; False keeps those from labels (step 1)
    max_iter, tol : of step 1: most sweeps, and the relative fall of the objective's root at which it stops
    function_iter, function_tol : of step 2: most iterations, and the least relative decrease that is predicted
    precision : "float32" or "float64", of the kernel features; sums are float64 in both
    n_bits, kernel, n_anchors, memory_limit, random_state : as for :class:`~modalhash.methods.base.CrossModalHasher`

    Attributes
    ----------
    objective_ : ``{"codes": trace of the root of step 1's objective, "functions": {modality: trace of step 2}}``
    n_iter_ : iterations, with the keys of ``objective_``
    """

    n_bits: int = 64
    _: KW_ONLY
    kernel: PerModality[str] = "rbf-narrow"
    n_anchors: PerModality[int] = 500
    penalty: float = 0.01
    unify: Flag = True
    max_iter: Count = 100
    tol: NonNegative = 1e-6
    function_iter: int = 100
    function_tol: float = 1e-6
    precision: str = "float32"
    memory_limit: int | str | None = "2GB"
    random_state: RandomState = None

    def _fit(self, data: Training, report: Reporter) -> dict[str, Any]:
        Y = data.Y or {}
        if len(Y) < 2:
            raise ValueError(f"GSPH learns from the similarity between modalities and needs two; got {list(Y)}")
        seed = root_seed(self.random_state)
        maps = self._kernels(data.X, data.Y, seed)

        views, items = {}, {}
        for i, (name, L) in enumerate(Y.items()):
            rows, items[name], counts = label_patterns(L)
            views[name] = GSPHView.start(rows, counts, data.n_bits, np.random.default_rng([seed, i]))
        codes_trace = learn_codes(  # step 1
            list(views.values()),
            max_iter=self.max_iter,
            tol=self.tol,
            report=lambda step, value: report("codes", step, self.max_iter, value),
        )

        functions, traces, codes, votes = {}, {}, {}, []
        for i, (name, X) in enumerate(data.X.items()):  # step 2, one modality in memory at a time
            signs = np.where(views[name].A > 0, 1, -1).astype(np.int8)
            B = signs[items[name]]
            functions[name], traces[name], projections = self._regressions(name, maps[name], X, B, report)
            codes[name] = pack_signs(B)
            if data.pairs is not None and self.unify:
                votes.append(projections[data.pairs[:, i]])
        if data.pairs is not None and self.unify:  # post-unification
            for name, rows in zip(codes, data.pairs.T, strict=True):
                codes[name][rows] = pack_signs(np.add.reduce(votes))
        return {"codes_": codes, "functions_": functions, "maps_": maps} | traced(codes_trace, len(codes_trace), traces)


@dataclass
class GSPHView:
    """State of one modality in step 1."""

    Lt: Matrix
    w: Array
    A: Array

    @classmethod
    def start(cls, L: Array, w: Array, q: int, rng: np.random.Generator) -> GSPHView:
        Lt = unit_rows(L)
        A = rng.choice([-1.0, 1.0], size=(len(L), q))
        return cls(sparse.csr_array(Lt) if L.mean() < SPARSE_BELOW else Lt, np.asarray(w, dtype=np.float64), A)

    def gram(self) -> Array:
        """Return AᵀWA (q, q)."""
        product: Array = self.A.T @ (self.w[:, None] * self.A)
        return product

    def semantic_sum(self) -> Array:
        """Return L̃ᵀWA (c, q), so that SA = L̃ (L̃ᵀWA)."""
        return np.asarray(self.Lt.T @ (self.w[:, None] * self.A))

    def label_gram(self) -> Array:
        """Return L̃ᵀWL̃ (c, c)."""
        Lt = self.Lt.toarray() if sparse.issparse(self.Lt) else self.Lt
        return np.asarray(self.Lt.T @ (self.w[:, None] * Lt))


def learn_codes(
    views: list[GSPHView],
    *,
    max_iter: int,
    tol: float,
    report: Callable[[int, float], None] = lambda step, objective: None,
) -> list[float]:
    """Alternate over the modalities; return the square root of the objective after every sweep."""
    label_grams = [view.label_gram() for view in views]
    grams, sums = [view.gram() for view in views], [view.semantic_sum() for view in views]
    trace: list[float] = []
    for step in range(max_iter):
        for i, view in enumerate(views):
            others = [j for j in range(len(views)) if j != i]
            G, C = np.add.reduce([grams[j] for j in others]), np.add.reduce([sums[j] for j in others])
            sweep(view.A, view.Lt, G, C)  # A from B, then B from the new A
            grams[i], sums[i] = view.gram(), view.semantic_sum()
        trace.append(objective(grams, sums, label_grams))
        report(step + 1, trace[-1])
        if step and trace[-2] - trace[-1] <= tol * trace[-2]:
            break
    return trace


def sweep(A: Array, Lt: Matrix, G: Array, C: Array) -> None:
    """Update the columns of A in place.

    A_l ← clip((q S B_l − Σ_{k≠l} A_k B_kᵀB_l) / ‖B_l‖²) = clip(A_l + H_l / G_ll) with H = q L̃ C − A G, in which
    the columns before l are already updated. Blocks of columns of H are formed together and corrected as A changes.
    """
    q = A.shape[1]
    size = np.maximum(np.diag(G), np.finfo(float).tiny)  # H_l is 0 for a column of zeros
    for rows in row_slices(A.shape[0], ROWS):
        a, target = A[rows], q * (Lt[rows] @ C)
        for columns in row_slices(q, COLUMNS):
            H = target[:, columns] - a @ G[:, columns]
            for k, column in enumerate(range(columns.start, columns.stop)):
                new = np.clip(a[:, column] + H[:, k] / size[column], -1, 1)
                H[:, k + 1 :] -= (new - a[:, column])[:, None] * G[column, column + 1 : columns.stop]
                a[:, column] = new


def objective(grams: list[Array], sums: list[Array], label_grams: list[Array]) -> float:
    """Return the root of Σ_{i<j} ‖qSᵢⱼ − AᵢAⱼᵀ‖², from q × q and c × c products."""
    total, q = 0.0, len(grams[0])
    for i in range(len(grams)):
        for j in range(i):
            labels = q * q * float(np.vdot(label_grams[i], label_grams[j]))
            total += labels - 2 * q * float(np.vdot(sums[i], sums[j])) + float(np.vdot(grams[i], grams[j]))
    return float(np.sqrt(max(total, 0.0)))  # rounding may make it negative
