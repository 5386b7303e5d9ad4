"""Data sets and their splits.

A :class:`Dataset` holds items of several modalities, each with its own rows, ids and labels. A :class:`Split` names
the training, query and database items. Both refer to items by id, so a split does not depend on the row order.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy

from modalhash.core.files import write_atomically
from modalhash.core.frames import Origin, TracedFeatures, parse_labels as parse_labels
from modalhash.core.linalg import PrincipalComponents
from modalhash.core.typing import Array, Matrix
from modalhash.core.validation import check_sparse
from modalhash.data.formats.variables import ReadError

KINDS = ("original", "recomputed features", "substitute", "twin", "generated")
"""Values of ``provenance["kind"]``: how a data set relates to the one that publications report on."""
TEST_SHARE = 0.2  # fraction of the items drawn as queries if a data set has neither a split nor split sizes
_FORMAT, _VERSION = "modalhash-split", 1


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Named modalities with features, labels and ids of their items.

    The same id in two modalities means the same item in two forms. Whether rows are paired follows from the ids and is
    never guessed from equal lengths.

    Parameters
    ----------
    features : dict from modality to ``(items, features)``, array or sparse matrix
    labels : dict from modality to ``(items, classes)`` with 0 and 1, for all modalities or for none
    ids : dict from modality to 1-D int or str, unique within a modality; row numbers by default
    class_names : one name per label column; numbers by default
    name : of the data set
    provenance : ``source``, ``files``, ``sha256``, ``licence``, ``notes`` …, and ``kind``, one of :data:`KINDS`
    raw : dict from modality to texts or paths; a modality may have these instead of features
    split : the split that comes with the data
    split_sizes : number of ``"query"`` and optionally ``"training"`` items in the literature, for :func:`with_split`
    components : dict from modality to a number of principal components, which :meth:`parts` fits on the training part
        and substitutes for the features of all three parts
    true_labels : labels that relevance is judged by, if ``labels`` were degraded (:mod:`modalhash.data.scenarios`)
    origins : positions of the items of each modality in the files they were read from, for error messages

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
    origins: Mapping[str, Origin] = field(default_factory=dict)
    split_sizes: Mapping[str, int] = field(default_factory=dict)
    components: Mapping[str, int] = field(default_factory=dict)

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
        if self.origins:
            clean["features"] = TracedFeatures(features, clean["ids"], self.origins)
        for attribute, value in clean.items():
            object.__setattr__(self, attribute, value)
        object.__setattr__(self, "class_names", self._clean_class_names())
        if self.split is not None and (unknown := set(self.split.modalities) ^ set(sizes)):
            raise ValueError(f"{where}: split and data disagree about the modalities {shown(sorted(unknown))}")
        if unknown := set(self.split_sizes) - {"query", "training"}:
            raise ValueError(f"{where}: split_sizes of {shown(sorted(unknown))}; expected 'query' and 'training'")
        if unknown := set(self.components) - set(features):
            raise ValueError(f"{where}: components of {shown(sorted(unknown))}; features are of {shown(features)}")
        if (kind := self.provenance.get("kind")) is not None and kind not in KINDS:
            raise ValueError(f"{where}: provenance says kind {kind!r}; expected one of {', '.join(KINDS)}")

    def _clean_labels(self, given: Mapping[str, Array], sizes: Mapping[str, int], what: str) -> dict[str, Array]:
        where = f"data set {self.name!r}"
        labels = {
            name: clean_labels(values, f"{where}, {name!r}") for name, values in check_mapping(given, what).items()
        }
        _check_all_or_none(labels, sizes, where, what)
        for name, values in labels.items():
            if len(values) != sizes[name]:
                raise ValueError(
                    f"{where}, {name!r}: {len(values)} rows of {what} for {sizes[name]} items; expected one each"
                )
        if len({values.shape[1] for values in labels.values()}) > 1:
            counts = ", ".join(f"{name!r}: {values.shape[1]}" for name, values in labels.items())
            raise ValueError(f"{where}: {what} have different numbers of classes ({counts}); all share the columns")
        return {name: labels[name] for name in sizes if name in labels}

    def _clean_ids(self, sizes: Mapping[str, int]) -> dict[str, Array]:
        where = f"data set {self.name!r}"
        given = check_mapping(self.ids, "ids")
        _check_all_or_none(given, sizes, where, "ids")
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
        return tuple(self.ids)

    @property
    def sizes(self) -> dict[str, int]:
        return {name: len(ids) for name, ids in self.ids.items()}

    @property
    def widths(self) -> dict[str, int]:
        """The number of features by modality, as :meth:`parts` returns them."""
        return {name: self.components.get(name, values.shape[1]) for name, values in self.features.items()}

    @property
    def kind(self) -> str:
        """The declared kind, one of :data:`KINDS`, or ``"not stated"``."""
        return str(self.provenance.get("kind", "not stated"))

    @property
    def paired(self) -> bool:
        """True if the ids of all modalities are equal, row by row."""
        first, *others = self.ids.values()
        return all(np.array_equal(first, ids) for ids in others)

    @property
    def relevance(self) -> Mapping[str, Array]:
        """The labels that relevance is judged by: ``true_labels`` if given, else ``labels``."""
        return self.true_labels or self.labels

    def parts(self) -> SplitData:
        """Return the training, query and database parts of the data set's own split."""
        if self.split is None:
            raise ValueError(f"data set {self.name!r} has no split; draw one with modalhash.data.with_split")
        return self.split.apply(self)

    def select(self, rows: Mapping[str, Any]) -> Dataset:
        """Return rows (numbers, a mask or a slice) of the named modalities, without a split."""
        self._check_known(rows)

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
            split_sizes={},
            components={name: n for name, n in self.components.items() if name in rows},
        )

    def take(self, ids: Any) -> Dataset:
        """Return the items with these ids, in order: a dict by modality, or one list for all modalities."""
        wanted = ids if isinstance(ids, Mapping) else dict.fromkeys(self.modalities, ids)
        self._check_known(wanted)
        return self.select({name: self.rows_of(name, some) for name, some in wanted.items()})

    def rows_of(self, modality: str, ids: Any) -> Array:
        """Return the row numbers of ids, in the order given."""
        self._check_known([modality])
        return rows_of(self.ids[modality], ids, repr(modality))

    def only(self, *modalities: str) -> Dataset:
        """Return the data set and its split with these modalities only, in the order named."""
        part = self.select({name: slice(None) for name in modalities})
        split = self.split.only(*modalities) if self.split else None
        return replace(part, split=split, split_sizes=self.split_sizes)

    def describe(self) -> str:
        """Return a summary of the content and its provenance in a few lines."""
        lines = [f"{self.name}: {'paired' if self.paired else 'not paired'}, {len(self.class_names)} classes"]
        for name, n in self.sizes.items():
            line = f"  {name}: {n:,} items"
            if (values := self.features.get(name)) is not None:
                line += f", {'×'.join(str(size) for size in values.shape[1:])} {values.dtype}"
                if isinstance(values, scipy.sparse.csr_array):
                    line += f", {values.nnz / max(1, values.shape[0]):.1f} non-zeros each"
                if name in self.components:
                    line += f", reduced to {self.components[name]} principal components of the training items"
            if name in self.labels:
                line += f", {self.labels[name].sum() / max(1, n):.2f} labels each"
            lines.append(line + (", raw items" if name in self.raw else ""))
        if self.split is not None:
            lines.append(f"  {self.split}")
        elif self.split_sizes:
            sizes = ", ".join(f"{n:,} {part} items" for part, n in self.split_sizes.items())
            lines.append(f"  no split; with_split draws {sizes}")
        lines += [f"  {key}: {value}" for key, value in self.provenance.items() if value]
        return "\n".join(lines)

    def _check_known(self, modalities: Iterable[str]) -> None:
        if unknown := [name for name in modalities if name not in self.ids]:
            raise ValueError(f"no modality {shown(unknown)}; the data set has {shown(self.modalities)}")

    def __repr__(self) -> str:
        shapes = []
        for name, n in self.sizes.items():
            shape = "×".join(map(str, self.features[name].shape)) if name in self.features else f"{n} raw"
            shapes.append(f"{name} {shape}" + (f"→{self.components[name]}" if name in self.components else ""))
        classes = f"{len(self.class_names)} classes" if self.labels else "no labels"
        return f"Dataset({self.name!r}: {', '.join(shapes)}, {classes}{', split' if self.split else ''})"


