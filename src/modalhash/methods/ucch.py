r"""UCCH: Unsupervised Contrastive Cross-modal Hashing (Hu et al., IEEE TPAMI 2023), on features.

Unsupervised. A network for each modality is trained so that its outputs identify a pair among all others: with a
contrastive loss against a memory of one code per training pair, and, across modalities, with a ranking loss against the
other pairs of the batch.

========================  =======================  ====================================================
authors' code             here                     is
========================  =======================  ====================================================
``image_model``, …        ``networks_[name]``      layers d → hidden (→ hidden) → r, ReLU between them
``images_outputs``, …     ``outputs`` (b, r) each  tanh of the last layer, at length 1
``memory``                ``memory`` (n, r)        running mean of a pair's outputs, at length 1
``K``                     ``n_negatives``          other codes in the contrastive loss of a pair
``T``                     ``temperature``
``momentum``              ``momentum``             share of the memory that an update keeps
``margin``, ``shift``     ``margin``, ``shift``    of the ranking loss
``alpha``                 ``contrast_weight``      weight of the contrast against the ranking loss
========================  =======================  ====================================================

Departures from the authors' code: hidden layers have 1,024 units (theirs 8,192, with 67 million weights in the second
layer of the image network); features are centred and scaled, so that the learning rate suits any magnitude; the K
random codes are drawn once per batch instead of once per pair, which has the same expectation and needs one matrix
product instead of b × K copied codes; the last epoch is kept (theirs the one with the best mAP by labels on 2,000
training pairs, which an unsupervised method does not have); sgn(0) = −1. ``shift``, ``contrast_weight`` and
``max_epochs`` are those of the command in their README. The learned code of a pair is the sign of the mean of both
outputs after training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import pairwise
from typing import Annotated, Any, ClassVar

import numpy as np
from sklearn.base import clone

from modalhash.core.blocks import row_slices
from modalhash.core.features import Linear
from modalhash.core.imports import require
from modalhash.core.linalg import squared, unit_rows
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, root_seed
from modalhash.core.typing import Array, Matrix, PerModality
from modalhash.core.validation import Count, NonNegative, Positive, Share, integer, per_modality
from modalhash.methods._deep import repeatable
from modalhash.methods.base import PairCodes, PairedHasher

DEPTHS = (2, 1)
"""Numbers of hidden layers of the authors' networks, for the first modality (image) and the second (text)."""
WEIGHT_DECAY, LARGEST_GRADIENT = 1e-6, 1.0
WARM_UP = 1
"""Epochs in which the codes of the batch replace the memory, which is random at the start."""
SLOWER_AFTER = (30, 60, 90, 120)
"""Epochs after which the learning rate is divided by 10."""
BLOCK_VALUES = 2**22
"""Feature values per block."""


