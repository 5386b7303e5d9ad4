r"""AADAH: Attention-Aware Deep Adversarial Hashing (Zhang et al., 2018), on frozen features: a re-implementation.

An attention network splits the features of an item into an attended and an unattended part. Hash networks learn codes
from the attended part, with triplet losses within and between modalities that bring items with a shared label together.
The attention network is their adversary: it moves features that are useless for such codes to the unattended part.

=================================  ===================================  ============================================
symbol                             here                                 what
=================================  ===================================  ============================================
:math:`E^I, E^T`                   ``networks_[name]["encoder"]``       features to d hidden features f
:math:`G^I, G^T`                   ``networks_[name]["attention"]``     P = softmax(G f), the mask is P ≥ 1/d
:math:`D^I, D^T`                   ``networks_[name]["layers"]``        f ∘ mask to r outputs, then tanh
:math:`H, \hat H`                  ``attended``, ``rest``               codes of f ∘ mask and of f ∘ (1 − mask)
:math:`\mathcal F_{A\to B}`        :func:`triplet_loss`                 mean over triplets of a batch
=================================  ===================================  ============================================

The authors published no code, and only a note with the paper's objective was available. Choices made here:

- E has one layer and D one hidden layer, on frozen features of both modalities. The paper trains VGG, and for words has
  two layers before the attention and none after it.
- Distances are ‖a − b‖²/4r, from 0 to 1 for any code length, and the margin is 1/4; Adam at 1e-4. All triplets of a
  batch count; :func:`triplet_loss` computes their sum by sorting.
- G reads features without a gradient to E, scaled to one length. Otherwise the softmax becomes one-hot within a few
  epochs, almost nothing is attended, and the loss increases, which looks like overfitting.
- The adversary is off by default. With it, training starts with two epochs without it and then alternates steps of G
  with steps of E and D. G's loss is unbounded and therefore clipped at 2.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any

import numpy as np

from modalhash.core.randomness import RandomState
from modalhash.core.typing import Array, Matrix, PerModality
from modalhash.core.validation import Count, Flag, Positive, integer
from modalhash.methods._deep import DeepData, DeepHasher, Hidden, Learner, Network, Optimizer, State, layers

LENGTH = 8.0
"""Length of the feature vectors that attention reads."""
SPREAD = 0.15
"""Scale of attention's initial logits; about half of the features are attended."""
MOST_LOSS = 2.0
"""Upper bound of the loss of the unattended codes, which attention maximises."""
LEAST_ATTENDED = 0.05
"""Share of attended features below which a fit warns."""
RATE = 1e-4


@dataclass(eq=False, repr=False)
class AADAH(DeepHasher):
    r"""Triplet losses on attended features, with an optional adversary, after Zhang et al. (2018); frozen features.

    A re-implementation from a note with the paper's objective. With the triplet losses

    .. math:: \mathcal F_{A\to B} = \operatorname{mean}_{S_{ij}=1,\,S_{ik}=0}
        \max\left(0,\; m + d(H^A_i, H^B_j) - d(H^A_i, H^B_k)\right), \qquad d(a, b) = \frac{\lVert a - b\rVert^2}{4r},

    encoders and hash networks minimise :math:`\mathcal F_{T\to I} + \mathcal F_{I\to T} + \mathcal F_{I\to I} +
    \mathcal F_{T\to T} + \mathcal F_{T\to\hat I} + \mathcal F_{I\to\hat T}`, where hats are codes of the
    unattended part; attention maximises the last two (``adversary=True``). The adversary is off by default, and the
    last two losses with it, because on frozen features it did not improve mAP and doubled the time
    (docs/measurements/deep.md).

    Training needs the extra ``torch``; a fitted or loaded model hashes without it.

    Parameters
    ----------
    n_bits : length of the codes, below the number of pairs
    hidden : units of the encoder, or a list with one number per layer; or a dict by modality
    hash_hidden : units of the hidden layer of the hash networks
    adversary : whether attention is trained against the other networks, as in the paper; False keeps its random start
    warm_up : epochs without the adversary
    margin : m > 0, in distances from 0 to 1
    batch_size : pairs per step
    max_epochs : most epochs, over which the learning rate falls; None for 1,600 steps
    optimizer : "adam" or "sgd"
    learning_rate : of the first epoch; None is 1e-4 for Adam, which falls to a tenth, and 10^-1.5 for SGD
    validation, patience, image_network, device, random_state : as for :class:`~modalhash.methods.dcmh.DCMH`

    Attributes
    ----------
    attended_ : share of attended features per epoch, by modality
    networks_, objective_, n_iter_, image_network_ : as for DCMH; ``"training"`` is the mean loss of the batches
    """

    n_bits: int = 64
    _: KW_ONLY
    hidden: PerModality[Hidden] = 1024
    hash_hidden: Count = 1024
    adversary: Flag = False
    warm_up: Annotated[int, integer(0)] = 2
    margin: Positive = 0.25
    batch_size: int = 96
    max_epochs: int | None = None
    optimizer: str = "adam"
    learning_rate: float | None = None
    validation: float = 0.05
    patience: int | None = None
    image_network: Any = None
    device: str = "cpu"
    random_state: RandomState = None

    def _learner(self, data: DeepData, report: Callable[[str, int, float], None]) -> Learner:
        return TripletLearner(self, data, report)

    def _first_rate(self) -> float | None:
        return RATE if self.learning_rate is None and self.optimizer == "adam" else self.learning_rate

    def _kept(self, learner: Any, epoch: int) -> dict[str, Any]:
        shares = {name: np.array(trace) for name, trace in learner.shares.items()}
        for name, trace in shares.items():
            if trace[epoch] < LEAST_ATTENDED:
                warnings.warn(
                    f"AADAH: attention keeps {100 * trace[epoch]:.1f} % of the hidden features of {name!r}, too few "
                    "for useful codes. Use fewer epochs (max_epochs) or adversary=False",
                    UserWarning,
                    stacklevel=2,
                )
        return {"attended_": shares}

    def _project_state(self, state: State, values: Matrix) -> Array:
        f = np.maximum(layers(state["encoder"], values), 0) if state["encoder"] else values
        length = np.sqrt((f**2).sum(axis=1, keepdims=True))
        logits = f * (LENGTH / np.maximum(length, 1e-6)) @ state["attention"]["W0"] + state["attention"]["b0"]
        return layers(state["layers"], f * attended(np, logits))


