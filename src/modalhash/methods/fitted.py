"""Fitted models: codes of new items from feature maps and matrices, without scikit-learn, and models on disk.

A model is ``config.json`` and ``model.safetensors``, versioned, without pickle. The configuration has the format,
method, parameters, all learned values that are not arrays, and the digest of the tensors, which are named by their
path, e.g. ``functions_/image``. Saving is atomic.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from modalhash.core import validation
from modalhash.core.blocks import row_slices
from modalhash.core.codes import pack_signs
from modalhash.core.files import NONSENSE, config_bytes, read_config, replace_folder
from modalhash.core.maps import FittedKernel, FittedLinear, FittedMap
from modalhash.core.typing import Array, Codes, Matrix
from modalhash.core.validation import check_learned
from modalhash.methods import registry

if TYPE_CHECKING:
    from modalhash.core.features import FeatureMap
    from modalhash.methods.base import CrossModalHasher

BLOCK_VALUES = 2**22
"""Feature values that transform maps in one block: 16 MiB in float32, which the allocator reuses for the next block."""


class FittedHasher:
    """The part of a fitted method that hashes new items, which is all that a search engine loads to search.

    Every method derives from it. :class:`SavedModel` restores one on its own if the method projects by ``maps_`` and
    ``functions_``.

    Attributes
    ----------
    n_bits : length of the codes
    maps_, functions_ : feature map and (features, bits) matrix, by modality
    n_features_in_ : number of features, by modality
    """

    n_bits: int
    maps_: Mapping[str, FittedMap]
    functions_: dict[str, Array]
    n_features_in_: dict[str, int]

    def transform(self, X: Mapping[str, Any]) -> dict[str, Codes]:
        """Return the packed codes of new items of any of the fitted modalities."""
        return {name: pack_signs(values) for name, values in self.decision_function(X).items()}

    def decision_function(self, X: Mapping[str, Any]) -> dict[str, Array]:
        """Return real-valued projections (n, n_bits), whose signs are the codes."""
        return {
            name: validation.check_projections(self._project_blocks(name, values), name)
            for name, values in self._check_new(X).items()
        }

    def project(self, name: str, X: Matrix) -> tuple[Array, Array | None]:
        """Return the projections of rows of one modality, and their mapped features.

        The features are those after the model's feature map, so that a caller need not map the rows again. They are
        None if the method overrides ``_project`` or if the rows are mapped in blocks.
        """
        clean = self._check_new({name: X})[name]
        if type(self)._project is not FittedHasher._project or clean.shape[0] > self._block_rows(name, clean):
            return validation.check_projections(self._project_blocks(name, clean), name), None
        mapped = self.maps_[name].map(clean)
        return validation.check_projections(mapped @ self.functions_[name], name), mapped

    def _check_new(self, X: Mapping[str, Any]) -> dict[str, Matrix]:
        return validation.check_features(X, expected=self.n_features_in_)

    def _project(self, name: str, X: Matrix) -> Array:
        """Return the projections of checked features of one modality."""
        return self.maps_[name].map(X) @ self.functions_[name]

    def _project_blocks(self, name: str, X: Matrix) -> Array:
        size = self._block_rows(name, X)
        if X.shape[0] <= size:
            return self._project(name, X)
        return np.concatenate([self._project(name, X[rows]) for rows in row_slices(X.shape[0], size)])

    def _block_rows(self, name: str, X: Matrix) -> int:
        """Return the number of rows per block."""
        return max(1, BLOCK_VALUES // max(X.shape[1], self._width(name)))

    def _width(self, name: str) -> int:
        return self.maps_[name].width if hasattr(self, "maps_") else self.n_features_in_[name]


FORMAT = 1
KIND = "modalhash model"
CONFIG, TENSORS = "config.json", "model.safetensors"
FITTED_MAPS: dict[str, type[FittedMap]] = {"AnchorKernel": FittedKernel, "Linear": FittedLinear}
"""What maps new items, by the name of the feature map that learned it."""


class ModelFileError(ValueError):
    """A folder that this version cannot read as a model."""


def save(model: CrossModalHasher, folder: str | Path) -> None:
    """Write a fitted model, replacing one in the same folder.

    The configuration names the method as in the registry, or as ``module:Class`` if it is outside the package.
    """
    from safetensors.numpy import save as to_bytes

    target = Path(folder)
    if target.exists() and (not target.is_dir() or {entry.name for entry in target.iterdir()} - {CONFIG, TENSORS}):
        raise FileExistsError(f"{target} exists and is not a model folder; give a new or empty folder")
    method = registry.name_of(type(model))
    if method.startswith("__main__:"):
        warnings.warn(
            f"{type(model).__name__} is defined in the program itself: only a program that defines it too can load "
            "this model. Put the class into a module",
            UserWarning,
            stacklevel=3,
        )
    arrays: dict[str, Array] = {}
    learned = {name: value for name, value in vars(model).items() if name.endswith("_")}
    state = {name: flatten(value, name, arrays) for name, value in learned.items()}
    tensors = to_bytes({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    config = {
        "format": FORMAT,
        "kind": KIND,
        "method": method,
        "parameters": _parameters(model),
        "state": state,
        "sha256": hashlib.sha256(tensors).hexdigest(),
    }
    with replace_folder(target) as fresh:
        (fresh / TENSORS).write_bytes(tensors)
        (fresh / CONFIG).write_bytes(config_bytes(config))


def load(folder: str | Path, *, trust: bool = False) -> CrossModalHasher:
    """Read a model that :meth:`~modalhash.methods.base.CrossModalHasher.save` wrote.

    Parameters
    ----------
    folder : str or Path
        Folder of the model.
    trust : bool
        Import a class that the folder names as ``module:Class``, which runs the module's code. Methods of modalhash and
        methods that an installed package registers under a name need no trust.
    """
    return read_model(folder, trust=trust).model


@dataclass(frozen=True)
class SavedModel:
    """The content of a model's folder, checked, from which the model or only its hasher is made."""

    folder: Path
    config: Mapping[str, Any]
    arrays: dict[str, Array]

    @property
    def method(self) -> str:
        return str(self.config["method"])

    @cached_property
    def model(self) -> CrossModalHasher:
        with self._errors():
            model = registry.method(self.method)(**self.config["parameters"])
            for name, value in self.config["state"].items():
                setattr(model, name, restore(value, name, self.arrays, _feature_maps()))
            return model

    @cached_property
    def hasher(self) -> FittedHasher:
        """What hashes new items: without scikit-learn, or the fitted method if it projects in a way of its own.

        The methods of the package that learn ``maps_`` and ``functions_`` project by them.
        """
        if self.method not in registry.METHODS or not {"maps_", "functions_"} <= self.config["state"].keys():
            return self.model
        with self._errors():
            hasher = FittedHasher()
            hasher.n_bits = int(self.config["parameters"]["n_bits"])
            for name in ("maps_", "functions_", "n_features_in_"):
                setattr(hasher, name, restore(self.config["state"][name], name, self.arrays))
            return hasher

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except NONSENSE as error:
            raise ModelFileError(f"{self.folder} cannot be read as a {self.method!r} model: {error}") from error