@dataclass(eq=False, repr=False)
class UCCH(PairedHasher):
    r"""Contrastive networks without labels, after Hu et al. (2023); training needs the extra ``torch``.

    Minimises αL_c + (1 − α)L_r over mini-batches of pairs. With h and g the outputs of a pair's two items, b its code
    in the memory and b' those of the others,

    .. math::
        L_c = -\log\frac{e^{b^Th/\tau}}{\sum_{b'} e^{b'^Th/\tau}} - \log\frac{e^{b^Tg/\tau}}{\sum_{b'} e^{b'^Tg/\tau}},
        \qquad \tau = T\sqrt r,

    .. math::
        L_r = 2m - 2h_i^Tg_i + \log\sum_j e^{s_{ij}} + \log\sum_j e^{s_{ji}},

    where s_ij = h_iᵀg_j, less ``shift`` where it is below h_iᵀg_i by more than the margin m, which reduces the weight
    of pairs that are already separated.

    Parameters
    ----------
    n_bits : length of the codes, below the number of pairs
    hidden : units of a hidden layer
    depth : hidden layers, or a dict by modality. None is 2 for the first modality and 1 for the second
    contrast_weight : α, from 0 to 1
    n_negatives : K, codes of other pairs that are drawn for a batch
    temperature : T > 0
    momentum : share of the memory that an update keeps, from 0 to 1
    margin, shift : of the ranking loss
    learning_rate : of Adam; divided by 10 after 30, 60, 90 and 120 epochs
    batch_size : pairs in a batch, at least 2; an incomplete last batch is dropped
    max_epochs : epochs
    random_state : int, Generator or None. The same seed gives the same codes because torch uses one thread

    Attributes
    ----------
    objective_ : mean loss of every epoch. It may increase after the first, when the memory comes into use
    networks_ : weights ``W1``, ``b1``, … by modality
    """

    supervised: ClassVar[bool] = False

    n_bits: int = 64
    _: KW_ONLY
    hidden: Count = 1024
    depth: PerModality[Annotated[int, integer(0)]] | None = None
    contrast_weight: Share = 0.7
    n_negatives: Count = 4096
    temperature: Positive = 0.9
    momentum: Share = 0.4
    margin: NonNegative = 0.2
    shift: NonNegative = 0.1
    learning_rate: Positive = 1e-4
    batch_size: Annotated[int, integer(2)] = 256
    max_epochs: Count = 20
    random_state: RandomState = None

    networks_: dict[str, dict[str, Array]] = field(init=False)

    def _fit_pairs(self, X: dict[str, Matrix], L: Array, n_bits: int, report: Reporter) -> PairCodes:
        loss = Loss(
            alpha=float(self.contrast_weight),
            tau=float(self.temperature * np.sqrt(n_bits)),
            margin=float(self.margin),
            shift=float(self.shift),
        )
        widths = self._widths(X, n_bits)
        torch = require("torch", extra="torch", why="Learning UCCH")
        seed = root_seed(self.random_state)
        rng = np.random.default_rng(seed)
        maps = {name: Linear(dtype="float32").fit(values) for name, values in X.items()}
        scales = {name: root_mean_square(maps[name], values) for name, values in X.items()}
        n = next(iter(X.values())).shape[0]
        memory = torch.from_numpy(rng.choice(np.array([-1, 1], dtype=np.float32), (n, n_bits)))
        networks = {name: [torch.from_numpy(W) for W in draw_layers(widths[name], rng)] for name in X}
        weights = [W.requires_grad_() for layers in networks.values() for W in layers]
        optimizer = torch.optim.Adam(weights, lr=float(self.learning_rate), weight_decay=WEIGHT_DECAY)
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, SLOWER_AFTER, gamma=0.1)
        report("features", 1, 1)

        trace: list[float] = []
        with repeatable(torch, seed):
            for epoch in range(self.max_epochs):
                losses = []
                for batch in batches(n, self.batch_size, rng):
                    inputs = {name: torch.from_numpy(maps[name].map(X[name][batch]) / scales[name]) for name in X}
                    h, g = (outputs(torch, networks[name], inputs[name]) for name in X)
                    if epoch < WARM_UP:
                        own, others = (h + g).detach(), None
                        memory[batch] = updated(torch, memory[batch], h, g, 0.0)
                    else:
                        own, others = memory[batch], memory[rng.integers(n, size=self.n_negatives)]
                        memory[batch] = updated(torch, memory[batch], h, g, float(self.momentum))
                    value = loss(torch, h, g, own, others)
                    optimizer.zero_grad()
                    value.backward()
                    torch.nn.utils.clip_grad_norm_(weights, LARGEST_GRADIENT)
                    optimizer.step()
                    losses.append(value.item())
                schedule.step()
                trace.append(float(np.mean(losses)))
                report("epochs", epoch + 1, self.max_epochs, trace[-1])

        learned = {
            "maps_": maps,
            "networks_": {name: plain(layers, scales[name]) for name, layers in networks.items()},
            "objective_": trace,
        }
        model = clone(self)
        vars(model).update(learned)
        return np.add.reduce([model._project_blocks(name, values) for name, values in X.items()]), learned

    def _widths(self, X: dict[str, Matrix], n_bits: int) -> dict[str, list[int]]:
        depths = per_modality(dict(zip(X, DEPTHS, strict=True)) if self.depth is None else self.depth, X, "depth")
        return {name: [X[name].shape[1], *[self.hidden] * depth, n_bits] for name, depth in depths.items()}

    def _project(self, name: str, X: Matrix) -> Array:
        """Return the outputs of the network, computed without torch."""
        network, out = self.networks_[name], self.maps_[name].map(X)
        depth = len(network) // 2
        for layer in range(1, depth + 1):
            out = out @ network[f"W{layer}"] + network[f"b{layer}"]
            if layer < depth:
                np.maximum(out, 0, out=out)
        return np.asarray(unit_rows(np.tanh(out)))

    def _width(self, name: str) -> int:
        return max(W.shape[0] for W in self.networks_[name].values())


