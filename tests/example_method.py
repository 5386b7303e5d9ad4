"""Class-Mean Hashing: every class gets a random direction, and new items are projected on the means of the classes.

A. Author, B. Author. Class-Mean Hashing. Journal of Examples, 2026. The authors published no code.

=====  ============================  =========================================
paper  here                          what it is
=====  ============================  =========================================
X      ``F`` (items, features)       features of one modality, centred
L      ``L`` (items, classes)        its labels, 0 or 1
C      ``C`` (classes, bits)         a random direction for every class
M      ``M`` (classes, features)     means of the classes
α      ``smoothing``                 items at the origin that every class gets
=====  ============================  =========================================
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from modalhash.core.codes import pack_signs
from modalhash.core.features import Linear
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, root_seed
from modalhash.core.validation import Positive
from modalhash.methods.base import CrossModalHasher, Training


@dataclass(eq=False, repr=False)
class ClassMeans(CrossModalHasher):
    """Class-Mean Hashing, a re-implementation.

    Parameters
    ----------
    n_bits : length of the codes
    smoothing : α, number of items at the origin that are added to every class
    random_state : seed of the directions of the classes
    """

    n_bits: int = 64
    _: KW_ONLY
    smoothing: Positive = 1.0
    random_state: RandomState = None

    def _fit(self, data: Training, report: Reporter) -> dict[str, Any]:
        assert data.Y is not None  # base checked
        n_classes = next(iter(data.Y.values())).shape[1]
        C = np.random.default_rng(root_seed(self.random_state)).normal(size=(n_classes, data.n_bits))
        codes, maps, functions = {}, {}, {}
        for step, (name, X) in enumerate(data.X.items()):
            L, maps[name] = data.Y[name], Linear()
            F = maps[name].fit_blocks(X).whole()
            M = (L.T @ F) / (L.sum(axis=0) + self.smoothing)[:, None]  # eq. (1)
            codes[name] = pack_signs(L @ C)  # eq. (2)
            functions[name] = M.T @ C  # eq. (3)
            report("functions", step + 1, len(data.X))
        return {"codes_": codes, "maps_": maps, "functions_": functions}