def _check_all_or_none(given: Mapping[str, Any], sizes: Mapping[str, int], where: str, what: str) -> None:
    if given and set(given) != set(sizes):
        raise ValueError(
            f"{where}: {what} for {shown(given)}, but the modalities are {shown(sizes)}; expected all or none"
        )


class SplitData(NamedTuple):
    """The training, query and database part of a data set."""

    training: Dataset
    query: Dataset
    database: Dataset


class Split:
    """Training, query and database items of each modality, by id.

    Parameters
    ----------
    training, query : dict from modality to ids
    database : the same; by default the training items, as in most papers of the field
    disjoint : whether to refuse a query that is also a database item of its modality

    Examples
    --------
    >>> split = Split(training={"image": [0, 1], "text": [0, 1]}, query={"image": [2], "text": [2]})
    >>> split
    Split(image: 2 training, 1 query, 2 database; text: 2 training, 1 query, 2 database)
    """

    def __init__(
        self,
        training: Mapping[str, Any],
        query: Mapping[str, Any],
        database: Mapping[str, Any] | None = None,
        *,
        disjoint: bool = True,
    ) -> None:
        self.training: Mapping[str, Array] = _clean_part(training, "training")
        self.query = _clean_part(query, "query")
        same = database is None or database is training
        self.database = self.training if same else _clean_part(database, "database")
        for part, ids in (("query", self.query), ("database", self.database)):
            if set(ids) != set(self.training):
                raise ValueError(f"{part} has the modalities {shown(ids)}; training has {shown(self.training)}")
        if disjoint:
            self.check_disjoint()

    @property
    def modalities(self) -> tuple[str, ...]:
        return tuple(self.training)

    @property
    def database_is_training(self) -> bool:
        return self.database is self.training

    def check_disjoint(self) -> None:
        for name, ids in self.query.items():
            both = np.intersect1d(ids, self.database[name]) if len(ids) and len(self.database[name]) else ids[:0]
            if len(both):
                raise ValueError(
                    f"{name!r}: {len(both)} of {len(ids)} queries are also in the database, "
                    f"e.g. {shown(both)}, so a query would find itself. Remove them from one side, "
                    "or pass disjoint=False"
                )

    def apply(self, dataset: Dataset) -> SplitData:
        """Return the three parts of a data set; a database equal to the training part is the same object.

        Features of the modalities in ``dataset.components`` become principal components of the training part.
        """
        training, query = dataset.take(self.training), dataset.take(self.query)
        database = training if self.database_is_training else dataset.take(self.database)
        parts = SplitData(training, query, database)
        return _reduced(parts, dataset) if dataset.components else parts

    def only(self, *modalities: str) -> Split:
        training, query, database = (
            {name: part[name] for name in modalities} for part in (self.training, self.query, self.database)
        )
        return Split(training, query, None if self.database_is_training else database, disjoint=False)

    def save(self, path: str | Path) -> None:
        write_atomically(path, json.dumps(self.to_json(), ensure_ascii=False).encode())

    def to_json(self) -> dict[str, Any]:
        """Return the split as plain lists, with ``database: None`` if it equals the training items."""
        content: dict[str, Any] = {"format": _FORMAT, "version": _VERSION}
        for part in ("training", "query", "database"):
            content[part] = {name: ids.tolist() for name, ids in getattr(self, part).items()}
        if self.database_is_training:
            content["database"] = None
        return content

    @classmethod
    def load(cls, path: str | Path, *, disjoint: bool = True) -> Split:
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls.from_json(content, disjoint=disjoint)
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ReadError(path, f"not a JSON file ({error}); expected a file that Split.save wrote") from error
        except (ValueError, TypeError) as error:
            raise ReadError(path, str(error)) from error

    @classmethod
    def from_json(cls, content: Any, *, disjoint: bool = True) -> Split:
        """Return the split that :meth:`to_json` described."""
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise ValueError(f"not a split; expected the field format={_FORMAT!r}")
        if content.get("version") != _VERSION:
            raise ValueError(f"a split of version {content.get('version')!r}; this modalhash reads version {_VERSION}")
        if missing := [part for part in ("training", "query") if part not in content]:
            raise ValueError(f"the part(s) {shown(missing)} of the split are missing")
        return cls(content["training"], content["query"], content.get("database"), disjoint=disjoint)

    def __repr__(self) -> str:
        sizes = (
            f"{name}: {len(self.training[name])} training, {len(self.query[name])} query, "
            f"{len(self.database[name])} database"
            for name in self.modalities
        )
        return f"Split({'; '.join(sizes)})"