class TripletLearner:
    """Train encoders and hash networks against the attention networks."""

    def __init__(self, method: AADAH, data: DeepData, report: Callable[[str, int, float], None]) -> None:
        self.method, self.data, self.report = method, data, report
        self.size = method.batch_size
        self.draws = data.generator(0)
        self.done = 0
        self.encoders: dict[str, Network] = {}
        self.attention: dict[str, Network] = {}
        self.hashers: dict[str, Network] = {}
        for name, sizes in method._sizes(data).items():
            self.encoders[name] = Network(data, name, sizes, self.draws)
            width = sizes[-1]
            level = SPREAD / LENGTH / (2 / width) ** 0.5
            self.attention[name] = Network(data, name, [width, width], self.draws, first=False, last=level)
            self.hashers[name] = Network(data, name, [width, method.hash_hidden, data.n_bits], self.draws, first=False)
        bodies = [tensor for body in data.bodies.values() for tensor in body.parameters()]
        makers = [*self.encoders.values(), *self.hashers.values()]
        self.makers = Optimizer(data.torch, method.optimizer, makers, bodies)
        self.chooser = Optimizer(data.torch, method.optimizer, list(self.attention.values()))
        self.shares: dict[str, list[float]] = {name: [] for name in data.X}

    def epoch(self, rate: float) -> float:
        self.done += 1
        adversary = self.method.adversary and self.done > self.method.warm_up
        batches = list(self.data.batches(self.draws, self.size))
        losses, shares = zip(*(self._step(positions, rate, adversary) for positions in batches), strict=True)
        for name in self.data.X:
            self.shares[name].append(float(np.mean([share[name] for share in shares])))
            self.report(f"attended: {name}", self.done, self.shares[name][-1])
        return float(np.mean(losses))

    def _step(self, positions: Array, rate: float, adversary: bool) -> tuple[float, dict[str, float]]:
        torch, rows = self.data.torch, self.data.kept[positions]
        S = self.data.similar(rows, rows)
        f = {name: self._encode(name, rows, training=True) for name in self.data.X}
        with torch.no_grad():
            masks = {name: attended(torch, self._logits(name, values)) for name, values in f.items()}
        H = {name: self._hash(name, values * masks[name]) for name, values in f.items()}
        loss = sum(self._triplets(H[a], H[b], S, same=a == b) for a in H for b in H)
        if adversary:
            rest = {name: self._hash(name, values * (1 - masks[name])) for name, values in f.items()}
            loss = loss + self._against(H, rest, S)
        loss.backward()
        self.makers.step(rate)
        if adversary:
            self._choose({name: values.detach() for name, values in f.items()}, S, rate)
        return float(loss.detach()), {name: float(mask.mean()) for name, mask in masks.items()}

    def _choose(self, f: dict[str, Any], S: Any, rate: float) -> None:
        """Update attention; the gradient passes through the mask as if it were P·d (straight-through)."""
        torch = self.data.torch
        masks = {}
        for name, values in f.items():
            logits = self._logits(name, values)
            P = torch.softmax(logits, dim=1) * logits.shape[1]
            masks[name] = attended(torch, logits.detach()) + P - P.detach()
        H = {name: self._hash(name, values * masks[name]) for name, values in f.items()}
        rest = {name: self._hash(name, values * (1 - masks[name])) for name, values in f.items()}
        loss = -self._against(H, rest, S).clamp(max=MOST_LOSS)
        tensors = [tensor for network in self.attention.values() for tensor in network.trained()]
        for tensor, gradient in zip(tensors, torch.autograd.grad(loss, tensors), strict=True):
            tensor.grad = gradient
        self.chooser.step(rate)

    def _against(self, H: dict[str, Any], rest: dict[str, Any], S: Any) -> Any:
        """Return the two adversarial terms: attended codes of one modality against unattended ones of the other."""
        return sum(self._triplets(H[a], rest[b], S, same=False) for a in H for b in rest if a != b)

    def _triplets(self, first: Any, second: Any, S: Any, *, same: bool) -> Any:
        return triplet_loss(self.data.torch, distances(first, second), S, self.method.margin, same=same)

    def _encode(self, name: str, rows: Array, *, training: bool) -> Any:
        values = self.data.batch(name, rows)
        if name in self.data.bodies:
            values = self.data.bodies[name].train(training)(values)
        return self.data.torch.relu(self.encoders[name](values)) if self.encoders[name].weights else values

    def _logits(self, name: str, f: Any) -> Any:
        f = f.detach()
        return self.attention[name](f * (LENGTH / f.norm(dim=1, keepdim=True).clamp(min=1e-6)))

    def _hash(self, name: str, values: Any) -> Any:
        return self.data.torch.tanh(self.hashers[name](values))

    def outputs(self, name: str) -> Any:
        torch = self.data.torch
        with torch.no_grad():
            f = self._encode(name, self.data.held, training=False)
            return self._hash(name, f * attended(torch, self._logits(name, f)))

    def states(self) -> dict[str, State]:
        states: dict[str, State] = {
            name: {
                "input": self.data.inputs[name],
                "encoder": self.encoders[name].arrays(),
                "attention": self.attention[name].arrays(),
                "layers": self.hashers[name].arrays(),
            }
            for name in self.data.X
        }
        for name, body in self.data.bodies.items():
            states[name]["body"] = {key: value.cpu().numpy().copy() for key, value in body.state_dict().items()}
        return states


