"""Data sets of a grid: by name, by file, generated, or a synthetic twin for times; with a given or drawn split."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from modalhash.core.files import sha256_of
from modalhash.core.typing import Array
from modalhash.data import NAMED, data_root, declared, how_to_get, is_named, is_present, load_dataset, with_split
from modalhash.experiments.provenance import source_digest

if TYPE_CHECKING:
    from modalhash.data import Dataset

ARRAYS = (".mat", ".npz", ".h5", ".hdf5")


@dataclass(frozen=True)
class Input:
    """How a data set is loaded and split. Data files are preferred to the catalog."""

    name: str
    title: str = ""
    catalog: str = ""
    """Name for ``load_dataset``, optionally with a variant: ``mirflickr25k:full``."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of ``load_dataset``."""
    files: Sequence[str] = ()
    """Folder or files, the preferred first; relative to the folder of the data sets."""
    twin: str = ""
    """Name of a synthetic twin, of which only the time of a fit is measured."""
    generated: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of ``modalhash.data.generate``."""
    modalities: Sequence[str] = ()
    """Modalities in use, in this order; all by default."""
    queries: int = 0
    """Queries drawn per seed if the data have no split; by default the data set's own number, or a fifth."""
    training: int = 0
    """Training items drawn from the rest; all by default."""
    how: str = ""
    """How to get the files, if they are not in the catalog."""

    @property
    def measured(self) -> bool:
        return not self.twin

    @property
    def heading(self) -> str:
        return self.title or self.name

    def present(self, root: Path | None) -> bool:
        if self.twin or self.generated or self._file(root) is not None:
            return True
        return is_named(self.catalog) and is_present(self.catalog, root)

    def _file(self, root: Path | None) -> Path | None:
        for name in self.files:
            path = data_root(root) / name
            if path.is_file() or (path.is_dir() and any(file.suffix in ARRAYS for file in path.iterdir())):
                return path
        return None

    def load(self, root: Path | None) -> Dataset:
        """Load the modalities, with the given split or the sizes of the one to draw."""
        if self.twin:
            from modalhash.data import twin

            return twin(self.twin, root=root)
        path = self._file(root)
        if path is not None:
            from modalhash.data import read

            dataset = declared(read(path), path if path.is_dir() else path.parent)
        elif self.generated:
            from modalhash.data import generate

            dataset = generate(**self.generated).dataset()
        else:
            dataset = load_dataset(self.catalog, root, **self.options)
        sizes = {"query": self.queries, "training": self.training}
        own = {part: size for part, size in sizes.items() if size}
        dataset = replace(dataset, name=self.name, split_sizes={**dataset.split_sizes, **own})
        return dataset.only(*self.modalities) if self.modalities else dataset

    def how_to_get(self) -> str:
        if self.how:
            return self.how
        if is_named(self.catalog):
            return how_to_get(self.catalog, "data").replace("\n", " ")
        if self.files:
            return f"There is no {' or '.join(self.files)}."
        return f"No data set is called {self.catalog!r}; there are {', '.join(NAMED)}. Files are named by `file`."


def describe(source: Input, root: Path | None) -> dict[str, Any]:
    """Return digest and sizes of a data set for the results; a twin is not drawn for this."""
    if source.twin:
        return _describe_twin(source, root)
    loaded = source.load(root)
    split = with_split(loaded, seed=0).split
    assert split is not None
    first = loaded.modalities[0]
    return {
        "name": source.name,
        "title": source.heading,
        "digest": digest_of(loaded),
        "options": dict(source.options),
        "kind": loaded.kind,
        "features": loaded.widths,
        "items": loaded.sizes[first],
        "training": len(split.training[first]),
        "queries": len(split.query[first]),
        "classes": len(loaded.class_names),
        "labels_per_item": float(np.mean(loaded.labels[first].sum(axis=1))),
        "own_split": loaded.split is not None,
        "measured": True,
    }


def _describe_twin(source: Input, root: Path | None) -> dict[str, Any]:
    from modalhash.data import RECIPES, twin

    recipe = RECIPES[source.twin]
    labels = recipe.labels_file(root)
    real = None if labels is None else sha256_of([labels])
    content = "twin", source.twin, 0, 1.0, recipe, real, source_digest([twin.__module__])
    return {
        "name": source.name,
        "title": source.heading,
        "digest": hashlib.sha256(repr(content).encode()).hexdigest(),
        "options": {},
        "kind": "twin",
        "labels": "drawn" if labels is None else "real",
        "features": {"image": recipe.image, "text": recipe.text},
        "items": recipe.n_query + recipe.n_training,
        "training": recipe.n_training,
        "queries": recipe.n_query,
        "classes": len(recipe.frequencies),
        "own_split": True,
        "measured": False,
    }


def digest_of(dataset: Dataset) -> str:
    """Return the SHA-256 over everything that a fit and its measurement use."""
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
    for what, sizes in (("components", dataset.components), ("split sizes", dataset.split_sizes)):
        if sizes:
            total.update(f"{what} {sorted(sizes.items())};".encode())
    return total.hexdigest()