def _clean_part(part: Any, name: str) -> dict[str, Array]:
    return {
        modality: clean_ids(ids if len(ids) else np.empty(0, dtype=np.int64), f"{name} ids of {modality!r}")
        for modality, ids in check_mapping(part, name).items()
    }


def _reduced(parts: SplitData, dataset: Dataset) -> SplitData:
    fitted = {}
    for name, n in dataset.components.items():
        where = f"data set {dataset.name!r}, {name!r}"
        fitted[name] = PrincipalComponents.fit(parts.training.features[name], n, where)

    def of(part: Dataset) -> Dataset:
        made = {name: found.transform(part.features[name]) for name, found in fitted.items()}
        return replace(part, features={**part.features, **made}, components={})

    training = of(parts.training)
    return SplitData(training, of(parts.query), training if parts.database is parts.training else of(parts.database))


def with_split(dataset: Dataset, *, seed: int, share: float | None = None) -> Dataset:
    """Return the data set with its own split, or with one drawn at random.

    An item is a query in all modalities or in none. The numbers of queries and training items are those of
    ``dataset.split_sizes``; without a training size, all other items train. The rest is the database.

    Parameters
    ----------
    dataset : Dataset
        its name is part of the seed, so that two data sets of the same size get different splits
    seed : int
    share : float, optional
        fraction of the items drawn as queries, instead of the data set's own sizes; 0.2 if it has none
    """
    if dataset.split is not None:
        return dataset
    if share is not None and not 0 < share < 1:
        raise ValueError(f"the share of queries is {share}; expected a number between 0 and 1")
    first, *others = dataset.ids.values()
    ids = first if dataset.paired else np.unique(np.concatenate([first, *others]))
    sizes = dataset.split_sizes if share is None else {}
    n_query = sizes.get("query") or max(1, round((share or TEST_SHARE) * len(ids)))
    n_training = sizes.get("training", len(ids) - n_query)
    if not 0 < n_training <= len(ids) - n_query:
        raise ValueError(
            f"data set {dataset.name!r}: {n_query} queries and {max(n_training, 1)} training items are requested; "
            f"it has {len(ids)} items. Pass a share of queries, or give the data set a split"
        )
    drawn = np.random.default_rng([seed, *dataset.name.encode()]).permutation(ids)
    query, rest = drawn[:n_query], drawn[n_query:]

    def own(chosen: Array) -> dict[str, Array]:
        return {name: chosen[np.isin(chosen, known)] for name, known in dataset.ids.items()}

    database = None if n_training == len(rest) else own(rest)
    return replace(dataset, split=Split(own(rest[:n_training]), own(query), database))


