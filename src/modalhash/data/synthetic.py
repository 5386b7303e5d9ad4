"""Synthetic data: small modalities that share only labels, and twins of the paper's data sets.

A twin has the counts, widths, label frequencies and sparsity of a real data set, to measure time and memory; quality on
a twin says nothing about the real data. Counts and widths are those of Table I of the paper. NUS-WIDE's labels are real
if ``nuswide/labels.npz`` exists, else drawn with its frequencies. MIRFlickr's frequencies are class counts from memory,
whose sum (92,889) is within 0.1 % of the known 92,902 labels. IAPR's Zipf law with 4.2 labels and its 20 words per item
are assumptions; NUS-WIDE's 5.8 tags per item and 2.8 % untagged items follow from published totals.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import sparse
from scipy.special import ndtri

from modalhash.core.blocks import row_slices
from modalhash.core.typing import Array, Matrix
from modalhash.core.validation import check_choice, check_int, check_number
from modalhash.data.catalog import data_root
from modalhash.data.dataset import Dataset, Split
from modalhash.data.formats.variables import ReadError


@dataclass(frozen=True)
class Generated:
    """Generated training items and queries by modality; items of different modalities are unrelated."""

    X: dict[str, Array]
    Y: dict[str, Array]
    queries: tuple[dict[str, Array], dict[str, Array]]

    def dataset(self) -> Dataset:
        features, labels = self.queries
        n = {name: (len(self.X[name]), len(features[name])) for name in self.X}
        return Dataset(
            {name: np.concatenate([self.X[name], features[name]]) for name in n},
            {name: np.concatenate([self.Y[name], labels[name]]) for name in n},
            name="generated",
            provenance={"kind": "generated", "source": "drawn by modalhash.data.generate"},
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
    """Draw items whose features are noisy, non-linear mixtures of their labels' prototypes.

    Every modality draws its own items, so its rows do not correspond to those of another modality.

    Parameters
    ----------
    n_items, n_queries : per modality
    n_classes : label columns
    n_features : by modality; by default "image" with 64 and "text" with 32
    labels_per_item : expected number, at least one each
    noise : standard deviation of the features around their prototypes, which have a norm of about 2
    seed : of all draws

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


_BLOCK = 8192
_MIRFLICKR = {
    "animals": 3216, "baby": 259, "bird": 742, "car": 1177, "clouds": 3700, "dog": 684, "female": 6184,
    "flower": 1823, "food": 990, "indoor": 8313, "lake": 791, "male": 6067, "night": 2711, "people": 10373,
    "plant_life": 8763, "portrait": 3931, "river": 894, "sea": 1322, "sky": 7912, "structures": 9992,
    "sunset": 2135, "transport": 2896, "tree": 4683, "water": 3331,
}  # fmt: skip
_NUSWIDE = {
    "sky": 74190, "clouds": 54087, "person": 51577, "water": 35264, "animal": 33887, "grass": 22561,
    "buildings": 17835, "window": 15051, "plants": 14345, "lake": 13392,
}  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """The statistics of a real data set that its twin matches."""

    n_query: int
    n_training: int
    image: int
    text: int
    frequencies: dict[str, float]  # class name → fraction of the items that have it
    tags: float | None  # mean number of words per item in binary texts; None if the texts are dense
    untagged: float = 0.0
    labels: str = ""  # file with the real labels, relative to the folder of the data sets

    def labels_file(self, root: str | Path | None = None) -> Path | None:
        path = data_root(root) / self.labels
        return path if self.labels and path.is_file() else None


def _zipf(n_classes: int, labels_per_item: float) -> dict[str, float]:
    weights = 1 / (np.arange(n_classes) + 3.0)
    weights *= labels_per_item / weights.sum()
    return {f"class {number}": float(weight) for number, weight in enumerate(weights, 1)}


RECIPES = {
    "mirflickr25k": Recipe(836, 15902, 150, 500, {name: n / 25000 for name, n in _MIRFLICKR.items()}, None),
    "nuswide10": Recipe(
        2000, 184577, 500, 1000, {name: n / 186577 for name, n in _NUSWIDE.items()}, 6.1, 0.028, "nuswide/labels.npz"
    ),
    "iapr-tc12-255": Recipe(2000, 18000, 512, 2912, _zipf(255, 4.2), 20.0),
}


def twin(name: str, *, seed: int = 0, scale: float = 1.0, root: str | Path | None = None) -> Dataset:
    """Draw a data set with the statistics of a real one.

    Parameters
    ----------
    name
        ``mirflickr25k``, ``nuswide10`` or ``iapr-tc12-255``
    seed
        the same seed gives the same data
    scale
        fraction of the items to draw, e.g. 0.1
    root
        folder that may contain real labels in ``nuswide/labels.npz``; by default ``$MODALHASH_DATA``, else ``./data``

    Examples
    --------
    >>> twin("mirflickr25k", scale=0.01)
    Dataset('mirflickr25k-twin': image 167×150, text 167×500, 24 classes, split)
    """
    recipe = RECIPES[check_choice(name, "name", tuple(RECIPES))]
    share = check_number(scale, "scale", positive=True)
    n_query, n_training = (max(1, round(n * share)) for n in (recipe.n_query, recipe.n_training))
    rng = np.random.default_rng([check_int(seed, "seed", at_least=0), *name.encode()])
    n = n_query + n_training
    path, class_names = recipe.labels_file(root), list(recipe.frequencies)
    if path is None:
        labels = _draw_labels(n, np.array(list(recipe.frequencies.values())), rng)
    else:
        class_names, labels = _real_labels(path, len(class_names), n, rng)
    features: dict[str, Matrix] = {"image": _dense(labels, recipe.image, rng)}
    if recipe.tags is None:
        features["text"] = _dense(labels, recipe.text, rng)
    else:
        features["text"] = _binary(labels, recipe.text, recipe.tags, recipe.untagged, rng)
    order = rng.permutation(n)
    training, query = np.sort(order[n_query:]), np.sort(order[:n_query])
    return Dataset(
        features,
        {"image": labels, "text": labels},
        class_names=class_names,
        name=f"{name}-twin",
        provenance={
            "kind": "twin",
            "source": "synthetic",
            "labels": "drawn" if path is None else "real",
            "notes": [
                f"twin of {name}, seed {seed}, scale {scale:g}",
                "labels are drawn" if path is None else f"labels are those of {recipe.labels}",
            ],
        },
        split=Split({"image": training, "text": training}, {"image": query, "text": query}),
    )


