"""Base classes of the methods: estimators that learn codes for items of several modalities.

:class:`TrainingItems` has the form that scikit-learn's model selection splits.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

import numpy as np
from sklearn import get_config
from sklearn.base import BaseEstimator, clone
from sklearn.utils import Tags, TransformerTags
from sklearn.utils.validation import check_is_fitted

from modalhash.core import validation
from modalhash.core.blocks import RemoteItems
from modalhash.core.codes import pack_signs
from modalhash.core.features import FeatureMap
from modalhash.core.progress import Callback, Reporter
from modalhash.core.typing import Array, Codes, Matrix
from modalhash.distributed import any_dask, in_memory, lazily, rows_of
from modalhash.methods import fitted

T = TypeVar("T")
PairCodes: TypeAlias = tuple[Array, dict[str, Any]]
"""Codes of pairs, and learned attributes."""

OUTPUTS = ("default", "pandas", "polars")
SAMPLE_SIZE = 64
"""Training items of each modality whose projections are checked after a fit."""


class TrainingItems:
    """Items of all modalities as one sequence, for ``GridSearchCV`` and ``cross_val_score``.

    A row is an item of one modality, or a pair if items are paired, so that folds do not split pairs. Modalities
    alternate evenly, so that every contiguous fold has its share of each.

    Parameters
    ----------
    X, Y : dicts by modality, as for ``fit``
    pairs : None or "aligned"

    Examples
    --------
    >>> items = TrainingItems({"image": np.eye(4), "text": np.eye(2)}, {"image": np.eye(4), "text": np.eye(4)[:2]})
    >>> len(items), {name: len(x) for name, x in items[[0, 1, 2]].X.items()}
    (6, {'image': 2, 'text': 1})
    """

    def __init__(self, X: Mapping[str, Any], Y: Mapping[str, Any] | None = None, *, pairs: str | None = None) -> None:
        features = validation.check_features(X)
        labels = None if Y is None else validation.check_labels(Y, features, unlabelled="allow")
        validation.check_choice(pairs, "pairs", (None, "aligned"))
        aligned = validation.check_pairs(pairs, features)
        if aligned is not None:
            rows = {name: aligned[:, i] for i, name in enumerate(features)}
        else:
            rows = _alternating({name: values.shape[0] for name, values in features.items()})
        self._features, self._labels, self.pairs, self._rows = features, labels, pairs, rows

    def __len__(self) -> int:
        return len(next(iter(self._rows.values())))

    @property
    def shape(self) -> tuple[int]:
        """``(len,)``, because scikit-learn indexes objects that have a shape by arrays of row numbers."""
        return (len(self),)

    def __getitem__(self, index: Any) -> TrainingItems:
        if isinstance(index, tuple):  # scikit-learn writes X[rows, ...]
            index = index[0]
        part = copy(self)
        part._rows = {name: rows[index] for name, rows in self._rows.items()}
        return part

    @property
    def X(self) -> dict[str, Matrix]:
        return self._take(self._features)

    @property
    def Y(self) -> dict[str, Array] | None:
        return None if self._labels is None else self._take(self._labels)

    def _take(self, values: Mapping[str, Any]) -> dict[str, Any]:
        present = {name: rows[rows >= 0] for name, rows in self._rows.items()}
        return {name: values[name][rows] for name, rows in present.items() if len(rows)}


def _alternating(sizes: dict[str, int]) -> dict[str, Array]:
    """Return, for every row of the sequence, the row in each modality, −1 if it is an item of another one."""
    place = np.concatenate([(np.arange(n) + 0.5) / n for n in sizes.values()])
    modality = np.repeat(np.arange(len(sizes)), list(sizes.values()))
    number = np.concatenate([np.arange(n) for n in sizes.values()])
    order = np.argsort(place, kind="stable")
    return {name: np.where(modality[order] == i, number[order], -1) for i, name in enumerate(sizes)}


@dataclass(frozen=True)
class Training:
    """Checked training data."""

    X: dict[str, Matrix]
    Y: dict[str, Array] | None
    pairs: Array | None
    n_bits: int
    shared: dict[str, Any] | None = None
    """Values that the fits of :meth:`CrossModalHasher.fit_path` share; None for a single fit."""

    def once(self, key: str, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Return ``function(*args, **kwargs)``, called only once for all code lengths of a path."""
        if self.shared is None:
            return function(*args, **kwargs)
        if key not in self.shared:
            self.shared[key] = function(*args, **kwargs)
        value: T = self.shared[key]
        return value