def read_model(folder: str | Path, *, trust: bool = False) -> SavedModel:
    """Read the folder of a model, of which only what is used is made; see :func:`load`."""
    from safetensors import SafetensorError
    from safetensors.numpy import load as from_bytes

    folder = Path(folder)
    config = read_config(
        folder / CONFIG,
        kind=KIND,
        format=FORMAT,
        required=("method", "parameters", "state", "sha256"),
        error=ModelFileError,
    )
    method = str(config["method"])
    if ":" in method and not trust:
        raise ModelFileError(
            f"{folder} was written by the method {method!r}, which is not part of modalhash. If you trust it, pass "
            "trust=True (on the command line --trust): its module is then imported, which runs its code"
        )
    try:
        tensors = (folder / TENSORS).read_bytes()
    except FileNotFoundError:
        raise ModelFileError(f"{folder / TENSORS} is missing; the model was not copied completely") from None
    digest = hashlib.sha256(tensors).hexdigest()
    if digest != config["sha256"]:
        raise ModelFileError(
            f"{folder / TENSORS} ({len(tensors)} bytes) is truncated or not the file {CONFIG} was written with: "
            f"its SHA-256 starts with {digest[:12]}, expected {str(config['sha256'])[:12]}. Copy or save it again"
        )
    try:
        arrays = from_bytes(tensors)
        check_learned(arrays)
    except (SafetensorError, *NONSENSE) as error:
        raise ModelFileError(f"{folder} cannot be read as a {method!r} model: {error}") from error
    return SavedModel(folder, config, arrays)