def _real_labels(path: Path, n_classes: int, n: int, rng: np.random.Generator) -> tuple[list[str], Array]:
    with np.load(path, allow_pickle=False) as file:
        if missing := {"labels", "concepts"} - set(file.files):
            raise ReadError(path, f"no variable {', '.join(sorted(missing))}")
        labels, names = file["labels"], file["concepts"]
    top = np.argsort(-labels.sum(axis=0, dtype=np.int64), kind="stable")[:n_classes]
    labels = labels[:, top].astype(bool)
    rows = np.flatnonzero(labels.any(axis=1))
    chosen = rng.choice(rows, size=n, replace=n > len(rows))
    return [str(names[column]) for column in top], labels[chosen]


def _draw_labels(n: int, frequencies: Array, rng: np.random.Generator) -> Array:
    """Draw correlated labels with these frequencies, at least one per item.

    A label is set if a Gaussian score exceeds its threshold. An item without any gets its nearest one; the thresholds
    are adjusted so that the frequencies are right including those.
    """
    mixing = rng.standard_normal((len(frequencies), 4)) * 0.6
    spread = np.sqrt(1 + (mixing**2).sum(axis=1))

    def scores(rows: int) -> Array:
        shared, own = rng.standard_normal((rows, 4)), rng.standard_normal((rows, len(frequencies)))
        drawn: Array = (shared @ mixing.T + own) / spread
        return drawn

    sample = scores(20000)
    aims = frequencies.copy()
    for _ in range(8):
        thresholds = ndtri(1 - aims)  # each score is a standard normal
        margins = sample - thresholds
        none = margins.max(axis=1) <= 0
        given = np.bincount(margins[none].argmax(axis=1), minlength=len(aims)) / len(sample)
        aims = np.maximum(frequencies - given, frequencies / 10)
    return np.concatenate([_labels_of(scores(len(range(n)[rows])), thresholds) for rows in row_slices(n, _BLOCK)])


def _labels_of(scores: Array, thresholds: Array) -> Array:
    margins = scores - thresholds
    labels: Array = margins > 0
    none = np.flatnonzero(~labels.any(axis=1))
    labels[none, margins[none].argmax(axis=1)] = True
    return labels


def _dense(labels: Array, width: int, rng: np.random.Generator) -> Array:
    """Draw non-negative float32 features, block by block: a direction per class plus noise."""
    directions = rng.standard_normal((labels.shape[1], width), dtype=np.float32)
    out = np.empty((len(labels), width), dtype=np.float32)
    for rows in row_slices(len(labels), _BLOCK):
        own = labels[rows].astype(np.float32)
        own /= np.sqrt(own.sum(axis=1, keepdims=True))
        block = rng.standard_normal((len(own), width), dtype=np.float32)
        block *= 2
        block += own @ directions
        np.abs(block, out=out[rows])
        out[rows] += own @ directions  # the absolute value alone would hide the sign of the direction
    return out


def _binary(labels: Array, width: int, mean: float, untagged: float, rng: np.random.Generator) -> sparse.csr_array:
    """Draw binary words: half from the item's classes, half from a Zipf law; some items have none."""
    common = np.cumsum(1 / (np.arange(width) + 20.0))
    common /= common[-1]
    own_words = rng.integers(width, size=(labels.shape[1], max(4, width // 25)))
    blocks = []
    for rows in row_slices(len(labels), _BLOCK):
        own = labels[rows]
        counts = 1 + rng.poisson(mean - 1, size=len(own))
        counts[rng.random(len(own)) < untagged] = 0
        item = np.repeat(np.arange(len(own)), counts)
        word = np.searchsorted(common, rng.random(len(item)))
        from_class = rng.random(len(item)) < 0.5
        chosen = _any_label(own, item[from_class], rng)
        rank = (rng.random(len(chosen)) ** 2 * own_words.shape[1]).astype(int)  # the first words are frequent
        word[from_class] = own_words[chosen, rank]
        block = sparse.csr_array((np.ones(len(item), dtype=np.float32), (item, word)), shape=(len(own), width))
        block.sum_duplicates()
        block.data[:] = 1
        blocks.append(block)
    return sparse.csr_array(sparse.vstack(blocks, format="csr"))


def _any_label(labels: Array, items: Array, rng: np.random.Generator) -> Array:
    counts = labels.sum(axis=1)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    columns = np.nonzero(labels)[1]
    picked: Array = columns[starts[items] + (rng.random(len(items)) * counts[items]).astype(int)]
    return picked