class CrossModalHasher(fitted.FittedHasher, BaseEstimator, ABC):
    """Base class of all methods.

    A subclass stores its parameters and implements ``_fit``, which returns the learned attributes. New items are
    projected by ``maps_`` and ``functions_``, unless the subclass overrides ``_project`` and ``_width``. This class
    does validation, packing, blocks, saving and loading. The paper of a method is in its row of ``methods.toml``:
    ``modalhash.methods.info(name).citation``.

    Several methods have these parameters:

    - ``n_bits``: length of the codes, below the number of items of every modality, or of pairs where these are needed
    - ``kernel``: a name in :data:`modalhash.core.features.KERNELS`, e.g. "rbf"; "auto", chosen for each modality by how
      well it ranks held-out items; None for the features themselves; or a dict by modality
    - ``n_anchors``: anchors of the kernel, capped at the number of items or pairs; or a dict by modality
    - ``tol``: stop when the objective falls by less than this fraction; 0 never stops early
    - ``memory_limit``: bytes, or a text such as "2GB", for kernel features held during the fit, on each worker of a
      Dask cluster; the rest is recomputed in every pass. None for no limit
    - ``random_state``: int, Generator or None; the same int gives the same codes

    Attributes
    ----------
    codes_ : learned codes of the training items, by modality
    maps_, functions_ : feature map and (features, bits) matrix, by modality
    objective_ : objective after every iteration, or a dict of several such traces
    n_iter_ : number of iterations, keyed like ``objective_``
    classes_ : label columns
    n_features_in_ : number of features, by modality
    feature_names_in_ : column names of the modalities that were passed as frames
    """

    supervised: ClassVar[bool] = True
    needs_pairs: ClassVar[bool] = False
    max_modalities: ClassVar[int | None] = None
    distributed: ClassVar[bool] = False
    """Whether :meth:`fit` accepts dask arrays."""
    shares_lengths: ClassVar[bool] = False
    """Whether :meth:`fit_path` shares the work that does not depend on the code length."""

    n_bits: int
    objective_: Any
    n_iter_: Any
    codes_: dict[str, Codes]
    feature_names_in_: dict[str, list[str]]
    classes_: Array
    maps_: Mapping[str, FeatureMap]

    def fit(
        self,
        X: Mapping[str, Any] | TrainingItems,
        Y: Mapping[str, Any] | None = None,
        *,
        pairs: Any = None,
        callback: Callback | None = None,
    ) -> Self:
        """Learn codes of the training items and hash functions for new items.

        If the fit fails, the estimator is unchanged.

        Parameters
        ----------
        X : dict or TrainingItems
            Modality name → (n, d) array or CSR; the numbers of items may differ. Also accepted: a pandas or polars
            frame, an Arrow table or a ``datasets.Dataset`` with numeric columns or columns of number lists; or a
            :class:`modalhash.methods.base.TrainingItems`, which has its own labels and pairs. AMSH and RLH also accept
            dask arrays and learn on the workers of the current Dask client.
        Y : dict
            Modality name → (n, n_classes) 0/1 labels with the same columns in all modalities. Or frames with such
            columns, which are matched by name, or with one column of names, lists of names, texts such as ``"a;b"`` or
            class numbers; None and NaN mean no label.
        pairs : None, "aligned" or integer array
            ``"aligned"``: row k of every modality belongs together. An array (pairs, modalities) has row numbers. Pairs
            are never guessed from equal lengths.
        callback : callable, optional
            Called with a :class:`modalhash.core.progress.Progress` after every step; AMSH and RLH may call it from
            several threads.
        """
        self._check_parameters()
        data = self._check(X, Y, pairs)
        learned = self._fit(data, Reporter(callback))
        candidate = copy(self)
        candidate._remember(data, learned)
        candidate._check_fitted(data)
        self._remember(data, learned)
        if names := validation.feature_names(X):
            self.feature_names_in_ = names
        return self

    def fit_path(
        self,
        X: Mapping[str, Any] | TrainingItems,
        Y: Mapping[str, Any] | None = None,
        *,
        n_bits: Sequence[int] = (16, 32, 64, 128),
        pairs: Any = None,
        callback: Callback | None = None,
    ) -> dict[int, Self]:
        """Return one fitted model for each code length; this estimator is unchanged.

        The models equal those of :meth:`fit` at each length with the same int as ``random_state``. AMSH and RLH share
        what does not depend on the length, such as kernel features and their Gram matrix.

        Parameters
        ----------
        X, Y, pairs, callback : as for :meth:`fit`
        n_bits : distinct code lengths

        Returns
        -------
        dict from code length to model, in the order of ``n_bits``

        Examples
        --------
        >>> from modalhash import AMSH
        >>> from modalhash.data import generate
        >>> data = generate(n_items=200, seed=0)
        >>> models = AMSH(n_anchors=100, random_state=0).fit_path(data.X, data.Y, n_bits=(8, 16))
        >>> {bits: model.codes_["text"].shape for bits, model in models.items()}
        {8: (200, 1), 16: (200, 2)}
        """
        self._check_parameters()
        lengths = [validation.check_int(bits, "n_bits", at_least=1) for bits in n_bits]
        if not lengths or len(set(lengths)) < len(lengths):
            raise ValueError(f"n_bits is {n_bits!r}; expected code lengths, each once, e.g. (16, 32, 64, 128)")
        models = {bits: clone(self).set_params(n_bits=bits) for bits in lengths}
        data = replace(models[max(lengths)]._check(X, Y, pairs), shared={})
        for bits in sorted(lengths, reverse=True):  # shorter codes reuse the work of the longest ones
            learned = models[bits]._fit(replace(data, n_bits=bits), Reporter(callback))
            models[bits]._remember(data, learned)
            models[bits]._check_fitted(data)
        return models

    def _check_parameters(self) -> None:
        for name, hint in constrained_parameters(type(self)).items():
            validation.check_type(hint, getattr(self, name), name)

    def _remember(self, data: Training, learned: dict[str, Any]) -> None:
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)
        self.n_features_in_ = {name: int(values.shape[1]) for name, values in data.X.items()}
        if data.Y is not None:
            self.classes_ = np.arange(next(iter(data.Y.values())).shape[1])
        if isinstance(trace := learned.get("objective_"), list):
            learned = learned | {"objective_": np.array(trace), "n_iter_": len(trace)}
        for name, value in learned.items():
            setattr(self, name, value)
        for name, items in data.X.items():
            if isinstance(items, RemoteItems):
                self.codes_ = {**self.codes_, name: items.beside(self.codes_[name])}

    def _check_fitted(self, data: Training) -> None:
        """Raise if a learned array is not finite, or if the projections do not vary."""
        arrays: dict[str, Array] = {}
        for name, value in vars(self).items():
            if name.endswith("_"):
                with suppress(TypeError):  # save() raises for values that cannot be saved
                    fitted.flatten(value, name, arrays)
        try:
            validation.check_learned(arrays)
            for name, values in data.X.items():
                rows, sample, largest = _sample(values)
                projections = validation.check_projections(self._project(name, sample), name)
                labels = None if data.Y is None or not self.supervised else data.Y[name][rows]
                if labels is None or np.any(labels != labels[0]):
                    validation.check_projections_vary(projections, largest, name)
        except ValueError as error:
            raise ValueError(f"{type(self).__name__}: {error}") from error

    def fit_transform(
        self,
        X: Mapping[str, Any],
        Y: Mapping[str, Any] | None = None,
        *,
        pairs: Any = None,
        callback: Callback | None = None,
    ) -> dict[str, Codes]:
        """Fit and return the **learned** codes, which supervised methods derive from the labels.

        ``fit(X, Y).transform(X)`` returns the **hashed** codes instead: those that the features alone give.
        """
        codes = self.fit(X, Y, pairs=pairs, callback=callback).codes_
        return self._as_configured(codes, X.X if isinstance(X, TrainingItems) else X)

    def transform(self, X: Mapping[str, Any]) -> dict[str, Codes]:
        """Return the codes of new items of any of the fitted modalities; lazy codes for dask arrays.

        After :meth:`set_output`, codes are frames with a column per byte; lazy codes stay arrays.
        """
        if any_dask(X):
            return self._lazily(X, "transform")
        return self._as_configured(super().transform(X), X)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Return the names of the bytes of a code, ``amsh0``, ``amsh1``, …, for every modality."""
        check_is_fitted(self, "n_features_in_")
        return np.array([f"{type(self).__name__.lower()}{byte}" for byte in range(-(-self.n_bits // 8))], dtype=object)

    def set_output(self, *, transform: str | None = None) -> Self:
        """Choose the containers that :meth:`transform` and :meth:`fit_transform` return.

        Parameters
        ----------
        transform : {"default", "pandas", "polars"} or None
            Arrays, or frames with a column per byte; a pandas frame keeps the index of the input frame. None changes
            nothing. The default is that of ``sklearn.set_config(transform_output=...)``.
        """
        if transform is not None:
            validation.check_choice(transform, "transform", OUTPUTS)
            self._sklearn_output_config = {"transform": transform}  # the name that clone copies
        return self

    def _as_configured(self, codes: dict[str, Codes], X: Mapping[str, Any]) -> dict[str, Any]:
        own: Mapping[str, str] = getattr(self, "_sklearn_output_config", {})
        kind = own.get("transform", get_config()["transform_output"])
        if kind == "default":
            return codes
        try:
            library = import_module(kind)
        except ModuleNotFoundError as error:
            raise ImportError(f"set_output(transform={kind!r}) needs the package {kind}: pip install {kind}") from error
        names = self.get_feature_names_out().tolist()
        if kind == "polars":
            return {name: library.DataFrame(rows, schema=names, orient="row") for name, rows in codes.items()}
        return {
            name: library.DataFrame(
                rows, columns=names, index=X[name].index if isinstance(X[name], library.DataFrame) else None
            )
            for name, rows in codes.items()
        }

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.dict, tags.input_tags.sparse = False, True, True
        tags.target_tags.required = self.supervised
        tags.target_tags.two_d_labels = True
        tags.transformer_tags = TransformerTags(preserves_dtype=[])
        return tags

    def decision_function(self, X: Mapping[str, Any]) -> dict[str, Array]:
        """Return real-valued projections (n, n_bits), whose signs are the codes; lazy ones for dask arrays."""
        if any_dask(X):
            return self._lazily(X, "decision_function")
        return super().decision_function(X)

    def _check_new(self, X: Mapping[str, Any]) -> dict[str, Matrix]:
        check_is_fitted(self, "n_features_in_")
        validation.check_feature_names(X, getattr(self, "feature_names_in_", {}))
        return super()._check_new(X)

    def label_codes(self, Y: Any) -> Codes | None:
        """Return the learned codes of label rows, seen in training or not.

        Parameters
        ----------
        Y : (n, n_classes) 0/1, dense or CSR, with at least one label in every row

        Returns
        -------
        Packed codes; None if the method keeps no function from labels to codes
        """
        check_is_fitted(self, "n_features_in_")
        return None

    def _lazily(self, X: Mapping[str, Any], method: str) -> dict[str, Any]:
        check_is_fitted(self, "n_features_in_")
        return lazily(self, X, method)

    def score(self, X: Mapping[str, Any] | TrainingItems, Y: Mapping[str, Any] | None = None) -> float:
        """Return the tie-expected mAP over the full ranking, averaged over all directions between these items.

        Queries and database are hashed from their features, as new items are.
        """
        from modalhash.evaluation import Protocol, evaluate

        if isinstance(X, TrainingItems):
            items = X
            X, Y = items.X, items.Y if Y is None else Y
        if Y is None:
            raise ValueError("score needs labels: score(X, Y), or TrainingItems with labels")
        found = evaluate(self, (X, Y), (X, Y), protocol=Protocol(database="unseen"), intra=len(X) == 1)
        return float(np.mean([direction.map for direction in found.directions.values()]))

    def save(self, folder: str | Path) -> None:
        """Write ``config.json`` and ``model.safetensors`` into a folder, for :func:`modalhash.load`."""
        check_is_fitted(self, "n_features_in_")
        fitted.save(self, folder)

    @abstractmethod
    def _fit(self, data: Training, report: Reporter) -> dict[str, Any]:
        """Return the learned attributes by name, which end in an underscore, without changing ``self``.

        An ``objective_`` that is a list, a value per iteration, becomes an array, and its length ``n_iter_``.
        """

    def _check_features(self, X: Any) -> dict[str, Matrix]:
        """Return checked features: arrays, or items on workers for dask arrays."""
        if not any_dask(X):
            return validation.check_features(X)
        if not self.distributed:
            raise TypeError(
                f"{type(self).__name__} takes arrays in memory; X has dask arrays. Pass their compute(), or use AMSH "
                "or RLH, which learn from dask arrays"
            )
        return rows_of(X)

    def _check(self, X: Any, Y: Any, pairs: Any) -> Training:
        if isinstance(X, TrainingItems):
            X, Y, pairs = X.X, X.Y if Y is None else Y, X.pairs if pairs is None else pairs
        method = type(self).__name__
        features = self._check_features(X)
        Y = in_memory(Y)
        if self.max_modalities is not None and len(features) > self.max_modalities:
            raise ValueError(f"{method} takes at most {self.max_modalities} modalities; got {len(features)}")
        if self.needs_pairs and len(features) < 2:
            raise ValueError(f"{method} learns from pairs and needs two modalities; got {list(features)}")
        if self.supervised and Y is None:
            raise ValueError(f"{method} is supervised: pass labels, fit(X, Y) with Y a dict like X")
        labels = None
        if Y is not None:
            unlabelled = getattr(self, "unlabelled", "error" if self.supervised else "allow")
            labels = validation.check_labels(Y, features, unlabelled=unlabelled)
        if self.needs_pairs and pairs is None:
            raise ValueError(
                f"{method} learns from pairs and got none. If row k of every modality belongs together, "
                "pass fit(X, Y, pairs='aligned'); for unpaired data use AMSH"
            )
        here = {name: values for name, values in features.items() if not isinstance(values, RemoteItems)}
        validation.check_magnitudes(here)
        validation.check_varied(here)
        return Training(
            X=features,
            Y=labels,
            pairs=validation.check_pairs(pairs, features),
            n_bits=validation.check_fewer_bits(self.n_bits, {name: X.shape[0] for name, X in features.items()}),
        )


@cache
def constrained_parameters(cls: type[CrossModalHasher]) -> dict[str, Any]:
    """Return the declared types of the parameters that have constraints; those of base classes count too."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        with suppress(NameError):  # types of an outside class that only type checkers import
            hints = inspect.get_annotations(base, eval_str=True)
            found |= {name: hint for name, hint in hints.items() if validation.is_constrained(hint)}
    names = cls._get_param_names()
    return {name: hint for name, hint in found.items() if name in names}


