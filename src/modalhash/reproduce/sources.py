"""The data sets of the experiments: the paper's own where their files are present, stand-ins, and twins for times.

Whether a file holds the paper's data is not taken from its name: total, feature widths and number of classes have to
be those of Table I. Otherwise its numbers are treated as of other data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from modalhash._typing import Array
from modalhash.data import NAMED, data_root, is_present, load_dataset

if TYPE_CHECKING:
    from modalhash.data import Dataset

ARRAYS = (".mat", ".npz", ".h5", ".hdf5")
CNN = (
    "Put {files} with 4096-D CNN features of the photographs, words and labels there (`image`, `text`, `labels` in any "
    "layout that `modalhash datasets info` recognises); the paper follows the release of AADAH."
)
LITE = (
    "With `data/iapr-tc12/` and the extra `neural`: `modalhash datasets encode iapr-tc12 "
    "data/iapr-tc12-cnn/iapr-tc12-cnn.npz --encoder efficientnet-lite0 --files data/iapr-tc12/images.zip`."
)


@dataclass(frozen=True)
class Source:
    """What is known about a data set before it is loaded."""

    name: str
    title: str
    role: str
    """``"paper"``, ``"stand-in"`` or ``"twin"``."""
    modalities: tuple[str, str] = ("image", "text")
    named: str = ""
    """Name by which ``load_dataset`` (or, for a twin, ``twin``) knows it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    files: Sequence[str] = ()
    """Folder or files under the data root, the preferred first, where ``load_dataset`` does not know it."""
    how: str = ""
    queries: int = 0
    """Drawn at random, per seed, where the data come without a split."""
    training: int | None = None
    """Drawn from what is left; None for all of it."""
    facts: Mapping[str, int] = field(default_factory=dict)
    """Table I: what the paper's data set has."""
    quotes: str = ""
    """The paper's data set whose published numbers may stand beside, headed as being of other data."""
    caution: str = ""
    needs: str = ""
    """A file that must be there besides, where another of the same data set would be something else."""

    @property
    def twin(self) -> bool:
        """Only the time of a fit means something."""
        return self.role == "twin"

    def present(self, root: Path | None) -> bool:
        """Whether it can be loaded."""
        if self.needs and not (data_root(root) / self.needs).is_file():
            return False
        return self.twin or self._files(root) is not None or (bool(self.named) and is_present(self.named, root))

    def _files(self, root: Path | None) -> Path | None:
        for name in self.files:
            path = data_root(root) / name
            if path.is_file() or (path.is_dir() and any(file.suffix in ARRAYS for file in path.iterdir())):
                return path
        return None

    def load(self, root: Path | None) -> Dataset:
        """The two modalities, with the split that comes with them or none."""
        if self.twin:
            from modalhash.data import twin

            return twin(self.named)
        path = self._files(root)
        if path is not None:
            from modalhash.data import read

            dataset = read(path, name=self.name)
        else:
            dataset = load_dataset(self.named, root, **self.options)
        return dataset.only(*self.modalities)

    def how_to_get(self) -> str:
        """What a person does to have it."""
        return self.how or NAMED[self.named].how

    def differs(self, facts: Mapping[str, int]) -> list[str]:
        """Where a data set that was loaded is not what Table I describes."""
        return [
            f"{name} {facts.get(name, 0):,} instead of {expected:,}"
            for name, expected in self.facts.items()
            if facts.get(name) != expected
        ]


def with_split(dataset: Dataset, source: Source, seed: int) -> Dataset:
    """The data set with its own split, or one drawn by the paper's counts."""
    if dataset.split is not None:
        return dataset
    from modalhash.data import Split

    ids = np.random.default_rng([seed, *source.name.encode()]).permutation(next(iter(dataset.ids.values())))
    if not dataset.paired:
        raise ValueError(f"{source.name}: no split, and not the same ids in all modalities; write it with a split")
    count = source.queries or round(len(ids) / 10)
    query, rest = ids[:count], ids[count:]
    training = rest if source.training is None else rest[: source.training]
    names = dataset.modalities
    database = None if len(training) == len(rest) else dict.fromkeys(names, rest)
    return replace(dataset, split=Split(dict.fromkeys(names, training), dict.fromkeys(names, query), database))


