"""Chance: random codes. A control, not a method: the level below which nothing was learned.

An item's code is a hash of its features, keyed by the seed and the modality. The same item of a modality
thus always has the same code, whether it was trained on or is new, alone or among others; items that differ
anywhere have unrelated codes, and so has an item in another modality.
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

    Features should tell items apart, as they nearly always do. Where many items have equal features, for
    instance labels passed as features, these share a code and are found together: that is no chance level.

    Parameters
    ----------
    n_bits : length of the codes
    random_state : int, Generator or None

    Attributes
    ----------
    codes_ : codes of the training items, by modality; the same as ``transform`` gives
    seeds_ : key of every 64 bits, by modality
    n_features_in_ : features by modality

    Examples
    --------
    >>> X = {"text": np.random.default_rng(0).normal(size=(50, 4))}
    >>> model = Chance(n_bits=16, random_state=0).fit(X)
    >>> bool((model.codes_["text"] == model.transform(X)["text"]).all())
    True
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
    """±1 for every item and bit, from a 64-bit hash of the item for every seed."""
    keys = np.column_stack([row_keys(X, int(seed)) for seed in seeds]).astype("<u8")
    bits = np.unpackbits(keys.view(np.uint8), axis=1, count=n_bits)
    return 2.0 * bits - 1.0