def _sample(values: Matrix | RemoteItems) -> tuple[Array, Matrix, float]:
    """Return the ids of a few evenly spaced rows, these rows, and the largest magnitude of all features."""
    if isinstance(values, RemoteItems):
        return *values.sample, values.largest
    n = values.shape[0]
    rows = np.unique(np.linspace(0, n - 1, min(n, SAMPLE_SIZE)).astype(int))
    return rows, values[rows], validation.largest_magnitude(values)


class PairedHasher(CrossModalHasher):
    """Base class of methods that learn one code for both items of a pair.

    A subclass implements ``_fit_pairs``. Items without a partner are not trained on; their learned codes are hashed
    codes.
    """

    needs_pairs: ClassVar[bool] = True
    max_modalities: ClassVar[int | None] = 2

    @abstractmethod
    def _fit_pairs(self, X: dict[str, Matrix], L: Array, n_bits: int, report: Reporter) -> PairCodes:
        """Return the codes of the pairs (pairs, n_bits), whose bits are 1 where > 0, and the learned attributes.

        Row k of every X and of the boolean labels L, which have no columns if none were passed, is pair k.
        """

    def _fit(self, data: Training, report: Reporter) -> dict[str, Any]:
        pairs = data.pairs
        assert pairs is not None  # base checked
        if len(pairs) <= data.n_bits:
            raise ValueError(f"{type(self).__name__}: {len(pairs)} pairs for {data.n_bits} bits; more pairs are needed")
        rows = dict(zip(data.X, pairs.T, strict=True))
        L = shared_labels(data.Y, rows, type(self).__name__) if data.Y else np.zeros((len(pairs), 0), dtype=bool)
        B, learned = self._fit_pairs({name: X[rows[name]] for name, X in data.X.items()}, L, data.n_bits, report)
        model = clone(self)
        vars(model).update(learned, n_features_in_={name: X.shape[1] for name, X in data.X.items()})
        codes = {}
        for name, X in data.X.items():
            shared = pack_signs(B)
            codes[name] = np.zeros((X.shape[0], shared.shape[1]), dtype=np.uint8)
            codes[name][rows[name]] = shared
            alone = np.setdiff1d(np.arange(X.shape[0]), rows[name])
            if len(alone):
                codes[name][alone] = pack_signs(model._project_blocks(name, X[alone]))
        return learned | {"codes_": codes}


def shared_labels(Y: Mapping[str, Array], rows: Mapping[str, Array], method: str) -> Array:
    """Return the labels of pairs; ValueError if they differ between modalities."""
    (first, L), *others = ((name, labels[rows[name]]) for name, labels in Y.items())
    for name, labels in others:
        if differing := int((labels != L).any(axis=1).sum()):
            raise ValueError(
                f"{differing} of {len(L)} pairs have different labels in {first!r} and {name!r}; "
                f"{method} takes one label row per pair. Are the rows really aligned?"
            )
    return L
