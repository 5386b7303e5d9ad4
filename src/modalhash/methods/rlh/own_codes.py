r"""RLH, step 3: code functions of each modality's own.

Step 1 has one A and b for labels and posteriors alike. Posteriors of a modality are shorter and noisier than label
vectors, each in its own way, so from :math:`A_m = A, b_m = b` on every modality m gets functions of its own for its
out-of-fold posteriors :math:`\hat s`. Learned codes :math:`B_l = \operatorname{sgn}(A^T\tilde l + b)` stay fixed.
With :math:`u = \tanh(\alpha(A_m^T\hat s + b_m))`, Adam minimises

.. math:: -\log P(R_{ij};\ \gamma\,u_i^Tu_j/r + \delta)\ \text{over pairs of two modalities}
          \ +\ \sum_m -\log P(R_{il};\ \gamma_m u_i^TB_l/r + \delta_m)\ \text{over items and labels}

with γ and δ of their own for every kind of pair.
"""

from __future__ import annotations

import numpy as np

from modalhash._typing import Array
from modalhash.methods.rlh.codes import (
    FIRST_GAIN,
    FIRST_OFFSET,
    Adam,
    Model,
    PairKind,
    RelevanceProblem,
    cross_kinds,
    falling_rate,
    pair_errors,
    smooth_codes,
    through_tanh,
)

BATCH, RATE = 128, 0.005
"""Items drawn of each source per step; learning rate at the first step."""
FIRST_SHARPNESS = 2.0


class OwnCodes:
    """Code functions of every modality and γ, δ of every kind of pair, views of one vector so that Adam is one update.

    ``functions[m]`` is (k + 1, r), A above b; ``kinds[i]`` holds γ and δ: the kinds of pairs of two modalities, then
    each modality with the labels.
    """

    def __init__(self, n_modalities: int, n_cross: int, k: int, r: int) -> None:
        size = n_modalities * (k + 1) * r
        self.values = np.zeros(size + 2 * (n_cross + n_modalities), dtype=np.float32)
        self.functions = self.values[:size].reshape(n_modalities, k + 1, r)
        self.kinds = self.values[size:].reshape(-1, 2)

    def smooth(self, m: int, S: Array, alpha: float) -> Array:
        """Return the smooth codes of posteriors of a modality."""
        return smooth_codes(self.functions[m, :-1], self.functions[m, -1], S, alpha)


def learn_own_codes(problem: RelevanceProblem, model: Model, steps: int, sharpness: float) -> list[tuple[Array, Array]]:
    """Return A and b of each modality, starting from those of step 1; with 0 steps, those of step 1."""
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
    """Return the derivative of the objective on a drawn batch, laid out like ``own.values``.

    Parameters
    ----------
    B : ±1 codes of the rows of ``problem.labels``
    cross, number : the two modalities, and the number of this kind of pair
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
