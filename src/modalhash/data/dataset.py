"""A data set: items of several modalities, each with its own rows, ids and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import sparse

from modalhash._typing import Array, Matrix
from modalhash.data._checks import check_mapping, clean_features, clean_ids, clean_labels, clean_raw, rows_of, shown
from modalhash.data.split import Parts, Split


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Named modalities with features, labels and ids.

    An item is known by its id: the same id in two modalities means the same thing seen twice. Whether the
    rows are paired follows from that and is never guessed from equal lengths.

    Parameters
    ----------
    features : dict from modality to ``(items, features)``, array or sparse matrix
    labels : dict from modality to ``(items, classes)`` with 0 and 1, for all modalities or for none
    ids : dict from modality to 1-D int or str, each once within its modality; row numbers by default
    class_names : one name per label column; numbers by default
    name : of the data set
    provenance : where it comes from: ``source``, ``files``, ``sha256``, ``licence``, ``notes`` …
    raw : dict from modality to texts or paths; a modality may have these instead of features
    split : the split that comes with the data
    true_labels : what relevance is judged by where ``labels`` were made worse on purpose (see
        :mod:`modalhash.data.scenarios`)

    Examples
    --------
    >>> Dataset({"image": np.eye(3), "text": np.ones((2, 5))}, name="tiny")
    Dataset('tiny': image 3×3, text 2×5, no labels)
    """

    features: Mapping[str, Matrix]
    labels: Mapping[str, Array] = field(default_factory=dict)
    ids: Mapping[str, Array] = field(default_factory=dict)
    class_names: Sequence[str] = ()
    name: str = "unnamed"
    provenance: Mapping[str, Any] = field(default_factory=dict)
    raw: Mapping[str, Array] = field(default_factory=dict)
    split: Split | None = None
    true_labels: Mapping[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = f"data set {self.name!r}"
        raw = {name: clean_raw(values, f"{where}, {name!r}") for name, values in check_mapping(self.raw, "raw").items()}
        features = {
            name: clean_features(values, f"{where}, {name!r}")
            for name, values in check_mapping(self.features, "features").items()
        }
        sizes = {name: len(values) for name, values in raw.items()}
        for name, values in features.items():
            if sizes.setdefault(name, values.shape[0]) != values.shape[0]:
                raise ValueError(f"{where}, {name!r}: {sizes[name]} raw items for {values.shape[0]} rows of features")
        sizes = {name: sizes[name] for name in (*features, *(name for name in raw if name not in features))}
        if not sizes:
            raise ValueError(f"{where}: no modality; expected features, or raw items, of at least one")
        clean = {
            "features": features,
            "raw": raw,
            "labels": self._clean_labels(self.labels, sizes, "labels"),
            "true_labels": self._clean_labels(self.true_labels, sizes, "true_labels"),
            "ids": self._clean_ids(sizes),
            "provenance": dict(self.provenance),
        }
        for attribute, value in clean.items():
            object.__setattr__(self, attribute, value)
        object.__setattr__(self, "class_names", self._clean_class_names())
        if self.split is not None and (unknown := set(self.split.modalities) ^ set(sizes)):
            raise ValueError(f"{where}: split and data disagree about the modalities {shown(sorted(unknown))}")

    def _clean_labels(self, given: Mapping[str, Array], sizes: Mapping[str, int], what: str) -> dict[str, Array]:
        where = f"data set {self.name!r}"
        labels = {
            name: clean_labels(values, f"{where}, {name!r}") for name, values in check_mapping(given, what).items()
        }
        if labels and set(labels) != set(sizes):
            raise ValueError(
                f"{where}: {what} for {shown(labels)}, but the modalities are {shown(sizes)}; all, or none"
            )
        for name, values in labels.items():
            if len(values) != sizes[name]:
                raise ValueError(f"{where}, {name!r}: {len(values)} rows of {what} for {sizes[name]} items; one each")
        if len({values.shape[1] for values in labels.values()}) > 1:
            counts = ", ".join(f"{name!r}: {values.shape[1]}" for name, values in labels.items())
            raise ValueError(f"{where}: {what} have different numbers of classes ({counts}); all share the columns")
        return {name: labels[name] for name in sizes if name in labels}

    def _clean_ids(self, sizes: Mapping[str, int]) -> dict[str, Array]:
        where = f"data set {self.name!r}"
        given = check_mapping(self.ids, "ids")
        if given and set(given) != set(sizes):
            raise ValueError(f"{where}: ids for {shown(given)}, but the modalities are {shown(sizes)}; all, or none")
        ids = {}
        for name, n in sizes.items():
            ids[name] = clean_ids(given[name], f"{where}, {name!r}") if given else np.arange(n)
            if len(ids[name]) != n:
                raise ValueError(f"{where}, {name!r}: {len(ids[name])} ids for {n} items; expected one per item")
        return ids

    def _clean_class_names(self) -> tuple[str, ...]:
        names = tuple(str(name) for name in self.class_names)
        if not self.labels:
            return names
        n = next(iter(self.labels.values())).shape[1]
        if names and len(names) != n:
            raise ValueError(f"data set {self.name!r}: {len(names)} class names for {n} classes")
        return names or tuple(str(number) for number in range(n))

    @property
    def modalities(self) -> tuple[str, ...]:
        """Names of the modalities."""
        return tuple(self.ids)

    @property
    def sizes(self) -> dict[str, int]:
        """Items per modality."""
        return {name: len(ids) for name, ids in self.ids.items()}

    @property
    def paired(self) -> bool:
        """Whether the same row is the same item in every modality; read from the ids."""
        first, *others = self.ids.values()
        return all(np.array_equal(first, ids) for ids in others)

    @property
    def relevance(self) -> Mapping[str, Array]:
        """The labels by which a hit is judged: the true ones where ``labels`` were made worse."""
        return self.true_labels or self.labels

    def parts(self) -> Parts:
        """Training, query and database part by the data set's own split."""
        if self.split is None:
            raise ValueError(f"data set {self.name!r} has no split; make one with modalhash.data.Split and apply it")
        return self.split.apply(self)

    def select(self, rows: Mapping[str, Any]) -> Dataset:
        """These rows (numbers, a mask or a slice) of the modalities named, without the others or a split."""
        if unknown := [name for name in rows if name not in self.ids]:
            raise ValueError(f"no modality {shown(unknown)}; the data set has {shown(self.modalities)}")

        def of(values: Mapping[str, Any]) -> dict[str, Any]:
            return {name: values[name][index] for name, index in rows.items() if name in values}

        return replace(
            self,
            features=of(self.features),
            labels=of(self.labels),
            ids=of(self.ids),
            raw=of(self.raw),
            true_labels=of(self.true_labels),
            split=None,
        )

    def take(self, ids: Any) -> Dataset:
        """The items with these ids, in their order: a dict by modality, or one list for all of them."""
        wanted = ids if isinstance(ids, Mapping) else dict.fromkeys(self.modalities, ids)
        if unknown := [name for name in wanted if name not in self.ids]:
            raise ValueError(f"no modality {shown(unknown)}; the data set has {shown(self.modalities)}")
        return self.select({name: rows_of(self.ids[name], some, repr(name)) for name, some in wanted.items()})

    def only(self, *modalities: str) -> Dataset:
        """The data set with some of its modalities, in the order named; the split is kept."""
        part = self.select({name: slice(None) for name in modalities})
        return replace(part, split=self.split.only(*modalities) if self.split else None)

    def describe(self) -> str:
        """What is in it and where it comes from, as text."""
        lines = [f"{self.name}: {'paired' if self.paired else 'not paired'}, {len(self.class_names)} classes"]
        for name, n in self.sizes.items():
            line = f"  {name}: {n:,} items"
            if (values := self.features.get(name)) is not None:
                line += f", {'×'.join(str(size) for size in values.shape[1:])} {values.dtype}"
                if isinstance(values, sparse.csr_array):
                    line += f", {values.nnz / max(1, values.shape[0]):.1f} non-zeros each"
            if name in self.labels:
                line += f", {self.labels[name].sum() / max(1, n):.2f} labels each"
            lines.append(line + (", raw items" if name in self.raw else ""))
        if self.split is not None:
            lines.append(f"  {self.split}")
        lines += [f"  {key}: {value}" for key, value in self.provenance.items() if value]
        return "\n".join(lines)

    def __repr__(self) -> str:
        shapes = [
            f"{name} {'×'.join(map(str, self.features[name].shape))}" if name in self.features else f"{name} {n} raw"
            for name, n in self.sizes.items()
        ]
        classes = f"{len(self.class_names)} classes" if self.labels else "no labels"
        return f"Dataset({self.name!r}: {', '.join(shapes)}, {classes}{', split' if self.split else ''})"
