r"""RLH, step 1: the functions of the label space that tell best whether two items share a label.

A *source* is a set of vectors of the label space with known labels: the label patterns, and each modality's
posteriors. All sources have one code, :math:`\operatorname{sgn}(A^Ts + b)`, smoothed while it is learned to
:math:`u = \tanh(\alpha(A^Ts + b))`. For a pair of items of two sources

.. math:: P(R_{ij} = 1) = \sigma(\gamma\,u_i^Tu_j/r + \delta), \qquad R_{ij} = [\,i\text{ and }j\text{ share a label}\,]

with γ and δ of their own for every two sources. Adam minimises the mean negative log-likelihood over batches of drawn
items, all against all. The error :math:`E = \sigma(\cdot) - R` of a batch of B × B pairs gives

.. math:: \partial_{u_i} = \frac{\gamma}{rB^2}\sum_j E_{ij}u_j,\quad
          \partial_\gamma = \frac1{B^2}\sum E\circ\Theta,\quad \partial_\delta = \frac1{B^2}\sum E,\quad
          \partial_A = \sum_i s_i\,\bigl(\alpha\,\partial_{u_i}\circ(1 - u_i\circ u_i)\bigr)^T

==================  ==============================  ============================================================
symbol              here                            is
==================  ==============================  ============================================================
:math:`s`           ``Source.S`` (m, k), float32    vectors of a source over their standard deviation
:math:`A, b`        ``Model.A`` (k, r), ``b`` (r,)  the code functions
:math:`\gamma, \delta`  ``gain``, ``offset``        of every two sources, see :func:`kinds_of`
:math:`\alpha`      ``sharpness``                   from 1 at the first step to the parameter at the last
:math:`u`           ``U`` (B, r)                    smooth codes of a batch
:math:`\Theta`      ``theta`` (B, B)                :math:`u_i^Tu_j/r`
:math:`R`           ``R`` (B, B)                    1 where items share a label
==================  ==============================  ============================================================

What is drawn depends on the seed and on the items, not on their order: a source's rows are in an order of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from scipy import sparse

from modalhash._typing import Array

WORDS_UP_TO = 1024
"""Labels up to which relevance is looked up in bits; with more, a product of sparse rows is the faster way."""
FIRST_GAIN, FIRST_OFFSET = 4.0, -1.0
LAST_RATE = 0.1
"""Share of the learning rate that is left at the last step."""
ESTIMATE_BATCH, RIDGE = 512, 1e-4
TRACE_EVERY, TRACE_BATCH, TRACE_BATCHES = 20, 64, 4
LABELS = -1
"""The number of the label patterns among the sources; modalities count from 0."""


class Relevance:
    """Which label patterns share a label: exact, for batches, without a matrix of patterns by patterns."""

    def __init__(self, patterns: sparse.csr_array) -> None:
        self._rows = None
        self.estimates: dict[int, tuple[float, float]] = {}  # γ and δ for inner products, by kind
        if patterns.shape[1] <= WORDS_UP_TO:
            bits = np.packbits(patterns.toarray().astype(bool), axis=1)
            words = np.zeros((len(bits), -(-bits.shape[1] // 4) * 4), dtype=np.uint8)
            words[:, : bits.shape[1]] = bits
            self._words = np.ascontiguousarray(words.view(np.uint32).T)  # (words, patterns)
        else:
            self._rows = patterns.astype(np.float32)

    def __call__(self, first: Array, second: Array) -> Array:
        """Return whether each of the first patterns shares a label with each of the second."""
        if self._rows is not None:
            return np.asarray((self._rows[first] @ self._rows[second].T).toarray() > 0)
        shared = self._words[0][first][:, None] & self._words[0][second]
        for word in self._words[1:]:
            shared |= word[first][:, None] & word[second]
        return shared != 0

    def targets(self, batch: Batch, first: slice, second: slice, kind: int) -> Array:
        """Return 2R − 1 for a block of pairs; where an item has no labels, R is the estimated probability."""
        i, j = batch.member[first], batch.member[second]
        signs = self(i, j).astype(np.float32)
        signs *= np.float32(2)
        signs -= np.float32(1)
        if kind in self.estimates:
            gain, offset = self.estimates[kind]
            unknown = (i < 0)[:, None] | (j < 0)
            halves = (batch.S[first] @ batch.S[second].T) * np.float32(gain / 2)
            halves += np.float32(offset / 2)
            np.copyto(signs, np.tanh(halves, out=halves), where=unknown)
        return signs

    def estimate(self, modalities: list[Source], labels: Source, rng: np.random.Generator) -> None:
        """Learn how likely two items share a label from the inner product of their vectors, where labels are known.

        One logistic regression for every kind of pair that may hold an item without labels.
        """
        for number, kind in enumerate(kinds_of(len(modalities))[:-1]):
            sources = modalities[kind.first], labels if kind.second == LABELS else modalities[kind.second]
            halves = (0, 1) if kind.first == kind.second else (None, None)
            rows = [s.draw(ESTIMATE_BATCH, rng, half, known=True) for s, half in zip(sources, halves, strict=True)]
            (first, i), (second, j) = zip(sources, rows, strict=True)
            R = self(first.member[i], second.member[j])
            self.estimates[number] = logistic((first.S[i] @ second.S[j].T).astype(np.float64), R)


def logistic(x: Array, R: Array) -> tuple[float, float]:
    """Return γ and δ of P(R = 1) = σ(γx + δ), by Newton's method with a little ridge."""
    gain, offset = 0.0, 0.0
    for _ in range(25):
        p = 0.5 + 0.5 * np.tanh((gain * x + offset) / 2)
        error, weight = p - R, p * (1 - p)
        slope = np.array([np.mean(error * x) + RIDGE * gain, np.mean(error) + RIDGE * offset])
        mixed = np.mean(weight * x)
        curvature = np.array([[np.mean(weight * x * x), mixed], [mixed, np.mean(weight)]]) + RIDGE * np.eye(2)
        step = np.linalg.solve(curvature, slope)
        gain, offset = gain - step[0], offset - step[1]
        if np.abs(step).max() < 1e-6:
            break
    return float(gain), float(offset)