def describe(source: Source, root: Path | None) -> dict[str, Any]:
    """Digest and statistics: what the results folder keeps of a data set. A twin is not drawn for this."""
    if source.twin:
        from modalhash.data import RECIPES

        recipe = RECIPES[source.named]
        facts = {"total": recipe.n_query + recipe.n_training, "query": recipe.n_query, "training": recipe.n_training,
                 "image": recipe.image, "text": recipe.text, "classes": len(recipe.frequencies)}  # fmt: skip
        digest = hashlib.sha256(repr(("twin", source.named, 0, 1.0, recipe)).encode()).hexdigest()
        return {"name": source.name, "digest": digest, "facts": facts, "same": False, "differs": []}
    loaded = source.load(root)
    dataset = with_split(loaded, source, 0)
    parts = dataset.parts()
    first, second = source.modalities
    facts = {
        "total": dataset.sizes[first],
        "query": parts.query.sizes[first],
        "training": parts.training.sizes[first],
        "image": int(dataset.features[first].shape[1]),
        "text": int(dataset.features[second].shape[1]),
        "classes": len(dataset.class_names),
    }
    differs = source.differs(facts)
    return {
        "name": source.name,
        "digest": digest_of(loaded),
        "facts": facts,
        "own_split": loaded.split is not None,
        "labels_per_item": float(np.mean(dataset.labels[first].sum(axis=1))),
        "same": source.role == "paper" and not differs,
        "differs": differs,
    }


def digest_of(dataset: Dataset) -> str:
    """SHA-256 over everything a fit and its measurement can see."""
    total = hashlib.sha256()

    def add(name: str, values: Any) -> None:
        if sparse.issparse(values):
            for part in ("data", "indices", "indptr"):
                add(f"{name}.{part}", getattr(values, part))
            return
        array: Array = np.ascontiguousarray(values)
        total.update(f"{name} {array.dtype.str} {array.shape};".encode())
        total.update(array.tobytes())

    for name in dataset.modalities:
        add(f"features {name}", dataset.features[name])
        add(f"labels {name}", dataset.relevance[name])
        add(f"ids {name}", dataset.ids[name].astype(str) if dataset.ids[name].dtype.hasobject else dataset.ids[name])
        if dataset.split is not None:
            for part in ("training", "query", "database"):
                add(f"{part} {name}", getattr(dataset.split, part)[name].astype(str))
    return total.hexdigest()


@lru_cache(maxsize=1)
def _loaded(name: str, root: Path | None) -> Dataset:
    return SOURCES[name].load(root)


def prepared(name: str, root: Path | None, seed: int) -> Dataset:
    """A data set with its split; the last one loaded is kept, as cells of one data set follow one another."""
    return with_split(_loaded(name, root), SOURCES[name], seed)


def _twin(name: str, named: str, title: str) -> Source:
    return Source(
        f"{name}-twin", f"{title} twin", "twin", named=named, quotes=name, caution="synthetic: for times only"
    )


SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source("mirflickr25k", "MIRFlickr-25K", "paper", named="mirflickr25k", queries=836,
               facts={"total": 16738, "image": 150, "text": 500, "classes": 24}),
        Source("nuswide10", "NUS-WIDE", "paper", named="nuswide10", queries=2000,
               facts={"total": 186577, "image": 500, "text": 1000, "classes": 10}),
        Source("iaprtc12", "IAPR TC-12", "paper", queries=2000,
               files=("iaprtc12", *(f"iapr-tc12/{file}" for file in NAMED["iapr-tc12"].files[1:])),
               how="Put the .mat file that the field shares (512 GIST features, 2,912 words, 255 labels) into "
                   "data/iaprtc12/, under any name.",
               facts={"total": 20000, "image": 512, "text": 2912, "classes": 255}),
        Source("wiki", "Wiki", "stand-in", named="wiki"),
        Source("iapr-tc12", "IAPR TC-12 (keywords)", "stand-in", named="iapr-tc12", options={"text": "de"},
               quotes="iaprtc12", needs="iapr-tc12/features.npz",
               caution="the paper's photographs, other labels (291 caption keywords) and other features"),
        Source("iapr-tc12-cnn", "IAPR TC-12 (keywords, CNN)", "stand-in", files=("iapr-tc12-cnn",), how=LITE,
               caution="photographs through EfficientNet-Lite0 (1,280 features), which is not the paper's network; "
                       "items, split, words and labels of IAPR TC-12 (keywords)"),
        Source("mfeat", "Mfeat", "stand-in", ("pix", "fou"), named="mfeat",
               caution="pixels stand for images, Fourier coefficients for texts"),
        Source("openmoji", "OpenMoji", "stand-in", named="openmoji"),
        _twin("mirflickr25k", "mirflickr25k", "MIRFlickr-25K"),
        _twin("nuswide10", "nuswide10", "NUS-WIDE"),
        _twin("iaprtc12", "iapr-tc12", "IAPR TC-12"),
        Source("mirflickr25k-cnn", "MIRFlickr-25K (CNN)", "paper", files=("mirflickr25k-cnn",), queries=2000,
               training=10000, how=CNN.format(files="data/mirflickr25k-cnn/*.mat"),
               facts={"total": 20015, "image": 4096, "training": 10000}),
        Source("nuswide21-cnn", "NUS-WIDE (CNN)", "paper", files=("nuswide21-cnn",), queries=2000,
               training=10500, how=CNN.format(files="data/nuswide21-cnn/*.mat"),
               facts={"total": 195834, "image": 4096, "training": 10500}),
    )
}  # fmt: skip
