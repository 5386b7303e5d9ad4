"""Generated data: two or more modalities that share labels and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from modalhash._typing import Array
from modalhash.data.dataset import Dataset
from modalhash.data.split import Split


@dataclass(frozen=True)
class Generated:
    """Training items and queries, by modality. No item of one modality belongs to one of another."""

    X: dict[str, Array]
    Y: dict[str, Array]
    queries: tuple[dict[str, Array], dict[str, Array]]

    def dataset(self) -> Dataset:
        """The same as a :class:`~modalhash.data.dataset.Dataset` with its split."""
        features, labels = self.queries
        n = {name: (len(self.X[name]), len(features[name])) for name in self.X}
        return Dataset(
            {name: np.concatenate([self.X[name], features[name]]) for name in n},
            {name: np.concatenate([self.Y[name], labels[name]]) for name in n},
            name="generated",
            provenance={"source": "drawn by modalhash.data.generate"},
            split=Split(
                {name: np.arange(a) for name, (a, b) in n.items()},
                {name: np.arange(a, a + b) for name, (a, b) in n.items()},
            ),
        )


def generate(
    *,
    n_items: int = 1000,
    n_queries: int = 200,
    n_classes: int = 8,
    n_features: dict[str, int] | None = None,
    labels_per_item: float = 1.5,
    noise: float = 1.0,
    seed: int = 0,
) -> Generated:
    """Draw items whose features are noisy, bent mixtures of their labels' prototypes.

    Every modality draws its own items, so its rows correspond to nothing in another modality.

    Parameters
    ----------
    n_items, n_queries : per modality
    n_classes : label columns
    n_features : by modality; two modalities, "image" with 64 and "text" with 32, by default
    labels_per_item : expected number, at least one each
    noise : standard deviation of the features around their prototypes, which are of length about 2
    seed : of everything drawn

    Examples
    --------
    >>> data = generate(n_items=100)
    >>> {name: X.shape for name, X in data.X.items()}
    {'image': (100, 64), 'text': (100, 32)}
    """
    rng = np.random.default_rng(seed)
    X, Y, Xq, Yq = {}, {}, {}, {}
    for name, width in (n_features or {"image": 64, "text": 32}).items():
        prototypes = rng.normal(size=(n_classes, width)) * (2 / np.sqrt(width))
        n = n_items + n_queries
        labels = rng.random((n, n_classes)) < (labels_per_item - 1) / max(1, n_classes - 1)
        labels[np.arange(n), rng.integers(n_classes, size=n)] = True
        features = np.tanh(labels @ prototypes + rng.normal(size=(n, width)) * (noise / np.sqrt(width)))
        features = features.astype(np.float32)
        X[name], Xq[name] = features[:n_items], features[n_items:]
        Y[name], Yq[name] = labels[:n_items], labels[n_items:]
    return Generated(X, Y, (Xq, Yq))
