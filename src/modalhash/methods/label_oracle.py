r"""LabelOracle: codes made from the true labels. A control, not a method: how far codes of that length can go.

Every class has a code, the same in all modalities, and an item's code is the sign of the sum of its classes'
codes: items are the closer the more of their labels they share. Class codes start at random, each bit set for
half of the classes, and are improved until codes tell best how much of their labels items share; with one
label per item the start is good already, with many labels it is far from what codes can hold (mAP of labels
against labels on IAPR TC-12: .46 at the start, .74 after; 16 bits).

=================  ==================  ==================================================================
symbol             here                is
=================  ==================  ==================================================================
:math:`\tilde L`   ``Lt`` (n, c)       labels of all items of all modalities, rows of length 1
:math:`C`          ``C`` (c, r)        class codes
:math:`B`          ``B`` (n, r)        codes, ±1
:math:`Z`          ``Z`` (n, r)        ZᵀZ = nI, Zᵀ1 = 0: keeps bits balanced and uncorrelated
:math:`\phi, W`    ``phi``, by modality   centred features with a bias, and the regression from them to B
=================  ==================  ==================================================================
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

import numpy as np
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from modalhash.core.codes import pack_signs
from modalhash.core.features import Linear
from modalhash.core.linalg import balanced_procrustes, ridge_regression, sign, unit_rows
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, root_seed
from modalhash.core.typing import Array, Codes
from modalhash.core.validation import check_label_rows, integer, number
from modalhash.methods.base import CrossModalHasher, Training

TIE_BREAK = 0.01
"""How much random class codes differ in weight: decides where as many labels say +1 as −1, and nothing else."""


@dataclass(eq=False, repr=False)
class LabelOracle(CrossModalHasher):
    r"""Codes from the true labels: a control.

    .. math:: \min_{C, Z}\; \lVert r\tilde L\tilde L^T - BZ^T\rVert^2,\quad B = \operatorname{sgn}(\tilde LC),
              \quad Z^TZ = nI,\; Z^T1 = 0; \qquad \min_W\; \lVert B - \phi W\rVert^2 + \xi\lVert W\rVert^2

    **As a ceiling** of the learned codes alone, fit it on features like any method: the database is as good
    as labels make it, and queries are as good as plain linear regression makes them. For queries too, pass
    the labels as features::

        oracle = LabelOracle(64, random_state=0).fit(Y, Y)
        oracle.codes_, oracle.transform(Y_query)  # retrieval by these is the ceiling

    which leaves only what codes of that length cannot hold. It is the level of good codes, no bound: a method
    with another idea of similarity may pass it by a little where items have many labels.

    Parameters
    ----------
    n_bits : length of the codes
    max_iter : sweeps that improve the class codes; 0 leaves them random
    ridge : ξ
    random_state : int, Generator or None. The class codes

    Attributes
    ----------
    codes_ : learned codes of the training items, by modality: functions of the labels
    class_codes_ : C
    objective_ : trace of the first objective, after every sweep
    n_iter_ : sweeps done; below ``max_iter`` where B came to rest
    maps_, functions_ : feature map and W, by modality
    classes_, n_features_in_ : label columns; features by modality

    Examples
    --------
    >>> Y = {"image": np.eye(6, dtype=bool)[np.arange(60) % 6], "text": np.eye(6, dtype=bool)[np.arange(90) % 6]}
    >>> oracle = LabelOracle(n_bits=16, random_state=0).fit(Y, Y)
    >>> bool((oracle.transform(Y)["text"] == oracle.codes_["text"]).all())
    True
    """

    _parameter_constraints: ClassVar = {
        "max_iter": integer(0),
        "ridge": number(),
    }

    n_bits: int = 64
    _: KW_ONLY
    max_iter: int = 10
    ridge: float = 0.01
    random_state: RandomState = None

    class_codes_: Array = field(init=False)

    def label_codes(self, Y: Any) -> Codes:
        """Return the learned codes of label rows, seen in training or not: the signs of the sum of their classes'."""
        check_is_fitted(self, "class_codes_")
        labels = check_label_rows(Y, len(self.classes_)).toarray()
        return pack_signs(sign(unit_rows(labels) @ self.class_codes_))

    def _fit(self, data: Training, report: Reporter) -> dict[str, Any]:
        assert data.Y is not None  # base checked
        rng = np.random.default_rng(root_seed(self.random_state))
        Lt = sparse.csr_array(unit_rows(np.concatenate(list(data.Y.values()))))
        C = balanced_class_codes(Lt.shape[1], data.n_bits, rng)
        C, trace = learn_class_codes(Lt, C, self.max_iter, rng, report)
        codes, maps, functions = {}, {}, {}
        for step, (name, X) in enumerate(data.X.items()):
            B = sign(unit_rows(data.Y[name]) @ C)
            codes[name] = pack_signs(B)
            maps[name] = Linear(bias=True, dtype="float64")
            phi = maps[name].fit_blocks(X).whole()
            # contiguous, as a loaded model has it: the same projections to the last bit
            functions[name] = np.ascontiguousarray(ridge_regression(phi, B, self.ridge))
            report("functions", step + 1, len(data.X))
        return {
            "codes_": codes,
            "class_codes_": C,
            "objective_": np.array(trace),
            "n_iter_": len(trace),
            "maps_": maps,
            "functions_": functions,
        }


def balanced_class_codes(n_classes: int, n_bits: int, rng: np.random.Generator) -> Array:
    """A code per class, ±1 up to the tie-break, every bit +1 for half of the classes (one more or less if odd)."""
    half = np.arange(n_classes) % 2 * 2.0 - 1.0
    C = np.column_stack([rng.permutation(half) * rng.choice([-1.0, 1.0]) for _ in range(n_bits)])
    return C * (1 + TIE_BREAK * rng.random(C.shape))


def learn_class_codes(
    Lt: sparse.csr_array, C: Array, max_iter: int, rng: np.random.Generator, report: Reporter
) -> tuple[Array, list[float]]:
    """Z and C in turn, each the exact minimiser given the other: for fixed Z, B = sgn(Lt Ltᵀ Z), so C = Ltᵀ Z."""
    n, r = Lt.shape[0], C.shape[1]
    constant = n**2 * r + r**2 * float(((Lt.T @ Lt).data ** 2).sum())  # ‖BZᵀ‖² and ‖rS‖²
    B, trace = sign(Lt @ C), []
    for step in range(max_iter):
        before = B
        Z = balanced_procrustes(Lt @ (Lt.T @ B), rng)
        C = Lt.T @ Z
        B = sign(Lt @ C)
        trace.append(constant - 2 * r * float(np.vdot(B, Lt @ C)))
        report("class codes", step + 1, max_iter, trace[-1])
        if np.array_equal(B, before):
            break
    return C, trace