def attended(library: Any, logits: Any) -> Any:
    """Return a 0/1 mask of where the softmax of the logits is at least 1/d; ``library`` is numpy or torch."""
    largest = logits.max(axis=1, keepdims=True) if library is np else logits.amax(dim=1, keepdim=True)
    powers = library.exp(logits - largest)
    mean = powers.mean(axis=1, keepdims=True) if library is np else powers.mean(dim=1, keepdim=True)
    return powers >= mean if library is np else (powers >= mean).to(logits.dtype)


def distances(first: Any, second: Any) -> Any:
    """Return squared distances between rows, divided by the largest between codes of ±1."""
    squares = (first**2).sum(dim=1)[:, None] + (second**2).sum(dim=1)[None, :] - 2 * first @ second.T
    return squares.clamp(min=0) / (4 * first.shape[1])


def triplet_loss(torch: Any, d: Any, S: Any, margin: float, *, same: bool) -> Any:
    """Return the mean of max(0, m + d_ij − d_ik) over all triplets with S_ij = 1 and S_ik = 0.

    ``d`` (b, b) has an autograd graph and ``S`` (b, b) is boolean; ``same`` excludes j = i. The hinge is linear in d
    once the active triplets are known. Sorted rows give how many k are active for each (i, j), and how many j for each
    (i, k), in O(b² log b) instead of O(b³).
    """
    with torch.no_grad():
        positive = S.clone()
        if same:
            positive.fill_diagonal_(False)
        negative = ~S
        infinite = float("inf")
        near = torch.where(positive, d, infinite).sort(dim=1).values
        far = torch.where(negative, d, infinite).sort(dim=1).values
        # k with d_ik < d_ij + m; j with d_ij > d_ik − m
        active = torch.searchsorted(far, (d + margin).contiguous()) * positive
        n_positive = positive.sum(dim=1, keepdim=True)
        chosen = (n_positive - torch.searchsorted(near, (d - margin).contiguous(), right=True)) * negative
        triplets = max(int((n_positive * negative.sum(dim=1, keepdim=True)).sum()), 1)
    return ((active * (d + margin)).sum() - (chosen * d).sum()) / triplets