@dataclass(frozen=True)
class Loss:
    """αL_c + (1 − α)L_r for the outputs h and g (b, r) of the pairs of a batch."""

    alpha: float
    tau: float
    margin: float
    shift: float

    def __call__(self, torch: Any, h: Any, g: Any, own: Any, others: Any | None) -> Any:
        """Return the loss for the signs of ``own`` (b, r) and ``others`` (K, r); None is the rest of the batch."""
        own, others = binary(torch, own), None if others is None else binary(torch, others)
        contrast = self.contrast(torch, h, own, others) + self.contrast(torch, g, own, others)
        return self.alpha * contrast + (1 - self.alpha) * (self.ranking(h @ g.T) + self.ranking(g @ h.T))

    def contrast(self, torch: Any, h: Any, own: Any, others: Any | None) -> Any:
        """Return −log of the own code's share in Σ exp(bᵀh / τ) over own and other codes."""
        entropy = torch.nn.functional.cross_entropy
        if others is None:
            return entropy(h @ own.T / self.tau, torch.arange(len(h)))
        scores = torch.cat([(h * own).sum(dim=1, keepdim=True), h @ others.T], dim=1)
        return entropy(scores / self.tau, torch.zeros(len(h), dtype=torch.int64))

    def ranking(self, scores: Any) -> Any:
        """Return the mean over rows of m − s_ii + log Σ_j exp(s_ij), with shifted s_ij."""
        own = scores.diagonal()
        apart = scores < own[:, None].detach() - self.margin
        return (self.margin - own + (scores - self.shift * apart).logsumexp(dim=1)).mean()


def outputs(torch: Any, layers: Sequence[Any], x: Any) -> Any:
    """Return the outputs of the network W1, b1, W2, b2, …: tanh of the last layer, at length 1."""
    for W, b in zip(layers[:-2:2], layers[1:-2:2], strict=True):
        x = torch.relu(x @ W + b)
    return torch.nn.functional.normalize(torch.tanh(x @ layers[-2] + layers[-1]))


def updated(torch: Any, memory: Any, h: Any, g: Any, momentum: float) -> Any:
    """Return the updated memory of a batch, unit(m · memory + (1 − m) · unit(h + g))."""
    unit = torch.nn.functional.normalize
    return unit(momentum * memory + (1 - momentum) * unit((h + g).detach()))


def binary(torch: Any, x: Any) -> Any:
    return torch.where(x > 0, 1.0, -1.0)


def draw_layers(widths: list[int], rng: np.random.Generator) -> list[Array]:
    """Return W1, b1, W2, b2, …, uniform within ±1/√(input width), torch's default."""
    layers = []
    for n_in, n_out in pairwise(widths):
        limit = 1 / np.sqrt(n_in)
        layers += [rng.uniform(-limit, limit, shape).astype(np.float32) for shape in ((n_in, n_out), (n_out,))]
    return layers


def plain(layers: Sequence[Any], scale: float) -> dict[str, Array]:
    """Return the layers as arrays by name, with the scale of the features in the first."""
    arrays = [np.array(W.detach().numpy()) for W in layers]
    arrays[0] /= np.float32(scale)
    return {f"{'Wb'[k % 2]}{k // 2 + 1}": W for k, W in enumerate(arrays)}


def root_mean_square(feature_map: Linear, X: Matrix) -> float:
    """Return the root mean square of all mapped features."""
    size = max(1, BLOCK_VALUES // X.shape[1])
    total = sum(squared(feature_map.map(X[rows]).astype(np.float64)) for rows in row_slices(X.shape[0], size))
    return float(np.sqrt(total / (X.shape[0] * X.shape[1])))


def batches(n: int, size: int, rng: np.random.Generator) -> Iterator[Array]:
    """Yield rows in random order, ``size`` at a time; an incomplete batch is dropped unless it is the only one."""
    order, size = rng.permutation(n), min(size, n)
    for first in range(0, n - size + 1, size):
        yield order[first : first + size]
