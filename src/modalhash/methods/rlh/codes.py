r"""RLH, steps 1 and 3: code functions of the label space that predict whether two items share a label.

A *source* is a set of vectors of the label space with known labels: the label patterns, and the posteriors of each
modality. **Step 1** learns one code for all sources, :math:`\operatorname{sgn}(A^Ts + b)`, smoothed to
:math:`u = \tanh(\alpha(A^Ts + b))`. For a pair of items of two sources

.. math:: P(R_{ij} = 1) = \sigma(\gamma\,u_i^Tu_j/r + \delta), \qquad R_{ij} = [\,i\text{ and }j\text{ share a label}\,]

with separate γ and δ for every two sources. A fraction g of R is graded: for items that share a label, R is
:math:`1 - g + g\,|i\cap j|/|i\cup j|`, so that items that share one of several labels get different codes. Adam
minimises the mean negative log-likelihood over all pairs of a drawn batch. The error :math:`E = \sigma(\cdot) - R` of a
batch of B × B pairs gives

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
:math:`R`           ``target`` (B, B)               2R − 1
==================  ==============================  ============================================================

**Step 3** starts from :math:`A_m = A, b_m = b` and adapts the functions of each modality m to its out-of-fold
posteriors :math:`\hat s`, which are shorter and noisier than label vectors. Learned codes
:math:`B_l = \operatorname{sgn}(A^T\tilde l + b)` stay fixed. With :math:`u = \tanh(\alpha(A_m^T\hat s + b_m))`, Adam
minimises

.. math:: -\log P(R_{ij};\ \gamma\,u_i^Tu_j/r + \delta)\ \text{over pairs of two modalities}
          \ +\ \sum_m -\log P(R_{il};\ \gamma_m u_i^TB_l/r + \delta_m)\ \text{over items and labels}

The draws depend on the seed and the items, but not on the order of the items.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import sparse

from modalhash.core.typing import Array

FIRST_GAIN, FIRST_OFFSET = 4.0, -1.0
LAST_RATE = 0.1
"""Learning rate at the last step, as a fraction of that at the first."""
TRACE_EVERY, TRACE_BATCH, TRACE_BATCHES = 20, 64, 4
LABELS = -1
"""Number of the label patterns among the sources; modalities count from 0."""
WORDS_UP_TO = 1024
"""Largest number of labels that are compared as packed bits; for more, sparse products are faster."""
BATCH, RATE, FIRST_SHARPNESS = 128, 0.005, 2.0
"""Step 3: items drawn from each source per step, learning rate and α at the first step."""


class Relevance:
    """Relevance of label patterns to each other, computed per batch: 0 without a common label, else up to 1.

    Parameters
    ----------
    patterns : boolean CSR (patterns, c)
    graded : g, from 0 (any common label is full relevance) to 1 (relevance is the fraction of common labels)
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
        """Return R of all first and all second patterns, float32."""
        common = self._common(first, second)
        ones = np.ones(len(second), dtype=np.float32)  # a row, because numpy's minimum with a scalar is not vectorised
        if self._graded == 0:
            return np.minimum(common, ones, out=common)
        R = self._sizes[second] - common
        R += self._sizes[first][:, None]
        np.divide(common, R, out=R)  # |i∩j| / |i∪j|
        R *= self._graded
        np.minimum(common, ones, out=common)  # [i∩j ≠ ∅]
        common *= 1 - self._graded
        R += common
        return R

    def targets(self, first: Array, second: Array) -> Array:
        """Return 2R − 1."""
        R = self(first, second)
        R *= np.float32(2)
        R -= np.float32(1)
        return R

    def _common(self, first: Array, second: Array) -> Array:
        """Return the number of common labels, float32."""
        if self._rows is not None:
            return np.asarray((self._rows[first] @ self._rows[second].T).toarray())
        counts = (np.bitwise_count(word[first][:, None] & word[second]) for word in self._words)
        common = next(counts).astype(np.float32)
        for count in counts:
            common += count
        return common


