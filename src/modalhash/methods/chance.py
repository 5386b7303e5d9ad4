"""Chance: random codes, a control that gives the level of a method that has learned nothing.

An item's code is a hash of its features, keyed by the seed and the modality. Equal items of a modality always have the
same code, in training or later; different items, and items of another modality, have unrelated codes.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

import numpy as np

from modalhash.core.codes import pack_signs
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, root_seed, row_keys
from modalhash.core.typing import Array, Matrix
from modalhash.methods.base import CrossModalHasher, Training

WORD = 64
"""Bits of one hash."""


@dataclass(eq=False, repr=False)
class Chance(CrossModalHasher):
    """Random codes: a control.

    Items with equal features, for instance labels passed as features, share a code and are found together; the result
    is then above chance.

    Parameters
    ----------
    n_bits : length of the codes
    random_state : int, Generator or None

    Attributes
    ----------
    seeds_ : key of every 64 bits, by modality
    """

    supervised: ClassVar[bool] = False

    n_bits: int = 64
    _: KW_ONLY
    random_state: RandomState = None

    seeds_: dict[str, Array] = field(init=False)

    def _fit(self, data: Training, report: Reporter) -> dict[str, Any]:
        seed = root_seed(self.random_state)
        words = -(-data.n_bits // WORD)
        seeds, codes = {}, {}
        for step, (name, X) in enumerate(data.X.items()):
            seeds[name] = np.random.default_rng([seed, *name.encode()]).integers(2**63, size=words)
            codes[name] = pack_signs(random_signs(X, seeds[name], data.n_bits))
            report("codes", step + 1, len(data.X))
        return {"codes_": codes, "seeds_": seeds}

    def _project(self, name: str, X: Matrix) -> Array:
        return random_signs(X, self.seeds_[name], self.n_bits)


def random_signs(X: Matrix, seeds: Array, n_bits: int) -> Array:
    """Return ±1 for every item and bit, from one 64-bit hash of the item per seed."""
    keys = np.column_stack([row_keys(X, int(seed)) for seed in seeds]).astype("<u8")
    bits = np.unpackbits(keys.view(np.uint8), axis=1, count=n_bits)
    return 2.0 * bits - 1.0
