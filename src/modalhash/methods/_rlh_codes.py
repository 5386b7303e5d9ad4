r"""RLH, step 1: the functions of the label space that tell best whether two items share a label.

A *source* is a set of vectors of the label space with known labels: the label patterns, and each modality's
posteriors. All sources have one code, :math:`\operatorname{sgn}(A^Ts + b)`, smoothed while it is learned to
:math:`u = \tanh(\alpha(A^Ts + b))`. For a pair of items of two sources

.. math:: P(R_{ij} = 1) = \sigma(\gamma\,u_i^Tu_j/r + \delta), \qquad R_{ij} = [\,i\text{ and }j\text{ share a label}\,]

with γ and δ of their own for every two sources. A share g of R is graded: for items that share a label R is
:math:`1 - g + g\,|i\cap j|/|i\cup j|`, by how many of their labels they share, so that items which share one of several
do not end up with one code. Adam minimises the mean negative log-likelihood over batches of drawn items, all against
all. The error :math:`E = \sigma(\cdot) - R` of a batch of B × B pairs gives

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
:math:`R`           ``R`` (B, B)                    relevance: 0 where items share no label, else up to 1
==================  ==============================  ============================================================

What is drawn depends on the seed and on the items, not on their order: a source's rows are in an order of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
TRACE_EVERY, TRACE_BATCH, TRACE_BATCHES = 20, 64, 4
LABELS = -1
"""The number of the label patterns among the sources; modalities count from 0."""


class Relevance:
    """How relevant label patterns are to each other: exact, for batches, without a matrix of patterns by patterns.

    Parameters
    ----------
    patterns : CSR (patterns, c) of truth values
    graded : g, from 0 (patterns that share a label are relevant) to 1 (by the share of labels in common)
    """

    def __init__(self, patterns: sparse.csr_array, graded: float = 0.0) -> None:
        self._graded = np.float32(graded)
        self._rows = None
        self._sizes = np.diff(patterns.indptr).astype(np.float32)
        if patterns.shape[1] <= WORDS_UP_TO:
            bits = np.packbits(patterns.toarray().astype(bool), axis=1)
            word = np.dtype(np.uint32 if bits.shape[1] <= 4 else np.uint64)
            words = np.zeros((len(bits), -(-bits.shape[1] // word.itemsize) * word.itemsize), dtype=np.uint8)
            words[:, : bits.shape[1]] = bits
            self._words = np.ascontiguousarray(words.view(word).T)  # (words, patterns)
        else:
            self._rows = patterns.astype(np.float32)

    def __call__(self, first: Array, second: Array) -> Array:
        """Return R of each of the first patterns and each of the second, float32."""
        common = self._common(first, second)
        ones = np.ones(len(second), dtype=np.float32)  # a row: numpy's minimum with a single number is not vectorised
        if self._graded == 0:
            return np.minimum(common, ones, out=common)
        R = self._sizes[second] - common
        R += self._sizes[first][:, None]
        np.divide(common, R, out=R)  # labels in common over labels of either
        R *= self._graded
        np.minimum(common, ones, out=common)  # 1 where a label is shared
        common *= 1 - self._graded
        R += common
        return R

    def _common(self, first: Array, second: Array) -> Array:
        """Return the number of labels in common, float32."""
        if self._rows is not None:
            return np.asarray((self._rows[first] @ self._rows[second].T).toarray())
        counts = (np.bitwise_count(word[first][:, None] & word[second]) for word in self._words)
        common = next(counts).astype(np.float32)
        for count in counts:
            common += count
        return common


@dataclass(frozen=True)
class Source:
    """Vectors of the label space, scaled, with the pattern of each and how often to draw it."""

    S: Array
    member: Array
    ends: Array  # cumulative number of draws that fall on each row

    @classmethod
    def of(cls, S: Array, member: Array, counts: Array | None = None) -> Source:
        """``counts``: items behind each row, one by default."""
        ends = np.arange(1, len(member) + 1) if counts is None else np.cumsum(counts)
        return cls(np.ascontiguousarray(S, dtype=np.float32), member, ends)

    def draw(self, count: int, rng: np.random.Generator, half: int | None = None) -> Array:
        """Return rows drawn with replacement; of a half, even or odd rows only."""
        n = len(self.ends)
        if half is not None or self.ends[-1] == n:
            return _drawn(n, count, rng, half)
        return np.searchsorted(self.ends, rng.integers(int(self.ends[-1]), size=count), side="right")

    def centred(self) -> tuple[Source, Array]:
        """Return the source with a mean of zero over what is drawn, and the mean it had."""
        counts = np.diff(self.ends, prepend=0)
        mean = (counts @ self.S.astype(np.float64) / self.ends[-1]).astype(np.float32)
        return Source(self.S - mean, self.member, self.ends), mean


def _drawn(n: int, count: int, rng: np.random.Generator, half: int | None) -> Array:
    if half is None or n == 1:
        return rng.integers(n, size=count)
    return rng.integers(-(-(n - half) // 2), size=count) * 2 + half


class Block(NamedTuple):
    """Pairs of the items of two runs of a batch."""

    first: slice
    second: slice
    kind: int
    weight: float
    target: Array  # 2R − 1 (B, B)


class Batch(NamedTuple):
    """Drawn items of four runs of equal length, two modalities and label patterns twice, for codes of any length."""

    S: Array  # (4 B, k)
    member: Array  # (4 B,)
    blocks: list[Block]


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


@dataclass(frozen=True)
class Schedule:
    """How step 1 goes."""

    steps: int
    batch_size: int
    learning_rate: float  # at the first step; falls to a tenth
    sharpness: float  # α at the last step; rises from 1
    squared: bool = False  # (γΘ + δ − (2R − 1))² instead of the likelihood
    balanced: bool = False  # b stays 0


class Sampler:
    """Draws a batch for each step; the modalities take turns, so that a step costs the same for any number of them."""

    def __init__(
        self,
        modalities: list[Source],
        labels: Source,
        relevance: Relevance,
        weights: Weights,
        size: int,
        rng: np.random.Generator,
    ) -> None:
        self._modalities, self._labels, self._relevance, self._weights = modalities, labels, relevance, weights
        self._size, self._rng = size, rng
        kinds = kinds_of(len(modalities))
        self._number = {kind: number for number, kind in enumerate(kinds)}
        self._cross = [kind for kind in kinds if kind.second != LABELS]
        self.n_kinds = len(kinds)

    def __call__(self, step: int) -> Batch:
        """Return the batch of a step, counted from 0."""
        cross = self._cross[step % len(self._cross)]
        alone = cross.first == cross.second
        sources = [self._modalities[cross.first], self._modalities[cross.second], self._labels]
        sizes = [self._size, self._size, 2 * self._size]
        halves = [0, 1, None] if alone else [None] * 3  # an item is no pair with itself
        rows = [source.draw(n, self._rng, half) for source, n, half in zip(sources, sizes, halves, strict=True)]
        turn = (step // len(self._cross)) % 2
        mixed = Kind((cross.first, cross.second)[turn], LABELS)
        pairs = [
            (0, 1, self._number[cross], self._weights.cross),
            (turn, 2, self._number[mixed], self._weights.mixed),
            (2, 3, self._number[Kind(LABELS, LABELS)], self._weights.labels),
        ]
        member = np.concatenate([source.member[i] for source, i in zip(sources, rows, strict=True)])
        runs = [slice(run * self._size, (run + 1) * self._size) for run in range(4)]
        return Batch(
            np.concatenate([source.S[i] for source, i in zip(sources, rows, strict=True)]),
            member,
            [
                Block(runs[i], runs[j], kind, weight, self._target(member[runs[i]], member[runs[j]]))
                for i, j, kind, weight in pairs
                if weight > 0
            ],
        )

    def _target(self, first: Array, second: Array) -> Array:
        R = self._relevance(first, second)
        R *= np.float32(2)
        R -= np.float32(1)
        return R


def gradient(model: Model, batch: Batch, alpha: float, *, squared: bool = False) -> Array:
    """Return the derivative of :func:`objective_of` a batch, laid out like ``model.values``."""
    slope = Model(model.k, model.r, model.n_kinds)
    U = smooth_codes(model, batch.S, alpha)
    dU, size = np.zeros_like(U), len(U) // 4
    for first, second, kind, weight, target in batch.blocks:
        theta = U[first] @ U[second].T  # r Θ
        E = theta * np.float32(model.gain[kind] / (2 * model.r))
        E += model.offset[kind] / 2
        if squared:
            E *= np.float32(2)
        else:
            np.tanh(E, out=E)  # 2σ(z) − 1 = tanh(z / 2), twice as fast and never too large
        E -= target
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


def objective_of(model: Model, batch: Batch, alpha: float, *, squared: bool = False) -> float:
    """The objective on one batch: −log P(R) of each kind, the mean over its pairs, weighted and summed.

    ``squared``: (γΘ + δ − (2R − 1))² / 4 in its place.
    """
    U = smooth_codes(model, batch.S, alpha).astype(np.float64)
    total = 0.0
    for first, second, kind, weight, target in batch.blocks:
        z = float(model.gain[kind]) * (U[first] @ U[second].T) / model.r + float(model.offset[kind])
        losses = (z - target) ** 2 / 4 if squared else _loss(z, target)
        total += weight * float(np.mean(losses))
    return total


def _loss(z: Array, target: Array) -> Array:
    """−log P(R): log(1 + eᶻ) − R z, faster than by np.logaddexp."""
    return np.asarray(np.log(1 + np.exp(-np.abs(z))) + np.maximum(z, 0) - (target + 1) / 2 * z)


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
    lengths: Sequence[int],
    weights: Weights,
    schedule: Schedule,
    seeds: Sequence[int],
    report: Callable[[int, float], None] = lambda step, objective: None,
) -> list[tuple[Model, list[float]]]:
    """Return, for each code length, A, b, γ and δ, and the objective at the last sharpness on pairs drawn beforehand.

    All lengths see the same batches, and what is found for one does not depend on the others. A trace holds the start,
    every twentieth step and the end; what is reported is the mean over the lengths.
    """
    steps, sharpness, squared = schedule.steps, schedule.sharpness, schedule.squared
    sources, rng = (modalities, labels, relevance, weights), np.random.default_rng([*seeds, 1])
    draw = Sampler(*sources, schedule.batch_size, rng)
    k = labels.S.shape[1]
    models = [Model.start(k, n_bits, draw.n_kinds, np.random.default_rng(seeds)) for n_bits in lengths]
    few = Sampler(*sources, min(schedule.batch_size, TRACE_BATCH), rng)
    fixed = [few(step) for step in range(TRACE_BATCHES)]
    adams = [Adam(len(model.values)) for model in models]
    traces: list[list[float]] = [[] for _ in models]
    for step in range(steps + 1):
        if step % TRACE_EVERY == 0 or step == steps:
            for model, trace in zip(models, traces, strict=True):
                trace.append(float(np.mean([objective_of(model, some, sharpness, squared=squared) for some in fixed])))
            if step:
                report(step, float(np.mean([trace[-1] for trace in traces])))
        if step == steps:
            break
        share = (step + 1) / steps
        batch, alpha = draw(step), 1 + (sharpness - 1) * share
        for model, adam in zip(models, adams, strict=True):
            slope = gradient(model, batch, alpha, squared=squared)
            if schedule.balanced:
                slope[k * model.r :][: model.r] = 0  # b
            adam(model.values, slope, schedule.learning_rate * (1 - (1 - LAST_RATE) * share))
    return list(zip(models, traces, strict=True))
