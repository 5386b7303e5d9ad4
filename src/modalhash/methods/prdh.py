r"""PRDH: Pairwise Relationship Guided Deep Hashing (Yang et al., 2017), on frozen features: a re-implementation.

DCMH with two terms more: the likelihood of pairs within each modality, and decorrelated bits. No code of the authors is
public, and of the paper only a note with its equations was at hand: the weights of the terms and the sizes of the
layers are not the authors'.

=======================  ============================  ============================================================
symbol                   here                          what
=======================  ============================  ============================================================
:math:`U^x, U^y`         ``outputs[name]`` (n, r)      outputs of both networks
:math:`J_1`              ``likelihood_gradient``       −log-likelihood of S between the modalities, as in DCMH
:math:`J_2, J_3`         ``intra``                     the same within a modality, no item with itself
:math:`J_4`              ``decorrelation``             ½(‖C‖² − ‖diag C‖²), C the covariance of a batch's outputs
:math:`B`                ``B``                         sgn(Uˣ + Uʸ), ±1
=======================  ============================  ============================================================

A third-party port of it was read and not followed where it errs: its decorrelation is identically 0, and its
quantisation has no gradient. The likelihood is a mean over n times b pairs, :math:`J_4` is not, so that its weight of 1
in that port would be a strong term; the default here is small. Otherwise as :mod:`.dcmh` says.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from modalhash.core.randomness import RandomState
from modalhash.core.typing import PerModality
from modalhash.core.validation import number
from modalhash.methods._deep import Hidden
from modalhash.methods.dcmh import LikelihoodHasher, PairBatch, likelihood_gradient


@dataclass(eq=False, repr=False)
class PRDH(LikelihoodHasher):
    r"""DCMH with likelihoods within the modalities and decorrelated bits, after Yang et al. (2017); frozen features.

    A re-implementation from a note with the paper's equations. Minimises, by mini-batches against all items,

    .. math::
        J_1 + \mu(J_2 + J_3) + \lambda J_4
        + \gamma\left(\lVert B - U^x\rVert^2 + \lVert B - U^y\rVert^2\right)
        + \eta\left(\lVert U^{x\,T}1\rVert^2 + \lVert U^{y\,T}1\rVert^2\right)

    where :math:`J_1, J_2, J_3` are negative log-likelihoods of "shares a label" between and within the modalities and
    :math:`J_4 = \frac12(\lVert C\rVert^2 - \lVert\operatorname{diag}C\rVert^2)` for the covariance C of each batch.

    Needs the extra ``torch`` to learn; a fitted model, loaded elsewhere, hashes without it.

    Parameters
    ----------
    n_bits : length of the codes, below the number of pairs
    hidden : as for :class:`~modalhash.methods.dcmh.DCMH`. The paper's network for words has two hidden layers, of sizes
        that are not known here: ``{"image": 1024, "text": [1024, 1024]}``
    intra : μ ≥ 0 of the likelihoods within a modality; 1 in the paper
    decorrelation : λ ≥ 0; the paper's value is not known here
    quantization, balance, balance_weight, batch_size, max_epochs : as for :class:`~modalhash.methods.dcmh.DCMH`
    optimizer, learning_rate, validation, patience, image_network, device, random_state : likewise

    Attributes
    ----------
    codes_, networks_, objective_, n_iter_, image_network_, classes_, n_features_in_ : as for
        :class:`~modalhash.methods.dcmh.DCMH`

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> Y = np.eye(4, dtype=int)[rng.integers(4, size=200)]
    >>> X = {name: Y @ rng.normal(size=(4, d)) + rng.normal(size=(200, d)) for name, d in (("image", 9), ("text", 6))}
    >>> model = PRDH(16, hidden=32, batch_size=32, max_epochs=20, random_state=0)
    >>> model = model.fit(X, {"image": Y, "text": Y}, pairs="aligned")
    >>> model.transform({"text": X["text"][:5]})["text"].shape
    (5, 2)

    References
    ----------
    E. Yang, C. Deng, W. Liu, X. Liu, D. Tao, X. Gao. Pairwise Relationship Guided Deep Hashing for Cross-Modal
    Retrieval. AAAI 2017.
    """

    _parameter_constraints: ClassVar = LikelihoodHasher._parameter_constraints | {
        "intra": number(),
        "decorrelation": number(),
    }

    n_bits: int = 64
    _: KW_ONLY
    hidden: PerModality[Hidden] = 1024
    intra: float = 1.0
    decorrelation: float = 0.001
    quantization: float = 1.0
    balance: str = "centred"
    balance_weight: float = 1.0
    batch_size: int = 128
    max_epochs: int | None = None
    optimizer: str = "adam"
    learning_rate: float | None = None
    validation: float = 0.05
    patience: int | None = None
    image_network: Any = None
    device: str = "cpu"
    random_state: RandomState = None

    def _gradient(self, batch: PairBatch) -> Any:
        """Gradient of n·b times the objective, for the outputs of a batch."""
        gradient = super()._gradient(batch)
        if self.intra:
            gradient += self.intra * within_gradient(batch.h, batch.own, batch.S, batch.positions)
        if self.decorrelation:
            n_pairs = len(batch.own) * len(batch.h)  # J₄ is not divided by it
            gradient += n_pairs * self.decorrelation * decorrelation_gradient(batch.h)
        return gradient


def within_gradient(h: Any, own: Any, S: Any, positions: Any) -> Any:
    """As :func:`likelihood_gradient`, with the items of the same modality and without each with itself.

    The others' outputs are constants, as the other modality's are.
    """
    itself = 0.5 * (((h * own[positions]).sum(dim=1, keepdim=True) / 2).sigmoid() - 1) * own[positions]  # Sᵢᵢ = 1
    return likelihood_gradient(h, own, S) - itself


def decorrelation_gradient(h: Any) -> Any:
    """Gradient of J₄ for the outputs of a batch: (2/b) Hc C without its diagonal."""
    centred = h - h.mean(dim=0)
    C = centred.T @ centred / len(h)
    C.fill_diagonal_(0)
    return 2 / len(h) * (centred @ C)
