import numpy as np

from modalhash.core.codes import pack_signs
from modalhash.core.features import Linear
from modalhash.core.linalg import ridge_regression
from modalhash.core.randomness import root_seed
from modalhash.methods.base import CrossModalHasher


class ClassCodes(CrossModalHasher):
    """A random code per class, and a ridge regression from the features to it."""

    def __init__(self, n_bits=64, *, ridge=1.0, random_state=None):
        self.n_bits = n_bits
        self.ridge = ridge
        self.random_state = random_state

    def _fit(self, data, report):
        n_classes = next(iter(data.Y.values())).shape[1]
        C = np.random.default_rng(root_seed(self.random_state)).normal(size=(n_classes, data.n_bits))
        codes, maps, functions = {}, {}, {}
        for step, (name, X) in enumerate(data.X.items()):
            B = np.where(data.Y[name] @ C > 0, 1.0, -1.0)
            codes[name] = pack_signs(B)
            maps[name] = Linear(bias=True, dtype="float64")
            functions[name] = ridge_regression(maps[name].fit_blocks(X).whole(), B, self.ridge)
            report("functions", step + 1, len(data.X))
        return {"codes_": codes, "maps_": maps, "functions_": functions}