# -- checks of content; every error names the modality, the value and the remedy


def label_names(rows: Iterable[Iterable[str]]) -> list[str]:
    """Return the sorted set of label names that occur in ``rows``."""
    return sorted({name for row in rows for name in row})


def label_matrix(rows: Sequence[Iterable[Hashable]], classes: Sequence[Hashable]) -> Array:
    """Return the boolean matrix (items, classes) of the labels; every label must be in ``classes``.

    Examples
    --------
    >>> label_matrix([["a", "c"], []], ["a", "b", "c"]).astype(int)
    array([[1, 0, 1],
           [0, 0, 0]])
    """
    column = {name: number for number, name in enumerate(classes)}
    matrix = np.zeros((len(rows), len(classes)), dtype=bool)
    for number, row in enumerate(rows):
        matrix[number, [column[name] for name in row]] = True
    return matrix


def clean_features(values: Any, where: str) -> Matrix:
    """Check that features are numeric with one row per item; convert sparse matrices to CSR."""
    if scipy.sparse.issparse(values):
        check_sparse(values, where)
        matrix: Matrix = scipy.sparse.csr_array(values)
        dtype = matrix.dtype
    elif isinstance(values, np.ndarray):
        matrix, dtype = values, values.dtype
    else:
        raise TypeError(f"{where}: features are {type(values).__name__}; expected a numpy array or a scipy matrix")
    if dtype.kind == "O":
        raise TypeError(
            f"{where}: features are an object array of shape {matrix.shape}; expected numbers. "
            "Stack the rows into one numeric array first, e.g. numpy.vstack(rows)"
        )
    if not (np.issubdtype(dtype, np.number) or dtype.kind == "b") or np.issubdtype(dtype, np.complexfloating):
        raise TypeError(f"{where}: features have type {dtype}; expected real numbers (texts and paths go to 'raw')")
    if matrix.ndim < 2:
        raise ValueError(f"{where}: features have shape {matrix.shape}; expected (items, features)")
    return matrix


