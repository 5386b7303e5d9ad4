"""Base of the deep methods: fully connected networks on frozen features, trained in mini-batches with torch.

The learned state is plain arrays, and numpy computes the codes of new items, so that a loaded model needs no torch.

- **Input.** If more than a quarter of the features are not zero, columns are standardised. Sparser features (words) are
  divided by the root mean square of the nonzero values, and the first layer is an ``embedding_bag``, so that a step
  reads and updates only the rows of the words in the batch. CSR and dense features give the same codes.
- **Repeatability.** A fit uses one thread and its own generators, so the same seed gives the same bits. It restores the
  caller's number of threads and torch's global generator.
- **Early stopping.** Some pairs are held out. After every epoch, their photos search their texts and vice versa, and
  the epoch with the highest mAP is kept. A database of training items would hide overfitting.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Protocol

import numpy as np
from scipy import sparse
from sklearn.base import clone

from modalhash.core.blocks import row_slices
from modalhash.core.codes import pack_signs
from modalhash.core.imports import require
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, root_seed, row_keys
from modalhash.core.typing import Array, Matrix, PerModality
from modalhash.core.validation import Count, Positive, check_int, choice, integer, number, per_modality
from modalhash.evaluation import mean_average_precision
from modalhash.methods.base import PairCodes, PairedHasher

Hidden = int | Sequence[int]
"""Units of the hidden layer, or of each of several."""
State = dict[str, dict[str, Array]]
"""Learned arrays of one modality, by part and name."""
DENSE = 0.25
"""Fraction of nonzero features above which a modality is standardised instead of treated as words."""
MOST_HELD_OUT = 2000
"""Largest number of held-out pairs; more would take time without finding a better epoch."""
STEPS = 1600
"""Approximate number of steps of every network in the default number of epochs."""
HOOKED = "image"
"""The modality that ``image_network`` reads."""
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
"""Parameters of Adam."""
RATES = {"adam": (3e-4, 3e-5), "sgd": (10**-1.5, 1e-6)}
"""First and last learning rate. Those of SGD are from DCMH's TensorFlow code, with linear decay."""


class Learner(Protocol):
    """The networks of a fit while they learn."""

    def epoch(self, rate: float) -> float:
        """Train on every pair once and return the objective."""

    def outputs(self, name: str) -> Any:
        """Return the outputs for the held-out items of one modality, as a tensor."""

    def states(self) -> dict[str, State]:
        """Return copies of the learned arrays, by modality."""


