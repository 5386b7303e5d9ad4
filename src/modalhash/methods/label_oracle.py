r"""LabelOracle: codes made from the true labels, a control that gives the ceiling for a code length.

Every class has a code, the same in all modalities, and an item's code is the sign of the sum of its classes' codes, so
that items with more common labels are closer. Class codes start at random, each bit set for half of the classes, and
are optimised to reproduce label similarity. With one label per item the start is already good; with many labels it is
not (mAP of labels against labels on IAPR TC-12, 16 bits: .46 at the start, .74 afterwards).

=================  ==================  ==================================================================
symbol             here                is
=================  ==================  ==================================================================
:math:`\tilde L`   ``Lt`` (n, c)       labels of all items of all modalities, rows of length 1
:math:`C`          ``C`` (c, r)        class codes
:math:`B`          ``B`` (n, r)        codes, ±1
:math:`Z`          ``Z`` (n, r)        ZᵀZ = nI, Zᵀ1 = 0, for balanced and uncorrelated bits
:math:`\phi, W`    ``phi``, by modality   centred features with a bias, and the regression from them to B
=================  ==================  ==================================================================
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any

import numpy as np
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from modalhash.core.codes import pack_signs
from modalhash.core.features import Linear
from modalhash.core.linalg import balanced_procrustes, ridge_regression, sign, unit_rows
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, root_seed
from modalhash.core.typing import Array, Codes
from modalhash.core.validation import NonNegative, check_label_rows, integer
from modalhash.methods.base import CrossModalHasher, Training

TIE_BREAK = 0.01
"""Relative spread of the magnitudes of random class codes, which breaks ties between labels of either sign."""


@dataclass(eq=False, repr=False)
class LabelOracle(CrossModalHasher):
    r"""Codes from the true labels: a control.

    .. math:: \min_{C, Z}\; \lVert r\tilde L\tilde L^T - BZ^T\rVert^2,\quad B = \operatorname{sgn}(\tilde LC),
              \quad Z^TZ = nI,\; Z^T1 = 0; \qquad \min_W\; \lVert B - \phi W\rVert^2 + \xi\lVert W\rVert^2

    For the ceiling of learned codes, fit it on features like any method; queries are then hashed by linear regression.
    For the ceiling of queries too, pass the labels as features::

        oracle = LabelOracle(64, random_state=0).fit(Y, Y)
        oracle.codes_, oracle.transform(Y_query)  # retrieval by these is the ceiling

    The remaining loss is due to the code length. It is not a strict bound: a method with another similarity may be
    slightly better where items have many labels.

    Parameters
    ----------
    n_bits : length of the codes
    max_iter : sweeps that improve the class codes; 0 leaves them random
    ridge : ξ
    random_state : int, Generator or None, for the class codes

    Attributes
    ----------
    class_codes_ : C

    Examples
    --------
    >>> Y = {"image": np.eye(6, dtype=bool)[np.arange(60) % 6], "text": np.eye(6, dtype=bool)[np.arange(90) % 6]}
    >>> oracle = LabelOracle(n_bits=16, random_state=0).fit(Y, Y)
    >>> bool((oracle.transform(Y)["text"] == oracle.codes_["text"]).all())
    True
    """

    n_bits: int = 64
    _: KW_ONLY
    max_iter: Annotated[int, integer(0)] = 10
    ridge: NonNegative = 0.01
    random_state: RandomState = None

    class_codes_: Array = field(init=False)

    def label_codes(self, Y: Any) -> Codes:
        """Return the learned codes of label rows, the signs of the sums of their classes' codes."""
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
        return {"codes_": codes, "class_codes_": C, "objective_": trace, "maps_": maps, "functions_": functions}


def balanced_class_codes(n_classes: int, n_bits: int, rng: np.random.Generator) -> Array:
    """Return a random code per class, ±1 up to the tie-break, with every bit +1 for half of the classes."""
    half = np.arange(n_classes) % 2 * 2.0 - 1.0
    C = np.column_stack([rng.permutation(half) * rng.choice([-1.0, 1.0]) for _ in range(n_bits)])
    return C * (1 + TIE_BREAK * rng.random(C.shape))


def learn_class_codes(
    Lt: sparse.csr_array, C: Array, max_iter: int, rng: np.random.Generator, report: Reporter
) -> tuple[Array, list[float]]:
    """Alternate exact minimisers of Z and C: for fixed Z, B = sgn(Lt Ltᵀ Z), so C = Ltᵀ Z."""
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
