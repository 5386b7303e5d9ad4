"""A method that draws nothing: it has no ``random_state``, and says by itself what to tune."""

from typing import ClassVar

import numpy as np

from modalhash.core.codes import pack_signs
from modalhash.core.features import Linear
from modalhash.core.linalg import ridge_regression
from modalhash.methods.base import CrossModalHasher


class FixedCodes(CrossModalHasher):
    """The binary digits of its number as the code of a class, and a ridge regression from the features to it."""

    search_space: ClassVar[dict[str, str]] = {"ridge": "log:1e-3:1e3"}

    def __init__(self, n_bits=64, *, ridge=1.0):
        self.n_bits = n_bits
        self.ridge = ridge

    def _fit(self, data, report):
        codes, maps, functions = {}, {}, {}
        for name, X in data.X.items():
            if self.ridge <= 0:
                raise ValueError(f"ridge is {self.ridge}; expected a positive number")
            classes = np.argmax(data.Y[name], axis=1)
            B = np.where((classes[:, None] >> (np.arange(data.n_bits) % 3)) & 1, 1.0, -1.0)
            codes[name] = pack_signs(B)
            maps[name] = Linear(bias=True, dtype="float64")
            functions[name] = ridge_regression(maps[name].fit_blocks(X).whole(), B, self.ridge)
        return {"codes_": codes, "maps_": maps, "functions_": functions}