class DeepHasher(PairedHasher):
    """Base class of the deep methods; a subclass makes the :class:`Learner` and projects items."""

    hidden: PerModality[Hidden]
    batch_size: Annotated[int, integer(3)]
    max_epochs: Count | None
    optimizer: Annotated[str, choice(*RATES)]
    learning_rate: Positive | None
    validation: Annotated[float, number(at_most=0.5)]
    patience: Count | None
    image_network: Any
    device: str
    random_state: RandomState
    networks_: dict[str, State]
    objective_: dict[str, Any]
    n_iter_: int
    image_network_: Any

    @abstractmethod
    def _learner(self, data: DeepData, report: Callable[[str, int, float], None]) -> Learner:
        """Return the initial networks; ``report`` takes a stage, the epoch and a value."""

    def _first_rate(self) -> float | None:
        """Return the learning rate of the first epoch, or None for the default."""
        return self.learning_rate

    def _project_state(self, state: State, values: Matrix) -> Array:
        """Return the projections of scaled input of one modality."""
        return layers(state["layers"], values)

    def _fit_pairs(self, X: dict[str, Matrix], L: Array, n_bits: int, report: Reporter) -> PairCodes:
        torch = require("torch", extra="torch", why=f"Training {type(self).__name__}")
        max_epochs = -(-STEPS * self.batch_size // len(L)) if self.max_epochs is None else self.max_epochs
        patience = max(1, max_epochs // 3) if self.patience is None else self.patience
        rates = learning_rates(self.optimizer, self._first_rate(), max_epochs)
        self._check_hook(torch, X)
        seed = root_seed(self.random_state)
        kept, held = held_out(X, self.validation, seed)
        traces: dict[str, list[float]] = {"training": [], "validation": [], "map": []}
        best: tuple[tuple[float, float], int, dict[str, State]] | None = None
        with repeatable(torch, seed):
            data = DeepData(torch, X, L, kept, held, n_bits, seed, self._bodies(), self.device)
            learner = self._learner(data, lambda stage, epoch, value: report(stage, epoch, max_epochs, value))
            for epoch, rate in enumerate(rates):
                traces["training"].append(learner.epoch(rate))
                value = self._judge(learner, data, traces)
                torch.set_num_threads(1)  # numba, which computes the mAP, changes OpenMP's number of threads
                if best is None or not len(held) or value > best[0]:
                    best = value, epoch, learner.states()
                report("epochs", epoch + 1, max_epochs, traces["training"][-1])
                if epoch - best[1] >= patience:
                    break
        assert best is not None  # max_epochs ≥ 1
        learned: dict[str, Any] = {
            "networks_": best[2],
            "n_iter_": best[1] + 1,
            "objective_": {name: np.array(trace) for name, trace in traces.items() if trace},
        } | self._kept(learner, best[1])
        if data.bodies:
            learned["image_network_"] = data.bodies[HOOKED].eval()
            learned["image_network_"].load_state_dict(
                {name: torch.from_numpy(values) for name, values in best[2][HOOKED].pop("body").items()}
            )
        model = clone(self)
        vars(model).update(learned)
        return np.add.reduce([model._project_blocks(name, values) for name, values in X.items()]), learned

    def _judge(self, learner: Learner, data: DeepData, traces: dict[str, list[float]]) -> tuple[float, float]:
        """Return the mAP of the held-out pairs, and their likelihood, which breaks ties."""
        if not len(data.held):
            return 0.0, 0.0
        F, G = (learner.outputs(name) for name in data.X)
        labels = data.L[data.held]
        codes = [pack_signs(values.cpu().numpy()) for values in (F, G)]
        n_bits = data.n_bits
        found = [
            mean_average_precision(queries, labels, database, labels, n_bits=n_bits)
            for queries, database in (codes, codes[::-1])
        ]
        likelihood = negative_log_likelihood(data.torch, F, G, data.similar(data.held, data.held))
        traces["map"].append(float(np.mean(found)))
        traces["validation"].append(likelihood)
        return traces["map"][-1], -likelihood

    def _kept(self, learner: Learner, epoch: int) -> dict[str, Any]:
        """Return further learned attributes."""
        return {}

    def _check_hook(self, torch: Any, X: Mapping[str, Matrix]) -> None:
        if self.image_network is None:
            return
        if not isinstance(self.image_network, torch.nn.Module):
            raise TypeError(
                f"image_network is a {type(self.image_network).__name__}; expected a torch.nn.Module that takes "
                "(batch, features) and returns (batch, any width)"
            )
        if HOOKED not in X:
            raise ValueError(
                f"image_network reads the modality {HOOKED!r}; there are {', '.join(map(repr, X))}. Name the pictures "
                f"{HOOKED!r}"
            )
        if sparse.issparse(X[HOOKED]):
            raise TypeError("image_network takes dense features; 'image' is sparse. Pass X['image'].toarray()")

    def _bodies(self) -> dict[str, Any]:
        """Return a copy of the caller's network by the modality that it reads."""
        return {} if self.image_network is None else {HOOKED: deepcopy(self.image_network).to(self.device)}

    def _sizes(self, data: DeepData) -> dict[str, list[int]]:
        widths = {}
        for name, hidden in per_modality(self.hidden, data.X, "hidden").items():
            sizes = [hidden] if isinstance(hidden, int | np.integer) else hidden
            if not isinstance(sizes, Sequence) or isinstance(sizes, str):
                raise TypeError(f"hidden is {hidden!r}; expected units of a layer, or a list with one number per layer")
            checked = [check_int(size, "hidden", at_least=1) for size in sizes]
            widths[name] = [data.widths[name]] + ([] if name in data.bodies else checked)
        return widths

    def _project(self, name: str, X: Matrix) -> Array:
        state = self.networks_[name]
        values = scaled(state["input"], X)
        if name == HOOKED and self.image_network is not None:
            torch = require("torch", extra="torch", why="image_network")
            with torch.inference_mode():
                values = self.image_network_(torch.from_numpy(values).to(self.device)).cpu().numpy()
        return self._project_state(state, values)

    def _width(self, name: str) -> int:
        return max(array.shape[-1] for part in self.networks_[name].values() for array in part.values() if array.ndim)

    def save(self, folder: str | Path) -> None:
        """Write the model into a folder; TypeError if it has an ``image_network``."""
        if self.image_network is not None:
            raise TypeError(
                f"{type(self).__name__} was given an image_network, a Python object, which a saved model cannot hold. "
                "Save its weights with torch.save(model.image_network_.state_dict(), file); or train on features that "
                "the network has made, without image_network, and save that"
            )
        super().save(folder)


@dataclass
class DeepData:
    """Training data of a learner: batches and similarities as tensors."""

    torch: Any
    X: dict[str, Matrix]
    L: Array
    kept: Array  # rows of the training pairs
    held: Array  # rows of the held-out pairs
    n_bits: int
    seed: int
    bodies: dict[str, Any]
    device: str
    inputs: dict[str, dict[str, Array]] = field(init=False)
    widths: dict[str, int] = field(init=False)
    norms: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        self.inputs = {
            name: {} if name in self.bodies else scaling(values[self.kept]) for name, values in self.X.items()
        }
        # words in CSR, for fast row access
        self.X = {
            name: sparse.csr_array(values) if "scale" in self.inputs[name] else values
            for name, values in self.X.items()
        }
        self.widths, self.norms = {}, {}
        for name, values in self.X.items():
            first = self.batch(name, self.kept[:256])
            if name in self.bodies:
                with self.torch.no_grad():
                    first = self.bodies[name].eval()(first)
                if first.ndim != 2:
                    raise ValueError(
                        f"image_network returned a tensor of shape {tuple(first.shape)}; expected (batch, any width)"
                    )
            self.widths[name] = values.shape[1] if isinstance(first, Words) else int(first.shape[1])
            numbers = first.values if isinstance(first, Words) else first
            self.norms[name] = max(float((numbers**2).sum()) / min(256, len(self.kept)), 1e-3)
        self._columns = np.ascontiguousarray(self.L[self.kept].T)

    def generator(self, stream: int) -> Any:
        seed = int(np.random.SeedSequence([self.seed, stream]).generate_state(1, np.uint64)[0] >> np.uint64(1))
        return self.torch.Generator().manual_seed(seed)

    def batch(self, name: str, rows: Array) -> Any:
        values = scaled(self.inputs[name], self.X[name][rows])
        if not sparse.issparse(values):
            return self.torch.from_numpy(values).to(self.device)
        used, indices = np.unique(values.indices, return_inverse=True)
        parts = (used.astype(np.int64), indices.astype(np.int64), values.indptr.astype(np.int64), values.data)
        return Words(*(self.torch.from_numpy(part).to(self.device) for part in parts))

    def similar_to_all(self, positions: Array) -> Any:
        """Return S between training pairs at these positions and all training pairs, boolean.

        A row is the union of the columns of its labels, without any n × n array.
        """
        S = np.empty((len(positions), self._columns.shape[1]), dtype=bool)
        for row, labels in zip(S, self.L[self.kept[positions]], strict=True):
            np.logical_or.reduce(self._columns[labels], axis=0, out=row)
        return self.torch.from_numpy(S).to(self.device)

    def similar(self, first: Array, second: Array) -> Any:
        """Return S between two lists of rows, boolean."""
        shared = self.L[first].astype(np.float32) @ self.L[second].astype(np.float32).T
        return self.torch.from_numpy(shared > 0).to(self.device)

    def batches(self, generator: Any, size: int) -> Iterator[Array]:
        """Yield shuffled positions of all training pairs, in batches of nearly equal size."""
        order = self.torch.randperm(len(self.kept), generator=generator).numpy()
        yield from np.array_split(order, max(1, round(len(order) / size)))


@dataclass
class Words:
    """A batch of sparse rows in the format of ``embedding_bag``; ``used`` has the columns that occur in it."""

    used: Any
    indices: Any
    offsets: Any
    values: Any


class Network:
    """A fully connected network: affine maps with ReLU between them.

    Weights are initialised after He et al., those of the last layer multiplied by ``last``, biases at 0. Of the first
    matrix of words, a step trains only ``rows``, the rows ``used`` by its batch.
    """

    def __init__(
        self, data: DeepData, name: str, sizes: Sequence[int], generator: Any, *, first: bool = True, last: float = 1.0
    ) -> None:
        torch = self._torch = data.torch
        self.words = first and "scale" in data.inputs[name]
        self.weights: list[Any] = []
        self.biases: list[Any] = []
        for layer, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            length = data.norms[name] if first and not layer else fan_in  # squared norm of the layer's input
            W = torch.randn(fan_in, fan_out, generator=generator) * (2 / length) ** 0.5
            if layer == len(sizes) - 2:
                W *= last
            self.weights.append(W.to(data.device).requires_grad_(layer > 0 or not self.words))
            self.biases.append(torch.zeros(fan_out, device=data.device).requires_grad_())
        self.used: Any = None
        self.rows: Any = None

    def __call__(self, values: Any) -> Any:
        torch = self._torch
        for layer, (W, b) in enumerate(zip(self.weights, self.biases, strict=True)):
            if isinstance(values, Words):
                self.used, self.rows = values.used, W[values.used].requires_grad_()
                values = b + torch.nn.functional.embedding_bag(
                    values.indices, self.rows, values.offsets, mode="sum", per_sample_weights=values.values,
                    include_last_offset=True,
                )  # fmt: skip
            else:
                values = torch.addmm(b, torch.relu(values) if layer else values, W)
        return values

    def trained(self) -> list[Any]:
        """Return the tensors that every step updates completely."""
        return [tensor for tensor in (*self.weights, *self.biases) if tensor.requires_grad]

    def arrays(self) -> dict[str, Array]:
        tensors = {f"W{k}": W for k, W in enumerate(self.weights)} | {f"b{k}": b for k, b in enumerate(self.biases)}
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in tensors.items()}


class Optimizer:
    """Adam (Kingma and Ba) or plain SGD.

    In a matrix of words, only the rows of the batch are updated. Adam counts the steps of each row, and the moments of
    other rows do not decay ("lazy" Adam), unlike those of a dense matrix.
    """

    def __init__(self, torch: Any, kind: str, networks: Sequence[Network], others: Sequence[Any] = ()) -> None:
        self._torch, self._adam, self._networks = torch, kind == "adam", networks
        self._tensors = [*(tensor for network in networks for tensor in network.trained()), *others]
        self._moments = [(torch.zeros_like(W), torch.zeros_like(W)) for W in self._tensors] if self._adam else []
        self._steps = 0
        words = [network.weights[0] for network in networks if network.words]
        self._word_moments = [(torch.zeros_like(W), torch.zeros_like(W)) for W in words] if self._adam else []
        self._word_steps = [torch.zeros(len(W), 1, device=W.device) for W in words]

    def step(self, rate: float) -> None:
        with self._torch.no_grad():
            self._steps += 1
            for position, tensor in enumerate(self._tensors):
                if tensor.grad is None:
                    continue
                if self._adam:
                    self._adam_step(tensor, tensor.grad, *self._moments[position], self._steps, rate)
                else:
                    tensor.sub_(tensor.grad, alpha=rate)
                tensor.grad = None
            for position, network in enumerate(network for network in self._networks if network.words):
                self._step_rows(position, network, rate)

    def _step_rows(self, position: int, network: Network, rate: float) -> None:
        used, gradient, weights = network.used, network.rows.grad, network.rows.detach()
        if self._adam:
            steps = self._word_steps[position]
            steps[used] += 1
            first, second = (whole[used] for whole in self._word_moments[position])
            self._adam_step(weights, gradient, first, second, steps[used], rate)
            for whole, part in zip(self._word_moments[position], (first, second), strict=True):
                whole[used] = part
        else:
            weights.sub_(gradient, alpha=rate)
        network.weights[0][used] = weights
        network.used = network.rows = None

    def _adam_step(self, tensor: Any, gradient: Any, first: Any, second: Any, steps: Any, rate: float) -> None:
        first.lerp_(gradient, 1 - BETA1)
        second.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        size = (1 - BETA2**steps) ** 0.5 / (1 - BETA1**steps)  # a number, or one for each row
        divisor = second.sqrt().add_(EPSILON)
        if isinstance(steps, int):
            tensor.addcdiv_(first, divisor, value=-rate * size)
        else:
            tensor.addcdiv_(first * size, divisor, value=-rate)


def scaling(X: Matrix) -> dict[str, Array]:
    """Return the statistics by which :func:`scaled` makes features the input of a network."""
    n, width = X.shape
    filled = X.count_nonzero() if sparse.issparse(X) else np.count_nonzero(X)
    if filled <= DENSE * n * width:
        numbers = np.asarray(X.data if sparse.issparse(X) else X, dtype=np.float64)
        return {"scale": np.array(np.sqrt(filled / max(np.sum(numbers**2), np.finfo(float).tiny)))}
    total, squares = np.zeros(width), np.zeros(width)
    blocks = list(row_slices(n, max(1, 2**20 // width)))
    for rows in blocks:
        total += _dense(X[rows]).sum(axis=0, dtype=np.float64)
    mean = total / n
    for rows in blocks:
        squares += ((_dense(X[rows]) - mean) ** 2).sum(axis=0)
    deviation = np.sqrt(squares / n)
    # do not amplify the rounding errors of a constant column
    constant = deviation <= 1e-6 * np.abs(mean)
    return {"mean": mean, "deviation": np.where(constant, np.maximum(np.abs(mean), 1), deviation)}


def scaled(how: Mapping[str, Array], X: Matrix) -> Matrix:
    """Return the input of a network in float32: CSR for words, else an array."""
    if "scale" in how:
        words = sparse.csr_array(X)
        return sparse.csr_array(
            ((words.data * how["scale"]).astype(np.float32), words.indices, words.indptr), shape=words.shape
        )
    if "mean" in how:
        return ((_dense(X) - how["mean"]) / how["deviation"]).astype(np.float32)
    return np.array(X, dtype=np.float32)  # a copy, because torch warns about read-only arrays


def layers(arrays: Mapping[str, Array], values: Matrix) -> Array:
    """Return the output of a :class:`Network`, computed by numpy."""
    for layer in range(len(arrays) // 2):
        values = (np.maximum(values, 0) if layer else values) @ arrays[f"W{layer}"] + arrays[f"b{layer}"]
    return values


def held_out(X: Mapping[str, Matrix], share: float, seed: int) -> tuple[Array, Array]:
    """Return the rows to train on and the rows to hold out, drawn by content."""
    n = next(iter(X.values())).shape[0]
    count = min(round(share * n), MOST_HELD_OUT)
    if not count:
        return np.arange(n), np.arange(0)
    keys = np.add.reduce([row_keys(values, seed) for values in X.values()])
    order = np.argsort(keys, kind="stable")
    return np.sort(order[count:]), np.sort(order[:count])


def learning_rates(optimizer: str, first: float | None, epochs: int) -> Array:
    """Return the learning rate of every epoch; Adam's decays geometrically to a tenth, SGD's linearly to almost 0."""
    start, end = RATES[optimizer]
    if first is not None:
        start, end = first, first * (end / start)
    return np.geomspace(start, end, epochs) if optimizer == "adam" else np.linspace(start, end, epochs)


def negative_log_likelihood(torch: Any, F: Any, G: Any, S: Any) -> float:
    """Return the mean over all pairs of −log p(S | Θ), Θ = FGᵀ/2."""
    theta = F @ G.T / 2
    return float((torch.nn.functional.softplus(theta) - S * theta).mean())


@contextmanager
def repeatable(torch: Any, seed: int) -> Iterator[None]:
    """Use one thread, and seed torch's global generator, which dropout in an ``image_network`` draws from."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)


def _dense(X: Matrix) -> Array:
    return X.toarray() if sparse.issparse(X) else X