@dataclass(frozen=True)
class Source:
    """Scaled vectors of the label space, with their patterns."""

    S: Array
    member: Array
    ends: Array  # cumulative number of items of the rows

    @classmethod
    def of(cls, S: Array, member: Array, counts: Array | None = None) -> Source:
        """Make a source; ``counts`` has the number of items of each row, 1 by default."""
        ends = np.arange(1, len(member) + 1) if counts is None else np.cumsum(counts)
        return cls(np.ascontiguousarray(S, dtype=np.float32), member, ends)

    def draw(self, count: int, rng: np.random.Generator, half: int | None = None) -> Array:
        """Draw rows with replacement; ``half`` restricts them to even (0) or odd (1) rows."""
        n = len(self.ends)
        if half is not None and n > 1:
            return rng.integers(-(-(n - half) // 2), size=count) * 2 + half
        if half is not None or self.ends[-1] == n:
            return rng.integers(n, size=count)
        return np.searchsorted(self.ends, rng.integers(int(self.ends[-1]), size=count), side="right")


@dataclass(frozen=True)
class RelevanceProblem:
    """Training data of steps 1 and 3."""

    modalities: list[Source]
    labels: Source
    relevance: Relevance
    seeds: list[int]


@dataclass(frozen=True)
class PairKind:
    """Pairs of two sources."""

    first: int
    second: int


def cross_kinds(n_modalities: int) -> list[PairKind]:
    return [PairKind(i, j) for i in range(n_modalities) for j in range(i + 1, n_modalities)] or [PairKind(0, 0)]


def kinds_of(n_modalities: int) -> list[PairKind]:
    """Return all pairs of modalities, each modality with the labels, and labels with labels."""
    mixed = [PairKind(i, LABELS) for i in range(n_modalities)]
    return [*cross_kinds(n_modalities), *mixed, PairKind(LABELS, LABELS)]


class Block(NamedTuple):
    """Pairs of items from two runs of a batch."""

    first: slice
    second: slice
    kind: int
    weight: float
    target: Array  # 2R − 1 (B, B)


class DrawnBatch(NamedTuple):
    """Drawn items in four runs of equal length, two of modalities and two of label patterns."""

    S: Array  # (4 B, k)
    member: Array  # (4 B,)
    blocks: list[Block]


class Model:
    """Parameters of step 1, as views of one vector, so that Adam is one update; ``gain`` is γ and ``offset`` is δ."""

    def __init__(self, k: int, r: int, n_kinds: int) -> None:
        self.k, self.r, self.n_kinds = k, r, n_kinds
        self.values = np.zeros((k + 1) * r + 2 * n_kinds, dtype=np.float32)
        A, self.b, self.gain, self.offset = np.split(self.values, np.cumsum([k * r, r, n_kinds]))
        self.A = A.reshape(k, r)

    @classmethod
    def start(cls, k: int, r: int, n_kinds: int, rng: np.random.Generator) -> Model:
        """Draw A so that projections of scaled vectors have a variance of about 1."""
        model = cls(k, r, n_kinds)
        model.A[:] = rng.standard_normal((k, r), dtype=np.float32) / np.float32(np.sqrt(k))
        model.gain[:], model.offset[:] = FIRST_GAIN, FIRST_OFFSET
        return model


@dataclass(frozen=True)
class Schedule:
    """Weights of the kinds of pairs, and the schedule of step 1."""

    cross: float  # weight of pairs of posteriors of two modalities
    mixed: float  # weight of posteriors and labels
    labels: float  # weight of labels and labels
    steps: int
    batch_size: int
    learning_rate: float  # at the first step; decays to a tenth
    sharpness: float  # α at the last step, 1 at the first


class Sampler:
    """Draw a batch for each step; pairs of modalities take turns, so that the cost does not depend on their number."""

    def __init__(self, problem: RelevanceProblem, schedule: Schedule, size: int, rng: np.random.Generator) -> None:
        self._problem, self._schedule, self._size, self._rng = problem, schedule, size, rng
        self._cross = cross_kinds(len(problem.modalities))
        self._number = {kind: number for number, kind in enumerate(kinds_of(len(problem.modalities)))}

    def __call__(self, step: int) -> DrawnBatch:
        """Return the batch of a step, counted from 0."""
        problem, schedule, size = self._problem, self._schedule, self._size
        cross = self._cross[step % len(self._cross)]
        sources = [problem.modalities[cross.first], problem.modalities[cross.second], problem.labels]
        # a modality paired with itself is split into halves, so that no item is paired with itself
        halves = [0, 1, None] if cross.first == cross.second else [None] * 3
        sizes = [size, size, 2 * size]
        rows = [source.draw(n, self._rng, half) for source, n, half in zip(sources, sizes, halves, strict=True)]
        member = np.concatenate([source.member[i] for source, i in zip(sources, rows, strict=True)])
        turn = (step // len(self._cross)) % 2
        mixed = PairKind((cross.first, cross.second)[turn], LABELS)
        runs = [slice(run * size, (run + 1) * size) for run in range(4)]
        blocks = []
        for i, j, kind, weight in (
            (0, 1, cross, schedule.cross),
            (turn, 2, mixed, schedule.mixed),
            (2, 3, PairKind(LABELS, LABELS), schedule.labels),
        ):
            if weight > 0:
                target = problem.relevance.targets(member[runs[i]], member[runs[j]])
                blocks.append(Block(runs[i], runs[j], self._number[kind], weight, target))
        return DrawnBatch(
            np.concatenate([source.S[i] for source, i in zip(sources, rows, strict=True)]), member, blocks
        )


def pair_errors(
    U: Array, V: Array, target: Array, gain: float, offset: float, weight: float
) -> tuple[Array, float, float]:
    """Return the derivatives of −weight · mean log P(R) by uᵢᵀvⱼ of all pairs, by γ, and by δ."""
    r, share = U.shape[1], weight / (2 * len(U) * len(V))
    theta = U @ V.T  # r Θ
    E = theta * np.float32(gain / (2 * r))
    E += offset / 2
    np.tanh(E, out=E)  # 2σ(z) − 1 = tanh(z / 2), twice as fast and without overflow
    E -= target
    by_gain = np.vdot(E, theta) * np.float32(share / r)
    by_offset = np.add.reduce(E, axis=None) * np.float32(share)
    E *= np.float32(share * float(gain) / r)
    return E, by_gain, by_offset


def gradient(model: Model, batch: DrawnBatch, alpha: float) -> Array:
    """Return the gradient of :func:`objective_of` on a batch, in the layout of ``model.values``."""
    slope = Model(model.k, model.r, model.n_kinds)
    U = smooth_codes(model.A, model.b, batch.S, alpha)
    dU = np.zeros_like(U)
    for first, second, kind, weight, target in batch.blocks:
        E, slope.gain[kind], slope.offset[kind] = pair_errors(
            U[first], U[second], target, model.gain[kind], model.offset[kind], weight
        )
        dU[first] += E @ U[second]
        dU[second] += E.T @ U[first]
    dZ = through_tanh(dU, U, alpha)
    np.matmul(batch.S.T, dZ, out=slope.A)
    np.add.reduce(dZ, axis=0, out=slope.b)
    return slope.values


def smooth_codes(A: Array, b: Array, S: Array, alpha: float) -> Array:
    """Return tanh(α(S A + b))."""
    U = S @ A
    U += b
    U *= np.float32(alpha)
    return np.asarray(np.tanh(U, out=U))


def through_tanh(dU: Array, U: Array, alpha: float) -> Array:
    """Return the derivative by S A + b from that by U = tanh(α(S A + b)); both arguments are overwritten."""
    np.multiply(U, U, out=U)
    np.subtract(np.float32(1), U, out=U)
    dU *= U
    dU *= np.float32(alpha)
    return dU


def objective_of(model: Model, batch: DrawnBatch, alpha: float) -> float:
    """Return −log P(R) on one batch, the weighted sum of the means over the pairs of each kind."""
    U = smooth_codes(model.A, model.b, batch.S, alpha).astype(np.float64)
    total = 0.0
    for first, second, kind, weight, target in batch.blocks:
        z = float(model.gain[kind]) * (U[first] @ U[second].T) / model.r + float(model.offset[kind])
        losses = np.log(1 + np.exp(-np.abs(z))) + np.maximum(z, 0) - (target + 1) / 2 * z  # log(1 + eᶻ) − R z
        total += weight * float(np.mean(losses))
    return total


class Adam:
    """Adam of Kingma and Ba (2015), in float32 and in place."""

    def __init__(self, size: int) -> None:
        self.first, self.second = np.zeros((2, size), dtype=np.float32)
        self.steps = 0

    def __call__(self, values: Array, slope: Array, rate: float) -> None:
        self.steps += 1
        self.first += np.float32(0.1) * (slope - self.first)
        self.second += np.float32(0.001) * (slope * slope - self.second)
        size = np.sqrt(self.second * np.float32(1 / (1 - 0.999**self.steps)))
        size += np.float32(1e-8)
        values -= np.float32(rate / (1 - 0.9**self.steps)) * self.first / size


def falling_rate(rate: float, done: float) -> float:
    """Return the learning rate after a fraction ``done`` of the steps."""
    return rate * (1 - (1 - LAST_RATE) * done)


def learn_codes(
    problem: RelevanceProblem,
    n_bits: int,
    schedule: Schedule,
    report: Callable[[int, int, float], None] = lambda step, total, objective: None,
) -> tuple[Model, Array]:
    """Return A, b, γ and δ, and the trace of the objective.

    The trace has the objective on a fixed sample of pairs at the final sharpness, at the start, after every twentieth
    step and at the end.
    """
    steps, k, n_kinds = schedule.steps, problem.labels.S.shape[1], len(kinds_of(len(problem.modalities)))
    rng = np.random.default_rng([*problem.seeds, 1])
    draw = Sampler(problem, schedule, schedule.batch_size, rng)
    few = Sampler(problem, schedule, min(schedule.batch_size, TRACE_BATCH), rng)
    fixed = [few(step) for step in range(TRACE_BATCHES)]
    model = Model.start(k, n_bits, n_kinds, np.random.default_rng(problem.seeds))
    adam = Adam(len(model.values))
    trace: list[float] = []
    for step in range(steps + 1):
        if step % TRACE_EVERY == 0 or step == steps:
            trace.append(float(np.mean([objective_of(model, some, schedule.sharpness) for some in fixed])))
            if step:
                report(step, steps, trace[-1])
        if step < steps:
            done = (step + 1) / steps
            alpha = 1 + (schedule.sharpness - 1) * done
            adam(model.values, gradient(model, draw(step), alpha), falling_rate(schedule.learning_rate, done))
    return model, np.array(trace)


class OwnCodes:
    """Parameters of step 3, as views of one vector, so that Adam is one update.

    ``functions[m]`` is (k + 1, r), A above b. ``kinds[i]`` has γ and δ of the pairs of modalities, followed by those of
    each modality with the labels.
    """

    def __init__(self, n_modalities: int, n_cross: int, k: int, r: int) -> None:
        size = n_modalities * (k + 1) * r
        self.values = np.zeros(size + 2 * (n_cross + n_modalities), dtype=np.float32)
        self.functions = self.values[:size].reshape(n_modalities, k + 1, r)
        self.kinds = self.values[size:].reshape(-1, 2)

    def smooth(self, m: int, S: Array, alpha: float) -> Array:
        return smooth_codes(self.functions[m, :-1], self.functions[m, -1], S, alpha)


def learn_own_codes(problem: RelevanceProblem, model: Model, steps: int, sharpness: float) -> list[tuple[Array, Array]]:
    """Return A and b of each modality, starting from those of step 1."""
    n, cross = len(problem.modalities), cross_kinds(len(problem.modalities))
    own = OwnCodes(n, len(cross), model.k, model.r)
    own.functions[:, :-1], own.functions[:, -1], own.kinds[:] = model.A, model.b, (FIRST_GAIN, FIRST_OFFSET)
    B = np.where(problem.labels.S @ model.A + model.b > 0, np.float32(1), np.float32(-1))
    rng, adam = np.random.default_rng([*problem.seeds, 3]), Adam(len(own.values))
    for step in range(steps):
        done = (step + 1) / steps
        alpha = FIRST_SHARPNESS + (sharpness - FIRST_SHARPNESS) * done
        turn = step % len(cross)
        adam(own.values, own_gradient(problem, own, B, cross[turn], turn, alpha, rng), falling_rate(RATE, done))
    return [(functions[:-1].copy(), functions[-1].copy()) for functions in own.functions]


def own_gradient(
    problem: RelevanceProblem,
    own: OwnCodes,
    B: Array,
    cross: PairKind,
    number: int,
    alpha: float,
    rng: np.random.Generator,
) -> Array:
    """Return the gradient of the objective on a drawn batch, in the layout of ``own.values``.

    Parameters
    ----------
    B : ±1 codes of the rows of ``problem.labels``
    cross, number : pair of modalities, and its number
    """
    slope = OwnCodes(len(problem.modalities), len(own.kinds) - len(problem.modalities), *own.functions[0, :-1].shape)
    names, halves = (cross.first, cross.second), (0, 1) if cross.first == cross.second else (None, None)
    sources = [problem.modalities[m] for m in names]
    rows = [source.draw(BATCH, rng, half) for source, half in zip(sources, halves, strict=True)]
    members = [source.member[i] for source, i in zip(sources, rows, strict=True)]
    U = [own.smooth(m, source.S[i], alpha) for m, source, i in zip(names, sources, rows, strict=True)]
    gain, offset = own.kinds[number]
    E, by_gain, by_offset = pair_errors(U[0], U[1], problem.relevance.targets(*members), gain, offset, 1.0)
    slope.kinds[number] = by_gain, by_offset
    dU = [E @ U[1], E.T @ U[0]]
    for i, m in enumerate(names):
        drawn = problem.labels.draw(BATCH, rng)
        target = problem.relevance.targets(members[i], problem.labels.member[drawn])
        kind = len(own.kinds) - len(problem.modalities) + m
        gain, offset = own.kinds[kind]
        E, by_gain, by_offset = pair_errors(U[i], B[drawn], target, gain, offset, 1.0)
        slope.kinds[kind] += (by_gain, by_offset)
        dU[i] += E @ B[drawn]
        dZ = through_tanh(dU[i], U[i], alpha)
        slope.functions[m, :-1] += sources[i].S[rows[i]].T @ dZ
        slope.functions[m, -1] += dZ.sum(axis=0)
    return slope.values