def _parameters(model: CrossModalHasher) -> dict[str, Any]:
    parameters = dict(model.get_params(deep=False))
    if isinstance(parameters.get("random_state"), np.random.Generator):
        parameters["random_state"] = None  # its state has changed since the fit
    return {name: _plain(value, f"the parameter {name}") for name, value in parameters.items()}


def _plain(value: Any, what: str) -> Any:
    """Return the value as JSON types; TypeError if it cannot be saved."""
    if isinstance(value, Mapping):
        _check_keys(value, what)
        return {key: _plain(entry, f"{what}[{key!r}]") for key, entry in value.items()}
    value = value.item() if isinstance(value, np.generic) else value
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{what} is a {type(value).__name__}, which a saved model cannot hold; it holds numpy arrays, numbers, "
            f"texts, lists and dicts of these, and the feature maps {' and '.join(FITTED_MAPS)}"
        ) from error
    return value


def _check_keys(value: Mapping[Any, Any], what: str) -> None:
    if other := [key for key in value if not isinstance(key, str)]:
        raise TypeError(f"{what} has the key {other[0]!r}; a saved model can hold dicts by text only")


def flatten(value: Any, path: str, arrays: dict[str, Array]) -> Any:
    """Return ``value`` as JSON types, with arrays moved to ``arrays`` under their path."""
    from modalhash.distributed import is_dask

    if is_dask(value):  # codes of a fit on a cluster, held in this process
        value = value.compute(scheduler="synchronous")
    if isinstance(value, np.ndarray):
        arrays[path] = value
        return {"array": path}
    if isinstance(value, Mapping):
        _check_keys(value, path)
        return {"dict": {key: flatten(entry, f"{path}/{key}", arrays) for key, entry in value.items()}}
    if type(value) in _feature_maps().values():
        learned = {name: entry for name, entry in vars(value).items() if name.endswith("_")}
        parameters = {name: _plain(entry, f"{path}.{name}") for name, entry in value.get_params(deep=False).items()}
        state = {name: flatten(entry, f"{path}/{name}", arrays) for name, entry in learned.items()}
        return {"map": type(value).__name__, "parameters": parameters, "state": state}
    return {"value": _plain(value, path)}


def restore(
    value: dict[str, Any], path: str, arrays: dict[str, Array], maps: Mapping[str, type[FittedMap]] = FITTED_MAPS
) -> Any:
    """Return the value from which :func:`flatten` made ``value`` and ``arrays``, with feature maps of these classes."""
    if "array" in value:
        return arrays[value["array"]]
    if "dict" in value:
        return {key: restore(entry, f"{path}/{key}", arrays, maps) for key, entry in value["dict"].items()}
    if "map" in value:
        if value["map"] not in maps:
            raise ValueError(f"{path} is the unknown feature map {value['map']!r}")
        feature_map = maps[value["map"]](**value["parameters"])
        for name, entry in value["state"].items():
            setattr(feature_map, name, restore(entry, f"{path}/{name}", arrays, maps))
        return feature_map
    return value["value"]


def _feature_maps() -> dict[str, type[FeatureMap]]:
    """Return the classes that learn feature maps, by name; importing them needs scikit-learn."""
    from modalhash.core import features

    return {name: getattr(features, name) for name in FITTED_MAPS}