@dataclass(frozen=True)
class Source:
    """Vectors of the label space, scaled, with the pattern of each and how often to draw it.

    Rows without labels, whose pattern is −1, come last; half of every draw is of them.
    """

    S: Array
    member: Array
    ends: Array  # cumulative number of draws that fall on each row with labels

    @classmethod
    def of(cls, S: Array, member: Array, counts: Array | None = None) -> Source:
        """``counts``: items behind each row, one by default."""
        ends = np.arange(1, int((member >= 0).sum()) + 1) if counts is None else np.cumsum(counts)
        return cls(np.ascontiguousarray(S, dtype=np.float32), member, ends)

    def draw(self, count: int, rng: np.random.Generator, half: int | None = None, *, known: bool = False) -> Array:
        """Return rows drawn with replacement; of a half, even or odd rows only; ``known``: only those with labels."""
        n, total = len(self.ends), len(self.S)
        if total > n and not known:
            unknown = n + _drawn(total - n, count // 2, rng, half)
            return np.concatenate([self.draw(count - count // 2, rng, half, known=True), unknown])
        if half is not None or self.ends[-1] == n:
            return _drawn(n, count, rng, half)
        return np.searchsorted(self.ends, rng.integers(int(self.ends[-1]), size=count), side="right")


def _drawn(n: int, count: int, rng: np.random.Generator, half: int | None) -> Array:
    if half is None or n == 1:
        return rng.integers(n, size=count)
    return rng.integers(-(-(n - half) // 2), size=count) * 2 + half


class Batch(NamedTuple):
    """Drawn items of four runs of equal length: two modalities, and label patterns twice."""

    S: Array  # (4 B, k)
    member: Array  # (4 B,)
    blocks: list[tuple[int, int, int, float]]  # of pairs: run, run, kind, weight


@dataclass(frozen=True)
class Kind:
    """Pairs of two sources."""

    first: int
    second: int


def kinds_of(n_modalities: int) -> list[Kind]:
    """Every two modalities (or the only one with itself), every modality with the labels, and labels with labels."""
    cross = [Kind(i, j) for i in range(n_modalities) for j in range(i + 1, n_modalities)] or [Kind(0, 0)]
    return [*cross, *(Kind(i, LABELS) for i in range(n_modalities)), Kind(LABELS, LABELS)]


@dataclass
class Model:
    """The parameters of step 1, views of one vector so that Adam is one update."""

    k: int
    r: int
    n_kinds: int
    values: Array = field(init=False)

    def __post_init__(self) -> None:
        self.values = np.zeros(self.k * self.r + self.r + 2 * self.n_kinds, dtype=np.float32)

    @classmethod
    def start(cls, k: int, r: int, n_kinds: int, rng: np.random.Generator) -> Model:
        """A random A: projections of scaled vectors then have a variance of about 1."""
        model = cls(k, r, n_kinds)
        model.A[:] = rng.standard_normal((k, r), dtype=np.float32) / np.float32(np.sqrt(k))
        model.gain[:], model.offset[:] = FIRST_GAIN, FIRST_OFFSET
        return model

    @property
    def A(self) -> Array:
        """(k, r)."""
        return self.values[: self.k * self.r].reshape(self.k, self.r)

    @property
    def b(self) -> Array:
        """(r,)."""
        return self.values[self.k * self.r :][: self.r]

    @property
    def gain(self) -> Array:
        """γ of every kind of pair."""
        return self.values[(self.k + 1) * self.r :][: self.n_kinds]

    @property
    def offset(self) -> Array:
        """δ of every kind of pair."""
        return self.values[(self.k + 1) * self.r + self.n_kinds :]


@dataclass(frozen=True)
class Weights:
    """What the kinds of pairs count for."""

    cross: float  # posteriors of two modalities
    mixed: float  # posteriors and labels
    labels: float


class Sampler:
    """Draws a batch for each step; the modalities take turns, so that a step costs the same for any number of them."""

    def __init__(
        self, modalities: list[Source], labels: Source, weights: Weights, size: int, rng: np.random.Generator
    ) -> None:
        self._modalities, self._labels, self._weights = modalities, labels, weights
        self._size, self._rng = size, rng
        kinds = kinds_of(len(modalities))
        self._number = {kind: number for number, kind in enumerate(kinds)}
        self._cross = [kind for kind in kinds if kind.second != LABELS]
        self.n_kinds = len(kinds)

    def __call__(self, step: int) -> Batch:
        """Return the batch of a step, counted from 0."""
        cross = self._cross[step % len(self._cross)]
        alone = cross.first == cross.second
        sources = [self._modalities[cross.first], self._modalities[cross.second], self._labels, self._labels]
        halves = [0, 1, None, None] if alone else [None] * 4  # an item is no pair with itself
        rows = [source.draw(self._size, self._rng, half) for source, half in zip(sources, halves, strict=True)]
        turn = (step // len(self._cross)) % 2
        mixed = Kind((cross.first, cross.second)[turn], LABELS)
        blocks = [
            (0, 1, self._number[cross], self._weights.cross),
            (turn, 2, self._number[mixed], self._weights.mixed),
            (2, 3, self._number[Kind(LABELS, LABELS)], self._weights.labels),
        ]
        return Batch(
            np.concatenate([source.S[i] for source, i in zip(sources, rows, strict=True)]),
            np.concatenate([source.member[i] for source, i in zip(sources, rows, strict=True)]),
            [block for block in blocks if block[3] > 0],
        )


def gradient(model: Model, batch: Batch, relevance: Relevance, alpha: float) -> Array:
    """Return the derivative of the batch's weighted mean negative log-likelihood, laid out like ``model.values``."""
    slope = Model(model.k, model.r, model.n_kinds)
    U = smooth_codes(model, batch.S, alpha)
    dU, size = np.zeros_like(U), len(U) // 4
    for i, j, kind, weight in batch.blocks:
        first, second = slice(i * size, (i + 1) * size), slice(j * size, (j + 1) * size)
        theta = U[first] @ U[second].T  # r Θ
        E = theta * np.float32(model.gain[kind] / (2 * model.r))
        E += model.offset[kind] / 2
        np.tanh(E, out=E)  # 2σ(z) − 1 = tanh(z / 2), twice as fast and never too large
        E -= relevance.targets(batch, first, second, kind)
        share = weight / (2 * size**2)
        slope.gain[kind] = np.vdot(E, theta) * np.float32(share / model.r)
        slope.offset[kind] = np.add.reduce(E, axis=None) * np.float32(share)
        E *= np.float32(share * float(model.gain[kind]) / model.r)
        dU[first] += E @ U[second]
        dU[second] += E.T @ U[first]
    np.multiply(U, U, out=U)
    np.subtract(np.float32(1), U, out=U)
    dU *= U
    dU *= np.float32(alpha)
    np.matmul(batch.S.T, dU, out=slope.A)
    np.add.reduce(dU, axis=0, out=slope.b)
    return slope.values


def smooth_codes(model: Model, S: Array, alpha: float) -> Array:
    """tanh(α(S A + b))."""
    U = S @ model.A
    U += model.b
    U *= np.float32(alpha)
    return np.asarray(np.tanh(U, out=U))


def negative_log_likelihood(model: Model, batch: Batch, relevance: Relevance, alpha: float) -> float:
    """The objective on one batch: −log P(R) of each kind, the mean over its pairs, weighted and summed."""
    U = smooth_codes(model, batch.S, alpha).astype(np.float64)
    total, size = 0.0, len(U) // 4
    for i, j, kind, weight in batch.blocks:
        first, second = slice(i * size, (i + 1) * size), slice(j * size, (j + 1) * size)
        z = float(model.gain[kind]) * (U[first] @ U[second].T) / model.r + float(model.offset[kind])
        R = (relevance.targets(batch, first, second, kind) + 1) / 2
        total += weight * float(np.mean(np.logaddexp(0, z) - R * z))
    return total


@dataclass
class Adam:
    """Kingma and Ba (2015), in float32 and in place."""

    size: int
    first: Array = field(init=False)
    second: Array = field(init=False)
    steps: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.first, self.second = np.zeros((2, self.size), dtype=np.float32)

    def __call__(self, values: Array, slope: Array, rate: float) -> None:
        """Change ``values`` by one step down the slope."""
        self.steps += 1
        self.first += np.float32(0.1) * (slope - self.first)
        self.second += np.float32(0.001) * (slope * slope - self.second)
        size = np.sqrt(self.second * np.float32(1 / (1 - 0.999**self.steps)))
        size += np.float32(1e-8)
        values -= np.float32(rate / (1 - 0.9**self.steps)) * self.first / size


def learn(
    modalities: list[Source],
    labels: Source,
    relevance: Relevance,
    n_bits: int,
    weights: Weights,
    *,
    steps: int,
    batch_size: int,
    learning_rate: float,
    sharpness: float,
    rng: np.random.Generator,
    report: Callable[[int, float], None] = lambda step, objective: None,
) -> tuple[Model, list[float]]:
    """Return A, b, γ and δ, and the objective at the last sharpness, on pairs drawn before the first step.

    The trace holds the start, every twentieth step and the end.
    """
    draw = Sampler(modalities, labels, weights, batch_size, rng)
    model = Model.start(labels.S.shape[1], n_bits, draw.n_kinds, rng)
    few = Sampler(modalities, labels, weights, min(batch_size, TRACE_BATCH), rng)
    fixed = [few(step) for step in range(TRACE_BATCHES)]

    def objective() -> float:
        return float(np.mean([negative_log_likelihood(model, batch, relevance, sharpness) for batch in fixed]))

    adam, trace = Adam(len(model.values)), [objective()]
    for step in range(steps):
        share = (step + 1) / steps
        slope = gradient(model, draw(step), relevance, 1 + (sharpness - 1) * share)
        adam(model.values, slope, learning_rate * (1 - (1 - LAST_RATE) * share))
        if (step + 1) % TRACE_EVERY == 0 or step + 1 == steps:
            trace.append(objective())
            report(step + 1, trace[-1])
    return model, trace
