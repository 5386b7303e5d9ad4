r"""DCMH: Deep Cross-Modal Hashing (Jiang and Li, 2017), on frozen features.

Two networks, one per modality, are trained by maximum likelihood so that inner products of their outputs predict
whether a photo and a text share a label. The sign of the sum of both outputs is the code of a pair.

=========================  =============================  ===================================================
symbol                     here                           what
=========================  =============================  ===================================================
:math:`F, G`               ``outputs[name]`` (n, r)       outputs of both networks, kept from batch to batch
:math:`B`                  ``B`` (n, r)                   sgn(F + G), ±1
:math:`S`                  ``similar_to_all``             1 where two pairs share a label, else 0; by batch
:math:`\Theta`             ``theta``                      FGᵀ/2
:math:`\gamma, \eta`       ``quantization, balance_weight``  1 and 1 in the authors' code
:math:`\theta_x, \theta_y` ``networks_[name]``            weights
=========================  =============================  ===================================================

Departures from the authors' code (MATLAB and TensorFlow agree in the equations and differ in the rest):

- Features are frozen, and a network with one hidden layer is trained on them. The authors train a convolutional network
  (CNN-F) end to end, for which ``image_network`` is the hook, and use 8,192 hidden units for words.
- ``balance="centred"``, the default, subtracts the running mean of the outputs, which makes the balance term
  η(‖F1‖² + ‖G1‖²) nearly 0 for any weights. With the term itself (``"penalty"``) and the authors' SGD the outputs
  stay near a saddle at zero for hundreds of epochs; with the term and Adam they first fall below chance.
- Adam at 3e-4, falling to a tenth, and early stopping on held-out pairs; the authors use SGD for 500 epochs
  (``optimizer="sgd"``, the rates of their TensorFlow code).
- An epoch is a permutation of the pairs (theirs: a new one for every batch). F and G start as N(0, 1), and B is updated
  at the end of an epoch, as in TensorFlow.
- Weights start larger than N(0, .01²), as in He et al. There is no weight decay (MATLAB: 5e-4).

At the authors' γ = 1 quantisation has hardly any effect, because the likelihood is a sum over n partners.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any

import numpy as np

from modalhash.core.randomness import RandomState
from modalhash.core.typing import Array, PerModality
from modalhash.core.validation import NonNegative, choice
from modalhash.methods._deep import (
    DeepData,
    DeepHasher,
    Hidden,
    Learner,
    Network,
    Optimizer,
    State,
    negative_log_likelihood,
)

MEMORY = 0.95
"""Decay of the running mean of the outputs, about 20 batches."""
START = 0.1
"""Factor on the initial weights of the last layer, which makes the first outputs small."""
PARTNERS = 2048
"""Items compared with a batch at a time, so that Θ fits into the cache; this halves the time of a step."""
SAMPLE = 512
"""Training pairs, about, whose likelihood is reported after every epoch."""


class LikelihoodHasher(DeepHasher):
    """Base of DCMH and PRDH, which maximise the likelihood of shared labels."""

    quantization: NonNegative
    balance: Annotated[str, choice("centred", "penalty")]
    balance_weight: NonNegative

    def _learner(self, data: DeepData, report: Callable[[str, int, float], None]) -> Learner:
        return LikelihoodLearner(self, data)

    def _gradient(self, batch: PairBatch) -> Any:
        """Return the gradient of n·b times the objective for the outputs of a batch."""
        gradient = likelihood_gradient(batch.h, batch.other, batch.S)
        gradient += 2 * self.quantization * (batch.h - batch.B)
        if self.balance == "penalty":
            gradient += 2 * self.balance_weight * batch.own.sum(dim=0)
        return gradient


@dataclass(eq=False, repr=False)
class DCMH(LikelihoodHasher):
    r"""Two networks whose inner products predict shared labels, after Jiang and Li (2017); frozen features.

    Minimises, by mini-batches of one modality against all items of the other,

    .. math::
        -\sum_{ij}\left(S_{ij}\Theta_{ij} - \log(1 + e^{\Theta_{ij}})\right)
        + \gamma\left(\lVert B - F\rVert^2 + \lVert B - G\rVert^2\right)
        + \eta\left(\lVert F^T1\rVert^2 + \lVert G^T1\rVert^2\right),
        \qquad \Theta = \tfrac12FG^T,\; B = \operatorname{sgn}(F + G).

    Training needs the extra ``torch``; a fitted or loaded model hashes without it.

    Parameters
    ----------
    hidden : units of the hidden layer, or a list with one number per layer; or a dict by modality. The paper has 4,096
        (the last layers of CNN-F) for photos and 8,192 for words, which is slow on a CPU
    quantization : γ ≥ 0
    balance : "centred", which subtracts the running mean of the outputs; or "penalty", the paper's term
    balance_weight : η ≥ 0 of "penalty"
    batch_size : pairs per step
    max_epochs : most epochs, over which the learning rate falls; None for 1,600 steps
    optimizer : "adam", or "sgd" as the authors have it
    learning_rate : of the first epoch; None is 3e-4 for Adam (falls to 1/10) and 10^-1.5 for SGD (falls to nearly 0)
    validation : share of the pairs held out to find the best epoch, 2,000 pairs at most; 0 keeps the last epoch
    patience : epochs without improvement after which training stops; None for a third of ``max_epochs``
    image_network : a torch module from the features of the modality ``"image"``, (batch, features), to (batch, width).
        A copy of it is trained instead of the hidden layer, below the hash layer. Such a model cannot be saved
    device : where torch computes, e.g. ``"cuda"``
    n_bits, random_state : as for :class:`~modalhash.methods.base.CrossModalHasher`

    Attributes
    ----------
    networks_ : weights and the scaling of the input, by modality
    objective_ : by epoch: ``"training"``, the mean negative log-likelihood of a sample of training pairs;
        ``"validation"``, that of held-out pairs; ``"map"``, the mAP of held-out items searched with each other
    n_iter_ : the epoch whose weights were kept
    image_network_ : the trained copy, if one was given
    """

    n_bits: int = 64
    _: KW_ONLY
    hidden: PerModality[Hidden] = 1024
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


@dataclass
class PairBatch:
    """Inputs of the gradient for the outputs of a batch."""

    h: Any  # outputs, without a graph
    own: Any  # outputs of all items of the modality, including the batch
    other: Any  # outputs of all items of the other modality
    S: Any  # between the batch and all items
    B: Any  # of the batch
    positions: Any  # of the batch among all items


class LikelihoodLearner:
    """Train networks; outputs of all items are stored, so that a batch is compared with all of them."""

    def __init__(self, method: LikelihoodHasher, data: DeepData) -> None:
        torch = data.torch
        self.method, self.data = method, data
        self.size = method.batch_size
        self.centred = method.balance == "centred"
        self.draws = data.generator(0)
        self.networks: dict[str, Network] = {}
        self.optimizers: dict[str, Optimizer] = {}
        self.outputs_of: dict[str, Any] = {}
        sizes = method._sizes(data)
        for name in data.X:
            network = Network(data, name, [*sizes[name], data.n_bits], self.draws, last=START)
            if self.centred:  # the last bias is minus the mean output, and not learned
                network.biases[-1].requires_grad_(False)
            others = list(data.bodies[name].parameters()) if name in data.bodies else []
            self.networks[name] = network
            self.optimizers[name] = Optimizer(torch, method.optimizer, [network], others)
            start = torch.randn(len(data.kept), data.n_bits, generator=self.draws)
            self.outputs_of[name] = start.to(data.device)
        self.started: set[str] = set()
        self.B = self._codes()

    def epoch(self, rate: float) -> float:
        for name, other in zip(self.data.X, reversed(list(self.data.X)), strict=True):
            for positions in self.data.batches(self.draws, self.size):
                self._step(name, other, positions, rate)
        self.B = self._codes()
        sample = np.arange(0, len(self.data.kept), max(1, len(self.data.kept) // SAMPLE))
        F, G = (outputs[sample] for outputs in self.outputs_of.values())
        S = self.data.similar(self.data.kept[sample], self.data.kept[sample])
        return negative_log_likelihood(self.data.torch, F, G, S)

    def _step(self, name: str, other: str, positions: Array, rate: float) -> None:
        torch, own = self.data.torch, self.outputs_of[name]
        h = self._forward(name, self.data.kept[positions], training=True)
        with torch.no_grad():
            at = torch.from_numpy(positions).to(own.device)
            own[at] = h.detach()
            S = self.data.similar_to_all(positions)
            gradient = self.method._gradient(PairBatch(h.detach(), own, self.outputs_of[other], S, self.B[at], at))
            if self.centred:
                gradient -= gradient.mean(dim=0)
        h.backward(gradient / (len(own) * len(positions)))
        self.optimizers[name].step(rate)

    def _forward(self, name: str, rows: Array, *, training: bool) -> Any:
        values = self.data.batch(name, rows)
        if name in self.data.bodies:
            values = self.data.bodies[name].train(training)(values)
        h = self.networks[name](values)
        if not (self.centred and training):
            return h
        with self.data.torch.no_grad():
            bias, mean = self.networks[name].biases[-1], h.mean(dim=0)  # the mean includes the bias
            share = 1 - MEMORY if name in self.started else 1.0
            self.started.add(name)
            bias -= share * mean
        return h - share * mean

    def outputs(self, name: str) -> Any:
        with self.data.torch.no_grad():
            return self._forward(name, self.data.held, training=False)

    def states(self) -> dict[str, State]:
        states: dict[str, State] = {
            name: {"input": self.data.inputs[name], "layers": network.arrays()}
            for name, network in self.networks.items()
        }
        for name, body in self.data.bodies.items():
            states[name]["body"] = {key: value.cpu().numpy().copy() for key, value in body.state_dict().items()}
        return states

    def _codes(self) -> Any:
        return (sum(self.outputs_of.values()) > 0).to(self.data.torch.float32) * 2 - 1


def likelihood_gradient(h: Any, other: Any, S: Any) -> Any:
    """Return the gradient of −Σ(SΘ − log(1 + e^Θ)) for the outputs h of a batch, ½(σ(Θ) − S)·other."""
    half, gradient = 0.5 * h, h.new_zeros(h.shape)
    for first in range(0, len(other), PARTNERS):
        partners, similar = other[first : first + PARTNERS], S[:, first : first + PARTNERS]
        theta = half @ partners.T
        theta.sigmoid_()
        theta -= similar.byte()
        gradient.addmm_(theta, partners)
    return 0.5 * gradient