def clean_labels(values: Any, where: str) -> Array:
    if scipy.sparse.issparse(values):
        check_sparse(values, f"{where}, labels")
        values = values.toarray()
    values = np.asarray(values)
    if values.dtype == object:
        raise TypeError(f"{where}: labels are an object array of shape {values.shape}; expected 0 and 1")
    if values.ndim != 2 or values.shape[1] == 0:
        raise ValueError(f"{where}: labels have shape {values.shape}; expected (items, classes) with 0 and 1")
    if values.dtype != bool:
        if not np.issubdtype(values.dtype, np.number):
            raise TypeError(f"{where}: labels have type {values.dtype}; expected 0 and 1")
        wrong = (values != 0) & (values != 1)
        if wrong.any():
            row, column = (int(i) for i in np.argwhere(wrong)[0])
            raise ValueError(
                f"{where}: labels are not binary: row {row}, class {column} is {values[row, column]}; "
                "expected only 0 and 1. Threshold weights or counts first, e.g. labels > 0"
            )
    labels: Array = np.ascontiguousarray(values, dtype=bool)
    if len(labels) and not labels.any():
        raise ValueError(
            f"{where}: none of the {len(labels)} items has a label (shape {values.shape}); expected "
            "at least one 1. Leave the labels out if there are no labels"
        )
    return labels


def clean_ids(values: Any, where: str) -> Array:
    """Return ids as a 1-D array of int64 or str without duplicates."""
    ids = np.asarray(values)
    if ids.dtype == object and all(isinstance(value, str) for value in ids.flat):
        ids = ids.astype(str)
    if ids.ndim != 1 or ids.dtype.kind not in "iuU":
        raise TypeError(f"{where}: ids have shape {ids.shape} and type {ids.dtype}; expected a 1-D array of int or str")
    if ids.dtype.kind in "iu":
        ids = ids.astype(np.int64, copy=False)
    unique, counts = np.unique(ids, return_counts=True)
    if len(unique) != len(ids):
        twice = unique[counts > 1]
        raise ValueError(
            f"{where}: {len(twice)} duplicate id(s), e.g. {shown(twice)}; every id must occur once. "
            "Use row numbers as ids if the source repeats its own"
        )
    return ids


def clean_raw(values: Any, where: str) -> Array:
    """Return texts or paths as a 1-D object array of str, which does not pad them to the longest."""
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "UO":
        given = list(values) if not isinstance(values, str) else None
        if given is None or (isinstance(values, np.ndarray) and len(given)):
            kind = f"type {values.dtype}" if isinstance(values, np.ndarray) else "one text"
            raise TypeError(f"{where}: raw items are {kind}; expected a list of str")
        values = np.empty(len(given), dtype=object)
        values[:] = given
    raw: Array = values.astype(object)
    if raw.ndim != 1 or not all(isinstance(value, str) for value in raw.flat):
        raise TypeError(f"{where}: raw items have shape {raw.shape} and type {values.dtype}; expected a list of str")
    return raw


def padded_bytes(longest: int, n: int) -> int:
    """Return the bytes that ``n`` texts take in a fixed-width array."""
    return 4 * longest * n


def rows_of(ids: Array, wanted: Any, where: str) -> Array:
    """Return the row numbers of the ids in ``wanted``, in that order."""
    wanted = np.asarray(wanted)
    if wanted.size == 0:
        return np.empty(0, dtype=np.intp)
    if wanted.ndim != 1 or (wanted.dtype.kind in "iu") != (ids.dtype.kind in "iu"):
        raise TypeError(
            f"{where}: got ids of type {wanted.dtype}, shape {wanted.shape}; the data set has "
            f"{ids.dtype}, e.g. {shown(ids[:1])}"
        )
    order = np.argsort(ids, kind="stable")
    position = np.minimum(np.searchsorted(ids, wanted, sorter=order), max(len(ids) - 1, 0))
    rows = order[position] if len(ids) else np.zeros(len(wanted), dtype=np.intp)
    unknown = ids[rows] != wanted if len(ids) else np.ones(len(wanted), dtype=bool)
    if unknown.any():
        raise ValueError(
            f"{where}: {int(unknown.sum())} of {len(wanted)} ids are not in the data set, e.g. {shown(wanted[unknown])}"
        )
    return rows


def check_mapping(value: Any, argument: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{argument} is {type(value).__name__}; expected a dict by modality name")
    for name in value:
        if not isinstance(name, str) or not name:
            raise TypeError(f"{argument} has the key {name!r}; a modality's name is a non-empty string")
    return dict(value)


def shown(values: Iterable[Any], limit: int = 3) -> str:
    values = list(values)
    some = ", ".join(repr(value.item() if isinstance(value, np.generic) else value) for value in values[:limit])
    return some + (", …" if len(values) > limit else "")
