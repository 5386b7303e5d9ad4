r"""PRDH: Pairwise Relationship Guided Deep Hashing (Yang et al., 2017), on frozen features: a re-implementation.

DCMH with two additional terms: the likelihood of pairs within each modality, and decorrelated bits. The authors
published no code, and only a note with the paper's equations was available; weights and layer sizes are not the
authors'.

=======================  ============================  ============================================================
symbol                   here                          what
=======================  ============================  ============================================================
:math:`U^x, U^y`         ``outputs[name]`` (n, r)      outputs of both networks
:math:`J_1`              ``likelihood_gradient``       −log-likelihood of S between the modalities, as in DCMH
:math:`J_2, J_3`         ``intra``                     the same within a modality, without self-pairs
:math:`J_4`              ``decorrelation``             ½(‖C‖² − ‖diag C‖²), C the covariance of a batch's outputs
:math:`B`                ``B``                         sgn(Uˣ + Uʸ), ±1
=======================  ============================  ============================================================

A third-party port was consulted but not followed where it is wrong: its decorrelation is identically 0, and its
quantisation has no gradient. The default weight of :math:`J_4` is small, because the likelihood is a mean over n·b
pairs and :math:`J_4` is not. See :mod:`.dcmh` for the other departures.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

from modalhash.core.randomness import RandomState
from modalhash.core.typing import PerModality
from modalhash.core.validation import NonNegative
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

    Training needs the extra ``torch``; a fitted or loaded model hashes without it.

    Parameters
    ----------
    n_bits : length of the codes, below the number of pairs
    hidden : as for :class:`~modalhash.methods.dcmh.DCMH`. The paper's network for words has two hidden layers of
        unknown sizes, e.g. ``{"image": 1024, "text": [1024, 1024]}``
    intra : μ ≥ 0 of the likelihoods within a modality; 1 in the paper
    decorrelation : λ ≥ 0; the paper's value is not known
    quantization, balance, balance_weight, batch_size, max_epochs, optimizer, learning_rate : as for DCMH
    validation, patience, image_network, device, random_state : as for DCMH, like the learned attributes
    """

    n_bits: int = 64
    _: KW_ONLY
    hidden: PerModality[Hidden] = 1024
    intra: NonNegative = 1.0
    decorrelation: NonNegative = 0.001
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
        gradient = super()._gradient(batch)
        if self.intra:
            gradient += self.intra * within_gradient(batch.h, batch.own, batch.S, batch.positions)
        if self.decorrelation:
            n_pairs = len(batch.own) * len(batch.h)  # the divisor of the other terms
            gradient += n_pairs * self.decorrelation * decorrelation_gradient(batch.h)
        return gradient


def within_gradient(h: Any, own: Any, S: Any, positions: Any) -> Any:
    """Return :func:`likelihood_gradient` for the items of the same modality, without self-pairs.

    Outputs outside the batch are constants, like those of the other modality.
    """
    itself = 0.5 * (((h * own[positions]).sum(dim=1, keepdim=True) / 2).sigmoid() - 1) * own[positions]  # Sᵢᵢ = 1
    return likelihood_gradient(h, own, S) - itself


def decorrelation_gradient(h: Any) -> Any:
    """Return the gradient of J₄ for the outputs of a batch, (2/b) Hc C without the diagonal of C."""
    centred = h - h.mean(dim=0)
    C = centred.T @ centred / len(h)
    C.fill_diagonal_(0)
    return 2 / len(h) * (centred @ C)
